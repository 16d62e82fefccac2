"""Private arrays: lazy expressions with the interfaces of NumPy and TensorFlow."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NoReturn

from tfe_bench.arrays import (
    arguments,
    array_jobs,
    explaining,
    numpy_names,
    operand_scales,
    operations,
    planning,
    private_inputs,
    result_inference,
)
from tfe_bench.arrays import plan as plans
from tfe_bench.arrays.array_spec import BITS, FIXED
from tfe_bench.arrays.bounds import Bounds, OperandGuard, held_bounds
from tfe_bench.arrays.methods import NumpyArrayMethods
from tfe_bench.arrays.node import ExpressionNode
from tfe_bench.arrays.plan import LoopBody
from tfe_bench.errors import UsageError
from tfe_bench.protocols.session.sharing import Unconvertible

if TYPE_CHECKING:
    from tfe_bench.cluster.client import Client


def apply_array_operation(name: str, *operands: Any, **public: Any) -> Any:
    """Apply an operation to private arrays, lazily.

    Args:
        name: name of the operation, as listed in operations.py.
        operands, public: its arguments; at least one is, or contains, a PrivateArray. A public
            `otherwise` replaces undefined results of a division, logarithm or root.

    Returns:
        a PrivateArray, or a list of them if the operation has several outputs.

    Raises:
        UsageError: the operation does not exist, or does not take these arguments.
        RangeError: a public number that the scale cannot represent.
    """
    operation = operations.find_operation(name)
    has_otherwise = "otherwise" in public
    otherwise = public.pop("otherwise", None)
    bound = operation.bind_arguments(operands, public)
    if has_otherwise:
        return planning.replace_undefined_results(
            apply_array_operation, name, bound.arguments, otherwise
        )
    aligned = operand_scales.align_operand_scales(
        apply_array_operation, operation, dict(bound.arguments)
    )
    bound.arguments.update(aligned)
    composed = operation.compose(apply_array_operation, bound.arguments)
    if composed is not None:
        guards = _build_operand_guards(composed.cluster, operation, bound.arguments)
        if not guards:
            return composed
        node = composed._node
        return PrivateArray(composed.cluster, replace(node, guards=(*node.guards, *guards)))
    if operation.bits is not None:
        bound.arguments.setdefault("bits", operation.bits)
    return _build_operation_node(operation, bound.args, bound.kwargs)


def apply_loop(
    initial: Sequence[PrivateArray],
    elems: Sequence[PrivateArray],
    captured: Sequence[PrivateArray],
    times: int,
    body: LoopBody,
) -> list[PrivateArray]:
    """Apply a loop, lazily.

    Args:
        initial: loop variables before the first iteration.
        elems: arrays of which each iteration takes the next element.
        captured: captured arrays, the same in every iteration.
    """
    loop_arguments = (list(initial), list(elems), list(captured), times)
    foldl = operations.find_operation("foldl")
    results: list[PrivateArray] = _build_operation_node(foldl, loop_arguments, {}, body)
    return results


def _build_operation_node(
    operation: operations.Operation,
    args: Sequence[Any],
    named: Mapping[str, Any],
    body: LoopBody | None = None,
) -> Any:
    name = operation.name
    arrays: list[PrivateArray] = []
    node_args = tuple(_unwrap_nodes(each, arrays) for each in args)
    node_named = {key: _unwrap_nodes(each, arrays) for key, each in named.items()}
    if not arrays:
        raise UsageError(
            f"{name} takes a private array. Received: public values only.",
            code="no-private-operand",
            operation=name,
        )
    cluster = arrays[0].cluster
    if any(each.cluster is not cluster for each in arrays):
        raise UsageError(
            f"{name} takes arrays of one cluster. Received: several. Reveal one and share it.",
            code="several-clusters",
            operation=name,
        )
    depth = 1 + max(each._node.depth for each in arrays)
    if depth > plans.MAX_STEPS:
        raise plans.expression_size_error()
    specs, returns_list = result_inference.infer_results(operation, node_args, node_named, body)
    bounds: Sequence[Bounds | None] = [None] * len(specs)
    guards: list[tuple[str, ExpressionNode]] = []
    if body is None:
        bound = operation.bind_arguments(node_args, node_named)
        bound.apply_defaults()
        planned_bounds, more, open_guards = planning.plan_operation(name, bound.arguments, specs)
        bounds, node_named = planned_bounds, {**node_named, **more}
        guards = [count_guard_violations(cluster, guard) for guard in open_guards]
        wrapped = {key: _wrap_node(cluster, each) for key, each in bound.arguments.items()}
        guards += _build_operand_guards(cluster, operation, wrapped)
    whole_node = ExpressionNode(
        specs[0],
        op=name,
        args=node_args,
        named=node_named,
        body=body,
        depth=depth,
        bounds=bounds[0],
        guards=tuple(guards),
    )
    if not returns_list:
        return PrivateArray(cluster, whole_node)
    nodes = [
        ExpressionNode(m, place=i, step=whole_node, depth=depth, bounds=bounds[i])
        for i, m in enumerate(specs)
    ]
    return [PrivateArray(cluster, node) for node in nodes]


def _build_operand_guards(
    cluster: Client, operation: operations.Operation, arguments: Mapping[str, Any]
) -> list[tuple[str, ExpressionNode]]:
    """Return the guards of values that an operation derives from its arguments."""
    guards: list[tuple[str, ExpressionNode]] = []
    for value, guard in operation.guards(apply_array_operation, arguments):
        node = value._node
        if not node.range.within(guard.low, guard.high):
            guards.append(count_guard_violations(cluster, replace(guard, nodes=(node,))))
            guards += node.guards
    return guards


def _wrap_node(cluster: Client, value: Any) -> Any:
    return PrivateArray(cluster, value) if isinstance(value, ExpressionNode) else value


def count_guard_violations(cluster: Client, guard: OperandGuard) -> tuple[str, ExpressionNode]:
    """Return a guard's text, and the number of its violations."""
    op, nodes, named = planning.violation_count_step(guard)
    arguments = [PrivateArray(cluster, v) if isinstance(v, ExpressionNode) else v for v in nodes]
    return guard.text, _build_operation_node(operations.find_operation(op), arguments, named)._node


def _unwrap_nodes(value: Any, arrays: list[PrivateArray]) -> Any:
    """Return an argument with nodes instead of arrays, and copies of mutable values."""
    if isinstance(value, PrivateArray):
        arrays.append(value)
        return value._node
    if isinstance(value, (list, tuple)):
        kind = tuple if isinstance(value, tuple) else list
        return kind(_unwrap_nodes(each, arrays) for each in value)
    return arguments.decode_operation_argument(arguments.encode_operation_argument(value), {})


def _binary_operator(
    name: str, mirrored: bool = False, of_bits: str | None = None
) -> Callable[[PrivateArray, Any], PrivateArray]:
    """Return the operator of an operation; truth values take the operation `of_bits`."""

    def apply_binary(x: PrivateArray, y: Any) -> PrivateArray:
        chosen = name if of_bits is None or x.kind != BITS else of_bits
        result: PrivateArray = apply_array_operation(chosen, *((y, x) if mirrored else (x, y)))
        return result

    return apply_binary


class PrivateArray(NumpyArrayMethods, Unconvertible):
    """An array whose elements only its owners know.

    Created by `cluster.private(array)` and by operations on other private arrays; nothing runs
    before `reveal`, `compute` or `keep`.
    """

    _reveal_advice = "Write x.reveal() to reveal it to this client."
    __hash__ = Unconvertible.__hash__

    def __init__(self, cluster: Client, node: ExpressionNode) -> None:
        self._cluster = cluster
        self._node = node

    @property
    def cluster(self) -> Client:
        """Cluster whose workers compute the array."""
        return self._cluster

    @property
    def shape(self) -> tuple[int, ...]:
        """Public sizes of the axes."""
        return self._node.spec.shape

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return self._node.spec.elements

    @property
    def kind(self) -> str:
        """ "fixed" (reals), "int" or "bits"."""
        return self._node.spec.kind

    @property
    def fractional_bits(self) -> int:
        """Scale of reals."""
        return self._node.spec.scale

    def __repr__(self) -> str:
        scale = f", fractional_bits={self.fractional_bits}" if self.kind == FIXED else ""
        return f"PrivateArray(shape={list(self.shape)}, kind={self.kind!r}{scale})"

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("A private array without axes has no length. See its shape.")
        return self.shape[0]

    def _apply(self, name: str, *operands: Any) -> PrivateArray:
        result: PrivateArray = apply_array_operation(name, self, *operands)
        return result

    def reveal(self, check: bool = True) -> Any:
        """Return the elements to this client only: float64, int64 or bool.

        Args:
            check: whether the workers count values out of an operation's range.

        Raises:
            PolicyError: an owner of a source, or an operator, does not permit it.
            RangeError: values left the range of an operation, so that the result is wrong.
        """
        return reveal_arrays([self], check)[0]

    def compute(self) -> PrivateArray:
        """Compute the array; the workers hold its shares while this client refers to it.

        Raises:
            PolicyError: an operator does not permit it.
        """
        return compute_arrays([self])[0]

    def keep(self, name: str, clients: Sequence[str] = (), replace: bool = False) -> None:
        """Let the workers store the array under a name, for `cluster.load(name)`.

        Args:
            clients: further clients that may use it, as far as the owners of its sources permit.
            replace: whether to replace the array that this client stored under the name.

        Raises:
            UsageError, PolicyError: the name is taken, or these workers store nothing.
            RangeError: values left the range of an operation; the array is not stored.
        """
        counts = count_range_violations(self._cluster, [self._node], {})
        array_jobs.keep_array_node(self._cluster, self._node, name, clients, replace, counts)

    def explain(self, profile: str | None = None) -> str:
        """Describe the cost and the disclosures of revealing the array; nothing is sent."""
        counts = count_range_violations(self._cluster, [self._node], {})
        name = self._cluster.profile.name if profile is None else profile
        return explaining.explain_array(self._node, name, counts)

    def __contains__(self, value: object) -> bool:
        self._refuse_conversion(
            "an answer", "Whether it contains a value is (x == value).sum() > 0, a private bit. "
        )

    def __reduce__(self) -> NoReturn:
        self._refuse_conversion("a file", "Let the workers store it: x.keep(name). ")

    def __tfe_operation__(self, name: str, args: Any, named: Any) -> Any:
        """Apply the operation tfe_bench.NAME."""
        if name == "reveal":
            return self.reveal()
        return apply_array_operation(name, *args, **named)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **named: Any) -> Any:
        return numpy_names.apply_ufunc(apply_array_operation, ufunc, method, inputs, named)

    def __array_function__(self, function: Any, types: Any, args: Any, named: Any) -> Any:
        return numpy_names.apply_numpy_function(apply_array_operation, function, args, named)

    __add__, __radd__ = _binary_operator("add"), _binary_operator("add", True)
    __sub__, __rsub__ = _binary_operator("subtract"), _binary_operator("subtract", True)
    __mul__, __rmul__ = _binary_operator("multiply"), _binary_operator("multiply", True)
    __matmul__, __rmatmul__ = _binary_operator("matmul"), _binary_operator("matmul", True)
    __truediv__, __rtruediv__ = _binary_operator("divide"), _binary_operator("divide", True)
    __pow__, __rpow__ = _binary_operator("pow"), _binary_operator("pow", True)
    __floordiv__, __rfloordiv__ = _binary_operator("floordiv"), _binary_operator("floordiv", True)
    __mod__, __rmod__ = _binary_operator("floormod"), _binary_operator("floormod", True)
    __lt__, __le__ = _binary_operator("less"), _binary_operator("less_equal")
    __gt__, __ge__ = _binary_operator("greater"), _binary_operator("greater_equal")
    __and__ = _binary_operator("bitwise_and", of_bits="logical_and")
    __rand__ = _binary_operator("bitwise_and", True, "logical_and")
    __or__ = _binary_operator("bitwise_or", of_bits="logical_or")
    __ror__ = _binary_operator("bitwise_or", True, "logical_or")
    __xor__ = _binary_operator("bitwise_xor", of_bits="logical_xor")
    __rxor__ = _binary_operator("bitwise_xor", True, "logical_xor")
    __lshift__, __rshift__ = _binary_operator("left_shift"), _binary_operator("right_shift")

    def __eq__(self, other: Any) -> PrivateArray:  # type: ignore[override]
        return ~(self ^ other) if self.kind == BITS else self._apply("equal", other)

    def __ne__(self, other: Any) -> PrivateArray:  # type: ignore[override]
        return self._apply("logical_xor" if self.kind == BITS else "not_equal", other)

    def __invert__(self) -> PrivateArray:
        return self._apply("logical_not" if self.kind == BITS else "invert")

    def __neg__(self) -> PrivateArray:
        return self._apply("negative")

    def __pos__(self) -> PrivateArray:
        return self

    def __abs__(self) -> PrivateArray:
        return self._apply("abs")

    def __getitem__(self, key: Any) -> PrivateArray:
        if isinstance(key, str):
            raise UsageError(f"{self!r} has no columns. Take x[:, 0].", code="invalid-index")
        if isinstance(key, PrivateArray):
            instead = "tfe_bench.gather(x, places)"
            if key.kind == BITS:
                instead = "tfe_bench.where(mask, x, 0), or sums of that"
            raise UsageError(
                "x[...] takes public indices: the number of elements that a private mask "
                f"selects would become public. Received: {key!r}. Write {instead}.",
                code="private-index",
            )
        return self._apply("getitem", key)


def _check_arrays(arrays: Sequence[PrivateArray]) -> tuple[Client, list[ExpressionNode]]:
    """Return the nodes of some arrays of one cluster.

    Raises:
        UsageError: no arrays, or arrays that are not private.
    """
    for array in arrays:
        if not isinstance(array, PrivateArray):
            raise UsageError(
                f"Expected private arrays. Received: {type(array).__name__}.", code="wrong-type"
            )
    if not arrays:
        raise UsageError("Expected at least one private array. Received: none.", code="empty-input")
    cluster = arrays[0].cluster
    if any(array.cluster is not cluster for array in arrays):
        raise UsageError("Expected one cluster. Received: several.", code="several-clusters")
    return cluster, [array._node for array in arrays]


def run_arrays(
    revealed: Sequence[PrivateArray],
    computed: Sequence[PrivateArray],
    instead: Mapping[ExpressionNode, ExpressionNode] = MappingProxyType({}),
    check: bool = True,
) -> tuple[list[Any], list[PrivateArray]]:
    """Reveal some arrays, and compute and hold others, in one job.

    The counts of range violations of a held array are held with it as one number, until a value
    derived from it is revealed.

    Args:
        instead: nodes that the workers hold, by the nodes that they were computed from.
        check: whether violations are counted.

    Raises:
        as PrivateArray.reveal and PrivateArray.compute.
    """
    cluster, nodes = _check_arrays([*revealed, *computed])
    revealed_nodes, computed_nodes = nodes[: len(revealed)], nodes[len(revealed) :]
    texts, counts = count_range_violations(cluster, revealed_nodes, instead) if check else ([], [])
    violations = [
        count_range_violations(cluster, [node], instead) if check else ([], [])
        for node in computed_nodes
    ]
    count_sums = [
        apply_array_operation("reduce_sum", PrivateArray(cluster, vector))._node
        for _, guard_texts in violations
        for vector in guard_texts
    ]
    values, leaves = array_jobs.run_expression_nodes(
        cluster, [*revealed_nodes, *counts], [*computed_nodes, *count_sums], instead
    )
    if counts:
        planning.check_violation_counts(texts, values[len(revealed_nodes)])
    remaining_counts = iter(leaves[len(computed_nodes) :])
    held_arrays = []
    for node, (guard_texts, vectors) in zip(leaves[: len(computed_nodes)], violations, strict=True):
        guards = tuple(
            (planning.join_violation_texts(guard_texts), next(remaining_counts)) for _ in vectors
        )
        bounds = held_bounds(node.range, node.spec)
        held_arrays.append(PrivateArray(cluster, replace(node, guards=guards, bounds=bounds)))
    return values[: len(revealed_nodes)], held_arrays


def count_range_violations(
    cluster: Client,
    nodes: Sequence[ExpressionNode],
    instead: Mapping[ExpressionNode, ExpressionNode],
) -> tuple[list[str], list[ExpressionNode]]:
    """Return texts of the violations counted for some values, and one vector of their numbers."""
    counts_by_text = planning.collect_guards(nodes, instead)
    if not counts_by_text:
        return [], []
    texts = sorted(counts_by_text)
    sums = []
    for text in texts:
        counts = [PrivateArray(cluster, node) for node in counts_by_text[text]]
        sums.append(counts[0] if len(counts) == 1 else apply_array_operation("add_n", counts))
    return texts, [apply_array_operation("stack", sums)._node]


def reveal_arrays(arrays: Sequence[PrivateArray], check: bool = True) -> list[Any]:
    """Return the elements of several arrays by one job; as PrivateArray.reveal."""
    return run_arrays(arrays, (), check=check)[0]


def compute_arrays(arrays: Sequence[PrivateArray]) -> list[PrivateArray]:
    """Compute several arrays by one job; as PrivateArray.compute."""
    return run_arrays((), arrays)[1]


def make_private_array(
    cluster: Client,
    array: Any,
    kind: str | None = None,
    fractional_bits: int | None = None,
    bound: Any = None,
) -> PrivateArray:
    """Make a private array of this client's data; its shares are sent with the jobs that use it.

    Args:
        array: real numbers, integers or truth values.
        kind: "fixed", "int" or "bits"; by default from the array's type.
        fractional_bits: fractional bits of reals, 1 to 61; by default the cluster's.
        bound: a public bound of all magnitudes, or a pair (low, high): operations on the array are
            planned for it. The default is 2^20 for reals and 2^40 for integers. It never depends
            on the elements, which are compared with it here.

    Raises:
        UsageError: an invalid array, kind or bound.
        RangeError: elements that cannot be represented, or are outside of the bound.
    """
    cluster.check_open()
    if isinstance(array, PrivateArray):
        raise UsageError("Expected a public array. Received: private.", code="already-private")
    default_bits = cluster.config.fractional_bits
    return PrivateArray(
        cluster, private_inputs.make_leaf(array, kind, fractional_bits, bound, default_bits)
    )

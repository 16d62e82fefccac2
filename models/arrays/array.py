"""Private arrays: expressions written as in NumPy and TensorFlow, which run when asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NoReturn

from tfe_bench.errors import UsageError
from tfe_bench.models.arrays import (
    aligning,
    arguments,
    deriving,
    explaining,
    making,
    numpy_names,
    operations,
    planning,
    running,
)
from tfe_bench.models.arrays import plan as plans
from tfe_bench.models.arrays.bounds import Bounds, Guard, settled
from tfe_bench.models.arrays.methods import Methods
from tfe_bench.models.arrays.node import Node
from tfe_bench.models.arrays.plan import BITS, FIXED, Body

if TYPE_CHECKING:
    from tfe_bench.cluster.client import Client

_INSTEAD = "Write x.reveal() where this client shall learn it"


def apply(name: str, *operands: Any, **public: Any) -> Any:
    """An operation on private arrays, lazily.

    Args:
        name: of the operation, as operations.py lists them.
        operands, public: its arguments; at least one is, or holds, a PrivateArray.  A public
            `otherwise` stands where a division, logarithm or root has no result.

    Returns:
        a PrivateArray, or a list of them where the operation makes several.
    Raises:
        UsageError: there is no such operation, or it does not take these arguments.
        RangeError: a public number that the scale does not admit.
    """
    operation = operations.find(name)
    instead = "otherwise" in public
    otherwise = public.pop("otherwise", None)
    bound = operation.bound(operands, public)
    if instead:
        return planning.without(apply, name, bound.arguments, otherwise)
    bound.arguments.update(aligning.align(apply, name, dict(bound.arguments)))
    made = planning.composed(apply, name, bound.arguments)
    if made is not None:
        return made
    if operation.bits is not None:
        bound.arguments.setdefault("bits", operation.bits)
    return _applied(operation, bound.args, bound.kwargs)


def looped(
    initial: Sequence[PrivateArray],
    elems: Sequence[PrivateArray],
    held: Sequence[PrivateArray],
    times: int,
    body: Body,
) -> list[PrivateArray]:
    """A loop, lazily.

    Args:
        initial: what the first turn begins with.
        elems: of which each turn takes the next element.
        held: what every turn takes as it is.
    """
    given = (list(initial), list(elems), list(held), times)
    made: list[PrivateArray] = _applied(operations.find("foldl"), given, {}, body)
    return made


def _applied(
    operation: operations.Operation,
    args: Sequence[Any],
    named: Mapping[str, Any],
    body: Body | None = None,
) -> Any:
    name = operation.name
    found: list[PrivateArray] = []
    given = tuple(_nodes(each, found) for each in args)
    given_named = {key: _nodes(each, found) for key, each in named.items()}
    if not found:
        raise UsageError(f"{name} wants a private array. Received: public values only.")
    cluster = found[0].cluster
    if any(each.cluster is not cluster for each in found):
        raise UsageError(
            f"{name} wants arrays of one cluster. Received: arrays of several. Reveal one and make "
            "it private at the other."
        )
    depth = 1 + max(each._node.depth for each in found)
    if depth > plans.MOST_STEPS:
        raise plans.too_many()
    meanings, several = deriving.derive(operation, given, given_named, body)
    bounds: Sequence[Bounds | None] = [None] * len(meanings)
    guards: list[tuple[str, Node]] = []
    if body is None:
        taken = operation.bound(given, given_named)
        taken.apply_defaults()
        found_bounds, more, open_ = planning.planned(name, taken.arguments, meanings)
        bounds, given_named = found_bounds, {**given_named, **more}
        guards = [count_of(cluster, guard) for guard in open_]
        wrapped = {key: _arrays(cluster, each) for key, each in taken.arguments.items()}
        for value, guard in planning.checked(apply, name, wrapped):
            node = value._node
            if not node.range.within(guard.low, guard.high):
                guards.append(count_of(cluster, replace(guard, nodes=(node,))))
                guards += node.guards
    whole = Node(
        meanings[0],
        op=name,
        args=given,
        named=given_named,
        body=body,
        depth=depth,
        bounds=bounds[0],
        guards=tuple(guards),
    )
    if not several:
        return PrivateArray(cluster, whole)
    nodes = [
        Node(m, place=i, step=whole, depth=depth, bounds=bounds[i]) for i, m in enumerate(meanings)
    ]
    return [PrivateArray(cluster, node) for node in nodes]


def _arrays(cluster: Client, value: Any) -> Any:
    return PrivateArray(cluster, value) if isinstance(value, Node) else value


def count_of(cluster: Client, guard: Guard) -> tuple[str, Node]:
    """What a guard is about, and how often it does not hold."""
    op, nodes, named = planning.count_step(guard)
    given = [PrivateArray(cluster, v) if isinstance(v, Node) else v for v in nodes]
    return guard.text, _applied(operations.find(op), given, named)._node


def _nodes(value: Any, found: list[PrivateArray]) -> Any:
    """An argument with nodes in place of arrays, and a copy of what its giver may change."""
    if isinstance(value, PrivateArray):
        found.append(value)
        return value._node
    if isinstance(value, (list, tuple)):
        kind = tuple if isinstance(value, tuple) else list
        return kind(_nodes(each, found) for each in value)
    return arguments.decoded(arguments.encoded(value), {})


# ---- what Python's operators do


def _binary(name: str, mirrored: bool = False) -> Callable[[PrivateArray, Any], PrivateArray]:
    def operate(x: PrivateArray, y: Any) -> PrivateArray:
        made: PrivateArray = apply(name, y, x) if mirrored else apply(name, x, y)
        return made

    return operate


def _logical(
    of_bits: str, of_integers: str, mirrored: bool = False
) -> Callable[[PrivateArray, Any], PrivateArray]:
    """&, | and ^: of truth values, or of the bits of integers."""

    def operate(x: PrivateArray, y: Any) -> PrivateArray:
        name = of_bits if x.kind == BITS else of_integers
        made: PrivateArray = apply(name, y, x) if mirrored else apply(name, x, y)
        return made

    return operate


class PrivateArray(Methods):
    """An array of which nobody but its owners knows the elements.

    Made by `cluster.private(array)` and by computing on others; nothing runs before `reveal`,
    `compute` or `keep`.
    """

    __hash__ = object.__hash__

    def __init__(self, cluster: Client, node: Node) -> None:
        self._cluster = cluster
        self._node = node

    @property
    def cluster(self) -> Client:
        """Whose workers compute."""
        return self._cluster

    @property
    def shape(self) -> tuple[int, ...]:
        """Its sizes: public."""
        return self._node.meaning.shape

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return self._node.meaning.elements

    @property
    def kind(self) -> str:
        """ "fixed" (reals), "int" or "bits"."""
        return self._node.meaning.kind

    @property
    def fractional_bits(self) -> int:
        """The scale of reals."""
        return self._node.meaning.scale

    def __repr__(self) -> str:
        scale = f", fractional_bits={self.fractional_bits}" if self.kind == FIXED else ""
        return f"PrivateArray(shape={list(self.shape)}, kind={self.kind!r}{scale})"

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("A private array without axes has no length. See its shape.")
        return self.shape[0]

    def _apply(self, name: str, *public: Any) -> Any:
        return apply(name, self, *public)

    # ---- running

    def reveal(self, check: bool = True) -> Any:
        """Its elements, which this client learns and nobody else: float64, int64 or bool.

        Args:
            check: whether the workers count values that leave the range of an operation.

        Raises:
            PolicyError: an owner of what it is made of does not permit it, or an operator.
            RangeError: values left the range of an operation, so that the result is not right.
        """
        return reveal([self], check)[0]

    def compute(self) -> PrivateArray:
        """The same array, computed: its shares stay at the workers, as long as it is used here.

        Raises:
            PolicyError: an operator does not permit it.
        """
        return compute([self])[0]

    def keep(self, name: str, clients: Sequence[str] = (), replace: bool = False) -> None:
        """Has the workers keep it under a name, for `cluster.load(name)`.

        Args:
            clients: who else may use it, as far as the owners of what it is made of permit it.
            replace: what this client kept under the name before.

        Raises:
            UsageError, PolicyError: the name is taken, or nothing is kept here.
            RangeError: values left the range of an operation: it is not kept.
        """
        counts = counted(self._cluster, [self._node], {})
        running.keep(self._cluster, self._node, name, clients, replace, counts)

    def explain(self, profile: str | None = None) -> str:
        """What revealing it would take, and tell: print it.  Nothing is sent."""
        counts = counted(self._cluster, [self._node], {})
        return explaining.text(self._node, profile or self._cluster.profile.name, counts)

    # ---- no value becomes public by itself

    def _refuse(self, what: str) -> NoReturn:
        raise TypeError(f"{self!r} does not become {what} by itself. {_INSTEAD}.")

    def __bool__(self) -> bool:
        self._refuse("a truth value; to choose between two arrays write tfe_bench.where(x, a, b)")

    def __float__(self) -> float:
        self._refuse("a float")

    def __int__(self) -> int:
        self._refuse("an int")

    def __complex__(self) -> complex:
        self._refuse("a number")

    def __index__(self) -> int:
        self._refuse("an index; to look up a private place write tfe_bench.gather(array, x)")

    def __array__(self, dtype: object = None, copy: object = None) -> NoReturn:
        self._refuse("an array of NumPy's")

    def __iter__(self) -> NoReturn:
        self._refuse("a sequence; parts of it are x[0] or tfe_bench.unstack(x)")

    def __contains__(self, value: object) -> bool:
        self._refuse("an answer; whether an element is there is (x == value).sum() > 0")

    def __reduce__(self) -> NoReturn:
        self._refuse("a file; the workers keep it with x.keep(name)")

    # ---- dispatch

    def __tfe_operation__(self, name: str, args: Any, named: Any) -> Any:
        """What tfe_bench.NAME does with it."""
        if name == "reveal":
            return self.reveal()
        return apply(name, *args, **named)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **named: Any) -> Any:
        return numpy_names.ufunc(apply, ufunc, method, inputs, named)

    def __array_function__(self, function: Any, types: Any, args: Any, named: Any) -> Any:
        return numpy_names.function(apply, function, args, named)

    __add__, __radd__ = _binary("add"), _binary("add", True)
    __sub__, __rsub__ = _binary("subtract"), _binary("subtract", True)
    __mul__, __rmul__ = _binary("multiply"), _binary("multiply", True)
    __matmul__, __rmatmul__ = _binary("matmul"), _binary("matmul", True)
    __truediv__, __rtruediv__ = _binary("divide"), _binary("divide", True)
    __pow__, __rpow__ = _binary("pow"), _binary("pow", True)
    __floordiv__, __rfloordiv__ = _binary("floordiv"), _binary("floordiv", True)
    __mod__, __rmod__ = _binary("floormod"), _binary("floormod", True)
    __lt__, __le__ = _binary("less"), _binary("less_equal")
    __gt__, __ge__ = _binary("greater"), _binary("greater_equal")
    __and__ = _logical("logical_and", "bitwise_and")
    __rand__ = _logical("logical_and", "bitwise_and", True)
    __or__ = _logical("logical_or", "bitwise_or")
    __ror__ = _logical("logical_or", "bitwise_or", True)
    __xor__ = _logical("logical_xor", "bitwise_xor")
    __rxor__ = _logical("logical_xor", "bitwise_xor", True)
    __lshift__, __rshift__ = _binary("left_shift"), _binary("right_shift")

    def __eq__(self, other: Any) -> PrivateArray:  # type: ignore[override]
        made: PrivateArray = ~(self ^ other) if self.kind == BITS else apply("equal", self, other)
        return made

    def __ne__(self, other: Any) -> PrivateArray:  # type: ignore[override]
        name = "logical_xor" if self.kind == BITS else "not_equal"
        made: PrivateArray = apply(name, self, other)
        return made

    def __invert__(self) -> PrivateArray:
        made: PrivateArray = apply("logical_not" if self.kind == BITS else "invert", self)
        return made

    def __neg__(self) -> PrivateArray:
        made: PrivateArray = apply("negative", self)
        return made

    def __pos__(self) -> PrivateArray:
        return self

    def __abs__(self) -> PrivateArray:
        made: PrivateArray = apply("abs", self)
        return made

    def __getitem__(self, key: Any) -> PrivateArray:
        if isinstance(key, str):
            raise UsageError(f"{self!r} has no columns. Received: a name. Take x[:, 0].")
        if isinstance(key, PrivateArray):
            instead = "tfe_bench.gather(x, places)"
            if key.kind == BITS:
                instead = "tfe_bench.where(mask, x, 0), or sums of that"
            raise UsageError(
                "x[...] takes public indices: how many elements a private mask leaves would become "
                f"public. Received: {key!r}. Write {instead}."
            )
        made: PrivateArray = apply("getitem", self, key)
        return made


# ---- several at once


def _nodes_of(arrays: Sequence[PrivateArray]) -> tuple[Client, list[Node]]:
    """The nodes of some arrays of one cluster.

    Raises:
        UsageError: there are none, or they are something else.
    """
    for array in arrays:
        if not isinstance(array, PrivateArray):
            raise UsageError(f"Private arrays are due here. Received: {type(array).__name__}.")
    if not arrays:
        raise UsageError("One private array at least is due. Received: none.")
    cluster = arrays[0].cluster
    if any(array.cluster is not cluster for array in arrays):
        raise UsageError("Arrays of one cluster are computed together. Received: of several.")
    return cluster, [array._node for array in arrays]


def run(
    revealed: Sequence[PrivateArray],
    held: Sequence[PrivateArray],
    instead: Mapping[Node, Node] = MappingProxyType({}),
    check: bool = True,
) -> tuple[list[Any], list[PrivateArray]]:
    """The elements of some arrays, and others computed and held, by one job.

    What is counted on the way to a held array is held with it as one number, until something that
    is made of it is revealed.

    Args:
        instead: what the workers hold, by the nodes that it was computed of.
        check: whether anything is counted.

    Raises:
        as PrivateArray.reveal and PrivateArray.compute.
    """
    cluster, nodes = _nodes_of([*revealed, *held])
    open_, kept = nodes[: len(revealed)], nodes[len(revealed) :]
    texts, counts = counted(cluster, open_, instead) if check else ([], [])
    of_kept = [counted(cluster, [node], instead) if check else ([], []) for node in kept]
    more = [
        apply("reduce_sum", PrivateArray(cluster, vector))._node
        for _, several in of_kept
        for vector in several
    ]
    values, found = running.run(cluster, [*open_, *counts], [*kept, *more], instead)
    if counts:
        planning.refuse(texts, values[len(open_)])
    rest = iter(found[len(kept) :])
    made = []
    for node, (several, vectors) in zip(found[: len(kept)], of_kept, strict=True):
        guards = tuple((planning.joined(several), next(rest)) for _ in vectors)
        bounds = settled(node.range, node.meaning)
        made.append(PrivateArray(cluster, replace(node, guards=guards, bounds=bounds)))
    return values[: len(open_)], made


def counted(
    cluster: Client, nodes: Sequence[Node], instead: Mapping[Node, Node]
) -> tuple[list[str], list[Node]]:
    """What is counted on the way to some values, in words, and one vector of the numbers."""
    several = planning.guards_of(nodes, instead)
    if not several:
        return [], []
    texts = sorted(several)
    sums = []
    for text in texts:
        counts = [PrivateArray(cluster, node) for node in several[text]]
        sums.append(counts[0] if len(counts) == 1 else apply("add_n", counts))
    return texts, [apply("stack", sums)._node]


def reveal(arrays: Sequence[PrivateArray], check: bool = True) -> list[Any]:
    """The elements of several arrays, by one job; as PrivateArray.reveal."""
    return run(arrays, (), check=check)[0]


def compute(arrays: Sequence[PrivateArray]) -> list[PrivateArray]:
    """Several arrays, computed by one job; as PrivateArray.compute."""
    return run((), arrays)[1]


# ---- leaves


def private(
    cluster: Client,
    array: Any,
    kind: str | None = None,
    fractional_bits: int | None = None,
    bound: Any = None,
) -> PrivateArray:
    """An array of this client's, private; its shares leave with the jobs that use it.

    Args:
        array: real numbers, integers or truth values.
        kind: "fixed", "int" or "bits"; by its type unless given.
        fractional_bits: of reals, 1 to 61; the cluster's unless given.
        bound: a public number that no magnitude exceeds, or a pair (low, high): operations on the
            array are planned for it.  By default 2^20 for reals and 2^40 for integers; it never
            depends on the elements, which are compared with it here.

    Raises:
        UsageError: no such array, kind or bound.
        RangeError: elements that do not fit, or are outside of the bound.
    """
    cluster.check_open()
    if isinstance(array, PrivateArray):
        raise UsageError("private takes a public array. Received: one that is private already.")
    usual = cluster.config.fractional_bits
    return PrivateArray(cluster, making.leaf_of(array, kind, fractional_bits, bound, usual))

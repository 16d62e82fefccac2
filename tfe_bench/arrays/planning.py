"""Planning of operations from bounds: parameters of an operation, and checks of its operands.

The client checks preconditions on its own arrays here, before anything is sent (see bounds.py).
The workers count violations of other values, and the client to which a result is revealed learns
the count.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tfe_bench.arrays import bounds as rules
from tfe_bench.arrays import bounds_functions, bounds_linear, bounds_products, building
from tfe_bench.arrays.bounds import Bounds, OperandGuard, OperationCall, PrivateOperand
from tfe_bench.arrays.evaluate import ArraySpec
from tfe_bench.arrays.node import ExpressionNode
from tfe_bench.arrays.plan import BITS, FIXED, INPUT, INT
from tfe_bench.errors import RangeError, UsageError

Apply = Callable[..., Any]
# (importing a module of rules registers them)
RULE_MODULES = (bounds_functions, bounds_linear, bounds_products)
REMEDY = (
    "Scale the values, declare a bound that they satisfy (cluster.private(array, bound=...)), "
    "or compute a part separately."
)


# ---- this client's own elements


def own_elements(node: Any) -> np.ndarray[Any, Any] | None:
    """Return the ring elements of this client's array, or of a part of one; None:
    others' values.
    """
    if not isinstance(node, ExpressionNode):
        return None
    if node.leaf is not None:
        is_own = node.leaf.source == INPUT and node.value is not None
        return np.asarray(node.value.ring) if is_own and node.value is not None else None
    if node.op not in _VIEWS or node.step is not None or len(node.args) != len(_VIEWS[node.op]) + 1:
        return None
    first = own_elements(node.args[0])
    if first is None:
        return None
    return _apply_numpy_view(node.op, first, node.args[1:])


def _elements_of_iterations(node: ExpressionNode) -> np.ndarray[Any, Any] | None:
    """Return the ring elements of a loop variable in all iterations, if they belong to this
    client.

    A part of an element (`getitem`) is excluded: elements outside of the part must not decide what
    the workers count.
    """
    if node.part_of is not None:
        return own_elements(node.part_of)
    whole = node.op in _VIEWS and node.op != "getitem" and isinstance(node.args[0], ExpressionNode)
    return _elements_of_iterations(node.args[0]) if whole else None


_VIEWS: Mapping[str, tuple[str, ...]] = {
    "getitem": ("key",),
    "reshape": ("shape",),
    "transpose": (),
    "expand_dims": ("axis",),
}


def _apply_numpy_view(
    op: str, array: np.ndarray[Any, Any], args: Sequence[Any]
) -> np.ndarray[Any, Any] | None:
    if op == "getitem":
        return np.asarray(array[args[0]])
    if op == "reshape":
        return np.asarray(np.reshape(array, args[0]))
    if op == "transpose":
        return np.transpose(array)
    return np.expand_dims(array, args[0])


def _evaluate_guard(guard: OperandGuard) -> bool | None:
    """Return whether a guard holds on this client's own elements; None: unknown."""
    elements = [
        own_elements(node) if isinstance(node, ExpressionNode) else None for node in guard.nodes
    ]
    if guard.bits is None and elements[0] is None and isinstance(guard.nodes[0], ExpressionNode):
        elements = [_elements_of_iterations(guard.nodes[0])]
    if any(a is None for a in elements):
        return None
    if guard.bits is not None:
        x, y = elements
        assert x is not None and y is not None
        if guard.nodes[0] is guard.nodes[1]:
            return bool(np.all(x != 0))
        return bool(
            np.all((_unsigned_magnitude(x) >> np.uint64(guard.bits)) < _unsigned_magnitude(y))
        )
    ring = elements[0]
    assert ring is not None
    low = guard.low is None or bool(np.all(ring >= guard.low))
    return low and (guard.high is None or bool(np.all(ring <= guard.high)))


def _unsigned_magnitude(ring: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.asarray(np.abs(ring.astype(np.int64)).astype(np.uint64))


# ---- one operation


def as_private_operand(value: Any) -> Any:
    """Return an argument with the public facts about each node in its place."""
    if isinstance(value, ExpressionNode):
        return PrivateOperand(value.spec, value.range, value)
    if isinstance(value, (list, tuple)):
        return type(value)(as_private_operand(each) for each in value)
    return value


def plan_operation(
    op: str, arguments: Mapping[str, Any], result_specs: list[ArraySpec]
) -> tuple[list[Bounds], dict[str, Any], list[OperandGuard]]:
    """Return the bounds of results, further parameters of the operation, and guards for the
    workers.

    Args:
        arguments: arguments by name, with nodes among them.

    Raises:
        RangeError: an array of this client violates a precondition.
    """
    call = OperationCall(
        op, {name: as_private_operand(each) for name, each in arguments.items()}, result_specs
    )
    bounds = rules.apply_bounds_rule(call)
    open_guards: list[OperandGuard] = []
    for guard in call.guards:
        holds = _evaluate_guard(guard)
        if holds is None:
            open_guards.append(guard)
        elif not holds:
            raise RangeError(
                f"{guard.text}. Nothing was sent. {REMEDY}",
                code="own-values-out-of-range",
                operation=op,
            )
    return bounds, call.extra, open_guards


# ---- checks of results


def collect_guards(
    nodes: Sequence[ExpressionNode], replacements: Mapping[ExpressionNode, ExpressionNode]
) -> dict[str, list[ExpressionNode]]:
    """Return the violation counts of some values, by the text of the violation."""
    counts_by_text: dict[str, list[ExpressionNode]] = {}
    visited: set[int] = set()
    pending = list(nodes)
    while pending:
        more: list[ExpressionNode] = []
        for node in building.topological_node_order(
            [replacements.get(n, n) for n in pending], replacements
        ):
            if id(node) in visited:
                continue
            visited.add(id(node))
            for text, count in node.guards:
                listed = counts_by_text.setdefault(text, [])
                if all(count is not other for other in listed):
                    listed.append(count)
                    more.append(count)
        pending = more
    return counts_by_text


def check_violation_counts(texts: Sequence[str], counts: Sequence[int]) -> None:
    """Report the values that left the range of an operation, if any.

    Raises:
        RangeError: values did: the result is wrong.
    """
    violations = [
        f"{text} ({count} times)" for text, count in zip(texts, counts, strict=True) if count
    ]
    if violations:
        raise RangeError(
            "The result is wrong: values left the range of an operation. "
            f"{'; '.join(violations[:8])}. {REMEDY} reveal(check=False) returns it anyway.",
            code="values-left-range",
            operation=violations[0].partition(":")[0],
        )


_OR = " | "


def join_violation_texts(texts: Sequence[str]) -> str:
    """Return one text for a number that counts several violations."""
    return _OR.join(sorted({part for text in texts for part in text.split(_OR)}))


def derive_operand_guards(
    apply: Apply, op: str, arguments: Mapping[str, Any]
) -> list[tuple[Any, OperandGuard]]:
    """Return derived values that must be in a range, with the guard of each.

    Args:
        arguments: arguments by name, with private arrays among them.
    """
    if op == "pow":
        exponent = arguments["y"]
        if not all(hasattr(arguments[key], "kind") for key in ("x", "y")):
            return []
        limit = MAX_EXPONENT << exponent.fractional_bits
        text = f"{op}: an exponent is above {MAX_EXPONENT} in magnitude"
        return [(exponent, OperandGuard((), text, -limit, limit))]
    if op != "scaled_dot_product_attention":
        return []
    query, key = arguments["query"], arguments["key"]
    rank = query.ndim
    transposed_key = apply("transpose", key, [*range(rank - 2), rank - 1, rank - 2])
    scale = arguments["scale"]
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else float(scale)
    spread = _SPREAD if arguments["spread"] is None else float(arguments["spread"])
    if arguments["spread"] is None and hasattr(arguments["mask"], "kind"):
        spread = _MASKED_SPREAD
    scores = apply("multiply", apply("matmul", query, transposed_key), scale)
    limit = math.floor(spread / 2 * 2.0**scores.fractional_bits)
    text = f"{op}: scores are {spread:.4g} or more apart"
    return [(scores, OperandGuard((), text, -limit, limit))]


# The exponent multiplies an error of the logarithm: beyond this limit powers have no correct bit.
MAX_EXPONENT = 1 << 14
# Scores of a row that differ by more get wrong weights; the second limit is for a private mask.
_SPREAD, _MASKED_SPREAD = 119.0, 50.0


# ---- composed operations


def compose_operation(apply: Apply, name: str, arguments: Mapping[str, Any]) -> Any:
    """Compose an operation of others, each planned separately; None: it is not composed."""
    composer = _COMPOSED.get(name)
    return None if composer is None else composer(apply, arguments)


def _compose_power(apply: Apply, arguments: Mapping[str, Any]) -> Any:
    x, y = arguments["x"], arguments["y"]
    if hasattr(y, "kind"):
        return None if y.kind == BITS else _compose_private_power(apply, x, y)
    exponent = np.asarray(y)
    if getattr(x, "kind", None) != FIXED or exponent.size != 1 or exponent.dtype.kind not in "iuf":
        return None
    power = float(exponent.item())
    if not np.isfinite(power):
        return None  # (the operation itself raises the error)
    if power == int(power) and 1 <= abs(power) <= 64:
        return _compose_integer_power(
            apply, apply("reciprocal", x) if power < 0 else x, abs(int(power))
        )
    if power in (0.5, -0.5):
        return apply("sqrt" if power > 0 else "rsqrt", x)
    if power == int(power):
        return None
    if abs(power) > MAX_EXPONENT:
        raise UsageError(
            f"pow expects an exponent of at most {MAX_EXPONENT} in magnitude. Received: {power:g}.",
            code="number-out-of-range",
            operation="pow",
            received=power,
            expected=f"{-MAX_EXPONENT} to {MAX_EXPONENT}",
        )
    return apply("exp", apply("multiply", apply("log", x), power))


def _compose_integer_power(apply: Apply, x: Any, n: int) -> Any:
    result: Any = None
    while n:
        if n & 1:
            result = x if result is None else apply("multiply", result, x)
        n >>= 1
        if n:
            x = apply("square", x)
    return result


def _compose_private_power(apply: Apply, x: Any, y: Any) -> Any:
    """Compute x ** y: for whole private y also where x < 0, with the sign of odd powers."""
    if not hasattr(x, "kind"):
        base = np.asarray(x)
        usable = base.dtype.kind in "iuf" and bool(np.all(np.isfinite(base) & (base > 0)))
        if y.kind != FIXED or not usable:
            return None
        return apply("exp", apply("multiply", y, np.log(base.astype(np.float64))))
    if x.kind != FIXED:
        return None
    if y.kind == FIXED:
        return apply("exp", apply("multiply", y, apply("log", x)))
    size = apply("exp", apply("multiply", apply("log", apply("abs", x)), y))
    odd = apply("logical_and", apply("less", x, 0.0), apply("bit_extract", y, 0))
    return apply("where", odd, apply("negative", size), size)


def _compose_atan2(apply: Apply, arguments: Mapping[str, Any]) -> Any:
    """Replace distant points by nearer ones in the same direction."""
    y, x = arguments["y"], arguments["x"]
    if not all(getattr(v, "kind", None) == FIXED for v in (y, x)) or "bits" in arguments:
        return None
    bits, f = max(v._node.range.bits for v in (y, x)), y.fractional_bits
    drop = bits - _NEAR + 1
    if bits <= _NEAR or drop >= f or x.fractional_bits != f:
        return None
    whole = list(np.broadcast_shapes(y.shape, x.shape))
    both = [v if list(v.shape) == whole else apply("broadcast_to", v, whole) for v in (y, x)]
    far = [apply("logical_not", apply("in_range", v, _NEAR)) for v in both]
    is_far = apply("logical_or", *far)
    nearer = [
        apply("where", is_far, apply("bitcast", apply("cast", v, f - drop), f), v) for v in both
    ]
    # (a y that is rounded to 0 keeps its sign: the angle of -0 is -pi on the left)
    size = apply("abs", apply("atan2", *nearer, bits=_NEAR + 1))
    return apply("where", apply("less", y, 0.0), apply("negative", size), size)


def replace_undefined_results(
    apply: Apply, name: str, arguments: Mapping[str, Any], otherwise: Any
) -> Any:
    """Apply an operation, with a public number in place of undefined results.

    Raises:
        UsageError: the operation is defined everywhere.
    """
    rule = _UNDEFINED.get(name)
    if rule is None:
        raise UsageError(
            f"{name} takes no otherwise. Received: one. It exists for "
            f"{', '.join(sorted(_UNDEFINED))}.",
            code="unsupported-argument",
            operation=name,
        )
    operand, compare = rule
    x = arguments[operand]
    if not hasattr(x, "kind"):
        raise UsageError(
            f"{name} takes otherwise with a private {operand}. Received: a public one.",
            code="public-operand",
            operation=name,
        )
    bad = apply(compare, x, 0)
    safe = apply("where", bad, 1, x)
    return apply("where", bad, otherwise, apply(name, **{**arguments, operand: safe}))


# The operand without result, and the comparison with 0 that detects it.
_UNDEFINED = {
    "divide": ("y", "equal"),
    "floordiv": ("y", "equal"),
    "floormod": ("y", "equal"),
    "log": ("x", "less_equal"),
    "reciprocal": ("x", "equal"),
    "rsqrt": ("x", "less_equal"),
    "sqrt": ("x", "less"),
}


# Bits of coordinates that atan2 takes.
_NEAR = 30


def _compose_convolution_bias(name: str) -> Callable[[Apply, Mapping[str, Any]], Any]:
    """Return a composition of a convolution and its bias, each planned separately."""

    def add_bias(apply: Apply, arguments: Mapping[str, Any]) -> Any:
        bias = arguments.get("bias")
        if bias is None:
            return None
        shape = bias.shape if hasattr(bias, "kind") else np.shape(bias)
        plain = apply(name, **{**arguments, "bias": None})
        pairs = zip(shape[::-1], plain.shape[::-1], strict=False)
        if len(shape) > plain.ndim or any(n not in (1, size) for n, size in pairs):
            return None  # (the operation itself raises the error)
        return apply("add", plain, bias)

    return add_bias


def _compose_quantile(name: str) -> Callable[[Apply, Mapping[str, Any]], Any]:
    """Return a composition for quantiles of integers, which are reals as in NumPy."""

    def cast_integers(apply: Apply, arguments: Mapping[str, Any]) -> Any:
        x = arguments["x"]
        if getattr(x, "kind", None) != INT:
            return None
        return apply(name, **{**arguments, "x": apply("cast", x, 16)})

    return cast_integers


def _compose_product(apply: Apply, arguments: Mapping[str, Any]) -> Any:
    """Multiply halves by halves, in the order of protocols.api.ranking; each product is planned
    separately.
    """
    x = arguments["x"]
    if getattr(x, "kind", None) != FIXED or x.size == 0:
        return None
    axis = arguments.get("axis")
    if axis is not None and type(axis) is not int:
        return None
    if axis is not None and not -x.ndim <= axis < x.ndim:
        return None
    rows = apply("reshape", x, [-1]) if axis is None else _move_axis_first(apply, x, axis % x.ndim)
    count = rows.shape[0]
    while count > 1:
        half = count // 2
        low, high = (apply("getitem", rows, slice(i * half, (i + 1) * half)) for i in (0, 1))
        joined = apply("multiply", low, high)
        if count % 2:
            rest = apply("getitem", rows, slice(2 * half, count))
            joined = apply("concat", [joined, rest], 0)
        rows, count = joined, count - half
    if arguments.get("keepdims", False):
        shape = (
            [1] * x.ndim
            if axis is None
            else [1 if i == axis % x.ndim else n for i, n in enumerate(x.shape)]
        )
        return apply("reshape", rows, shape)
    return apply("getitem", rows, 0)


def _move_axis_first(apply: Apply, x: Any, axis: int) -> Any:
    if axis == 0:
        return x
    return apply("transpose", x, [axis, *(i for i in range(x.ndim) if i != axis)])


_COMPOSED: Mapping[str, Callable[[Apply, Mapping[str, Any]], Any]] = {
    "atan2": _compose_atan2,
    "conv2d": _compose_convolution_bias("conv2d"),
    "depthwise_conv2d": _compose_convolution_bias("depthwise_conv2d"),
    "pow": _compose_power,
    "median": _compose_quantile("median"),
    "quantile": _compose_quantile("quantile"),
    "reduce_prod": _compose_product,
}


def violation_count_step(guard: OperandGuard) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
    """Return the operation that counts the violations of a guard."""
    if guard.bits is None:
        # (count_outside takes limits below 2^62: those of 64-bit words are reduced)
        limit = 1 << rules.LIMIT
        low = None if guard.low is None else max(guard.low, -limit)
        limits = {"low": low, "high": None if guard.high is None else min(guard.high, limit - 1)}
        return "count_outside", guard.nodes, {k: v for k, v in limits.items() if v is not None}
    if guard.nodes[0] is guard.nodes[1]:
        return "count_zeros", guard.nodes[:1], {}
    drop = {"drop": guard.drop} if guard.drop else {}
    return "count_steep", guard.nodes, {"bits": guard.bits, **drop}

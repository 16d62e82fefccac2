"""From bounds to a plan: which parameters an operation gets, and what is checked of its operands.

What a rule (bounds.py) asks of this client's own arrays the client checks here, before anything is
sent.  What it asks of other values the workers count, and the count goes to the client that a
result is revealed to.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from tfe_bench.errors import RangeError, UsageError
from tfe_bench.models.arrays import bounds as rules
from tfe_bench.models.arrays import (
    bounds_functions,
    bounds_linear,
    bounds_products,
    building,
)
from tfe_bench.models.arrays.bounds import Bounds, Call, Guard, Known
from tfe_bench.models.arrays.evaluate import Meaning
from tfe_bench.models.arrays.node import Node
from tfe_bench.models.arrays.plan import BITS, FIXED, INPUT, INT

Apply = Callable[..., Any]
# (importing a module of rules registers them)
RULES = (bounds_functions, bounds_linear, bounds_products)
REMEDY = (
    "Scale the values, declare a bound that they keep (cluster.private(array, bound=...)), or "
    "compute a part by itself."
)


# ---- declared bounds


def declared(bound: Any, meaning: Meaning, ring: np.ndarray[Any, Any]) -> Bounds:
    """The public bounds of a client's own array, which its elements keep.

    Args:
        bound: a magnitude, or (low, high); None: bounds.usual.
        ring: its elements.

    Raises:
        UsageError: it is no bound.
        RangeError: an element is outside.
    """
    if meaning.kind == BITS:
        if bound is not None:
            raise UsageError("Truth values take no bound. Received: one.")
        return rules.TRUTH
    found = rules.usual(meaning) if bound is None else _given(bound, meaning)
    if ring.size and not (found.low <= int(ring.min()) and int(ring.max()) <= found.high):
        low, high = (float(v) / (1 << meaning.scale) for v in found)
        what = "by default, " if bound is None else ""
        raise RangeError(
            f"Values of this array are, {what}from {low:.10g} to {high:.10g}: public bounds, for "
            "which operations on it are planned. Received: a value outside. Declare larger ones: "
            "cluster.private(array, bound=2**40), or bound=(low, high)."
        )
    return found


def _given(bound: Any, meaning: Meaning) -> Bounds:
    pair = bound if isinstance(bound, (tuple, list)) else (bound,)
    ends = [_fraction(v) for v in pair]
    if len(ends) == 1 and ends[0] is not None:
        ends = [-ends[0], ends[0]]
    low, high = ends if len(ends) == 2 else (None, None)
    if low is None or high is None or low > high:
        raise UsageError(
            "bound is the largest magnitude, or a pair (low, high) of public numbers. Received: "
            f"{bound!r}."
        )
    whole, unit = rules.widest(meaning), 1 << meaning.scale
    return Bounds(max(math.floor(low * unit), whole.low), min(math.ceil(high * unit), whole.high))


def _fraction(value: Any) -> Fraction | None:
    """A finite real number, exactly; None: it is something else."""
    real = isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
    if not real or not np.isfinite(float(value)):
        return None
    return (
        Fraction(float(value)) if isinstance(value, (float, np.floating)) else Fraction(int(value))
    )


# ---- this client's own elements


def own(node: Any) -> np.ndarray[Any, Any] | None:
    """The ring elements of a value that is an array of this client's, or a part of one."""
    if not isinstance(node, Node):
        return None
    if node.leaf is not None:
        held = node.leaf.source == INPUT and node.value is not None
        return np.asarray(node.value.ring) if held and node.value is not None else None
    if node.op not in _VIEWS or node.step is not None or len(node.args) != len(_VIEWS[node.op]) + 1:
        return None
    first = own(node.args[0])
    if first is None:
        return None
    return _moved(node.op, first, node.args[1:])


def _of_all_turns(node: Node) -> np.ndarray[Any, Any] | None:
    """The ring elements that an element of a loop has in all turns, if they are this client's.

    A part of an element (`getitem`) is not among them: whether more than it keeps a limit must not
    decide what the workers are asked to count.
    """
    if node.part_of is not None:
        return own(node.part_of)
    whole = node.op in _VIEWS and node.op != "getitem" and isinstance(node.args[0], Node)
    return _of_all_turns(node.args[0]) if whole else None


_VIEWS: Mapping[str, tuple[str, ...]] = {
    "getitem": ("key",),
    "reshape": ("shape",),
    "transpose": (),
    "expand_dims": ("axis",),
}


def _moved(
    op: str, array: np.ndarray[Any, Any], args: Sequence[Any]
) -> np.ndarray[Any, Any] | None:
    if op == "getitem":
        return np.asarray(array[args[0]])
    if op == "reshape":
        return np.asarray(np.reshape(array, args[0]))
    if op == "transpose":
        return np.transpose(array)
    return np.expand_dims(array, args[0])


def _holds(guard: Guard) -> bool | None:
    """Whether a guard holds, as far as this client's own elements say; None: they do not."""
    several = [own(node) if isinstance(node, Node) else None for node in guard.nodes]
    if guard.bits is None and several[0] is None and isinstance(guard.nodes[0], Node):
        several = [_of_all_turns(guard.nodes[0])]
    if any(a is None for a in several):
        return None
    if guard.bits is not None:
        x, y = several
        assert x is not None and y is not None
        if guard.nodes[0] is guard.nodes[1]:
            return bool(np.all(x != 0))
        return bool(np.all((_magnitude(x) >> np.uint64(guard.bits)) < _magnitude(y)))
    ring = several[0]
    assert ring is not None
    low = guard.low is None or bool(np.all(ring >= guard.low))
    return low and (guard.high is None or bool(np.all(ring <= guard.high)))


def _magnitude(ring: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.asarray(np.abs(ring.astype(np.int64)).astype(np.uint64))


# ---- one operation


def known(value: Any) -> Any:
    """An argument, with what is known of each node in its place."""
    if isinstance(value, Node):
        return Known(value.meaning, value.range, value)
    if isinstance(value, (list, tuple)):
        return type(value)(known(each) for each in value)
    return value


def planned(
    op: str, given: Mapping[str, Any], made: list[Meaning]
) -> tuple[list[Bounds], dict[str, Any], list[Guard]]:
    """The bounds of results, what the operation needs besides, and what the workers check.

    Args:
        given: arguments by name, nodes among them.

    Raises:
        RangeError: an array of this client's leaves what the operation takes.
    """
    call = Call(op, {name: known(each) for name, each in given.items()}, made)
    bounds = rules.apply_rule(call)
    open_: list[Guard] = []
    for guard in call.guards:
        holds = _holds(guard)
        if holds is None:
            open_.append(guard)
        elif not holds:
            raise RangeError(f"{guard.text}. Nothing was sent. {REMEDY}")
    return bounds, call.extra, open_


# ---- what is checked of a result


def guards_of(nodes: Sequence[Node], instead: Mapping[Node, Node]) -> dict[str, list[Node]]:
    """The counts of what left its range on the way to some values, by what a message says."""
    found: dict[str, list[Node]] = {}
    seen: set[int] = set()
    pending = list(nodes)
    while pending:
        more: list[Node] = []
        for node in building.ordered([instead.get(n, n) for n in pending], instead):
            if id(node) in seen:
                continue
            seen.add(id(node))
            for text, count in node.guards:
                listed = found.setdefault(text, [])
                if all(count is not other for other in listed):
                    listed.append(count)
                    more.append(count)
        pending = more
    return found


def refuse(texts: Sequence[str], counts: Sequence[int]) -> None:
    """Says which values left the range of an operation, if any did.

    Raises:
        RangeError: they did: the result is not right.
    """
    left = [f"{text} ({count} times)" for text, count in zip(texts, counts, strict=True) if count]
    if left:
        raise RangeError(
            f"The result is wrong: values left the range of an operation. {'; '.join(left[:8])}. "
            f"{REMEDY} reveal(check=False) returns it as it is."
        )


_OR = " | "


def joined(texts: Sequence[str]) -> str:
    """What one number is about that counts all of some."""
    return _OR.join(sorted({part for text in texts for part in text.split(_OR)}))


def checked(apply: Apply, op: str, given: Mapping[str, Any]) -> list[tuple[Any, Guard]]:
    """Values besides the operands that have to be in a range, with the guard of each.

    Args:
        given: arguments by name, private arrays among them.
    """
    if op != "scaled_dot_product_attention":
        return []
    query, key = given["query"], given["key"]
    rank = query.ndim
    turned = apply("transpose", key, [*range(rank - 2), rank - 1, rank - 2])
    scale = given["scale"]
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else float(scale)
    spread = _SPREAD if given["spread"] is None else float(given["spread"])
    if given["spread"] is None and hasattr(given["mask"], "kind"):
        spread = _MASKED_SPREAD
    scores = apply("multiply", apply("matmul", query, turned), scale)
    most = math.floor(spread / 2 * 2.0**scores.fractional_bits)
    text = f"{op}: scores are {spread:.4g} or more apart"
    return [(scores, Guard((), text, -most, most))]


# Scores of a row that are further apart get wrong weights; the second beside a private mask.
_SPREAD, _MASKED_SPREAD = 119.0, 50.0


# ---- operations that are made of others


def composed(apply: Apply, name: str, given: Mapping[str, Any]) -> Any:
    """An operation as an expression of others, each planned by itself; None: it stays as it is."""
    own_rule = _COMPOSED.get(name)
    return None if own_rule is None else own_rule(apply, given)


def _power(apply: Apply, given: Mapping[str, Any]) -> Any:
    x, y = given["x"], given["y"]
    if hasattr(y, "kind"):
        return None if y.kind == BITS else _private_power(apply, x, y)
    exponent = np.asarray(y)
    if getattr(x, "kind", None) != FIXED or exponent.size != 1 or exponent.dtype.kind not in "iuf":
        return None
    power = float(exponent.item())
    if not np.isfinite(power):
        return None  # (which the operation refuses in words)
    if power == int(power) and 1 <= abs(power) <= 64:
        return _whole_power(apply, apply("reciprocal", x) if power < 0 else x, abs(int(power)))
    if power in (0.5, -0.5):
        return apply("sqrt" if power > 0 else "rsqrt", x)
    if power == int(power):
        return None
    return apply("exp", apply("multiply", apply("log", x), power))


def _whole_power(apply: Apply, x: Any, n: int) -> Any:
    result: Any = None
    while n:
        if n & 1:
            result = x if result is None else apply("multiply", result, x)
        n >>= 1
        if n:
            x = apply("square", x)
    return result


def _private_power(apply: Apply, x: Any, y: Any) -> Any:
    """x ** y: of whole private y also where x < 0, by the sign of the odd ones."""
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


def _angle(apply: Apply, given: Mapping[str, Any]) -> Any:
    """Of points that are far away: of nearer ones in the same direction."""
    y, x = given["y"], given["x"]
    if not all(getattr(v, "kind", None) == FIXED for v in (y, x)) or "bits" in given:
        return None
    bits, f = max(v._node.range.bits for v in (y, x)), y.fractional_bits
    drop = bits - _NEAR + 1
    if bits <= _NEAR or drop >= f or x.fractional_bits != f:
        return None
    whole = list(np.broadcast_shapes(y.shape, x.shape))
    both = [v if list(v.shape) == whole else apply("broadcast_to", v, whole) for v in (y, x)]
    far = [apply("logical_not", apply("in_range", v, _NEAR)) for v in both]
    some = apply("logical_or", *far)
    nearer = [
        apply("where", some, apply("bitcast", apply("cast", v, f - drop), f), v) for v in both
    ]
    # (a y that is rounded to 0 keeps its sign: the angle of -0 is -pi on the left)
    size = apply("abs", apply("atan2", *nearer, bits=_NEAR + 1))
    return apply("where", apply("less", y, 0.0), apply("negative", size), size)


def without(apply: Apply, name: str, given: Mapping[str, Any], otherwise: Any) -> Any:
    """An operation that gives a public number where it has no result.

    Raises:
        UsageError: it has one everywhere.
    """
    rule = _UNDEFINED.get(name)
    if rule is None:
        raise UsageError(
            f"{name} takes no otherwise. Received: one. It is of {', '.join(sorted(_UNDEFINED))}."
        )
    operand, compare = rule
    x = given[operand]
    if not hasattr(x, "kind"):
        raise UsageError(
            f"{name} takes otherwise with a private {operand}. Received: a public one."
        )
    bad = apply(compare, x, 0)
    safe = apply("where", bad, 1, x)
    return apply("where", bad, otherwise, apply(name, **{**given, operand: safe}))


# The operand that has no result, and how it compares with 0 then.
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


def _biased(name: str) -> Callable[[Apply, Mapping[str, Any]], Any]:
    """A convolution and its bias, each planned by itself."""

    def made(apply: Apply, given: Mapping[str, Any]) -> Any:
        bias = given.get("bias")
        if bias is None:
            return None
        shape = bias.shape if hasattr(bias, "kind") else np.shape(bias)
        plain = apply(name, **{**given, "bias": None})
        pairs = zip(shape[::-1], plain.shape[::-1], strict=False)
        if len(shape) > plain.ndim or any(n not in (1, size) for n, size in pairs):
            return None  # (which the operation refuses in words)
        return apply("add", plain, bias)

    return made


def _middle(name: str) -> Callable[[Apply, Mapping[str, Any]], Any]:
    """Of integers: their quantiles are reals, as in NumPy."""

    def made(apply: Apply, given: Mapping[str, Any]) -> Any:
        x = given["x"]
        if getattr(x, "kind", None) != INT:
            return None
        return apply(name, **{**given, "x": apply("cast", x, 16)})

    return made


def _product(apply: Apply, given: Mapping[str, Any]) -> Any:
    """Halves times halves, as ranking joins them; each product planned by itself."""
    x = given["x"]
    if getattr(x, "kind", None) != FIXED or x.size == 0:
        return None
    axis = given.get("axis")
    if axis is not None and type(axis) is not int:
        return None
    if axis is not None and not -x.ndim <= axis < x.ndim:
        return None
    rows = apply("reshape", x, [-1]) if axis is None else _front(apply, x, axis % x.ndim)
    count = rows.shape[0]
    while count > 1:
        half = count // 2
        low, high = (apply("getitem", rows, slice(i * half, (i + 1) * half)) for i in (0, 1))
        joined = apply("multiply", low, high)
        if count % 2:
            rest = apply("getitem", rows, slice(2 * half, count))
            joined = apply("concat", [joined, rest], 0)
        rows, count = joined, count - half
    if given.get("keepdims", False):
        shape = (
            [1] * x.ndim
            if axis is None
            else [1 if i == axis % x.ndim else n for i, n in enumerate(x.shape)]
        )
        return apply("reshape", rows, shape)
    return apply("getitem", rows, 0)


def _front(apply: Apply, x: Any, axis: int) -> Any:
    if axis == 0:
        return x
    return apply("transpose", x, [axis, *(i for i in range(x.ndim) if i != axis)])


_COMPOSED: Mapping[str, Callable[[Apply, Mapping[str, Any]], Any]] = {
    "atan2": _angle,
    "conv2d": _biased("conv2d"),
    "depthwise_conv2d": _biased("depthwise_conv2d"),
    "pow": _power,
    "median": _middle("median"),
    "quantile": _middle("quantile"),
    "reduce_prod": _product,
}


def count_step(guard: Guard) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
    """The operation that counts where a guard does not hold."""
    if guard.bits is None:
        # (limits that count_outside takes: of words of 64 bits fewer are taken)
        most = 1 << rules.LIMIT
        low = None if guard.low is None else max(guard.low, -most)
        limits = {"low": low, "high": None if guard.high is None else min(guard.high, most - 1)}
        return "count_outside", guard.nodes, {k: v for k, v in limits.items() if v is not None}
    if guard.nodes[0] is guard.nodes[1]:
        return "count_zeros", guard.nodes[:1], {}
    drop = {"drop": guard.drop} if guard.drop else {}
    return "count_steep", guard.nodes, {"bits": guard.bits, **drop}

"""The operations of private tensors by TensorFlow's names, for the party of the running program.

Numbers are reals at the tensors' scales, which products and means keep.  All operations are names
of this module, and of `tfe_bench` itself; what is not here is in operators.py, predicates.py,
elementary.py, neural.py (what TensorFlow keeps under tf.nn), reductions.py and shapes.py.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from tfe_bench.errors import UsageError
from tfe_bench.protocols.api import operands as given
from tfe_bench.protocols.api.elementary import exp, log, polyval, reciprocal, rsqrt, sqrt
from tfe_bench.protocols.api.neural import (
    avg_pool2d,
    conv2d,
    depthwise_conv2d,
    gelu,
    leaky_relu,
    max_pool2d,
    relu,
    relu_derivative,
    sigmoid,
    softmax,
    tanh,
)
from tfe_bench.protocols.api.operators import (
    abs,
    add,
    divide,
    matmul,
    multiply,
    negative,
    pow,
    square,
    subtract,
)
from tfe_bench.protocols.api.predicates import (
    cast,
    equal,
    greater,
    greater_equal,
    in_range,
    less,
    less_equal,
    logical_and,
    logical_not,
    logical_or,
    logical_xor,
    not_equal,
    where,
)
from tfe_bench.protocols.order import extremes, order_statistics
from tfe_bench.protocols.order import sort as sorting
from tfe_bench.protocols.ring import compare, convert, reductions, relational, shapes
from tfe_bench.protocols.ring.reductions import cumsum, reduce_sum
from tfe_bench.protocols.ring.shapes import (
    broadcast_to,
    expand_dims,
    gather,
    reshape,
    reverse,
    slice,
    split,
    squeeze,
    tile,
    transpose,
)
from tfe_bench.protocols.session import fixedpoint, io, local
from tfe_bench.protocols.session.sharing import MaskedBits, Shared

__all__ = [
    "abs",
    "add",
    "add_n",
    "argmax",
    "argmin",
    "avg_pool2d",
    "broadcast_to",
    "cast",
    "clip_by_value",
    "concat",
    "conv2d",
    "cumsum",
    "depthwise_conv2d",
    "divide",
    "equal",
    "exp",
    "expand_dims",
    "gather",
    "gelu",
    "greater",
    "greater_equal",
    "in_range",
    "leaky_relu",
    "less",
    "less_equal",
    "log",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "matmul",
    "max_pool2d",
    "maximum",
    "median",
    "minimum",
    "multiply",
    "negative",
    "not_equal",
    "pad",
    "polyval",
    "pow",
    "quantile",
    "reciprocal",
    "reduce_max",
    "reduce_mean",
    "reduce_min",
    "reduce_sum",
    "relu",
    "relu_derivative",
    "reshape",
    "reveal",
    "reverse",
    "rsqrt",
    "sigmoid",
    "sign",
    "slice",
    "softmax",
    "sort",
    "split",
    "sqrt",
    "square",
    "squeeze",
    "stack",
    "subtract",
    "tanh",
    "tile",
    "top_k",
    "transpose",
    "unstack",
    "where",
]

EXACT_BITS = compare.EXACT_BITS


def reveal(x: Any, to: int | None = None) -> Any:
    """Publishes a private tensor to the three workers, or to one: the only way out.

    Args:
        to: a party index; None publishes to all three.

    Returns:
        A public tensor at those who learn it, None elsewhere: int64 for a tensor without fractional
        bits, float64 for others (53 significant bits), bool for private bits.

    A product, a mean or the like was rounded by a coin that each worker can recompute from what it
    holds, so its last bit tells a worker more than the rounded value (docs/threat_model.md).
    `reveal(cast(x, 8, method="exact"))` publishes fewer bits, which are a function of x.

    Rounds: 1 (bits: 2).  Bits sent: those of io.reveal.  See io.reveal for ring elements.
    """
    party = given.in_graph("reveal")
    if isinstance(x, MaskedBits):
        ones = io.reveal(party, cast(x), to)
        return ones if ones is None or not local.known(ones) else ones != 0
    if isinstance(x, Shared) and x.limbs == 1:
        ring = io.reveal(party, x, to)
        if ring is None or x.fractional_bits == 0 or not local.known(ring):
            return ring
        import tensorflow as tf

        return tf.cast(ring, tf.float64) * 2.0**-x.fractional_bits
    x = given.private("reveal", x)  # which refuses it
    raise AssertionError(x)


# ---- sums and means


def add_n(inputs: Any) -> Shared:
    """The sum of tensors of one shape, some of which may be public.  Local."""
    several = given.all_shared("add_n", inputs)
    for value in several[1:]:
        given.check_fit("add_n", several[0], value)
        if value.shape.as_list() != several[0].shape.as_list():
            raise UsageError(
                "add_n wants tensors of one shape. Received: "
                f"{several[0].shape.as_list()} and {value.shape.as_list()}."
            )
    return reductions.add_n(several)


def reduce_mean(x: Any, axis: Any = None, keepdims: bool = False) -> Shared:
    """The mean over one axis, several or all (None), at the scale of x.

    Error, domain, rounds and bits: reductions.reduce_mean (1 round; 1 ulp and 2^-31 of the sum).
    """
    x = given.private("reduce_mean", x)
    return reductions.reduce_mean(given.in_graph("reduce_mean"), x, axis, keepdims)


# ---- the larger and the smaller


def maximum(x: Any, y: Any, bits: int = EXACT_BITS) -> Shared:
    """max(x, y) elementwise, broadcast, exact; one of them may be public.

    Args:
        bits: right while |x - y| < 2^(bits-1) ring units.

    Rounds and bits: those of relational.maximum.
    """
    bits = given.bits_of("maximum", bits)
    x, y = given.pair("maximum", x, y)
    given.private("maximum", x)
    return relational.maximum(given.in_graph("maximum"), x, y, bits)


def minimum(x: Any, y: Any, bits: int = EXACT_BITS) -> Shared:
    """min(x, y); as `maximum`."""
    bits = given.bits_of("minimum", bits)
    x, y = given.pair("minimum", x, y)
    given.private("minimum", x)
    return relational.minimum(given.in_graph("minimum"), x, y, bits)


def clip_by_value(
    x: Any, clip_value_min: Any, clip_value_max: Any, bits: int = EXACT_BITS
) -> Shared:
    """min(max(x, clip_value_min), clip_value_max), exact; the limits may be public.

    Rounds and bits: those of `maximum` twice.
    """
    x = given.private("clip_by_value", x)
    limits = (clip_value_min, clip_value_max)
    known = [None if given.is_private(v) else given.static("clip_by_value", v) for v in limits]
    low, high = known
    if low is not None and high is not None:
        given.broadcast("clip_by_value", low.shape, high.shape)
        if np.any(low > high):
            raise UsageError(
                "clip_by_value wants clip_value_min <= clip_value_max. Received: a larger one. "
                "Swap them."
            )
    bits = given.bits_of("clip_by_value", bits)
    for limit in limits:
        given.pair("clip_by_value", x, limit)
    return minimum(maximum(x, clip_value_min, bits), clip_value_max, bits)


def sign(x: Any, bits: int = EXACT_BITS) -> Shared:
    """-1, 0 or 1 at x's scale: [x > 0] - [x < 0], both compared at once.

    Rounds: those of `less`, and 1.  Bits sent: those of `less` and of `cast`, twice.
    """
    x = given.private("sign", x)
    bits = given.bits_of("sign", bits)
    shape = given.sizes("sign", x)
    party = given.in_graph("sign")
    n = given.elements(shape)
    both = x.map(lambda a: local.stack([local.reshape(-a, [n]), local.reshape(a, [n])]))
    signs = relational.negative(party, both, bits)
    ones = convert.b2a(party, signs, [2, n])
    one = 1 << x.fractional_bits
    result = ones.map(lambda a: local.reshape(a[0] - a[1], shape) * one)
    return replace(result, fractional_bits=x.fractional_bits)


def _rows(operation: str, x: Any, axis: Any) -> tuple[Shared, list[int], list[int]]:
    """x with the given axes as its last one, the sizes of the others, and all axes."""
    x = given.private(operation, x)
    sizes = given.sizes(operation, x)
    axes = shapes.axes_of(operation, axis, len(sizes))
    kept = [i for i in range(len(sizes)) if i not in axes]
    width = given.elements([sizes[i] for i in axes])
    if width == 0:
        raise UsageError(
            f"{operation} wants at least one value along the axis. Received: shape {sizes}. "
            "An empty tensor has none."
        )
    rest = [sizes[i] for i in kept]
    order = [*kept, *axes]
    rows = x.map(lambda a: local.reshape(local.transpose(a, order), [*rest, width]))
    return rows, rest, axes


def _extreme(operation: str, function: Any, x: Any, axis: Any, keepdims: bool, bits: int) -> Shared:
    bits = given.bits_of(operation, bits)
    rows, rest, axes = _rows(operation, x, axis)
    found: Shared = function(given.in_graph(operation), rows, -1, bits=bits)
    if keepdims:
        for i in axes:
            rest.insert(i, 1)
    return shapes.reshape(found, rest)


def reduce_max(x: Any, axis: Any = None, keepdims: bool = False, bits: int = EXACT_BITS) -> Shared:
    """The largest value over one axis, several or all (None), exact.

    Args:
        bits: right while differences are below 2^(bits-1) ring units.

    Rounds and bits: those of extremes.reduce_max.
    """
    return _extreme("reduce_max", extremes.reduce_max, x, axis, keepdims, bits)


def reduce_min(x: Any, axis: Any = None, keepdims: bool = False, bits: int = EXACT_BITS) -> Shared:
    """The smallest value; as `reduce_max`."""
    return _extreme("reduce_min", extremes.reduce_min, x, axis, keepdims, bits)


def argmax(x: Any, axis: int = 0, bits: int = EXACT_BITS) -> Shared:
    """Index of the first largest value along an axis, an integer (0 fractional bits).

    Rounds and bits: those of extremes.argmax.
    """
    return _extreme("argmax", extremes.argmax, x, [axis], False, bits)


def argmin(x: Any, axis: int = 0, bits: int = EXACT_BITS) -> Shared:
    """Index of the first smallest value; as `argmax`."""
    return _extreme("argmin", extremes.argmin, x, [axis], False, bits)


# ---- order: between graphs


def sort(x: Any, axis: int = -1, direction: str = "ASCENDING") -> Shared:
    """The values along an axis in order, as tf.sort.  Called between graphs.

    Rounds and bits: those of sort.sort, which chooses among its algorithms.
    """
    if direction not in ("ASCENDING", "DESCENDING"):
        raise UsageError(
            f'sort wants the direction "ASCENDING" or "DESCENDING". Received: {direction!r}.'
        )
    party = given.between_graphs("sort")
    rank = shapes.rank_of("sort", given.private("sort", x))
    rows, rest, (at,) = _rows("sort", x, [axis] if rank else _no_axis("sort", x))
    flat = rows.map(lambda a: local.reshape(a, [given.elements(rest), a.shape[-1]]))
    found = sorting.sort(party, flat, descending=direction == "DESCENDING").keys
    order = list(range(rank - 1))
    order.insert(at, rank - 1)
    return found.map(lambda a: local.transpose(local.reshape(a, [*rest, a.shape[-1]]), order))


def _no_axis(operation: str, x: Shared) -> Any:
    raise UsageError(f"{operation} wants a tensor with an axis. Received: {x!r}. Reshape it.")


def top_k(x: Any, k: int = 1) -> tuple[Shared, Shared]:
    """(the k largest along the last axis in falling order, their positions), as tf.math.top_k.

    Called between graphs.  Rounds and bits: those of sort.sort.
    """
    party = given.between_graphs("top_k")
    return order_statistics.top_k(party, given.private("top_k", x), given.integer("top_k", "k", k))


def median(x: Any, axis: Any = None) -> Shared:
    """The middle value over one axis, several or all (None); of an even number the middle two's
    mean, error below 1 ulp.

    Called between graphs.  Rounds and bits: those of sort.sort, and 1 round more for the mean.
    """
    return _quantile("median", x, 0.5, axis)


def quantile(x: Any, q: float, axis: Any = None) -> Shared:
    """The q-quantile over one axis, several or all (None), interpolated as numpy.quantile does.

    Args:
        q: public, 0 to 1.

    Called between graphs.  Error: order_statistics.quantile.  Rounds and bits: as `median`.
    """
    if given.is_private(q) or isinstance(q, bool) or not isinstance(q, (int, float, np.number)):
        raise UsageError(
            f"quantile wants a public number q from 0 to 1. Received: {type(q).__name__}."
        )
    return _quantile("quantile", x, float(q), axis)


def _quantile(operation: str, x: Any, q: float, axis: Any) -> Shared:
    party = given.between_graphs(operation)
    rows, _, _ = _rows(operation, x, axis)
    return order_statistics.quantile(party, rows, q)


# ---- shapes, where public values may come in


def concat(values: Any, axis: int) -> Shared:
    """The tensors, some of which may be public, one after the other along an axis.  Local."""
    return shapes.concat(given.all_shared("concat", values), axis)


def stack(values: Any, axis: int = 0) -> Shared:
    """Tensors of one shape, some of which may be public, along a new axis.  Local."""
    return shapes.stack(given.all_shared("stack", values), axis)


def unstack(x: Any, num: int | None = None, axis: int = 0) -> list[Shared]:
    """The parts of x along an axis, which is dropped; `num` of them.  Local."""
    parts = shapes.unstack(given.private("unstack", x, any_ring=True), axis)
    if num is not None and num != len(parts):
        raise UsageError(
            f"unstack wants num to be the size {len(parts)} of axis {axis}. Received: {num!r}."
        )
    return parts


def pad(x: Any, paddings: Any, mode: str = "CONSTANT", constant_values: float = 0) -> Shared:
    """x with `paddings[axis] = (before, after)` elements of a public number around.  Local."""
    x = given.private("pad", x, any_ring=True)
    if mode.upper() != "CONSTANT":
        raise UsageError(f'pad wants the mode "CONSTANT". Received: {mode!r}. Use concat.')
    number = given.static("pad", constant_values)
    if number is None or number.ndim:
        raise UsageError(
            "pad wants one public number as constant_values. Received: "
            f"{given.kind_of(constant_values)}."
        )
    given.encode("pad", number, x.fractional_bits)  # which refuses what does not fit
    return shapes.pad(x, paddings, int(fixedpoint.FixedPoint(x.fractional_bits).encode(number)))

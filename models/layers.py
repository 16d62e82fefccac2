"""The layers of a planned model on private values, and what each costs.

Each kind of layer has a function that runs it and one that declares its cost, side by side.
Values between layers are over Z_2^64.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tfe_bench.errors import UsageError
from tfe_bench.models import limits
from tfe_bench.models.graph import Layer
from tfe_bench.models.kinds import windows_of
from tfe_bench.models.ranges import Numbers, Plan
from tfe_bench.protocols.nn import activations, linear, pool, relu
from tfe_bench.protocols.order import extremes
from tfe_bench.protocols.ring import (
    arithmetic,
    compare,
    conv,
    products,
    reductions,
    shapes,
    small_ring,
    truncation,
)
from tfe_bench.protocols.ring.range_check import Watch
from tfe_bench.protocols.session.cost import Cost
from tfe_bench.protocols.session.counting import Private, cost_of
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared

NOTHING = Cost(0, 0, 0, 0, 0)


@dataclass(frozen=True, eq=False)
class Setting:
    """What a layer's protocols depend on besides its inputs.

    Attributes:
        plan: of the model.
        profile: which network they plan for: "local", "lan" or "wan".
        batch: number of samples.
        turn: whether this is one third of a batch, with a dealer of its own.
        round_bits: sent by all three, that take as long as one more round; see execute.tuned.
        watched: whether every value is checked to have stayed in its range (range_check.Watch);
            comparisons are then as wide as what comes to them may be.
    """

    plan: Plan
    profile: str = "local"
    batch: int = 1
    turn: bool = False
    round_bits: int = 3_000_000
    watched: bool = False

    @property
    def pooling(self) -> str:
        """The profile for maxima, which would otherwise cut a third in three again on a wan."""
        return "lan" if self.turn and self.profile == "wan" else self.profile

    def numbers(self, x: Layer) -> Numbers:
        """Of a layer."""
        return self.plan.numbers[x.name]

    def bits(self, x: Layer) -> int:
        """Of a layer's comparisons of values over Z_2^64."""
        planned = self.numbers(x).bits
        return max(planned, limits.compared(self.plan, x)) if self.watched else planned

    def elements(self, name: str) -> int:
        """Of a value, with the batch."""
        return self.batch * math.prod(self.plan.graph.shapes[name])

    def openings(self, n: int, bits: int) -> int:
        """Of n comparisons: more take fewer bits and more rounds."""

        def price(count: int) -> int:
            return compare.msb_cost(n, bits, count).total + count * self.round_bits

        return min((1, 2, 3), key=price)


# ---- shapes and scales


def shifted(x: Shared, fraction: int) -> Shared:
    """x with more fractional bits.  Local."""
    import tensorflow as tf

    more = fraction - x.fractional_bits
    if more < 0:
        raise UsageError(f"A value has {x.fractional_bits} fractional bits, not {fraction}.")
    if more == 0:
        return x
    bits = tf.constant(more, tf.int64)
    return replace(x.map(lambda a: tf.bitwise.left_shift(a, bits)), fractional_bits=fraction)


def _reshaped(x: Shared, shape: Sequence[int]) -> Shared:
    import tensorflow as tf

    return x.map(lambda a: tf.reshape(a, list(shape)))


# ---- sums of products


def _map_of(term: Mapping[str, Any]) -> products.Two:
    if term["op"] == "dense":
        return products.matrix_product
    if term["op"] == "affine":
        return products.elementwise
    windows, depthwise = windows_of(term), term["op"] == "depthwise_conv2d"
    return lambda a, b: conv.convolve(a, b, windows, depthwise)


def _sum(
    party: Party,
    s: Setting,
    x: Layer,
    inputs: list[Shared],
    weights: Mapping[str, Shared],
    watch: Watch | None,
) -> Shared:
    import tensorflow as tf

    numbers, shape = s.numbers(x), s.plan.graph.shapes[x.name]
    terms: list[products.Product] = []
    addend: Shared | None = None
    flat = any(t["op"] == "dense" for t in x.options["terms"]) and len(shape) > 1
    for i, (value, term) in enumerate(zip(inputs, x.options["terms"], strict=True)):
        if flat:  # matrix products are of rank 2
            value = value.map(lambda a: tf.reshape(a, [-1, a.shape[-1]]))
        if term["op"] == "skip":
            part = shifted(value, numbers.scale)
            part = part if term["sign"] > 0 else arithmetic.neg(part)
            addend = part if addend is None else arithmetic.add(addend, part)
        else:
            terms.append(products.Product(value, weights[f"kernel{i}"], _map_of(term)))
    if "bias" in weights:
        bias = weights["bias"]
        addend = bias if addend is None else arithmetic.add(addend, bias)
    drop = numbers.scale - numbers.fraction
    fused = x.options["activation"] != "none"
    if watch is not None and drop:
        small, u = linear.watched_sum(party, terms, addend, drop, _narrowed(s, x))
        if fused:
            n, most = s.elements(x.name), _largest(x, small.fractional_bits)
            count = s.openings(n if most is None else 2 * n, numbers.bits)
            y = linear.watched_relu(party, watch, small, u, drop, most, count)
        else:
            y = linear.watched_lift(party, watch, small, u, drop)
    elif not fused:
        y = linear.product_sum(party, terms, addend)
        y = truncation.truncate(party, y, drop) if drop else y
    else:
        small = linear.truncated_sum(party, terms, addend, drop, numbers.bits)
        y = _rectified(party, s, x, small)
    return _reshaped(y, [-1, *shape]) if flat else y


def _narrowed(s: Setting, x: Layer) -> int:
    """The small ring of a watched sum: twice as large where no comparison reads the sign."""
    numbers = s.numbers(x)
    if x.options["activation"] != "none":
        return numbers.bits
    return limits.lifted(numbers)


def _largest(x: Layer, fraction: int) -> int | None:
    """Of an activation, in ring units."""
    most = x.options["max_value"]
    return None if most is None else round(most * 2**fraction)


def _rectified(party: Party, s: Setting, x: Layer, value: Shared) -> Shared:
    bits, most = _compared(s, x, value.ring_bits), _largest(x, value.fractional_bits)
    n = s.elements(x.name)
    if most is None:
        return relu.relu(party, value, bits, s.openings(n, bits))
    return linear.capped_relu(party, value, most, bits, s.openings(2 * n, bits))


def _compared(s: Setting, x: Layer, ring_bits: int) -> int:
    return s.bits(x) if ring_bits == 64 else ring_bits


def _rectified_cost(s: Setting, x: Layer, ring_bits: int) -> Cost:
    bits, n = _compared(s, x, ring_bits), s.elements(x.name)
    if x.options["max_value"] is None:
        return cost_of(relu.relu, Private((n,), bits=ring_bits % 64), bits, s.openings(n, bits))
    count = s.openings(2 * n, bits)
    return cost_of(linear.capped_relu, Private((n,), bits=ring_bits % 64), 0, bits, count)


def _sum_cost(s: Setting, x: Layer) -> Cost:
    numbers, n = s.numbers(x), s.elements(x.name)
    drop = numbers.scale - numbers.fraction
    fused = x.options["activation"] != "none"
    if s.watched and drop:
        bits = _narrowed(s, x)
        opened = products.truncated_cost(n, drop, bits, whole=True)
        if fused:
            return opened.then(_rectified_cost(s, x, bits))
        return opened.then(small_ring.extend_cost(n, bits))
    if not fused:
        product = arithmetic.mul_cost(n)
        return product.then(truncation.truncate_cost(n, drop)) if drop else product
    opened = products.truncated_cost(n, drop, numbers.bits)
    return opened.then(_rectified_cost(s, x, numbers.bits))


# ---- activations


def _relu(party: Party, s: Setting, x: Layer, value: Shared) -> Shared:
    return _rectified(party, s, x, value)


def _leaky(party: Party, s: Setting, x: Layer, value: Shared) -> Shared:
    import tensorflow as tf

    numbers, n, bits = s.numbers(x), s.elements(x.name), s.bits(x)
    positive = relu.relu(party, value, bits, s.openings(n, bits))
    alpha = tf.constant(round(x.options["alpha"] * 2**numbers.scale), tf.int64)
    low = arithmetic.mul_public(arithmetic.sub(value, positive), alpha, numbers.scale)
    return arithmetic.add(positive, truncation.truncate(party, low, numbers.scale))


def _leaky_cost(s: Setting, x: Layer) -> Cost:
    numbers, n, bits = s.numbers(x), s.elements(x.name), s.bits(x)
    first = cost_of(relu.relu, Private((n,)), bits, s.openings(n, bits))
    return first.then(truncation.truncate_cost(n, numbers.scale))


def _sigmoid(party: Party, s: Setting, x: Layer, value: Shared) -> Shared:
    numbers = s.numbers(x)
    return activations.sigmoid(party, shifted(value, numbers.fraction), s.bits(x))


def _sigmoid_cost(s: Setting, x: Layer) -> Cost:
    numbers = s.numbers(x)
    return cost_of(activations.sigmoid, Private((s.elements(x.name),), numbers.fraction), s.bits(x))


def _tanh(party: Party, s: Setting, x: Layer, value: Shared) -> Shared:
    numbers = s.numbers(x)
    return activations.tanh(party, shifted(value, numbers.fraction), s.bits(x))


def _tanh_cost(s: Setting, x: Layer) -> Cost:
    numbers = s.numbers(x)
    return cost_of(activations.tanh, Private((s.elements(x.name),), numbers.fraction), s.bits(x))


def _softmax(party: Party, s: Setting, x: Layer, value: Shared) -> Shared:
    numbers = s.numbers(x)
    value = shifted(value, numbers.fraction)
    axis = x.options["axis"]
    return activations.softmax(party, value, axis, bits=s.bits(x), profile=s.profile)


def _softmax_cost(s: Setting, x: Layer) -> Cost:
    numbers = s.numbers(x)
    classes = s.plan.graph.shapes[x.name][x.options["axis"] - 1]
    rows = s.elements(x.name) // classes
    logits = Private((rows, classes), numbers.fraction)
    return cost_of(activations.softmax, logits, bits=s.bits(x), profile=s.profile)


# ---- windows


def _max_pool(party: Party, s: Setting, x: Layer, value: Shared) -> Shared:
    o, bits = x.options, s.bits(x)
    ksize, strides = tuple(o["ksize"]), tuple(o["strides"])
    return pool.max_pool2d(party, value, ksize, strides, o["padding"], bits=bits, profile=s.pooling)


def _max_pool_cost(s: Setting, x: Layer) -> Cost:
    o, bits = x.options, s.bits(x)
    shape = (s.batch, *s.plan.graph.shapes[x.inputs[0]])
    ksize, strides = tuple(o["ksize"]), tuple(o["strides"])
    images, padding = Private(shape), o["padding"]
    return cost_of(pool.max_pool2d, images, ksize, strides, padding, bits=bits, profile=s.pooling)


def _global_max(party: Party, s: Setting, x: Layer, value: Shared) -> Shared:
    import tensorflow as tf

    batch, height, width, channels = value.shape.as_list()
    rows = value.map(
        lambda a: tf.reshape(
            tf.transpose(tf.reshape(a, [batch, height * width, channels]), [1, 0, 2]),
            [height * width, batch * channels],
        )
    )
    bits = s.bits(x)
    best = extremes.reduce_max(party, rows, 0, bits=bits, profile=s.pooling)
    return _reshaped(best, [batch, *s.plan.graph.shapes[x.name]])


def _global_max_cost(s: Setting, x: Layer) -> Cost:
    height, width, channels = s.plan.graph.shapes[x.inputs[0]]
    bits = s.bits(x)
    columns = Private((height * width, s.batch * channels))
    return cost_of(extremes.reduce_max, columns, 0, bits=bits, profile=s.profile)


def _average(party: Party, s: Setting, x: Layer, value: Shared) -> Shared:
    o = x.options
    return reductions.avg_pool(
        party, value, o["ksize"], o["strides"], o["padding"], s.numbers(x).scale
    )


def _average_cost(s: Setting, x: Layer) -> Cost:
    o = x.options
    shape = (s.batch, *s.plan.graph.shapes[x.inputs[0]])
    windows = (tuple(o["ksize"]), tuple(o["strides"]), o["padding"])
    return cost_of(reductions.avg_pool, Private(shape), *windows, s.numbers(x).scale)


def _global_average(party: Party, s: Setting, x: Layer, value: Shared) -> Shared:
    keep = x.options["keepdims"]
    return reductions.global_avg_pool(party, value, keep, s.numbers(x).scale)


def _global_average_cost(s: Setting, x: Layer) -> Cost:
    height, width, channels = s.plan.graph.shapes[x.inputs[0]]
    images = Private((s.batch, height, width, channels))
    return cost_of(reductions.global_avg_pool, images, False, s.numbers(x).scale)


def _sum_pool(party: Party, s: Setting, x: Layer, value: Shared) -> Shared:
    o = x.options
    return reductions.sum_pool(value, o["ksize"], o["strides"], o["padding"])


def _global_sum(party: Party, s: Setting, x: Layer, value: Shared) -> Shared:
    return reductions.reduce_sum(value, (1, 2), x.options["keepdims"])


def _zero_pad(party: Party, s: Setting, x: Layer, value: Shared) -> Shared:
    return shapes.pad(value, np.array([(0, 0), *x.options["pads"], (0, 0)], np.int64))


def _reshape(party: Party, s: Setting, x: Layer, value: Shared) -> Shared:
    return _reshaped(value, [-1, *s.plan.graph.shapes[x.name]])


def _identity(party: Party, s: Setting, x: Layer, value: Shared) -> Shared:
    return value


# ---- several inputs


def _add(party: Party, s: Setting, x: Layer, inputs: list[Shared]) -> Shared:
    f = s.numbers(x).fraction
    total = shifted(inputs[0], f)
    for value in inputs[1:]:
        total = arithmetic.add(total, shifted(value, f))
    return total


def _subtract(party: Party, s: Setting, x: Layer, inputs: list[Shared]) -> Shared:
    left, right = (shifted(value, s.numbers(x).fraction) for value in inputs)
    return arithmetic.sub(left, right)


def _concat(party: Party, s: Setting, x: Layer, inputs: list[Shared]) -> Shared:
    f = s.numbers(x).fraction
    return shapes.concat([shifted(value, f) for value in inputs], x.options["axis"])


def _multiply(party: Party, s: Setting, x: Layer, inputs: list[Shared]) -> Shared:
    f = s.numbers(x).fraction
    total = inputs[0]
    for value in inputs[1:]:
        product = arithmetic.mul(party, total, value)
        drop = product.fractional_bits - f
        total = truncation.truncate(party, product, drop) if drop else product
    return total


def _multiply_stages(s: Setting, x: Layer) -> list[tuple[list[str], Cost]]:
    """Each further factor waits for the product of those before it."""
    f, found = s.numbers(x).fraction, []
    shape: tuple[int, ...] = s.plan.graph.shapes[x.inputs[0]]
    scale = s.plan.fraction_of(x.inputs[0])
    waits = [x.inputs[0]]
    for name in x.inputs[1:]:
        other = s.plan.graph.shapes[name]
        shape = tuple(max(a, b) for a, b in zip(shape, other, strict=True))
        n, drop = s.batch * math.prod(shape), scale + s.plan.fraction_of(name) - f
        cost = arithmetic.mul_cost(n)
        cost = cost.then(truncation.truncate_cost(n, drop)) if drop else cost
        found.append(([*waits, name], cost))
        scale, waits = f, []
    return found


def _multiply_cost(s: Setting, x: Layer) -> Cost:
    return functools.reduce(Cost.then, (cost for _, cost in _multiply_stages(s, x)), NOTHING)


def _free(s: Setting, x: Layer) -> Cost:
    return NOTHING


def _plain_relu_cost(s: Setting, x: Layer) -> Cost:
    return _rectified_cost(s, x, 64)


_ONE: dict[str, tuple[Callable[..., Shared], Callable[[Setting, Layer], Cost]]] = {
    "relu": (_relu, _plain_relu_cost),
    "leaky_relu": (_leaky, _leaky_cost),
    "sigmoid": (_sigmoid, _sigmoid_cost),
    "tanh": (_tanh, _tanh_cost),
    "softmax": (_softmax, _softmax_cost),
    "max_pool2d": (_max_pool, _max_pool_cost),
    "global_max_pool2d": (_global_max, _global_max_cost),
    "avg_pool2d": (_average, _average_cost),
    "global_avg_pool2d": (_global_average, _global_average_cost),
    "sum_pool2d": (_sum_pool, _free),
    "global_sum_pool2d": (_global_sum, _free),
    "zero_pad2d": (_zero_pad, _free),
    "flatten": (_reshape, _free),
    "reshape": (_reshape, _free),
    "identity": (_identity, _free),
}
_MANY: dict[str, tuple[Callable[..., Shared], Callable[[Setting, Layer], Cost]]] = {
    "add": (_add, _free),
    "subtract": (_subtract, _free),
    "concat": (_concat, _free),
    "multiply": (_multiply, _multiply_cost),
}


def run_layer(
    party: Party,
    s: Setting,
    x: Layer,
    inputs: list[Shared],
    weights: Mapping[str, Shared],
    watch: Watch | None = None,
) -> Shared:
    """A layer's value.

    Args:
        weights: by "layer/name".
        watch: with s.watched, told of what could leave its range.
    """
    if x.op == "sum":
        own = {n: weights[f"{x.name}/{n}"] for n in x.weights}
        return _sum(party, s, x, inputs, own, watch)
    if x.op in _MANY:
        return _MANY[x.op][0](party, s, x, inputs)
    return _ONE[x.op][0](party, s, x, inputs[0])


def layer_cost(s: Setting, x: Layer) -> Cost:
    """What one layer costs."""
    if x.op == "sum":
        return _sum_cost(s, x)
    return (_MANY if x.op in _MANY else _ONE)[x.op][1](s, x)


def stages(s: Setting, x: Layer) -> list[tuple[list[str], Cost]]:
    """A layer's cost in parts, each with the inputs that it waits for besides the part before."""
    if x.op == "multiply":
        return _multiply_stages(s, x)
    if x.op != "sum" or x.options["activation"] != "none":
        return [(list(x.inputs), layer_cost(s, x))]
    numbers, n = s.numbers(x), s.elements(x.name)
    drop = numbers.scale - numbers.fraction
    if s.watched and drop:
        return [(list(x.inputs), layer_cost(s, x))]
    skips: list[str] = []
    factors: list[str] = []
    for name, term in zip(x.inputs, x.options["terms"], strict=True):
        (skips if term["op"] == "skip" else factors).append(name)
    # what is added joins when the products are open already
    return [
        (factors, arithmetic.mul_cost(n)),
        (skips, truncation.truncate_cost(n, drop) if drop else NOTHING),
    ]


def noted(s: Setting, x: Layer) -> int | None:
    """How many rounds before a layer's value a watch is told of it; None if it is not."""
    numbers = s.numbers(x)
    if x.op != "sum" or numbers.scale == numbers.fraction:
        return None
    # beside the injection of a ReLU, whose result is opened
    return 0 if x.options["activation"] == "none" else 1


def check_executable(plan: Plan) -> None:
    """Refuses layers that are not run as they are, and numbers that cannot be.

    Raises:
        UsageError: naming the first one.
    """
    for x in plan.graph.layers:
        if x.op != "sum" and x.op not in _ONE and x.op not in _MANY:
            raise UsageError(
                f"Layer {x.name!r} ({x.op}) is not run as it is. Optimise the graph first."
            )
        numbers = plan.numbers[x.name]
        try:
            if x.op == "sum":
                _check_sum(plan, x, numbers)
            elif x.op in ("add", "subtract", "concat"):
                _check_at_least(numbers.fraction, plan, x)
            elif x.op in ("softmax", "sigmoid", "tanh"):
                _check_at_least(numbers.fraction, plan, x)
                if not 8 <= numbers.fraction <= 20:
                    raise UsageError(f"has {numbers.fraction} fractional bits, not 8 to 20.")
            elif numbers.fraction != plan.fraction_of(x.inputs[0]) and x.op != "multiply":
                raise UsageError("has other fractional bits than its input.")
            layer_cost(Setting(plan), x)
        except (UsageError, ValueError, OverflowError) as error:
            raise UsageError(f"Layer {x.name!r} of the plan does not fit: {error}") from None


def _check_at_least(fraction: int, plan: Plan, x: Layer) -> None:
    if any(plan.fraction_of(name) > fraction for name in x.inputs):
        raise UsageError("has fewer fractional bits than an input.")


def _check_sum(plan: Plan, x: Layer, numbers: Numbers) -> None:
    _check_at_least(numbers.scale, plan, x)
    drop = numbers.scale - numbers.fraction
    fused = x.options["activation"] != "none"
    fits = 0 <= drop <= 48 if not fused else drop >= 1 and drop + numbers.bits <= 64
    if not fits:
        raise UsageError(
            f"drops {drop} of {numbers.scale} fractional bits and compares {numbers.bits}."
        )

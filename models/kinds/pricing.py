"""The operations of a step, added up instead of run."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tfe_bench.models.kinds.layer import Shape
from tfe_bench.models.kinds.operations import Factors, Setting, Watched, added_bits, compared
from tfe_bench.protocols.nn import batch_norm, cross_entropy, linear, pool_gradient, relu
from tfe_bench.protocols.ring import (
    arithmetic,
    backward,
    convert,
    range_check,
    small_ring,
    truncation,
)
from tfe_bench.protocols.session.cost import Cost
from tfe_bench.protocols.session.sharing import Shared


@dataclass(frozen=True)
class Priced:
    """A value that is not there: its shape, scale and ring, and when it would be known.

    Attributes:
        rounds, cold: messages on the longest chain that leads to it.
    """

    shape: Shape
    fractional_bits: int
    rounds: int = 0
    cold: int = 0
    ring_bits: int = 64

    @property
    def n(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class PricedChoice:
    """A max pooling's choice that is not there: of images of a shape, with windows."""

    shape: Shape
    windows: tuple[Any, Any, str]
    rounds: int
    cold: int


@dataclass(frozen=True)
class PricedNormalised:
    """A batch's statistics that are not there."""

    numbers: batch_norm.Numbers
    centred: Priced
    factor: Priced
    statistics: Priced
    slope: Priced


def _operands(products: Sequence[Factors]) -> list[Priced]:
    return [v for p in products for v in (p.x, p.w)]


class Pricing:
    """Collects what the operations send.

    Attributes:
        sent: bits by role: dealer, E1, E2.
        rounds, cold: of the longest chain.
    """

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.sent = [0, 0, 0]
        self.rounds = self.cold = 0
        self._told = (0, 0)

    @property
    def total(self) -> Cost:
        """Of all that was asked for so far."""
        return Cost(self.sent[0], self.sent[1], self.sent[2], self.rounds, self.cold)

    def _after(self, cost: Cost, *given: Priced | None) -> tuple[int, int]:
        """Adds a protocol that waits for some values; returns when its result is known."""
        for i, bits in enumerate((cost.dealer, cost.e1, cost.e2)):
            self.sent[i] += bits
        rounds = max((v.rounds for v in given if v is not None), default=0)
        cold = max((v.cold for v in given if v is not None), default=0)
        reached = Cost(0, 0, 0, rounds, cold).then(cost)
        self.rounds, self.cold = max(self.rounds, reached.rounds), max(self.cold, reached.cold)
        return reached.rounds, reached.cold

    def _new(
        self, shape: Shape, fraction: int, cost: Cost, *given: Priced | None, ring: int = 64
    ) -> Priced:
        rounds, cold = self._after(cost, *given)
        return Priced(shape, fraction, rounds, cold, ring)

    def shape(self, x: Priced) -> Shape:
        return x.shape

    def map(self, function: Callable[[Shared], Shared], x: Priced, shape: Shape) -> Priced:
        return replace(x, shape=tuple(shape))

    def call(
        self,
        protocol: Callable[..., Shared],
        *given: Any,
        cost: Cost,
        shape: Shape | None = None,
        fraction: int | None = None,
        **options: Any,
    ) -> Priced:
        values = [x for x in given if isinstance(x, Priced)]
        first = values[0]
        own = first.shape if shape is None else shape
        return self._new(
            own, first.fractional_bits if fraction is None else fraction, cost, *values
        )

    def _joined(self, x: Priced, y: Priced) -> Priced:
        assert x.fractional_bits == y.fractional_bits, (x, y)
        shape = tuple(int(n) for n in np.broadcast_shapes(x.shape, y.shape))
        return replace(x, shape=shape, rounds=max(x.rounds, y.rounds), cold=max(x.cold, y.cold))

    def add(self, x: Priced, y: Priced) -> Priced:
        return self._joined(x, y)

    def sub(self, x: Priced, y: Priced) -> Priced:
        return self._joined(x, y)

    def neg(self, x: Priced) -> Priced:
        return x

    def add_public(self, x: Priced, ring: Any) -> Priced:
        return x

    def times(self, x: Priced, factor: Any, fraction: int = 0) -> Priced:
        return replace(x, fractional_bits=x.fractional_bits + fraction)

    def concat(self, xs: Sequence[Priced], axis: int) -> Priced:
        first = xs[0]
        axis %= len(first.shape)
        size = sum(x.shape[axis] for x in xs)
        shape = (*first.shape[:axis], size, *first.shape[axis + 1 :])
        rounds, cold = max(x.rounds for x in xs), max(x.cold for x in xs)
        return replace(first, shape=shape, rounds=rounds, cold=cold)

    def shifted(self, x: Priced, fraction: int) -> Priced:
        added_bits(x.fractional_bits, fraction)
        return replace(x, fractional_bits=fraction)

    def product(self, products: Sequence[Factors], addend: Priced | None = None) -> Priced:
        first = products[0]
        shape = first.by.shape(first.x.shape, first.w.shape)
        fraction = first.x.fractional_bits + first.w.fractional_bits
        cost = arithmetic.mul_cost(math.prod(shape))
        y = self._new(shape, fraction, cost, *_operands(products))
        # what is added joins when the products are open already
        return y if addend is None else replace(self._joined(y, addend), shape=shape)

    def _narrow(
        self,
        cost: Callable[[int], Cost],
        products: Sequence[Factors],
        addend: Priced | None,
        drop: int,
        bits: int,
    ) -> Priced:
        first = products[0]
        shape = first.by.shape(first.x.shape, first.w.shape)
        fraction = first.x.fractional_bits + first.w.fractional_bits - drop
        given = [*_operands(products), addend]
        return self._new(shape, fraction, cost(math.prod(shape)), *given, ring=bits)

    def truncated_product(
        self, products: Sequence[Factors], addend: Priced | None, drop: int, bits: int
    ) -> Priced:
        def cost(n: int) -> Cost:
            return relu.truncated_product_cost(n, drop, bits)

        return self._narrow(cost, products, addend, drop, bits)

    def watched_product(
        self, products: Sequence[Factors], addend: Priced | None, drop: int, bits: int
    ) -> Watched:
        def cost(n: int) -> Cost:
            return linear.watched_sum_cost(n, bits)

        return Watched(self._narrow(cost, products, addend, drop, bits), None, drop)

    def watched_relu(self, x: Watched, most: int | None, openings: int) -> Priced:
        small = x.small
        cost = relu.relu_cost if most is None else linear.capped_relu_cost
        price = cost(small.n, small.ring_bits, openings, small.ring_bits)
        y = self._new(small.shape, small.fractional_bits, price, small)
        # beside the injection, whose result is opened
        self._tell(y.rounds - 1, y.cold - 1)
        return y

    def watched_lift(self, x: Watched) -> Priced:
        small = x.small
        price = small_ring.extend_cost(small.n, small.ring_bits)
        y = self._new(small.shape, small.fractional_bits, price, small)
        self._tell(y.rounds, y.cold)
        return y

    def _tell(self, rounds: int, cold: int) -> None:
        self._told = (max(self._told[0], rounds), max(self._told[1], cold))

    def flag(self, rows: int) -> None:
        """What a watch sends in the end."""
        self._after(range_check.flag_cost(rows), Priced((rows,), 0, *self._told))

    def truncate(self, x: Priced, drop: int) -> Priced:
        cost = truncation.truncate_cost(x.n, drop)
        return self._new(x.shape, x.fractional_bits - drop, cost, x)

    def mul(self, x: Priced, y: Priced) -> Priced:
        shape = tuple(int(n) for n in np.broadcast_shapes(x.shape, y.shape))
        cost = arithmetic.mul_cost(math.prod(shape))
        return self._new(shape, x.fractional_bits + y.fractional_bits, cost, x, y)

    def relu_with_derivative(self, x: Priced) -> tuple[Priced, Priced]:
        k = x.ring_bits
        bits = compared(k)
        count = self.setting.openings(x.n, bits)
        cost = relu.relu_cost(x.n, bits, count, k)
        y = self._new(x.shape, x.fractional_bits, cost, x)
        # the bits are there a round before the value
        injected = convert.inject_cost(x.n, ring_bits=k).rounds
        y = replace(y, ring_bits=64)
        return y, replace(y, rounds=y.rounds - injected, cold=y.cold - injected)

    def inject_truncated(self, bits: Priced, x: Priced, drop: int, negated: bool = False) -> Priced:
        cost = backward.inject_truncated_cost(x.n, drop) if drop else convert.inject_cost(x.n)
        return self._new(x.shape, x.fractional_bits - drop, cost, bits, x)

    def softmax_and_loss(self, logits: Priced, y: Priced) -> tuple[Priced, Priced]:
        rows, classes = math.prod(logits.shape[:-1]), logits.shape[-1]
        f = logits.fractional_bits
        cost = cross_entropy.softmax_and_loss_cost(rows, classes, f, y.fractional_bits)
        loss = self._new((), cross_entropy.INNER, cost, logits, y)
        # the logarithm is beside the last rounds of the probabilities
        behind = cost.rounds - cross_entropy.softmax_for_gradient_cost(rows, classes, f).rounds
        return (
            Priced(
                logits.shape, cross_entropy.RESULT_BITS, loss.rounds - behind, loss.cold - behind
            ),
            loss,
        )

    def max_pool(
        self, x: Priced, options: Mapping[str, Any], relu: bool
    ) -> tuple[Priced, PricedChoice]:
        windows = (options["ksize"], options["strides"], options["padding"])
        k = compared(x.ring_bits)
        geometry = pool_gradient.geometry("max_pool2d", x.shape, *windows)
        openings = self.setting.openings(geometry.windows, k)
        cost = pool_gradient.max_pool2d_with_choice_cost(
            x.shape, *windows, relu=relu, bits=k, openings=openings
        )
        y = self._new(geometry.pooled, x.fractional_bits, cost, x)
        return y, PricedChoice(x.shape, windows, y.rounds, y.cold)

    def route(self, choice: PricedChoice, g: Priced, fraction: int) -> Priced:
        drop = g.fractional_bits - fraction
        cost = pool_gradient.route_cost(choice.shape, *choice.windows, drop=drop)
        known = Priced(choice.shape, 0, choice.rounds, choice.cold)
        return self._new(choice.shape, fraction, cost, known, g)

    def normalise(self, x: Priced, gamma: Priced, epsilon: float) -> PricedNormalised:
        channels = x.shape[-1]
        numbers = batch_norm.numbers(x.n // channels, x.fractional_bits, epsilon)
        cost = batch_norm.normalise_cost(x.n, channels, numbers)
        slope = self._new((channels,), numbers.slope, cost, x, gamma)

        def known(shape: Shape, fraction: int, behind: int) -> Priced:
            """Rounds before the slope, which is the last to be known."""
            return Priced(shape, fraction, slope.rounds - behind, slope.cold - behind)

        mean = cost.rounds - 1
        return PricedNormalised(
            numbers,
            known(x.shape, x.fractional_bits, mean),
            known((channels,), batch_norm.FACTOR, 1),
            known((channels,), batch_norm.FACTOR, mean - 2),
            slope,
        )

    def centred(self, normalised: PricedNormalised) -> tuple[Priced, Priced]:
        return normalised.centred, normalised.factor

    def normalise_back(
        self, normalised: PricedNormalised, g: Priced
    ) -> tuple[Priced, Priced, Priced]:
        numbers, channels = normalised.numbers, g.shape[-1]
        cost = batch_norm.backward_cost(g.n, channels, numbers, g.fractional_bits)
        dx = self._new(g.shape, g.fractional_bits + batch_norm.FACTOR, cost, g, normalised.slope)
        gamma = Priced(
            (channels,), g.fractional_bits + numbers.fraction, dx.rounds - 1, dx.cold - 1
        )
        return dx, gamma, replace(g, shape=(channels,))

    def running(
        self, normalised: PricedNormalised, mean: Priced, variance: Priced, momentum: float
    ) -> tuple[Priced, Priced]:
        cost = batch_norm.running_cost(mean.n)
        new = self._new(mean.shape, mean.fractional_bits, cost, normalised.statistics)
        return new, new

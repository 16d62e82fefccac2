"""The operations of a step, added up instead of run."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tfe_bench.models.training.operations import Bilinear, Setting, Shape, compared
from tfe_bench.protocols.functions import piecewise, roots
from tfe_bench.protocols.nn import (
    activations,
    adaptive,
    batch_norm,
    cross_entropy,
    pool_gradient,
    relu,
)
from tfe_bench.protocols.ring import arithmetic, backward, convert, products, relational, truncation
from tfe_bench.protocols.session.cost import Cost
from tfe_bench.protocols.session.counting import Private, PrivateBits, cost_of
from tfe_bench.protocols.session.party import Party
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


class Pricing:
    """Collects what the operations send."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.sent = [0, 0, 0]
        self.rounds = self.cold = 0

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

    def local(self, x: Priced, function: Callable[[Any], Any], shape: Shape) -> Priced:
        return replace(x, shape=tuple(shape))

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
        assert fraction >= x.fractional_bits
        return replace(x, fractional_bits=fraction)

    def product(self, x: Priced, w: Priced, two: Bilinear) -> Priced:
        shape = two.shape(x.shape, w.shape)
        cost = arithmetic.mul_cost(math.prod(shape))
        return self._new(shape, x.fractional_bits + w.fractional_bits, cost, x, w)

    def truncated_product(
        self, x: Priced, w: Priced, two: Bilinear, addend: Priced | None, drop: int, bits: int
    ) -> Priced:
        shape = two.shape(x.shape, w.shape)
        cost = products.truncated_cost(math.prod(shape), drop, bits)
        fraction = x.fractional_bits + w.fractional_bits - drop
        return self._new(shape, fraction, cost, x, w, addend, ring=bits)

    def truncate(self, x: Priced, drop: int) -> Priced:
        cost = truncation.truncate_cost(x.n, drop)
        return self._new(x.shape, x.fractional_bits - drop, cost, x)

    def mul(self, x: Priced, y: Priced) -> Priced:
        shape = tuple(int(n) for n in np.broadcast_shapes(x.shape, y.shape))
        cost = arithmetic.mul_cost(math.prod(shape))
        return self._new(shape, x.fractional_bits + y.fractional_bits, cost, x, y)

    def relu(self, x: Priced) -> tuple[Priced, Priced]:
        k = x.ring_bits
        bits = compared(k)
        count = self.setting.openings(x.n, bits)
        cost = cost_of(relu.relu, _input(x), bits, count)
        y = self._new(x.shape, x.fractional_bits, cost, x)
        # the bits are there a round before the value
        injected = convert.inject_cost(x.n, ring_bits=k).rounds
        y = replace(y, ring_bits=64)
        return y, replace(y, rounds=y.rounds - injected, cold=y.cold - injected)

    def inject_truncated(self, bits: Priced, x: Priced, drop: int, negated: bool = False) -> Priced:
        if drop:
            cost = cost_of(backward.inject_truncated, PrivateBits(x.shape), _input(x), drop)
        else:
            cost = convert.inject_cost(x.n)
        return self._new(x.shape, x.fractional_bits - drop, cost, bits, x)

    def softmax(self, logits: Priced) -> Priced:
        cost = cost_of(
            cross_entropy.softmax_for_gradient, _input(logits), profile=self.setting.profile
        )
        return self._new(logits.shape, cross_entropy.RESULT_BITS, cost, logits)

    def sigmoid(self, x: Priced) -> Priced:
        return self._new(x.shape, x.fractional_bits, cost_of(activations.sigmoid, _input(x)), x)

    def softmax_and_loss(self, logits: Priced, y: Priced) -> tuple[Priced, Priced]:
        cost = cost_of(cross_entropy.softmax_and_loss, _input(logits), _input(y))
        loss = self._new((), cross_entropy.INNER, cost, logits, y)
        # the logarithm is beside the last rounds of the probabilities
        behind = cost.rounds - cost_of(cross_entropy.softmax_for_gradient, _input(logits)).rounds
        return (
            Priced(
                logits.shape, cross_entropy.RESULT_BITS, loss.rounds - behind, loss.cold - behind
            ),
            loss,
        )

    def max_pool(
        self, x: Priced, options: Mapping[str, Any], relu: bool
    ) -> tuple[Priced, PricedChoice]:
        windows = (tuple(options["ksize"]), tuple(options["strides"]), options["padding"])
        k = compared(x.ring_bits)
        geometry = pool_gradient.geometry("max_pool2d", x.shape, *windows)
        openings = self.setting.openings(geometry.windows, k)
        cost = cost_of(
            pool_gradient.max_pool2d_with_choice,
            _input(x),
            *windows,
            relu=relu,
            bits=k,
            openings=openings,
        )
        y = self._new(geometry.pooled, x.fractional_bits, cost, x)
        return y, PricedChoice(x.shape, windows, y.rounds, y.cold)

    def route(self, choice: PricedChoice, g: Priced, fraction: int) -> Priced:
        drop = g.fractional_bits - fraction
        cost = cost_of(_routed, _input(g), choice.shape, choice.windows, drop)
        known = Priced(choice.shape, 0, choice.rounds, choice.cold)
        return self._new(choice.shape, fraction, cost, known, g)

    def logistic(self, z: Priced) -> Priced:
        cost = cost_of(piecewise.logistic, _input(z))
        return self._new(z.shape, piecewise.RESULT_BITS, cost, z)

    def rsqrt(self, x: Priced, bits: int, precision: int) -> Priced:
        cost = cost_of(roots.rsqrt, _input(x), bits, precision)
        return self._new(x.shape, x.fractional_bits, cost, x)

    def normalise(self, x: Priced, gamma: Priced, epsilon: float) -> PricedNormalised:
        channels = x.shape[-1]
        numbers = batch_norm.numbers(x.n // channels, x.fractional_bits, epsilon)
        cost = cost_of(batch_norm.normalise, _input(x), _input(gamma), epsilon=epsilon)
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
        cost = cost_of(_normalised_back, _input(normalised.centred), _input(g), numbers)
        dx = self._new(g.shape, g.fractional_bits + batch_norm.FACTOR, cost, g, normalised.slope)
        gamma = Priced(
            (channels,), g.fractional_bits + numbers.fraction, dx.rounds - 1, dx.cold - 1
        )
        return dx, gamma, replace(g, shape=(channels,))

    def running(
        self, normalised: PricedNormalised, mean: Priced, variance: Priced, momentum: float
    ) -> tuple[Priced, Priced]:
        cost = truncation.truncate_cost(2 * mean.n, batch_norm.RUNNING_BITS)
        new = self._new(mean.shape, mean.fractional_bits, cost, normalised.statistics)
        return new, new

    def maximum(self, x: Priced, y: Priced, bits: int) -> Priced:
        openings = self.setting.openings(x.n, bits)
        cost = cost_of(relational.maximum, _input(x), _input(y), bits, openings)
        return self._new(x.shape, x.fractional_bits, cost, x, y)

    def direction(self, m: Priced, v: Priced) -> Priced:
        f = m.fractional_bits + adaptive.RESULT_BITS
        cost = cost_of(adaptive.direction, _input(m), _input(v), profile=self.setting.direction)
        return self._new(m.shape, f, cost, m, v)

    def tanh(self, x: Priced) -> Priced:
        return self._new(x.shape, x.fractional_bits, cost_of(activations.tanh, _input(x)), x)


def _input(x: Priced) -> Private:
    return Private(x.shape, x.fractional_bits, x.ring_bits % 64)


def _routed(party: Party, g: Shared, shape: Shape, windows: tuple[Any, Any, str], drop: int) -> Any:
    geometry = pool_gradient.geometry("route", shape, *windows)
    bits = PrivateBits((len(geometry.order) * geometry.width,)).made()
    return pool_gradient.route(party, pool_gradient.Choice(bits, geometry, False), g, drop)


def _normalised_back(party: Party, x: Shared, dy: Shared, numbers: batch_norm.Numbers) -> Any:
    one = Private((int(x.shape[-1]),), batch_norm.FACTOR).made()
    slope = replace(one, fractional_bits=numbers.slope)
    normalised = batch_norm.Normalised(numbers, x, one, one, slope, one, one)
    return batch_norm.backward(party, normalised, dy)

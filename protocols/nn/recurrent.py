"""Recurrent layers: LSTM, GRU and simple cells over private sequences, one step as the other.

x W of all steps is one local product: each party adds its part of it to that of h U, and only the
sum is exchanged.  Values live in rings as small as their next product reads them.  With gates below
1.01 and candidates below 1.01 states have bounds that follow from the number of steps, and sums
those that follow from them: nothing can leave its range.  ReLUs and linear cells have no such
bounds: their ranges are stated, and watched.

Series: what multiplies a memory in every step (the forget gate of an LSTM, the update gate of a
GRU) is a longer one (series.HELD): where others are off by 2^-11, it is by 2^-13.7.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tfe_bench.errors import UsageError
from tfe_bench.protocols.nn import activations, linear, relu, series
from tfe_bench.protocols.nn.cells import MOST_STEPS, STATES, Cell, Rings
from tfe_bench.protocols.nn.series import BENDS, HELD
from tfe_bench.protocols.ring import arithmetic, compare, products, shapes, small_ring
from tfe_bench.protocols.ring.checks import check_ring, known_shape
from tfe_bench.protocols.ring.products import Made, Product, matrix_product
from tfe_bench.protocols.ring.range_check import Watch
from tfe_bench.protocols.session import local, loops
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared


@dataclass(frozen=True, eq=False)
class Weights:
    """Of one direction; G = gates * units.

    Attributes:
        kernel: [inputs, G], recurrent: [units, G], over Z_2^64.
        bias: [G] at the scale of the products, or None.
        inner: [units], what is added to h U of a GRU's candidate before it is reset, or None.
    """

    kernel: Shared
    recurrent: Shared
    bias: Shared | None = None
    inner: Shared | None = None


@dataclass(frozen=True, eq=False)
class Found:
    """What a layer gives.

    Attributes:
        output: [batch, directions, units], or of all steps, as they were taken,
            [batch, directions, steps, units]; over Z_2^64.
        memory: of an LSTM behind its last step, [batch, directions, units], over Z_2^64.
    """

    output: Shared
    memory: Shared | None


def recurrent(
    party: Party,
    cell: Cell,
    x: Shared,
    weights: Sequence[Weights],
    numbers: Rings,
    *,
    backwards: Sequence[bool] = (False,),
    states: Sequence[Shared] = (),
    sequences: bool = False,
    mask: Shared | None = None,
    zeroed: bool = False,
    exchanges: Callable[[int, int], int] = compare.few_openings,
    watch: Watch | None = None,
) -> Found:
    """A layer of one direction or several, whose steps are taken side by side.

    Args:
        x: [batch, steps, inputs] over Z_2^64.
        weights: of each direction, of one scale.
        backwards: of each direction whether it begins with the last step.
        states: [batch, units] over Z_2^64 with numbers.fraction bits, of each direction h and, of
            an LSTM, c; none for zeros.
        sequences: give the output of all steps.
        mask: [batch, steps] over Z_2^64, integers: a step with 0 leaves the states as they were,
            and gives the output of the step before.
        zeroed: such a step's output is 0; with `sequences`.
        exchanges: (number, bits) -> exchanges of comparisons.
        watch: is told of values that left their range, of cells that have no bounds.

    Off, with series, by up to 2^-10 of a gate in each step; else by 2 ulp of 2^-fraction.
    Rounds: for each step of an LSTM 2 activations and 4, of a GRU 2 activations and 4, where it
        resets before the product 6, of a simple cell one and 1; and a lift.  An activation takes
        exchanges + 3 with series, else exchanges + 6.  A mask takes one more.
    Raises:
        UsageError: shapes, scales or rings that do not fit.
    """
    given = known_shape("recurrent", check_ring("recurrent", x))
    count, units = len(weights), int(weights[0].recurrent.shape[0]) if weights else 0
    fits = len(given) == 3 and 1 <= given[1] <= MOST_STEPS and numbers.fits
    fits = fits and count == len(backwards) > 0
    fits = fits and len(states) in (0, count * STATES[cell.kind])
    if mask is not None:
        steps = known_shape("recurrent", check_ring("recurrent", mask))
        fits = fits and steps == given[:2] and mask.fractional_bits == 0
    if not fits:
        raise UsageError(
            f"recurrent wants x [batch, 1 to {MOST_STEPS} steps, inputs], weights and states of "
            f"each direction, and numbers that fit. Received: {given}, {count} weights, "
            f"{len(states)} states, {len(backwards)} directions, {mask!r} as a mask, {numbers}."
        )
    own = _Steps(party, cell, numbers, weights, units, exchanges, watch)
    parts = own.of_inputs(x, backwards)
    shown = None if mask is None else own.by_steps(mask, backwards)

    def turn(i: Any, values: Sequence[Shared]) -> tuple[Sequence[Shared], Shared | None]:
        at = parts.map(lambda a: local.gather(a, i))
        shape = (count, given[0], units)
        after = own.step(at, values)
        output = after[0]
        if shown is not None:
            here = shown.map(lambda a: local.gather(a, i))
            after = own.where(here, after, values)
            output = own.shown(here, output, None) if zeroed else after[0]
        after, (output,) = (
            [v.map(lambda a: local.ensure_shape(a, shape)) for v in several]
            for several in (after, [output])
        )
        return after, output if sequences else None

    start = own.start(given[0], x, states)
    last, kept = loops.repeated(party, given[1], turn, start, own.noting)
    output = last[0] if kept is None else kept
    found = [output, *last[1:]]
    axes = [(1, 0, 2) if v.shape.rank == 3 else (2, 1, 0, 3) for v in found]
    whole = [
        own.lifted(v, products.RING).map(lambda a, order=order: local.transpose(a, order))
        for v, order in zip(found, axes, strict=True)
    ]
    return Found(whole[0], whole[1] if len(whole) > 1 else None)


class _Steps:
    """What a step needs; values are [directions, batch, units]."""

    def __init__(
        self,
        party: Party,
        cell: Cell,
        numbers: Rings,
        weights: Sequence[Weights],
        units: int,
        exchanges: Callable[[int, int], int],
        watch: Watch | None,
    ) -> None:
        self.party, self.cell, self.n, self.units = party, cell, numbers, units
        self.exchanges = exchanges
        self.watch = None if watch is None or cell.bounded else _Turned(watch)
        self.noting = None if cell.bounded else watch
        # what is watched may be three times as large as planned, and be right
        self.more = 0 if self.watch is None else 2
        self.kernel, self.recurrent = (
            shapes.stack([getattr(w, name) for w in weights]) for name in ("kernel", "recurrent")
        )
        self.bias, self.inner = (self._rows(weights, name) for name in ("bias", "inner"))

    @staticmethod
    def _rows(weights: Sequence[Weights], name: str) -> Shared | None:
        found = [v for w in weights if (v := getattr(w, name)) is not None]
        return shapes.stack(found).map(lambda a: local.at(a, np.s_[:, None])) if found else None

    # ---- what is not of a step

    def of_inputs(self, x: Shared, backwards: Sequence[bool]) -> Made:
        """x W of all steps as they are taken, [steps, directions, batch, G]."""
        batch, steps, inputs = (int(n) for n in x.shape)
        by_steps = x.map(
            lambda a: local.reshape(local.transpose(a, [1, 0, 2]), [1, steps * batch, inputs])
        )
        found = products.made(
            self.party, "recurrent", Product(by_steps, self.kernel, matrix_product)
        )
        shape = [len(backwards), steps, batch, self.kernel.shape[2]]

        def taken(a: Any) -> Any:
            a = local.reshape(a, shape)
            each = [local.reverse(a[d], [0]) if back else a[d] for d, back in enumerate(backwards)]
            return local.stack(each, 1)

        return found.map(taken)

    def by_steps(self, mask: Shared, backwards: Sequence[bool]) -> Shared:
        """A mask of all steps as they are taken, [steps, directions, batch, 1]."""

        def taken(a: Any) -> Any:
            a = local.transpose(a, [1, 0])
            each = [local.reverse(a, [0]) if back else a for back in backwards]
            found = local.stack(each, 1)
            return local.reshape(found, [*(int(n) for n in found.shape), 1])

        return mask.map(taken)

    def where(self, here: Shared, new: Sequence[Shared], old: Sequence[Shared]) -> list[Shared]:
        """The new values where a mask is 1, else the old ones; 1 round."""
        # (what a step ends with comes last)
        pairs = list(zip(new, old, strict=True))[::-1]
        return [self.shown(here, v, w) for v, w in pairs][::-1]

    def shown(self, here: Shared, new: Shared, old: Shared | None) -> Shared:
        """The new value where a mask is 1, else the old one or 0, exactly; 1 round."""
        ring = new.ring_bits
        if old is not None:
            old = small_ring.reduced(old, ring)
        apart = new if old is None else arithmetic.sub(new, old)
        if ring == products.RING:
            z = products.exchanged(self.party, "product_sum", [self.product(here, apart)])
            return z if old is None else arithmetic.add(z, old)
        # (twice all that: half of it is not rounded)
        twice = here.map(lambda a: local.left_shift(a, 1))
        product = self.product(replace(twice, fractional_bits=1), apart)
        if old is not None:
            old = old.map(lambda a: local.left_shift(a, 1))
            old = replace(old, bits=0, fractional_bits=old.fractional_bits + 1)
        found = products.truncated(self.party, "truncated_sum", [product], old, 1, ring)
        return found[0]

    def start(self, batch: int, x: Shared, states: Sequence[Shared]) -> list[Shared]:
        """The states before the first step."""
        count = STATES[self.cell.kind]
        if states:
            return [shapes.stack(list(states[i::count])) for i in range(count)]
        shape = [self.kernel.shape[0], batch, self.units]
        # (a value that is known: under no mask)
        zero = x.map(lambda a: local.broadcast_to(local.zeros_like(a[:1, :1, :1]), shape))
        return [replace(zero, fractional_bits=self.n.fraction)] * count

    # ---- of all cells

    def part(self, x: Any, first: int, count: int = 1) -> Any:
        """Some gates of a value, or of a product."""
        low, high = first * self.units, (first + count) * self.units
        return x.map(lambda a: local.at(a, np.s_[..., low:high]))

    def lifted(self, x: Shared, to: int) -> Shared:
        """x in a ring of so many bits at least; what is watched has all."""
        to = to if self.watch is None else products.RING
        return x if x.ring_bits >= to else small_ring.lift(self.party, x, to)

    def product(self, x: Shared, w: Shared, two: products.Two = products.elementwise) -> Product:
        """A product of which bits below those of both rings are right."""
        return Product(replace(x, bits=0), replace(w, bits=0), two)

    def opened(
        self, sums: Sequence[Product | Made], addend: Shared | None, drop: int, ring: int
    ) -> Shared:
        """A sum with so many fractional bits less, in a ring; 1 round."""
        width = 0 if self.watch is None else products.RING
        y, u = products.truncated(self.party, "truncated_sum", sums, addend, drop, ring, width)
        if self.watch is None:
            return y
        return linear.watched_lift(self.party, self.watch, y, u, width - drop)  # type: ignore[arg-type]

    def bent(self, function: str, x: Shared, bits: int, to: int) -> Shared:
        """An activation of |x| < 2^(bits-1) in a ring of so many bits at least, or any (0)."""
        party, f, n = self.party, x.fractional_bits, x.shape.num_elements()
        bits += self.more
        if function == "linear":
            return self.lifted(x, to)
        small = x.ring_bits < products.RING
        if function == "relu":
            count = self.exchanges(n, x.ring_bits if small else bits)
            return relu.relu(party, x, bits, count)
        if function == "ramp":
            width = x.ring_bits if small else compare.moved(bits, 1 << f)
            return linear.capped_relu(party, x, 1 << f, width, self.exchanges(2 * n, width))
        if self.cell.series:
            # tanh(x) = 2 sigmoid(2x) - 1: twice a value has one fractional bit less, and so on
            twice = int(function == "tanh")
            bend = HELD if function == "held" else BENDS["sigmoid"]
            x = replace(x, fractional_bits=f - twice)
            below = 1 << (bits - 1)
            count = self.exchanges(2 * n, series.compared(bend, f - twice, below))
            y = self.lifted(series.curved(party, x, bend, below, count, 2 * twice), to)
            return replace(arithmetic.moved(y, -(twice << f)), fractional_bits=f)
        whole = self.lifted(x, products.RING)
        protocol = activations.tanh if function == "tanh" else activations.sigmoid
        count = self.exchanges(3 * n, compare.moved(bits, activations.edge(f)))
        return protocol(party, whole, bits, count)

    def gates(
        self, z: Shared, functions: Sequence[str], bits: int, to: Sequence[int]
    ) -> list[Shared]:
        """Activations of the parts of a value in their rings, those of one function as one."""
        found: dict[int, Shared] = {}
        for function in dict.fromkeys(functions):
            own = [i for i, f in enumerate(functions) if f == function]
            given = shapes.concat([self.part(z, i) for i in own], 2)
            y = self.bent(function, given, bits, 0)
            found |= {i: self.lifted(self.part(y, at), to[i]) for at, i in enumerate(own)}
        return [found[i] for i in range(len(functions))]

    @property
    def held(self) -> str:
        """The function of a gate that multiplies a memory."""
        sigmoid = self.cell.gate == "sigmoid" and self.cell.series
        return "held" if sigmoid else self.cell.gate

    def step(self, x: Made, values: Sequence[Shared]) -> list[Shared]:
        """The states behind a step."""
        if self.cell.kind == "lstm":
            return self._lstm(x, *values)
        return self._simple(x, *values) if self.cell.kind == "simple" else self._gru(x, *values)

    # ---- cells

    def _simple(self, x: Made, h: Shared) -> list[Shared]:
        """f(x W + h U + b)."""
        product = self.product(h, self.recurrent, matrix_product)
        z = self.opened([x, product], self.bias, self.n.drop, self.n.sums)
        return [self.bent(self.cell.activation, z, self.n.z, self.n.factor)]

    def _lstm(self, x: Made, h: Shared, c: Shared) -> list[Shared]:
        """i, f, g, o of x W + h U + b; f c + i g; o tanh(c)."""
        n, cell = self.n, self.cell
        product = self.product(h, self.recurrent, matrix_product)
        z = self.opened([x, product], self.bias, n.drop, n.sums)
        functions = [cell.gate, self.held, cell.activation, cell.gate]
        i, f, g, o = self.gates(z, functions, n.z, [n.kept, n.kept, n.kept, n.told])
        sums = [self.product(f, c), self.product(i, g)]
        c = self.opened(sums, None, n.fraction, n.memories)
        bent = self.bent(cell.activation, c, n.c, n.told)
        h = self.opened([self.product(o, bent)], None, n.fraction, n.outputs)
        c = self.lifted(c, n.kept)
        return [self.lifted(h, n.factor), c]  # what a step ends with comes last

    def _gru(self, x: Made, h: Shared) -> list[Shared]:
        """z, r of x W + h U + b; g of x W + r (h U) + b, or x W + (r h) U + b; z h + (1 - z) g."""
        n, cell, u = self.n, self.cell, self.units
        after = cell.kind == "gru"
        gates = self.part(x, 0, 2)
        recurrent, bias = self.recurrent, None if self.bias is None else self.part(self.bias, 0, 2)
        if after:
            gates = gates.map(lambda a: local.pad(a, [[0, 0], [0, 0], [0, u]]))
            bias = self._with_inner(bias)
        else:
            recurrent = self.part(recurrent, 0, 2)
        a = self.opened([gates, self.product(h, recurrent, matrix_product)], bias, n.drop, n.sums)
        z, r = self.gates(
            self.part(a, 0, 2), [self.held, cell.gate], n.z, [max(n.told, n.factor)] * 2
        )
        candidate = self.part(x, 2)
        bias = None if self.bias is None else self.part(self.bias, 2)
        if after:
            inner = self.lifted(self.part(a, 2), n.factor)
            inner = inner.map(lambda v: local.left_shift(v, n.scale - 2 * n.fraction))
            inner = replace(inner, fractional_bits=n.scale - n.fraction)
            product = self.product(r, inner)
        else:
            reset = self.opened([self.product(r, h)], None, n.fraction, n.outputs)
            reset = self.lifted(reset, n.factor)
            product = self.product(reset, self.part(self.recurrent, 2), matrix_product)
        p = self.opened([candidate, product], bias, n.drop, n.sums)
        g = self.bent(cell.activation, p, n.z, n.told)
        known = replace(g.map(lambda v: local.left_shift(v, n.fraction)), bits=0)
        known = replace(known, fractional_bits=2 * n.fraction)
        apart = arithmetic.sub(replace(h, bits=0), replace(g, bits=0))
        h = self.opened([self.product(z, apart)], known, n.fraction, n.outputs)
        return [self.lifted(h, max(n.factor, n.told))]

    def _with_inner(self, bias: Shared | None) -> Shared | None:
        """The biases of a GRU's gates, and of what it resets."""
        if bias is None:
            return None
        if self.inner is None:
            return bias.map(lambda a: local.pad(a, [[0, 0], [0, 0], [0, self.units]]))
        return shapes.concat([bias, self.inner], 2)


class _Turned:
    """A watch of values whose batch is their second axis."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch

    def zero(self, share: Any, width: int, low: int = 0) -> None:
        """As Watch.zero."""
        turned = None if share is None else local.transpose(share, [1, 0, 2])
        self._watch.zero(turned, width, low)

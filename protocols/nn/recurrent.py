"""Recurrent layers: LSTM, GRU and simple cells over private sequences; steps share a graph.

x W of all steps is one local product: each party adds its share of it to that of h U, and only the
sum is exchanged. Values are in the smallest rings that their next product permits. With gates below
1.01 and candidates below 1.01 the number of steps implies bounds of states, and these imply bounds
of sums: nothing can leave its range. ReLUs and linear cells have no such bounds: their ranges are
declared and monitored.

Series: the factor of a memory in every step (the forget gate of an LSTM, the update gate of a GRU)
uses a longer series (series.MEMORY_GATE): others have errors of 2^-11, this one of 2^-13.7.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tfe_bench.errors import UsageError
from tfe_bench.protocols.nn import activations, linear, relu, series
from tfe_bench.protocols.nn.cells import MAX_STEPS, STATES, RecurrentCell, RecurrentFormat
from tfe_bench.protocols.nn.series import ACTIVATIONS, MEMORY_GATE
from tfe_bench.protocols.ring import arithmetic, compare, products, shapes, small_ring
from tfe_bench.protocols.ring.checks import check_known_shape, check_private_64bit_tensor
from tfe_bench.protocols.ring.products import (
    BilinearShareProduct,
    LocalProduct,
    sum_matrix_products,
)
from tfe_bench.protocols.ring.range_check import RangeMonitor
from tfe_bench.protocols.session import loops, tensor_ops
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared


@dataclass(frozen=True, eq=False)
class RecurrentWeights:
    """Weights of one direction; G = gates * units.

    Attributes:
        kernel: [inputs, G], recurrent: [units, G], over Z_2^64.
        bias: [G] at the scale of the products, or None.
        inner: [units], added to h U of a GRU's candidate before it is reset, or None.
    """

    kernel: Shared
    recurrent: Shared
    bias: Shared | None = None
    inner: Shared | None = None


@dataclass(frozen=True, eq=False)
class RecurrentOutput:
    """The results of a layer.

    Attributes:
        output: [batch, directions, units], or for all steps, in the order of processing, [batch,
            directions, steps, units]; over Z_2^64.
        memory: of an LSTM after its last step, [batch, directions, units], over Z_2^64.
    """

    output: Shared
    memory: Shared | None


def run_recurrent(
    party: Party,
    cell: RecurrentCell,
    x: Shared,
    weights: Sequence[RecurrentWeights],
    fixed_point: RecurrentFormat,
    *,
    backwards: Sequence[bool] = (False,),
    states: Sequence[Shared] = (),
    sequences: bool = False,
    mask: Shared | None = None,
    zero_masked: bool = False,
    exchanges: Callable[[int, int], int] = compare.default_exchanges,
    monitor: RangeMonitor | None = None,
) -> RecurrentOutput:
    """Run a layer of one or several directions, whose steps run in parallel.

    Args:
        x: [batch, steps, inputs] over Z_2^64.
        weights: of each direction, of one scale.
        backwards: for each direction, True if it begins with the last step.
        states: [batch, units] over Z_2^64 with fixed_point.fraction bits, for each direction h and,
            for an LSTM, c; none: zeros.
        sequences: True: return the output of all steps.
        mask: [batch, steps] over Z_2^64, integers: a step with 0 keeps the states, and repeats the
            output of the step before.
        zero_masked: True: the output of such a step is 0; with `sequences`.
        exchanges: (number, bits) -> exchanges of comparisons.
        monitor: records values that leave their range, for cells without bounds.

    Error: with series up to 2^-10 of a gate in each step; otherwise 2 ulp of 2^-fraction.
    Rounds: for each step of an LSTM 2 activations and 4, of a GRU 2 activations and 4, or 6 if it
    resets before the product, of a simple cell one activation and 1; and a lift. An activation
    takes exchanges + 3 with series, else exchanges + 6. A mask adds one.
    Raises:
        UsageError: shapes, scales or rings do not fit.
    """
    input_shape = check_known_shape("recurrent", check_private_64bit_tensor("recurrent", x))
    count, units = len(weights), int(weights[0].recurrent.shape[0]) if weights else 0
    is_valid = len(input_shape) == 3 and 1 <= input_shape[1] <= MAX_STEPS and fixed_point.is_valid
    is_valid = is_valid and count == len(backwards) > 0
    is_valid = is_valid and len(states) in (0, count * STATES[cell.kind])
    if mask is not None:
        steps = check_known_shape("recurrent", check_private_64bit_tensor("recurrent", mask))
        is_valid = is_valid and steps == input_shape[:2] and mask.fractional_bits == 0
    if not is_valid:
        raise UsageError(
            f"recurrent expects x [batch, 1 to {MAX_STEPS} steps, inputs], weights and "
            "states of each direction, and a valid fixed-point format. Received: "
            f"{input_shape}, {count} weights, {len(states)} states, {len(backwards)} "
            f"directions, {mask!r} as a mask, {fixed_point}.",
            code="shape-mismatch",
            operation="recurrent",
            received=f"{input_shape}, {count} weights, {len(states)} states",
        )
    runner = _RecurrentStepRunner(party, cell, fixed_point, weights, units, exchanges, monitor)
    input_products = runner.project_inputs(x, backwards)
    step_masks = None if mask is None else runner.order_mask(mask, backwards)

    def run_step(i: Any, values: Sequence[Shared]) -> tuple[Sequence[Shared], Shared | None]:
        step_product = input_products.map(lambda a: tensor_ops.gather(a, i))
        shape = (count, input_shape[0], units)
        new_states = runner.run_cell(step_product, values)
        output = new_states[0]
        if step_masks is not None:
            step_mask = step_masks.map(lambda a: tensor_ops.gather(a, i))
            new_states = runner.select_states(step_mask, new_states, values)
            output = runner.select_masked(step_mask, output, None) if zero_masked else new_states[0]
        new_states, (output,) = (
            [v.map(lambda a: tensor_ops.ensure_shape(a, shape)) for v in tensors]
            for tensors in (new_states, [output])
        )
        return new_states, output if sequences else None

    start = runner.initial_states(input_shape[0], x, states)
    last, step_outputs = loops.repeat_protocol(
        party, input_shape[1], run_step, start, runner.loop_monitor
    )
    output = last[0] if step_outputs is None else step_outputs
    states_found = [output, *last[1:]]
    axes = [(1, 0, 2) if v.shape.rank == 3 else (2, 1, 0, 3) for v in states_found]
    results = [
        runner.lift_ring(v, products.RING).map(
            lambda a, order=order: tensor_ops.transpose(a, order)
        )
        for v, order in zip(states_found, axes, strict=True)
    ]
    return RecurrentOutput(results[0], results[1] if len(results) > 1 else None)


class _RecurrentStepRunner:
    """The data and operations of a step; values are [directions, batch, units]."""

    def __init__(
        self,
        party: Party,
        cell: RecurrentCell,
        fixed_point: RecurrentFormat,
        weights: Sequence[RecurrentWeights],
        units: int,
        exchanges: Callable[[int, int], int],
        monitor: RangeMonitor | None,
    ) -> None:
        self.party, self.cell, self.fixed_point, self.units = party, cell, fixed_point, units
        self.exchanges = exchanges
        self.monitor = (
            None if monitor is None or cell.is_bounded else _TransposedRangeMonitor(monitor)
        )
        self.loop_monitor = None if cell.is_bounded else monitor
        # A monitored value may be three times as large as planned and still be right.
        self.margin_bits = 0 if self.monitor is None else 2
        self.kernel, self.recurrent = (
            shapes.stack([getattr(w, name) for w in weights]) for name in ("kernel", "recurrent")
        )
        self.bias, self.inner = (self._stack_rows(weights, name) for name in ("bias", "inner"))

    @staticmethod
    def _stack_rows(weights: Sequence[RecurrentWeights], name: str) -> Shared | None:
        rows = [v for w in weights if (v := getattr(w, name)) is not None]
        return (
            shapes.stack(rows).map(lambda a: tensor_ops.strided_slice(a, np.s_[:, None]))
            if rows
            else None
        )

    # ---- outside of steps

    def project_inputs(self, x: Shared, backwards: Sequence[bool]) -> LocalProduct:
        """Compute x W of all steps in the order of processing, [steps, directions, batch, G]."""
        batch, steps, inputs = (int(n) for n in x.shape)
        by_steps = x.map(
            lambda a: tensor_ops.reshape(
                tensor_ops.transpose(a, [1, 0, 2]), [1, steps * batch, inputs]
            )
        )
        input_products = products.multiply_shares_locally(
            self.party,
            "recurrent",
            BilinearShareProduct(by_steps, self.kernel, sum_matrix_products),
        )
        shape = [len(backwards), steps, batch, self.kernel.shape[2]]

        def order_recurrent_steps(a: Any) -> Any:
            a = tensor_ops.reshape(a, shape)
            directions = [
                tensor_ops.reverse(a[d], [0]) if is_backwards else a[d]
                for d, is_backwards in enumerate(backwards)
            ]
            return tensor_ops.stack(directions, 1)

        return input_products.map(order_recurrent_steps)

    def order_mask(self, mask: Shared, backwards: Sequence[bool]) -> Shared:
        """Return a mask of all steps in the order of processing, [steps, directions, batch, 1]."""

        def order_recurrent_steps(a: Any) -> Any:
            a = tensor_ops.transpose(a, [1, 0])
            directions = [
                tensor_ops.reverse(a, [0]) if is_backwards else a for is_backwards in backwards
            ]
            stacked = tensor_ops.stack(directions, 1)
            return tensor_ops.reshape(stacked, [*(int(n) for n in stacked.shape), 1])

        return mask.map(order_recurrent_steps)

    def select_states(
        self, step_mask: Shared, new: Sequence[Shared], old: Sequence[Shared]
    ) -> list[Shared]:
        """Return the new values where a mask is 1, else the old ones; 1 round."""
        # The last value of a step comes last.
        pairs = list(zip(new, old, strict=True))[::-1]
        return [self.select_masked(step_mask, v, w) for v, w in pairs][::-1]

    def select_masked(self, step_mask: Shared, new: Shared, old: Shared | None) -> Shared:
        """Return the new value where a mask is 1, else the old one or 0, exactly; 1 round."""
        ring = new.ring_bits
        if old is not None:
            old = small_ring.reduce_ring(old, ring)
        difference = new if old is None else arithmetic.sub(new, old)
        if ring == products.RING:
            z = products.exchange_sum(
                self.party, "product_sum", [self.make_product(step_mask, difference)]
            )
            return z if old is None else arithmetic.add(z, old)
        # All terms are doubled, so that dropping one bit is exact.
        doubled_mask = step_mask.map(lambda a: tensor_ops.left_shift(a, 1))
        product = self.make_product(replace(doubled_mask, fractional_bits=1), difference)
        if old is not None:
            old = old.map(lambda a: tensor_ops.left_shift(a, 1))
            old = replace(old, bits=0, fractional_bits=old.fractional_bits + 1)
        truncated_sum = products.exchange_truncated_sum(
            self.party, "truncated_sum", [product], old, 1, ring
        )
        return truncated_sum[0]

    def initial_states(self, batch: int, x: Shared, states: Sequence[Shared]) -> list[Shared]:
        """Return the states before the first step."""
        count = STATES[self.cell.kind]
        if states:
            return [shapes.stack(list(states[i::count])) for i in range(count)]
        shape = [self.kernel.shape[0], batch, self.units]
        # A public value: without a mask.
        zero = x.map(lambda a: tensor_ops.broadcast_to(tensor_ops.zeros_like(a[:1, :1, :1]), shape))
        return [replace(zero, fractional_bits=self.fixed_point.fraction)] * count

    # ---- of all cells

    def gate_part(self, x: Any, first: int, count: int = 1) -> Any:
        """Return some gates of a value, or of a product."""
        low, high = first * self.units, (first + count) * self.units
        return x.map(lambda a: tensor_ops.strided_slice(a, np.s_[..., low:high]))

    def lift_ring(self, x: Shared, to: int) -> Shared:
        """Return x in a ring of at least this many bits; monitored values use the whole ring."""
        to = to if self.monitor is None else products.RING
        return x if x.ring_bits >= to else small_ring.lift_signed(self.party, x, to)

    def make_product(
        self,
        x: Shared,
        w: Shared,
        bilinear: products.BilinearMap = products.sum_elementwise_products,
    ) -> BilinearShareProduct:
        """Return a product whose bits below those of both rings are right."""
        return BilinearShareProduct(replace(x, bits=0), replace(w, bits=0), bilinear)

    def open_sum(
        self,
        sums: Sequence[BilinearShareProduct | LocalProduct],
        addend: Shared | None,
        drop: int,
        ring: int,
    ) -> Shared:
        """Exchange a sum with `drop` fractional bits less, in a ring; 1 round."""
        width = 0 if self.monitor is None else products.RING
        y, u = products.exchange_truncated_sum(
            self.party, "truncated_sum", sums, addend, drop, ring, width
        )
        if self.monitor is None:
            return y
        return linear.monitored_lift(self.party, self.monitor, y, u, width - drop)  # type: ignore[arg-type]

    def apply_activation(self, function: str, x: Shared, bits: int, to: int) -> Shared:
        """Apply an activation to |x| < 2^(bits-1), in a ring of at least `to` bits, or any (0)."""
        party, f, n = self.party, x.fractional_bits, x.shape.num_elements()
        bits += self.margin_bits
        if function == "linear":
            return self.lift_ring(x, to)
        is_small = x.ring_bits < products.RING
        if function == "relu":
            count = self.exchanges(n, x.ring_bits if is_small else bits)
            return relu.relu(party, x, bits, count)
        if function == "ramp":
            width = x.ring_bits if is_small else compare.comparison_bits_with_constant(bits, 1 << f)
            return linear.capped_relu(party, x, 1 << f, width, self.exchanges(2 * n, width))
        if self.cell.series:
            # tanh(x) = 2 sigmoid(2x) - 1; doubling a value is reading it with one fractional bit
            # less.
            doubling = int(function == "tanh")
            activation = MEMORY_GATE if function == "held" else ACTIVATIONS["sigmoid"]
            x = replace(x, fractional_bits=f - doubling)
            below = 1 << (bits - 1)
            count = self.exchanges(
                2 * n, series.activation_comparison_bits(activation, f - doubling, below)
            )
            y = self.lift_ring(
                series.evaluate_in_ring(party, x, activation, below, count, 2 * doubling), to
            )
            return replace(arithmetic.add_constant(y, -(doubling << f)), fractional_bits=f)
        lifted = self.lift_ring(x, products.RING)
        protocol = activations.tanh if function == "tanh" else activations.sigmoid
        count = self.exchanges(
            3 * n, compare.comparison_bits_with_constant(bits, activations.saturation_units(f))
        )
        return protocol(party, lifted, bits, count)

    def apply_gates(
        self, z: Shared, functions: Sequence[str], bits: int, to: Sequence[int]
    ) -> list[Shared]:
        """Apply activations to the parts of a value, in their rings; one call per function."""
        activated: dict[int, Shared] = {}
        for function in dict.fromkeys(functions):
            gate_numbers = [i for i, f in enumerate(functions) if f == function]
            gate_inputs = shapes.concat([self.gate_part(z, i) for i in gate_numbers], 2)
            y = self.apply_activation(function, gate_inputs, bits, 0)
            activated |= {
                i: self.lift_ring(self.gate_part(y, at), to[i]) for at, i in enumerate(gate_numbers)
            }
        return [activated[i] for i in range(len(functions))]

    @property
    def memory_gate(self) -> str:
        """The function of a gate that multiplies a memory."""
        sigmoid = self.cell.gate == "sigmoid" and self.cell.series
        return "held" if sigmoid else self.cell.gate

    def run_cell(self, x: LocalProduct, values: Sequence[Shared]) -> list[Shared]:
        """Return the states after a step."""
        if self.cell.kind == "lstm":
            return self._lstm_cell(x, *values)
        return (
            self._simple_cell(x, *values)
            if self.cell.kind == "simple"
            else self._gru_cell(x, *values)
        )

    # ---- cells

    def _simple_cell(self, x: LocalProduct, h: Shared) -> list[Shared]:
        """Compute f(x W + h U + b)."""
        product = self.make_product(h, self.recurrent, sum_matrix_products)
        z = self.open_sum(
            [x, product], self.bias, self.fixed_point.dropped_bits, self.fixed_point.sum_ring
        )
        return [
            self.apply_activation(
                self.cell.activation, z, self.fixed_point.z, self.fixed_point.factor_ring
            )
        ]

    def _lstm_cell(self, x: LocalProduct, h: Shared, c: Shared) -> list[Shared]:
        """Compute i, f, g, o of x W + h U + b; f c + i g; o tanh(c)."""
        n, cell = self.fixed_point, self.cell
        product = self.make_product(h, self.recurrent, sum_matrix_products)
        z = self.open_sum([x, product], self.bias, n.dropped_bits, n.sum_ring)
        functions = [cell.gate, self.memory_gate, cell.activation, cell.gate]
        i, f, g, o = self.apply_gates(
            z,
            functions,
            n.z,
            [
                n.memory_factor_ring,
                n.memory_factor_ring,
                n.memory_factor_ring,
                n.output_factor_ring,
            ],
        )
        sums = [self.make_product(f, c), self.make_product(i, g)]
        c = self.open_sum(sums, None, n.fraction, n.memory_ring)
        activated_memory = self.apply_activation(cell.activation, c, n.c, n.output_factor_ring)
        h = self.open_sum([self.make_product(o, activated_memory)], None, n.fraction, n.output_ring)
        c = self.lift_ring(c, n.memory_factor_ring)
        return [self.lift_ring(h, n.factor_ring), c]  # the last value of a step comes last

    def _gru_cell(self, x: LocalProduct, h: Shared) -> list[Shared]:
        """Compute z, r of x W + h U + b, the candidate g, and z h + (1 - z) g.

        g is of x W + r (h U) + b ("gru"), or of x W + (r h) U + b ("gru_before").
        """
        n, cell, u = self.fixed_point, self.cell, self.units
        resets_product = cell.kind == "gru"
        gates = self.gate_part(x, 0, 2)
        recurrent, bias = (
            self.recurrent,
            None if self.bias is None else self.gate_part(self.bias, 0, 2),
        )
        if resets_product:
            gates = gates.map(lambda a: tensor_ops.pad(a, [[0, 0], [0, 0], [0, u]]))
            bias = self._with_inner(bias)
        else:
            recurrent = self.gate_part(recurrent, 0, 2)
        a = self.open_sum(
            [gates, self.make_product(h, recurrent, sum_matrix_products)],
            bias,
            n.dropped_bits,
            n.sum_ring,
        )
        z, r = self.apply_gates(
            self.gate_part(a, 0, 2),
            [self.memory_gate, cell.gate],
            n.z,
            [max(n.output_factor_ring, n.factor_ring)] * 2,
        )
        candidate = self.gate_part(x, 2)
        bias = None if self.bias is None else self.gate_part(self.bias, 2)
        if resets_product:
            inner = self.lift_ring(self.gate_part(a, 2), n.factor_ring)
            inner = inner.map(lambda v: tensor_ops.left_shift(v, n.scale - 2 * n.fraction))
            inner = replace(inner, fractional_bits=n.scale - n.fraction)
            product = self.make_product(r, inner)
        else:
            reset = self.open_sum([self.make_product(r, h)], None, n.fraction, n.output_ring)
            reset = self.lift_ring(reset, n.factor_ring)
            product = self.make_product(
                reset, self.gate_part(self.recurrent, 2), sum_matrix_products
            )
        p = self.open_sum([candidate, product], bias, n.dropped_bits, n.sum_ring)
        g = self.apply_activation(cell.activation, p, n.z, n.output_factor_ring)
        scaled_candidate = replace(g.map(lambda v: tensor_ops.left_shift(v, n.fraction)), bits=0)
        scaled_candidate = replace(scaled_candidate, fractional_bits=2 * n.fraction)
        difference = arithmetic.sub(replace(h, bits=0), replace(g, bits=0))
        h = self.open_sum(
            [self.make_product(z, difference)], scaled_candidate, n.fraction, n.output_ring
        )
        return [self.lift_ring(h, max(n.factor_ring, n.output_factor_ring))]

    def _with_inner(self, bias: Shared | None) -> Shared | None:
        """Return the biases of a GRU's gates, and of the product that it resets."""
        if bias is None:
            return None
        if self.inner is None:
            return bias.map(lambda a: tensor_ops.pad(a, [[0, 0], [0, 0], [0, self.units]]))
        return shapes.concat([bias, self.inner], 2)


class _TransposedRangeMonitor:
    """A range monitor for values whose batch is their second axis."""

    def __init__(self, monitor: RangeMonitor) -> None:
        self._monitor = monitor

    def record_zero(self, share: Any, width: int, low: int = 0) -> None:
        """Record as RangeMonitor.record_zero."""
        transposed = None if share is None else tensor_ops.transpose(share, [1, 0, 2])
        self._monitor.record_zero(transposed, width, low)

"""LSTM, GRU and simple recurrent layers, of one direction or both (protocols/nn/recurrent.py)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, ClassVar, TypeAlias

import numpy as np

from tfe_bench.errors import UsageError
from tfe_bench.models.layers import base as L
from tfe_bench.models.layers.base import Array, Options, Shape, Shapes
from tfe_bench.protocols.nn import cells, recurrent
from tfe_bench.protocols.nn.cells import GATES, STATES, RecurrentCell, RecurrentFormat
from tfe_bench.protocols.nn.recurrent import RecurrentWeights
from tfe_bench.protocols.nn.series import ACTIVATIONS, MEMORY_GATE
from tfe_bench.protocols.session import tensor_ops
from tfe_bench.protocols.session.sharing import Shared

# Steps beyond which series are noticeable: a held memory loses up to 2^-13 of its value in each.
MOST_SERIES_STEPS = 100


def _plaintext_sigmoid(v: Array) -> Array:
    return np.asarray(np.exp(-np.logaddexp(0, -v)))


# Plaintext functions: of candidates and states, of gates, and of the gate that holds a memory.
PlaintextFunctions: TypeAlias = "tuple[Callable[[Array], Array], ...]"
_IN_THE_CLEAR: Mapping[str, Any] = {
    "tanh": np.tanh,
    "sigmoid": _plaintext_sigmoid,
    "relu": lambda v: np.maximum(v, 0),
    "linear": lambda v: v,
    "ramp": lambda v: np.clip(v, 0, 1),
}


class Recurrent(L.Kind):
    """Steps of a cell: [steps, inputs] becomes [rows, directions * units].

    Options: the cell, its activations, whether they use series; which directions start with the
    last step; whether all outputs are returned or the last ones (`sequences`), and those of a
    reversed direction in the order of the steps (`aligned`); whether an LSTM's memory follows them
    as a row (`memory`); whether there is a mask, which makes a step keep states and output
    (`masked`), or output 0 (`zeroed`).

    Weights of a direction d: kernel<d> [inputs, G], recurrent<d> [units, G], bias<d> [G], and of a
    GRU inner<d> [units]. Inputs: the steps, for each direction its initial states or none, and the
    mask [steps].
    """

    op = "recurrent"
    is_memory_heavy = True
    uses_wide_words = True
    _options: ClassVar[tuple[str, ...]] = (
        *("cell", "activation", "gate", "series", "backwards", "sequences", "aligned", "memory"),
        *("masked", "zeroed"),
    )

    # ---- model description

    def infer_shape(self, input_shapes: list[Shape], options: Options, weights: Shapes) -> Shape:
        L.check_options(options, *self._options)
        kind, activation, gate = (options[n] for n in ("cell", "activation", "gate"))
        L.check_value(kind in list(GATES), f"a cell of {', '.join(GATES)}", kind)
        for value, known in (
            (activation, cells.FUNCTIONS),
            (gate, cells.GATE_FUNCTIONS),
        ):
            L.check_value(value in list(known), f"activations of {', '.join(known)}", value)
        for name in ("series", "sequences", "aligned", "memory", "masked", "zeroed"):
            L.check_value(
                isinstance(options[name], bool), f"true or false for {name}", options[name]
            )
        L.check_value(
            kind == "lstm" or not options["memory"], "an LSTM where a memory is given", kind
        )
        directions = options["backwards"]
        fits = isinstance(directions, (list, tuple)) and 1 <= len(directions) <= 2
        L.check_value(
            fits and all(isinstance(b, bool) for b in directions),
            "one direction or two",
            directions,
        )
        L.check_value(
            len(input_shapes) > 0 and len(input_shapes[0]) == 2,
            "[steps, inputs]",
            list(map(list, input_shapes)),
        )
        steps, inputs = input_shapes[0]
        max_steps = cells.MAX_STEPS
        L.check_value(steps <= max_steps, f"{max_steps} steps at most", steps)
        units = self._check_weights(kind, len(directions), inputs, weights)
        masked, zeroed = options["masked"], options["zeroed"]
        L.check_value(
            not zeroed or (masked and options["sequences"]), "a mask of all steps", zeroed
        )
        L.check_value(
            not masked or input_shapes[-1] == (steps,), f"a mask [{steps}]", list(input_shapes[-1])
        )
        states = input_shapes[1 : len(input_shapes) - masked]
        counts = (0, len(directions) * STATES[kind])
        L.check_value(len(states) in counts, f"{counts[1]} initial states or none", len(states))
        L.check_value(
            all(s == (units,) for s in states), f"states [{units}]", list(map(list, states))
        )
        rows = (steps if options["sequences"] else 1) + options["memory"]
        row = len(directions) * units
        return (rows, row) if options["sequences"] or options["memory"] else (row,)

    def _check_weights(self, kind: str, count: int, inputs: int, weights: Shapes) -> int:
        """Check the weights; returns the number of units."""
        optional = [f"{n}{d}" for d in range(count) for n in ("bias", "inner")]
        L.check_weights(
            weights,
            *(f"{n}{d}" for d in range(count) for n in ("kernel", "recurrent")),
            optional=optional,
        )
        units = weights["recurrent0"][0] if weights["recurrent0"] else 0
        expected_shapes = {
            "kernel": (inputs, GATES[kind] * units),
            "recurrent": (units, GATES[kind] * units),
            "bias": (GATES[kind] * units,),
            "inner": (units,),
        }
        for d in range(count):
            for name, shape in expected_shapes.items():
                if f"{name}{d}" in weights:
                    weight_shape = weights[f"{name}{d}"]
                    L.check_value(
                        weight_shape == shape, f"{name}{d} {list(shape)}", list(weight_shape)
                    )
                    L.check_value(
                        f"{name}0" in weights, f"{name}s of all directions", sorted(weights)
                    )
                else:
                    L.check_value(
                        f"{name}0" not in weights, f"{name}s of all directions", sorted(weights)
                    )
        inner = "inner0" in weights
        L.check_value(
            not inner or (kind == "gru" and "bias0" in weights), "inner of a GRU with biases", kind
        )
        return units

    def use_series(self, x: L.LayerSpec) -> L.LayerSpec:
        return replace(x, options={**x.options, "series": True})

    def describe_conversion_risk(self, x: L.LayerSpec, input_shapes: list[Shape]) -> str:
        steps = input_shapes[0][0]
        if not x.options["series"] or steps <= MOST_SERIES_STEPS or x.options["cell"] == "simple":
            return ""
        return (
            f"Layer {x.name!r} takes {steps} steps with short series for its gates: a memory that "
            f"it holds may be off by {100 * (steps * 2.0**-13 + 2.0**-9):.1f} % at the end. "
            'Compare with activations="exact".'
        )

    def describe_layer(self, x: L.LayerSpec) -> str:
        kind = str(x.options["cell"]).partition("_")[0]
        both = "bidirectional " if len(x.options["backwards"]) > 1 else ""
        return f"{both}{kind}{', series' if x.options['series'] else ''}"

    # ---- plaintext

    def compute_plaintext(self, x: L.LayerSpec, values: list[Array], observe: L.Observer) -> Array:
        f, s = (_IN_THE_CLEAR[str(x.options[n])] for n in ("activation", "gate"))
        return self._evaluate_plaintext(x, values, observe, (f, s, s))

    def compute_approximation(
        self, x: L.LayerSpec, values: list[Array], observe: L.Observer
    ) -> Array:
        if not x.options["series"]:
            return self.compute_plaintext(x, values, observe)
        names = [str(x.options[n]) for n in ("activation", "gate")]
        f, s = (
            ACTIVATIONS[n].evaluate_plain if n in ACTIVATIONS else _IN_THE_CLEAR[n] for n in names
        )
        memory_gate = MEMORY_GATE.evaluate_plain if names[1] == "sigmoid" else s
        return self._evaluate_plaintext(x, values, observe, (f, s, memory_gate))

    def _evaluate_plaintext(
        self,
        x: L.LayerSpec,
        values: list[Array],
        observe: L.Observer,
        functions: PlaintextFunctions,
    ) -> Array:
        o, count = x.options, STATES[x.options["cell"]]
        outputs: list[Array] = []
        memories: list[Array] = []
        largest = [0.0]
        mask_values = values[-1] if o["masked"] else np.ones(values[0].shape[:2])
        for d, back in enumerate(o["backwards"]):
            steps, mask = (v[:, ::-1] if back else v for v in (values[0], mask_values))
            states = (
                values[1 + d * count : 1 + (d + 1) * count] if self._has_initial_states(x) else []
            )
            direction_outputs, memory = _run_recurrent_direction(
                x, d, steps, states, mask, largest, functions
            )
            outputs.append(
                direction_outputs[:, ::-1] if back and o["aligned"] else direction_outputs
            )
            memories.append(memory)
        observe(f"{x.name}:sum", np.array(largest))
        output = np.concatenate(outputs, -1)
        if not o["sequences"]:
            backs = zip(outputs, o["backwards"], strict=True)
            ends = [y[:, 0 if b and o["aligned"] else -1] for y, b in backs]
            output = np.concatenate(ends, -1)
        if not o["memory"]:
            return output
        rows = output if o["sequences"] else output[:, None]
        return np.concatenate([rows, np.concatenate(memories, -1)[:, None]], 1)

    # ---- fixed point: `bits` are those of sums before gates and of initial states and, for cells
    # without bounds, of all states; they are planned for at least 2^low units of the steps'
    # scale

    @staticmethod
    def _has_initial_states(x: L.LayerSpec) -> bool:
        """Return whether there are initial states."""
        return len(x.inputs) > 1 + bool(x.options["masked"])

    def _build_cell(self, x: L.LayerSpec) -> RecurrentCell:
        o = x.options
        return RecurrentCell(
            str(o["cell"]), str(o["activation"]), str(o["gate"]), bool(o["series"])
        )

    def _plan_rings(self, node: L.PlacedLayer) -> RecurrentFormat:
        n = node.numbers
        initial = self._has_initial_states(node.layer)
        cell, steps = self._build_cell(node.layer), node.input_shapes[0][0]
        return cells.derive_recurrent_format(cell, n.fraction, n.scale, n.bits, steps, initial)

    def plan_format(self, planner: L.LayerFormatPlanner, x: L.LayerSpec) -> L.FixedPointFormat:
        cell, steps = self._build_cell(x), planner.shapes[x.inputs[0]][0]
        min_bits, max_bits = cells.MIN_BITS[cell.series], cells.MAX_BITS[cell.series]
        f = min(max(planner.fraction, min_bits), max_bits)
        states = x.inputs[: len(x.inputs) - bool(x.options["masked"])]
        input_scale, input_bound = (
            planner.get_fractional_bits(x.inputs[0]),
            max(planner.bounds[i] for i in states),
        )
        start = input_bound if self._has_initial_states(x) else 0.0
        if cell.is_bounded:
            reach = cell.state_bounds(steps, start)[1]
            top = max(
                _largest_gate_sum(x, d, input_bound, reach)
                for d in range(len(x.options["backwards"]))
            )
        else:
            top = planner.bounds[f"{x.name}:sum"]
        bits = f + 1 + L.find_magnitude_exponent(max(top, start, 1.0), f)
        scale = max(self._choose_product_bits(x, input_scale, f), 2 * f)
        low = min(max(int(input_bound * 2.0**input_scale).bit_length() - 1, 1), 63)
        if bits <= L.MOST_COMPARED:
            # (the dropped bits of sums and their ring fit a word)
            room = cells.derive_recurrent_format(
                cell, f, 2 * f, bits, steps, self._has_initial_states(x)
            ).sum_ring
            scale = min(scale, f + 64 - room)
            candidate = L.FixedPointFormat(f, scale, bits, low)
            planned = cells.derive_recurrent_format(
                cell, f, scale, bits, steps, self._has_initial_states(x)
            )
            if planned.is_valid and scale - max(input_scale, f) >= L.FEWEST_WEIGHT_BITS:
                return candidate
        planner.report_unfit(x, f"has sums up to {top:g} before its gates")
        return L.FixedPointFormat(f, 2 * f, min(bits, L.MOST_COMPARED), low)

    def _choose_product_bits(self, x: L.LayerSpec, input_scale: int, f: int) -> int:
        """Choose the fractional bits of products: about SIGNIFICANT_BITS of the largest weights.

        With series two less: their effect on a sum is below the error of the series.
        """
        product_bits, significant = 0, L.SIGNIFICANT_BITS - (2 if x.options["series"] else 0)
        for name, w in x.weights.items():
            top = float(np.abs(w).max(initial=0.0))
            if top > 0 and name.startswith(("kernel", "recurrent")):
                exact = max(significant - math.floor(math.log2(top)), L.FEWEST_WEIGHT_BITS)
                product_bits = max(
                    product_bits, (input_scale if name.startswith("kernel") else f) + min(exact, 24)
                )
        return max(product_bits, max(input_scale, f) + significant)

    def check_format(self, node: L.PlacedLayer) -> None:
        n, planned = node.numbers, self._plan_rings(node)
        if (
            not planned.is_valid
            or n.scale < max(node.input_scales[0], n.fraction)
            or n.bits > L.MOST_COMPARED
        ):
            raise UsageError(
                f"has {n.fraction} fractional bits, {n.scale} of its products and sums of "
                f"{n.bits} bits, which do not fit.",
                code="invalid-fixed-point-format",
            )

    def weight_bits(self, node: L.PlacedLayer, name: str) -> int:
        scale = node.numbers.scale
        if name.startswith("kernel"):
            return scale - node.input_scales[0]
        return scale - node.numbers.fraction if name.startswith("recurrent") else scale

    def bound_output(self, node: L.PlacedLayer, input_limits: list[int]) -> int | None:
        planned = self._plan_rings(node)
        max_bits = max(planned.h, planned.c if node.layer.options["memory"] else 0)
        return 1 << (max_bits + (0 if planned.cell.is_bounded else 1))

    def bound_comparison_bits(self, node: L.PlacedLayer, input_limits: list[int]) -> int:
        n, of = node.numbers, node.input_scales[0]
        if not self._build_cell(node.layer).is_bounded:
            return n.bits  # values within the range are planned for
        # sums and initial states grow with the inputs
        pairs = list(zip(input_limits, node.input_scales, strict=True))
        pairs = pairs[: len(pairs) - bool(node.layer.options["masked"])]
        units = [v << (of - s) if of >= s else (v >> (s - of)) + 1 for v, s in pairs]
        return n.bits + max(max(units).bit_length() - n.low, 0)

    def can_check_range(self, node: L.PlacedLayer, input_limits: list[int] | None) -> bool:
        if input_limits is None:
            return True
        bits = self.bound_comparison_bits(node, input_limits)
        fits = self._plan_rings(
            replace(node, numbers=replace(node.numbers, bits=min(bits, 63)))
        ).is_valid
        return bits <= L.MOST_COMPARED and fits

    # ---- private inference

    def count_stages(self, node: L.PlacedLayer) -> int:
        # (a dealer may prepare ten iterations of a loop at a time)
        return max(1, node.input_shapes[0][0] // 10)

    def forward(self, p: L.ForwardContext, node: L.PlacedLayer, *values: Shared) -> Shared:
        x, o, n = node.layer, node.layer.options, node.numbers
        directions = o["backwards"]
        mask, states = (values[-1], values[1:-1]) if o["masked"] else (None, values[1:])
        weights = [
            RecurrentWeights(
                p.get_weight(x, f"kernel{d}"),
                p.get_weight(x, f"recurrent{d}"),
                p.get_optional_weight(x, f"bias{d}"),
                p.get_optional_weight(x, f"inner{d}"),
            )
            for d in range(len(directions))
        ]
        result = p.ops.run_protocol(
            recurrent.run_recurrent,
            self._build_cell(x),
            values[0],
            weights,
            self._plan_rings(node),
            backwards=list(directions),
            states=[L.convert_scale(p.ops, v, n.fraction) for v in states],
            sequences=bool(o["sequences"]),
            mask=None if mask is None else L.convert_scale(p.ops, mask, 0),
            zero_masked=bool(o["zeroed"]),
            exchanges=p.ops.setting.choose_exchanges,
            monitor=p.ops.range_check,
        )
        batch, last = p.ops.get_shape(values[0])[0], node.shape[-1]
        rows = [p.ops.reshape_value(self._align_outputs(result.output, o), (batch, -1, last))]
        if result.memory is not None and o["memory"]:
            rows.append(p.ops.reshape_value(result.memory, (batch, 1, last)))
        output = rows[0] if len(rows) == 1 else p.ops.concat(rows, 1)
        return p.ops.reshape_value(output, p.add_batch_axis(node.shape, values[0]))

    @staticmethod
    def _align_outputs(y: Shared, o: Options) -> Shared:
        """Transpose directions and steps: [batch, steps, directions, units], in step order."""
        if not o["sequences"]:
            return y

        def align_recurrent_steps(a: Any) -> Any:
            outputs = [
                tensor_ops.reverse(a[:, d], [1]) if back and o["aligned"] else a[:, d]
                for d, back in enumerate(o["backwards"])
            ]
            return tensor_ops.stack(outputs, 2)

        return y.map(align_recurrent_steps)


def _largest_gate_sum(x: L.LayerSpec, d: int, inputs: float, states: float) -> float:
    """Bound a direction's sums before gates, from the magnitudes of its weights."""

    def compute_weight_magnitudes(name: str) -> Array:
        weight = x.weights.get(f"{name}{d}")
        return np.zeros(1) if weight is None else np.abs(np.asarray(weight, np.float64))

    total = (
        inputs * compute_weight_magnitudes("kernel").sum(0)
        + states * compute_weight_magnitudes("recurrent").sum(0)
        + compute_weight_magnitudes("bias")
    )
    # (r (h U + inner), where r is at most slightly above 1)
    return 1.01 * (float(total.max()) + float(compute_weight_magnitudes("inner").max()))


def _run_recurrent_direction(
    x: L.LayerSpec,
    d: int,
    steps: Array,
    states: list[Array],
    mask: Array,
    largest: list[float],
    functions: PlaintextFunctions,
) -> tuple[Array, Array]:
    """Compute (outputs [batch, steps, units], last memory) of a direction, in float64."""
    kind = str(x.options["cell"])
    f, s, memory_gate = functions
    w = {n: np.asarray(v, np.float64) for k, v in x.weights.items() if (n := k[:-1]) + str(d) == k}
    kernel, u = w["kernel"], w["recurrent"]
    units = u.shape[0]
    zero = np.zeros((len(steps), units))
    h, c = [*states, zero, zero][:2] if states else [zero, zero]
    xs: Array = steps @ kernel + w.get("bias", 0.0)
    outputs: list[Array] = []

    # (Typed: a type checker takes ten seconds to infer types through the loop.)
    def advance_cell(step_input: Array, h: Array, c: Array) -> tuple[Array, Array, Array]:
        """Return the sums before gates and the next h and c."""
        if kind == "simple":
            sums = step_input + h @ u
            return sums, f(sums), c
        if kind == "lstm":
            sums = step_input + h @ u
            i, forget, g, o = np.split(sums, 4, -1)
            c = memory_gate(forget) * c + s(i) * f(g)
            return sums, s(o) * f(c), c
        gate_columns = 2 * units
        gates = step_input[:, :gate_columns] + h @ u[:, :gate_columns]
        z, r = memory_gate(gates[:, :units]), s(gates[:, units:])
        inner = h @ u[:, gate_columns:] + w.get("inner", 0.0)
        inner = r * inner if kind == "gru" else (r * h) @ u[:, gate_columns:]
        sums = np.concatenate([gates, step_input[:, gate_columns:] + inner], -1)
        return sums, z * h + (1 - z) * f(sums[:, gate_columns:]), c

    for t in range(steps.shape[1]):
        sums, next_h, next_c = advance_cell(xs[:, t], h, c)
        largest.append(max(float(np.abs(v).max(initial=0.0)) for v in (sums, next_h, next_c)))
        is_visible = mask[:, t, None] > 0.5
        h, c = np.where(is_visible, next_h, h), np.where(is_visible, next_c, c)
        outputs.append(h * is_visible if x.options["zeroed"] else h)
    return np.stack(outputs, 1), c

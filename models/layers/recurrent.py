"""LSTM, GRU and simple recurrent layers, of one direction or both (protocols/nn/recurrent.py)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, ClassVar, TypeAlias

import numpy as np

from tfe_bench.errors import UsageError
from tfe_bench.models.kinds.checks import held, need, only
from tfe_bench.models.kinds.kind import Kind, Watch
from tfe_bench.models.kinds.layer import Array, Layer, Node, Numbers, Options, Shape, Shapes
from tfe_bench.models.kinds.passes import Pass, brought
from tfe_bench.models.kinds.planning import (
    FEWEST_WEIGHT_BITS,
    MOST_COMPARED,
    SIGNIFICANT_BITS,
    Planner,
    magnitude,
)
from tfe_bench.protocols.nn import cells, recurrent
from tfe_bench.protocols.nn.cells import GATES, STATES, Cell, Rings
from tfe_bench.protocols.nn.recurrent import Weights
from tfe_bench.protocols.nn.series import BENDS, HELD
from tfe_bench.protocols.session import local
from tfe_bench.protocols.session.sharing import Shared

# Steps beyond which series may show: a memory that is held loses up to 2^-13 of itself in each.
MOST_SERIES_STEPS = 100


def _sigmoid(v: Array) -> Array:
    return np.asarray(np.exp(-np.logaddexp(0, -v)))


# In the clear: of candidates and states, of gates, and of the gate that a memory is held by.
Functions: TypeAlias = "tuple[Callable[[Array], Array], ...]"
_IN_THE_CLEAR: Mapping[str, Any] = {
    "tanh": np.tanh,
    "sigmoid": _sigmoid,
    "relu": lambda v: np.maximum(v, 0),
    "linear": lambda v: v,
    "ramp": lambda v: np.clip(v, 0, 1),
}


class Recurrent(Kind):
    """Steps of a cell: [steps, inputs] becomes [rows, directions * units].

    Options: the cell, its activations, whether there are series; which directions begin with the
    last step; whether all outputs are given or the last ones (`sequences`), those of a direction
    that begins at the end in the order of the steps (`aligned`); whether an LSTM's memory follows
    them as a row (`memory`); whether there is a mask, by which a step leaves states and output as
    they were (`masked`), or has an output of 0 (`zeroed`).

    Weights of a direction d: kernel<d> [inputs, G], recurrent<d> [units, G], bias<d> [G], and of a
    GRU inner<d> [units].  Inputs: the steps, for each direction its initial states or none, and
    the mask [steps].
    """

    op = "recurrent"
    heavy = True
    wide = True
    _options: ClassVar[tuple[str, ...]] = (
        *("cell", "activation", "gate", "series", "backwards", "sequences", "aligned", "memory"),
        *("masked", "zeroed"),
    )

    # ---- as data

    def shape(self, given: list[Shape], options: Options, weights: Shapes) -> Shape:
        only(options, *self._options)
        kind, activation, gate = (options[n] for n in ("cell", "activation", "gate"))
        need(kind in list(GATES), f"a cell of {', '.join(GATES)}", kind)
        for value, known in (
            (activation, cells.FUNCTIONS),
            (gate, cells.GATE_FUNCTIONS),
        ):
            need(value in list(known), f"activations of {', '.join(known)}", value)
        for name in ("series", "sequences", "aligned", "memory", "masked", "zeroed"):
            need(isinstance(options[name], bool), f"true or false for {name}", options[name])
        need(kind == "lstm" or not options["memory"], "an LSTM where a memory is given", kind)
        ways = options["backwards"]
        fits = isinstance(ways, (list, tuple)) and 1 <= len(ways) <= 2
        need(fits and all(isinstance(b, bool) for b in ways), "one direction or two", ways)
        need(len(given) > 0 and len(given[0]) == 2, "[steps, inputs]", list(map(list, given)))
        steps, inputs = given[0]
        most = cells.MOST_STEPS
        need(steps <= most, f"{most} steps at most", steps)
        units = self._check_weights(kind, len(ways), inputs, weights)
        masked, zeroed = options["masked"], options["zeroed"]
        need(not zeroed or (masked and options["sequences"]), "a mask of all steps", zeroed)
        need(not masked or given[-1] == (steps,), f"a mask [{steps}]", list(given[-1]))
        states = given[1 : len(given) - masked]
        counts = (0, len(ways) * STATES[kind])
        need(len(states) in counts, f"{counts[1]} initial states or none", len(states))
        need(all(s == (units,) for s in states), f"states [{units}]", list(map(list, states)))
        rows = (steps if options["sequences"] else 1) + options["memory"]
        row = len(ways) * units
        return (rows, row) if options["sequences"] or options["memory"] else (row,)

    def _check_weights(self, kind: str, count: int, inputs: int, weights: Shapes) -> int:
        """The number of units."""
        optional = [f"{n}{d}" for d in range(count) for n in ("bias", "inner")]
        held(
            weights,
            *(f"{n}{d}" for d in range(count) for n in ("kernel", "recurrent")),
            optional=optional,
        )
        units = weights["recurrent0"][0] if weights["recurrent0"] else 0
        wanted = {
            "kernel": (inputs, GATES[kind] * units),
            "recurrent": (units, GATES[kind] * units),
            "bias": (GATES[kind] * units,),
            "inner": (units,),
        }
        for d in range(count):
            for name, shape in wanted.items():
                if f"{name}{d}" in weights:
                    own = weights[f"{name}{d}"]
                    need(own == shape, f"{name}{d} {list(shape)}", list(own))
                    need(f"{name}0" in weights, f"{name}s of all directions", sorted(weights))
                else:
                    need(f"{name}0" not in weights, f"{name}s of all directions", sorted(weights))
        inner = "inner0" in weights
        need(
            not inner or (kind == "gru" and "bias0" in weights), "inner of a GRU with biases", kind
        )
        return units

    def in_series(self, x: Layer) -> Layer:
        return replace(x, options={**x.options, "series": True})

    def doubt(self, x: Layer, given: list[Shape]) -> str:
        steps = given[0][0]
        if not x.options["series"] or steps <= MOST_SERIES_STEPS or x.options["cell"] == "simple":
            return ""
        return (
            f"Layer {x.name!r} takes {steps} steps with short series for its gates: a memory that "
            f"it holds may be off by {100 * (steps * 2.0**-13 + 2.0**-9):.1f} % at the end. "
            'Compare with activations="exact".'
        )

    def label(self, x: Layer) -> str:
        kind = str(x.options["cell"]).partition("_")[0]
        both = "bidirectional " if len(x.options["backwards"]) > 1 else ""
        return f"{both}{kind}{', series' if x.options['series'] else ''}"

    # ---- in the clear

    def plain(self, x: Layer, values: list[Array], seen: Watch) -> Array:
        f, s = (_IN_THE_CLEAR[str(x.options[n])] for n in ("activation", "gate"))
        return self._evaluated(x, values, seen, (f, s, s))

    def approximated(self, x: Layer, values: list[Array], seen: Watch) -> Array:
        if not x.options["series"]:
            return self.plain(x, values, seen)
        names = [str(x.options[n]) for n in ("activation", "gate")]
        f, s = (BENDS[n].at if n in BENDS else _IN_THE_CLEAR[n] for n in names)
        kept = HELD.at if names[1] == "sigmoid" else s
        return self._evaluated(x, values, seen, (f, s, kept))

    def _evaluated(self, x: Layer, values: list[Array], seen: Watch, functions: Functions) -> Array:
        o, count = x.options, STATES[x.options["cell"]]
        outputs, memories, largest = [], [], [0.0]
        shown = values[-1] if o["masked"] else np.ones(values[0].shape[:2])
        for d, back in enumerate(o["backwards"]):
            steps, mask = (v[:, ::-1] if back else v for v in (values[0], shown))
            states = values[1 + d * count : 1 + (d + 1) * count] if self._begun(x) else []
            found, memory = _taken(x, d, steps, states, mask, largest, functions)
            outputs.append(found[:, ::-1] if back and o["aligned"] else found)
            memories.append(memory)
        seen(f"{x.name}:sum", np.array(largest))
        whole = np.concatenate(outputs, -1)
        if not o["sequences"]:
            backs = zip(outputs, o["backwards"], strict=True)
            ends = [y[:, 0 if b and o["aligned"] else -1] for y, b in backs]
            whole = np.concatenate(ends, -1)
        if not o["memory"]:
            return whole
        rows = whole if o["sequences"] else whole[:, None]
        return np.concatenate([rows, np.concatenate(memories, -1)[:, None]], 1)

    # ---- in fixed point: `bits` are those of sums before gates and of initial states, and of cells
    # without bounds of all states; what these are planned for is no less than 2^low units of the
    # steps' scale

    @staticmethod
    def _begun(x: Layer) -> bool:
        """Whether there are initial states."""
        return len(x.inputs) > 1 + bool(x.options["masked"])

    def _cell(self, x: Layer) -> Cell:
        o = x.options
        return Cell(str(o["cell"]), str(o["activation"]), str(o["gate"]), bool(o["series"]))

    def _rings(self, node: Node) -> Rings:
        n = node.numbers
        initial = self._begun(node.layer)
        cell, steps = self._cell(node.layer), node.given[0][0]
        return cells.rings(cell, n.fraction, n.scale, n.bits, steps, initial)

    def numbers(self, planner: Planner, x: Layer) -> Numbers:
        cell, steps = self._cell(x), planner.shapes[x.inputs[0]][0]
        least, most = cells.FEWEST_BITS[cell.series], cells.MOST_BITS[cell.series]
        f = min(max(planner.fraction, least), most)
        states = x.inputs[: len(x.inputs) - bool(x.options["masked"])]
        of, given = planner.of(x.inputs[0]), max(planner.bounds[i] for i in states)
        start = given if self._begun(x) else 0.0
        if cell.bounded:
            reach = cell.reach(steps, start)[1]
            top = max(_largest_sum(x, d, given, reach) for d in range(len(x.options["backwards"])))
        else:
            top = planner.bounds[f"{x.name}:sum"]
        bits = f + 1 + magnitude(max(top, start, 1.0), f)
        scale = max(self._wanted(x, of, f), 2 * f)
        low = min(max(int(given * 2.0**of).bit_length() - 1, 1), 63)
        if bits <= MOST_COMPARED:
            # (what sums drop, and their ring, fit a word)
            room = cells.rings(cell, f, 2 * f, bits, steps, self._begun(x)).sums
            scale = min(scale, f + 64 - room)
            found = Numbers(f, scale, bits, low)
            planned = cells.rings(cell, f, scale, bits, steps, self._begun(x))
            if planned.fits and scale - max(of, f) >= FEWEST_WEIGHT_BITS:
                return found
        planner.lost(x, f"has sums up to {top:g} before its gates")
        return Numbers(f, 2 * f, min(bits, MOST_COMPARED), low)

    def _wanted(self, x: Layer, of: int, f: int) -> int:
        """Fractional bits of products: about SIGNIFICANT_BITS of the largest weights.

        With series two less: what that does to a sum is below what they do.
        """
        found, significant = 0, SIGNIFICANT_BITS - (2 if x.options["series"] else 0)
        for name, w in x.weights.items():
            top = float(np.abs(w).max(initial=0.0))
            if top > 0 and name.startswith(("kernel", "recurrent")):
                exact = max(significant - math.floor(math.log2(top)), FEWEST_WEIGHT_BITS)
                found = max(found, (of if name.startswith("kernel") else f) + min(exact, 24))
        return max(found, max(of, f) + significant)

    def check(self, node: Node) -> None:
        n, planned = node.numbers, self._rings(node)
        if not planned.fits or n.scale < max(node.scales[0], n.fraction) or n.bits > MOST_COMPARED:
            raise UsageError(
                f"has {n.fraction} fractional bits, {n.scale} of its products and sums of "
                f"{n.bits} bits, which do not fit."
            )

    def weight_bits(self, node: Node, name: str) -> int:
        scale = node.numbers.scale
        if name.startswith("kernel"):
            return scale - node.scales[0]
        return scale - node.numbers.fraction if name.startswith("recurrent") else scale

    def limit(self, node: Node, given: list[int]) -> int | None:
        planned = self._rings(node)
        most = max(planned.h, planned.c if node.layer.options["memory"] else 0)
        return 1 << (most + (0 if planned.cell.bounded else 1))

    def compared(self, node: Node, given: list[int]) -> int:
        n, of = node.numbers, node.scales[0]
        if not self._cell(node.layer).bounded:
            return n.bits  # what is in its range is planned for
        # sums, and what there is before the first step, grow as what comes
        pairs = list(zip(given, node.scales, strict=True))
        pairs = pairs[: len(pairs) - bool(node.layer.options["masked"])]
        units = [v << (of - s) if of >= s else (v >> (s - of)) + 1 for v, s in pairs]
        return n.bits + max(max(units).bit_length() - n.low, 0)

    def watchable(self, node: Node, given: list[int] | None) -> bool:
        if given is None:
            return True
        bits = self.compared(node, given)
        fits = self._rings(replace(node, numbers=replace(node.numbers, bits=min(bits, 63)))).fits
        return bits <= MOST_COMPARED and fits

    # ---- in private

    def turns(self, node: Node) -> int:
        # (of a loop ten turns may be under way at a dealer)
        return max(1, node.given[0][0] // 10)

    def forward(self, p: Pass, node: Node, *values: Shared) -> Shared:
        x, o, n = node.layer, node.layer.options, node.numbers
        ways = o["backwards"]
        mask, states = (values[-1], values[1:-1]) if o["masked"] else (None, values[1:])
        weights = [
            Weights(
                p.weight(x, f"kernel{d}"),
                p.weight(x, f"recurrent{d}"),
                p.weight_or_none(x, f"bias{d}"),
                p.weight_or_none(x, f"inner{d}"),
            )
            for d in range(len(ways))
        ]
        found = p.ops.call(
            recurrent.recurrent,
            self._cell(x),
            values[0],
            weights,
            self._rings(node),
            backwards=list(ways),
            states=[brought(p.ops, v, n.fraction) for v in states],
            sequences=bool(o["sequences"]),
            mask=None if mask is None else brought(p.ops, mask, 0),
            zeroed=bool(o["zeroed"]),
            exchanges=p.ops.setting.exchanges,
            watch=p.ops.watch,
        )
        batch, last = p.ops.shape(values[0])[0], node.shape[-1]
        rows = [p.ops.reshaped(self._aligned(found.output, o), (batch, -1, last))]
        if found.memory is not None and o["memory"]:
            rows.append(p.ops.reshaped(found.memory, (batch, 1, last)))
        whole = rows[0] if len(rows) == 1 else p.ops.concat(rows, 1)
        return p.ops.reshaped(whole, p.batched(node.shape, values[0]))

    @staticmethod
    def _aligned(y: Shared, o: Options) -> Shared:
        """[batch, steps, directions, units] of [batch, directions, steps, units], in order."""
        if not o["sequences"]:
            return y

        def ordered(a: Any) -> Any:
            each = [
                local.reverse(a[:, d], [1]) if back and o["aligned"] else a[:, d]
                for d, back in enumerate(o["backwards"])
            ]
            return local.stack(each, 2)

        return y.map(ordered)


def _largest_sum(x: Layer, d: int, inputs: float, states: float) -> float:
    """A bound on a direction's sums before gates, from its weights' magnitudes."""

    def of(name: str) -> Array:
        found = x.weights.get(f"{name}{d}")
        return np.zeros(1) if found is None else np.abs(np.asarray(found, np.float64))

    total = inputs * of("kernel").sum(0) + states * of("recurrent").sum(0) + of("bias")
    # (r (h U + inner), where r is 1 and a little more at most)
    return 1.01 * (float(total.max()) + float(of("inner").max()))


def _taken(
    x: Layer,
    d: int,
    steps: Array,
    states: list[Array],
    mask: Array,
    largest: list[float],
    functions: Functions,
) -> tuple[Array, Array]:
    """(outputs [batch, steps, units], last memory) of a direction, in float64."""
    kind = str(x.options["cell"])
    f, s, kept = functions
    w = {n: np.asarray(v, np.float64) for k, v in x.weights.items() if (n := k[:-1]) + str(d) == k}
    kernel, u = w["kernel"], w["recurrent"]
    units = u.shape[0]
    zero = np.zeros((len(steps), units))
    h, c = [*states, zero, zero][:2] if states else [zero, zero]
    xs = steps @ kernel + w.get("bias", 0.0)
    outputs = []
    for t in range(steps.shape[1]):
        before = h, c
        if kind == "simple":
            sums = xs[:, t] + h @ u
            h = f(sums)
        elif kind == "lstm":
            sums = xs[:, t] + h @ u
            i, forget, g, o = np.split(sums, 4, -1)
            c = kept(forget) * c + s(i) * f(g)
            h = s(o) * f(c)
        else:
            given, two = xs[:, t], 2 * units
            gates = given[:, :two] + h @ u[:, :two]
            z, r = kept(gates[:, :units]), s(gates[:, units:])
            inner = h @ u[:, two:] + w.get("inner", 0.0)
            inner = r * inner if kind == "gru" else (r * h) @ u[:, two:]
            sums = np.concatenate([gates, given[:, two:] + inner], -1)
            h = z * h + (1 - z) * f(sums[:, two:])
        largest.append(max(float(np.abs(v).max(initial=0.0)) for v in (sums, h, c)))
        shown = mask[:, t, None] > 0.5
        h, c = (np.where(shown, v, w) for v, w in zip((h, c), before, strict=True))
        outputs.append(h * shown if x.options["zeroed"] else h)
    return np.stack(outputs, 1), c

"""LSTM, GRU, SimpleRNN, RNN of their cells, and Bidirectional: layers `recurrent`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from tfe_bench.models.kinds import masks
from tfe_bench.models.kinds.reading import Call, Given, Reader, Unfit, array_of
from tfe_bench.models.kinds.turning import reshaped
from tfe_bench.models.layers.identity import Untrained
from tfe_bench.protocols.nn.cells import FUNCTIONS, GATES, MOST_STEPS, STATES

# By a cell's class.  (What is asked of a layer is asked of its cell.)
_CELLS: Mapping[str, str] = {"LSTMCell": "lstm", "GRUCell": "gru", "SimpleRNNCell": "simple"}
_SUPPORTED = ("LSTM", "GRU", "SimpleRNN", "RNN")
# hard_sigmoid(v) = min(max(v / 6 + 1/2, 0), 1): the rest of it goes into weights.
_RAMP = {"hard_sigmoid": "ramp", "sigmoid": "sigmoid"}


@dataclass(frozen=True, eq=False)
class _Way:
    """A direction.

    Attributes:
        kind, activation, gate: as of protocols.nn.cells.Cell.
        weights: Keras' variables, or arrays, by their names without the direction's number.
    """

    kind: str
    activation: str
    gate: str
    weights: Mapping[str, Any]
    units: int
    backwards: bool


class _Layers(Untrained):
    """What layers of cells have in common."""

    masks = True
    arguments: ClassVar[tuple[str, ...]] = ("sequences", "initial_state", "mask")

    def emitted(
        self,
        r: Reader,
        call: Call,
        name: str,
        given: str,
        ways: Sequence[_Way],
        sequences: bool,
        memory: bool = False,
        states: Sequence[str] = (),
        mask: str = "",
        zeroed: bool = False,
    ) -> str:
        """Writes one layer of one direction or two."""
        steps = call.shapes[0][0]
        if steps > MOST_STEPS:
            raise Unfit(f"of {steps} steps; {MOST_STEPS} are supported")
        first = ways[0]
        weights = {f"{n}{d}": w for d, way in enumerate(ways) for n, w in way.weights.items()}
        return r.emit(
            name,
            "recurrent",
            [given, *states, *([mask] if mask else [])],
            weights,
            cell=first.kind,
            activation=first.activation,
            gate=first.gate,
            series=False,
            backwards=[way.backwards for way in ways],
            sequences=sequences,
            aligned=len(ways) > 1,
            memory=memory,
            masked=bool(mask),
            zeroed=bool(mask) and zeroed,
        )

    @staticmethod
    def mask(r: Reader, call: Call, every: bool, zeroed: bool) -> str:
        """The name of the mask of the steps, "" for none, which goes with what is given of all.

        Args:
            every: whether all steps are given.
            zeroed: whether those that do not count are given as 0.
        """
        given, steps = call.arguments.get("mask"), call.shapes[0][0]
        if given is None:
            sequences = call.arguments.get("sequences")
            name = sequences.mask if isinstance(sequences, Given) else ""
        elif not isinstance(given, Given) or given.shape != (steps,):
            raise Unfit(f"called with a mask that is no value [{steps}] of the model")
        else:
            name = masks.truth(r, given.name)
        if name and call.arguments.get("initial_state") is not None:
            raise Unfit("of an initial_state and a mask, with which outputs begin with 0")
        if name and zeroed and (not every or call.layer.return_state):
            raise Unfit("zero_output_for_mask without all steps, or with their states")
        r.mask = name if every else ""
        return name

    @staticmethod
    def states(call: Call, count: int, units: int) -> list[str]:
        """Names of the initial states; none if they are zeros."""
        given = call.arguments.get("initial_state")
        several = given if isinstance(given, (list, tuple)) else [] if given is None else [given]
        if not several:
            return []
        fits = len(several) == count and all(
            isinstance(s, Given) and s.shape == (units,) for s in several
        )
        if not fits:
            raise Unfit(f"initial_state; {count} values [{units}] of the model are supported")
        return [s.name for s in several]

    @staticmethod
    def sequences(call: Call) -> str:
        """The name of the steps."""
        given = call.arguments.get("sequences")
        return given.name if isinstance(given, Given) else call.inputs[0]


def _checked(layer: Any) -> None:
    """Refuses what no layer of cells may have here.

    Raises:
        Unfit: it has.
    """
    if getattr(layer, "stateful", False):
        raise Unfit("stateful=True; each request begins anew, give states as initial_state")


def _way(r: Reader, name: str, cell: Any, backwards: bool) -> _Way:
    """A cell, read.

    Raises:
        Unfit: it is of another class, or has other activations.
    """
    known = {getattr(r.keras.layers, n): kind for n, kind in _CELLS.items()}
    kind = known.get(type(cell))
    if kind is None:
        raise Unfit(f"of a {type(cell).__name__}; {', '.join(_CELLS)} are supported")
    if kind == "gru" and not cell.reset_after:
        kind = "gru_before"
    activation = _function(r, cell.activation, FUNCTIONS, "activation")
    given = getattr(cell, "recurrent_activation", r.keras.activations.sigmoid)
    gate = _RAMP[_function(r, given, tuple(_RAMP), "recurrent_activation")]
    # (a variable as it is, that layers which are called twice store it once)
    kernel: Any = cell.kernel
    recurrent: Any = cell.recurrent_kernel
    units, gates = int(recurrent.shape[0]), GATES[kind]
    bias, inner = np.zeros(gates * units), None
    if cell.use_bias:
        bias = array_of(name, "bias", cell.bias).astype(np.float64)
        if bias.ndim == 2:  # of x W, and of h U
            behind = bias[1, 2 * units :]
            bias = np.concatenate([bias.sum(0)[: 2 * units], bias[0, 2 * units :]])
            inner = behind if behind.any() else None
    if gate == "ramp" and kind != "simple":
        places = {"lstm": (0, 1, 3)}.get(kind, (0, 1))
        own = np.isin(np.arange(gates * units) // units, places)
        arrays = [array_of(name, n, w) for n, w in (("kernel", kernel), ("recurrent", recurrent))]
        kernel, recurrent = (np.where(own, w / np.float64(6), w) for w in arrays)
        bias = np.where(own, bias / 6 + 0.5, bias)
    weights = {"kernel": kernel, "recurrent": recurrent, "bias": bias}
    if inner is not None:
        weights["inner"] = inner
    return _Way(kind, activation, gate, weights, units, backwards)


def _function(r: Reader, function: Any, known: Sequence[str], what: str) -> str:
    text, _ = r.functions.get(function, (getattr(function, "__name__", str(function)), None))
    if text not in known:
        raise Unfit(f"{what}={text!r}; {', '.join(known)} are supported")
    return str(text)


class Rnn(_Layers):
    """A layer of cells, step by step.

    Rounds and bytes: of each step, those of protocols/nn/recurrent.py.
    """

    op = "rnn"
    keras = _SUPPORTED

    def composed(self, r: Reader, call: Call) -> str:
        layer, name = call.layer, call.name
        _checked(layer)
        if isinstance(layer.cell, r.keras.layers.StackedRNNCells):
            return self._stacked(r, call)
        way = _way(r, name, layer.cell, bool(layer.go_backwards))
        states = self.states(call, STATES[way.kind], way.units)
        every, zeroed = bool(layer.return_sequences), bool(layer.zero_output_for_mask)
        mask = self.mask(r, call, every, zeroed)
        return _told(self, r, call, [way], states, every, mask=mask, zeroed=zeroed)

    def _stacked(self, r: Reader, call: Call) -> str:
        """Cells on top of each other: layers of which each gives all steps to the next."""
        layer, given = call.layer, self.sequences(call)
        if layer.return_state or call.arguments.get("initial_state") is not None:
            raise Unfit("states of several cells; write them as layers behind each other")
        if type(layer.cell) is not r.keras.layers.StackedRNNCells:
            raise Unfit(f"of a {type(layer.cell).__name__}; StackedRNNCells are supported")
        every, zeroed = bool(layer.return_sequences), bool(layer.zero_output_for_mask)
        mask = self.mask(r, call, every, zeroed)
        if mask and layer.go_backwards and len(layer.cell.cells) > 1:
            raise Unfit("of several cells and a mask, beginning with the last step")
        cells = list(layer.cell.cells)
        for i, cell in enumerate(cells):
            last = i == len(cells) - 1
            own = call.name if last else r.unique(f"{call.name}/cell{i}")
            # (in the order in which they are taken)
            way = _way(r, own, cell, bool(layer.go_backwards) and i == 0)
            zero = zeroed and last
            given = self.emitted(
                r, call, own, given, [way], every or not last, mask=mask, zeroed=zero
            )
        return given


class Bidirectional(_Layers):
    """A layer of cells and another one that begins with the last step, side by side."""

    op = "bidirectional"
    keras = ("Bidirectional",)

    def composed(self, r: Reader, call: Call) -> str:
        layer, name = call.layer, call.name
        known = {getattr(r.keras.layers, n) for n in _SUPPORTED}
        ways, own_layers = [], (layer.forward_layer, layer.backward_layer)
        for own in own_layers:
            if type(own) not in known:
                raise Unfit(f"around a {type(own).__name__}; {', '.join(_SUPPORTED)} are supported")
            _checked(own)
            ways.append(_way(r, name, own.cell, bool(own.go_backwards)))
        if ways[0].backwards or not ways[1].backwards:
            raise Unfit("whose backward_layer does not begin with the last step")
        kinds = {(w.kind, w.activation, w.gate, w.units) for w in ways}
        if len(kinds) > 1:
            raise Unfit("of two unlike layers; write them as layers beside each other")
        if any("inner" in w.weights for w in ways):
            ways = [replace(w, weights={"inner": np.zeros(w.units), **w.weights}) for w in ways]
        count = STATES[ways[0].kind]
        states = self.states(call, 2 * count, ways[0].units)
        every = bool(layer.return_sequences)
        zeroed = [bool(own.zero_output_for_mask) for own in own_layers]
        mask = self.mask(r, call, every, any(zeroed))
        if mask and len(set(zeroed)) > 1:
            raise Unfit("of two layers of which one has zero_output_for_mask")
        merge = layer.merge_mode or "none"
        return _told(self, r, call, ways, states, every, merge, mask, zeroed[0])


def _told(
    kind: _Layers,
    r: Reader,
    call: Call,
    ways: Sequence[_Way],
    states: list[str],
    every: bool,
    merge: str = "concat",
    mask: str = "",
    zeroed: bool = False,
) -> str:
    """Writes a layer, what its directions become, and the states that it gives.

    Args:
        every: whether it gives all steps.
        merge: what becomes of two directions' outputs, as Keras names it.
    """
    name, units, count, steps = call.name, ways[0].units, len(ways), call.shapes[0][0]
    returned = bool(call.layer.return_state)
    memory = returned and ways[0].kind == "lstm"
    outputs = steps if every else 1
    rows = outputs + memory
    whole = not returned and (count == 1 or merge == "concat")
    own = name if whole else r.unique(f"{name}/steps")
    given = kind.sequences(call)
    found = kind.emitted(r, call, own, given, ways, every, memory, states, mask, zeroed)

    def part(label: str, at: tuple[int, int], of: tuple[int, int], all_rows: bool = False) -> str:
        """Some rows of some directions; one row without its axis, unless it is of all."""
        sides = [[at[0], rows - at[1]], [of[0] * units, (count - of[1]) * units]]
        ranked = every or memory
        cut = r.emit(
            r.unique(f"{name}/{label}"), "crop", [found], None, sides=sides if ranked else sides[1:]
        )
        flat = ranked and not all_rows
        return reshaped(r, cut, f"{cut}/row", ((of[1] - of[0]) * units,)) if flat else cut

    others: list[str] = []
    for d, way in enumerate(ways if returned else ()):
        # (two directions are in the order of the steps)
        last = 0 if not every or (way.backwards and count > 1) else steps - 1
        others.append(part(f"state{d}", (last, last + 1), (d, d + 1)))
        if memory:
            others.append(part(f"memory{d}", (rows - 1, rows), (d, d + 1)))
    # the output comes last: what a model is cut behind
    first = found
    if not whole and merge == "concat":
        first = part("outputs", (0, outputs), (0, count), every)
    elif not whole:
        both = [part(f"direction{d}", (0, outputs), (d, d + 1), every) for d in (1, 0)]
        first = _merged(r, call, both[::-1], merge)
    call.others.extend(others)
    return first


def _merged(r: Reader, call: Call, both: list[str], merge: str) -> str:
    """The output of two directions; or of the first, and the other one among what else there is."""
    if merge == "none":
        call.others.append(both[1])
        return both[0]
    if merge == "ave":
        total = r.emit(r.unique(f"{call.name}/sum"), "add", both)
        return r.emit(call.name, "rescale", [total], None, scale=0.5, offset=0.0)
    return r.emit(call.name, {"sum": "add", "mul": "multiply"}[merge], both)

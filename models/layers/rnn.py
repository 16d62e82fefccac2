"""LSTM, GRU, SimpleRNN, RNN of their cells, and Bidirectional, converted to layers `recurrent`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from tfe_bench.models.layers import base as L
from tfe_bench.models.layers.identity import InferenceOnlyLayer
from tfe_bench.protocols.nn.cells import FUNCTIONS, GATES, MAX_STEPS, STATES

# By a cell's class. (A layer's properties are those of its cell.)
_CELLS: Mapping[str, str] = {"LSTMCell": "lstm", "GRUCell": "gru", "SimpleRNNCell": "simple"}
_SUPPORTED = ("LSTM", "GRU", "SimpleRNN", "RNN")
# hard_sigmoid(v) = min(max(v / 6 + 1/2, 0), 1): factor and offset are folded into weights.
_RAMP = {"hard_sigmoid": "ramp", "sigmoid": "sigmoid"}


@dataclass(frozen=True, eq=False)
class _RecurrentDirection:
    """One direction of a recurrent layer.

    Attributes:
        cell, activation, gate: as in protocols.nn.cells.Cell.
        weights: Keras variables, or arrays, by name without the direction's number.
    """

    cell: str
    activation: str
    gate: str
    weights: Mapping[str, Any]
    units: int
    backwards: bool


class _RecurrentCellLayers(InferenceOnlyLayer):
    """The base class of layers of cells."""

    handles_masks = True
    call_arguments: ClassVar[tuple[str, ...]] = ("sequences", "initial_state", "mask")

    def add_recurrent(
        self,
        r: L.Reader,
        call: L.LayerCall,
        name: str,
        input_name: str,
        directions: Sequence[_RecurrentDirection],
        sequences: bool,
        memory: bool = False,
        states: Sequence[str] = (),
        mask: str = "",
        zeroed: bool = False,
    ) -> str:
        """Add one layer of one direction or two."""
        steps = call.shapes[0][0]
        if steps > MAX_STEPS:
            raise L.UnsupportedLayer(f"of {steps} steps; {MAX_STEPS} are supported")
        first = directions[0]
        weights = {f"{n}{d}": w for d, way in enumerate(directions) for n, w in way.weights.items()}
        return r.add_layer(
            name,
            "recurrent",
            [input_name, *states, *([mask] if mask else [])],
            weights,
            cell=first.cell,
            activation=first.activation,
            gate=first.gate,
            series=False,
            backwards=[way.backwards for way in directions],
            sequences=sequences,
            aligned=len(directions) > 1,
            memory=memory,
            masked=bool(mask),
            zeroed=bool(mask) and zeroed,
        )

    @staticmethod
    def read_mask(r: L.Reader, call: L.LayerCall, gives_all_steps: bool, zeroed: bool) -> str:
        """Return the name of the mask of the steps, "" for none; also sets the mask of the output.

        Args:
            gives_all_steps: whether all steps are returned.
            zeroed: whether masked steps are returned as 0.
        """
        mask_argument, steps = call.arguments.get("mask"), call.shapes[0][0]
        if mask_argument is None:
            sequences = call.arguments.get("sequences")
            name = sequences.mask if isinstance(sequences, L.CallValue) else ""
        elif not isinstance(mask_argument, L.CallValue) or mask_argument.shape != (steps,):
            raise L.UnsupportedLayer(
                f"called with a mask that is not a value [{steps}] of the model"
            )
        else:
            name = L.masks.check_sequence_mask(r, mask_argument.name)
        if name and call.arguments.get("initial_state") is not None:
            raise L.UnsupportedLayer(
                "of an initial_state and a mask, whose outputs would start with 0"
            )
        if name and zeroed and (not gives_all_steps or call.layer.return_state):
            raise L.UnsupportedLayer("zero_output_for_mask without all steps, or with their states")
        r.mask = name if gives_all_steps else ""
        return name

    @staticmethod
    def read_states(call: L.LayerCall, count: int, units: int) -> list[str]:
        """Return the names of the initial states; none if they are zeros."""
        state_argument = call.arguments.get("initial_state")
        states = (
            state_argument
            if isinstance(state_argument, (list, tuple))
            else []
            if state_argument is None
            else [state_argument]
        )
        if not states:
            return []
        fits = len(states) == count and all(
            isinstance(s, L.CallValue) and s.shape == (units,) for s in states
        )
        if not fits:
            raise L.UnsupportedLayer(
                f"initial_state; {count} values [{units}] of the model are supported"
            )
        return [s.name for s in states]

    @staticmethod
    def read_sequences(call: L.LayerCall) -> str:
        """Return the name of the steps."""
        steps = call.arguments.get("sequences")
        return steps.name if isinstance(steps, L.CallValue) else call.inputs[0]


def _check_recurrent_layer(layer: Any) -> None:
    """Refuse an unsupported option of a layer of cells.

    Raises:
        UnsupportedLayer: the layer has it.
    """
    if getattr(layer, "stateful", False):
        raise L.UnsupportedLayer(
            "stateful=True; each request starts from zero, pass states as initial_state"
        )


def _read_recurrent_direction(
    r: L.Reader, name: str, cell: Any, backwards: bool
) -> _RecurrentDirection:
    """Read a cell as a direction.

    Raises:
        UnsupportedLayer: the class or an activation of the cell is not supported.
    """
    known = {getattr(r.keras.layers, n): kind for n, kind in _CELLS.items()}
    kind = known.get(type(cell))
    if kind is None:
        raise L.UnsupportedLayer(f"of a {type(cell).__name__}; {', '.join(_CELLS)} are supported")
    if kind == "gru" and not cell.reset_after:
        kind = "gru_before"
    activation = _read_recurrent_activation(r, cell.activation, FUNCTIONS, "activation")
    gate_function = getattr(cell, "recurrent_activation", r.keras.activations.sigmoid)
    gate = _RAMP[_read_recurrent_activation(r, gate_function, tuple(_RAMP), "recurrent_activation")]
    # (the variable itself, so that a layer called twice stores it once)
    kernel: Any = cell.kernel
    recurrent: Any = cell.recurrent_kernel
    units, gates = int(recurrent.shape[0]), GATES[kind]
    bias, inner = np.zeros(gates * units), None
    if cell.use_bias:
        bias = L.read_weights(name, "bias", cell.bias).astype(np.float64)
        if bias.ndim == 2:  # rows: of x W, and of h U
            inner_bias = bias[1, 2 * units :]
            bias = np.concatenate([bias.sum(0)[: 2 * units], bias[0, 2 * units :]])
            inner = inner_bias if inner_bias.any() else None
    if gate == "ramp" and kind != "simple":
        gate_places = {"lstm": (0, 1, 3)}.get(kind, (0, 1))
        is_gate = np.isin(np.arange(gates * units) // units, gate_places)
        arrays = [
            L.read_weights(name, n, w) for n, w in (("kernel", kernel), ("recurrent", recurrent))
        ]
        kernel, recurrent = (np.where(is_gate, w / np.float64(6), w) for w in arrays)
        bias = np.where(is_gate, bias / 6 + 0.5, bias)
    weights = {"kernel": kernel, "recurrent": recurrent, "bias": bias}
    if inner is not None:
        weights["inner"] = inner
    return _RecurrentDirection(kind, activation, gate, weights, units, backwards)


def _read_recurrent_activation(
    r: L.Reader, function: Any, known: Sequence[str], argument_name: str
) -> str:
    text, _ = r.functions.get(function, (getattr(function, "__name__", str(function)), None))
    if text not in known:
        raise L.UnsupportedLayer(f"{argument_name}={text!r}; {', '.join(known)} are supported")
    return str(text)


class Rnn(_RecurrentCellLayers):
    """A layer of cells, step by step.

    Rounds and bytes: those of protocols/nn/recurrent.py for each step.
    """

    op = "rnn"
    keras_layers = _SUPPORTED

    def convert_inference(self, r: L.Reader, call: L.LayerCall) -> str:
        layer, name = call.layer, call.name
        _check_recurrent_layer(layer)
        if isinstance(layer.cell, r.keras.layers.StackedRNNCells):
            return self._convert_stacked(r, call)
        direction = _read_recurrent_direction(r, name, layer.cell, bool(layer.go_backwards))
        states = self.read_states(call, STATES[direction.cell], direction.units)
        gives_all_steps, zeroed = bool(layer.return_sequences), bool(layer.zero_output_for_mask)
        mask = self.read_mask(r, call, gives_all_steps, zeroed)
        return _convert_recurrent_directions(
            self, r, call, [direction], states, gives_all_steps, mask=mask, zeroed=zeroed
        )

    def _convert_stacked(self, r: L.Reader, call: L.LayerCall) -> str:
        """Convert stacked cells: each layer returns all steps to the next."""
        layer, input_name = call.layer, self.read_sequences(call)
        if layer.return_state or call.arguments.get("initial_state") is not None:
            raise L.UnsupportedLayer("states of several cells; write them as consecutive layers")
        if type(layer.cell) is not r.keras.layers.StackedRNNCells:
            raise L.UnsupportedLayer(
                f"of a {type(layer.cell).__name__}; StackedRNNCells are supported"
            )
        gives_all_steps, zeroed = bool(layer.return_sequences), bool(layer.zero_output_for_mask)
        mask = self.read_mask(r, call, gives_all_steps, zeroed)
        if mask and layer.go_backwards and len(layer.cell.cells) > 1:
            raise L.UnsupportedLayer("of several cells and a mask, beginning with the last step")
        cells = list(layer.cell.cells)
        for i, cell in enumerate(cells):
            last = i == len(cells) - 1
            cell_name = call.name if last else r.make_unique(f"{call.name}/cell{i}")
            # (in the order of processing)
            direction = _read_recurrent_direction(
                r, cell_name, cell, bool(layer.go_backwards) and i == 0
            )
            zero = zeroed and last
            input_name = self.add_recurrent(
                r,
                call,
                cell_name,
                input_name,
                [direction],
                gives_all_steps or not last,
                mask=mask,
                zeroed=zero,
            )
        return input_name


class Bidirectional(_RecurrentCellLayers):
    """A layer of cells and a reversed one, in parallel."""

    op = "bidirectional"
    keras_layers = ("Bidirectional",)

    def convert_inference(self, r: L.Reader, call: L.LayerCall) -> str:
        layer, name = call.layer, call.name
        known = {getattr(r.keras.layers, n) for n in _SUPPORTED}
        directions, inner_layers = [], (layer.forward_layer, layer.backward_layer)
        for inner_layer in inner_layers:
            if type(inner_layer) not in known:
                raise L.UnsupportedLayer(
                    f"around a {type(inner_layer).__name__}; {', '.join(_SUPPORTED)} are supported"
                )
            _check_recurrent_layer(inner_layer)
            directions.append(
                _read_recurrent_direction(r, name, inner_layer.cell, bool(inner_layer.go_backwards))
            )
        if directions[0].backwards or not directions[1].backwards:
            raise L.UnsupportedLayer("whose backward_layer does not begin with the last step")
        kinds = {(w.cell, w.activation, w.gate, w.units) for w in directions}
        if len(kinds) > 1:
            raise L.UnsupportedLayer("of two unlike layers; write them as parallel layers")
        if any("inner" in w.weights for w in directions):
            directions = [
                replace(w, weights={"inner": np.zeros(w.units), **w.weights}) for w in directions
            ]
        count = STATES[directions[0].cell]
        states = self.read_states(call, 2 * count, directions[0].units)
        gives_all_steps = bool(layer.return_sequences)
        zeroed = [bool(inner_layer.zero_output_for_mask) for inner_layer in inner_layers]
        mask = self.read_mask(r, call, gives_all_steps, any(zeroed))
        if mask and len(set(zeroed)) > 1:
            raise L.UnsupportedLayer("of two layers of which one has zero_output_for_mask")
        merge = layer.merge_mode or "none"
        return _convert_recurrent_directions(
            self, r, call, directions, states, gives_all_steps, merge, mask, zeroed[0]
        )


def _convert_recurrent_directions(
    kind: _RecurrentCellLayers,
    r: L.Reader,
    call: L.LayerCall,
    directions: Sequence[_RecurrentDirection],
    states: list[str],
    gives_all_steps: bool,
    merge: str = "concat",
    mask: str = "",
    zeroed: bool = False,
) -> str:
    """Add a layer, the combination of its directions, and the states that it returns.

    Args:
        gives_all_steps: whether it returns all steps.
        merge: how the outputs of two directions are combined, by its Keras name.
    """
    name, units, count, steps = call.name, directions[0].units, len(directions), call.shapes[0][0]
    returned = bool(call.layer.return_state)
    memory = returned and directions[0].cell == "lstm"
    outputs = steps if gives_all_steps else 1
    rows = outputs + memory
    whole = not returned and (count == 1 or merge == "concat")
    layer_name = name if whole else r.make_unique(f"{name}/steps")
    input_name = kind.read_sequences(call)
    output = kind.add_recurrent(
        r, call, layer_name, input_name, directions, gives_all_steps, memory, states, mask, zeroed
    )

    def add_recurrent_part_layer(
        label: str, at: tuple[int, int], of: tuple[int, int], all_rows: bool = False
    ) -> str:
        """Return some rows of some directions; a single row without its axis, if not `all_rows`."""
        sides = [[at[0], rows - at[1]], [of[0] * units, (count - of[1]) * units]]
        ranked = gives_all_steps or memory
        cut = r.add_layer(
            r.make_unique(f"{name}/{label}"),
            "crop",
            [output],
            None,
            sides=sides if ranked else sides[1:],
        )
        flat = ranked and not all_rows
        return (
            L.add_reshape_layer(r, cut, f"{cut}/row", ((of[1] - of[0]) * units,)) if flat else cut
        )

    others: list[str] = []
    for d, way in enumerate(directions if returned else ()):
        # (two directions have the order of the steps)
        last = 0 if not gives_all_steps or (way.backwards and count > 1) else steps - 1
        others.append(add_recurrent_part_layer(f"state{d}", (last, last + 1), (d, d + 1)))
        if memory:
            others.append(add_recurrent_part_layer(f"memory{d}", (rows - 1, rows), (d, d + 1)))
    # the output comes last: a model may end after it
    first = output
    if not whole and merge == "concat":
        first = add_recurrent_part_layer("outputs", (0, outputs), (0, count), gives_all_steps)
    elif not whole:
        both = [
            add_recurrent_part_layer(f"direction{d}", (0, outputs), (d, d + 1), gives_all_steps)
            for d in (1, 0)
        ]
        first = _merge_recurrent_directions(r, call, both[::-1], merge)
    call.other_outputs.extend(others)
    return first


def _merge_recurrent_directions(r: L.Reader, call: L.LayerCall, both: list[str], merge: str) -> str:
    """Combine the outputs of two directions; with "none" the second becomes another output."""
    if merge == "none":
        call.other_outputs.append(both[1])
        return both[0]
    if merge == "ave":
        total = r.add_layer(r.make_unique(f"{call.name}/sum"), "add", both)
        return r.add_layer(call.name, "rescale", [total], None, scale=0.5, offset=0.0)
    return r.add_layer(call.name, {"sum": "add", "mul": "multiply"}[merge], both)

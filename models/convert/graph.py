"""A model as data: named layers in order, each of a known type, with checked options and weights.

A graph contains no code.  The header is JSON, and the weights are named arrays.  So a model from an
untrusted source can be read, checked and drawn without running any of its code.
"""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tfe_bench import atomic
from tfe_bench.cluster.jobs import shape_extent
from tfe_bench.errors import DataError, RangeError, UsageError, did_you_mean
from tfe_bench.models.convert.graph_header import FORMAT, MAX_LAYERS, GraphHeader, is_layer_size
from tfe_bench.models.layers.base import registry
from tfe_bench.models.layers.base.layer import Array as Array
from tfe_bench.models.layers.base.layer import FixedPointFormat, PlacedLayer, Shape
from tfe_bench.models.layers.base.layer import LayerSpec as LayerSpec

MAX_ELEMENTS = 1 << 31


@dataclass(frozen=True, eq=False)
class Graph:
    """Layers in topological order: each layer comes after its inputs.

    Attributes:
        name: name of the model.
        inputs: shapes without the batch, by name.
        layers: the layers, at least one.
        outputs: names of the output values.
        scaling: (factor, offset) by input name: the owner of the data computes x * factor + offset
            before sharing x.
        results: (factor, offset) for each output, or empty: the recipient of the outputs applies
            them.
        labels: a name for each output, or empty: the keys under which the recipient gets the
            outputs.
        tokens: n by name, for inputs [..., n] that hold one-hot rows: their owner passes numbers
            from 0 to n - 1.
        masks: names of inputs that contain 0 and 1 alone.
        keyed: whether inputs are accepted by name alone, because the model lists them in another
            order than Keras.
        flat: numbers of outputs of shape [1] that are returned without that axis, as one number per
            sample.

    Raises:
        UsageError: the layers do not fit each other, or a layer type is unknown.
        RangeError: a weight is NaN or infinite; the text names the layer.
    """

    name: str
    inputs: Mapping[str, Shape]
    layers: tuple[LayerSpec, ...]
    outputs: tuple[str, ...]
    scaling: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)
    results: tuple[tuple[Any, Any], ...] = ()
    labels: tuple[str, ...] = ()
    tokens: Mapping[str, int] = field(default_factory=dict)
    masks: tuple[str, ...] = ()
    keyed: bool = False
    flat: tuple[int, ...] = ()
    shapes: Mapping[str, Shape] = field(init=False)

    def __post_init__(self) -> None:
        shapes: dict[str, Shape] = {}
        for name, shape in self.inputs.items():
            if not name or not shape or not all(is_layer_size(n) for n in shape):
                raise UsageError(
                    "Expected known sizes of the model's inputs, without the batch. Received: "
                    f"{name!r} of shape {list(shape)}.",
                    code="unknown-input-size",
                    operation=name,
                    received=list(shape),
                )
            shapes[name] = tuple(int(n) for n in shape)
        if not self.inputs or not self.layers or len(self.layers) > MAX_LAYERS:
            raise UsageError(
                f"Expected an input and 1 to {MAX_LAYERS} layers. Received: {len(self.inputs)} "
                f"inputs and {len(self.layers)} layers.",
                code="invalid-graph",
                operation="layers",
                received=len(self.layers),
            )
        for layer in self.layers:
            if not layer.name or layer.name in shapes:
                raise UsageError(
                    f"Expected unique names of layers. Received: {layer.name!r} twice.",
                    code="duplicate-name",
                    operation=layer.name,
                )
            missing = [i for i in layer.inputs if i not in shapes]
            if missing:
                raise UsageError(
                    f"Expected inputs of layer {layer.name!r} that come before it. Received: "
                    f"{missing}.",
                    code="invalid-graph",
                    operation=layer.name,
                    received=missing,
                )
            _check_weights(layer)
            input_shapes = [shapes[i] for i in layer.inputs]
            weights = {name: w.shape for name, w in layer.weights.items()}
            shape = registry.infer_shape(layer, input_shapes, weights)
            if 0 in shape or shape_extent(shape) > MAX_ELEMENTS:
                raise UsageError(
                    f"Layer {layer.name!r} is empty or too large. Received: {list(shape)}.",
                    code="too-large",
                    operation=layer.name,
                    received=list(shape),
                )
            shapes[layer.name] = shape
        unknown = [o for o in self.outputs if o not in shapes]
        if unknown or not self.outputs:
            raise UsageError(
                "Expected names of layers as outputs of the model. Received: "
                f"{list(self.outputs)}.",
                code="invalid-graph",
                operation="outputs",
                received=list(self.outputs),
            )
        if any(name not in self.inputs for name in self.scaling):
            raise UsageError(
                f"Expected scalings of inputs alone. Received: {sorted(self.scaling)}.",
                code="invalid-graph",
                operation="scaling",
                received=sorted(self.scaling),
            )
        for name, count in self.tokens.items():
            token_shape = (
                shapes.get(name, ()) if name in self.inputs and name not in self.scaling else ()
            )
            if len(token_shape) < 2 or type(count) is not int or token_shape[-1] != count:
                raise UsageError(
                    f"Expected inputs [.., n] for n tokens. Received: {name!r}, {count!r}.",
                    code="invalid-graph",
                    operation="tokens",
                    received=name,
                )
        if not {*self.masks} <= {*self.inputs} - {*self.scaling} - {*self.tokens}:
            raise UsageError(
                "Expected unscaled inputs other than tokens as masks. Received: "
                f"{list(self.masks)}.",
                code="invalid-graph",
                operation="masks",
                received=list(self.masks),
            )
        if len(self.results) not in (0, len(self.outputs)):
            raise UsageError(
                "Expected a scaling for each output, or for none.",
                code="invalid-graph",
                operation="results",
            )
        numbered = dict(enumerate(self.outputs))
        if any(shapes.get(numbered.get(i, "")) != (1,) for i in self.flat):
            raise UsageError(
                "Expected outputs of shape [1] to be returned as numbers. Received: "
                f"{list(self.flat)}.",
                code="invalid-graph",
                operation="flat",
                received=list(self.flat),
            )
        if self.labels and not len({*self.labels}) == len(self.labels) == len(self.outputs):
            raise UsageError(
                "Expected distinct names for all outputs, or none.",
                code="invalid-graph",
                operation="labels",
            )
        for name, pair in [*self.scaling.items(), *zip(self.outputs, self.results, strict=False)]:
            if not all(_is_channel_scale(part, shapes[name]) for part in pair):
                raise UsageError(
                    f"The scaling of {name!r} does not fit its shape, or is not finite.",
                    code="shape-mismatch",
                    operation=name,
                )
        object.__setattr__(self, "shapes", shapes)

    def find_users(self) -> dict[str, list[str]]:
        """Return the users of each value: names of layers, and "" for an output of the graph."""
        users: dict[str, list[str]] = {name: [] for name in self.shapes}
        for layer in self.layers:
            for name in layer.inputs:
                users[name].append(layer.name)
        for name in self.outputs:
            users[name].append("")
        return users

    @property
    def by_name(self) -> dict[str, LayerSpec]:
        """The layers by name."""
        return {layer.name: layer for layer in self.layers}

    def place_layer(
        self, layer: LayerSpec, numbers: FixedPointFormat, scales: Sequence[int]
    ) -> PlacedLayer:
        """Return a layer with its position: its fixed-point format and that of its inputs."""
        input_shapes = tuple(self.shapes[name] for name in layer.inputs)
        return PlacedLayer(
            layer, numbers, self.shapes[layer.name], input_shapes, tuple(scales), layer.name
        )

    @property
    def weight_count(self) -> int:
        """Number of weights; weights that layers share count once."""
        return sum(w.size for w in self.weight_arrays().values())

    # ---- serialization

    def to_header(self) -> dict[str, Any]:
        """Return everything except the weights' values as JSON; ordered parts are lists."""
        shared = self.shared_weight_keys()
        return {
            "format": FORMAT,
            "name": self.name,
            "inputs": [[name, list(shape)] for name, shape in self.inputs.items()],
            "outputs": list(self.outputs),
            "scaling": {name: list(pair) for name, pair in self.scaling.items()},
            **({"results": [list(pair) for pair in self.results]} if self.results else {}),
            **({"labels": list(self.labels)} if self.labels else {}),
            **({"tokens": dict(self.tokens)} if self.tokens else {}),
            **({"masks": list(self.masks)} if self.masks else {}),
            **({"keyed": True} if self.keyed else {}),
            **({"flat": list(self.flat)} if self.flat else {}),
            "layers": [
                {
                    "name": layer.name,
                    "op": layer.op,
                    "inputs": list(layer.inputs),
                    "options": dict(layer.options),
                    "weights": {
                        name: [
                            *(str(w.dtype), list(w.shape)),
                            *([shared[key]] if (key := f"{layer.name}/{name}") in shared else []),
                        ]
                        for name, w in layer.weights.items()
                    },
                }
                for layer in self.layers
            ],
        }

    def weight_arrays(self) -> dict[str, Array]:
        """Return the weights by "layer/weight"; shared ones appear once, under the first layer."""
        shared = self.shared_weight_keys()
        return {key: w for key, w in self._iterate_weights() if key not in shared}

    def _iterate_weights(self) -> Iterator[tuple[str, Array]]:
        for layer in self.layers:
            for name in sorted(layer.weights):
                yield f"{layer.name}/{name}", layer.weights[name]

    def shared_weight_keys(self) -> dict[str, str]:
        """Return, for each weight that is the same array as an earlier layer's, the earlier key."""
        first: dict[int, str] = {}
        first_keys = {key: first.setdefault(id(w), key) for key, w in self._iterate_weights()}
        return {key: before for key, before in first_keys.items() if before != key}

    def digest(self) -> str:
        """Return the SHA-256 of header and weights in hexadecimal."""
        hasher = hashlib.sha256(json.dumps(self.to_header(), sort_keys=True).encode())
        for layer in self.layers:
            for name in sorted(layer.weights):
                hasher.update(np.ascontiguousarray(layer.weights[name]).tobytes())
        return hasher.hexdigest()

    @classmethod
    def from_header(cls, header: Any, arrays: Mapping[str, Array] | None = None) -> Graph:
        """Build the graph of a header; without arrays, its weights are zeros that take no memory.

        Raises:
            DataError: the header is invalid, or the arrays do not match it.
            UsageError, RangeError: as of the class.
        """
        parts = GraphHeader.from_header(header)
        inputs = dict(parts.inputs)
        if len(inputs) != len(parts.inputs):
            raise DataError(
                "Expected distinct names of a model's inputs.",
                code="duplicate-name",
                operation="inputs",
            )
        weights: dict[str, Array] = {}
        layers = tuple(layer.read_layer(arrays, weights) for layer in parts.layers)
        names = ("scaling", "results", "labels", "tokens", "masks", "keyed", "flat")
        optional_parts = {name: getattr(parts, name) for name in names}
        try:
            return cls(parts.name, inputs, layers, parts.outputs, **optional_parts)
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            raise DataError(  # (options of layers are JSON of any form)
                f"Invalid header of a model. Received: {type(error).__name__}: {error}.",
                code="invalid-graph",
                operation="header",
                received=type(error).__name__,
            ) from None

    # ---- files

    def save(self, path: str | Path) -> None:
        """Write the graph atomically to an .npz file that contains numbers only."""
        contents: dict[str, Any] = {f"w/{name}": w for name, w in self.weight_arrays().items()}
        contents["header"] = np.frombuffer(json.dumps(self.to_header()).encode(), np.uint8)
        # readable by its owner alone, as the weights are secret
        atomic.place_complete_file(Path(path), lambda file: np.savez(file, **contents))

    @classmethod
    def load(cls, path: str | Path) -> Graph:
        """Read a file that `save` wrote, without executing any part of it.

        Raises:
            DataError: the file does not exist, or contains no graph.
            UsageError, RangeError: as of the class.
        """
        try:
            with np.load(path, allow_pickle=False) as file:
                header = json.loads(bytes(file["header"]).decode())
                arrays = {k[2:]: file[k] for k in file.files if k.startswith("w/")}
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            raise DataError(
                f"Expected a model in {str(path)!r}. Received: {type(error).__name__}: {error}.",
                code="invalid-model-file",
                operation=str(path),
                received=type(error).__name__,
            ) from None
        return cls.from_header(header, arrays)


def _is_channel_scale(part: Any, shape: Shape) -> bool:
    """Return whether a scaling is finite: one number, or one number per channel."""
    try:
        numbers = np.asarray(part, np.float64)
    except (TypeError, ValueError):
        return False
    return numbers.shape in ((), (1,), shape[-1:]) and bool(np.isfinite(numbers).all())


def _check_weights(layer: LayerSpec) -> None:
    for name, w in layer.weights.items():
        if not isinstance(w, np.ndarray) or w.dtype.kind != "f":
            raise UsageError(
                f"Expected floating-point arrays as weights {name!r} of layer {layer.name!r}. "
                f"Received: {getattr(w, 'dtype', type(w).__name__)}.",
                code="wrong-type",
                operation=layer.name,
                received=getattr(w, "dtype", type(w).__name__),
            )
        # arrays without strides are placeholders for weights of another process
        if any(w.strides) and not np.isfinite(w).all():
            bad = int((~np.isfinite(w)).sum())
            raise RangeError(
                f"Layer {layer.name!r} has weights {name!r} that are NaN or infinite. Received: "
                f"{bad} of {w.size}. Train it again, or load other weights.",
                code="not-finite",
                operation=layer.name,
                received=bad,
            )


def replace_layers(graph: Graph, layers: Sequence[LayerSpec], **changed: Any) -> Graph:
    """Return the graph with other layers, and with other changed attributes."""
    fields = {
        "name": graph.name,
        "inputs": graph.inputs,
        "outputs": graph.outputs,
        "scaling": graph.scaling,
        "results": graph.results,
        "labels": graph.labels,
        "tokens": graph.tokens,
        "masks": graph.masks,
        "keyed": graph.keyed,
        "flat": graph.flat,
        **changed,
    }
    return Graph(layers=sort_layers(layers, fields["inputs"]), **fields)


def subgraph_until_layer(graph: Graph, name: str) -> Graph:
    """Return the part of a graph up to a layer of Keras, its activation included.

    Raises:
        UsageError: the graph has no such layer.
    """
    layer_names = [x.name for x in graph.layers if x.name == name or x.name.startswith(f"{name}/")]
    if not layer_names:
        names = [x.name for x in graph.layers]
        raise UsageError(
            "The model has no computing layer "
            f"{str(name)[:80]!r}.{did_you_mean(str(name), names)} Its last layers: "
            f"{', '.join(names[-8:])}.",
            code="unknown-layer",
            operation=str(name)[:80],
        )
    needed, layers = {layer_names[-1]}, []
    for layer in reversed(graph.layers):
        if layer.name in needed:
            layers.append(layer)
            needed.update(layer.inputs)
    return replace_layers(
        graph,
        layers[::-1],
        inputs={k: v for k, v in graph.inputs.items() if k in needed},
        scaling={k: v for k, v in graph.scaling.items() if k in needed},
        tokens={k: v for k, v in graph.tokens.items() if k in needed},
        masks=tuple(name for name in graph.masks if name in needed),
        outputs=(layer_names[-1],),
        results=(),
        labels=(),
        flat=(),
    )


def sort_layers(layers: Sequence[LayerSpec], inputs: Iterable[str]) -> tuple[LayerSpec, ...]:
    """Sort the layers so that each comes after its inputs."""
    done, result, remaining = set(inputs), [], list(layers)
    while remaining:
        later = []
        for layer in remaining:
            if all(i in done for i in layer.inputs):
                result.append(layer)
                done.add(layer.name)
            else:
                later.append(layer)
        if len(later) == len(remaining):
            raise UsageError(
                f"The model's layers form a cycle. Received: {[x.name for x in remaining][:8]}.",
                code="invalid-graph",
                operation="layers",
                received=[x.name for x in remaining][:8],
            )
        remaining = later
    return tuple(result)

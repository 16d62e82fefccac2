"""A model as data: named layers in order, each of a known kind, with checked options and weights.

Nothing in it is code.  The header is JSON, the weights are named arrays, so that a model from a
stranger can be read, checked and drawn without running anything of theirs.
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
from tfe_bench.cluster.jobs import extent
from tfe_bench.errors import DataError, RangeError, UsageError, did_you_mean
from tfe_bench.models.kinds import registry
from tfe_bench.models.kinds.layer import Array as Array
from tfe_bench.models.kinds.layer import Layer as Layer
from tfe_bench.models.kinds.layer import Node, Numbers, Shape

FORMAT = 2
# More than any network of keras.applications has; bounds what a stranger's header may ask for.
MOST_LAYERS = 4096
MOST_ELEMENTS = 1 << 31


@dataclass(frozen=True, eq=False)
class Graph:
    """Layers in an order in which each comes after its inputs.

    Attributes:
        name: of the model.
        inputs: shapes without the batch, by name.
        layers: at least one.
        outputs: names of the values that leave.
        scaling: (factor, offset) by name of an input: what the owner of the data computes,
            x * factor + offset, before sharing it.
        results: (factor, offset) for each output, or none: what whoever gets it computes.
        labels: a name for each output, or none: under which whoever gets them finds them.
        tokens: of inputs [..., n] that are rows with one 1 each, n by name: their owner gives
            numbers from 0 to n - 1.
        masks: names of inputs that hold nothing but 0 and 1.
        keyed: whether inputs are given by name alone: the model's owner listed them in another
            order than Keras does.
        flat: numbers of the outputs [1] that are given without that axis, one number a sample.

    Raises:
        UsageError: the layers do not fit each other, or are not of a known kind.
        RangeError: a weight is NaN or infinite; the layer is named.
    """

    name: str
    inputs: Mapping[str, Shape]
    layers: tuple[Layer, ...]
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
            if not name or not shape or not all(_size(n) for n in shape):
                raise UsageError(
                    "A model's inputs have known sizes, the batch left out. Received: "
                    f"{name!r} of shape {list(shape)}."
                )
            shapes[name] = tuple(int(n) for n in shape)
        if not self.inputs or not self.layers or len(self.layers) > MOST_LAYERS:
            raise UsageError(
                f"A model has an input and 1 to {MOST_LAYERS} layers. Received: "
                f"{len(self.inputs)} inputs and {len(self.layers)} layers."
            )
        for layer in self.layers:
            if not layer.name or layer.name in shapes:
                raise UsageError(f"Names of layers are unique. Received: {layer.name!r} again.")
            missing = [i for i in layer.inputs if i not in shapes]
            if missing:
                raise UsageError(
                    f"Layer {layer.name!r} wants inputs that come before it. Received: {missing}."
                )
            _check_weights(layer)
            given = [shapes[i] for i in layer.inputs]
            weights = {name: w.shape for name, w in layer.weights.items()}
            shape = registry.infer(layer, given, weights)
            if 0 in shape or extent(shape) > MOST_ELEMENTS:
                raise UsageError(
                    f"Layer {layer.name!r} is empty or too large. Received: {list(shape)}."
                )
            shapes[layer.name] = shape
        unknown = [o for o in self.outputs if o not in shapes]
        if unknown or not self.outputs:
            raise UsageError(f"A model's outputs are its layers. Received: {list(self.outputs)}.")
        if any(name not in self.inputs for name in self.scaling):
            raise UsageError(f"Only inputs are scaled. Received: {sorted(self.scaling)}.")
        for name, count in self.tokens.items():
            of = shapes.get(name, ()) if name in self.inputs and name not in self.scaling else ()
            if len(of) < 2 or type(count) is not int or of[-1] != count:
                raise UsageError(
                    f"Tokens are an input [.., n] of n. Received: {name!r}, {count!r}."
                )
        if not {*self.masks} <= {*self.inputs} - {*self.scaling} - {*self.tokens}:
            raise UsageError(f"Masks are inputs as they are. Received: {list(self.masks)}.")
        if len(self.results) not in (0, len(self.outputs)):
            raise UsageError("Results are scaled for each output, or for none.")
        numbered = dict(enumerate(self.outputs))
        if any(shapes.get(numbered.get(i, "")) != (1,) for i in self.flat):
            raise UsageError(f"Outputs [1] are given as numbers. Received: {list(self.flat)}.")
        if self.labels and not len({*self.labels}) == len(self.labels) == len(self.outputs):
            raise UsageError("Outputs are named each by one name, or none.")
        for name, pair in [*self.scaling.items(), *zip(self.outputs, self.results, strict=False)]:
            if not all(_scales(part, shapes[name]) for part in pair):
                raise UsageError(f"{name!r} is scaled by numbers that do not fit its shape.")
        object.__setattr__(self, "shapes", shapes)

    def uses(self) -> dict[str, list[str]]:
        """Who takes each value: names of layers, and "" for an output of the graph."""
        found: dict[str, list[str]] = {name: [] for name in self.shapes}
        for layer in self.layers:
            for name in layer.inputs:
                found[name].append(layer.name)
        for name in self.outputs:
            found[name].append("")
        return found

    @property
    def by_name(self) -> dict[str, Layer]:
        """The layers by name."""
        return {layer.name: layer for layer in self.layers}

    def node(self, layer: Layer, numbers: Numbers, scales: Sequence[int]) -> Node:
        """A layer where it stands, with its fixed point and that of its inputs."""
        given = tuple(self.shapes[name] for name in layer.inputs)
        return Node(layer, numbers, self.shapes[layer.name], given, tuple(scales), layer.name)

    @property
    def parameters(self) -> int:
        """Number of weights, those that layers share once."""
        return sum(w.size for w in self.arrays().values())

    # ---- as data

    def header(self) -> dict[str, Any]:
        """All but the weights' values, as JSON holds it: what has an order is a list."""
        shared = self.shared()
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

    def arrays(self) -> dict[str, Array]:
        """The weights, by "layer/weight"; what layers share is there once, for the first."""
        shared = self.shared()
        return {key: w for key, w in self._weights() if key not in shared}

    def _weights(self) -> Iterator[tuple[str, Array]]:
        for layer in self.layers:
            for name in sorted(layer.weights):
                yield f"{layer.name}/{name}", layer.weights[name]

    def shared(self) -> dict[str, str]:
        """Of weights that are the very array of a layer before, the key that it has there."""
        first: dict[int, str] = {}
        found = {key: first.setdefault(id(w), key) for key, w in self._weights()}
        return {key: before for key, before in found.items() if before != key}

    def digest(self) -> str:
        """SHA-256 over header and weights, in hexadecimal."""
        found = hashlib.sha256(json.dumps(self.header(), sort_keys=True).encode())
        for layer in self.layers:
            for name in sorted(layer.weights):
                found.update(np.ascontiguousarray(layer.weights[name]).tobytes())
        return found.hexdigest()

    @classmethod
    def of(cls, header: Any, arrays: Mapping[str, Array] | None = None) -> Graph:
        """The graph of a header; without arrays its weights are zeros that take no memory.

        Raises:
            DataError: this is no header of a model, or the arrays are not those it names.
            UsageError, RangeError: as of the class.
        """
        try:
            if header["format"] != FORMAT:
                raise DataError(
                    f"This model is of format {header['format']!r}; this version reads {FORMAT}. "
                    "Convert it again, and deploy it again (--replace) if it was deployed."
                )
            held: dict[str, Array] = {}
            layers = tuple(_layer(row, arrays, held) for row in header["layers"])
            inputs = {str(k): tuple(v) for k, v in header["inputs"]}
            if len(inputs) != len(header["inputs"]):
                raise DataError("The names of a model's inputs differ.")
            scaling = {str(k): (v[0], v[1]) for k, v in header.get("scaling", {}).items()}
            outputs = tuple(str(o) for o in header["outputs"])
            results = tuple((v[0], v[1]) for v in header.get("results", ()))
            labels = tuple(str(v) for v in header.get("labels", ()))
            tokens = {str(k): v for k, v in header.get("tokens", {}).items()}
            masks = tuple(str(v) for v in header.get("masks", ()))
            name, keyed = str(header["name"]), header.get("keyed", False) is True
            flat = tuple(header.get("flat", ()))
            some = (scaling, results, labels, tokens, masks, keyed, flat)
            return cls(name, inputs, layers, outputs, *some)
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            raise DataError(
                f"This is no model's header. Received: {type(error).__name__}: {error}."
            ) from None

    # ---- as a file

    def save(self, path: str | Path) -> None:
        """Writes the graph to an .npz file that holds numbers only, replacing it at once."""
        held: dict[str, Any] = {f"w/{name}": w for name, w in self.arrays().items()}
        held["header"] = np.frombuffer(json.dumps(self.header()).encode(), np.uint8)
        # (for its owner alone: the weights are somebody's secret)
        atomic.place(Path(path), lambda file: np.savez(file, **held))

    @classmethod
    def load(cls, path: str | Path) -> Graph:
        """Reads what `save` wrote; nothing in the file is run.

        Raises:
            DataError: there is no such file, or it holds no graph.
            UsageError, RangeError: as of the class.
        """
        try:
            with np.load(path, allow_pickle=False) as file:
                header = json.loads(bytes(file["header"]).decode())
                arrays = {k[2:]: file[k] for k in file.files if k.startswith("w/")}
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            raise DataError(
                f"There is no model in {str(path)!r}. Received: {type(error).__name__}: {error}."
            ) from None
        return cls.of(header, arrays)


def _layer(row: Any, arrays: Mapping[str, Array] | None, held: dict[str, Array]) -> Layer:
    """A layer of a header's row; `held` has the weights before it, and gets its own."""
    weights: dict[str, Array] = {}
    for name, (dtype, shape, *of) in sorted(row["weights"].items()):
        key = f"{row['name']}/{name}"
        if dtype not in ("float32", "float64") or not all(_size(n) for n in shape):
            raise DataError(
                f"Weights are float32 or float64 of known sizes. Received: {dtype!r}, {shape!r}."
            )
        if arrays is None and not of:
            weights[name] = held[key] = np.broadcast_to(np.zeros((), dtype), tuple(shape))
            continue
        found = held.get(*of) if of else (arrays or {}).get(key)
        if found is None or str(found.dtype) != dtype or list(found.shape) != list(shape):
            raise DataError(
                f"The weights {name!r} of layer {row['name']!r} are not those of the header."
            )
        weights[name] = held[key] = found
    return Layer(row["name"], row["op"], tuple(row["inputs"]), dict(row["options"]), weights)


def _size(n: Any) -> bool:
    return isinstance(n, (int, np.integer)) and not isinstance(n, bool) and int(n) > 0


def _scales(part: Any, shape: Shape) -> bool:
    """Whether these are finite numbers: one, or one for each channel."""
    try:
        numbers = np.asarray(part, np.float64)
    except (TypeError, ValueError):
        return False
    return numbers.shape in ((), (1,), shape[-1:]) and bool(np.isfinite(numbers).all())


def _check_weights(layer: Layer) -> None:
    for name, w in layer.weights.items():
        if not isinstance(w, np.ndarray) or w.dtype.kind != "f":
            raise UsageError(
                f"The weights {name!r} of layer {layer.name!r} are floating-point arrays. "
                f"Received: {getattr(w, 'dtype', type(w).__name__)}."
            )
        # (those without strides stand for weights that are not here)
        if any(w.strides) and not np.isfinite(w).all():
            bad = int((~np.isfinite(w)).sum())
            raise RangeError(
                f"Layer {layer.name!r} has weights {name!r} that are NaN or infinite. Received: "
                f"{bad} of {w.size}. Train it again, or load other weights."
            )


def replaced(graph: Graph, layers: Sequence[Layer], **changed: Any) -> Graph:
    """The graph with other layers, and what else is given."""
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
    return Graph(layers=ordered(layers, fields["inputs"]), **fields)


def until(graph: Graph, name: str) -> Graph:
    """The part of a graph that ends with a layer of Keras, its activation included.

    Raises:
        UsageError: nothing in the graph is of such a layer.
    """
    own = [x.name for x in graph.layers if x.name == name or x.name.startswith(f"{name}/")]
    if not own:
        names = [x.name for x in graph.layers]
        raise UsageError(
            f"The model has no layer {str(name)[:80]!r} that computes something."
            f"{did_you_mean(str(name), names)} Its last ones: {', '.join(names[-8:])}."
        )
    needed, layers = {own[-1]}, []
    for layer in reversed(graph.layers):
        if layer.name in needed:
            layers.append(layer)
            needed.update(layer.inputs)
    return replaced(
        graph,
        layers[::-1],
        inputs={k: v for k, v in graph.inputs.items() if k in needed},
        scaling={k: v for k, v in graph.scaling.items() if k in needed},
        tokens={k: v for k, v in graph.tokens.items() if k in needed},
        masks=tuple(name for name in graph.masks if name in needed),
        outputs=(own[-1],),
        results=(),
        labels=(),
        flat=(),
    )


def ordered(layers: Sequence[Layer], inputs: Iterable[str]) -> tuple[Layer, ...]:
    """The layers, moved so that each comes after its inputs."""
    done, result, left = set(inputs), [], list(layers)
    while left:
        later = []
        for layer in left:
            if all(i in done for i in layer.inputs):
                result.append(layer)
                done.add(layer.name)
            else:
                later.append(layer)
        if len(later) == len(left):
            raise UsageError(
                f"The model's layers form a circle. Received: {[x.name for x in left][:8]}."
            )
        left = later
    return tuple(result)

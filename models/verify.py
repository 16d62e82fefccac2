"""Whether a converted model is the one of Keras: both run on the same public numbers.

A converter that overlooks an option of a layer gives a model that answers, and wrongly.  So none is
handed out before its outputs were compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from tfe_bench.errors import UsageError
from tfe_bench.models import optimize, plaintext
from tfe_bench.models.graph import Array, Graph

# Of the largest value of a layer; Keras computes with 24 bits, or 11 and 8 in half precision.
_TOLERANCE = {"float64": 1e-4, "float32": 1e-4, "float16": 2e-2, "bfloat16": 1e-1}
# Between two ways of the same computation with 53 bits.
_SAME = 1e-6
# Of the tokens that are tried; the others are number 0.
_TAKEN = 0.75
# Models of more weights are tried with one sample.
_LARGE = 1_000_000


class Conversion(Protocol):
    """A model of Keras, and the graph that it was converted to (from_keras.Reading)."""

    @property
    def model(self) -> Any:
        """Model of Keras."""
        ...

    @property
    def function(self) -> Any:
        """Functional graph of the model, as Keras holds it."""
        ...

    @property
    def graph(self) -> Graph:
        """Converted graph."""
        ...

    @property
    def tensors(self) -> tuple[tuple[Any, str], ...]:
        """Tensors of the functional graph in order, with the names of their values."""
        ...

    @property
    def keras(self) -> Any:
        """Module keras."""
        ...


def check(reading: Conversion, graph: Graph, samples: Any = None) -> None:
    """Compares a graph with the model that it was read from.

    Args:
        graph: that of the reading, or what optimization has made of it.
        samples: as the model takes them; their means and deviations are those of the numbers that
            are tried.  None: numbers of mean 0 and deviation 1.

    Raises:
        UsageError: they differ; the first layer that does is named.
    """
    inputs = _drawn(reading, samples)
    function = reading.function
    given = [_as_keras(t, inputs[n]) for t, n in zip(function.inputs, graph.inputs, strict=True)]
    tree = reading.keras.tree
    struct = tree.pack_sequence_as(function._inputs_struct, given)
    try:
        outputs = tree.flatten(in_keras(function, struct, training=False))
    except Exception as error:  # whatever Keras raises where a layer takes no such values
        raise UsageError(
            f"Keras itself cannot run {reading.model.name!r}. Received: {type(error).__name__}: "
            f"{str(error).strip().splitlines()[0][:200] if str(error).strip() else ''}"
        ) from None
    wanted = [_numbers(reading, y) for y in outputs]
    tolerance = _tolerance(reading.model)
    found = _outputs(graph, inputs)
    if all(_alike(a, b, tolerance) for a, b in zip(found, wanted, strict=True)):
        return
    place = _first(reading, given, inputs, found, tolerance)
    if place is not None:
        raise UsageError(
            f"{reading.model.name!r} would give other values than in Keras, {place}: it uses "
            "something that is not supported and that nobody noticed. Please report it."
        )


def in_keras(called: Any, *given: Any, **named: Any) -> Any:
    """What Keras makes of some numbers.

    TensorFlow's own kernels take channels first, and dilation in transposed convolutions, on some
    processors only; XLA's do on all.
    """
    try:
        return called(*given, **named)
    except Exception as error:
        known = type(error).__name__ in ("UnimplementedError", "InvalidArgumentError")
        if not known or "CPU" not in str(error):
            raise
        import tensorflow as tf

        return tf.function(called, autograph=False, jit_compile=True)(*given, **named)


def _first(
    reading: Conversion,
    given: Sequence[Any],
    inputs: dict[str, Array],
    found: Sequence[Array],
    tolerance: float,
) -> str | None:
    """Where a model first differs; None: nowhere, it makes much of Keras' own rounding.

    Each layer takes what it takes in Keras, so that no difference grows on the way; and outputs
    after optimization are those before, both computed with 53 bits.
    """
    names = set()
    for name, got, want in _compared(reading, given, inputs):
        names.add(name)
        if not _alike(got, want, tolerance):
            return f"first in layer {name!r}, by {_difference(got, want):.2g}"
    own = _outputs(optimize.leave_training(reading.graph), inputs)
    same = all(_alike(a, b, _SAME) for a, b in zip(found, own, strict=True))
    return None if same and names.issuperset(reading.graph.outputs) else "after optimization"


def _outputs(graph: Graph, inputs: dict[str, Array]) -> list[Array]:
    with np.errstate(all="ignore"):
        return plaintext.evaluate(graph, inputs)


def _drawn(reading: Conversion, samples: Any) -> dict[str, Array]:
    """A batch of numbers for each input, the same in every call."""
    rng = np.random.default_rng(20261122)
    count = 1 if reading.graph.parameters > _LARGE else 2
    known = None if samples is None else plaintext.check_images(reading.graph, samples)
    found = {}
    tensors = zip(reading.function.inputs, reading.graph.inputs.items(), strict=True)
    for tensor, (name, shape) in tensors:
        if name in reading.graph.tokens:
            # (of a large table nearly none would be the first row, which may be what pads)
            words = rng.integers(0, shape[-1], (count, *shape[:-1]))
            words *= rng.random(words.shape) < _TAKEN
            words[..., 0] = np.maximum(words[..., 0], min(1, shape[-1] - 1))
            found[name] = words
            continue
        if name in reading.graph.masks:
            held = rng.integers(0, 2, (count, *shape))
            held[..., 0] = 1  # (where nothing is held, nothing is promised)
            found[name] = held.astype(np.float64)
            continue
        if not str(tensor.dtype).startswith(("float", "bfloat")):
            found[name] = rng.integers(0, 2, (count, *shape)).astype(np.float64)
            continue
        x = rng.normal(size=(count, *shape))
        if known is not None:
            some = known[name][:64]
            x = some.mean() + x * some.std()
        found[name] = x.astype(np.float32).astype(np.float64)
    return found


def _as_keras(tensor: Any, value: Array) -> Any:
    kind = str(tensor.dtype)
    return value.astype(np.float32 if kind.startswith(("float", "bfloat")) else kind)


def _numbers(reading: Conversion, value: Any) -> Array:
    found = reading.keras.ops.convert_to_numpy(reading.keras.ops.cast(value, "float32"))
    return np.asarray(found, np.float64)


def _tolerance(model: Any) -> float:
    kinds = {getattr(layer, "compute_dtype", "float32") for layer in model._flatten_layers()}
    return max(_TOLERANCE.get(str(kind), 1e-4) for kind in kinds)


def _difference(got: Array, want: Array) -> float:
    # (where Keras has no number, as for the logarithm of one below 0, nothing is promised)
    known = np.isfinite(want)
    return float(np.abs(np.where(known, got - want, 0)).max(initial=0))


def _alike(got: Array, want: Array, tolerance: float) -> bool:
    if got.shape != want.shape:
        return False
    known = np.isfinite(want)
    if not np.isfinite(got[known]).all():
        return False
    return _difference(got, want) <= tolerance * float(np.abs(want[known]).max(initial=1e-3))


def _compared(
    reading: Conversion, given: Sequence[Any], inputs: dict[str, Array]
) -> Iterator[tuple[str, Array, Array]]:
    """Each layer of the model itself, in order, here and in Keras, of what it takes in Keras."""
    graph = optimize.leave_training(reading.graph)
    known = {x.name for x in graph.layers}
    told = [(t, name) for t, name in reading.tensors if name in known]
    inner = reading.keras.Model(reading.function.inputs, [t for t, _ in told])
    values = reading.keras.tree.flatten(in_keras(inner, list(given), training=False))
    keras = {name: _numbers(reading, v) for (_, name), v in zip(told, values, strict=True)}
    seen: dict[str, Array] = {}

    def as_keras(name: str, value: Array) -> Array:
        seen[name] = value
        want = keras.get(name, value)
        return np.where(np.isfinite(want), want, value) if want.shape == value.shape else value

    with np.errstate(all="ignore"):
        plaintext.evaluate(graph, inputs, rounded=as_keras)
    for name, want in keras.items():
        yield name, seen[name], want[:, None] if want.ndim == 1 else want

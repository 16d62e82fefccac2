"""Verification of a converted model: it and the Keras model run on the same public numbers.

A converter that misses an option of a layer produces a model with plausible but wrong outputs.  So
`convert` returns no model before its outputs were compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from tfe_bench.errors import UsageError
from tfe_bench.lazy_tensorflow import tf
from tfe_bench.models.convert import optimize, plaintext
from tfe_bench.models.convert.graph import Array, Graph

# Tolerance relative to the largest value of a layer; Keras computes with 24 bits, or 11 and 8 in
# half precision.
_TOLERANCE = {"float64": 1e-4, "float32": 1e-4, "float16": 2e-2, "bfloat16": 1e-1}
# Tolerance between two float64 computations of the same function.
_FLOAT64_TOLERANCE = 1e-6
# Fraction of random tokens; the others are token 0.
_TOKEN_SHARE = 0.75
# Models with more weights are verified with one sample.
_LARGE_MODEL = 1_000_000
# Most steps of a recurrent layer that run faster one by one than their graph is traced.
_EAGER_STEPS = 40


class KerasConversion(Protocol):
    """A Keras model and its converted graph (from_keras.ConvertedModel)."""

    @property
    def model(self) -> Any:
        """Model of Keras."""
        ...

    @property
    def function(self) -> Any:
        """Functional graph of the model, as in Keras."""
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


def compare_with_keras(reading: KerasConversion, graph: Graph, samples: Any = None) -> None:
    """Compare a graph with the Keras model that it was read from.

    Args:
        graph: the graph of the reading, before or after optimization.
        samples: inputs of the model, whose means and deviations the random inputs get. None: random
            inputs with mean 0 and deviation 1.

    Raises:
        UsageError: the outputs differ; the text names the first layer that differs.
    """
    inputs = _draw_model_inputs(reading, samples)
    function = reading.function
    keras_inputs = [
        _to_keras_dtype(t, inputs[n]) for t, n in zip(function.inputs, graph.inputs, strict=True)
    ]
    tree = reading.keras.tree
    struct = tree.pack_sequence_as(function._inputs_struct, keras_inputs)
    try:
        outputs = tree.flatten(run_in_keras(function, struct, training=False))
    except Exception as error:  # Keras raises many types for values that a layer does not accept
        raise UsageError(
            f"Keras itself cannot run {reading.model.name!r}. Received: {type(error).__name__}: "
            f"{str(error).strip().splitlines()[0][:200] if str(error).strip() else ''}",
            code="keras-failed",
            operation=reading.model.name,
            received=type(error).__name__,
        ) from None
    keras_outputs = [_keras_output_to_float64(reading, y) for y in outputs]
    tolerance = _choose_keras_tolerance(reading.model)
    graph_outputs = _evaluate_graph_outputs(graph, inputs)
    if all(
        _are_outputs_close(a, b, tolerance)
        for a, b in zip(graph_outputs, keras_outputs, strict=True)
    ):
        return
    location = _find_first_layer_difference(reading, keras_inputs, inputs, graph_outputs, tolerance)
    if location is not None:
        raise UsageError(
            f"{reading.model.name!r} would give other values than in Keras, {location}: it uses "
            "an unsupported option that conversion missed. Please report it.",
            code="conversion-mismatch",
            operation=reading.model.name,
            received=location,
        )


def run_in_keras(function: Any, *arguments: Any, **named: Any) -> Any:
    """Run a function of Keras on numbers.

    TensorFlow's own kernels support channels first, and dilation in transposed convolutions, on
    some processors only; XLA's kernels support both on all.  A long recurrent layer is compiled:
    Keras would run its steps one by one in Python.
    """
    sizes = [np.shape(a)[1:2] for a in tf.nest.flatten(arguments)]
    layers: Any = getattr(function, "_flatten_layers", list)()
    is_long = max(sizes, default=()) > (_EAGER_STEPS,) and any(hasattr(x, "cell") for x in layers)
    run = tf.function(function, autograph=False) if is_long else function
    try:
        return run(*arguments, **named)
    except Exception as error:
        is_kernel_error = type(error).__name__ in ("UnimplementedError", "InvalidArgumentError")
        if not is_kernel_error or "CPU" not in str(error):
            raise
        return tf.function(function, autograph=False, jit_compile=True)(*arguments, **named)


def _find_first_layer_difference(
    reading: KerasConversion,
    keras_inputs: Sequence[Any],
    inputs: dict[str, Array],
    graph_outputs: Sequence[Array],
    tolerance: float,
) -> str | None:
    """Return where a model first differs; None if it merely amplifies the rounding of Keras.

    Each layer receives its input from Keras, so that no difference accumulates.  The outputs after
    optimization must equal those before, both computed with 53 bits.
    """
    names = set()
    for name, values, want in _compare_layers(reading, keras_inputs, inputs):
        names.add(name)
        if not _are_outputs_close(values, want, tolerance):
            return f"first in layer {name!r}, by {_largest_output_difference(values, want):.2g}"
    unoptimized_outputs = _evaluate_graph_outputs(
        optimize.convert_to_inference(reading.graph), inputs
    )
    outputs_agree = all(
        _are_outputs_close(a, b, _FLOAT64_TOLERANCE)
        for a, b in zip(graph_outputs, unoptimized_outputs, strict=True)
    )
    return (
        None if outputs_agree and names.issuperset(reading.graph.outputs) else "after optimization"
    )


def _evaluate_graph_outputs(graph: Graph, inputs: dict[str, Array]) -> list[Array]:
    with np.errstate(all="ignore"):
        return plaintext.evaluate_graph(graph, inputs)


def _draw_model_inputs(reading: KerasConversion, samples: Any) -> dict[str, Array]:
    """Draw a batch of numbers for each input, the same in every call."""
    rng = np.random.default_rng(20261122)
    count = 1 if reading.graph.weight_count > _LARGE_MODEL else 2
    sample_arrays = (
        None if samples is None else plaintext.check_model_inputs(reading.graph, samples)
    )
    inputs = {}
    tensors = zip(reading.function.inputs, reading.graph.inputs.items(), strict=True)
    for tensor, (name, shape) in tensors:
        if name in reading.graph.tokens:
            # a large table would hardly use its first row, which may be the padding token
            words = rng.integers(0, shape[-1], (count, *shape[:-1]))
            words *= rng.random(words.shape) < _TOKEN_SHARE
            words[..., 0] = np.maximum(words[..., 0], min(1, shape[-1] - 1))
            inputs[name] = words
            continue
        if name in reading.graph.masks:
            mask = rng.integers(0, 2, (count, *shape))
            mask[..., 0] = 1  # the result for a fully masked row is unspecified
            inputs[name] = mask.astype(np.float64)
            continue
        if not str(tensor.dtype).startswith(("float", "bfloat")):
            inputs[name] = rng.integers(0, 2, (count, *shape)).astype(np.float64)
            continue
        x = rng.normal(size=(count, *shape))
        if sample_arrays is not None:
            values = sample_arrays[name][:64]
            x = values.mean() + x * values.std()
        inputs[name] = x.astype(np.float32).astype(np.float64)
    return inputs


def _to_keras_dtype(tensor: Any, value: Array) -> Any:
    kind = str(tensor.dtype)
    return value.astype(np.float32 if kind.startswith(("float", "bfloat")) else kind)


def _keras_output_to_float64(reading: KerasConversion, value: Any) -> Array:
    converted = reading.keras.ops.convert_to_numpy(reading.keras.ops.cast(value, "float32"))
    return np.asarray(converted, np.float64)


def _choose_keras_tolerance(model: Any) -> float:
    kinds = {getattr(layer, "compute_dtype", "float32") for layer in model._flatten_layers()}
    return max(_TOLERANCE.get(str(kind), 1e-4) for kind in kinds)


def _largest_output_difference(values: Array, want: Array) -> float:
    # where Keras returns no number, such as the logarithm of a negative number, any result is
    # accepted
    is_finite = np.isfinite(want)
    return float(np.abs(np.where(is_finite, values - want, 0)).max(initial=0))


def _are_outputs_close(values: Array, want: Array, tolerance: float) -> bool:
    if values.shape != want.shape:
        return False
    is_finite = np.isfinite(want)
    if not np.isfinite(values[is_finite]).all():
        return False
    return _largest_output_difference(values, want) <= tolerance * float(
        np.abs(want[is_finite]).max(initial=1e-3)
    )


def _compare_layers(
    reading: KerasConversion, keras_inputs: Sequence[Any], inputs: dict[str, Array]
) -> Iterator[tuple[str, Array, Array]]:
    """Compute each layer of the outer model here and in Keras, in order, from the same inputs."""
    graph = optimize.convert_to_inference(reading.graph)
    layer_names = {x.name for x in graph.layers}
    compared_tensors = [(t, name) for t, name in reading.tensors if name in layer_names]
    inner = reading.keras.Model(reading.function.inputs, [t for t, _ in compared_tensors])
    values = reading.keras.tree.flatten(run_in_keras(inner, list(keras_inputs), training=False))
    keras_values = {
        name: _keras_output_to_float64(reading, v)
        for (_, name), v in zip(compared_tensors, values, strict=True)
    }
    graph_values: dict[str, Array] = {}

    def substitute_keras(name: str, value: Array) -> Array:
        graph_values[name] = value
        want = keras_values.get(name, value)
        return np.where(np.isfinite(want), want, value) if want.shape == value.shape else value

    with np.errstate(all="ignore"):
        plaintext.evaluate_graph(graph, inputs, rounded=substitute_keras)
    for name, want in keras_values.items():
        yield name, graph_values[name], want[:, None] if want.ndim == 1 else want

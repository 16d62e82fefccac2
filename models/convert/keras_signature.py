"""Inputs and outputs of Keras' functional graphs: names, shapes and labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tfe_bench.errors import UsageError, unknown_name_error


def keras_input_names(function: Any) -> list[str]:
    """Return the names of a model's inputs: keys of Model({...}), or names of its keras.Inputs."""
    struct = function._inputs_struct
    key_by_tensor = (
        {id(t): str(key) for key, t in struct.items()} if isinstance(struct, dict) else {}
    )
    if key_by_tensor.keys() == {id(t) for t in function.inputs}:
        return [key_by_tensor[id(t)] for t in function.inputs]
    layers = [t._keras_history.operation for t in function.inputs]
    return [
        str(t.name if x is None else x.name) for t, x in zip(function.inputs, layers, strict=True)
    ]


def takes_inputs_by_name(function: Any) -> bool:
    """Return whether Keras itself accepts the inputs by name alone, as it sorts dicts."""
    struct = function._inputs_struct
    return isinstance(struct, dict) and list(struct) != sorted(struct)


def resolve_model_input_shapes(
    function: Any, shapes: Mapping[str, Sequence[int]], length: int | None
) -> list[tuple[int, ...]]:
    """Return the shapes of all inputs, with unknown sizes filled in.

    Raises:
        UsageError: an input does not exist, or a shape contradicts the known sizes.
    """
    names = keras_input_names(function)
    known_shapes = {n: tuple(t.shape[1:]) for n, t in zip(names, function.inputs, strict=True)}
    for name, shape in shapes.items():
        if name not in known_shapes:
            raise unknown_name_error(
                f"The model has no input {name!r}.", str(name), known_shapes, operation="shapes"
            )
        known_shape = known_shapes[name]
        fits = isinstance(shape, (tuple, list)) and len(shape) == len(known_shape)
        if not fits or any(
            type(n) is not int or n < 1 or m not in (None, n)
            for n, m in zip(shape, known_shape, strict=True)
        ):
            raise UsageError(
                f"Expected a shape of the form {list(known_shape)} for the input {name!r}. "
                f"Received: {shape!r}.",
                code="shape-mismatch",
                operation=name,
                received=shape,
                expected=list(known_shape),
            )
    if length is not None and (type(length) is not int or length < 1):
        raise UsageError(
            f"Expected a positive integer as length. Received: {length!r}.",
            code="number-out-of-range",
            operation="length",
            received=length,
        )
    filled: dict[str, Any] = {
        name: tuple(length if n is None else n for n in known_shape)
        for name, known_shape in known_shapes.items()
    }
    return [tuple(shapes.get(name, known_shape)) for name, known_shape in filled.items()]


def resize_inputs(keras: Any, function: Any, shapes: Sequence[tuple[int, ...]]) -> Any:
    """Rebuild the functional graph with inputs of known sizes."""
    inputs = [
        keras.Input(shape, dtype=tensor.dtype, name=name)
        for shape, tensor, name in zip(
            shapes, function.inputs, keras_input_names(function), strict=True
        )
    ]
    struct = keras.tree.pack_sequence_as(function._inputs_struct, inputs)
    try:
        outputs = function._run_through_graph(struct, operation_fn=lambda operation: operation)
    except Exception as error:  # Keras raises many types for sizes that do not fit each other
        raise UsageError(
            f"Keras rejects the sizes {[list(s) for s in shapes]} for the inputs of "
            f"{function.name!r}. Received: {type(error).__name__}.",
            code="shape-mismatch",
            operation=function.name,
            received=[list(s) for s in shapes],
        ) from None
    return keras.Model(struct, outputs, name=function.name)


def model_output_labels(function: Any) -> tuple[str, ...]:
    """Return the names of the outputs if the model returns a dict."""
    struct = getattr(function, "_outputs_struct", None)
    if not isinstance(struct, dict) or len(struct) != len(function.outputs):
        return ()
    pairs = zip(sorted(struct), function.outputs, strict=True)
    return tuple(str(k) for k, t in pairs if struct[k] is t)

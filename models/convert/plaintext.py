"""Evaluation of a model on public numbers in float64, for calibration and for tests of passes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tfe_bench.errors import UsageError
from tfe_bench.models.convert.graph import Array, Graph
from tfe_bench.models.layers.base import registry

# Largest number of words of one-hot rows.
_MAX_WORDS = 1 << 26


def check_model_inputs(graph: Graph, images: Any) -> dict[str, Array]:
    """Check the inputs of a model; return them by name as float64 with a batch.

    Args:
        images: one array for a model of one input; otherwise arrays by name, or in order unless
            graph.keyed.

    Raises:
        UsageError: names or shapes differ from the model's; the text names the likely cause.
    """
    names = list(graph.inputs)
    if isinstance(images, Mapping):
        arrays = dict(images)
    elif len(names) == 1:
        arrays = {names[0]: images}
    elif isinstance(images, (list, tuple)) and len(images) == len(names) and not graph.keyed:
        arrays = dict(zip(names, images, strict=True))
    else:
        how = "by name: {name: array}" if graph.keyed else "by name or in order"
        raise UsageError(
            f"Expected the inputs {names}, {how}. Received: {type(images).__name__}.",
            code="input-mismatch",
            received=type(images).__name__,
            expected=names,
        )
    if set(arrays) != set(names):
        raise UsageError(
            f"Expected the inputs {names}. Received: {sorted(arrays)}.",
            code="input-mismatch",
            received=sorted(arrays),
            expected=names,
        )
    checked_arrays = {}
    for name in names:
        array = np.asarray(arrays[name])
        if array.dtype.kind not in "fiub":
            raise UsageError(
                f"Expected numbers as input {name!r}. Received: {array.dtype}.",
                code="not-a-number",
                operation=name,
                received=array.dtype,
            )
        expected_shape = graph.inputs[name]
        are_token_ids = name in graph.tokens and array.ndim == len(expected_shape)
        if are_token_ids:
            array = one_hot(name, array, expected_shape)
        if (
            array.shape[1:] != expected_shape
            or array.ndim != len(expected_shape) + 1
            or len(array) == 0
        ):
            hint = ""
            if array.shape == expected_shape:
                hint = " Add the batch: images[None]."
            elif array.ndim == 4 and array.shape[1:] == (expected_shape[-1], *expected_shape[:-1]):
                hint = " These are channels first; transpose to [batch, height, width, channels]."
            raise UsageError(
                f"Expected [batch, {', '.join(map(str, expected_shape))}] as input {name!r}. "
                f"Received: {list(array.shape)}.{hint}",
                code="shape-mismatch",
                operation=name,
                received=list(array.shape),
                expected=list(expected_shape),
            )
        checked_arrays[name] = array.astype(np.float64, copy=False)
        invalid_count = int(((array != 0) & (array != 1)).sum()) if name in graph.masks else 0
        if invalid_count:  # the error contains the number of such values only, as it may be logged
            raise UsageError(
                f"Expected a mask of 0 and 1 as input {name!r}. Received: {invalid_count} of "
                f"{array.size} other values.",
                code="invalid-mask",
                operation=name,
                received=invalid_count,
            )
        if name in graph.tokens and not are_token_ids and not _are_one_hot(checked_arrays[name]):
            raise UsageError(
                f"Expected token numbers, or one-hot rows, as input {name!r}.",
                code="invalid-tokens",
                operation=name,
            )
    if len({len(a) for a in checked_arrays.values()}) != 1:
        raise UsageError(
            "Expected one batch size for all inputs. Received: "
            f"{[list(a.shape) for a in checked_arrays.values()]}.",
            code="batch-mismatch",
            received=[list(a.shape) for a in checked_arrays.values()],
        )
    return checked_arrays


def one_hot(name: str, ids: Array, expected_shape: tuple[int, ...]) -> Array:
    """Convert token numbers [batch, ...] to one-hot rows [batch, ..., n].

    Raises:
        UsageError: the numbers are invalid; the text contains none of them, as it may be logged.
    """
    if ids.dtype.kind not in "iu":
        raise UsageError(
            f"Expected integer tokens as input {name!r}. Received: {ids.dtype}.",
            code="wrong-type",
            operation=name,
            received=ids.dtype,
        )
    invalid_count = int(((ids < 0) | (ids >= expected_shape[-1])).sum())
    if invalid_count:
        raise UsageError(
            f"Expected tokens from 0 to {expected_shape[-1] - 1} as input {name!r}. Received: "
            f"{invalid_count} of {ids.size} others.",
            code="number-out-of-range",
            operation=name,
            received=invalid_count,
        )
    if ids.shape[1:] != expected_shape[:-1]:
        raise UsageError(
            f"Expected tokens [batch, {', '.join(map(str, expected_shape[:-1]))}] as input "
            f"{name!r}. Received: {list(ids.shape)}.",
            code="shape-mismatch",
            operation=name,
            received=list(ids.shape),
        )
    if ids.size * expected_shape[-1] > _MAX_WORDS:
        raise UsageError(
            f"The input {name!r} has {ids.size} tokens of {expected_shape[-1]} words each. Pass "
            f"at most {max(1, _MAX_WORDS // math.prod(expected_shape))} samples at once.",
            code="too-large",
            operation=name,
            received=ids.size,
        )
    rows = np.zeros((*ids.shape, expected_shape[-1]))
    np.put_along_axis(rows, ids[..., None].astype(np.int64), 1.0, -1)
    return rows


def _are_one_hot(rows: Array) -> bool:
    return bool(((rows == 0) | (rows == 1)).all() and (rows.sum(-1) == 1).all())


def scale_owner_inputs(graph: Graph, images: Any) -> dict[str, Array]:
    """Return the inputs as the owner of the data shares them."""
    scaled_arrays = check_model_inputs(graph, images)
    for name, (factor, offset) in graph.scaling.items():
        scaled_arrays[name] = scaled_arrays[name] * np.asarray(factor, np.float64) + np.asarray(
            offset, np.float64
        )
    return scaled_arrays


def evaluate_graph(
    graph: Graph,
    images: Any,
    observer: Callable[[str, Array], None] | None = None,
    rounded: Callable[[str, Array], Array] = lambda name, value: value,
    approximated: bool = False,
) -> list[Array]:
    """Compute the model's outputs.

    Args:
        observer: receives every value by name, and the input of a fused activation as "name:sum".
        rounded: transforms each value before other layers use it.
        approximated: use the short series of private layers where they do.
    """
    values: dict[str, Any] = dict(scale_owner_inputs(graph, images))
    last_user = {name: use[-1] for name, use in graph.find_users().items() if use}
    observe = observer or (lambda name, value: None)
    for name in values:
        values[name] = rounded(name, values[name])
        observe(name, values[name])
    for layer in graph.layers:
        input_values = [values[i] for i in layer.inputs]
        kind = registry.get_layer_kind(layer.op)
        value = (kind.compute_approximation if approximated else kind.compute_plaintext)(
            layer, input_values, observe
        )
        values[layer.name] = rounded(layer.name, value)
        observe(layer.name, values[layer.name])
        for i in set(layer.inputs):
            if last_user[i] == layer.name:
                del values[i]
    return finish_model_outputs(graph, [values[o] for o in graph.outputs])


def finish_model_outputs(graph: Graph, outputs: Sequence[Array]) -> list[Array]:
    """Return the outputs as their recipient reads them."""
    finished_outputs = list(outputs)
    if graph.results:
        pairs = zip(outputs, graph.results, strict=True)
        finished_outputs = [
            np.asarray(y * np.asarray(factor) + np.asarray(offset)) for y, (factor, offset) in pairs
        ]
    return [y.reshape(len(y)) if i in graph.flat else y for i, y in enumerate(finished_outputs)]

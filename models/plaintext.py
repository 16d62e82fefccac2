"""A model on public numbers, in float64: what calibration sees, and what passes are tested with."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tfe_bench.errors import UsageError
from tfe_bench.models.graph import Array, Graph
from tfe_bench.models.kinds import registry

# Words of the rows that numbers of tokens become.
_MAX_WORDS = 1 << 26


def check_model_inputs(graph: Graph, images: Any) -> dict[str, Array]:
    """The inputs by name, float64 with a batch.

    Args:
        images: one array for a model of one input, else by name, or in order unless graph.keyed.

    Raises:
        UsageError: other names or shapes than the model's; the likely cause is named.
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
            f"The model wants inputs {names}, {how}. Received: {type(images).__name__}."
        )
    if set(arrays) != set(names):
        raise UsageError(f"The model wants inputs {names}. Received: {sorted(arrays)}.")
    checked_arrays = {}
    for name in names:
        array = np.asarray(arrays[name])
        if array.dtype.kind not in "fiub":
            raise UsageError(f"The input {name!r} wants numbers. Received: {array.dtype}.")
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
                f"The input {name!r} wants [batch, {', '.join(map(str, expected_shape))}]. Received: "
                f"{list(array.shape)}.{hint}"
            )
        checked_arrays[name] = array.astype(np.float64, copy=False)
        invalid_count = int(((array != 0) & (array != 1)).sum()) if name in graph.masks else 0
        if invalid_count:  # (how many, and not which: an error may end in a log)
            raise UsageError(
                f"The input {name!r} is a mask, of 0 and 1. Received: {invalid_count} of {array.size} "
                "that are others."
            )
        if name in graph.tokens and not are_token_ids and not _are_one_hot(checked_arrays[name]):
            raise UsageError(
                f"The input {name!r} wants numbers of tokens, or rows with one 1 each."
            )
    if len({len(a) for a in checked_arrays.values()}) != 1:
        raise UsageError(
            f"All inputs have one batch. Received: {[list(a.shape) for a in checked_arrays.values()]}."
        )
    return checked_arrays


def one_hot(name: str, ids: Array, expected_shape: tuple[int, ...]) -> Array:
    """Numbers of tokens [batch, ...] as rows [batch, ..., n].

    Raises:
        UsageError: what are no such numbers; none is in the error, which may end in a log.
    """
    if ids.dtype.kind not in "iu":
        raise UsageError(f"The input {name!r} wants tokens as integers. Received: {ids.dtype}.")
    invalid_count = int(((ids < 0) | (ids >= expected_shape[-1])).sum())
    if invalid_count:
        raise UsageError(
            f"The input {name!r} wants tokens from 0 to {expected_shape[-1] - 1}. Received: {invalid_count} of "
            f"{ids.size} that are others."
        )
    if ids.shape[1:] != expected_shape[:-1]:
        raise UsageError(
            f"The input {name!r} wants tokens [batch, {', '.join(map(str, expected_shape[:-1]))}]. "
            f"Received: {list(ids.shape)}."
        )
    if ids.size * expected_shape[-1] > _MAX_WORDS:
        raise UsageError(
            f"The input {name!r} would be {ids.size} rows of {expected_shape[-1]} words. Give fewer "
            f"samples at once: {max(1, _MAX_WORDS // math.prod(expected_shape))} at most."
        )
    rows = np.zeros((*ids.shape, expected_shape[-1]))
    np.put_along_axis(rows, ids[..., None].astype(np.int64), 1.0, -1)
    return rows


def _are_one_hot(rows: Array) -> bool:
    return bool(((rows == 0) | (rows == 1)).all() and (rows.sum(-1) == 1).all())


def scale_owner_inputs(graph: Graph, images: Any) -> dict[str, Array]:
    """The inputs as the owner of the data shares them."""
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
    """The model's outputs.

    Args:
        watch: hears of every value by name, and of what goes into a fused activation as "name:sum".
        rounded: what becomes of a value before anything else takes it.
        approximated: by the short series that private layers take, where they do.
    """
    values: dict[str, Any] = dict(scale_owner_inputs(graph, images))
    last_user = {name: use[-1] for name, use in graph.find_users().items() if use}
    observe = observer or (lambda name, value: None)
    for name in values:
        values[name] = rounded(name, values[name])
        observe(name, values[name])
    for layer in graph.layers:
        input_values = [values[i] for i in layer.inputs]
        kind = registry.get_kind(layer.op)
        value = (kind.compute_approximation if approximated else kind.compute_plaintext)(
            layer, input_values, observe
        )
        values[layer.name] = rounded(layer.name, value)
        observe(layer.name, values[layer.name])
        for i in set(layer.inputs):
            if last_user[i] == layer.name:
                del values[i]
    return finish_outputs(graph, [values[o] for o in graph.outputs])


def finish_outputs(graph: Graph, outputs: Sequence[Array]) -> list[Array]:
    """The outputs as whoever gets them reads them."""
    finished_outputs = list(outputs)
    if graph.results:
        pairs = zip(outputs, graph.results, strict=True)
        finished_outputs = [
            np.asarray(y * np.asarray(factor) + np.asarray(offset)) for y, (factor, offset) in pairs
        ]
    return [y.reshape(len(y)) if i in graph.flat else y for i, y in enumerate(finished_outputs)]

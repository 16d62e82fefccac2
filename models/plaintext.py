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
_MOST = 1 << 26


def check_images(graph: Graph, images: Any) -> dict[str, Array]:
    """The inputs by name, float64 with a batch.

    Args:
        images: one array for a model of one input, else by name, or in order unless graph.keyed.

    Raises:
        UsageError: other names or shapes than the model's; the likely cause is named.
    """
    names = list(graph.inputs)
    if isinstance(images, Mapping):
        given = dict(images)
    elif len(names) == 1:
        given = {names[0]: images}
    elif isinstance(images, (list, tuple)) and len(images) == len(names) and not graph.keyed:
        given = dict(zip(names, images, strict=True))
    else:
        how = "by name: {name: array}" if graph.keyed else "by name or in order"
        raise UsageError(
            f"The model wants inputs {names}, {how}. Received: {type(images).__name__}."
        )
    if set(given) != set(names):
        raise UsageError(f"The model wants inputs {names}. Received: {sorted(given)}.")
    found = {}
    for name in names:
        array = np.asarray(given[name])
        if array.dtype.kind not in "fiub":
            raise UsageError(f"The input {name!r} wants numbers. Received: {array.dtype}.")
        wanted = graph.inputs[name]
        numbers = name in graph.tokens and array.ndim == len(wanted)
        if numbers:
            array = one_hot(name, array, wanted)
        if array.shape[1:] != wanted or array.ndim != len(wanted) + 1 or len(array) == 0:
            hint = ""
            if array.shape == wanted:
                hint = " Add the batch: images[None]."
            elif array.ndim == 4 and array.shape[1:] == (wanted[-1], *wanted[:-1]):
                hint = " These are channels first; transpose to [batch, height, width, channels]."
            raise UsageError(
                f"The input {name!r} wants [batch, {', '.join(map(str, wanted))}]. Received: "
                f"{list(array.shape)}.{hint}"
            )
        found[name] = array.astype(np.float64, copy=False)
        others = int(((array != 0) & (array != 1)).sum()) if name in graph.masks else 0
        if others:  # (how many, and not which: an error may end in a log)
            raise UsageError(
                f"The input {name!r} is a mask, of 0 and 1. Received: {others} of {array.size} "
                "that are others."
            )
        if name in graph.tokens and not numbers and not _are_one_hot(found[name]):
            raise UsageError(
                f"The input {name!r} wants numbers of tokens, or rows with one 1 each."
            )
    if len({len(a) for a in found.values()}) != 1:
        raise UsageError(
            f"All inputs have one batch. Received: {[list(a.shape) for a in found.values()]}."
        )
    return found


def one_hot(name: str, ids: Array, wanted: tuple[int, ...]) -> Array:
    """Numbers of tokens [batch, ...] as rows [batch, ..., n].

    Raises:
        UsageError: what are no such numbers; none is in the error, which may end in a log.
    """
    if ids.dtype.kind not in "iu":
        raise UsageError(f"The input {name!r} wants tokens as integers. Received: {ids.dtype}.")
    outside = int(((ids < 0) | (ids >= wanted[-1])).sum())
    if outside:
        raise UsageError(
            f"The input {name!r} wants tokens from 0 to {wanted[-1] - 1}. Received: {outside} of "
            f"{ids.size} that are others."
        )
    if ids.shape[1:] != wanted[:-1]:
        raise UsageError(
            f"The input {name!r} wants tokens [batch, {', '.join(map(str, wanted[:-1]))}]. "
            f"Received: {list(ids.shape)}."
        )
    if ids.size * wanted[-1] > _MOST:
        raise UsageError(
            f"The input {name!r} would be {ids.size} rows of {wanted[-1]} words. Give fewer "
            f"samples at once: {max(1, _MOST // math.prod(wanted))} at most."
        )
    found = np.zeros((*ids.shape, wanted[-1]))
    np.put_along_axis(found, ids[..., None].astype(np.int64), 1.0, -1)
    return found


def _are_one_hot(rows: Array) -> bool:
    return bool(((rows == 0) | (rows == 1)).all() and (rows.sum(-1) == 1).all())


def scaled(graph: Graph, images: Any) -> dict[str, Array]:
    """The inputs as the owner of the data shares them."""
    found = check_images(graph, images)
    for name, (factor, offset) in graph.scaling.items():
        found[name] = found[name] * np.asarray(factor, np.float64) + np.asarray(offset, np.float64)
    return found


def evaluate(
    graph: Graph,
    images: Any,
    watch: Callable[[str, Array], None] | None = None,
    rounded: Callable[[str, Array], Array] = lambda name, value: value,
    approximated: bool = False,
) -> list[Array]:
    """The model's outputs.

    Args:
        watch: hears of every value by name, and of what goes into a fused activation as "name:sum".
        rounded: what becomes of a value before anything else takes it.
        approximated: by the short series that private layers take, where they do.
    """
    values: dict[str, Any] = dict(scaled(graph, images))
    last = {name: use[-1] for name, use in graph.uses().items() if use}
    seen = watch or (lambda name, value: None)
    for name in values:
        values[name] = rounded(name, values[name])
        seen(name, values[name])
    for layer in graph.layers:
        given = [values[i] for i in layer.inputs]
        kind = registry.find(layer.op)
        value = (kind.approximated if approximated else kind.plain)(layer, given, seen)
        values[layer.name] = rounded(layer.name, value)
        seen(layer.name, values[layer.name])
        for i in set(layer.inputs):
            if last[i] == layer.name:
                del values[i]
    return finished(graph, [values[o] for o in graph.outputs])


def finished(graph: Graph, outputs: Sequence[Array]) -> list[Array]:
    """The outputs as whoever gets them reads them."""
    found = list(outputs)
    if graph.results:
        pairs = zip(outputs, graph.results, strict=True)
        found = [np.asarray(y * np.asarray(by) + np.asarray(more)) for y, (by, more) in pairs]
    return [y.reshape(len(y)) if i in graph.flat else y for i, y in enumerate(found)]

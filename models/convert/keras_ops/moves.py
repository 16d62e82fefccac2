"""Operations that rearrange each sample's elements: x[:, 1:3], reshape, transpose, split, flip.

No operation has a conversion of its own: each is run on the numbers of an input's elements, and its
output shows the source of each element.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tfe_bench.models.layers import base as L
from tfe_bench.models.layers.base import Array, Shape

# Bound on the elements of an arbitrary rearrangement, which a model's header lists.
_MOST_PLACES = 1 << 16
_BATCH = 3


@L.register_reader(
    *("Reshape", "Squeeze", "ExpandDims", "Ravel"),
    *("Transpose", "Swapaxes", "Moveaxis", "Rot90", "Flip", "Fliplr", "Roll"),
    *("Repeat", "Tile", "BroadcastTo", "DepthToSpace", "SpaceToDepth"),
)
def convert_keras_move(
    r: L.Reader, op: L.KerasOperation, x: L.TensorValue | None = None, **settings: Any
) -> list[str]:
    """Convert an operation of one tensor; its further arguments are in the Keras object."""
    tensor = settings.pop("array", x)
    if not isinstance(tensor, L.TensorValue):
        raise L.UnsupportedLayer("requires a tensor")
    return convert_keras_placement(r, op, tensor, ())


@L.register_reader("Split", "ArraySplit", "Unstack")
def convert_keras_split(r: L.Reader, op: L.KerasOperation, x: L.TensorValue, **_: Any) -> list[str]:
    return convert_keras_placement(r, op, x, ())


@L.register_reader("GetItem")
def convert_keras_get_item(
    r: L.Reader, op: L.KerasOperation, x: L.TensorValue, key: Any
) -> list[str]:
    keys = key if isinstance(key, tuple) else (key,)
    if any(isinstance(k, L.TensorValue) or type(k).__name__ == "KerasTensor" for k in keys):
        raise L.UnsupportedLayer("at a private place")
    return convert_keras_placement(r, op, x, (key,))


@L.register_reader("Take")
def convert_keras_take(
    r: L.Reader, op: L.KerasOperation, x: L.TensorValue, indices: Any, axis: Any
) -> list[str]:
    if isinstance(indices, L.TensorValue):
        raise L.UnsupportedLayer("at private places")
    return convert_keras_placement(r, op, x, (L.read_constant(indices).astype(np.int64),))


@L.register_reader("Pad")
def convert_keras_pad(
    r: L.Reader,
    op: L.KerasOperation,
    x: L.TensorValue,
    pad_width: Any,
    mode: str,
    constant_values: Any,
) -> Any:
    """Convert padding: modes that repeat values are rearrangements; zeros need a layer."""
    if mode != "constant":
        return convert_keras_placement(r, op, x, ())
    if constant_values is not None and L.read_constant(constant_values).any():
        raise L.UnsupportedLayer("with numbers other than 0")
    sides = np.broadcast_to(np.asarray(pad_width, int), (len(x.shape) + 1, 2)).tolist()
    if any(sides[0]):
        raise L.UnsupportedLayer("pads the batch")
    if not any(sides[-1]) and 2 <= len(x.shape) <= 4:
        return r.add_layer(op.name, "zero_pad", [x.name], None, pads=sides[1:-1])
    if len(x.shape) > 3:
        raise L.UnsupportedLayer("pads the last of more than three axes")
    # (a new channel axis, which is not padded)
    apart = _add_reshape_if_needed(
        r, r.make_unique(f"{op.name}/apart"), x.name, x.shape, (*x.shape, 1)
    )
    padded = r.add_layer(
        r.make_unique(f"{op.name}/padded"), "zero_pad", [apart], None, pads=sides[1:]
    )
    return _add_reshape_if_needed(r, op.name, padded, (*op.shape, 1), op.shape)


@L.register_reader("Concatenate")
def convert_keras_concatenate(
    r: L.Reader, op: L.KerasOperation, xs: Sequence[Any], axis: Any
) -> str:
    values = _check_keras_tensors(xs)
    L.check_same_rank(values)
    axis = L.canonicalize_axis(axis, len(op.shape) + 1)
    return r.add_layer(op.name, "concat", [v.name for v in values], None, axis=axis)


@L.register_reader("Stack")
def convert_keras_stack(r: L.Reader, op: L.KerasOperation, x: Sequence[Any], axis: Any) -> str:
    values = _check_keras_tensors(x)
    axis = L.canonicalize_axis(axis, len(op.shape) + 1)
    row_shape = list(op.shape)
    row_shape[axis - 1] = 1
    rows = [
        r.add_layer(r.make_unique(f"{op.name}/row"), "reshape", [v.name], None, shape=row_shape)
        for v in values
    ]
    return r.add_layer(op.name, "concat", rows, None, axis=axis)


def _check_keras_tensors(xs: Sequence[Any]) -> list[L.TensorValue]:
    values = [v for v in xs if isinstance(v, L.TensorValue)]
    if len(values) != len(xs):
        raise L.UnsupportedLayer("of tensors and numbers; only tensors are supported")
    return values


# ---- the source of each element


def convert_keras_placement(
    r: L.Reader, op: L.KerasOperation, x: L.TensorValue, arguments: tuple[Any, ...]
) -> list[str]:
    """Add an operation that rearranges elements; returns the names of its outputs."""
    size = math.prod(x.shape)
    element_numbers = np.arange(_BATCH * size).reshape(_BATCH, *x.shape)
    try:
        outputs = op.keras_operation.call(
            r.keras.ops.convert_to_tensor(element_numbers), *arguments
        )
    except Exception as error:  # operations raise various errors for a batch of another size
        raise L.UnsupportedLayer(
            f"which fails for another batch size: {type(error).__name__}"
        ) from None
    output_list = list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]
    names = []
    for i, output in enumerate(output_list):
        places = np.asarray(r.keras.ops.convert_to_numpy(output))
        if len(output_list) != len(op.shapes) or places.shape != (_BATCH, *op.shapes[i]):
            raise L.UnsupportedLayer("the batch's axis does not stay the first")
        if places.ndim == 1 and r.training:
            raise L.UnsupportedLayer(
                "gives one number for each sample, without an axis; keep the axis"
            )
        first = np.atleast_1d(places[0])  # (a number for each sample has an axis of 1 here)
        if first.size == 0:
            raise L.UnsupportedLayer("leaves nothing")
        if (
            any((np.atleast_1d(places[b]) != first + b * size).any() for b in range(_BATCH))
            or first.max() >= size
        ):
            raise L.UnsupportedLayer("puts values of one sample into another")
        name = op.name if len(output_list) == 1 else r.make_unique(f"{op.name}/{i}")
        names.append(_add_placement_layers(r, name, x, first))
    return names


def _add_placement_layers(r: L.Reader, name: str, x: L.TensorValue, places: Array) -> str:
    """Add the elements at some places, by the simplest layers that select them."""
    if places.size == math.prod(x.shape) and (places.reshape(-1) == np.arange(places.size)).all():
        return _add_reshape_if_needed(r, name, x.name, x.shape, places.shape)
    axis_matches = _match_tensor_axes(x.shape, places)
    if axis_matches is None:
        if places.size > _MOST_PLACES:
            raise L.UnsupportedLayer(
                f"moves {places.size} elements one by one; {_MOST_PLACES} are supported"
            )
        row = _add_reshape_if_needed(
            r, r.make_unique(f"{name}/row"), x.name, x.shape, (math.prod(x.shape),)
        )
        flat = places.reshape(-1).tolist()
        selected = r.add_layer(
            r.make_unique(f"{name}/taken"), "take", [row], None, axis=1, places=flat
        )
        return _add_reshape_if_needed(r, name, selected, (places.size,), places.shape)
    value, shape = x.name, list(x.shape)
    for axis, (_, places_along_axis) in enumerate(axis_matches):
        if places_along_axis != list(range(shape[axis])):
            value = _add_selection_layer(
                r, name, value, axis + 1, places_along_axis, shape[axis], len(shape)
            )
            shape[axis] = len(places_along_axis)
    order = sorted(range(len(shape)), key=lambda a: axis_matches[a][0])
    if order != sorted(order):
        axes = [a + 1 for a in order]
        value = r.add_layer(r.make_unique(f"{name}/turned"), "permute", [value], None, order=axes)
        shape = [shape[a] for a in order]
    used = {out for out, _ in axis_matches}
    once = [n if i in used else 1 for i, n in enumerate(places.shape)]
    value = _add_reshape_if_needed(
        r, r.make_unique(f"{name}/shaped"), value, tuple(shape), tuple(once)
    )
    if tuple(once) != places.shape:
        times = [1 if i in used else n for i, n in enumerate(places.shape)]
        value = r.add_layer(r.make_unique(f"{name}/repeated"), "repeat", [value], None, times=times)
    return value


def _add_selection_layer(
    r: L.Reader, name: str, value: str, axis: int, places: list[int], size: int, rank: int
) -> str:
    """Add some places along an axis of a size: a slice, or any places."""
    if places == list(range(places[0], places[0] + len(places))):
        sides = [[0, 0] for _ in range(rank)]
        sides[axis - 1] = [places[0], size - places[-1] - 1]
        return r.add_layer(r.make_unique(f"{name}/part"), "crop", [value], None, sides=sides)
    if len(places) > _MOST_PLACES:
        raise L.UnsupportedLayer(f"selects {len(places)} places; {_MOST_PLACES} are supported")
    return r.add_layer(
        r.make_unique(f"{name}/taken"), "take", [value], None, axis=axis, places=places
    )


def _add_reshape_if_needed(r: L.Reader, name: str, value: str, old: Shape, new: Shape) -> str:
    if tuple(old) == tuple(new):
        return value
    return r.add_layer(name, "reshape", [value], None, shape=[int(n) for n in new])


def _match_tensor_axes(shape: Shape, places: Array) -> list[tuple[int, list[int]]] | None:
    """Match each axis of an input with the output axis that it becomes, and its places in order.

    An input axis of which one place remains has no output axis (-1). None: the axes are not
    separable.
    """
    matches: list[tuple[int, list[int]]] = []
    for coordinate in np.unravel_index(places, shape):
        varies = [
            axis
            for axis in range(places.ndim)
            if (coordinate != coordinate.take([0], axis=axis)).any()
        ]
        if len(varies) > 1 or any(varies == [out] for out, _ in matches):
            return None
        out = varies[0] if varies else -1
        line = np.moveaxis(coordinate, out, -1).reshape(-1, coordinate.shape[out])[0]
        matches.append((out, line.tolist() if varies else line[:1].tolist()))
    return matches

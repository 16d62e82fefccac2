"""What puts the elements of each sample elsewhere: x[:, 1:3], reshape, transpose, split, flip.

None is told apart by its name: the operation itself is run on the numbers of an input's elements,
and what comes out says which element goes where.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tfe_bench.models.kinds.calls import Operation, Value, numbers, one_rank, reads
from tfe_bench.models.kinds.layer import Array, Shape
from tfe_bench.models.kinds.reading import Reader, Unfit, axis_of

# Elements that may be put anywhere: what a model's header lists.
_MOST_PLACES = 1 << 16
_BATCH = 3


@reads(
    *("Reshape", "Squeeze", "ExpandDims", "Ravel"),
    *("Transpose", "Swapaxes", "Moveaxis", "Rot90", "Flip", "Fliplr", "Roll"),
    *("Repeat", "Tile", "BroadcastTo", "DepthToSpace", "SpaceToDepth"),
)
def moved(r: Reader, op: Operation, x: Value | None = None, **settings: Any) -> list[str]:
    """Operations of one tensor; what else they are told is in Keras' own object."""
    given = settings.pop("array", x)
    if not isinstance(given, Value):
        raise Unfit("wants a tensor")
    return placed(r, op, given, ())


@reads("Split", "ArraySplit", "Unstack")
def parts(r: Reader, op: Operation, x: Value, **_: Any) -> list[str]:
    return placed(r, op, x, ())


@reads("GetItem")
def get_item(r: Reader, op: Operation, x: Value, key: Any) -> list[str]:
    keys = key if isinstance(key, tuple) else (key,)
    if any(isinstance(k, Value) or type(k).__name__ == "KerasTensor" for k in keys):
        raise Unfit("at a private place")
    return placed(r, op, x, (key,))


@reads("Take")
def take(r: Reader, op: Operation, x: Value, indices: Any, axis: Any) -> list[str]:
    if isinstance(indices, Value):
        raise Unfit("at private places")
    return placed(r, op, x, (numbers(indices).astype(np.int64),))


@reads("Pad")
def pad(r: Reader, op: Operation, x: Value, pad_width: Any, mode: str, constant_values: Any) -> Any:
    """Modes that repeat values are moves; zeros come from a layer of their own."""
    if mode != "constant":
        return placed(r, op, x, ())
    if constant_values is not None and numbers(constant_values).any():
        raise Unfit("with numbers other than 0")
    sides = np.broadcast_to(np.asarray(pad_width, int), (len(x.shape) + 1, 2)).tolist()
    if any(sides[0]):
        raise Unfit("pads the batch")
    if not any(sides[-1]) and 2 <= len(x.shape) <= 4:
        return r.emit(op.name, "zero_pad", [x.name], None, pads=sides[1:-1])
    if len(x.shape) > 3:
        raise Unfit("pads the last of so many axes")
    # (a channel of its own, which is not padded)
    apart = _reshaped(r, r.unique(f"{op.name}/apart"), x.name, x.shape, (*x.shape, 1))
    padded = r.emit(r.unique(f"{op.name}/padded"), "zero_pad", [apart], None, pads=sides[1:])
    return _reshaped(r, op.name, padded, (*op.shape, 1), op.shape)


@reads("Concatenate")
def concatenate(r: Reader, op: Operation, xs: Sequence[Any], axis: Any) -> str:
    values = _tensors(xs)
    one_rank(values)
    axis = axis_of(axis, len(op.shape) + 1)
    return r.emit(op.name, "concat", [v.name for v in values], None, axis=axis)


@reads("Stack")
def stack(r: Reader, op: Operation, x: Sequence[Any], axis: Any) -> str:
    values = _tensors(x)
    axis = axis_of(axis, len(op.shape) + 1)
    each = list(op.shape)
    each[axis - 1] = 1
    rows = [
        r.emit(r.unique(f"{op.name}/row"), "reshape", [v.name], None, shape=each) for v in values
    ]
    return r.emit(op.name, "concat", rows, None, axis=axis)


def _tensors(xs: Sequence[Any]) -> list[Value]:
    values = [v for v in xs if isinstance(v, Value)]
    if len(values) != len(xs):
        raise Unfit("of tensors and numbers; only tensors are supported")
    return values


# ---- which element goes where


def placed(r: Reader, op: Operation, x: Value, more: tuple[Any, ...]) -> list[str]:
    """Writes an operation that moves elements; returns the names of its values."""
    size = math.prod(x.shape)
    own = np.arange(_BATCH * size).reshape(_BATCH, *x.shape)
    try:
        found = op.own.call(r.keras.ops.convert_to_tensor(own), *more)
    except Exception as error:  # whatever an operation makes of a batch of its own size
        raise Unfit(f"for any batch it does not run: {type(error).__name__}") from None
    several = list(found) if isinstance(found, (list, tuple)) else [found]
    names = []
    for i, each in enumerate(several):
        places = np.asarray(r.keras.ops.convert_to_numpy(each))
        if len(several) != len(op.shapes) or places.shape != (_BATCH, *op.shapes[i]):
            raise Unfit("the batch's axis does not stay the first")
        if places.ndim == 1 and r.training:
            raise Unfit("gives one number for each sample, without an axis; keep the axis")
        first = np.atleast_1d(places[0])  # (a number for each sample has an axis of 1 here)
        if first.size == 0:
            raise Unfit("leaves nothing")
        if (
            any((np.atleast_1d(places[b]) != first + b * size).any() for b in range(_BATCH))
            or first.max() >= size
        ):
            raise Unfit("puts values of one sample into another")
        name = op.name if len(several) == 1 else r.unique(f"{op.name}/{i}")
        names.append(_written(r, name, x, first))
    return names


def _written(r: Reader, name: str, x: Value, places: Array) -> str:
    """The elements at some places, by the simplest layers that give them."""
    if places.size == math.prod(x.shape) and (places.reshape(-1) == np.arange(places.size)).all():
        return _reshaped(r, name, x.name, x.shape, places.shape)
    along = _axes(x.shape, places)
    if along is None:
        if places.size > _MOST_PLACES:
            raise Unfit(f"moves {places.size} elements one by one; {_MOST_PLACES} are supported")
        row = _reshaped(r, r.unique(f"{name}/row"), x.name, x.shape, (math.prod(x.shape),))
        flat = places.reshape(-1).tolist()
        taken = r.emit(r.unique(f"{name}/taken"), "take", [row], None, axis=1, places=flat)
        return _reshaped(r, name, taken, (places.size,), places.shape)
    value, shape = x.name, list(x.shape)
    for axis, (_, own) in enumerate(along):
        if own != list(range(shape[axis])):
            value = _taken(r, name, value, axis + 1, own, shape[axis], len(shape))
            shape[axis] = len(own)
    order = sorted(range(len(shape)), key=lambda a: along[a][0])
    if order != sorted(order):
        axes = [a + 1 for a in order]
        value = r.emit(r.unique(f"{name}/turned"), "permute", [value], None, order=axes)
        shape = [shape[a] for a in order]
    used = {out for out, _ in along}
    once = [n if i in used else 1 for i, n in enumerate(places.shape)]
    value = _reshaped(r, r.unique(f"{name}/shaped"), value, tuple(shape), tuple(once))
    if tuple(once) != places.shape:
        times = [1 if i in used else n for i, n in enumerate(places.shape)]
        value = r.emit(r.unique(f"{name}/repeated"), "repeat", [value], None, times=times)
    return value


def _taken(
    r: Reader, name: str, value: str, axis: int, places: list[int], size: int, rank: int
) -> str:
    """Some places along an axis of so many: a part of it, or any of them."""
    if places == list(range(places[0], places[0] + len(places))):
        sides = [[0, 0] for _ in range(rank)]
        sides[axis - 1] = [places[0], size - places[-1] - 1]
        return r.emit(r.unique(f"{name}/part"), "crop", [value], None, sides=sides)
    if len(places) > _MOST_PLACES:
        raise Unfit(f"takes {len(places)} places; {_MOST_PLACES} are supported")
    return r.emit(r.unique(f"{name}/taken"), "take", [value], None, axis=axis, places=places)


def _reshaped(r: Reader, name: str, value: str, old: Shape, new: Shape) -> str:
    if tuple(old) == tuple(new):
        return value
    return r.emit(name, "reshape", [value], None, shape=[int(n) for n in new])


def _axes(shape: Shape, places: Array) -> list[tuple[int, list[int]]] | None:
    """For each axis of an input the output's axis that it becomes, and its places in order.

    An axis of which one place is left becomes none (-1).  None: the axes do not go apart.
    """
    found: list[tuple[int, list[int]]] = []
    for coordinate in np.unravel_index(places, shape):
        varies = [
            axis
            for axis in range(places.ndim)
            if (coordinate != coordinate.take([0], axis=axis)).any()
        ]
        if len(varies) > 1 or any(varies == [out] for out, _ in found):
            return None
        out = varies[0] if varies else -1
        line = np.moveaxis(coordinate, out, -1).reshape(-1, coordinate.shape[out])[0]
        found.append((out, line.tolist() if varies else line[:1].tolist()))
    return found

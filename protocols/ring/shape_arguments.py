"""Arguments of shape operations: public shapes, axes, indices and paddings, parsed and checked."""

from __future__ import annotations

import builtins
from typing import Any

import numpy as np
import numpy.typing as npt

from tfe_bench.errors import UsageError
from tfe_bench.lazy_tensorflow import tf
from tfe_bench.protocols.ring.checks import check_private_rank_is_known, is_integer, normalize_axis
from tfe_bench.protocols.session import tensor_ops
from tfe_bench.protocols.session.sharing import Shared
from tfe_bench.protocols.session.types import Public, Shape


def as_public_integer_array(values: Public) -> npt.NDArray[np.integer[Any]] | None:
    """Return known public integers; None for ragged, symbolic or private values."""
    try:
        array = np.asarray(values)
    except (TypeError, ValueError, NotImplementedError):
        return None
    if array.size == 0:
        array = array.astype(np.int64)
    return array if array.dtype.kind in "iu" else None


def parse_public_integers(
    operation: str, noun: str, values: Public, count: int | None = None
) -> list[int]:
    """Return a list of public integers, of a given length."""
    array = as_public_integer_array(values)
    if array is None or array.ndim != 1:
        raise UsageError(
            f"{operation} expects {noun} as public integers. Received: {values!r}.",
            code="not-an-integer",
            operation=operation,
            received=repr(values),
        )
    if count is not None and len(array) != count:
        raise UsageError(
            f"{operation} expects {noun} for {count} axes. Received: {len(array)} of them.",
            code="rank-mismatch",
            operation=operation,
            received=len(array),
            expected=count,
        )
    return [int(v) for v in array]


def append_words_axis(x: Shared, per_axis: list[int], words_value: int) -> list[int]:
    """Return a number for each axis of elements, and for the axis of words where there is one."""
    return per_axis if x.limbs == 1 else [*per_axis, words_value]


def share_field_shape(x: Shared, shape: Shape) -> Shape:
    """Return a shape of elements as the shape of x's fields: a list of integers or a tensor."""
    if isinstance(shape, list):
        return append_words_axis(x, shape, x.limbs)
    shape = tf.cast(shape, tf.int64)
    return shape if x.limbs == 1 else tf.concat([shape, [x.limbs]], axis=0)


def parse_public_shape(operation: str, shape: int | Shape) -> list[int] | tf.Tensor:
    """Return a shape as a list of integers, or as the public tensor that was passed."""
    static: Any = getattr(shape, "as_list", None)
    if static is not None:
        shape = static()
    if tensor_ops.is_tensor(shape):
        return shape
    if isinstance(shape, (list, tuple)) and any(tensor_ops.is_tensor(d) for d in shape):
        return tf.stack([tf.cast(d, tf.int64) for d in shape])
    return parse_public_integers(
        operation, "a shape", shape if isinstance(shape, (list, tuple, np.ndarray)) else [shape]
    )


def check_same_shapes(operation: str, values: list[Shared], axis: int | None) -> None:
    """Check that static shapes agree except along one axis."""
    shapes = [v.shape.as_list() for v in values]
    for shape in shapes[1:]:
        fits = len(shape) == len(shapes[0]) and all(
            i == axis or d is None or e is None or d == e
            for i, (d, e) in enumerate(zip(shapes[0], shape, strict=True))
        )
        if not fits:
            but = "" if axis is None else f" but along axis {axis}"
            raise UsageError(
                f"{operation} expects tensors of one shape{but}. Received: {shapes[0]} and "
                f"{shape}.",
                code="shape-mismatch",
                operation=operation,
                received=f"{shapes[0]}, {shape}",
            )


def known_axis_size(operation: str, x: Shared, axis: int) -> int:
    size = x.shape[axis]
    if size is None:
        raise UsageError(
            f"{operation} expects a known size of axis {axis}. Received: {x!r}.",
            code="unknown-shape",
            operation=operation,
            received=repr(x),
        )
    return int(size)


def check_index(x: Shared, axis: int, key: int | builtins.slice) -> None:
    size = x.shape[axis]
    if isinstance(key, int):
        if size is not None and not -size <= key < size:
            raise UsageError(
                f"getitem expects an index from {-size} to {size - 1} on axis {axis}. Received: "
                f"{key}.",
                code="index-out-of-range",
                operation="getitem",
                received=key,
            )
        return
    parts = [p for p in (key.start, key.stop, key.step) if p is not None]
    if key.step == 0 or not all(map(is_integer, parts)):
        raise UsageError(
            "getitem expects slices of public integers with a step other than 0. Received: "
            f"{key!r} on "
            f"axis {axis}.",
            code="invalid-slice",
            operation="getitem",
            received=repr(key),
        )


def parse_paddings(x: Shared, paddings: Public) -> npt.NDArray[np.integer[Any]]:
    rank = check_private_rank_is_known("pad", x)
    pairs = as_public_integer_array(paddings)
    if pairs is not None and rank == pairs.size == 0:
        pairs = pairs.reshape(0, 2)
    if pairs is None or pairs.shape != (rank, 2) or (pairs < 0).any():
        raise UsageError(
            f"pad expects a pair of public sizes >= 0 for each of {rank} axes. "
            f"Received: {paddings!r}.",
            code="invalid-padding",
            operation="pad",
            received=repr(paddings),
        )
    return pairs


def check_gather(
    operation: str, x: Shared, indices: Public | Shared, axis: int | None, batch_dims: int
) -> tuple[int, int]:
    """Return the axis and the number of batch axes of a gather, both from 0.

    Raises:
        UsageError: they do not fit x and the indices.
    """
    rank = check_private_rank_is_known(operation, x)
    shape: Any = getattr(indices, "shape", None)
    if shape is None:
        shape = np.shape(_known_indices(indices))
    sizes: list[int | None] = shape.as_list() if hasattr(shape, "as_list") else list(shape)
    if not is_integer(batch_dims) or not -len(sizes) <= batch_dims <= len(sizes):
        raise UsageError(
            f"{operation} expects batch_dims from {-len(sizes)} to {len(sizes)}, the axes of the "
            f"indices. Received: {batch_dims!r}.",
            code="axis-out-of-range",
            operation=operation,
            received=batch_dims,
        )
    batch = int(batch_dims) + (len(sizes) if batch_dims < 0 else 0)
    at = normalize_axis(operation, batch if axis is None else axis, rank)
    whole = x.shape.as_list()
    fits = batch <= at and all(
        a is None or b is None or a == b for a, b in zip(whole[:batch], sizes[:batch], strict=True)
    )
    if not fits:
        raise UsageError(
            f"{operation} expects an axis after the batch_dims, which are equal in both shapes. "
            f"Received: axis {at}, batch_dims {batch}, shapes {whole} and {sizes}.",
            code="shape-mismatch",
            operation=operation,
            received=f"axis {at}, batch_dims {batch}, shapes {whole} and {sizes}",
        )
    return at, batch


def _known_indices(indices: Any) -> Any:
    array = as_public_integer_array(indices)
    return () if array is None else array

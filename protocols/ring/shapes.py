"""Shapes of private tensors, with TensorFlow's names: local, on every field a party holds.

A sharing is linear, so that what moves elements about moves them in m, l1 and l2
alike.  Zeros that come in (padding) are zeros in all three: 0 = 0 - (0 + 0).  Private bits move in
the same way (moved_bits.py).
Axes count the elements' axes; the words of a wide value (limbs=2) stay last.
"""

from __future__ import annotations

import builtins
import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import EllipsisType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tfe_bench.errors import UsageError
from tfe_bench.protocols.ring.bit_shapes import accept_bits
from tfe_bench.protocols.ring.checks import (
    check_known_rank,
    check_private,
    check_same_kind,
    is_integer,
    normalize_axes,
    normalize_axis,
)
from tfe_bench.protocols.session import tensor_ops
from tfe_bench.protocols.session.sharing import Shared
from tfe_bench.protocols.session.types import Axes, Key, Public, Shape

if TYPE_CHECKING:
    import tensorflow as tf


def _integer_array(values: Public) -> npt.NDArray[np.integer[Any]] | None:
    """Public integers that are known; None for all else: ragged, symbolic or private values."""
    try:
        array = np.asarray(values)
    except (TypeError, ValueError, NotImplementedError):
        return None
    if array.size == 0:
        array = array.astype(np.int64)
    return array if array.dtype.kind in "iu" else None


def _parse_integers(
    operation: str, noun: str, values: Public, count: int | None = None
) -> list[int]:
    """A list of public integers, of a given length."""
    array = _integer_array(values)
    if array is None or array.ndim != 1:
        raise UsageError(f"{operation} wants {noun} as public integers. Received: {values!r}.")
    if count is not None and len(array) != count:
        raise UsageError(
            f"{operation} wants {noun} for {count} axes. Received: {len(array)} of them."
        )
    return [int(v) for v in array]


def _append_words_axis(x: Shared, per_axis: list[int], words_value: int) -> list[int]:
    """A number for each axis of elements, and for the axis of words where there is one."""
    return per_axis if x.limbs == 1 else [*per_axis, words_value]


def _field_shape(x: Shared, shape: Shape) -> Shape:
    """A shape of elements as the shape of x's fields: a list of integers or a tensor."""
    if isinstance(shape, list):
        return _append_words_axis(x, shape, x.limbs)
    import tensorflow as tf

    shape = tf.cast(shape, tf.int64)
    return shape if x.limbs == 1 else tf.concat([shape, [x.limbs]], axis=0)


def _parse_shape(operation: str, shape: int | Shape) -> list[int] | tf.Tensor:
    """A list of integers, or the public tensor it is given as."""
    static: Any = getattr(shape, "as_list", None)
    if static is not None:
        shape = static()
    if tensor_ops.is_tensor(shape):
        return shape
    if isinstance(shape, (list, tuple)) and any(tensor_ops.is_tensor(d) for d in shape):
        import tensorflow as tf

        return tf.stack([tf.cast(d, tf.int64) for d in shape])
    return _parse_integers(
        operation, "a shape", shape if isinstance(shape, (list, tuple, np.ndarray)) else [shape]
    )


@accept_bits
def reshape(x: Shared, shape: int | Shape) -> Shared:
    """x in another shape of as many elements; one size may be -1.  Local."""
    check_private("reshape", x)
    new = _parse_shape("reshape", shape)
    if isinstance(new, list):
        old = x.shape.num_elements()
        rest = int(np.prod([d for d in new if d >= 0], dtype=np.int64))
        free = new.count(-1)
        fits = free <= 1 and all(d >= -1 for d in new)
        if fits and old is not None:
            fits = old == rest if free == 0 else old % rest == 0 if rest else False
        if not fits:
            raise UsageError(
                f"reshape wants as many elements as there are, one size of -1 at most. Received: "
                f"{new} for {x!r}. Choose sizes whose product is the number of elements."
            )
    return x.map(lambda a: tensor_ops.reshape(a, _field_shape(x, new)))


@accept_bits
def flatten(x: Shared, axis: int = 1) -> Shared:
    """All axes from `axis` on as one, in row-major order (0: a vector).  Local."""
    rank = check_known_rank("flatten", x)
    keep = axis if axis == rank else normalize_axis("flatten", axis, rank) if rank else 0
    static = x.shape.as_list()
    if None not in static[keep:]:
        lead = [
            d if d is not None else tensor_ops.dynamic_shape(x.any)[i]
            for i, d in enumerate(static[:keep])
        ]
        return reshape(x, [*lead, int(np.prod(static[keep:], dtype=np.int64))])
    import tensorflow as tf

    sizes = tf.shape(x.any, out_type=tf.int64)
    last = tf.reduce_prod(sizes[keep:rank], keepdims=True)
    return reshape(x, tf.concat([sizes[:keep], last], axis=0))


@accept_bits
def transpose(x: Shared, perm: Sequence[int] | None = None) -> Shared:
    """Axis i of the result is axis perm[i] of x; None reverses the axes.  Local."""
    rank = check_known_rank("transpose", x)
    order = (
        list(range(rank))[::-1]
        if perm is None
        else _parse_integers("transpose", "perm", perm, rank)
    )
    if sorted(order) != list(range(rank)):
        raise UsageError(
            f"transpose wants a permutation of the axes 0 to {rank - 1}. Received: {order}."
        )
    return x.map(lambda a: tensor_ops.transpose(a, _append_words_axis(x, order, rank)))


@accept_bits
def expand_dims(x: Shared, axis: int) -> Shared:
    """x with a new axis of size 1 at `axis`.  Local."""
    at = normalize_axis("expand_dims", axis, check_known_rank("expand_dims", x) + 1)
    return x.map(lambda a: tensor_ops.expand_dims(a, at))


@accept_bits
def squeeze(x: Shared, axis: Axes = None) -> Shared:
    """x without the given axes of size 1; None takes all there are.  Local."""
    rank = check_known_rank("squeeze", x)
    sizes = x.shape.as_list()
    if axis is None:
        if None in sizes:
            raise UsageError(
                f"squeeze wants axes where sizes are unknown. Received: None for {x!r}. Name them."
            )
        gone = [i for i, size in enumerate(sizes) if size == 1]
    else:
        gone = normalize_axes("squeeze", axis, rank)
        for i in gone:
            if sizes[i] not in (1, None):
                raise UsageError(
                    f"squeeze wants axes of size 1. Received: axis {i} of {x!r}. Use getitem to "
                    "pick one element of an axis."
                )
    if not gone:
        return x
    return x.map(lambda a: tensor_ops.squeeze(a, gone))


def _check_same_shapes(operation: str, values: list[Shared], axis: int | None) -> None:
    """Checks that static shapes agree but along one axis."""
    shapes = [v.shape.as_list() for v in values]
    for shape in shapes[1:]:
        fits = len(shape) == len(shapes[0]) and all(
            i == axis or d is None or e is None or d == e
            for i, (d, e) in enumerate(zip(shapes[0], shape, strict=True))
        )
        if not fits:
            but = "" if axis is None else f" but along axis {axis}"
            raise UsageError(
                f"{operation} wants tensors of one shape{but}. Received: {shapes[0]} and {shape}."
            )


def _join_fields(values: list[Shared], function: Callable[[list[tf.Tensor]], tf.Tensor]) -> Shared:
    m, l1, l2 = (
        None if parts[0] is None else function(parts)
        for parts in ([v.m for v in values], [v.l1 for v in values], [v.l2 for v in values])
    )
    return replace(values[0], m=m, l1=l1, l2=l2)


@accept_bits
def concat(values: Sequence[Shared], axis: int) -> Shared:
    """The tensors one after the other along an axis.  Local."""
    tensors = check_same_kind("concat", values)
    at = normalize_axis("concat", axis, min(check_known_rank("concat", v) for v in tensors))
    _check_same_shapes("concat", tensors, at)
    return _join_fields(tensors, lambda parts: tensor_ops.concat(parts, at))


@accept_bits
def stack(values: Sequence[Shared], axis: int = 0) -> Shared:
    """Tensors of one shape along a new axis.  Local."""
    tensors = check_same_kind("stack", values)
    at = normalize_axis("stack", axis, min(check_known_rank("stack", v) for v in tensors) + 1)
    _check_same_shapes("stack", tensors, None)
    return _join_fields(tensors, lambda parts: tensor_ops.stack(parts, at))


def _known_size(operation: str, x: Shared, axis: int) -> int:
    size = x.shape[axis]
    if size is None:
        raise UsageError(f"{operation} wants a known size of axis {axis}. Received: {x!r}.")
    return int(size)


@accept_bits
def unstack(x: Shared, axis: int = 0) -> list[Shared]:
    """The parts of x along an axis, which is dropped.  Local."""
    at = normalize_axis("unstack", axis, check_known_rank("unstack", x))
    lead = (builtins.slice(None),) * at
    return [
        x.map(lambda a, i=i: tensor_ops.strided_slice(a, np.s_[(*lead, i)]))
        for i in range(_known_size("unstack", x, at))
    ]


@accept_bits
def split(x: Shared, num_or_size_splits: int | Sequence[int], axis: int = 0) -> list[Shared]:
    """x cut along an axis into equal parts (an integer) or parts of given sizes.  Local."""
    at = normalize_axis("split", axis, check_known_rank("split", x))
    size = _known_size("split", x, at)
    if isinstance(num_or_size_splits, (int, np.integer)):
        parts = int(num_or_size_splits)
        if parts < 1 or size % parts:
            raise UsageError(
                f"split wants a number of parts that divides the size {size}. Received: {parts}. "
                "Give the sizes as a list for unequal parts."
            )
        sizes = [size // parts] * parts
    else:
        sizes = _parse_integers("split", "sizes", num_or_size_splits)
        if sizes.count(-1) == 1:
            sizes[sizes.index(-1)] = size - sum(sizes) - 1
        if any(s < 0 for s in sizes) or sum(sizes) != size:
            raise UsageError(
                f"split wants sizes that add up to {size}, one of them -1 at most. Received: "
                f"{list(num_or_size_splits)!r}."
            )
    starts = np.cumsum([0, *sizes])
    lead = (builtins.slice(None),) * at
    cuts = [(*lead, builtins.slice(int(b), int(e))) for b, e in itertools.pairwise(starts)]
    return [x.map(lambda a, cut=cut: tensor_ops.strided_slice(a, cut)) for cut in cuts]


@accept_bits
def slice(x: Shared, begin: Sequence[int], size: Sequence[int]) -> Shared:
    """The block of a given size from `begin` on; a size of -1 reaches to the end.  Local."""
    rank = check_known_rank("slice", x)
    starts = _parse_integers("slice", "begin", begin, rank)
    sizes = _parse_integers("slice", "size", size, rank)
    for axis, (start, length) in enumerate(zip(starts, sizes, strict=True)):
        whole = x.shape[axis]
        end = start + max(length, 0)
        if start < 0 or length < -1 or (whole is not None and end > whole):
            raise UsageError(
                f"slice wants a block inside the tensor. Received: begin {start} and size "
                f"{length} on axis {axis} of {x!r}."
            )
    return x.map(
        lambda a: tensor_ops.slice(
            a, _append_words_axis(x, starts, 0), _append_words_axis(x, sizes, -1)
        )
    )


@accept_bits
def getitem(x: Shared, key: Key | tuple[Key, ...]) -> Shared:
    """x[key] for integers, slices, ... and None (a new axis), as in Python.  Local.

    Raises:
        UsageError: an integer out of range, too many indices, a step of 0, or a key that is
            not public (there is no private index).
    """
    rank = check_known_rank("getitem", x)
    plain: list[int | builtins.slice | EllipsisType | None] = []
    for k in key if isinstance(key, tuple) else (key,):
        if not (k is None or is_integer(k) or isinstance(k, (builtins.slice, EllipsisType))):
            raise UsageError(
                f"getitem wants public integers, slices, ... and None. Received: "
                f"{type(k).__name__}. Use gather for a list of indices."
            )
        plain.append(int(k) if isinstance(k, np.integer) else k)
    used = [k for k in plain if isinstance(k, (int, builtins.slice))]
    dots = sum(k is ... for k in plain)
    if dots > 1 or len(used) > rank:
        raise UsageError(
            f"getitem wants one ... and {rank} indices at most. Received: {dots} and {len(used)}."
        )
    before = [k for k in plain[: plain.index(...)] if k is not None] if dots else used
    for position, k in enumerate(used):
        axis = position if position < len(before) else rank - len(used) + position
        _check_index(x, axis, k)
    # The axis of words, if there is one, is the last: untouched by ..., else by a full slice.
    full = tuple(plain) + ((builtins.slice(None),) if dots and x.limbs > 1 else ())
    return x.map(lambda a: tensor_ops.strided_slice(a, full))


def _check_index(x: Shared, axis: int, key: int | builtins.slice) -> None:
    size = x.shape[axis]
    if isinstance(key, int):
        if size is not None and not -size <= key < size:
            raise UsageError(
                f"getitem wants an index from {-size} to {size - 1} on axis {axis}. Received: "
                f"{key}."
            )
        return
    parts = [p for p in (key.start, key.stop, key.step) if p is not None]
    if key.step == 0 or not all(map(is_integer, parts)):
        raise UsageError(
            f"getitem wants slices of public integers, the step not 0. Received: {key!r} on axis "
            f"{axis}."
        )


def _parse_paddings(x: Shared, paddings: Public) -> npt.NDArray[np.integer[Any]]:
    rank = check_known_rank("pad", x)
    pairs = _integer_array(paddings)
    if pairs is not None and rank == pairs.size == 0:
        pairs = pairs.reshape(0, 2)
    if pairs is None or pairs.shape != (rank, 2) or (pairs < 0).any():
        raise UsageError(
            f"pad wants a pair of public sizes >= 0 for each of {rank} axes. "
            f"Received: {paddings!r}."
        )
    return pairs


@accept_bits
def pad_mirrored(x: Shared, paddings: Public, edges: bool) -> Shared:
    """x with its own elements in reverse order around, the edges repeated or not.  Local."""
    for axis, (before, after) in enumerate(_parse_paddings(x, paddings).tolist()):
        if before == after == 0:
            continue
        size = _known_size("pad", x, axis)
        highest = size if edges else size - 1
        if max(before, after) > highest:
            raise UsageError(
                f"pad wants {highest} elements at most to mirror on axis {axis}. Received: "
                f"{before} and {after} of {x!r}."
            )
        lead, skipped = (builtins.slice(None),) * axis, 0 if edges else 1
        cuts = [(skipped, skipped + before), (size - skipped - after, size - skipped)]
        sides = [
            reverse(getitem(x, (*lead, builtins.slice(begin, end))), axis) for begin, end in cuts
        ]
        x = concat([sides[0], x, sides[1]], axis)
    return x


@accept_bits
def pad(x: Shared, paddings: Public, constant_values: int = 0) -> Shared:
    """x with `paddings[axis] = (before, after)` elements of a public constant around.  Local.

    Args:
        constant_values: the ring element to pad with, already encoded at x's scale.
    """
    pairs = _parse_paddings(x, paddings)
    if not is_integer(constant_values):
        raise UsageError(
            "pad wants a constant that is a ring element, an integer. Received: "
            f"{constant_values!r}. Encode it at the tensor's scale."
        )
    widths = [(int(b), int(e)) for b, e in pairs]
    padded = x.map(lambda a: tensor_ops.pad(a, widths if x.limbs == 1 else [*widths, (0, 0)]))
    if constant_values == 0 or x.m is None or not tensor_ops.is_concrete(x.m):
        return padded
    import tensorflow as tf

    # c = (0 + c) - (0 + 0): a public constant goes into m alone.
    unsigned = [(int(constant_values) >> (64 * i)) % (1 << 64) for i in range(x.limbs)]
    words = [tf.constant(w - (w >> 63 << 64), tf.int64) for w in unsigned]
    if x.limbs == 1:
        return replace(padded, m=tf.pad(x.m, widths, constant_values=words[0]))
    limbs = [tf.pad(x.m[..., i], widths, constant_values=w) for i, w in enumerate(words)]
    return replace(padded, m=tf.stack(limbs, axis=-1))


@accept_bits
def gather(x: Shared, indices: Public, axis: int | None = None, batch_dims: int = 0) -> Shared:
    """The parts of x at public indices along an axis; their shape replaces the axis.  Local.

    Args:
        axis: None: the first one after batch_dims.
        batch_dims: so many leading axes are shared with the indices, of which each row is of a row
            of x.
    """
    at, batch_dims = check_gather("gather", x, indices, axis, batch_dims)
    if tensor_ops.is_tensor(indices):
        import tensorflow as tf

        tensor: tf.Tensor = indices
        if tensor.dtype not in (tf.int32, tf.int64):
            raise UsageError(f"gather wants integer indices. Received: {tensor.dtype.name}.")
        # TensorFlow itself refuses, when run, what is out of range.
        return x.map(lambda a: tensor_ops.gather(a, indices, at, batch_dims))
    array = _integer_array(indices)
    if array is None:
        raise UsageError(f"gather wants integer indices. Received: {indices!r}.")
    size = x.shape[at]
    bad = array[(array < 0) | (array >= size)] if size is not None else array[array < 0]
    if bad.size:
        top = "the end" if size is None else str(size - 1)
        raise UsageError(
            f"gather wants indices from 0 to {top} on axis {at}. Received: {int(bad.flat[0])}."
        )
    return x.map(lambda a: tensor_ops.gather(a, array.astype(np.int64), at, batch_dims))


def check_gather(
    operation: str, x: Shared, indices: Public | Shared, axis: int | None, batch_dims: int
) -> tuple[int, int]:
    """The axis and the number of batch axes of a gather, both from 0.

    Raises:
        UsageError: they do not fit x and the indices.
    """
    rank = check_known_rank(operation, x)
    shape: Any = getattr(indices, "shape", None)
    if shape is None:
        shape = np.shape(_known_indices(indices))
    sizes: list[int | None] = shape.as_list() if hasattr(shape, "as_list") else list(shape)
    if not is_integer(batch_dims) or not -len(sizes) <= batch_dims <= len(sizes):
        raise UsageError(
            f"{operation} wants batch_dims from {-len(sizes)} to {len(sizes)}, the axes of the "
            f"indices. Received: {batch_dims!r}."
        )
    batch = int(batch_dims) + (len(sizes) if batch_dims < 0 else 0)
    at = normalize_axis(operation, batch if axis is None else axis, rank)
    whole = x.shape.as_list()
    fits = batch <= at and all(
        a is None or b is None or a == b for a, b in zip(whole[:batch], sizes[:batch], strict=True)
    )
    if not fits:
        raise UsageError(
            f"{operation} wants an axis after the batch_dims, which are equal in both shapes. "
            f"Received: axis {at}, batch_dims {batch}, shapes {whole} and {sizes}."
        )
    return at, batch


def _known_indices(indices: Any) -> Any:
    array = _integer_array(indices)
    return () if array is None else array


@accept_bits
def tile(x: Shared, multiples: Sequence[int]) -> Shared:
    """x repeated multiples[i] times along axis i.  Local."""
    counts = _parse_integers("tile", "multiples", multiples, check_known_rank("tile", x))
    if any(c < 0 for c in counts):
        raise UsageError(f"tile wants multiples of at least 0. Received: {counts}.")
    return x.map(lambda a: tensor_ops.tile(a, _append_words_axis(x, counts, 1)))


@accept_bits
def broadcast_to(x: Shared, shape: int | Shape) -> Shared:
    """x in a larger shape, by TensorFlow's rules of broadcasting.  Local."""
    rank = check_known_rank("broadcast_to", x)
    new = _parse_shape("broadcast_to", shape)
    if isinstance(new, list):
        old = x.shape.as_list()
        fits = len(new) >= rank and all(
            d >= 0 and (e is None or e in (1, d))
            for d, e in zip(new, [1] * (len(new) - rank) + old, strict=True)
        )
        if not fits:
            raise UsageError(
                f"broadcast_to wants a shape that the tensor's broadcasts to. Received: {new} for "
                f"{x!r}."
            )
    return x.map(lambda a: tensor_ops.broadcast_to(a, _field_shape(x, new)))


@accept_bits
def reverse(x: Shared, axis: Axes) -> Shared:
    """x with the order along some axes reversed.  Local."""
    axes = normalize_axes("reverse", axis, check_known_rank("reverse", x))
    return x.map(lambda a: tensor_ops.reverse(a, axes))

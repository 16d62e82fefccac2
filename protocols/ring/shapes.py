"""Shapes of private tensors, with TensorFlow's names: local, on every field a party holds.

A sharing is linear, so a function that moves elements moves them in m, l1 and l2
alike. Padding zeros are zeros in all three: 0 = 0 - (0 + 0). Private bits move in
the same way (bit_shapes.py).
Axes count the elements' axes; the words of a wide value (limbs=2) stay last.
"""

from __future__ import annotations

import builtins
import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import EllipsisType

import numpy as np

from tfe_bench.errors import UsageError
from tfe_bench.lazy_tensorflow import tf
from tfe_bench.protocols.ring.bit_shapes import accept_private_bits
from tfe_bench.protocols.ring.checks import (
    check_private,
    check_private_rank_is_known,
    check_same_dealer_scale_ring,
    is_integer,
    normalize_axes,
    normalize_axis,
)
from tfe_bench.protocols.ring.shape_arguments import (
    append_words_axis,
    as_public_integer_array,
    check_gather,
    check_index,
    check_same_shapes,
    known_axis_size,
    parse_paddings,
    parse_public_integers,
    parse_public_shape,
    share_field_shape,
)
from tfe_bench.protocols.session import tensor_ops
from tfe_bench.protocols.session.sharing import Shared
from tfe_bench.protocols.session.types import Axes, Key, Public, Shape


@accept_private_bits
def reshape(x: Shared, shape: int | Shape) -> Shared:
    """Return x in another shape of as many elements; one size may be -1. Local."""
    check_private("reshape", x)
    new = parse_public_shape("reshape", shape)
    if isinstance(new, list):
        old = x.shape.num_elements()
        rest = int(np.prod([d for d in new if d >= 0], dtype=np.int64))
        free = new.count(-1)
        fits = free <= 1 and all(d >= -1 for d in new)
        if fits and old is not None:
            fits = old == rest if free == 0 else old % rest == 0 if rest else False
        if not fits:
            raise UsageError(
                "reshape expects an equal number of elements, and one size of -1 at most. "
                "Received: "
                f"{new} for {x!r}. Choose sizes whose product is the number of elements.",
                code="shape-mismatch",
                operation="reshape",
                received=new,
            )
    return x.map(lambda a: tensor_ops.reshape(a, share_field_shape(x, new)))


@accept_private_bits
def flatten(x: Shared, axis: int = 1) -> Shared:
    """Join all axes from `axis` on into one, in row-major order (0: a vector). Local."""
    rank = check_private_rank_is_known("flatten", x)
    keep = axis if axis == rank else normalize_axis("flatten", axis, rank) if rank else 0
    static = x.shape.as_list()
    if None not in static[keep:]:
        lead = [
            d if d is not None else tensor_ops.dynamic_shape(x.any)[i]
            for i, d in enumerate(static[:keep])
        ]
        return reshape(x, [*lead, int(np.prod(static[keep:], dtype=np.int64))])
    sizes = tf.shape(x.any, out_type=tf.int64)
    last = tf.reduce_prod(sizes[keep:rank], keepdims=True)
    return reshape(x, tf.concat([sizes[:keep], last], axis=0))


@accept_private_bits
def transpose(x: Shared, perm: Sequence[int] | None = None) -> Shared:
    """Permute axes: axis i of the result is axis perm[i] of x; None reverses the axes. Local."""
    rank = check_private_rank_is_known("transpose", x)
    order = (
        list(range(rank))[::-1]
        if perm is None
        else parse_public_integers("transpose", "perm", perm, rank)
    )
    if sorted(order) != list(range(rank)):
        raise UsageError(
            f"transpose expects a permutation of the axes 0 to {rank - 1}. Received: {order}.",
            code="not-a-permutation",
            operation="transpose",
            received=order,
        )
    return x.map(lambda a: tensor_ops.transpose(a, append_words_axis(x, order, rank)))


@accept_private_bits
def expand_dims(x: Shared, axis: int) -> Shared:
    """Insert a new axis of size 1 at `axis`. Local."""
    at = normalize_axis("expand_dims", axis, check_private_rank_is_known("expand_dims", x) + 1)
    return x.map(lambda a: tensor_ops.expand_dims(a, at))


@accept_private_bits
def squeeze(x: Shared, axis: Axes = None) -> Shared:
    """Remove the given axes of size 1; None removes all of them. Local."""
    rank = check_private_rank_is_known("squeeze", x)
    sizes = x.shape.as_list()
    if axis is None:
        if None in sizes:
            raise UsageError(
                f"squeeze expects axes where sizes are unknown. Received: None for {x!r}. Name "
                "them.",
                code="unknown-shape",
                operation="squeeze",
                received=None,
            )
        dropped_axes = [i for i, size in enumerate(sizes) if size == 1]
    else:
        dropped_axes = normalize_axes("squeeze", axis, rank)
        for i in dropped_axes:
            if sizes[i] not in (1, None):
                raise UsageError(
                    f"squeeze expects axes of size 1. Received: axis {i} of {x!r}. Use getitem to "
                    "select one element of an axis.",
                    code="shape-mismatch",
                    operation="squeeze",
                    received=i,
                )
    if not dropped_axes:
        return x
    return x.map(lambda a: tensor_ops.squeeze(a, dropped_axes))


def _join_fields(values: list[Shared], function: Callable[[list[tf.Tensor]], tf.Tensor]) -> Shared:
    m, l1, l2 = (
        None if parts[0] is None else function(parts)
        for parts in ([v.m for v in values], [v.l1 for v in values], [v.l2 for v in values])
    )
    return replace(values[0], m=m, l1=l1, l2=l2)


@accept_private_bits
def concat(values: Sequence[Shared], axis: int) -> Shared:
    """Concatenate tensors along an axis. Local."""
    tensors = check_same_dealer_scale_ring("concat", values)
    at = normalize_axis(
        "concat", axis, min(check_private_rank_is_known("concat", v) for v in tensors)
    )
    check_same_shapes("concat", tensors, at)
    return _join_fields(tensors, lambda parts: tensor_ops.concat(parts, at))


@accept_private_bits
def stack(values: Sequence[Shared], axis: int = 0) -> Shared:
    """Stack tensors of one shape along a new axis. Local."""
    tensors = check_same_dealer_scale_ring("stack", values)
    at = normalize_axis(
        "stack", axis, min(check_private_rank_is_known("stack", v) for v in tensors) + 1
    )
    check_same_shapes("stack", tensors, None)
    return _join_fields(tensors, lambda parts: tensor_ops.stack(parts, at))


@accept_private_bits
def unstack(x: Shared, axis: int = 0) -> list[Shared]:
    """Return the parts of x along an axis, which is removed. Local."""
    at = normalize_axis("unstack", axis, check_private_rank_is_known("unstack", x))
    lead = (builtins.slice(None),) * at
    return [
        x.map(lambda a, i=i: tensor_ops.strided_slice(a, np.s_[(*lead, i)]))
        for i in range(known_axis_size("unstack", x, at))
    ]


@accept_private_bits
def split(x: Shared, num_or_size_splits: int | Sequence[int], axis: int = 0) -> list[Shared]:
    """Split x along an axis into equal parts (an integer) or parts of given sizes. Local."""
    at = normalize_axis("split", axis, check_private_rank_is_known("split", x))
    size = known_axis_size("split", x, at)
    if isinstance(num_or_size_splits, (int, np.integer)):
        parts = int(num_or_size_splits)
        if parts < 1 or size % parts:
            raise UsageError(
                f"split expects a number of parts that divides the size {size}. Received: {parts}. "
                "Pass the sizes as a list for unequal parts.",
                code="not-a-divisor",
                operation="split",
                received=parts,
            )
        sizes = [size // parts] * parts
    else:
        sizes = parse_public_integers("split", "sizes", num_or_size_splits)
        if sizes.count(-1) == 1:
            sizes[sizes.index(-1)] = size - sum(sizes) - 1
        if any(s < 0 for s in sizes) or sum(sizes) != size:
            raise UsageError(
                f"split expects sizes that add up to {size}, one of them -1 at most. Received: "
                f"{list(num_or_size_splits)!r}.",
                code="shape-mismatch",
                operation="split",
                received=list(num_or_size_splits),
            )
    starts = np.cumsum([0, *sizes])
    lead = (builtins.slice(None),) * at
    cuts = [(*lead, builtins.slice(int(b), int(e))) for b, e in itertools.pairwise(starts)]
    return [x.map(lambda a, cut=cut: tensor_ops.strided_slice(a, cut)) for cut in cuts]


@accept_private_bits
def slice(x: Shared, begin: Sequence[int], size: Sequence[int]) -> Shared:
    """Return the block of a given size from `begin` on; a size of -1 extends to the end. Local."""
    rank = check_private_rank_is_known("slice", x)
    starts = parse_public_integers("slice", "begin", begin, rank)
    sizes = parse_public_integers("slice", "size", size, rank)
    for axis, (start, length) in enumerate(zip(starts, sizes, strict=True)):
        whole = x.shape[axis]
        end = start + max(length, 0)
        if start < 0 or length < -1 or (whole is not None and end > whole):
            raise UsageError(
                f"slice expects a block inside the tensor. Received: begin {start} and size "
                f"{length} on axis {axis} of {x!r}.",
                code="index-out-of-range",
                operation="slice",
                received=f"begin {start}, size {length}",
            )
    return x.map(
        lambda a: tensor_ops.slice(
            a, append_words_axis(x, starts, 0), append_words_axis(x, sizes, -1)
        )
    )


@accept_private_bits
def getitem(x: Shared, key: Key | tuple[Key, ...]) -> Shared:
    """Return x[key] for integers, slices, ... and None (a new axis), as in Python. Local.

    Raises:
        UsageError: an integer out of range, too many indices, a step of 0, or a key that is
            not public (there is no private index).
    """
    rank = check_private_rank_is_known("getitem", x)
    plain: list[int | builtins.slice | EllipsisType | None] = []
    for k in key if isinstance(key, tuple) else (key,):
        if not (k is None or is_integer(k) or isinstance(k, (builtins.slice, EllipsisType))):
            raise UsageError(
                f"getitem expects public integers, slices, ... and None. Received: "
                f"{type(k).__name__}. Use gather for a list of indices.",
                code="unsupported-type",
                operation="getitem",
                received=type(k).__name__,
            )
        plain.append(int(k) if isinstance(k, np.integer) else k)
    used = [k for k in plain if isinstance(k, (int, builtins.slice))]
    dots = sum(k is ... for k in plain)
    if dots > 1 or len(used) > rank:
        raise UsageError(
            f"getitem expects one ... and {rank} indices at most. Received: {dots} and "
            f"{len(used)}.",
            code="too-many-indices",
            operation="getitem",
            received=f"{dots}, {len(used)}",
        )
    before = [k for k in plain[: plain.index(...)] if k is not None] if dots else used
    for position, k in enumerate(used):
        axis = position if position < len(before) else rank - len(used) + position
        check_index(x, axis, k)
    # The axis of words, if any, is the last one: `...` leaves it unchanged, else a full slice
    # does.
    full = tuple(plain) + ((builtins.slice(None),) if dots and x.limbs > 1 else ())
    return x.map(lambda a: tensor_ops.strided_slice(a, full))


@accept_private_bits
def pad_mirrored(x: Shared, paddings: Public, edges: bool) -> Shared:
    """Pad x with its own elements in reverse order, the edges repeated or not. Local."""
    for axis, (before, after) in enumerate(parse_paddings(x, paddings).tolist()):
        if before == after == 0:
            continue
        size = known_axis_size("pad", x, axis)
        highest = size if edges else size - 1
        if max(before, after) > highest:
            raise UsageError(
                f"pad expects {highest} elements at most to mirror on axis {axis}. Received: "
                f"{before} and {after} of {x!r}.",
                code="number-out-of-range",
                operation="pad",
                received=f"{before}, {after}",
            )
        lead, skipped = (builtins.slice(None),) * axis, 0 if edges else 1
        cuts = [(skipped, skipped + before), (size - skipped - after, size - skipped)]
        sides = [
            reverse(getitem(x, (*lead, builtins.slice(begin, end))), axis) for begin, end in cuts
        ]
        x = concat([sides[0], x, sides[1]], axis)
    return x


@accept_private_bits
def pad(x: Shared, paddings: Public, constant_values: int = 0) -> Shared:
    """Pad x with `paddings[axis] = (before, after)` elements of a public constant. Local.

    Args:
        constant_values: the ring element to pad with, already encoded at x's scale.
    """
    pairs = parse_paddings(x, paddings)
    if not is_integer(constant_values):
        raise UsageError(
            "pad expects a constant that is a ring element, an integer. Received: "
            f"{constant_values!r}. Encode it at the tensor's scale.",
            code="not-an-integer",
            operation="pad",
            received=repr(constant_values),
        )
    widths = [(int(b), int(e)) for b, e in pairs]
    padded = x.map(lambda a: tensor_ops.pad(a, widths if x.limbs == 1 else [*widths, (0, 0)]))
    if constant_values == 0 or x.m is None or not tensor_ops.is_concrete(x.m):
        return padded
    # c = (0 + c) - (0 + 0): a public constant is added to m alone.
    unsigned = [(int(constant_values) >> (64 * i)) % (1 << 64) for i in range(x.limbs)]
    words = [tf.constant(w - (w >> 63 << 64), tf.int64) for w in unsigned]
    if x.limbs == 1:
        return replace(padded, m=tf.pad(x.m, widths, constant_values=words[0]))
    limbs = [tf.pad(x.m[..., i], widths, constant_values=w) for i, w in enumerate(words)]
    return replace(padded, m=tf.stack(limbs, axis=-1))


@accept_private_bits
def gather(x: Shared, indices: Public, axis: int | None = None, batch_dims: int = 0) -> Shared:
    """Return the parts of x at public indices along an axis; their shape replaces the axis. Local.

    Args:
        axis: None: the first one after batch_dims.
        batch_dims: number of leading axes shared with the indices: each row of indices selects
            from the same row of x.
    """
    at, batch_dims = check_gather("gather", x, indices, axis, batch_dims)
    if tensor_ops.is_tensor(indices):
        tensor: tf.Tensor = indices
        if tensor.dtype not in (tf.int32, tf.int64):
            raise UsageError(
                f"gather expects integer indices. Received: {tensor.dtype.name}.",
                code="not-an-integer",
                operation="gather",
                received=tensor.dtype.name,
            )
        # TensorFlow refuses indices out of range when the graph runs.
        return x.map(lambda a: tensor_ops.gather(a, indices, at, batch_dims))
    array = as_public_integer_array(indices)
    if array is None:
        raise UsageError(
            f"gather expects integer indices. Received: {indices!r}.",
            code="not-an-integer",
            operation="gather",
            received=repr(indices),
        )
    size = x.shape[at]
    bad = array[(array < 0) | (array >= size)] if size is not None else array[array < 0]
    if bad.size:
        top = "the end" if size is None else str(size - 1)
        raise UsageError(
            f"gather expects indices from 0 to {top} on axis {at}. Received: {int(bad.flat[0])}.",
            code="index-out-of-range",
            operation="gather",
            received=int(bad.flat[0]),
        )
    return x.map(lambda a: tensor_ops.gather(a, array.astype(np.int64), at, batch_dims))


@accept_private_bits
def tile(x: Shared, multiples: Sequence[int]) -> Shared:
    """Repeat x multiples[i] times along axis i. Local."""
    counts = parse_public_integers(
        "tile", "multiples", multiples, check_private_rank_is_known("tile", x)
    )
    if any(c < 0 for c in counts):
        raise UsageError(
            f"tile expects multiples of at least 0. Received: {counts}.",
            code="number-out-of-range",
            operation="tile",
            received=counts,
        )
    return x.map(lambda a: tensor_ops.tile(a, append_words_axis(x, counts, 1)))


@accept_private_bits
def broadcast_to(x: Shared, shape: int | Shape) -> Shared:
    """Broadcast x to a larger shape, by TensorFlow's rules. Local."""
    rank = check_private_rank_is_known("broadcast_to", x)
    new = parse_public_shape("broadcast_to", shape)
    if isinstance(new, list):
        old = x.shape.as_list()
        fits = len(new) >= rank and all(
            d >= 0 and (e is None or e in (1, d))
            for d, e in zip(new, [1] * (len(new) - rank) + old, strict=True)
        )
        if not fits:
            raise UsageError(
                "broadcast_to expects a shape to which the tensor's shape broadcasts. Received: "
                f"{new} for "
                f"{x!r}.",
                code="shape-mismatch",
                operation="broadcast_to",
                received=new,
            )
    return x.map(lambda a: tensor_ops.broadcast_to(a, share_field_shape(x, new)))


@accept_private_bits
def reverse(x: Shared, axis: Axes) -> Shared:
    """Reverse the order along some axes. Local."""
    axes = normalize_axes("reverse", axis, check_private_rank_is_known("reverse", x))
    return x.map(lambda a: tensor_ops.reverse(a, axes))

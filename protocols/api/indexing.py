"""Gathering and scattering at public and private positions, by TensorFlow's names."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tfe_bench.errors import UsageError
from tfe_bench.protocols.api import operands
from tfe_bench.protocols.order import lookup
from tfe_bench.protocols.order import one_hot as positions
from tfe_bench.protocols.ring import arithmetic, checks, compare, convert, shape_arguments, shapes
from tfe_bench.protocols.session import slices, tensor_ops
from tfe_bench.protocols.session.party import Party, current_party
from tfe_bench.protocols.session.sharing import MaskedBits, Shared
from tfe_bench.protocols.session.types import Operand, Public

EXACT_BITS = compare.EXACT_BITS
# Most positions that a private index is compared with: checked before memory is allocated.
MAX_POSITIONS = 1 << 20


def _check_private_indices(operation: str, indices: object) -> Shared:
    expected, advice = "private integers as indices", "Use cast(floor(x)), or what argmax gives."
    return operands.check_integer_operand(operation, indices, expected, advice)


def gather(
    x: Shared,
    indices: Public | Shared,
    axis: int | None = None,
    batch_dims: int = 0,
    bits: int = EXACT_BITS,
    method: str = "auto",
) -> Shared:
    """Gather slices of x at indices along an axis; the indices' shape replaces the axis.

    Args:
        indices: public, from 0 to the end (local then), or private integers: a private index
            outside yields 0, and no party learns it.
        axis: None: the first one after batch_dims.
        batch_dims: number of leading axes shared with the indices; each row of indices applies to
            one row of x.
        bits: of a private index, |index| < 2^(bits-1).
        method: for private indices: "one-hot" compares each with all positions, at a cost of the
            product of both numbers, and runs in a graph. "shuffle" sorts them together with the
            rows, at a cost of the sum times its logarithm and some 100 rounds; call it between
            graphs (as `sort`), for a vector of indices into the first axis. "auto" uses the method
            that sends less there, with a round counted as 3 Mbit.

    Rounds and bits: none for public indices; for private ones those of lookup.lookup_one_hot
    (order.one_hot and the cheaper of two products) or of lookup.lookup_shuffled.
    Raises:
        UsageError: a public index is outside, or axis or batch_dims do not fit.
    """
    if not operands.is_private(indices):
        private_value = (
            x
            if isinstance(x, MaskedBits)
            else operands.check_private_operand("gather", x, any_ring=True)
        )
        return shapes.gather(private_value, indices, axis, batch_dims)
    if not operands.is_private(x):
        raise UsageError(
            "gather expects a private tensor for private indices. Received: "
            f"{operands.describe_type(x)} with private indices. For a public table use "
            "one_hot(indices, len(table)) @ table.",
            code="not-private",
            operation="gather",
            received=operands.describe_type(x),
        )
    bits = operands.check_comparison_width("gather", bits)
    x, indices = (
        operands.check_private_operand("gather", x),
        _check_private_indices("gather", indices),
    )
    sizes, index_sizes = operands.sizes("gather", x), operands.sizes("gather", indices)
    operands.check_same_dealer("gather", x, indices)
    gather_axis, batch = shape_arguments.check_gather("gather", x, indices, axis, batch_dims)
    _check_depth("gather", sizes[gather_axis])
    lead, tail = list(range(batch, gather_axis)), list(range(gather_axis + 1, len(sizes)))
    first = operands.count_elements(sizes[:batch])
    transposed = shapes.transpose(x, [*range(batch), gather_axis, *lead, *tail])
    width = operands.count_elements([sizes[i] for i in (*lead, *tail)])
    table = shapes.reshape(transposed, [first, sizes[gather_axis], width])
    index_rows = shapes.reshape(indices, [first, operands.count_elements(index_sizes[batch:])])
    party = current_party()
    if not party.tracing:
        if len(index_sizes) != 1 or gather_axis or batch:
            raise UsageError(
                "gather between graphs expects a vector of private indices into the first "
                f"axis. Received: indices {index_sizes}, axis {gather_axis}, batch_dims "
                f"{batch}. Call it in a graph.",
                code="rank-mismatch",
                operation="gather",
                received=f"indices {index_sizes}, axis {gather_axis}, batch_dims {batch}",
            )
        chosen_method = lookup.choose_lookup(method, sizes[0], width, index_sizes[0])
        if chosen_method == "shuffle":
            gathered = lookup.lookup_shuffled(
                party, shapes.reshape(table, [sizes[0], width]), indices
            )
            return shapes.reshape(gathered, [index_sizes[0], *sizes[1:]])
        key = ("gather", tuple(sizes), index_sizes[0], bits, x.dealer, x.fractional_bits)
        graph = party.cached_function(
            key, lambda: lambda t, a: lookup.lookup_one_hot(party, t, a, bits)
        )
        return shapes.reshape(graph(table, index_rows), [index_sizes[0], *sizes[1:]])
    if method not in ("auto", "one-hot"):
        raise UsageError(
            'gather in a graph supports the methods "auto" and "one-hot". Received: '
            f"{method!r}. Return the tensors from the graph and call gather with them.",
            code="unknown-name",
            operation="gather",
            received=method,
            expected="auto, one-hot",
        )
    gathered = lookup.lookup_one_hot(
        operands.require_party_in_graph("gather"), table, index_rows, bits
    )
    index_shape = index_sizes[batch:]
    full_shape = [*sizes[:batch], *index_shape, *(sizes[i] for i in (*lead, *tail))]
    # The new axes follow the axes between the batch and the gathered axis.
    places = list(range(len(full_shape)))
    middle = len(index_shape) + batch
    order = [
        *places[:batch],
        *places[middle : middle + len(lead)],
        *places[batch:middle],
        *places[middle + len(lead) :],
    ]
    return shapes.transpose(shapes.reshape(gathered, full_shape), order)


def _check_depth(operation: str, depth: int) -> None:
    description = f"1 to {MAX_POSITIONS} positions for a private index"
    operands.check_integer_range(operation, depth, 1, MAX_POSITIONS, description)


@operands.check_arguments("indices", check=_check_private_indices, max_bits=64)
def one_hot(
    indices: Shared,
    depth: int,
    on_value: int = 1,
    off_value: int = 0,
    axis: int = -1,
    bits: int = EXACT_BITS,
) -> Shared:
    """Return on_value where the position along a new axis is the index, else off_value: integers.

    Args:
        indices: private integers; an index that is negative or not below depth has a row of
            off_value.
        depth: 1 to 2^20.
        on_value, off_value: public whole numbers.
        axis: position of the new axis of size depth.
        bits: |index| < 2^(bits-1) (for 64: 2^63 - depth); fewer are cheaper.

    Rounds and bits: those of the cheaper method of order.one_hot, and of `cast` of depth bits.
    """
    depth = operands.check_integer_argument("one_hot", "depth", depth)
    _check_depth("one_hot", depth)
    sizes = operands.sizes("one_hot", indices)
    new_axis = checks.normalize_axis("one_hot", axis, len(sizes) + 1)
    on, off = (
        int(operands.encode_public("one_hot", operands.static_number("one_hot", value, noun), 0))
        for noun, value in (("on_value", on_value), ("off_value", off_value))
    )

    def compare_with_positions(party: Party, indices: Shared) -> Shared:
        sizes = indices.shape.as_list()
        hot = positions.one_hot(party, indices, depth, bits)
        ones = convert.b2a(party, hot, [depth, *sizes])
        order = [i + 1 for i in range(len(sizes))]
        order.insert(new_axis, 0)
        return shapes.transpose(ones, order)

    ones = (
        slices.map_slices(current_party(), compare_with_positions, [indices])
        if new_axis == len(sizes)
        else compare_with_positions(current_party(), indices)
    )
    return arithmetic.add_constant(arithmetic.mul_public(ones, on - off), off)


# ---- values at public positions


def _check_places(
    operation: str, indices: Public, shape: list[int]
) -> tuple[npt.NDArray[np.int64], list[int]]:
    """Check public index rows [..., k]; return them, and the shape of each indexed slice."""
    if operands.is_private(indices):
        raise UsageError(
            f"{operation} expects public indices. Received: private ones. Multiply by a one_hot.",
            code="not-public",
            operation=operation,
        )
    index_array = operands.static_public_operand(operation, indices)
    if (
        index_array is None
        or (index_array.dtype.kind not in "iu" and index_array.size)
        or index_array.ndim < 1
    ):
        raise UsageError(
            f"{operation} expects public integer indices [..., k] known while tracing. "
            f"Received: {operands.describe_type(indices)}.",
            code="not-static" if index_array is None else "wrong-type",
            operation=operation,
            received=operands.describe_type(indices),
        )
    depth = index_array.shape[-1]
    if depth > len(shape):
        raise UsageError(
            f"{operation} expects indices of at most {len(shape)} axes. Received: "
            f"{depth} for the shape {shape}.",
            code="rank-mismatch",
            operation=operation,
            received=depth,
            expected=f"at most {len(shape)}",
        )
    outside = (index_array < 0) | (index_array >= np.array(shape[:depth], np.int64))
    if outside.any():
        raise UsageError(
            f"{operation} expects indices inside the shape {shape}. Received: "
            f"{int(index_array[outside].flat[0])}.",
            code="index-out-of-range",
            operation=operation,
            received=int(index_array[outside].flat[0]),
            expected=shape,
        )
    return index_array.astype(np.int64), shape[depth:]


def _check_updates(operation: str, updates: Shared, expected: list[int]) -> None:
    sizes = operands.sizes(operation, updates)
    if sizes != expected:
        raise UsageError(
            f"{operation} expects updates of the shape {expected}. Received: {sizes}. "
            "Reshape them.",
            code="shape-mismatch",
            operation=operation,
            received=sizes,
            expected=expected,
        )


@operands.check_arguments("updates", in_graph=False)
def scatter_nd(indices: Public, updates: Shared, shape: list[int]) -> Shared:
    """Add updates to zeros of a shape at public indices, as tf.scatter_nd. Local.

    Args:
        indices: [..., k] for the first k axes; updates of a repeated index are added.
        updates: [..., *shape[k:]], private.
    """
    sizes = operands.static_public_operand("scatter_nd", shape)
    if sizes is None or sizes.ndim != 1 or (sizes.size and sizes.dtype.kind not in "iu"):
        raise UsageError(
            f"scatter_nd expects a public shape. Received: {shape!r}.",
            code="wrong-type",
            operation="scatter_nd",
            received=shape,
        )
    result_shape = [int(n) for n in sizes]
    if min(result_shape, default=0) < 0:
        raise UsageError(
            f"scatter_nd expects sizes >= 0. Received: {result_shape}.",
            code="number-out-of-range",
            operation="scatter_nd",
            received=result_shape,
            expected="sizes >= 0",
        )
    places, update_shape = _check_places("scatter_nd", indices, result_shape)
    _check_updates("scatter_nd", updates, [*places.shape[:-1], *update_shape])
    return updates.map(lambda a: tensor_ops.scatter_nd(a, places, result_shape))


def tensor_scatter_nd_update(tensor: Operand, indices: Public, updates: Operand) -> Shared:
    """Replace values at public indices by updates, as tf.tensor_scatter_nd_update. Local.

    Args:
        tensor, updates: one of them may be public.
        indices: [..., k] for the first k axes, each once (TensorFlow does not define which of two
            updates stays).
    """
    name = "tensor_scatter_nd_update"
    tensor, updates = operands.share_operand_list(name, [tensor, updates])
    tensor_shape = operands.sizes(name, tensor)
    places, update_shape = _check_places(name, indices, tensor_shape)
    _check_updates(name, updates, [*places.shape[:-1], *update_shape])
    depth = places.shape[-1]
    rows, width = (
        operands.count_elements(tensor_shape[:depth]),
        operands.count_elements(update_shape),
    )
    flat = places.reshape(-1, depth)
    flat_positions = np.zeros(len(flat), np.int64)
    for axis in range(depth):
        flat_positions = flat_positions * tensor_shape[axis] + flat[:, axis]
    if len(np.unique(flat_positions)) < len(flat_positions):
        raise UsageError(
            f"{name} expects each index once. Received: a repeated index.",
            code="duplicate-index",
            operation=name,
        )
    source = np.broadcast_to(np.int64(0), [rows])
    if tensor_ops.is_concrete(tensor.any):
        source = np.arange(rows)
        source[flat_positions] = rows + np.arange(len(flat_positions))
    rows_and_updates = shapes.concat(
        [
            shapes.reshape(tensor, [rows, width]),
            shapes.reshape(updates, [len(flat_positions), width]),
        ],
        0,
    )
    return shapes.reshape(shapes.gather(rows_and_updates, source, 0), tensor_shape)

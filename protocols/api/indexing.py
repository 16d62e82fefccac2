"""Parts of tensors at public and at private places, and values put there, by TensorFlow's names."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tfe_bench.errors import UsageError
from tfe_bench.protocols.api import operands as given
from tfe_bench.protocols.order import lookup
from tfe_bench.protocols.order import one_hot as positions
from tfe_bench.protocols.ring import arithmetic, checks, compare, convert, shapes
from tfe_bench.protocols.session import local
from tfe_bench.protocols.session.party import current
from tfe_bench.protocols.session.sharing import MaskedBits, Shared
from tfe_bench.protocols.session.types import Operand, Public

EXACT_BITS = compare.EXACT_BITS
# Positions that a private index is compared with: bounded before memory is taken.
MOST_POSITIONS = 1 << 20


def _index(operation: str, indices: object) -> Shared:
    what, advice = "private integers as indices", "Use cast(floor(x)), or what argmax gives."
    return given.integers(operation, indices, what, advice)


def gather(
    x: Shared,
    indices: Public | Shared,
    axis: int | None = None,
    batch_dims: int = 0,
    bits: int = EXACT_BITS,
    method: str = "auto",
) -> Shared:
    """The parts of x at indices along an axis; the indices' shape replaces the axis.

    Args:
        indices: public, from 0 to the end (local then), or private integers: of what is outside a
            private index gives 0, and nobody learns it.
        axis: None: the first one after batch_dims.
        batch_dims: so many leading axes are shared with the indices, of which each row is of a row
            of x.
        bits: of a private index, |index| < 2^(bits-1).
        method: of private indices: "one-hot" compares each with all positions, at a cost of the
            product of both numbers, and runs in a graph; "shuffle" sorts them together with the
            rows, at a cost of the sum times its logarithm and some 100 rounds, and is called
            between graphs (as `sort`), for a vector of indices into the first axis; "auto" takes
            what sends less there, a round counted as 3 Mbit.

    Rounds and bits: none of public indices; of private ones those of lookup.chosen (order.one_hot
    and the cheaper of two products) or of lookup.shuffled.
    Raises:
        UsageError: a public index that is outside, an axis or batch_dims that do not fit.
    """
    if not given.is_private(indices):
        known = x if isinstance(x, MaskedBits) else given.private("gather", x, any_ring=True)
        return shapes.gather(known, indices, axis, batch_dims)
    if not given.is_private(x):
        raise UsageError(
            f"gather wants a private tensor. Received: {given.kind_of(x)} with private indices. "
            "Of a public table: one_hot(indices, len(table)) @ table."
        )
    bits = given.bits_of("gather", bits)
    x, indices = given.private("gather", x), _index("gather", indices)
    sizes, many = given.sizes("gather", x), given.sizes("gather", indices)
    if x.dealer != indices.dealer:
        raise UsageError(f"gather wants one dealer. Received: {x!r} and {indices!r}.")
    at, batch = shapes.gathered("gather", x, indices, axis, batch_dims)
    _check_depth("gather", sizes[at])
    lead, tail = list(range(batch, at)), list(range(at + 1, len(sizes)))
    first = given.elements(sizes[:batch])
    moved = shapes.transpose(x, [*range(batch), at, *lead, *tail])
    width = given.elements([sizes[i] for i in (*lead, *tail)])
    table = shapes.reshape(moved, [first, sizes[at], width])
    asked = shapes.reshape(indices, [first, given.elements(many[batch:])])
    party = current()
    if not party.tracing:
        if len(many) != 1 or at or batch:
            raise UsageError(
                "gather between graphs wants a vector of private indices into the first axis. "
                f"Received: indices {many}, axis {at}, batch_dims {batch}. Call it in a graph."
            )
        chosen = lookup.choose(method, sizes[0], width, many[0])
        if chosen == "shuffle":
            found = lookup.shuffled(party, shapes.reshape(table, [sizes[0], width]), indices)
            return shapes.reshape(found, [many[0], *sizes[1:]])
        key = ("gather", tuple(sizes), many[0], bits, x.dealer, x.fractional_bits)
        graph = party.cached_function(key, lambda: lambda t, a: lookup.chosen(party, t, a, bits))
        return shapes.reshape(graph(table, asked), [many[0], *sizes[1:]])
    if method not in ("auto", "one-hot"):
        raise UsageError(
            f'gather in a graph knows the methods "auto" and "one-hot". Received: {method!r}. '
            "Return the tensors from the graph and call it with these."
        )
    found = lookup.chosen(given.in_graph("gather"), table, asked, bits)
    new = many[batch:]
    whole = [*sizes[:batch], *new, *(sizes[i] for i in (*lead, *tail))]
    # the new axes go behind what stood between the batch and the axis
    places = list(range(len(whole)))
    middle = len(new) + batch
    order = [
        *places[:batch],
        *places[middle : middle + len(lead)],
        *places[batch:middle],
        *places[middle + len(lead) :],
    ]
    return shapes.transpose(shapes.reshape(found, whole), order)


def _check_depth(operation: str, depth: int) -> None:
    if not 1 <= depth <= MOST_POSITIONS:
        raise UsageError(
            f"{operation} wants 1 to {MOST_POSITIONS} positions for a private index. Received: "
            f"{depth}."
        )


def one_hot(
    indices: Shared,
    depth: int,
    on_value: int = 1,
    off_value: int = 0,
    axis: int = -1,
    bits: int = EXACT_BITS,
) -> Shared:
    """on_value where the position along a new axis is the index, else off_value: integers.

    Args:
        indices: private integers; what is negative or not below depth has a row of off_value.
        depth: 1 to 2^20.
        on_value, off_value: public whole numbers.
        axis: where the new axis of size depth goes.
        bits: |index| < 2^(bits-1) (of 64: 2^63 - depth); fewer are cheaper.

    Rounds and bits: those of the cheaper way of order.one_hot, and of `cast` of depth bits.
    """
    x = _index("one_hot", indices)
    bits = given.bits_of("one_hot", bits)
    depth = given.integer("one_hot", "depth", depth)
    _check_depth("one_hot", depth)
    sizes = given.sizes("one_hot", x)
    at = checks.axis_of("one_hot", axis, len(sizes) + 1)
    values = []
    for name, value in (("on_value", on_value), ("off_value", off_value)):
        known = given.static("one_hot", value)
        if known is None or known.ndim:
            raise UsageError(
                f"one_hot wants one public number {name}. Received: {given.kind_of(value)}."
            )
        values.append(int(given.encode("one_hot", known, 0)))
    on, off = values
    party = given.in_graph("one_hot")
    hot = positions.one_hot(party, x, depth, bits)
    ones = convert.b2a(party, hot, [depth, *sizes])
    order = [i + 1 for i in range(len(sizes))]
    order.insert(at, 0)
    ones = shapes.transpose(ones, order)
    return arithmetic.moved(arithmetic.mul_public(ones, on - off), off)


# ---- values at public places


def _places(
    operation: str, indices: Public, shape: list[int]
) -> tuple[npt.NDArray[np.int64], list[int]]:
    """Public index rows [..., k] into a shape, checked, and the shape of what each names."""
    if given.is_private(indices):
        raise UsageError(
            f"{operation} wants public indices. Received: private ones. Multiply by a one_hot."
        )
    known = given.static(operation, indices)
    if known is None or (known.dtype.kind not in "iu" and known.size) or known.ndim < 1:
        raise UsageError(
            f"{operation} wants public integer indices [..., k] that are known while tracing. "
            f"Received: {given.kind_of(indices)}."
        )
    depth = known.shape[-1]
    if depth > len(shape):
        raise UsageError(
            f"{operation} wants indices of {len(shape)} axes at most. Received: {depth} for the "
            f"shape {shape}."
        )
    outside = (known < 0) | (known >= np.array(shape[:depth], np.int64))
    if outside.any():
        raise UsageError(
            f"{operation} wants indices inside of the shape {shape}. Received: "
            f"{int(known[outside].flat[0])}."
        )
    return known.astype(np.int64), shape[depth:]


def _check_updates(operation: str, updates: Shared, wanted: list[int]) -> None:
    sizes = given.sizes(operation, updates)
    if sizes != wanted:
        raise UsageError(
            f"{operation} wants updates of the shape {wanted}. Received: {sizes}. Reshape them."
        )


def scatter_nd(indices: Public, updates: Shared, shape: list[int]) -> Shared:
    """Zeros of a shape with the updates added at public indices, as tf.scatter_nd.  Local.

    Args:
        indices: [..., k] for the first k axes; updates of an index that comes twice are added up.
        updates: [..., *shape[k:]], private.
    """
    updates = given.private("scatter_nd", updates)
    sizes = given.static("scatter_nd", shape)
    if sizes is None or sizes.ndim != 1 or (sizes.size and sizes.dtype.kind not in "iu"):
        raise UsageError(f"scatter_nd wants a public shape. Received: {shape!r}.")
    whole = [int(n) for n in sizes]
    if min(whole, default=0) < 0:
        raise UsageError(f"scatter_nd wants sizes >= 0. Received: {whole}.")
    places, rest = _places("scatter_nd", indices, whole)
    _check_updates("scatter_nd", updates, [*places.shape[:-1], *rest])
    return updates.map(lambda a: local.scatter_nd(a, places, whole))


def tensor_scatter_nd_update(tensor: Operand, indices: Public, updates: Operand) -> Shared:
    """The tensor with the updates at public indices, as tf.tensor_scatter_nd_update.  Local.

    Args:
        tensor, updates: one of them may be public.
        indices: [..., k] for the first k axes, each once (TensorFlow leaves open which of two
            updates stays).
    """
    name = "tensor_scatter_nd_update"
    tensor, updates = given.all_shared(name, [tensor, updates])
    whole = given.sizes(name, tensor)
    places, rest = _places(name, indices, whole)
    _check_updates(name, updates, [*places.shape[:-1], *rest])
    depth = places.shape[-1]
    rows, width = given.elements(whole[:depth]), given.elements(rest)
    flat = places.reshape(-1, depth)
    at = np.zeros(len(flat), np.int64)
    for axis in range(depth):
        at = at * whole[axis] + flat[:, axis]
    if len(np.unique(at)) < len(at):
        raise UsageError(f"{name} wants each index once. Received: one that comes twice.")
    source = np.broadcast_to(np.int64(0), [rows])
    if local.known(tensor.any):
        source = np.arange(rows)
        source[at] = rows + np.arange(len(at))
    both = shapes.concat(
        [shapes.reshape(tensor, [rows, width]), shapes.reshape(updates, [len(at), width])], 0
    )
    return shapes.reshape(shapes.gather(both, source, 0), whole)

"""Lookup of private positions in a private table.

`lookup_one_hot` sums the table under one-hot rows of bits; its cost is the product of both sizes.
`lookup_shuffled` sorts the table and the positions together; it suits large tables.
"""

from __future__ import annotations

import functools
import math
from dataclasses import replace
from typing import Any

import numpy as np

from tfe_bench.errors import UsageError
from tfe_bench.lazy_tensorflow import tf
from tfe_bench.protocols.order import extremes, one_hot, sort
from tfe_bench.protocols.order.shuffle import MAX_COLUMNS, shuffle
from tfe_bench.protocols.ring import arithmetic, checks, compare, convert, logic, reductions, shapes
from tfe_bench.protocols.session import io, openings, tensor_ops
from tfe_bench.protocols.session.cost import Cost
from tfe_bench.protocols.session.counting import Private, PrivateBits, cost_of
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import MaskedBits, Shared

PRODUCTS = ("pick", "matmul")
# Columns of a table that is shuffled: a sort adds the wide key, the key and the position.
MAX_TABLE_COLUMNS = MAX_COLUMNS - 3
METHODS = ("auto", "one-hot", "shuffle")


def lookup_one_hot(
    party: Party, table: Shared, positions: Shared, bits: int = compare.EXACT_BITS
) -> Shared:
    """Return table[b, positions[b, i]], [batch, requests, width]; 0 for a position outside.

    Args:
        table: [batch, n, width].
        positions: integers [batch, requests], below 2^(bits-1).

    Rounds and bits: those of one_hot.one_hot and of the cheaper method of `select_rows_by_one_hot`.
    """
    batch, n, width = (int(d) for d in table.shape)
    request_count = int(positions.shape[1])
    hot = one_hot.one_hot(party, positions, n, bits)
    return select_rows_by_one_hot(
        party, hot, table, request_count, _choose_lookup_product(batch, n, request_count, width)
    )


@functools.cache
def _choose_lookup_product(batch: int, n: int, request_count: int, width: int) -> str:
    bits, table = PrivateBits((n, batch * request_count)), Private((batch, n, width))
    costs = [
        cost_of(select_rows_by_one_hot, bits, table, request_count, method) for method in PRODUCTS
    ]
    return PRODUCTS[int(np.argmin([_estimate_lookup_cost(c) for c in costs]))]


def select_rows_by_one_hot(
    party: Party, hot: MaskedBits, table: Shared, request_count: int, method: str
) -> Shared:
    """Sum the table rows whose bit is 1, for bits [n, batch * requests].

    Args:
        method: "pick" injects each bit into each element of the table; "matmul" first converts the
            bits to numbers.

    Rounds: "pick" 1 online, 2 in total; "matmul" 2 online, 3 in total. Bits sent: "pick" D 128 for
    each bit and column, E1, E2 64 for each element of the result; "matmul" D, E1, E2 64 for each of
    the bits and of the elements of the result.
    """
    batch, n, width = (int(d) for d in table.shape)
    if method == "matmul":
        ones = convert.b2a(party, hot, [n, batch, request_count])
        rows = shapes.transpose(ones, [1, 2, 0])
        return arithmetic.matmul(party, rows, table)
    product_shape = [n, batch, request_count, width]
    repeated_bits = logic.rearrange_private_bits(
        hot,
        (n, batch, request_count, 1),
        lambda a: tensor_ops.broadcast_to(a, product_shape),
        n * batch * request_count * width,
    )
    columns = shapes.expand_dims(shapes.transpose(table, [1, 0, 2]), 2)
    return extremes.sum_one_hot_selected(
        party, repeated_bits, shapes.broadcast_to(columns, product_shape)
    )


# ---- large tables, between graphs


def lookup_shuffled(party: Party, table: Shared, positions: Shared) -> Shared:
    """Return table[positions[i]], [requests, width]; 0 for a position outside. Between graphs.

    The numbers 0 .. n of the rows and the positions are sorted together, each row before the
    positions equal to it. Row j carries its difference from row j - 1, row n (a dummy) carries the
    difference from the last row to 0, and a position carries 0. Running sums, which are local, are
    then the requested rows. They are shuffled together with their original positions, which are
    then revealed, and put back in order.

    Args:
        table: [n, width], width up to MAX_TABLE_COLUMNS.
        positions: any integers [requests].

    Rounds and bits: those of sort.sort of n + 1 + requests keys with width columns; in addition 3
    rounds and 256 bits for each of these elements and of the keys, and 192 for a key.
    """
    n, width = (int(d) for d in table.shape)
    request_count = int(positions.shape[0])
    scale = table.fractional_bits

    def merge_lookup_keys(table: Shared, positions: Shared) -> list[Shared]:
        rows = arithmetic.share_public_range(table, n + 1)
        keys = shapes.concat([rows, positions], 0)
        zero_row = table.map(lambda a: tensor_ops.zeros_like(a[:1]))
        steps = arithmetic.sub(
            shapes.concat([table, zero_row], 0), shapes.concat([zero_row, table], 0)
        )
        padded = shapes.pad(steps, [[0, request_count], [0, 0]])
        return [keys, *shapes.unstack(padded, 1)]

    def shuffle_lookup_sums(indices: Shared, *columns: Shared) -> Any:
        sums = [reductions.cumsum(c, 0) for c in columns]
        rows = [c.map(lambda a: tensor_ops.strided_slice(a, None)) for c in (indices, *sums)]
        first, *rest = shuffle(party, rows)
        return io.reveal(party, first, what=openings.SHUFFLED_POSITIONS), rest

    def restore_lookup_order(origins: Any, *columns: Shared) -> Shared:
        slots = _invert_shuffle_origins(origins)[n + 1 :]
        gathered_rows = shapes.stack(
            [c.map(lambda a: tensor_ops.gather(a[0], slots)) for c in columns], 1
        )
        return replace(gathered_rows, fractional_bits=scale)

    key = (n, width, request_count, table.dealer)
    keys_and_steps = party.cached_function(("lookup.joined", *key), lambda: merge_lookup_keys)(
        table, positions
    )
    keys, *columns = keys_and_steps
    sorted_keys = sort.sort(party, keys, columns)
    shuffle_graph = party.cached_function(("lookup.mixed", *key), lambda: shuffle_lookup_sums)
    origins, sums = shuffle_graph(sorted_keys.indices, *sorted_keys.payload)
    requested_rows: Shared = party.cached_function(
        ("lookup.back", scale, *key), lambda: restore_lookup_order
    )(origins, *sums)
    return requested_rows


def _invert_shuffle_origins(origins: Any) -> Any:
    """Return the present position of each original position."""
    if isinstance(origins, tensor_ops.SymbolicTensor):
        return np.zeros(origins.shape[-1], np.int64)
    return tf.argsort(origins[0])


def choose_lookup(method: str, n: int, width: int, request_count: int) -> str:
    """Resolve "auto" between graphs: "one-hot" (`lookup_one_hot`) or "shuffle" (`lookup_shuffled`).

    The cost of a sort by all pairs is counted. The comparisons of a quicksort depend on its
    shuffle: they are estimated as 1.25 N log2(N), and its levels as 2 log2(N) of 3 rounds each.

    Raises:
        UsageError: the table has too many columns for a shuffle.
    """
    checks.check_choice("way to look rows up", method, METHODS, "gather")
    if method == "shuffle" and width > MAX_TABLE_COLUMNS:
        raise UsageError(
            f"gather shuffles rows of at most {MAX_TABLE_COLUMNS} numbers. Received: "
            f'{width}. Use method="one-hot".',
            code="too-large",
            operation="gather",
            received=width,
            expected=MAX_TABLE_COLUMNS,
        )
    if method != "auto" or width > MAX_TABLE_COLUMNS:
        return "one-hot" if method == "auto" else method
    direct_cost = cost_of(lookup_one_hot, Private((1, n, width)), Private((1, request_count), 0))
    keys = n + 1 + request_count
    if sort.choose_algorithm("auto", keys, "local") == "all-pairs":
        sort_cost = cost_of(
            lookup_shuffled, Private((n, width)), Private((request_count,), 0), graphs=True
        )
        return (
            "one-hot"
            if _estimate_lookup_cost(direct_cost) <= _estimate_lookup_cost(sort_cost)
            else "shuffle"
        )
    depth = math.log2(keys)
    comparison_bits = compare.plan_comparison(65 + sort.sort_index_bits(keys), 2).total_bits + 4
    shuffle_bits = 2 * 256 * keys * (width + 4)
    price = (
        1.25 * keys * depth * comparison_bits
        + shuffle_bits
        + 6 * depth * extremes.ROUND_BITS["local"]
    )
    return "one-hot" if _estimate_lookup_cost(direct_cost) <= price else "shuffle"


def _estimate_lookup_cost(cost: Cost) -> float:
    """Return a cost in bits, with each round counted as the bits sent in its time."""
    return cost.total + cost.rounds * extremes.ROUND_BITS["local"]

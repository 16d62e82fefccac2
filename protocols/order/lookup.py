"""Rows of a private table at private positions.

`chosen` sums up the table under a row of bits of which one is 1; its cost is the product of both
sizes.  `shuffled` sorts the table and the positions together, for large ones.
"""

from __future__ import annotations

import functools
import math
from dataclasses import replace
from typing import Any

import numpy as np

from tfe_bench.errors import UsageError
from tfe_bench.protocols.order import extremes, one_hot, sort
from tfe_bench.protocols.order.shuffle import MAX_COLUMNS, shuffle
from tfe_bench.protocols.ring import arithmetic, checks, compare, convert, logic, reductions, shapes
from tfe_bench.protocols.session import io, local
from tfe_bench.protocols.session.cost import Cost
from tfe_bench.protocols.session.counting import Private, PrivateBits, cost_of
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import MaskedBits, Shared

PRODUCTS = ("pick", "matmul")
# Of a table whose rows are moved: a sort adds the wide key, the key and the position.
MOST_COLUMNS = MAX_COLUMNS - 3
WAYS = ("auto", "one-hot", "shuffle")


def chosen(
    party: Party, table: Shared, positions: Shared, bits: int = compare.EXACT_BITS
) -> Shared:
    """table[b, positions[b, i]], [batch, asked, width]; 0 for a position that is not there.

    Args:
        table: [batch, n, width].
        positions: integers [batch, asked], below 2^(bits-1).

    Rounds and bits: those of one_hot.one_hot and the cheaper of `product`.
    """
    batch, n, width = (int(d) for d in table.shape)
    asked = int(positions.shape[1])
    hot = one_hot.one_hot(party, positions, n, bits)
    return product(party, hot, table, asked, _cheaper(batch, n, asked, width))


@functools.cache
def _cheaper(batch: int, n: int, asked: int, width: int) -> str:
    bits, table = PrivateBits((n, batch * asked)), Private((batch, n, width))
    made = [cost_of(product, bits, table, asked, way) for way in PRODUCTS]
    return PRODUCTS[int(np.argmin([_price(c) for c in made]))]


def product(party: Party, hot: MaskedBits, table: Shared, asked: int, way: str) -> Shared:
    """The sum over a table's rows of those whose bit is 1, for bits [n, batch * asked].

    Args:
        way: "pick" injects each element of the table for each bit; "matmul" makes numbers of the
            bits first.

    Rounds: "pick" 1 (2 with dealing), "matmul" 2 (3).  Bits sent: "pick" D 128 for each bit and
    column, E1, E2 64 for each element of the result; "matmul" D, E1, E2 64 for each of the bits and
    of the elements of the result.
    """
    batch, n, width = (int(d) for d in table.shape)
    if way == "matmul":
        ones = convert.b2a(party, hot, [n, batch, asked])
        rows = shapes.transpose(ones, [1, 2, 0])
        return arithmetic.matmul(party, rows, table)
    whole = [n, batch, asked, width]
    spread = logic.rearrange(
        hot,
        (n, batch, asked, 1),
        lambda a: local.broadcast_to(a, whole),
        n * batch * asked * width,
    )
    columns = shapes.expand_dims(shapes.transpose(table, [1, 0, 2]), 2)
    return extremes.pick(party, spread, shapes.broadcast_to(columns, whole))


# ---- large tables, between graphs


def shuffled(party: Party, table: Shared, positions: Shared) -> Shared:
    """table[positions[i]], [asked, width]; 0 for a position that is not there.  Between graphs.

    The rows 0 .. n and the positions are sorted together, a row before the positions that name it.
    With row j goes its difference from row j - 1 (with row n, which is none, what is left to 0),
    with a position 0: running sums, which are local, are then the rows asked for.  A shuffle of
    these and of where each came from, of which the latter is revealed, brings them back.

    Args:
        table: [n, width], width up to MOST_COLUMNS.
        positions: any integers [asked].

    Rounds and bits: those of sort.sort of n + 1 + asked keys with width columns; and 3 rounds and
    256 bits for each of these elements and of the keys, and 192 for a key.
    """
    n, width = (int(d) for d in table.shape)
    asked = int(positions.shape[0])
    scale = table.fractional_bits

    def joined(table: Shared, positions: Shared) -> list[Shared]:
        rows = arithmetic.public_range(table, n + 1)
        keys = shapes.concat([rows, positions], 0)
        none = table.map(lambda a: local.zeros_like(a[:1]))
        steps = arithmetic.sub(shapes.concat([table, none], 0), shapes.concat([none, table], 0))
        padded = shapes.pad(steps, [[0, asked], [0, 0]])
        return [keys, *shapes.unstack(padded, 1)]

    def mixed(indices: Shared, *columns: Shared) -> Any:
        sums = [reductions.cumsum(c, 0) for c in columns]
        rows = [c.map(lambda a: local.at(a, None)) for c in (indices, *sums)]
        first, *rest = shuffle(party, rows)
        return io.reveal(party, first), rest

    def back(origins: Any, *columns: Shared) -> Shared:
        slots = _inverse(origins)[n + 1 :]
        moved = shapes.stack([c.map(lambda a: local.gather(a[0], slots)) for c in columns], 1)
        return replace(moved, fractional_bits=scale)

    key = (n, width, asked, table.dealer)
    found = party.cached_function(("lookup.joined", *key), lambda: joined)(table, positions)
    keys, *columns = found
    done = sort.sort(party, keys, columns)
    mix = party.cached_function(("lookup.mixed", *key), lambda: mixed)
    origins, sums = mix(done.indices, *done.payload)
    brought: Shared = party.cached_function(("lookup.back", scale, *key), lambda: back)(
        origins, *sums
    )
    return brought


def _inverse(origins: Any) -> Any:
    """Where each original position is now."""
    if isinstance(origins, local.Abstract):
        return np.zeros(origins.shape[-1], np.int64)
    import tensorflow as tf

    return tf.argsort(origins[0])


def choose(way: str, n: int, width: int, asked: int) -> str:
    """What "auto" stands for between graphs: "one-hot" (`chosen`) or "shuffle" (`shuffled`).

    A sort of all pairs is counted.  A quicksort's comparisons follow its shuffle: they are taken as
    1.25 N log2(N), and its levels as 2 log2(N) of 3 rounds.

    Raises:
        UsageError: a table of too many columns to be shuffled.
    """
    checks.check_choice("way to look rows up", way, WAYS, "gather")
    if way == "shuffle" and width > MOST_COLUMNS:
        raise UsageError(
            f"gather shuffles rows of {MOST_COLUMNS} numbers at most. Received: {width}. "
            'Use method="one-hot".'
        )
    if way != "auto" or width > MOST_COLUMNS:
        return "one-hot" if way == "auto" else way
    direct = cost_of(chosen, Private((1, n, width)), Private((1, asked), 0))
    keys = n + 1 + asked
    if sort.choose("auto", keys, "local") == "all-pairs":
        sorting = cost_of(shuffled, Private((n, width)), Private((asked,), 0), graphs=True)
        return "one-hot" if _price(direct) <= _price(sorting) else "shuffle"
    depth = math.log2(keys)
    compared = compare.recipe(65 + sort.index_bits(keys), 2).total + 4
    moved = 2 * 256 * keys * (width + 4)
    price = 1.25 * keys * depth * compared + moved + 6 * depth * extremes.ROUND_BITS["local"]
    return "one-hot" if _price(direct) <= price else "shuffle"


def _price(cost: Cost) -> float:
    """Bits, and a round as what it takes as long as."""
    return cost.total + cost.rounds * extremes.ROUND_BITS["local"]

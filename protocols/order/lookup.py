"""Rows of a private table at private positions.

`chosen` sums up the table under a row of bits of which one is 1; its cost is the product of both
sizes.
"""

from __future__ import annotations

import functools

import numpy as np

from tfe_bench.protocols.order import extremes, one_hot
from tfe_bench.protocols.ring import arithmetic, compare, convert, logic, shapes
from tfe_bench.protocols.session import local
from tfe_bench.protocols.session.counting import Private, PrivateBits, cost_of
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import MaskedBits, Shared

PRODUCTS = ("pick", "matmul")


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
    price = [c.total + c.rounds * extremes.ROUND_BITS["local"] for c in made]
    return PRODUCTS[int(np.argmin(price))]


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

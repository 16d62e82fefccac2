"""Protocols of protocols/order and protocols/tables."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from tests.protocols import seeded
from tests.protocols.entry import WORDS, Entry, K, reshape_shares, sign_bits
from tests.protocols.seeded import drop_mask, merge_masks
from tfe_bench.protocols.order import extremes, row_maximum, shuffle, sort, winner
from tfe_bench.protocols.ring import arithmetic, compare, logic, small_ring
from tfe_bench.protocols.session import io
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared
from tfe_bench.protocols.tables import bits, dense

WIDTH = 4  # values per row where rows are compared


def compare_shuffled(party: Party, x: Shared, y: Shared) -> Any:
    """Open one comparison of shuffled values: the secret order affects no other message.

    The opened bits affect no message.
    """
    columns = shuffle.shuffle(party, [reshape_shares(c, 1, -1) for c in (x, y)])
    first, second = (columns[0].map(lambda a, i=i: a[0, i : i + 1]) for i in (0, 1))
    return io.reveal_bits(party, compare.msb(party, arithmetic.sub(first, second), K, 1))


def permute_and_back(party: Party, x: Shared, y: Shared, begin: int = 0) -> Any:
    """Permute columns of two rings by one secret order and back, one after the other."""
    columns = [reshape_shares(x, 1, -1), small_ring.reduce_ring(reshape_shares(y, 1, -1), 13)]
    factors = shuffle.draw_permutation(party, 1, x.shape[0], x.dealer)
    there = [shuffle.apply_permutation(party, factors, [c])[0] for c in columns]
    return shuffle.apply_inverse(party, factors, there, None, begin)


def share_and_exchange(party: Party, x: Shared, y: Shared) -> Any:
    """Share the masks of bits again, and convert the AND of the bits to numbers."""
    split = bits.from_masked(party, sign_bits(party, x))
    joined = bits.exchange_bits(party, logic.and_bits(party, [bits.to_masked(split)] * 2))
    return bits.to_number(party, joined, 7)


def sum_by_codes(party: Party, x: Shared, y: Shared) -> Any:
    """Return sums of two codes, exchanged once for all rows."""
    valid = party.cached_function(
        "signs", lambda: lambda a: bits.from_masked(party, sign_bits(party, a))
    )(y)
    return dense._sum_columns_by_group_code(party, x, valid, [y], 1, 9)


def pick_largest(party: Party, x: Shared, y: Shared, plain: Any) -> Any:
    """Return the largest of each row by comparisons of all pairs, and its position."""
    rows = reshape_shares(x, WIDTH, -1)
    return extremes._find_extreme(party, rows, "all-pairs", 31, None, index=True)


def halve_rows(party: Party, x: Shared, y: Shared, plain: Any) -> Any:
    two = reshape_shares(x, WIDTH, -1).map(lambda a: a[:2])
    return extremes.argmin(party, two, 0, bits=31, method="tree")


ENTRIES: dict[str, Entry] = {
    "shuffle": Entry(
        compare_shuffled,
        ("shuffle",),
        n=2,
        many=lambda p, x, y, _: shuffle.shuffle(p, [reshape_shares(c, -1, 4) for c in (x, y)]),
        faults={
            "shuffle without p2": seeded.without_the_third_permutation,
            "columns of a shuffle share a mask": merge_masks("shuffle", {6: 3}),
        },
    ),
    "rearranged": Entry(
        permute_and_back,
        ("order", "shuffle", "undo"),
        n=2,
        faults={
            "E2 goes back without its mask": drop_mask("undo", "is_e2"),
            "columns that go back share a mask": merge_masks("undo", {6: 3}),
            "an order moves twice under one mask": seeded.one_site_for_all("shuffle"),
        },
    ),
    "rearranged, the end of it": Entry(
        partial(permute_and_back, begin=1),
        ("undo",),
        n=2,
        faults={
            "E2 goes back to the last rows without its mask": drop_mask("undo", "is_e2"),
            "columns of the last rows share a mask": merge_masks("undo", {6: 3}),
        },
    ),
    "dense": Entry(
        sum_by_codes,
        ("dense_sums", "dense_totals"),
        n=2,
        whole=True,
        faults={
            "a group's products share the mask of its row": merge_masks("dense_sums", {1: 0}),
            "totals leave without E2's mask": drop_mask("dense_totals", "is_e2"),
        },
    ),
    "bits": Entry(
        share_and_exchange,
        ("split_bits", "exchange_bits", "b2a"),
        faults={
            "D shares a bit's mask as it is": drop_mask("split_bits", "is_dealer"),
            "bits leave without E1's mask": drop_mask("exchange_bits", "is_e1"),
        },
    ),
    "sort": Entry(
        lambda p, x, y: sort.sort(p, x, algorithm="all-pairs", full_range=False),
        ("shuffle", "reveal_bits"),
        n=2,
        whole=True,
        slow=True,
    ),
    "argmax": Entry(
        lambda p, x, y: extremes._find_extreme(
            p, reshape_shares(x, 2, 1), "all-pairs", 4, 1, index=True
        ),
        ("pick", "index"),
        n=2,
        many=pick_largest,
        compared=WIDTH * (WIDTH - 1) // 2 * WORDS // WIDTH,
    ),
    "tree": Entry(None, many=halve_rows, compared=WORDS // WIDTH),
    "row_maximum": Entry(
        lambda p, x, y: row_maximum.row_maximum(
            p, small_ring.reduce_ring(x, K), np.array([1, 2]), K
        ),
        ("pick_small", "all_of"),
        faults={
            "what is picked leaves under a dealt mask": seeded.change_constant(
                small_ring, "FRESH", 1
            ),
        },
    ),
    "winner": Entry(
        lambda p, x, y: winner.argmax_one_hot(
            p, reshape_shares(small_ring.reduce_ring(x, K), 1, -1)
        ),
        ("b2a",),
    ),
}

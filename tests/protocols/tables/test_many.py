"""Left joins of repeated keys keep rows without a partner, once, or report overflow."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.protocols.shares import output_at
from tests.protocols.tables.relations import as_bit, delivered_rows, parts_of, rank_rows
from tests.refusals import raises
from tfe_bench.cluster.simulate import simulate, total_rounds
from tfe_bench.errors import UsageError
from tfe_bench.protocols.session.counting import Private, count_cost
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared
from tfe_bench.protocols.tables import many_to_many, results
from tfe_bench.protocols.tables.relation import Column, Relation

# Keys of left and right, the number of invalid last rows of each, and the NULL rows.
CASES: dict[str, tuple[list[int], list[int], int, tuple[int, ...]]] = {
    "some match": ([4, 9, 4, 0, 9], [4, 0, 4, 4, 7, 4], 1, (3,)),
    "none matches": ([1, 2, 3], [15, 15], 0, ()),
    "all match": ([5, 5], [5, 5, 5], 0, ()),
    "behind all others": ([15, 0, 15], [1, 2, 3, 4], 0, (0,)),
    "one row each": ([3], [3], 0, ()),
    "no row of the other": ([1, 0], [], 0, ()),
    "no valid row": ([1, 0], [1, 1, 0], 3, ()),
}


def _make_sides(
    x: Shared, xs: Shared, xn: Shared, y: Shared, ys: Shared
) -> tuple[Relation, Relation]:
    left = Relation((Column(x, 4, as_bit(xn)), Column(x.map(lambda a: a + a), 64)), as_bit(xs))
    return left, Relation((Column(y, 4), Column(y, 64, as_bit(ys))), as_bit(ys))


@pytest.mark.parametrize(
    "case", [c if c == "some match" else pytest.param(c, marks=pytest.mark.slow) for c in CASES]
)
def test_rows_without_a_partner_stay_once(case: str) -> None:
    keys, others, none, nulls = CASES[case]
    n, m = len(keys), len(others)
    there = [np.arange(k) < k - none for k in (n, m)]
    null = np.isin(np.arange(n), nulls)
    arrays = [np.asarray(a, np.int64) for a in (keys, there[0], null, others, there[1])]
    due: list[tuple[Any, ...]] = []
    for i in np.flatnonzero(there[0]).tolist():
        key = None if null[i] else keys[i]
        partners = [y for j, y in enumerate(others) if there[1][j] and y == key]
        # The second column of right is NULL in every valid row.
        due += [(key, 2 * keys[i], y, None) for y in partners] or [(key, 2 * keys[i], None, None)]
    bounds = sorted({max(1, len(due) - 1), max(1, len(due))})

    def program(p: Party, *shares: Shared) -> Any:
        left, right = _make_sides(*shares)
        results_, costs = [], []
        for bound in bounds:
            p.reset_counters()
            rows, over = many_to_many.many_to_many_join(p, left, right, [(0, 0)], bound, "left")
            results_.append((parts_of(results.deliver_rows(p, rows)), over))
            costs.append((8 * sum(p.counters()["payload"]), p.rounds()))
        return results_, costs

    sim = simulate(program, *arrays, dealer=n % 3)
    for i, bound in enumerate(bounds):
        assert sim.value(output_at(0, i, 1)).tolist() == [len(due) > bound]
        rows = delivered_rows(sim, output_at(0, i, 0))
        assert rank_rows(rows) == rank_rows([] if len(due) > bound else due)

        def counted(p: Party, *shares: Shared, bound: int = bound) -> Any:
            left, right = _make_sides(*shares)
            rows, _ = many_to_many.many_to_many_join(p, left, right, [(0, 0)], bound, "left")
            return results.deliver_rows(p, rows).parts

        tally = count_cost(counted, *[Private((k,), 0) for k in (n, n, n, m, m)], graphs=True)
        sent, rounds = zip(*(out[1][i] for out in sim.outputs), strict=True)
        assert sent == tally.cost.by_party(n % 3)
        assert total_rounds(rounds, "ahead") == tally.cost.rounds


def test_other_kinds_are_refused() -> None:
    def program(p: Party, x: Shared) -> None:
        one = Relation((Column(x, 4),), as_bit(x))
        with raises(UsageError, "unknown-name"):
            many_to_many.many_to_many_join(p, one, one, [(0, 0)], 3, "semi")

    simulate(program, np.ones(2, np.int64))

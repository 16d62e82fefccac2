"""Operators on private relations equal those on plain ones, for any invalid rows and NULLs."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from tests.protocols.shares import output_at
from tests.protocols.tables.relations import (
    Table,
    as_bit,
    delivered_rows,
    draw_tables,
    parts_of,
    rank_rows,
    relation_of,
    wrap_sum,
)
from tests.refusals import raises
from tfe_bench.cluster.simulate import simulate, total_rounds
from tfe_bench.errors import RangeError, UsageError
from tfe_bench.protocols.session.counting import Private, count_cost
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared
from tfe_bench.protocols.tables import (
    bits,
    dense,
    groups,
    hashed_lookup,
    joins,
    many_to_many,
    quantiles,
    results,
    windows,
)
from tfe_bench.protocols.tables import relation as relations
from tfe_bench.protocols.tables.groups import GroupAggregate
from tfe_bench.protocols.tables.keys import OrderKey
from tfe_bench.protocols.tables.relation import Column, Relation
from tfe_bench.protocols.tables.windows import WindowFunction
from tfe_bench.queries import hash_bins

AGGREGATES = (
    *(
        GroupAggregate("sum", 1),
        GroupAggregate("count"),
        GroupAggregate("min", 1),
        GroupAggregate("max", 1),
    ),
    *(GroupAggregate("sum", 2), GroupAggregate("count", 2), GroupAggregate("max", 2)),
)
SIZES = [9, *(pytest.param(n, marks=pytest.mark.slow) for n in (0, 1, 2, 30))]


def run_operator(operator: Any, plain_tables: Sequence[Table], dealer: int = 0) -> Any:
    """Run operator(party, relation) on each table in one session, results first.

    Bits and rounds equal the declared ones, whatever the tables hold.
    """

    def program(p: Party, *shares: Shared) -> Any:
        several = [relation_of(shares[i : i + 6]) for i in range(0, len(shares), 6)]
        results, costs = [], []
        for each in several:
            p.reset_counters()
            results.append([parts_of(r) for r in operator(p, each)])
            costs.append((8 * sum(p.counters()["payload"]), p.rounds()))
        return results, costs

    sim = simulate(program, *(a for t in plain_tables for a in t.arrays), dealer=dealer)
    n = len(plain_tables[0].key)
    tally = count_cost(
        lambda p, *s: operator(p, relation_of(s)), *[Private((n,), 0)] * 6, graphs=True
    )
    for i in range(len(plain_tables)):
        sent, rounds = zip(*(out[1][i] for out in sim.outputs), strict=True)
        assert sent == tally.cost.by_party(dealer)
        cost = (total_rounds(rounds, "ahead"), total_rounds(rounds, "with_dealing"))
        assert cost == (tally.cost.rounds, tally.cost.with_dealing)
    return sim


def aggregate_plain(rows: Sequence[tuple[Any, ...]], least: int = 1) -> list[tuple[Any, ...]]:
    aggregates = []
    for key, some in itertools.groupby(sorted(rows, key=lambda r: r[0]), key=lambda r: r[0]):
        several = list(some)
        values, there = [r[1] for r in several], [r[2] for r in several if r[2] is not None]
        total = wrap_sum(sum(there)) if there else None
        of_values = (wrap_sum(sum(values)), len(several), min(values), max(values))
        if len(several) >= least:
            aggregates.append((key, *of_values, total, len(there), max(there, default=None)))
    return aggregates


@pytest.mark.parametrize("n", SIZES)
def test_groups_have_what_their_rows_have(n: int, rng: np.random.Generator) -> None:
    plain_tables = list(draw_tables(n, rng))

    def operator(p: Party, r: Relation) -> Any:
        grouped = groups.group_rows(p, r, [0], AGGREGATES, min_rows=2)
        return results.deliver_rows(p, grouped), results.deliver_rows(
            p, groups.distinct_rows(p, r, [2])
        )

    sim = run_operator(operator, plain_tables, n % 3)
    for i, table in enumerate(plain_tables):
        assert rank_rows(delivered_rows(sim, output_at(0, i, 0))) == aggregate_plain(table.rows, 2)
        assert rank_rows(delivered_rows(sim, output_at(0, i, 1))) == rank_rows(
            list({(r[2],) for r in table.rows})
        )


@pytest.mark.parametrize("n", SIZES)
def test_groups_of_public_codes_have_what_their_rows_have(
    n: int, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dense, "_SLICE_ROWS", 2)  # several slices, the last short
    plain_tables = list(draw_tables(n, rng))
    aggregates = [a for a in AGGREGATES if a.function in ("sum", "count")]

    def operator(p: Party, r: Relation) -> Any:
        few = Relation((r.columns[0], r.columns[3]), r.valid)
        by_key = dense.group_by_code(p, r, 0, 8, aggregates)
        narrow = dense.group_by_code(p, few, 0, 7, [GroupAggregate("sum", 1)], min_rows=2)
        return results.deliver_rows(p, by_key), results.deliver_rows(p, narrow)

    sim = run_operator(operator, plain_tables, n % 3)
    for i, table in enumerate(plain_tables):
        expected = [(k, s, c, t, d) for k, s, c, _, _, t, d, _ in aggregate_plain(table.rows)]
        assert rank_rows(delivered_rows(sim, output_at(0, i, 0))) == expected
        unique = aggregate_plain([(r[0], r[3], None) for r in table.rows if r[0] < 7], 2)
        assert rank_rows(delivered_rows(sim, output_at(0, i, 1))) == [row[:2] for row in unique]


@pytest.mark.parametrize("n", SIZES)
def test_rows_are_put_in_order_and_shown_in_it(n: int, rng: np.random.Generator) -> None:
    plain_tables = list(draw_tables(n, rng))

    def operator(p: Party, r: Relation) -> Any:
        ordered = results.order_by(p, r, [OrderKey(2, descending=True), OrderKey(0), OrderKey(3)])
        return [results.deliver_rows(p, relations.limit_rows(ordered, 5), is_ordered=True)]

    sim = run_operator(operator, plain_tables, n % 3)
    for i, table in enumerate(plain_tables):
        rows = sorted(table.rows, key=lambda r: (r[2] is None, -(r[2] or 0), r[0], r[3]))
        assert delivered_rows(sim, output_at(0, i, 0)) == rows[:5]


@pytest.mark.parametrize("n", SIZES)
def test_joins_find_the_rows_with_equal_keys(n: int, rng: np.random.Generator) -> None:
    plain_tables = list(draw_tables(n, rng))

    def operator(p: Party, r: Relation) -> Any:
        # unique numbers serve as keys: those of valid rows only
        requests = Relation((r.columns[0], r.columns[2]), r.valid)
        known = Relation((r.columns[3], r.columns[2], r.columns[1]), r.valid)
        joined = [joins.lookup_join(p, requests, known, [(0, 0)], kind) for kind in joins.KINDS]
        few = relations.limit_rows(known, 7)
        joined += [
            joins.lookup_join(p, r, few, [(3, 0)], kind, is_unique=True) for kind in joins.KINDS
        ]
        return [results.deliver_rows(p, f, is_ordered=True) for f in joined]

    sim = run_operator(operator, plain_tables, n % 3)
    for i, table in enumerate(plain_tables):
        by_key = {u: (u, m, v) for _, v, m, u in table.rows}
        few = {u: by_key[u] for u, ok in zip(table.unique[:7], table.valid, strict=False) if ok}
        cases = [([(k, m) for k, _, m, _ in table.rows], 0, by_key), (table.rows, 3, few)]
        for j, (rows, key, right) in enumerate(cases):
            expected = [
                [(*a, *right[a[key]]) for a in rows if a[key] in right],
                [(*a, *right.get(a[key], (None, None, None))) for a in rows],
                [a for a in rows if a[key] in right],
                [a for a in rows if a[key] not in right],
            ]
            for k, due in enumerate(expected):
                assert delivered_rows(sim, output_at(0, i, 4 * j + k)) == due


@pytest.mark.parametrize(
    "widths", [(1, 60, 61, 63, 64), pytest.param(range(1, 65), marks=pytest.mark.slow)]
)
def test_columns_of_every_width_are_joined_and_delivered_whole(
    widths: Sequence[int], rng: np.random.Generator
) -> None:
    """Columns of up to 60 bits move in smaller rings; the ends of ranges are restored."""
    ends = [(0, 2**w - 1) if w < 64 else (-(2**63), 2**63 - 1) for w in widths]

    def program(p: Party, key: Shared, valid: Shared, *columns: Shared) -> Any:
        kept = (Column(c, w) for c, w in zip(columns, widths, strict=True))
        right = Relation((Column(key, 2), *kept), as_bit(valid))
        left = Relation((Column(key, 2),), bits.share_public_row_bits(right.valid, np.ones(3)))
        joined = [joins.lookup_join(p, left, right, [(0, 0)], kind) for kind in ("inner", "left")]
        return [parts_of(results.deliver_rows(p, r)) for r in joined]

    columns = [np.array([low, high, low]) for low, high in ends]
    own, dealer = (np.array([2, 0, 1]), np.array([1, 1, 0])), int(rng.integers(3))
    sim = simulate(program, *own, *columns, dealer=dealer)
    # the key of each side
    expected = [(2, 2, *(low for low, _ in ends)), (0, 0, *(high for _, high in ends))]
    assert rank_rows(delivered_rows(sim, output_at(0))) == rank_rows(expected)
    assert rank_rows(delivered_rows(sim, output_at(1))) == rank_rows(
        [*expected, (1, *[None] * (1 + len(widths)))]
    )


@pytest.mark.parametrize("n", SIZES)
def test_all_pairs_are_found_or_that_there_are_more(n: int, rng: np.random.Generator) -> None:
    plain_tables, bound = list(draw_tables(n, rng)), 2 * n + 3

    def operator(p: Party, r: Relation) -> Any:
        few = relations.limit_rows(r, 5)
        over = []
        joined = []
        for i in (0, 2):
            both, more = many_to_many.many_to_many_join(p, r, few, [(i, i)], bound)
            joined.append(results.deliver_rows(p, both))
            over.append(relations.Column(more, 1))
        kept, more = many_to_many.trim_rows(p, r, max(1, n // 2))
        over.append(relations.Column(more, 1))
        ones = bits.share_public_row_bits(more, np.ones(1))
        return [
            *joined,
            results.deliver_rows(p, kept, is_ordered=True),
            Relation(tuple(over), ones),
        ]

    sim = run_operator(operator, plain_tables, n % 3)
    for i, table in enumerate(plain_tables):
        valid = table.valid.astype(bool)
        few = Table(*(a[:5] for a in table.arrays)).rows
        over = delivered_rows(sim, output_at(0, i, 3), False)[0]
        for j, k in enumerate((0, 2)):
            pairs = [(*a, *b) for a in table.rows for b in few if a[k] == b[k] is not None]
            assert over[j] == (len(pairs) > bound)
            due = [] if len(pairs) > bound else pairs
            assert rank_rows(delivered_rows(sim, output_at(0, i, j))) == rank_rows(due)
        more = valid.sum() > max(1, n // 2)
        assert over[2] == more
        assert delivered_rows(sim, output_at(0, i, 2)) == ([] if more else table.rows)


def test_a_bound_of_pairs_is_met_and_missed_by_one() -> None:
    # 2 * 3 + 1 * 1 pairs; the last row of each side is invalid
    left, right = np.array([4, 9, 4, 0, 9]), np.array([4, 0, 4, 4, 7, 4])
    valid = [np.arange(len(side)) < len(side) - 1 for side in (left, right)]
    args = [np.asarray(a, np.int64) for a in (left, right, *valid)]

    def program(p: Party, x: Shared, y: Shared, xs: Shared, ys: Shared) -> Any:
        sides = [Relation((relations.Column(k, 4),), as_bit(v)) for k, v in ((x, xs), (y, ys))]
        joined = [
            many_to_many.many_to_many_join(p, sides[0], sides[1], [(0, 0)], bound)
            for bound in (6, 7, 8, 1)
        ]
        return [(parts_of(results.deliver_rows(p, r)), over) for r, over in joined]

    sim = simulate(program, *args)
    for i, over in enumerate((1, 0, 0, 1)):
        assert sim.value(output_at(i, 1)).tolist() == [over]
        due = [] if over else [(0, 0), *[(4, 4)] * 6]
        assert rank_rows(delivered_rows(sim, output_at(i, 0))) == due


@pytest.mark.parametrize("width", [4, 61, 62, 64])
def test_a_row_in_bins_is_found_once_whatever_owners_store_and_ask(width: int) -> None:
    # the largest key: one more would fill a ring, or a word; a key of 64 bits is -1
    top = 2**width - 1 if width < 64 else -1
    # the last bin is empty; one key occurs in three rows, and one bin is requested three times
    held, used, v = [top, top, top, 5, 9, 0], [1, 1, 1, 1, 1, 0], [1, 2, 3, 4, -(2**63), 6]
    asking, requested_bins = (
        [top, 5, 9, top, 0],
        [(0, 1, 2), (3, 3, 3), (0, 1, 3), (4, 2, 5), (5, 5, 5)],
    )
    target = hash_bins.bin_request_targets(np.array(requested_bins).T, 6)
    arrays = [np.array(a) for a in (asking, [1, 1, 1, 0, 1], held, used, v, target)]

    def program(p: Party, *shares: Shared) -> Any:
        asks, valid, key, used, v, target = shares
        left = Relation((relations.Column(asks, width),), as_bit(valid))
        right = Relation((relations.Column(key, width), relations.Column(v)), as_bit(used))
        with raises(UsageError, "shape-mismatch", operation="lookup", expected=21):
            hashed_lookup.lookup_hashed(p, left, right, (0, 0), asks)
        joined = [
            hashed_lookup.lookup_hashed(p, left, right, (0, 0), target, kind)
            for kind in joins.KINDS
        ]
        return [parts_of(results.deliver_rows(p, f, is_ordered=True)) for f in joined]

    sim = simulate(program, *arrays, dealer=1)
    none = (None, None)
    every = [
        [(top, top, 1), (5, 5, 4)],
        [(top, top, 1), (5, 5, 4), (9, *none), (0, *none)],
        [(top,), (5,)],
        [(9,), (0,)],
    ]
    for i, due in enumerate(every):
        assert delivered_rows(sim, output_at(i)) == due


@pytest.mark.parametrize("n", SIZES)
def test_the_common_rows_of_two_and_three_relations_come_first_alike(
    n: int, rng: np.random.Generator
) -> None:
    plain_tables, others = list(draw_tables(n, rng)), list(draw_tables(n, rng))

    def program(p: Party, *shares: Shared) -> list[Any]:
        several = [relation_of(shares[i : i + 6]) for i in range(0, len(shares), 6)]
        outputs = []
        for x, y in zip(several[::2], several[1::2], strict=True):
            # the third side has repeated keys
            third = relations.union_rows([x, relations.limit_rows(y, 3)])
            for some in ([x, y], [x, y, third]):
                aligned = joins.link_records(p, some, [[3]] * len(some))
                applied = [
                    order.apply([r.columns[3].values, r.valid])
                    for order, r in zip(aligned.permutations, some, strict=True)
                ]
                outputs.append([aligned.valid, *(c for columns in applied for c in columns)])
        return outputs

    pairs = [t for pair in zip(plain_tables, others, strict=True) for t in pair]
    sim = simulate(program, *(a for t in pairs for a in t.arrays), dealer=n % 3)
    for i, (x, y) in enumerate(zip(plain_tables, others, strict=True)):
        common = {r[3] for r in x.rows} & {r[3] for r in y.rows}
        third = x.valid.sum() + y.valid[:3].sum()
        for j in (0, 1):
            valid = sim.value(output_at(2 * i + j, 0)).astype(int)
            keys = [sim.value(output_at(2 * i + j, 1 + 2 * k)) for k in range(2 + j)]
            counted = [sim.value(output_at(2 * i + j, 2 + 2 * k)).astype(int) for k in range(2 + j)]
            rows = int(valid.sum())
            assert np.array_equal(valid, np.arange(n) < rows)
            for key, there in zip(keys, counted, strict=True):
                assert np.array_equal(key[:rows], keys[0][:rows]) and there[:rows].all()
            assert [c.sum() for c in counted] == [x.valid.sum(), y.valid.sum(), third][: 2 + j]
            common_keys = set(keys[0][:rows].tolist())
            # a key that the third relation repeats may have no match
            assert common_keys == common if j == 0 else common_keys <= common


@pytest.mark.parametrize("n", SIZES)
def test_quantiles_of_groups_are_values_at_their_ranks(n: int, rng: np.random.Generator) -> None:
    plain_tables = list(draw_tables(n, rng))
    fractions = (0, 333, 500, 1000)

    def operator(p: Party, r: Relation) -> Any:
        by_key = quantiles.group_quantiles(p, r, [0], 1, fractions)
        of_all = quantiles.group_quantiles(p, r, [], 3, [500])
        disc = quantiles.group_quantiles(p, r, [0], 2, fractions, method="disc")
        cont = quantiles.group_quantiles(p, r, [0], 2, fractions, method="cont")
        return [results.deliver_rows(p, q) for q in (by_key, of_all, disc, cont)]

    def between(values: Sequence[int], q: int) -> int:
        low, rest = divmod(q * (len(values) - 1), 1000)
        return wrap_sum(values[low] * (1000 - rest) + values[min(low + 1, len(values) - 1)] * rest)

    sim = run_operator(operator, plain_tables, n % 3)
    for i, table in enumerate(plain_tables):
        expected = []
        for key, some in itertools.groupby(sorted(table.rows, key=lambda r: r[:2]), lambda r: r[0]):
            values = [r[1] for r in some]
            expected.append((key, *(values[q * (len(values) - 1) // 1000] for q in fractions)))
        assert rank_rows(delivered_rows(sim, output_at(0, i, 0))) == expected
        unique = sorted(r[3] for r in table.rows)
        middle = [(unique[(len(unique) - 1) // 2],)] if unique else []
        assert delivered_rows(sim, output_at(0, i, 1)) == middle
        disc, cont = [], []
        for key in sorted({r[0] for r in table.rows}):
            there = sorted(r[2] for r in table.rows if r[0] == key and r[2] is not None) or [0]
            disc.append((key, *(there[max(0, -(-q * len(there) // 1000) - 1)] for q in fractions)))
            cont.append((key, *(between(there, q) for q in fractions)))
        assert rank_rows(delivered_rows(sim, output_at(0, i, 2))) == disc
        assert rank_rows(delivered_rows(sim, output_at(0, i, 3))) == cont


@pytest.mark.parametrize("n", [1, 6, 700])
def test_rows_of_public_ranks_are_found(n: int, rng: np.random.Generator) -> None:
    key, valid = rng.integers(0, 2**20, n), (rng.integers(0, 5, n) > 0).astype(np.int64)
    ranks = sorted({0, n // 3, n // 2, n - 1})
    garbage = np.where(valid, key, -1)

    def program(p: Party, key: Shared, valid: Shared) -> Any:
        column = (relations.Column(key, 20), relations.Column(key))
        picked = quantiles.rows_at_ranks(p, Relation(column, as_bit(valid)), OrderKey(0), ranks)
        # with 64 bits all rows are sorted
        wide = quantiles.rows_at_ranks(
            p, Relation(column, as_bit(valid)), OrderKey(1, True), ranks[:1]
        )
        return [parts_of(results.deliver_rows(p, r, is_ordered=True)) for r in (picked, wide)]

    sim = simulate(program, garbage, valid, dealer=n % 3)
    rows = sorted(key[valid == 1].tolist())
    assert delivered_rows(sim, output_at(0)) == [(rows[r],) * 2 for r in ranks if r < len(rows)]
    assert delivered_rows(sim, output_at(1)) == [(r,) * 2 for r in rows[-1:]]


def test_a_part_of_a_size_is_rounded_down() -> None:
    sizes = np.array([0, 1, 2, 999, 1000, 1001, 2**24 - 1, 2**24])
    thousandths = (0, 1, 250, 333, 500, 999, 1000)

    def program(p: Party, x: Shared) -> Any:
        def all_of(x: Shared) -> Any:
            every = itertools.product(thousandths, (0, 1))
            return [quantiles._quantile_rank_in_group(p, x, q, 2**24, less) for q, less in every]

        return p.function(all_of)(x)

    sim = simulate(program, sizes)
    for i, (q, less) in enumerate(itertools.product(thousandths, (0, 1))):
        assert np.array_equal(sim.value(output_at(i)), (q * sizes - less) // 1000)


def test_running_extremes_hold_for_the_widest_values(rng: np.random.Generator) -> None:
    n, width = 8, 56
    values = rng.choice([0, 1, 2**width - 1, 2**width - 2], n)
    key = np.repeat([0, 1], n // 2)

    def program(p: Party, key: Shared, value: Shared) -> Any:
        valid = bits.share_public_row_bits(key, np.ones(n, np.int64))
        inputs = Relation((Column(key, 1), Column(value, width)), valid)
        functions = [
            WindowFunction("min", 1, frame="whole"),
            WindowFunction("max", 1, frame="rows"),
        ]
        computed = windows.compute_windows(p, inputs, [0], [OrderKey(0)], functions)
        with raises(UsageError, "too-large", operation="windows", expected=56):
            wide = Relation((inputs.columns[0], Column(value, width + 1)), valid)
            windows.compute_windows(p, wide, [0], [OrderKey(0)], functions)
        return [c.values for c in computed.columns[1:]]

    sim = simulate(program, key, values)
    rows = sim.value(output_at(0)).reshape(2, -1)
    assert np.array_equal(sim.value(output_at(1)).reshape(2, -1)[:, 0], rows.min(1))
    assert np.array_equal(sim.value(output_at(2)).reshape(2, -1), np.maximum.accumulate(rows, 1))


@pytest.mark.parametrize("n", SIZES)
def test_rows_are_told_of_their_partitions(n: int, rng: np.random.Generator) -> None:
    plain_tables = list(draw_tables(n, rng))
    functions = [
        *(
            WindowFunction("row_number"),
            WindowFunction("rank"),
            WindowFunction("dense_rank"),
            WindowFunction("sum", 1),
        ),
        *(
            WindowFunction("sum", 2),
            WindowFunction("count", 2),
            WindowFunction("lag", 2),
            WindowFunction("lead", 1, 2),
        ),
        *(WindowFunction("sum", 2, frame="range"), WindowFunction("sum", 1, frame="whole")),
        *(
            WindowFunction("count", frame="range"),
            WindowFunction("sum", 2, frame=1),
            WindowFunction("count", frame=3),
        ),
        *(
            WindowFunction("min", 3),
            WindowFunction("max", 3, frame="range"),
            WindowFunction("min", 3, frame="whole"),
        ),
    ]

    def operator(p: Party, r: Relation) -> Any:
        by_key = windows.compute_windows(p, r, [0], [OrderKey(1, descending=True)], functions)
        of_all = windows.compute_windows(
            p, r, [], [OrderKey(0)], [WindowFunction("rank"), WindowFunction("count")]
        )
        in_all = windows.compute_windows(p, r, [], [], [WindowFunction("count", 2, frame="whole")])
        return [results.deliver_rows(p, w, is_ordered=True) for w in (by_key, of_all, in_all)]

    def total(rows: Sequence[tuple[Any, ...]], column: int) -> Any:
        there = [r[column] for r in rows if r[column] is not None]
        return wrap_sum(sum(there)) if there else None

    def plain_windows(rows: Sequence[tuple[Any, ...]]) -> Any:
        for i, (_, value, *_rest) in enumerate(rows):
            values = [r[1] for r in rows]
            rank = 1 + sum(v > value for v in values)
            dense_rank = 1 + len({v for v in values if v > value})
            peers = [r for r in rows if r[1] >= value]
            before = rows[i - 1][2] if i else None
            behind = rows[i + 2][1] if i + 2 < len(rows) else None
            so_far = rows[: i + 1]
            count = sum(r[2] is not None for r in so_far)
            fields = (i + 1, rank, dense_rank, total(so_far, 1), total(so_far, 2), count)
            frames = (total(peers, 2), total(rows, 1), len(peers), total(so_far[-2:], 2))
            extremes = [
                f(r[3] for r in some) for f, some in ((min, so_far), (max, peers), (min, rows))
            ]
            yield (*rows[i], *fields, before, behind, *frames, len(so_far[-4:]), *extremes)

    sim = run_operator(operator, plain_tables, n % 3)
    for i, table in enumerate(plain_tables):
        rows = sorted(table.rows, key=lambda r: (r[0], -r[1]))
        parts = [[r for r in rows if r[0] == key] for key in dict.fromkeys(r[0] for r in rows)]
        assert delivered_rows(sim, output_at(0, i, 0)) == [
            row for part in parts for row in plain_windows(part)
        ]
        rows = sorted(table.rows, key=lambda r: r[0])
        ranks = [1 + sum(other[0] < r[0] for other in rows) for r in rows]
        expected = [(*r, k, c + 1) for c, (r, k) in enumerate(zip(rows, ranks, strict=True))]
        assert delivered_rows(sim, output_at(0, i, 1)) == expected
        there = sum(r[2] is not None for r in table.rows)
        assert rank_rows(delivered_rows(sim, output_at(0, i, 2))) == rank_rows(
            [(*r, there) for r in table.rows]
        )


def test_ranges_and_unique_keys_are_made_sure_of() -> None:
    values = np.array([3, -4, 0, 2**62, -(2**63)])

    def program(p: Party, x: Shared, ones: Shared) -> None:
        for low, high, rows in ((-4, 2**62, 4), (-(2**63), -1, 0), (-4, 3, 3)):
            results.check_range(p, x.map(lambda a, c=rows: a[:c]), low, high)
        for low, high, rows in ((-3, 2**62, 4), (-4, 2**62 - 1, 4), (-4, 2**62, 5)):
            with raises(RangeError, "outside-declared-range"):
                results.check_range(p, x.map(lambda a, c=rows: a[:c]), low, high)
        for low, high in ((1, 0), (-1, 2**63 - 1)):
            with raises(UsageError, "invalid-range", operation="check_range"):
                results.check_range(p, x, low, high)

    simulate(program, values, np.ones(5, np.int64))


def test_a_repeated_key_of_valid_rows_is_found() -> None:
    key, valid = np.array([1, 2, 2, 3]), np.array([1, 1, 0, 1])

    def program(p: Party, key: Shared, valid: Shared, every: Shared) -> None:
        column = relations.Column(key, 2)
        results.check_unique(p, Relation((column,), as_bit(valid)), [0])
        with raises(RangeError, "duplicate-key"):
            results.check_unique(p, Relation((column,), as_bit(every)), [0])

    simulate(program, key, valid, np.ones(4, np.int64))

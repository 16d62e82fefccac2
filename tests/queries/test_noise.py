"""Releases of tables with a privacy budget: noise of all three workers, and nothing without it."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from tests.queries.asked import ANALYST, StoredTable, compile_plan, derive_plan, run_queries
from tests.refusals import raises
from tfe_bench.cluster import ledger
from tfe_bench.errors import TfeBenchError, UsageError
from tfe_bench.protocols.tables import noise
from tfe_bench.queries import dp_noise, explain, notes, price, privacy, sql
from tfe_bench.queries.plan import QueryPlan
from tfe_bench.queries.privacy import NoisyRelease
from tfe_bench.queries.schema import TableSchema
from tfe_bench.queries.steps.group import Group

RIGHTS = {
    ANALYST: {
        "*": ("filter",),
        "who": ("match",),
        "seg": ("group", "filter"),
        "x": ("aggregate", "filter"),
        "r": ("aggregate",),
        "m": ("aggregate",),
    }
}
TYPES = {
    "who": "int[0,99]",
    "seg": "category(a,b,c)",
    "x": "int[-20,50]",
    "r": "fixed(16)[-2,3]",
    "m": "decimal(2)[0,10]?",
}


def rows_of(n: int, seed: int) -> list[tuple[Any, ...]]:
    rng = np.random.default_rng(seed)
    return [
        (
            int(rng.integers(0, 8)),
            "ab"[int(rng.integers(0, 2))],
            int(rng.integers(-20, 51)),
            float(rng.integers(-128, 192)) / 64,
            None if rng.random() < 0.3 else int(rng.integers(0, 1001)) / 100,
        )
        for _ in range(n)
    ]


def make_budgeted(rows: Sequence[Sequence[Any]], **more: Any) -> StoredTable:
    known = {"rights": RIGHTS, "client": ANALYST, "budget": ledger.parse_privacy_loss("1"), **more}
    return StoredTable(TYPES, rows, **known)


class Draws:
    """Seeded noise of each party and release, recorded."""

    def __init__(self, seed: int) -> None:
        self.seed, self.made = seed, dict[tuple[int, str], Any]()

    def __call__(self, party: int, release: NoisyRelease, rows: int) -> Any:
        below = random.Random(f"{self.seed} {party} {len(self.made) // 3}").randrange
        own = self.made[party, str(release)] = dp_noise.draw_dp_noise(release, rows, below)
        return own


# Totals of each query, in order: a value's unit, and a row's elements.
EXACT: dict[str, list[tuple[int, Callable[[Any], int]]]] = {
    "select count(*) n, sum(x) x, sum(m) m, count(m) c from t where x < 30": [
        (1, lambda r: 1),
        (1, lambda r: r[2]),
        (100, lambda r: 0 if r[4] is None else round(100 * r[4])),
        (1, lambda r: r[4] is not None),
    ],
    "select sum(r * 2 - 1) r, sum(case when x > 9 then m end) m from t where x < 30": [
        (65536, lambda r: round((2 * r[3] - 1) * 65536)),
        (100, lambda r: 0 if r[2] <= 9 or r[4] is None else round(100 * r[4])),
    ],
    "select seg, count(*) n, sum(x) x, avg(x) a from t where x < 30 group by seg order by seg": [
        (1, lambda r: 1),
        (1, lambda r: r[2]),
    ],
}


def check_exact(seed: int, texts: Sequence[str] = tuple(EXACT)) -> None:
    """Check that results are totals plus the three workers' noise, exactly."""
    rows, draws = rows_of(23, seed), Draws(seed)
    tables = {"t": make_budgeted(rows)}
    results = run_queries(texts, tables, rho="0.7", draw=draws)
    for text, result in zip(texts, results, strict=True):
        totals = EXACT[text]
        [release] = [
            f.release
            for f in derive_plan(compile_plan(text, tables, rho="0.7"), tables)
            if f.release
        ]
        groups = ["a", "b", "c"] if "seg" in text else [None]
        drawn = sum(draws.made[party, str(release)].astype(object) for party in range(3))
        names = [name for name in result.columns if name not in ("seg", "a")]
        parts = zip(names, totals, release.totals.values(), drawn, strict=True)
        for name, (unit, value), scale, own in parts:
            kept = [r for r in rows if r[2] < 30]
            due = [sum(int(value(r)) for r in kept if g in (None, r[1])) for g in groups]
            one = 1 << scale.extra_bits  # (rounded to nearest, halves up)
            expected = [(d * one + e + one // 2) // one for d, e in zip(due, own, strict=True)]
            assert [round(v * unit) for v in result.columns[name]] == expected, f"{text}: {name}"
        # a mean uses both totals, and lies in its column's range
        released = (result.columns.get(name, []) for name in ("n", "x", "a"))
        for n, x, mean in zip(*released, strict=False):
            assert abs(mean - min(50, max(-20, x / max(1, n)))) < 1e-3


def test_noise_is_said_of_the_columns_of_the_result() -> None:
    tables = {"t": make_budgeted(rows_of(5, 1))}
    text = (
        "with s as (select seg, count(*) n, sum(m) x, avg(m) a, sum(r) y from t group by seg) "
        "select seg, n as number, a, x, y * 2 twice from s where n > 3 order by a"
    )
    plan = compile_plan(text, tables, rho="0.7")
    facts = derive_plan(plan, tables)
    deviations = notes.noise_deviations(plan, facts)
    [release] = [f.release for f in facts if f.release]
    due = sorted(
        scale.deviation for (_, what), scale in release.totals.items() if what == privacy.VALUES
    )
    *named, other = deviations
    assert named == ["number", "x", "a"]
    assert deviations["a"] == {"number": deviations["a"]["number"], "sum": deviations["x"]["value"]}
    units = [deviations["x"]["value"] * 100, deviations[other]["value"] * 65536]
    assert sorted(units) == pytest.approx(due)
    own = {"t": tables["t"].client_view("t")}
    lines = notes.query_result_notes(plan, facts, own)
    assert len(lines) == 4 and lines[0].startswith("Noise of number: a standard deviation of ")
    explanation = explain.explain_query_plan(
        plan, facts, own, [price.price_query_plan(plan, facts, own)]
    )
    assert all(line in explanation for line in lines)


def test_results_are_totals_and_the_noise_of_all_three(seed: int) -> None:
    check_exact(seed)


def test_a_worker_that_leaves_out_its_noise_is_seen(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    added = noise.add_noise

    def without(party: Any, x: Any, own: Any) -> Any:
        return added(party, x, own * 0 if own is not None and party.index == 2 else own)

    monkeypatch.setattr(noise, "add_noise", without)
    with pytest.raises(AssertionError, match="select sum"):
        check_exact(seed, [list(EXACT)[1]])


def test_kept_graphs_keep_no_noise_and_a_unit_counts_with_its_first_rows(seed: int) -> None:
    rows = rows_of(30, seed)
    units = {"unit": "who", "contributions": 2}
    own = StoredTable(
        {"who": "int[0,99]", "w": "int[0,3]"},
        [(i, i % 4) for i in range(2, 8)],
        unique=("who",),
        owner=ANALYST,
        client=ANALYST,
    )
    tables = {"t": make_budgeted(rows, **units), "own": own}
    texts = [
        "select sum(x) x from t",
        "select w, count(*) n from t join own using (who) group by w",
    ]
    texts[1] = "select count(*) n from t join own using (who) where w < 3"
    first = [r for i, r in enumerate(rows) if sum(q[0] == r[0] for q in rows[:i]) < 2]
    joined = [r for r in rows if r[0] in range(2, 8) and r[0] % 4 < 3]
    some = [r for i, r in enumerate(joined) if sum(q[0] == r[0] for q in joined[:i]) < 2]
    due = [sum(r[2] for r in first), len(some)]
    received = []
    for i in range(2):
        draws = Draws(seed + i)
        results = run_queries(texts, tables, rho="0.001", draw=draws, graphs=f"noise {seed}")
        received.append([result.rows[0][0] for result in results])
        for text, value, exact in zip(texts, received[-1], due, strict=True):
            plan = compile_plan(text, tables, rho="0.001")
            [release] = [f.release for f in derive_plan(plan, tables) if f.release]
            assert release.max_unit_rows == 2 and not next(iter(release.totals.values())).extra_bits
            drawn = sum(int(draws.made[p, str(release)][0, 0]) for p in range(3))
            assert value == exact + drawn, text
    assert received[0] != received[1]


NEIGHBORS = [
    ("select seg, count(*) n, sum(x) x from {} where x > -9 group by seg order by seg", "t"),
    ("select count(*) n, sum(x) x from {} join own using (who)", "t"),
    ("select count(*) n, sum(x) x from h join {} using (who)", "private"),
]


def check_neighbors(seed: int, pairs: Sequence[tuple[str, str]] = NEIGHBORS) -> None:
    """Check that a unit changes released totals by no more than the noise covers."""
    rows, rng = rows_of(20, seed), np.random.default_rng(seed)
    rows += [(8, "a", 50, 0.0, None)] * 4 + [(9, "b", -20, 0.0, None)] * 4
    rows = [rows[i] for i in rng.permutation(len(rows))]
    tables = _make_tables()
    more: dict[str, Any] = {"rights": tables["private"].schema.rights, "client": ANALYST}
    for name, gone in (("t", -1), ("t8", 8)):
        left = [row for row in rows if row[0] != gone]
        pad = len(rows) - len(left)
        tables[name] = make_budgeted(left, unit="who", contributions=3, pad=pad)
    houses = {"who": "int[0,99]", "house": "int[0,9]", "x": "int[-20,50]"}
    tables["h"] = StoredTable(
        *(houses, [(i, i // 4, 50 if i % 2 else -20) for i in range(12)]),
        **{**more, "unit": "house", "unique": ("who",), "budget": 10**9},
    )
    small = tables["private"].schema.columns
    tables["p5"] = StoredTable(
        *(dict.fromkeys(small, "int[0,99]"), [(i, i % 10) for i in range(12) if i != 4]),
        **{**more, "unique": ("who",), "budget": 10**9, "owner": "telco", "pad": 1},
    )
    others = {"t": ["t8"], "private": ["p5"]}
    texts = [text.format(name) for text, base in pairs for name in (base, *others[base])]
    results = dict(zip(texts, run_queries(texts, tables, rho="0.2", draw=_no_noise), strict=True))
    for text, base in pairs:
        whole = results[text.format(base)]
        [release] = [
            f.release
            for f in derive_plan(compile_plan(text.format(base), tables, rho="0.2"), tables)
            if f.release
        ]
        distance = 0.0
        for other in others[base]:
            part = results[text.format(other)]
            for name, scale in zip(("n", "x"), release.totals.values(), strict=True):
                by = np.subtract(whole.columns[name], part.columns[name]).astype(float)
                due = 2 * release.loss / len(release.totals) / ledger.UNIT * scale.variance
                assert sum(by**2) * 4**scale.extra_bits <= due, text
                distance += sum(by**2)
        assert distance > 0


def _no_noise(party: int, release: NoisyRelease, rows: int) -> Any:
    return np.zeros((len(release.totals), rows), np.int64)


def test_neighbors_are_as_near_as_is_said(seed: int) -> None:
    check_neighbors(seed)


@pytest.mark.slow
def test_rows_that_are_not_counted_off_are_seen(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        dp_noise, "bound_contributions", lambda party, valid, named, *_: (valid, named)
    )
    with pytest.raises(AssertionError, match="join own"):
        check_neighbors(seed, NEIGHBORS[1:2])


def _make_tables(**more: Any) -> dict[str, StoredTable]:
    """Return tables of the requesting client, and of others with and without a budget."""
    small, known = {"who": "int[0,99]", "w": "int[0,9]"}, [(i, i % 10) for i in range(12)]
    fields = {"client": ANALYST, "unique": ("who",)}
    rights = {ANALYST: {"*": ("aggregate", "filter", "match")}}
    return {
        "t": make_budgeted(rows_of(20, 1), **more),
        "own": StoredTable(small, known, owner=ANALYST, **fields),
        "other": StoredTable(small, known, owner="telco", rights=rights, **fields),
        "private": StoredTable(small, known, owner="telco", rights=rights, budget=10**9, **fields),
        "dim": StoredTable(small, [(1, 2), (1, 3)], owner=ANALYST, client=ANALYST),
    }


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("select who from t", "open"),
        ("select x, count(*) from t group by x", "group"),
        ("select max(x) from t", "MAX"),
        ("select min(x), sum(x) from t", "MIN"),
        ("select median(x) from t", "MEDIAN|QUANTILE"),
        (
            "select seg, x > 3 big, count(*) from t group by seg, x > 3",
            "'group' to the column 'x'",
        ),
        ("select distinct seg from t", "distinct"),
        ("select seg from t group by seg", "nothing that is counted"),
        ("select count(distinct x) from t", "distinct"),
        ("select sum(x) from (select x from t limit 3) q", "limit"),
        ("select sum(x) from (select x from t order by x) q", "order"),
        ("select sum(x) from (select x from t order by x limit 3) q", "top"),
        ("select sum(x) from (select x, sum(x) over (partition by seg) s from t) q", "window"),
        ("select sum(x) from (select x from t union all select x from t) q", "union"),
        ("select count(*) from t a join t b on a.x = b.x", "max-rows|many_join"),
        ("select sum(x) from t join other using (who)", "'other'.*has none"),
        ("select count(*) from t join dim on t.who = dim.who", "max-rows|many_join"),
        ("select count(*) from dim join private on dim.who = private.who", "--unit"),
        ("select sum(own.w) from own left join private using (who)", "left join"),
        ("select sum(own.w) from own anti join private using (who)", "anti join"),
        ("select sum(w) from dim semi join private using (who)", "--unit"),
        ("select sum(a.w) from private a join private b on a.who = b.who", "read twice"),
    ],
)
def test_what_would_leave_without_noise_is_refused(text: str, said: str) -> None:
    for bound in (None, 50):
        codes = ("budget-restriction", "missing-right", "key-not-unique")
        with raises(TfeBenchError, *codes) as caught:
            compile_plan(text, _make_tables(unit="who", contributions=3), bound, rho="0.1")
        # (the refused feature, in SQL's words)
        assert re.search(said, str(caught.value))


def test_a_query_says_what_it_spends() -> None:
    tables = _make_tables()
    with raises(UsageError, "missing-rho", operation="t"):
        compile_plan("select sum(x) from t", tables)
    with raises(UsageError, "unexpected-rho"):
        compile_plan("select sum(w) from own", tables, rho="0.1")
    tables["t"].client = "bank"  # an owner does not spend its own budget
    for text in ("select x from t", "select max(x) from t", "select median(x) from t"):
        compile_plan(text, tables)
    tables["t"].client = ANALYST
    # a released result needs no right
    text = "select sum(a.n), count(*) from (select seg, count(*) n from t group by seg) a"
    plan = compile_plan(text, tables, rho="0.1")
    assert [s.loss for s in plan.steps if isinstance(s, Group)] == [10**8, 0]
    # two groupings share the loss
    plan = compile_plan(
        "select n from (select count(*) n from t) a union all select n from (select sum(w) n from "
        "private) b",
        tables,
        rho="0.1",
    )
    losses = privacy.total_privacy_losses(
        (f.release for f in derive_plan(plan, tables)),
        {a: tables[n].client_view(n) for a, (n, _) in plan.tables.items()},
    )
    assert losses == {"t": 5 * 10**7, "private": 5 * 10**7}


@pytest.mark.parametrize("loss", [0, -1, 10**15 + 1, True, 0.5, "1"])
def test_a_plan_spends_whole_billionths(loss: Any) -> None:
    known = {name: table.client_view(name) for name, table in _make_tables().items()}
    plan = sql.compile_sql("select sum(x) from t", known, loss=10**8)
    (group,) = [step for step in plan["steps"] if step["op"] == "group"]
    group["loss"] = loss
    with raises(UsageError, "number-out-of-range", operation="loss"):
        QueryPlan.from_header(plan)


@pytest.mark.parametrize(
    "more",
    [
        {"rights": {ANALYST: {"x": ("open",)}}},
        {"rights": {"*": {"*": ("quantile", "group")}}},
        {"rights": {ANALYST: {"x": ("train",)}}},
        {"open_count": True},
        {"unit": "m"},  # nullable
        {"contributions": 2},  # without unit
        *({"unit": "who", "contributions": most} for most in (0, -1, True, (1 << 20) + 1)),
        *({"budget": budget} for budget in (-1, True, 10**15 + 1, 0.5)),
        {"budget": 0, "unit": "who", "contributions": 2},
    ],
)
def test_a_budget_that_would_not_hold_is_refused(more: Any) -> None:
    with pytest.raises(UsageError):
        make_budgeted(rows_of(3, 1), **more)


def test_headers_of_before_have_no_budget() -> None:
    schema = make_budgeted(rows_of(3, 1), unit="who", contributions=4).schema
    header = schema.to_header()
    assert TableSchema.from_header(json.loads(json.dumps(header))) == schema
    del header["budget"], header["contributions"]
    assert (
        TableSchema.from_header(header).budget,
        TableSchema.from_header(header).contributions,
    ) == (0, 1)
    assert TableSchema.from_header(header).to_header() == header

"""Tables with a budget: all groups are released, also with a sort."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from tests.queries.asked import ANALYST, StoredTable, compile_plan, derive_plan, run_queries
from tests.refusals import raises
from tfe_bench.cluster import ledger
from tfe_bench.errors import PolicyError
from tfe_bench.protocols.ring import shapes
from tfe_bench.protocols.tables import groups
from tfe_bench.protocols.tables.relation import Relation
from tfe_bench.queries import aggregate_types, explain, price
from tfe_bench.queries.privacy import NoisyRelease

WORDS = [f"w{i}" for i in range(40)]
TEXT = (
    "select ward, night, count(*) n, sum(x) x, count(m) c, avg(m) a from t where x < 40 "
    "group by ward, night order by ward, night"
)


def make_table(words: int, rows: Sequence[Any] = ()) -> StoredTable:
    listed = ", ".join(f"w{i}" for i in range(words))
    types = {"ward": f"category({listed})", "night": "bool", "x": "int[-20,50]"}
    rights = {ANALYST: {"*": ("aggregate", "group", "filter")}}
    more: dict[str, Any] = {
        "rights": rights,
        "client": ANALYST,
        "budget": ledger.parse_privacy_loss("9"),
    }
    return StoredTable({**types, "m": "decimal(2)[0,10]?"}, rows, pad=3, **more)


def rows_of(rng: np.random.Generator, n: int) -> list[Any]:
    return [
        (
            WORDS[int(rng.integers(0, 40)) if i else 39],
            bool(rng.integers(0, 2)) if i else True,
            int(rng.integers(-20, 51)) if i else -20,
            None if rng.random() < 0.3 else int(rng.integers(0, 1001)) / 100,
        )
        for i in range(n)
    ]


def group_noise(party: int, release: NoisyRelease, rows: int) -> Any:
    """Return different noise for each group; whole numbers for totals with extra
    fractional bits.
    """
    own = [((np.arange(rows) * 7 + party + i) % 5) for i in range(len(release.totals))]
    shifts = [scale.extra_bits for scale in release.totals.values()]
    return np.array([o << s for o, s in zip(own, shifts, strict=True)], np.int64)


def check_groups(rows: Sequence[Any]) -> None:
    """Check all 80 groups in order: totals plus the noise of the three workers."""
    tables = {"t": make_table(40, rows)}
    assert aggregate_types.MAX_DENSE < 80
    [result] = run_queries([TEXT], tables, rho="5", draw=group_noise)
    kept = [r for r in rows if r[2] < 40]
    keys = [(ward, night) for ward in WORDS for night in (False, True)]
    assert list(zip(result.columns["ward"], result.columns["night"], strict=True)) == keys
    for at, key in enumerate(keys):
        some = [r for r in kept if r[:2] == key]
        there = [r[3] for r in some if r[3] is not None]
        # (in the order in which aggregates take them: rows, x, the number of m and its sum)
        drawn = [sum((at * 7 + p + i) % 5 for p in range(3)) for i in range(4)]
        n, x, c, a = (result.columns[name][at] for name in "nxca")
        assert (n, x) == (len(some) + drawn[0], sum(r[2] for r in some) + drawn[1]), key
        assert c == len(there) + drawn[2], key
        total = sum(there) + drawn[3] / 100
        assert abs(a - min(10, max(0, total / max(1, c)))) < 1e-3, key


def test_every_group_is_told_of_in_its_place(rng: np.random.Generator) -> None:
    check_groups(rows_of(rng, 25))


def test_a_group_that_is_left_out_is_seen(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = groups.group_rows

    def without(party: Any, relation: Any, *about: Any, **more: Any) -> Any:
        """Group without the added rows of 80 groups."""
        valid = shapes.pad(relation.valid.map(lambda a: a[:-80]), [[0, 80]])
        return group(party, Relation(relation.columns, valid), *about, **more)

    monkeypatch.setattr(groups, "group_rows", without)
    with pytest.raises(AssertionError, match="w0"):
        check_groups(rows_of(rng, 5))


def test_it_is_said_how_groups_are_made_and_which_are_too_many() -> None:
    text = "select ward, night, count(*) n from t group by ward, night"
    for words, method in ((16, "public codes"), (17, "sorted"), (512, "sorted")):
        tables = {"t": make_table(words)}
        plan = compile_plan(text, tables, rho="1")
        facts, known = derive_plan(plan, tables), {"t": tables["t"].client_view("t")}
        explanation = explain.explain_query_plan(
            plan, facts, known, [price.price_query_plan(plan, facts, known)]
        )
        assert f"({method}): count" in explanation and f"-> {2 * words:,} rows" in explanation
        assert facts[plan.output].valid
    with raises(PolicyError, "budget-restriction", operation="t"):
        compile_plan(text, {"t": make_table(513)}, rho="1")

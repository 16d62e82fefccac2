"""Single operators: the cost of a join, a group, a median by number of rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from tfe_bench.benchmarks.relational.workload import GeneratedTable, RelationalWorkload

_WORDS = ",".join(f"c{i}" for i in range(16))
_KEY, _VALUE = "int[0,1099511627775]", "int[0,1000000]"


def _make_join_tables(size: float, rng: np.random.Generator) -> Mapping[str, GeneratedTable]:
    """Make two tables of unique 40-bit keys, half of them common, in different orders."""
    n = int(size)
    every = np.unique(rng.integers(0, 1 << 40, 2 * n + n // 8 + 64))
    every = rng.permutation(every)[: n + n - n // 2]
    sides = every[:n], every[len(every) - n :]
    return {
        name: GeneratedTable(
            {"id": rng.permutation(keys), value: rng.integers(0, 1_000_001, n)},
            {"id": _KEY, value: _VALUE},
            ("id",),
        )
        for name, value, keys in zip(("x", "y"), ("v", "w"), sides, strict=True)
    }


def _make_linked_tables(size: float, rng: np.random.Generator) -> Mapping[str, GeneratedTable]:
    """Make the same two tables, with a join that their owners prepare."""
    tables = _make_join_tables(size, rng)
    x, y = tables["x"], tables["y"]
    return {"x": replace(x, hashed_by="id"), "y": replace(y, links=("id=x.id",))}


def _make_one_table(size: float, rng: np.random.Generator) -> Mapping[str, GeneratedTable]:
    """Make a table: 32-bit keys that repeat about four times, words, days, and values."""
    n = int(size)
    groups = rng.integers(0, 1 << 32, max(1, n // 4))
    return {
        "t": GeneratedTable(
            {
                "k": groups[rng.integers(0, len(groups), n)],
                "c": rng.integers(0, 16, n),
                "v": rng.integers(0, 1_000_001, n),
            },
            {"k": "int[0,4294967295]", "c": f"category({_WORDS})", "v": _VALUE},
        )
    }


_SIZES = (1 << 20, 1 << 10)
WORKLOADS = [
    RelationalWorkload(
        "join",
        "two tables by unique 40-bit keys",
        "select v, w from x join y using (id)",
        _make_join_tables,
        _SIZES,
    ),
    RelationalWorkload(
        "linked",
        "the same join of tables that their owners have prepared for it",
        "select w, v from y join x using (id)",
        _make_linked_tables,
        _SIZES,
    ),
    RelationalWorkload(
        "group",
        "sums and counts by 32-bit keys",
        "select k, sum(v), count(*) from t group by k",
        _make_one_table,
        _SIZES,
    ),
    RelationalWorkload(
        "dense",
        "sums and counts of 16 categories",
        "select c, sum(v), count(*) from t group by c",
        _make_one_table,
        _SIZES,
    ),
    RelationalWorkload(
        "median", "the median of a column", "select median(v) from t", _make_one_table, _SIZES
    ),
    RelationalWorkload(
        "window",
        "places and running sums in groups of 32-bit keys",
        "select k, v, row_number() over (partition by k order by v) place, "
        "sum(v) over (partition by k order by v rows unbounded preceding) total from t",
        _make_one_table,
        _SIZES,
    ),
]

"""DuckDB's answers on plaintext, and their comparison with private answers."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from tfe_bench.errors import import_optional_library
from tfe_bench.queries.io import Result

# Of reals, which are rounded on the way: absolute, and of the value.
_OFF, _OFF_BY = 1e-3, 2e-5


def query_plaintext(sql: str, tables: Mapping[str, Any]) -> tuple[list[tuple[Any, ...]], float]:
    """Return DuckDB's rows, and its seconds.

    Args:
        tables: tables of pyarrow, by name.

    Raises:
        UsageError: DuckDB is not installed.
    """
    needed, instead = "What is right is asked of DuckDB", "pip install duckdb, or give --unchecked"
    base = import_optional_library("duckdb", needed, instead).connect()
    for name, table in tables.items():
        base.register(f"{name}_given", table)
        base.execute(f'create table "{name}" as select * from "{name}_given"')
    started = time.perf_counter()
    rows = base.execute(sql).fetchall()
    return rows, time.perf_counter() - started


def results_agree(sql: str, result: Result, expected_rows: Sequence[Sequence[Any]]) -> bool:
    """Compare rows: as a sequence if they are ordered, else as a multiset.

    Rows with equal keys of an order may come in any sequence, and all must be there except for the
    last key, of which a limit may cut some.
    """
    rows: list[Sequence[Any]] = list(result.rows)
    if len(rows) != len(expected_rows):
        return False
    reals = [kind.fraction > 0 for kind in result.types.values()]

    def sort_key(row: Sequence[Any]) -> Any:
        exact = [str(v) for v, real in zip(row, reals, strict=True) if not real]
        about = [(v is None, 0.0 if v is None else round(float(v), 1)) for v in row if _is_real(v)]
        return exact, about

    import sqlglot

    # (a window has an order too)
    if sqlglot.parse_one(sql, read="duckdb").args.get("order") is None:
        rows, expected_rows = sorted(rows, key=sort_key), sorted(expected_rows, key=sort_key)
    return all(
        all(_query_values_agree(a, b, real) for a, b, real in zip(x, y, reals, strict=True))
        for x, y in zip(rows, expected_rows, strict=True)
    )


def _is_real(value: Any) -> bool:
    return value is None or isinstance(value, float)


def _query_values_agree(a: Any, b: Any, real: bool) -> bool:
    if a is None or b is None:
        return a is b
    if real:
        return abs(float(a) - float(b)) <= _OFF + _OFF_BY * abs(float(b))
    return bool(a == b)

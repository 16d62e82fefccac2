"""Window functions of SQL: compile calls OVER (...) to steps `window` of a plan."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tfe_bench.errors import UsageError
from tfe_bench.queries.accepted import unsupported_sql_error
from tfe_bench.queries.plan_syntax import NEIGHBORS, PLACES


def window_steps(
    over: Sequence[Any],
    column_for: Callable[[Any], str],
    fresh_name: Callable[[str], str],
    columns_by_text: dict[str, str],
) -> list[dict[str, Any]]:
    """Compile window calls to steps, one for each order and partition.

    Args:
        column_for: returns the column that holds an expression.
        fresh_name: returns a new name.
        columns_by_text: columns by the text of their expressions; the calls' columns are added.
    """
    steps: dict[str, dict[str, Any]] = {}
    for call in over:
        if call.sql() in columns_by_text:
            continue
        function, argument, detail = _parse_window_call(call)
        parted, by = _window_keys(call)
        if (step := steps.get(str([parted, by]))) is None:
            order: dict[str, str] = {}
            for e, way in by:
                order.setdefault(column_for(e), way)
            step = steps[str([parted, by])] = {
                "partition": list(dict.fromkeys(map(column_for, parted))),
                "order": [list(pair) for pair in order.items()],
                "functions": [],
            }
        value = None if argument is None else column_for(argument)
        columns_by_text[call.sql()] = fresh_name(function)
        step["functions"].append([columns_by_text[call.sql()], function, value, detail])
    return list(steps.values())


def _window_keys(window: Any) -> tuple[list[Any], list[tuple[Any, str]]]:
    """Return the expressions of PARTITION BY and of ORDER BY."""
    ordered = window.args.get("order")
    by = []
    for key in ordered.expressions if ordered is not None else ():
        if key.args.get("nulls_first"):
            raise unsupported_sql_error("NULLS FIRST")
        by.append((key.this, "desc" if key.args.get("desc") else "asc"))
    return list(window.args.get("partition_by") or ()), by


def _parse_window_call(window: Any) -> tuple[str, Any, Any]:
    """Return a function's name, its argument, and its frame or number of rows.

    Raises:
        UsageError: it is not supported.
    """
    from sqlglot import exp

    call = window.this
    if isinstance(call, exp.RespectNulls):
        call = call.this
    functions: dict[Any, str] = {
        **{exp.RowNumber: "row_number", exp.Rank: "rank", exp.DenseRank: "dense_rank"},
        **{exp.Lag: "lag", exp.Lead: "lead", exp.Sum: "sum", exp.Count: "count", exp.Avg: "avg"},
        **{exp.Min: "min", exp.Max: "max"},
    }
    if type(call) not in functions:
        raise unsupported_sql_error(f"{call.key.upper()} OVER")
    function, argument = functions[type(call)], call.this
    if isinstance(argument, exp.Distinct):
        raise unsupported_sql_error(f"{function.upper()}(DISTINCT) OVER")
    if function in PLACES:
        return function, None, None
    if function in NEIGHBORS:
        if call.args.get("default") is not None:
            raise unsupported_sql_error(f"{function.upper()} with a default; use COALESCE,")
        return function, argument, _parse_window_offset(call.args.get("offset"), 1)
    frame = _parse_window_frame(window)
    if function in ("min", "max") and isinstance(frame, int):
        raise unsupported_sql_error(f"{function.upper()} OVER (ROWS k PRECEDING)")
    return function, None if isinstance(argument, exp.Star) else argument, frame


def _parse_window_offset(node: Any, default: int, min_rows: int = 1) -> int:
    from sqlglot import exp

    if node is None:
        return default
    whole = isinstance(node, exp.Literal) and not node.is_string and str(node.this).isdigit()
    if not whole or not min_rows <= int(node.this) <= 1 << 31:
        raise UsageError(
            f"A window takes a public number of rows, {min_rows} or more.",
            code="invalid-window",
            expected=min_rows,
        )
    return int(node.this)


def _parse_window_frame(window: Any) -> str | int:
    spec, ordered = window.args.get("spec"), window.args.get("order") is not None
    if spec is None:
        return "range" if ordered else "whole"
    sides = [str(spec.args.get(side) or "").lower() for side in ("start_side", "end_side")]
    start, end = spec.args.get("start"), spec.args.get("end") or "CURRENT ROW"
    kind = str(spec.args.get("kind")).lower()
    if kind not in ("rows", "range"):
        raise unsupported_sql_error(f"A frame {spec.sql()[:80]}")
    if start == "UNBOUNDED" and sides[0] == "preceding":
        if end == "UNBOUNDED" and sides[1] == "following":
            return "whole"
        if end == "CURRENT ROW":
            return kind if ordered or kind == "rows" else "whole"
    if kind == "rows" and end == "CURRENT ROW":
        if start == "CURRENT ROW":
            return 0
        if sides[0] == "preceding":
            return _parse_window_offset(start, 0, 0)
    raise unsupported_sql_error(f"A frame {spec.sql()[:80]}")

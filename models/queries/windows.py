"""Window functions of SQL: what a plan's step `window` says of a call OVER (...)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tfe_bench.errors import UsageError
from tfe_bench.models.queries.accepted import refused
from tfe_bench.models.queries.plan import NEIGHBORS, PLACES


def steps_of(
    over: Sequence[Any],
    named: Callable[[Any], str],
    fresh: Callable[[str], str],
    found: dict[str, str],
) -> list[dict[str, Any]]:
    """What the steps of some calls are: one for each order and partition.

    Args:
        named: the column that holds an expression.
        fresh: a new name.
        found: columns by the text of what they hold, to which those of the calls are added.
    """
    steps: dict[str, dict[str, Any]] = {}
    for each in over:
        if each.sql() in found:
            continue
        function, argument, detail = _call_of(each)
        parted, by = _keys_of(each)
        if (own := steps.get(str([parted, by]))) is None:
            order: dict[str, str] = {}
            for e, way in by:
                order.setdefault(named(e), way)
            own = steps[str([parted, by])] = {
                "partition": list(dict.fromkeys(map(named, parted))),
                "order": [list(pair) for pair in order.items()],
                "functions": [],
            }
        value = None if argument is None else named(argument)
        found[each.sql()] = fresh(function)
        own["functions"].append([found[each.sql()], function, value, detail])
    return list(steps.values())


def _keys_of(window: Any) -> tuple[list[Any], list[tuple[Any, str]]]:
    """The expressions that rows are parted by, and those they are ordered by."""
    ordered = window.args.get("order")
    by = []
    for each in ordered.expressions if ordered is not None else ():
        if each.args.get("nulls_first"):
            raise refused("NULLS FIRST")
        by.append((each.this, "desc" if each.args.get("desc") else "asc"))
    return list(window.args.get("partition_by") or ()), by


def _call_of(window: Any) -> tuple[str, Any, Any]:
    """A function's name, its argument, and how far it looks: a frame or a number of rows.

    Raises:
        UsageError: it is not offered.
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
        raise refused(f"{call.key.upper()} OVER")
    function, argument = functions[type(call)], call.this
    if isinstance(argument, exp.Distinct):
        raise refused(f"{function.upper()}(DISTINCT) OVER")
    if function in PLACES:
        return function, None, None
    if function in NEIGHBORS:
        if call.args.get("default") is not None:
            raise refused(f"{function.upper()} with a default; use COALESCE,")
        return function, argument, _rows_of(call.args.get("offset"), 1)
    frame = _frame_of(window)
    if function in ("min", "max") and isinstance(frame, int):
        raise refused(f"{function.upper()} OVER (ROWS k PRECEDING)")
    return function, None if isinstance(argument, exp.Star) else argument, frame


def _rows_of(node: Any, usual: int, least: int = 1) -> int:
    from sqlglot import exp

    if node is None:
        return usual
    whole = isinstance(node, exp.Literal) and not node.is_string and str(node.this).isdigit()
    if not whole or not least <= int(node.this) <= 1 << 31:
        raise UsageError(f"A window looks a public number of rows away, {least} or more.")
    return int(node.this)


def _frame_of(window: Any) -> str | int:
    spec, ordered = window.args.get("spec"), window.args.get("order") is not None
    if spec is None:
        return "range" if ordered else "whole"
    sides = [str(spec.args.get(side) or "").lower() for side in ("start_side", "end_side")]
    start, end = spec.args.get("start"), spec.args.get("end") or "CURRENT ROW"
    kind = str(spec.args.get("kind")).lower()
    if kind not in ("rows", "range"):
        raise refused(f"A frame {spec.sql()[:80]}")
    if start == "UNBOUNDED" and sides[0] == "preceding":
        if end == "UNBOUNDED" and sides[1] == "following":
            return "whole"
        if end == "CURRENT ROW":
            return kind if ordered or kind == "rows" else "whole"
    if kind == "rows" and end == "CURRENT ROW":
        if start == "CURRENT ROW":
            return 0
        if sides[0] == "preceding":
            return _rows_of(start, 0, 0)
    raise refused(f"A frame {spec.sql()[:80]}")

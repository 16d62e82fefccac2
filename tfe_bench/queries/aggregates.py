"""Aggregates of SQL: compile a call to an entry of a plan's step `group`."""

from __future__ import annotations

from typing import Any

from tfe_bench.errors import UsageError
from tfe_bench.queries.accepted import sql_node_name, unsupported_sql_error
from tfe_bench.queries.plan_syntax import PARTS


def parse_aggregate(call: Any, distinct_counts: list[str]) -> tuple[str, Any]:
    """Return the name of an aggregate and its argument; None as argument counts rows.

    Args:
        distinct_counts: receives the text of each COUNT(DISTINCT).

    Raises:
        UsageError: the aggregate is not supported.
    """
    from sqlglot import exp

    kinds = {exp.Sum: "sum", exp.Avg: "avg", exp.Min: "min", exp.Max: "max", exp.Count: "count"}
    quantiles = {
        exp.Median: ("quantile_cont", None),
        exp.PercentileCont: ("quantile_cont", "expression"),
        exp.PercentileDisc: ("quantile_disc", "expression"),
        exp.Quantile: ("quantile_disc", "quantile"),
    }
    argument = call.this
    if type(call) in quantiles:
        name, part = quantiles[type(call)]
        if isinstance(argument, exp.Distinct):
            raise unsupported_sql_error(f"{name.upper()}(DISTINCT)")
        place = PARTS // 2 if part is None else _parse_quantile_fraction(call.args.get(part))
        return f"{name}:{place}", argument
    if type(call) not in kinds:
        raise unsupported_sql_error(sql_node_name(call))
    function = kinds[type(call)]
    if isinstance(argument, exp.Distinct):
        if function != "count" or len(argument.expressions) != 1:
            raise unsupported_sql_error(f"{function.upper()}(DISTINCT)")
        distinct_counts.append(call.sql())
        return function, argument.expressions[0]
    if isinstance(argument, exp.Star) or (function == "count" and argument is None):
        return function, None
    return function, argument


def _parse_quantile_fraction(node: Any) -> int:
    from decimal import Decimal, InvalidOperation

    try:
        thousandths = Decimal(str(node.this)) * PARTS if node.is_number else Decimal(-1)
    except (AttributeError, InvalidOperation):
        thousandths = Decimal(-1)
    if not 0 <= thousandths <= PARTS or thousandths != int(thousandths):
        raise UsageError(
            "Expected a column and a public number from 0 to 1 with at most three digits, as "
            f"QUANTILE_DISC(x, 0.95). Received: {str(node)[:40]}.",
            code="invalid-quantile",
            received=str(node)[:40],
        )
    return int(thousandths)

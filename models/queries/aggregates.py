"""Aggregates of SQL: what a plan's step `group` says of a call."""

from __future__ import annotations

from typing import Any

from tfe_bench.errors import UsageError
from tfe_bench.models.queries.accepted import name_of, refused
from tfe_bench.models.queries.plan import PARTS


def call_of(call: Any, counted: list[str]) -> tuple[str, Any]:
    """A function's name, and its argument; None: rows.

    Args:
        counted: gets the text of a COUNT(DISTINCT).

    Raises:
        UsageError: it is not offered.
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
            raise refused(f"{name.upper()}(DISTINCT)")
        return f"{name}:{PARTS // 2 if part is None else _part(call.args.get(part))}", argument
    if type(call) not in kinds:
        raise refused(name_of(call))
    function = kinds[type(call)]
    if isinstance(argument, exp.Distinct):
        if function != "count" or len(argument.expressions) != 1:
            raise refused(f"{function.upper()}(DISTINCT)")
        counted.append(call.sql())
        return function, argument.expressions[0]
    if isinstance(argument, exp.Star) or (function == "count" and argument is None):
        return function, None
    return function, argument


def _part(node: Any) -> int:
    from decimal import Decimal, InvalidOperation

    try:
        found = Decimal(str(node.this)) * PARTS if node.is_number else Decimal(-1)
    except (AttributeError, InvalidOperation):
        found = Decimal(-1)
    if not 0 <= found <= PARTS or found != int(found):
        raise UsageError(
            "A quantile takes a column and a public number from 0 to 1 with three digits at most, "
            f"as QUANTILE_DISC(x, 0.95). Received: {str(node)[:40]}."
        )
    return int(found)

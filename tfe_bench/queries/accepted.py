"""SQL nodes that queries may contain, and the arguments of each that the compiler reads.

One list, checked on the whole parsed tree before compilation: a node that is not listed is
refused, and so is every argument that is set but not read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tfe_bench.errors import UsageError

_BINARY = ("Add", "Sub", "Mul", "EQ", "NEQ", "LT", "LTE", "GT", "GTE", "And", "Or", "Is")
_UNARY = ("Neg", "Not", "Abs", "Paren", "Year", "Month", "Date")
_CLAUSES = ("From", "Where", "Having", "Qualify")
_AGGREGATES = ("Sum", "Avg", "Min", "Max", "Count", "Median")
_SETS = "with_ this order limit"
# Arguments by node whose value changes the plan, or that the compiler checks.
READ_ARGUMENTS: Mapping[str, frozenset[str]] = {
    name: frozenset(arguments.split())
    for name, arguments in {
        **dict.fromkeys(_BINARY, "this expression"),
        **dict.fromkeys((*_UNARY, *_CLAUSES, *_AGGREGATES), "this"),
        "Select": "with_ expressions distinct from_ joins where group having qualify order limit",
        "Union": f"{_SETS} expression distinct by_name",
        "Subquery": f"{_SETS} alias sample",
        "With": "expressions",
        "CTE": "this alias",
        "Table": "this alias sample",
        "TableSample": "method size percent",
        "TableAlias": "this columns",
        "Join": "this on using side kind method",
        "Group": "expressions",
        "Order": "expressions",
        "Ordered": "this desc nulls_first",
        "Limit": "expression",
        "Fetch": "count",
        "LimitOptions": "",
        "Distinct": "expressions",
        "Column": "this table",
        "Identifier": "this",
        "Star": "except_ replace rename",
        "Alias": "this alias",
        "Literal": "this is_string",
        "Boolean": "this",
        "Null": "",
        "Div": "this expression",
        "Between": "this low high symmetric",
        "In": "this expressions query",
        "Exists": "this",
        "Case": "this ifs default",
        "If": "this true false",
        "Coalesce": "this expressions",
        "Least": "this expressions",
        "Greatest": "this expressions",
        "Extract": "this expression",
        "Cast": "this to",
        "DataType": "this",
        "Interval": "this unit",
        "Var": "this",
        "PercentileCont": "this expression",
        "PercentileDisc": "this expression",
        "Quantile": "this quantile",
        "Filter": "this expression",
        "Window": "this partition_by order spec",
        "WindowSpec": "kind start start_side end end_side",
        "RowNumber": "",
        "Rank": "",
        "DenseRank": "",
        "Lag": "this offset default",
        "Lead": "this offset default",
        "RespectNulls": "this",
    }.items()
}
# Arguments that state notation only, or a default.
NOTATION: Mapping[str, frozenset[str]] = {
    name: frozenset(arguments.split())
    for name, arguments in {
        "CTE": "materialized",
        "Limit": "limit_options",
        "Fetch": "direction limit_options",
        "LimitOptions": "rows",
        "Identifier": "quoted",
        "Div": "typed safe",
        "Coalesce": "is_nvl is_null",
        "Least": "ignore_nulls",
        "Greatest": "ignore_nulls",
        "Count": "big_int",
        "DataType": "nested",
        "Window": "over",
    }.items()
}
# Users' words for nodes and arguments.
_NAMES: Mapping[str, str] = {
    "IntDiv": "//",
    "Mod": "%",
    "Pow": "A power",
    "DPipe": "||",
    "NullSafeEQ": "IS NOT DISTINCT FROM",
    "NullSafeNEQ": "IS DISTINCT FROM",
    "Tuple": "A row of several values",
    "Array": "A list of values",
    "WithinGroup": "WITHIN GROUP; write QUANTILE_DISC(x, 0.9) or QUANTILE_CONT, which",
    "WindowSpec": "A frame",
    "With.recursive": "WITH RECURSIVE",
    "Distinct.on": "DISTINCT ON",
    "LimitOptions.percent": "LIMIT with a percentage (how many rows there are is private)",
    "LimitOptions.with_ties": "WITH TIES",
    "Select.windows": "A named window (WINDOW ... AS)",
    "Select.sample": "USING SAMPLE",
    "TableSample.seed": "TABLESAMPLE REPEATABLE (no party may know the random numbers)",
    "Table.db": "A table of a schema or a database",
    "Table.joins": "A join in parentheses",
    "Window.alias": "A named window (OVER name)",
    "WindowSpec.exclude": "A frame with EXCLUDE",
    "Group.all": "GROUP BY ALL",
    "Order.this": "ORDER BY inside of an aggregate",
    "Count.expressions": "COUNT of several values",
    "Min.expressions": "MIN of several values",
    "Max.expressions": "MAX of several values",
    "Rank.expressions": "RANK of a value",
    "DenseRank.expressions": "DENSE_RANK of a value",
}


def unsupported_sql_error(feature: str, received: str = "") -> UsageError:
    """Return the error for an unsupported SQL feature.

    Args:
        feature: the feature in SQL's words.
        received: the SQL text of it; the error shows its beginning.
    """
    shown = f" Received: {received[:80]}." if received else ""
    return UsageError(
        f"{feature} is not supported in queries on private tables; see docs/tables.md.{shown}",
        code="unsupported-sql",
        operation=feature,
        received=received[:80] or None,
    )


def check_sql_nodes(tree: Any) -> None:
    """Reject a tree with an unlisted node or with an argument that the compiler does not read.

    Raises:
        UsageError: naming the feature in SQL's words.
    """
    for node in tree.walk():
        kind = type(node).__name__
        if kind not in READ_ARGUMENTS:
            raise unsupported_sql_error(sql_node_name(node), _sql_node_text(node))
        known = READ_ARGUMENTS[kind] | NOTATION.get(kind, frozenset())
        for argument, value in node.args.items():
            if argument not in known and value is not None and value is not False and value != []:
                raise unsupported_sql_error(
                    _sql_argument_name(node, argument), _sql_node_text(node)
                )


def sql_node_name(node: Any) -> str:
    """Return a user's word for a node: an operator, a function or a statement."""
    kind = type(node).__name__
    if kind in _NAMES:
        return _NAMES[kind]
    text = _sql_node_text(node)
    head = text.partition("(")[0]
    if head.replace("_", "").isalnum() and head != text:  # a function
        return head.upper()
    return _to_sql_words(kind)


def _sql_argument_name(node: Any, argument: str) -> str:
    kind = type(node).__name__
    if kind == "DataType":
        return f"CAST to {_sql_node_text(node)}"
    usual = f"{_to_sql_words(argument)} of {_to_sql_words(kind)}"
    if kind in ("Select", "Union", "Subquery"):
        usual = _to_sql_words(argument)
    elif kind == "Group":
        usual = f"GROUP BY {_to_sql_words(argument)}"
    return _NAMES.get(f"{kind}.{argument}", usual)


def _to_sql_words(name: str) -> str:
    parts = [f" {c}" if c.isupper() else c for c in name.strip("_").replace("_", " ")]
    return " ".join("".join(parts).upper().split())


def _sql_node_text(node: Any) -> str:
    if type(node).__name__ == "LimitOptions":
        node = node.parent
    try:
        return " ".join(str(node.sql(dialect="duckdb")).split())
    except Exception:  # DuckDB has no text for the node: only its name is shown
        return ""

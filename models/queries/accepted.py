"""The nodes of SQL that queries may have, and the arguments of each that the compiler reads.

One list, checked on the whole tree as it was parsed, before anything is compiled: a node that is
not in it is refused, and so is every argument that is set and not read.
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
# By node: the arguments whose value changes the plan, or is refused where they are compiled.
READ_ARGUMENTS: Mapping[str, frozenset[str]] = {
    name: frozenset(arguments.split())
    for name, arguments in {
        **dict.fromkeys(_BINARY, "this expression"),
        **dict.fromkeys((*_UNARY, *_CLAUSES, *_AGGREGATES), "this"),
        "Select": "with_ expressions distinct from_ joins where group having qualify order limit",
        "Union": f"{_SETS} expression distinct by_name",
        "Subquery": f"{_SETS} alias",
        "With": "expressions",
        "CTE": "this alias",
        "Table": "this alias",
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
# Arguments that say how something is written, or what holds without them.
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
# What users call a node, or an argument of one.
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
    "Table.sample": "TABLESAMPLE",
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


def unsupported_error(feature: str, received: str = "") -> UsageError:
    """The error for SQL that is not offered.

    Args:
        received: the text of it, of which the beginning is shown.
    """
    shown = f" Received: {received[:80]}." if received else ""
    return UsageError(
        f"{feature} is not offered in queries on private tables; see docs/tables.md.{shown}"
    )


def check_nodes(tree: Any) -> None:
    """Refuse a tree with a node that queries may not have, or an argument that nothing reads.

    Raises:
        UsageError: it is named in SQL's words.
    """
    for node in tree.walk():
        kind = type(node).__name__
        if kind not in READ_ARGUMENTS:
            raise unsupported_error(name_of(node), _node_text(node))
        known = READ_ARGUMENTS[kind] | NOTATION.get(kind, frozenset())
        for argument, value in node.args.items():
            if argument not in known and value is not None and value is not False and value != []:
                raise unsupported_error(_argument_name(node, argument), _node_text(node))


def name_of(node: Any) -> str:
    """What users call a node: an operator, a function, a statement."""
    kind = type(node).__name__
    if kind in _NAMES:
        return _NAMES[kind]
    text = _node_text(node)
    head = text.partition("(")[0]
    if head.replace("_", "").isalnum() and head != text:  # a function
        return head.upper()
    return _to_sql_words(kind)


def _argument_name(node: Any, argument: str) -> str:
    kind = type(node).__name__
    if kind == "DataType":
        return f"CAST to {_node_text(node)}"
    usual = f"{_to_sql_words(argument)} of {_to_sql_words(kind)}"
    if kind in ("Select", "Union", "Subquery"):
        usual = _to_sql_words(argument)
    elif kind == "Group":
        usual = f"GROUP BY {_to_sql_words(argument)}"
    return _NAMES.get(f"{kind}.{argument}", usual)


def _to_sql_words(name: str) -> str:
    parts = [f" {c}" if c.isupper() else c for c in name.strip("_").replace("_", " ")]
    return " ".join("".join(parts).upper().split())


def _node_text(node: Any) -> str:
    if type(node).__name__ == "LimitOptions":
        node = node.parent
    try:
        return " ".join(str(node.sql(dialect="duckdb")).split())
    except Exception:  # a node that DuckDB has no words for: its name alone is shown
        return ""

"""Names of unnamed result columns, as DuckDB forms them: count_star(), avg(income)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

# Characters of a name.
_MAX_LENGTH = 100
_OPERATORS = {
    **{"Add": "+", "Sub": "-", "Mul": "*", "Div": "/", "EQ": "=", "NEQ": "!=", "LT": "<"},
    **{"LTE": "<=", "GT": ">", "GTE": ">=", "And": "AND", "Or": "OR", "Is": "IS"},
}


def name_columns(tree: Any) -> None:
    """Name each unnamed column of each SELECT of a parsed tree, in place."""
    from sqlglot import exp

    for select in list(tree.find_all(exp.Select)):
        plain = exp.Alias | exp.Star
        used_names = {
            column.alias_or_name
            for column in select.expressions
            if isinstance(column, plain) or isinstance(column.unnest(), exp.Column)
        }
        named = []
        for column in select.expressions:
            if isinstance(column, plain) or isinstance(column.unnest(), exp.Column):
                named.append(column)
                continue
            usual = name = "".join(c for c in _duckdb_text(column) if c.isprintable() and c != "?")[
                :_MAX_LENGTH
            ]
            count = 0
            while name in used_names:
                count += 1
                name = f"{usual}_{count}"
            used_names.add(name)
            alias = exp.to_identifier(name, quoted=True)
            # (qualify writes names of an inner query in lower case)
            alias.meta["case_sensitive"] = select.find_ancestor(exp.Select) is None
            named.append(exp.Alias(this=column, alias=alias))
        select.set("expressions", named)


def _duckdb_text(node: Any) -> str:
    """Format an expression as DuckDB does."""
    kind, args = type(node).__name__, node.args
    if kind in _OPERATORS:
        return f"({_duckdb_text(node.left)} {_OPERATORS[kind]} {_duckdb_text(node.right)})"
    match kind:
        case "Paren":
            return _duckdb_text(node.this)
        case "Column" | "Identifier":
            return str(node.name)
        case "Neg":
            literal = type(node.this).__name__ == "Literal"
            return f"-{_duckdb_text(node.this)}" if literal else f"(-({_duckdb_text(node.this)}))"
        case "Not" if type(node.this).__name__ == "Is":
            return f"({_duckdb_text(node.this.left)} IS NOT {_duckdb_text(node.this.right)})"
        case "Not":
            return f"(NOT {_duckdb_text(node.this)})"
        case "Between":
            return (
                f"({_duckdb_text(node.this)} BETWEEN {_duckdb_text(args['low'])} "
                f"AND {_duckdb_text(args['high'])})"
            )
        case "In" if node.expressions:
            return f"({_duckdb_text(node.this)} IN ({_join_duckdb_texts(node.expressions)}))"
        case "Case":
            return _sql_case_text(node)
        case "Cast":
            return f"CAST({_duckdb_text(node.this)} AS {node.to.sql(dialect='duckdb').lower()})"
        case "Count" if node.this is None or type(node.this).__name__ == "Star":
            return "count_star()"
        case "Distinct":
            return f"DISTINCT {_join_duckdb_texts(node.expressions)}"
        case "Filter":
            return f"{_duckdb_text(node.this)} FILTER (WHERE {_duckdb_text(node.expression.this)})"
        case "Coalesce":
            return f"COALESCE({_join_duckdb_texts([node.this, *node.expressions])})"
    text = str(node.sql(dialect="duckdb"))
    head, bracket, _ = text.partition("(")
    values = [value for value in args.values() if hasattr(value, "sql")]
    if bracket and text.endswith(")") and head.replace("_", "").isalnum():
        return f"{head.lower()}({_join_duckdb_texts([*values, *node.expressions])})"
    return text


def _sql_case_text(node: Any) -> str:
    pairs = [
        (
            _duckdb_text(branch.this)
            if node.this is None
            else f"({_duckdb_text(node.this)} = {_duckdb_text(branch.this)})",
            _duckdb_text(branch.args["true"]),
        )
        for branch in node.args["ifs"]
    ]
    default = node.args.get("default")
    parts = " ".join(f"WHEN ({condition}) THEN ({value})" for condition, value in pairs)
    return f"CASE  {parts} ELSE {'NULL' if default is None else _duckdb_text(default)} END"


def _join_duckdb_texts(nodes: Iterable[Any]) -> str:
    return ", ".join(map(_duckdb_text, nodes))

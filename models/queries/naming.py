"""Names of columns that a query gives none, as DuckDB gives them: count_star(), avg(income)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

# Characters of a name.
_MOST = 100
_OPERATORS = {
    **{"Add": "+", "Sub": "-", "Mul": "*", "Div": "/", "EQ": "=", "NEQ": "!=", "LT": "<"},
    **{"LTE": "<=", "GT": ">", "GTE": ">=", "And": "AND", "Or": "OR", "Is": "IS"},
}


def name_columns(tree: Any) -> None:
    """Give each column of each SELECT of a parsed tree a name that it lacks, in place."""
    from sqlglot import exp

    for select in list(tree.find_all(exp.Select)):
        plain = exp.Alias | exp.Star
        taken = {
            each.alias_or_name
            for each in select.expressions
            if isinstance(each, plain) or isinstance(each.unnest(), exp.Column)
        }
        named = []
        for each in select.expressions:
            if isinstance(each, plain) or isinstance(each.unnest(), exp.Column):
                named.append(each)
                continue
            usual = name = "".join(c for c in _text(each) if c.isprintable() and c != "?")[:_MOST]
            count = 0
            while name in taken:
                count += 1
                name = f"{usual}_{count}"
            taken.add(name)
            alias = exp.to_identifier(name, quoted=True)
            # (names of an inner query are read in lower case, as qualify writes them)
            alias.meta["case_sensitive"] = select.find_ancestor(exp.Select) is None
            named.append(exp.Alias(this=each, alias=alias))
        select.set("expressions", named)


def _text(node: Any) -> str:
    """An expression as DuckDB writes it."""
    kind, args = type(node).__name__, node.args
    if kind in _OPERATORS:
        return f"({_text(node.left)} {_OPERATORS[kind]} {_text(node.right)})"
    match kind:
        case "Paren":
            return _text(node.this)
        case "Column" | "Identifier":
            return str(node.name)
        case "Neg":
            literal = type(node.this).__name__ == "Literal"
            return f"-{_text(node.this)}" if literal else f"(-({_text(node.this)}))"
        case "Not" if type(node.this).__name__ == "Is":
            return f"({_text(node.this.left)} IS NOT {_text(node.this.right)})"
        case "Not":
            return f"(NOT {_text(node.this)})"
        case "Between":
            return f"({_text(node.this)} BETWEEN {_text(args['low'])} AND {_text(args['high'])})"
        case "In" if node.expressions:
            return f"({_text(node.this)} IN ({_listed(node.expressions)}))"
        case "Case":
            return _case(node)
        case "Cast":
            return f"CAST({_text(node.this)} AS {node.to.sql(dialect='duckdb').lower()})"
        case "Count" if node.this is None or type(node.this).__name__ == "Star":
            return "count_star()"
        case "Distinct":
            return f"DISTINCT {_listed(node.expressions)}"
        case "Filter":
            return f"{_text(node.this)} FILTER (WHERE {_text(node.expression.this)})"
        case "Coalesce":
            return f"COALESCE({_listed([node.this, *node.expressions])})"
    text = str(node.sql(dialect="duckdb"))
    head, bracket, _ = text.partition("(")
    values = [value for value in args.values() if hasattr(value, "sql")]
    if bracket and text.endswith(")") and head.replace("_", "").isalnum():
        return f"{head.lower()}({_listed([*values, *node.expressions])})"
    return text


def _case(node: Any) -> str:
    pairs = [
        (
            _text(each.this) if node.this is None else f"({_text(node.this)} = {_text(each.this)})",
            _text(each.args["true"]),
        )
        for each in node.args["ifs"]
    ]
    default = node.args.get("default")
    parts = " ".join(f"WHEN ({condition}) THEN ({value})" for condition, value in pairs)
    return f"CASE  {parts} ELSE {'NULL' if default is None else _text(default)} END"


def _listed(nodes: Iterable[Any]) -> str:
    return ", ".join(map(_text, nodes))

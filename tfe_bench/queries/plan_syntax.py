"""Syntax of plans: names, expressions and numbers as closed JSON data that is never executed.

Expressions are nested lists of names in OPERATORS and of public constants.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tfe_bench.errors import UsageError, did_you_mean
from tfe_bench.queries.types import MAX_DIGITS, MAX_FRACTION, UNITS, days_to_date

Expression = list[Any]
MAX_NAMES = 1000
MAX_DEPTH, MAX_NODES = 32, 10_000
MAX_NAME = 200
# Number of parts of a quantile's fraction.
PARTS = 1000
# Number of operands by name: smallest and largest.
OPERATORS: Mapping[str, tuple[int, int]] = {
    **dict.fromkeys(("+", "-", "*", "/", "=", "<>", "<", "<=", ">", ">="), (2, 2)),
    **dict.fromkeys(("neg", "abs", "not", "is_null", "year", "month", "real"), (1, 1)),
    # the date of a timestamp, and the midnight of a date
    **dict.fromkeys(("to_date", "to_timestamp"), (1, 1)),
    **dict.fromkeys(("and", "or", "coalesce", "least", "greatest"), (2, 64)),
    "in": (2, 256),
    "case": (3, 65),
}
COMPARISONS = ("=", "<>", "<", "<=", ">", ">=")
CONSTANTS = ("col", "int", "decimal", "fixed", "bool", "date", "timestamp", "word", "text", "null")
# Quantiles of a column's values: quantile_disc:900 is the value at 900 thousandths.
QUANTILES = ("quantile_disc", "quantile_cont")
# Window functions that number rows, and those that read another row.
PLACES, NEIGHBORS = ("row_number", "rank", "dense_rank"), ("lag", "lead")
MAX_BOUND = 1 << 24
_INT = 1 << 63
# Days of a date, from 1970.
_MAX_DAYS = 500_000


def check_object_fields(value: object, names: set[str], subject: str) -> Mapping[str, Any]:
    """Return an object that has exactly some fields.

    Raises:
        UsageError: it has others.
    """
    if not isinstance(value, Mapping) or set(value) != names:
        raise UsageError(
            f"{subject} has the fields {', '.join(sorted(names))} and no others.",
            code="invalid-plan",
            operation=subject,
        )
    return value


def check_column_name(value: object) -> str:
    """Return a valid name of a column or a table.

    Raises:
        UsageError: the name is invalid.
    """
    if not isinstance(value, str) or not 1 <= len(value) <= MAX_NAME or not value.isprintable():
        raise UsageError(
            f"A name in a plan has 1 to {MAX_NAME} printable characters.", code="invalid-name"
        )
    if "?" in value:  # marks columns that identify units
        raise UsageError(
            "A name in a plan may not contain a question mark.", code="invalid-name", received="?"
        )
    return value


def check_column_names(value: object, min_count: int = 1) -> list[str]:
    """Return a valid list of different names.

    Raises:
        UsageError: a name is invalid or repeated, or there are too few or too many.
    """
    if not isinstance(value, list) or not min_count <= len(value) <= MAX_NAMES:
        raise UsageError(
            f"A step names {min_count} to {MAX_NAMES} columns.",
            code="invalid-plan",
            operation="columns",
        )
    names = [check_column_name(each) for each in value]
    if len(set(names)) != len(names):
        raise UsageError("A step names each of its columns once.", code="duplicate-name")
    return names


def check_part_lists(value: object, length: int) -> list[list[Any]]:
    """Return a valid list of lists of `length` parts.

    Raises:
        UsageError: the list is invalid.
    """
    if not isinstance(value, list) or not 1 <= len(value) <= MAX_NAMES:
        raise UsageError(
            f"A step lists 1 to {MAX_NAMES} outputs.", code="invalid-plan", operation="outputs"
        )
    for each in value:
        if not isinstance(each, list) or len(each) != length:
            raise UsageError(
                f"Each output of a step is a list of {length} parts.",
                code="invalid-plan",
                operation="outputs",
            )
    return value


def check_row_count(value: object, least: int = 0) -> int:
    """Return a valid public number of rows.

    Raises:
        UsageError: the number is invalid.
    """
    if type(value) is not int or not least <= value <= 1 << 31:
        raise UsageError(
            f"A number of rows is {least} to 2^31.", code="number-out-of-range", operation="rows"
        )
    return value


def check_choice(value: object, known: Sequence[str], subject: str) -> str:
    """Return one of several known names.

    Raises:
        UsageError: the name is unknown.
    """
    if not isinstance(value, str) or value not in known:
        shown = str(value)[:40]
        raise UsageError(
            f"{subject} is one of {', '.join(known)}. Received: "
            f"{shown!r}.{did_you_mean(shown, known)}",
            code="unknown-name",
            operation=subject,
            received=shown,
        )
    return value


def parse_quantile(function: object) -> tuple[str, int] | None:
    """Parse the name of a quantile such as `quantile_disc:900`; None: another aggregate.

    Raises:
        UsageError: the thousandths are not 0 to 1000.
    """
    name, _, part = function.partition(":") if isinstance(function, str) else ("", "", "")
    if name not in QUANTILES:
        return None
    if not (part.isascii() and part.isdigit() and len(part) <= 4 and int(part) <= PARTS):
        raise UsageError(
            f"A quantile takes 0 to {PARTS} thousandths.",
            code="invalid-quantile",
            received=function,
        )
    return name, int(part)


def check_row_bound(value: object) -> int:
    """Return a valid public bound of a private number of rows.

    Raises:
        UsageError: the bound is invalid.
    """
    if type(value) is not int or not 1 <= value <= MAX_BOUND:
        raise UsageError(
            "A bound of rows (max_rows) is 1 to 2^24.",
            code="number-out-of-range",
            operation="max_rows",
        )
    return value


def check_sql_expression(value: Any) -> Expression:
    """Return a valid expression.

    Raises:
        UsageError: naming the fault: unknown names, wrong operands, too many or too deeply nested
            parts.
    """
    _check_expression_nodes(value)
    expression: Expression = value
    return expression


def _check_expression_nodes(value: object) -> None:
    remaining = MAX_NODES
    pending = [(value, 1)]
    while pending:
        node, depth = pending.pop()
        remaining -= 1
        if depth > MAX_DEPTH or remaining < 0:
            raise UsageError(
                f"An expression has at most {MAX_NODES} parts, nested at most {MAX_DEPTH} deep.",
                code="too-large",
                operation="expression",
            )
        if not isinstance(node, list) or not node or not isinstance(node[0], str):
            raise UsageError(
                "An expression is a list that begins with a name.",
                code="invalid-plan",
                operation="expression",
            )
        name, *rest = node
        if name in CONSTANTS:
            _check_constant(name, rest)
            continue
        check_choice(name, tuple(OPERATORS), "An operation")
        min_operands, max_operands = OPERATORS[name]
        if not min_operands <= len(rest) <= max_operands or (name == "case" and len(rest) % 2 == 0):
            raise UsageError(
                f"{name} takes {min_operands} to {max_operands} operands. Received: {len(rest)}.",
                code="operand-count",
                operation=name,
                received=len(rest),
            )
        pending.extend((each, depth + 1) for each in rest)


def _check_constant(name: str, rest: list[Any]) -> None:
    whole = len(rest) >= 1 and type(rest[0]) is int and -_INT <= rest[0] < _INT
    match name:
        case "col":
            fits = len(rest) == 1
            if fits:
                check_column_name(rest[0])
        case "word":
            fits = len(rest) == 1 and isinstance(rest[0], str) and len(rest[0]) <= MAX_NAME
        case "int" | "text":
            fits = whole and len(rest) == 1
        case "date":
            fits = whole and len(rest) == 1 and abs(rest[0]) <= _MAX_DAYS
        case "decimal":
            fits = whole and len(rest) == 2 and type(rest[1]) is int
            fits = fits and 0 <= rest[1] <= MAX_DIGITS
        case "fixed":
            fits = whole and len(rest) == 2 and type(rest[1]) is int
            fits = fits and 0 <= rest[1] <= MAX_FRACTION
        case "timestamp":
            fits = whole and len(rest) == 2 and isinstance(rest[1], str) and rest[1] in UNITS
        case "bool":
            fits = len(rest) == 1 and type(rest[0]) is bool
        case _:
            fits = not rest
    if not fits:
        raise UsageError(
            f"A constant {name} has an invalid value.", code="invalid-constant", operation=name
        )


def used_columns(expression: Expression) -> set[str]:
    """Return the columns that a checked expression names."""
    name, *rest = expression
    if name == "col":
        return {rest[0]}
    if name in CONSTANTS:
        return set()
    return set().union(*(used_columns(each) for each in rest))


def format_sql_expression(e: Expression) -> str:
    """Format an expression for display."""
    name, *rest = e
    match name:
        case "col":
            return str(rest[0])
        case "decimal":
            return f"{rest[0] / 10 ** rest[1]:g}"
        case "fixed":
            return f"{rest[0] / 2 ** rest[1]:g}"
        case "date":
            return days_to_date(rest[0]).isoformat()
        case "word":
            return repr(rest[0])
        case "text":
            return "a text"
        case "null":
            return "NULL"
        case "int" | "bool" | "timestamp":
            return str(rest[0])
        case "+" | "-" | "*" | "/" | "=" | "<>" | "<" | "<=" | ">" | ">=" | "and" | "or":
            return f"({f' {name} '.join(map(format_sql_expression, rest))})"
    return f"{name}({', '.join(map(format_sql_expression, rest))})"

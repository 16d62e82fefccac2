"""Plans of queries: steps as closed JSON data that workers check and never execute as code.

A plan names the tables that it reads by aliases, and lists steps; a step takes relations of
earlier steps by number. Expressions are nested lists of names in OPERATORS and of public
constants. A plan states no types, rows or rights: every worker derives them from the headers that
it stores (relations.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tfe_bench.cluster.ledger import MOST
from tfe_bench.cluster.stored import check_deployment_identifier, check_name
from tfe_bench.errors import UsageError, did_you_mean
from tfe_bench.queries.types import MAX_DIGITS, MAX_FRACTION, UNITS

Expression = list[Any]
MAX_STEPS, MAX_TABLES, MAX_NAMES = 200, 16, 1000
MAX_DEPTH, MAX_NODES = 32, 10_000
MAX_NAME = 200
# Quantiles of values that may not be revealed; and the number of parts of a fraction.
MAX_RANKS, PARTS = 10, 1000
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
AGGREGATES = ("sum", "count", "avg", "min", "max")
# Quantiles of a column's values: quantile_disc:900 is the value at 900 thousandths.
QUANTILES = ("quantile_disc", "quantile_cont")
PLACES, NEIGHBORS = ("row_number", "rank", "dense_rank"), ("lag", "lead")
WINDOWS = (*PLACES, *NEIGHBORS, "sum", "count", "avg", "min", "max")
# Frames of a window's sum: up to this row, up to all rows equal in its order, or the partition.
FRAMES = ("rows", "range", "whole")
JOINS = ("inner", "left", "semi", "anti")
# Joins that exist with a bound on their pairs.
MANY_JOINS = JOINS[:2]
# Steps with a bit of their own: whether there are more rows than their bound.
BOUNDED = ("many_join", "trim")
MAX_BOUND = 1 << 24
_INT = 1 << 63
# Days of a date, from 1970.
_MAX_DAYS = 500_000


@dataclass(frozen=True)
class QueryStep:
    """One step of a plan.

    Attributes:
        op: its operation.
        inputs: numbers of earlier steps.
        about: its other fields, checked.
    """

    op: str
    inputs: tuple[int, ...]
    about: Mapping[str, Any]

    def __getitem__(self, name: str) -> Any:
        return self.about[name]


@dataclass(frozen=True)
class QueryPlan:
    """A checked plan.

    Attributes:
        tables: name and deployment of each table, by alias.
        steps: steps in order.
        output: number of the step with the result.
    """

    tables: Mapping[str, tuple[str, str]]
    steps: tuple[QueryStep, ...]
    output: int

    @classmethod
    def from_header(cls, value: object) -> QueryPlan:
        """Parse a plan from untrusted JSON.

        Raises:
            UsageError: the plan is invalid.
        """
        plan = _check_step_fields(value, {"tables", "steps", "output"}, "A plan")
        tables = plan["tables"]
        if not isinstance(tables, Mapping) or not 1 <= len(tables) <= MAX_TABLES:
            raise UsageError(
                f"A plan reads 1 to {MAX_TABLES} tables.", code="invalid-plan", operation="tables"
            )
        tables_by_alias: dict[str, tuple[str, str]] = {}
        for alias, about in tables.items():
            _check_name(alias)
            about = _check_step_fields(about, {"name", "deployment"}, "A table of a plan")
            check_name(about["name"], "A table's name")
            check_deployment_identifier(about["deployment"])
            tables_by_alias[alias] = (about["name"], about["deployment"])
        steps = plan["steps"]
        if not isinstance(steps, list) or not 1 <= len(steps) <= MAX_STEPS:
            raise UsageError(
                f"A plan has 1 to {MAX_STEPS} steps.", code="invalid-plan", operation="steps"
            )
        parsed_steps = []
        for number, each in enumerate(steps):
            step = _parse_query_step(each, number)
            if step.op == "scan" and step["table"] not in tables_by_alias:
                raise UsageError(
                    "A plan scans only tables that it names.", code="invalid-plan", operation="scan"
                )
            parsed_steps.append(step)
        if type(plan["output"]) is not int or not 0 <= plan["output"] < len(parsed_steps):
            raise UsageError(
                "A plan's output is the number of a step.", code="invalid-plan", operation="output"
            )
        used = {plan["output"], *(i for step in parsed_steps for i in step.inputs)}
        if used != set(range(len(parsed_steps))):
            raise UsageError(
                "A plan has a step that no other step or the output uses.", code="unused-step"
            )
        return cls(tables_by_alias, tuple(parsed_steps), plan["output"])


def _check_step_fields(value: object, names: set[str], subject: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping) or set(value) != names:
        raise UsageError(
            f"{subject} has the fields {', '.join(sorted(names))} and no others.",
            code="invalid-plan",
            operation=subject,
        )
    return value


def _check_name(value: object) -> str:
    if not isinstance(value, str) or not 1 <= len(value) <= MAX_NAME or not value.isprintable():
        raise UsageError(
            f"A name in a plan has 1 to {MAX_NAME} printable characters.", code="invalid-name"
        )
    if "?" in value:  # marks columns that identify units
        raise UsageError(
            "A name in a plan may not contain a question mark.", code="invalid-name", received="?"
        )
    return value


def _check_names(value: object, min_count: int = 1) -> list[str]:
    if not isinstance(value, list) or not min_count <= len(value) <= MAX_NAMES:
        raise UsageError(
            f"A step names {min_count} to {MAX_NAMES} columns.",
            code="invalid-plan",
            operation="columns",
        )
    names = [_check_name(each) for each in value]
    if len(set(names)) != len(names):
        raise UsageError("A step names each of its columns once.", code="duplicate-name")
    return names


def _check_lists(value: object, length: int) -> list[list[Any]]:
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


def _check_row_count(value: object, least: int = 0) -> None:
    if type(value) is not int or not least <= value <= 1 << 31:
        raise UsageError(
            f"A number of rows is {least} to 2^31.", code="number-out-of-range", operation="rows"
        )


def _check_step_option(value: object, known: Sequence[str], subject: str) -> None:
    if value not in known:
        shown = str(value)[:40]
        raise UsageError(
            f"{subject} is one of {', '.join(known)}. Received: "
            f"{shown!r}.{did_you_mean(shown, known)}",
            code="unknown-name",
            operation=subject,
            received=shown,
        )


def _check_scan(about: Mapping[str, Any]) -> None:
    _check_name(about["table"])
    _check_names(about["columns"], 0)


def _check_filter(about: Mapping[str, Any]) -> None:
    check_sql_expression(about["where"])


def _check_project(about: Mapping[str, Any]) -> None:
    for name, expression in (pairs := _check_lists(about["columns"], 2)):
        _check_name(name)
        check_sql_expression(expression)
    _check_names([name for name, _ in pairs])


def _check_group(about: Mapping[str, Any]) -> None:
    keys = _check_names(about["keys"], 0)
    aggregates = about["aggregates"]
    pairs = _check_lists(aggregates, 3) if aggregates else []
    if not isinstance(aggregates, list) or not (keys or pairs):
        raise UsageError(
            "A group step has keys or aggregates.", code="invalid-plan", operation="group"
        )
    for name, function, argument in pairs:
        _check_name(name)
        if parse_quantile(function) is None:
            _check_step_option(function, (*AGGREGATES, *QUANTILES), "An aggregate")
        if argument is None and function != "count":
            raise UsageError(
                "Only count takes no column.", code="missing-argument", operation=function
            )
        if argument is not None:
            _check_name(argument)
    _check_names([*keys, *(name for name, _, _ in pairs)])
    if "loss" in about and (type(about["loss"]) is not int or not 1 <= about["loss"] <= MOST):
        raise UsageError(
            "A group spends 1 to 10^15 billionths of rho.",
            code="number-out-of-range",
            operation="loss",
        )


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


def _check_order(about: Mapping[str, Any]) -> None:
    for name, direction in (pairs := _check_lists(about["by"], 2)):
        _check_name(name)
        _check_step_option(direction, ("asc", "desc"), "A direction")
    _check_names([name for name, _ in pairs])


def _check_window(about: Mapping[str, Any]) -> None:
    _check_names(about["partition"], 0)
    if about["order"] != []:
        _check_order({"by": about["order"]})
    functions = _check_lists(about["functions"], 4)
    for name, function, argument, detail in functions:
        _check_name(name)
        _check_step_option(function, WINDOWS, "A window function")
        if (argument is None) != (function in PLACES) and function != "count":
            raise UsageError(
                "A window function takes a column, unless it counts rows.",
                code="missing-argument",
                operation=function,
            )
        if argument is not None:
            _check_name(argument)
        if function in PLACES:
            if detail is not None:
                raise UsageError(
                    "ROW_NUMBER, RANK and DENSE_RANK have no frame.",
                    code="invalid-plan",
                    operation=function,
                )
        elif function in NEIGHBORS:
            _check_row_count(detail, 1)
        elif type(detail) is int and function not in ("min", "max"):
            _check_row_count(detail)
        else:
            _check_step_option(detail, FRAMES, "A frame")
    _check_names([name for name, _, _, _ in functions])


def _check_limit(about: Mapping[str, Any]) -> None:
    _check_row_count(about["count"])


def _check_top(about: Mapping[str, Any]) -> None:
    _check_order(about)
    _check_row_count(about["count"], 1)


def _check_join(about: Mapping[str, Any]) -> None:
    _check_join_keys(about)
    _check_step_option(about["kind"], JOINS, "A join")


def _check_join_keys(about: Mapping[str, Any]) -> None:
    for left, right in _check_lists(about["on"], 2):
        _check_name(left)
        _check_name(right)


def _check_many_join(about: Mapping[str, Any]) -> None:
    _check_join_keys(about)
    _check_step_option(about["kind"], MANY_JOINS, "A join with a bound")
    check_row_bound(about["bound"])


def _check_trim(about: Mapping[str, Any]) -> None:
    check_row_bound(about["bound"])


def check_row_bound(value: object) -> None:
    """Reject an invalid public bound of a private number of rows.

    Raises:
        UsageError: the bound is invalid.
    """
    if type(value) is not int or not 1 <= value <= MAX_BOUND:
        raise UsageError(
            "A bound of rows (max_rows) is 1 to 2^24.",
            code="number-out-of-range",
            operation="max_rows",
        )


def _accept_any_step(about: Mapping[str, Any]) -> None:
    pass


# By op: number of relations (None: 2 to 64), fields, and a function that checks these.
_STEPS: Mapping[str, tuple[int | None, set[str], Callable[[Mapping[str, Any]], None]]] = {
    "scan": (0, {"table", "columns"}, _check_scan),
    "filter": (1, {"where"}, _check_filter),
    "project": (1, {"columns"}, _check_project),
    "group": (1, {"keys", "aggregates"}, _check_group),
    "distinct": (1, set(), _accept_any_step),
    "order": (1, {"by"}, _check_order),
    "limit": (1, {"count"}, _check_limit),
    "top": (1, {"by", "count"}, _check_top),
    "window": (1, {"partition", "order", "functions"}, _check_window),
    "union": (None, set(), _accept_any_step),
    "join": (2, {"on", "kind"}, _check_join),
    "many_join": (2, {"on", "kind", "bound"}, _check_many_join),
    "trim": (1, {"bound"}, _check_trim),
}


def _parse_query_step(value: object, number: int) -> QueryStep:
    if not isinstance(value, Mapping) or not isinstance(value.get("op"), str):
        raise UsageError(
            "A step of a plan is an object with an op.", code="invalid-plan", operation="step"
        )
    op = value["op"]
    _check_step_option(op, tuple(_STEPS), "An op")
    arity, names, check = _STEPS[op]
    if op == "group" and "loss" in value:  # for tables with a privacy budget
        names = {*names, "loss"}
    about = _check_step_fields(value, {"op", "in", *names}, f"A step {op}")
    inputs = about["in"]
    min_inputs, max_inputs = (2, 64) if arity is None else (arity, arity)
    if not isinstance(inputs, list) or not min_inputs <= len(inputs) <= max_inputs:
        raise UsageError(
            f"A step {op} takes {min_inputs} to {max_inputs} earlier steps.",
            code="invalid-plan",
            operation=op,
        )
    if not all(type(i) is int and 0 <= i < number for i in inputs):
        raise UsageError("A step takes earlier steps by number.", code="invalid-plan", operation=op)
    fields = {name: about[name] for name in names}
    check(fields)
    return QueryStep(op, tuple(inputs), fields)


def parse_query_step(value: object) -> QueryStep:
    """Parse a single step; the numbers of its inputs are not limited.

    Raises:
        UsageError: the step is invalid.
    """
    return _parse_query_step(value, MAX_STEPS)


def check_sql_expression(value: object) -> None:
    """Reject an invalid expression: unknown names, wrong operands, too many or too deeply nested
    parts.

    Raises:
        UsageError: naming the fault.
    """
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
        _check_step_option(name, tuple(OPERATORS), "An operation")
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
                _check_name(rest[0])
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

"""Plans of queries: steps as closed JSON data, which workers check and never execute as code.

A plan names the tables that it reads, by an alias each, and lists steps; a step takes the relations
of earlier ones by their numbers.  Expressions are nested lists over the names in OPERATORS and
constants of public values.  What a plan claims of types, rows and rights is nothing: every worker
derives them from the headers that it keeps (relations.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tfe_bench.cluster.ledger import MOST
from tfe_bench.cluster.stored import check_deployment, check_name
from tfe_bench.errors import UsageError, did_you_mean
from tfe_bench.models.queries.types import MOST_DIGITS, MOST_FRACTION, UNITS

Expression = list[Any]
MOST_STEPS, MOST_TABLES, MOST_NAMES = 200, 16, 1000
MOST_DEPTH, MOST_NODES = 32, 10_000
MOST_NAME = 200
# Of quantiles of values that may not be shown; and what a part is a number of.
MOST_RANKS, PARTS = 10, 1000
# By name, how many operands it takes: exactly, or at least and at most.
OPERATORS: Mapping[str, tuple[int, int]] = {
    **dict.fromkeys(("+", "-", "*", "/", "=", "<>", "<", "<=", ">", ">="), (2, 2)),
    **dict.fromkeys(("neg", "abs", "not", "is_null", "year", "month", "real"), (1, 1)),
    # the date of a timestamp, and a date's midnight
    **dict.fromkeys(("to_date", "to_timestamp"), (1, 1)),
    **dict.fromkeys(("and", "or", "coalesce", "least", "greatest"), (2, 64)),
    "in": (2, 256),
    "case": (3, 65),
}
COMPARISONS = ("=", "<>", "<", "<=", ">", ">=")
CONSTANTS = ("col", "int", "decimal", "fixed", "bool", "date", "timestamp", "word", "text", "null")
AGGREGATES = ("sum", "count", "avg", "min", "max")
# Of a column's values: quantile_disc:900 is that at 900 thousandths.
QUANTILES = ("quantile_disc", "quantile_cont")
PLACES, NEIGHBORS = ("row_number", "rank", "dense_rank"), ("lag", "lead")
WINDOWS = (*PLACES, *NEIGHBORS, "sum", "count", "avg", "min", "max")
# Of a window's sum: to this row, to all that its order does not tell apart from it, the partition.
FRAMES = ("rows", "range", "whole")
JOINS = ("inner", "left", "semi", "anti")
# Of which there is one with a bound of its pairs.
MANY_JOINS = JOINS[:2]
# Steps that say in a bit of their own that there are more rows than their bound.
BOUNDED = ("many_join", "trim")
MOST_BOUND = 1 << 24
_INT = 1 << 63
# Of a date, from 1970.
_MOST_DAYS = 500_000


@dataclass(frozen=True)
class Step:
    """One step of a plan.

    Attributes:
        op: what it does.
        inputs: numbers of earlier steps.
        about: its other fields, checked.
    """

    op: str
    inputs: tuple[int, ...]
    about: Mapping[str, Any]

    def __getitem__(self, name: str) -> Any:
        return self.about[name]


@dataclass(frozen=True)
class Plan:
    """A checked plan.

    Attributes:
        tables: name and deployment of each table, by alias.
        steps: in their order.
        output: the number of the step whose relation leaves.
    """

    tables: Mapping[str, tuple[str, str]]
    steps: tuple[Step, ...]
    output: int

    @classmethod
    def of(cls, given: object) -> Plan:
        """From JSON of anybody.

        Raises:
            UsageError: it is no plan.
        """
        plan = _fields(given, {"tables", "steps", "output"}, "A plan")
        tables = plan["tables"]
        if not isinstance(tables, Mapping) or not 1 <= len(tables) <= MOST_TABLES:
            raise UsageError(f"A plan reads 1 to {MOST_TABLES} tables.")
        found: dict[str, tuple[str, str]] = {}
        for alias, about in tables.items():
            _name(alias)
            about = _fields(about, {"name", "deployment"}, "A table of a plan")
            check_name(about["name"], "A table's name")
            check_deployment(about["deployment"])
            found[alias] = (about["name"], about["deployment"])
        steps = plan["steps"]
        if not isinstance(steps, list) or not 1 <= len(steps) <= MOST_STEPS:
            raise UsageError(f"A plan has 1 to {MOST_STEPS} steps.")
        made = []
        for number, each in enumerate(steps):
            step = _step(each, number)
            if step.op == "scan" and step["table"] not in found:
                raise UsageError("A plan scans only tables that it names.")
            made.append(step)
        if type(plan["output"]) is not int or not 0 <= plan["output"] < len(made):
            raise UsageError("A plan's output is the number of a step.")
        used = {plan["output"], *(i for step in made for i in step.inputs)}
        if used != set(range(len(made))):
            raise UsageError("Every step of a plan is used.")
        return cls(found, tuple(made), plan["output"])


def _fields(given: object, names: set[str], what: str) -> Mapping[str, Any]:
    if not isinstance(given, Mapping) or set(given) != names:
        raise UsageError(f"{what} has {', '.join(sorted(names))}, and nothing else.")
    return given


def _name(value: object) -> str:
    if not isinstance(value, str) or not 1 <= len(value) <= MOST_NAME or not value.isprintable():
        raise UsageError(f"A name in a plan is a text of 1 to {MOST_NAME} characters.")
    if "?" in value:  # of columns that say whose records there are
        raise UsageError("A name in a plan has no question mark.")
    return value


def _names(value: object, least: int = 1) -> list[str]:
    if not isinstance(value, list) or not least <= len(value) <= MOST_NAMES:
        raise UsageError(f"A step names at least {least} and at most {MOST_NAMES} columns.")
    names = [_name(each) for each in value]
    if len(set(names)) != len(names):
        raise UsageError("A step names each of its columns once.")
    return names


def _pairs(value: object, length: int) -> list[list[Any]]:
    if not isinstance(value, list) or not 1 <= len(value) <= MOST_NAMES:
        raise UsageError(f"A step lists 1 to {MOST_NAMES} of what it makes.")
    for each in value:
        if not isinstance(each, list) or len(each) != length:
            raise UsageError(f"Each of what a step makes is a list of {length}.")
    return value


def _count(value: object, least: int = 0) -> None:
    if type(value) is not int or not least <= value <= 1 << 31:
        raise UsageError(f"A number of rows is {least} to 2^31.")


def _of(value: object, known: Sequence[str], what: str) -> None:
    if value not in known:
        shown = str(value)[:40]
        raise UsageError(
            f"{what} is one of {', '.join(known)}. Received: {shown!r}.{did_you_mean(shown, known)}"
        )


def _scan(about: Mapping[str, Any]) -> None:
    _name(about["table"])
    _names(about["columns"], 0)


def _filter(about: Mapping[str, Any]) -> None:
    check_expression(about["where"])


def _project(about: Mapping[str, Any]) -> None:
    for name, expression in (pairs := _pairs(about["columns"], 2)):
        _name(name)
        check_expression(expression)
    _names([name for name, _ in pairs])


def _group(about: Mapping[str, Any]) -> None:
    keys = _names(about["keys"], 0)
    aggregates = about["aggregates"]
    pairs = _pairs(aggregates, 3) if aggregates else []
    if not isinstance(aggregates, list) or not (keys or pairs):
        raise UsageError("A group has keys or aggregates.")
    for name, function, argument in pairs:
        _name(name)
        if quantile_of(function) is None:
            _of(function, (*AGGREGATES, *QUANTILES), "An aggregate")
        if argument is None and function != "count":
            raise UsageError("Only count needs no column.")
        if argument is not None:
            _name(argument)
    _names([*keys, *(name for name, _, _ in pairs)])
    if "loss" in about and (type(about["loss"]) is not int or not 1 <= about["loss"] <= MOST):
        raise UsageError("A group spends 1 to 10^15 billionths of rho.")


def quantile_of(function: object) -> tuple[str, int] | None:
    """What takes the value at some thousandths, as `quantile_disc:900`; None: another aggregate.

    Raises:
        UsageError: it says no thousandths from 0 to 1000.
    """
    name, _, part = function.partition(":") if isinstance(function, str) else ("", "", "")
    if name not in QUANTILES:
        return None
    if not (part.isascii() and part.isdigit() and len(part) <= 4 and int(part) <= PARTS):
        raise UsageError(f"A quantile is of 0 to {PARTS} thousandths.")
    return name, int(part)


def _order(about: Mapping[str, Any]) -> None:
    for name, direction in (pairs := _pairs(about["by"], 2)):
        _name(name)
        _of(direction, ("asc", "desc"), "A direction")
    _names([name for name, _ in pairs])


def _window(about: Mapping[str, Any]) -> None:
    _names(about["partition"], 0)
    if about["order"] != []:
        _order({"by": about["order"]})
    functions = _pairs(about["functions"], 4)
    for name, function, argument, detail in functions:
        _name(name)
        _of(function, WINDOWS, "A window function")
        if (argument is None) != (function in PLACES) and function != "count":
            raise UsageError("A window function has a column, unless it counts rows.")
        if argument is not None:
            _name(argument)
        if function in PLACES:
            if detail is not None:
                raise UsageError("A place has no frame.")
        elif function in NEIGHBORS:
            _count(detail, 1)
        elif type(detail) is int and function not in ("min", "max"):
            _count(detail)
        else:
            _of(detail, FRAMES, "A frame")
    _names([name for name, _, _, _ in functions])


def _limit(about: Mapping[str, Any]) -> None:
    _count(about["count"])


def _top(about: Mapping[str, Any]) -> None:
    _order(about)
    _count(about["count"], 1)


def _join(about: Mapping[str, Any]) -> None:
    _keys(about)
    _of(about["kind"], JOINS, "A join")


def _keys(about: Mapping[str, Any]) -> None:
    for left, right in _pairs(about["on"], 2):
        _name(left)
        _name(right)


def _many_join(about: Mapping[str, Any]) -> None:
    _keys(about)
    _of(about["kind"], MANY_JOINS, "A join with a bound")
    check_bound(about["bound"])


def _trim(about: Mapping[str, Any]) -> None:
    check_bound(about["bound"])


def check_bound(value: object) -> None:
    """Refuses what is no public bound of a private number of rows.

    Raises:
        UsageError: it is none.
    """
    if type(value) is not int or not 1 <= value <= MOST_BOUND:
        raise UsageError("A bound of rows (max_rows) is 1 to 2^24.")


def _nothing(about: Mapping[str, Any]) -> None:
    pass


# By op: how many relations it takes (None: 2 to 64), its fields, and what checks them.
_STEPS: Mapping[str, tuple[int | None, set[str], Callable[[Mapping[str, Any]], None]]] = {
    "scan": (0, {"table", "columns"}, _scan),
    "filter": (1, {"where"}, _filter),
    "project": (1, {"columns"}, _project),
    "group": (1, {"keys", "aggregates"}, _group),
    "distinct": (1, set(), _nothing),
    "order": (1, {"by"}, _order),
    "limit": (1, {"count"}, _limit),
    "top": (1, {"by", "count"}, _top),
    "window": (1, {"partition", "order", "functions"}, _window),
    "union": (None, set(), _nothing),
    "join": (2, {"on", "kind"}, _join),
    "many_join": (2, {"on", "kind", "bound"}, _many_join),
    "trim": (1, {"bound"}, _trim),
}


def _step(given: object, number: int) -> Step:
    if not isinstance(given, Mapping) or not isinstance(given.get("op"), str):
        raise UsageError("A step of a plan is an object with an op.")
    op = given["op"]
    _of(op, tuple(_STEPS), "An op")
    arity, names, check = _STEPS[op]
    if op == "group" and "loss" in given:  # of tables with a privacy budget
        names = {*names, "loss"}
    about = _fields(given, {"op", "in", *names}, f"A step {op}")
    inputs = about["in"]
    least, most = (2, 64) if arity is None else (arity, arity)
    if not isinstance(inputs, list) or not least <= len(inputs) <= most:
        raise UsageError(f"A step {op} takes {least} to {most} earlier ones.")
    if not all(type(i) is int and 0 <= i < number for i in inputs):
        raise UsageError("A step takes earlier ones by their numbers.")
    own = {name: about[name] for name in names}
    check(own)
    return Step(op, tuple(inputs), own)


def checked_step(given: object) -> Step:
    """A step by itself, whatever the numbers of its inputs.

    Raises:
        UsageError: it is none.
    """
    return _step(given, MOST_STEPS)


def check_expression(given: object) -> None:
    """Refuses what is no expression: unknown names, other operands, too many or too deep.

    Raises:
        UsageError: saying which.
    """
    left = MOST_NODES
    pending = [(given, 1)]
    while pending:
        node, depth = pending.pop()
        left -= 1
        if depth > MOST_DEPTH or left < 0:
            raise UsageError(
                f"An expression has at most {MOST_NODES} parts, {MOST_DEPTH} within one another."
            )
        if not isinstance(node, list) or not node or not isinstance(node[0], str):
            raise UsageError("An expression is a list that begins with a name.")
        name, *rest = node
        if name in CONSTANTS:
            _check_constant(name, rest)
            continue
        _of(name, tuple(OPERATORS), "An operation")
        least, most = OPERATORS[name]
        if not least <= len(rest) <= most or (name == "case" and len(rest) % 2 == 0):
            raise UsageError(f"{name} takes {least} to {most} operands. Received: {len(rest)}.")
        pending.extend((each, depth + 1) for each in rest)


def _check_constant(name: str, rest: list[Any]) -> None:
    whole = len(rest) >= 1 and type(rest[0]) is int and -_INT <= rest[0] < _INT
    match name:
        case "col":
            fits = len(rest) == 1
            if fits:
                _name(rest[0])
        case "word":
            fits = len(rest) == 1 and isinstance(rest[0], str) and len(rest[0]) <= MOST_NAME
        case "int" | "text":
            fits = whole and len(rest) == 1
        case "date":
            fits = whole and len(rest) == 1 and abs(rest[0]) <= _MOST_DAYS
        case "decimal":
            fits = whole and len(rest) == 2 and type(rest[1]) is int
            fits = fits and 0 <= rest[1] <= MOST_DIGITS
        case "fixed":
            fits = whole and len(rest) == 2 and type(rest[1]) is int
            fits = fits and 0 <= rest[1] <= MOST_FRACTION
        case "timestamp":
            fits = whole and len(rest) == 2 and isinstance(rest[1], str) and rest[1] in UNITS
        case "bool":
            fits = len(rest) == 1 and type(rest[0]) is bool
        case _:
            fits = not rest
    if not fits:
        raise UsageError(f"A constant {name} has another value than that.")


def columns_of(expression: Expression) -> set[str]:
    """The columns that a checked expression names."""
    name, *rest = expression
    if name == "col":
        return {rest[0]}
    if name in CONSTANTS:
        return set()
    return set().union(*(columns_of(each) for each in rest))

"""Compilation of SQL expressions to expressions of a plan."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from typing import Any

from tfe_bench.errors import UsageError
from tfe_bench.queries.accepted import sql_node_name, unsupported_sql_error
from tfe_bench.queries.expressions import Facts, infer_expression_fact
from tfe_bench.queries.plan_syntax import COMPARISONS, Expression
from tfe_bench.queries.types import (
    BOOL,
    DATE,
    MAX_DIGITS,
    NUMBER,
    SECONDS_OF_DAY,
    TEXT,
    TIMESTAMP,
    UNITS,
    ColumnType,
    hash_column_text,
    parse_column_element,
    parse_date,
    parse_timestamp,
)

# Types of which only the kind counts.
_SOME_DATE, _SOME_TIME = ColumnType(DATE, 0, 0), ColumnType(TIMESTAMP, 0, 0, unit="s")
# Branches of one CASE.
_MAX_BRANCHES = 32
_MONTHS = {"MONTH": 1, "YEAR": 12}
_SECONDS = {"SECOND": 1, "MINUTE": 60, "HOUR": 3600, "DAY": 86400, "WEEK": 7 * 86400}


def typed_sql_null(kind: ColumnType) -> Expression:
    """Return NULL of a type."""
    defaults: dict[str, Expression] = {
        BOOL: ["bool", False],
        DATE: ["date", 0],
        TIMESTAMP: ["timestamp", 0, kind.unit],
        TEXT: ["text", 0],
        NUMBER: ["decimal", 0, kind.digits] if kind.digits else ["int", 0],
    }
    values = [["word", word] for word in kind.words] or [defaults[kind.kind]]
    return ["case", *(part for value in values for part in (["bool", False], value)), ["null"]]


class SqlScalarCompiler:
    """Compiler of expressions over one relation.

    Args:
        facts: facts about its columns.
        names: names of its columns by alias and name in the query.
        more: columns that hold whole expressions, by the text of these.
    """

    def __init__(
        self, facts: Facts, names: Mapping[tuple[str, str], str], more: Mapping[str, str] = {}
    ) -> None:
        from sqlglot import exp

        self._facts, self._names, self._columns_by_text, self._exp = facts, names, more, exp
        of_two = {
            exp.Add: "+",
            exp.Sub: "-",
            exp.Mul: "*",
            exp.Div: "/",
            exp.EQ: "=",
            exp.NEQ: "<>",
            exp.LT: "<",
            exp.LTE: "<=",
            exp.GT: ">",
            exp.GTE: ">=",
            exp.And: "and",
            exp.Or: "or",
        }
        self._binary: dict[Any, str] = of_two
        self._compilers: dict[Any, Callable[[Any], Expression]] = {
            exp.Column: self._compile_column,
            exp.Literal: self._compile_literal,
            exp.Boolean: lambda e: ["bool", bool(e.this)],
            exp.Null: lambda e: ["null"],
            exp.Neg: lambda e: self._negate_value(self.compile_expression(e.this)),
            exp.Not: lambda e: ["not", self.compile_expression(e.this)],
            exp.Abs: lambda e: ["abs", self.compile_expression(e.this)],
            exp.Between: self._compile_between,
            exp.In: self._compile_in,
            exp.Is: self._compile_is,
            exp.Case: self._compile_case,
            exp.If: self._compile_if,
            exp.Coalesce: self._compile_coalesce,
            exp.Least: lambda e: ["least", *self._unify_choices([e.this, *e.expressions])],
            exp.Greatest: lambda e: ["greatest", *self._unify_choices([e.this, *e.expressions])],
            exp.Extract: self._compile_extract,
            exp.Year: lambda e: ["year", self._compile_date(e.this)],
            exp.Month: lambda e: ["month", self._compile_date(e.this)],
            exp.Cast: self._compile_cast,
            exp.Date: lambda e: self._compile_date(e.this),
        }

    def compile_condition(self, node: Any) -> Expression:
        """Compile a condition."""
        return self.compile_expression(node)

    def compile_expression(self, node: Any) -> Expression:
        """Compile any expression.

        Raises:
            UsageError: it is not supported, or names an unknown column.
        """
        node = node.unnest()
        if (name := self._columns_by_text.get(node.sql())) is not None:
            return ["col", name]
        kind = type(node)
        if kind in self._binary:
            if isinstance(node.right.unnest(), self._exp.Interval):
                return self._add_interval(node)
            name, operands = self._binary[kind], self._unify_operands([node.left, node.right])
            return [name, *(self._comparison_sides(*operands) if name in COMPARISONS else operands)]
        if kind not in self._compilers:
            if isinstance(node, self._exp.AggFunc):
                raise UsageError(
                    "An aggregate is only allowed in SELECT, HAVING and ORDER BY.",
                    code="misplaced-aggregate",
                )
            if isinstance(node, self._exp.Subquery | self._exp.Select):
                raise unsupported_sql_error("A subquery as a value")
            if isinstance(node, self._exp.Exists):
                raise unsupported_sql_error("EXISTS below OR, or as a value")
            raise unsupported_sql_error(sql_node_name(node), node.sql(dialect="duckdb"))
        return self._compilers[kind](node)

    def _compile_column(self, node: Any) -> Expression:
        for name in (node.name, node.name.lower()):
            if (column := self._names.get((node.table, name))) is not None:
                return ["col", column]
        raise UsageError(
            f"The column {node.sql()[:80]!r} does not exist, or is neither a key of GROUP BY "
            "nor inside an aggregate.",
            code="column-not-found",
            received=node.sql()[:80],
        )

    def _compile_literal(self, node: Any) -> Expression:
        return ["word", str(node.this)] if node.is_string else _parse_sql_number(str(node.this))

    def _negate_value(self, e: Expression) -> Expression:
        return [e[0], -e[1], *e[2:]] if e[0] in ("int", "decimal") else ["neg", e]

    # ---- operands of one type

    def _unify_operands(self, nodes: Sequence[Any]) -> list[Expression]:
        """Compile operands to one type: literal texts get the type of the others."""
        return self._unify_expressions([self.compile_expression(node) for node in nodes])

    def _unify_expressions(self, operands: Sequence[Expression]) -> list[Expression]:
        kinds = [k for e in operands if e[0] != "word" and (k := self._infer_kind(e)) is not None]
        if not kinds:
            return list(operands)
        unified = [_parse_sql_text(e[1], kinds[0]) if e[0] == "word" else e for e in operands]
        times = [k.kind for e in unified if (k := self._infer_kind(e)) is not None]
        if TIMESTAMP not in times:
            return unified
        return [["to_timestamp", e] if self._is_kind(e, DATE) else e for e in unified]

    def _infer_kind(self, e: Expression) -> ColumnType | None:
        return infer_expression_fact(e, self._facts).type

    def _is_kind(self, e: Expression, kind: str) -> bool:
        own_type = self._infer_kind(e)
        return own_type is not None and own_type.kind == kind

    def _comparison_sides(self, left: Expression, right: Expression) -> list[Expression]:
        """Compile the sides of a comparison. A literal number is rounded like the reals that it is
        compared with, so that = finds a value that was put as this number, and < excludes it.
        """
        return [
            self._round_constant(left, [right], True),
            self._round_constant(right, [left], True),
        ]

    def _unify_choices(self, nodes: Sequence[Any]) -> list[Expression]:
        """Compile values of one type that replace each other."""
        return self._round_choices(self._unify_operands(nodes))

    def _round_choices(self, choices: Sequence[Expression]) -> list[Expression]:
        return [self._round_constant(e, choices, False) for e in choices]

    def _round_constant(
        self, e: Expression, others: Sequence[Expression], keep_outside: bool
    ) -> Expression:
        """Round a public number to the fractional bits of private reals.

        Args:
            keep_outside: whether a number outside of their range may become another one outside of
                it.
        """
        fact = infer_expression_fact(e, self._facts)
        if fact.constant is None or fact.value_type.kind != NUMBER:
            return e
        if fact.value_type.denominator == 1 and not keep_outside:
            return e
        facts = [infer_expression_fact(other, self._facts) for other in others]
        reals = [f.value_type for f in facts if f.type is not None and f.constant is None]
        fraction = max((kind.fraction for kind in reals), default=0)
        if not fraction or any(kind.digits for kind in reals):
            return e
        element = round(Fraction(fact.constant, fact.value_type.denominator) * (1 << fraction))
        if keep_outside:
            shift = fraction - reals[0].fraction
            low, high = reals[0].low << shift, reals[0].high << shift
            element = max(low - 1, min(high + 1, element))
        return ["fixed", element, fraction]

    # ---- conditions

    def _compile_between(self, node: Any) -> Expression:
        this, low, high = self._unify_operands([node.this, node.args["low"], node.args["high"]])

        def range_condition(first: Expression, last: Expression) -> Expression:
            above, below = self._comparison_sides(this, first), self._comparison_sides(this, last)
            return ["and", [">=", *above], ["<=", *below]]

        if not node.args.get("symmetric"):
            return range_condition(low, high)
        return ["or", range_condition(low, high), range_condition(high, low)]

    def _compile_in(self, node: Any) -> Expression:
        if node.args.get("query") is not None:
            raise unsupported_sql_error("IN (SELECT ...) below OR or NOT")
        this, *others = self._unify_operands([node.this, *node.expressions])
        pairs = [self._comparison_sides(this, other) for other in others]
        if all(one == this for one, _ in pairs):
            return ["in", this, *(other for _, other in pairs)]
        equalities = [["=", *pair] for pair in pairs]
        return ["or", *equalities] if len(equalities) > 1 else equalities[0]

    def _compile_is(self, node: Any) -> Expression:
        if isinstance(node.expression, self._exp.Null):
            return ["is_null", self.compile_expression(node.this)]
        if isinstance(node.expression, self._exp.Boolean):
            expected = ["bool", bool(node.expression.this)]
            return [
                "coalesce",
                ["=", self.compile_expression(node.this), expected],
                ["bool", False],
            ]
        raise unsupported_sql_error("IS DISTINCT FROM")

    # ---- choices

    def _compile_case(self, node: Any) -> Expression:
        conditions = []
        for branch in node.args["ifs"]:
            if node.this is not None:
                conditions.append(
                    ["=", *self._comparison_sides(*self._unify_operands([node.this, branch.this]))]
                )
            else:
                conditions.append(self.compile_expression(branch.this))
        results = [self.compile_expression(branch.args["true"]) for branch in node.args["ifs"]]
        default = node.args.get("default")
        results.append(["null"] if default is None else self.compile_expression(default))
        return self._build_sql_case(conditions, results)

    def _compile_if(self, node: Any) -> Expression:
        false = node.args.get("false")
        results = [self.compile_expression(node.args["true"])]
        results.append(["null"] if false is None else self.compile_expression(false))
        return self._build_sql_case([self.compile_expression(node.this)], results)

    def _compile_coalesce(self, node: Any) -> Expression:
        results = self._unify_choices([node.this, *node.expressions])
        if self._has_new_word(results):
            conditions = [["not", ["is_null", e]] for e in results[:-1]]
            return self._build_sql_case(conditions, results)
        return ["coalesce", *results]

    def _build_sql_case(
        self, conditions: Sequence[Expression], results: list[Expression]
    ) -> Expression:
        """Compile the choice of the first result whose condition is true, else of the last one."""
        results = self._round_choices(self._unify_expressions(results))
        branches = list(zip([*conditions, ["bool", True]], results, strict=True))
        if self._has_new_word(results):
            branches = [part for branch in branches for part in self._split_by_word(*branch)]
        *pairs, (_, last) = branches
        if len(pairs) > _MAX_BRANCHES:
            raise UsageError(
                f"A CASE of words takes at most {_MAX_BRANCHES} branches. Received: {len(pairs)}.",
                code="too-large",
                operation="case",
                received=len(pairs),
            )
        return ["case", *(part for pair in pairs for part in pair), last]

    def _has_new_word(self, results: Sequence[Expression]) -> bool:
        """Return whether a literal word is missing in a category among the results."""
        words = {e[1] for e in results if e[0] == "word"}
        listed = [
            k.words for e in results if e[0] != "word" and (k := self._infer_kind(e)) and k.words
        ]
        return any(words - set(each) for each in listed)

    def _split_by_word(
        self, condition: Expression, result: Expression
    ) -> list[tuple[Expression, Expression]]:
        """Split a branch with a category into one for each word: literal words form
        a new category.
        """
        kind = self._infer_kind(result)
        if result[0] == "word" or kind is None:
            return [(condition, result)]
        branches = [
            (["and", condition, ["=", result, ["word", word]]], ["word", word])
            for word in kind.words
        ]
        return [*branches, (condition, ["null"])]

    # ---- dates

    def _compile_extract(self, node: Any) -> Expression:
        part = str(node.name).lower()
        if part not in ("year", "month"):
            raise unsupported_sql_error(f"EXTRACT({part[:40].upper()})")
        return [part, self._compile_date(node.expression)]

    def _compile_cast(self, node: Any) -> Expression:
        target = str(node.to.this.name).upper()
        if target == "DATE":
            return self._compile_date(node.this)
        if target in ("TIMESTAMP", "TIMESTAMPNTZ") or (
            target == "TIMESTAMPTZ" and _is_text_literal(node)
        ):
            return self._compile_time(node.this)
        e = self.compile_expression(node.this)
        if target in ("DOUBLE", "FLOAT", "REAL"):
            return ["real", e]
        kind = self._infer_kind(e)
        is_whole = kind is not None and kind.kind == NUMBER and kind.denominator == 1
        if target in ("INT", "BIGINT", "INTEGER", "SMALLINT", "HUGEINT") and is_whole:
            return e
        raise unsupported_sql_error(f"CAST to {target}")

    def _compile_date(self, node: Any) -> Expression:
        """Compile a date: from a literal text, from a timestamp, or unchanged."""
        e = self.compile_expression(node)
        if e[0] == "word":
            return _parse_sql_text(e[1], _SOME_DATE)
        if self._is_kind(e, TIMESTAMP):
            return ["to_date", e]
        if not self._is_kind(e, DATE):
            raise unsupported_sql_error(f"A DATE of a {self._infer_kind(e)}")
        return e

    def _compile_time(self, node: Any) -> Expression:
        """Compile a timestamp: from a literal text, from the midnight of a date, or unchanged."""
        e = self.compile_expression(node)
        if e[0] == "word":
            return _parse_sql_text(e[1], _SOME_TIME)
        if self._is_kind(e, DATE):
            return ["to_timestamp", e]
        if not self._is_kind(e, TIMESTAMP):
            raise unsupported_sql_error(f"A TIMESTAMP of a {self._infer_kind(e)}")
        return e

    def _add_interval(self, node: Any) -> Expression:
        """Add an interval to a date or time: days to any date, other units to literals only."""
        if type(node) not in (self._exp.Add, self._exp.Sub):
            raise unsupported_sql_error("INTERVAL without + or -", node.sql(dialect="duckdb"))
        interval = node.right.unnest()
        e, named = self.compile_expression(node.left), interval.args.get("unit")
        try:
            count = int(str(interval.this.this))
            unit = str(named.name).upper().removesuffix("S")
        except (AttributeError, TypeError, ValueError):
            raise unsupported_sql_error("An INTERVAL other than a whole number of a unit") from None
        count = count if type(node) is self._exp.Add else -count
        if unit in ("DAY", "WEEK") and self._is_kind(e, DATE):
            days = count * (7 if unit == "WEEK" else 1)
            return ["date", e[1] + days] if e[0] == "date" else ["+", e, ["int", days]]
        if e[0] == "date" and unit in _MONTHS:
            return ["date", _add_months(e[1], count * _MONTHS[unit])]
        if e[0] == "timestamp" and unit in (*_MONTHS, *_SECONDS):
            parts = 10**6
            micro = e[1] * (parts // UNITS[e[2]])
            if unit in _MONTHS:
                day, rest = divmod(micro, SECONDS_OF_DAY * parts)
                day = _add_months(day, count * _MONTHS[unit])
                return ["timestamp", day * SECONDS_OF_DAY * parts + rest, "us"]
            return ["timestamp", micro + count * _SECONDS[unit] * parts, "us"]
        raise unsupported_sql_error(
            f"INTERVAL in {unit[:40]}S with a {self._infer_kind(e)} of a table"
        )


def _parse_sql_number(text: str) -> Expression:
    """Parse a literal number.

    Raises:
        UsageError: it is invalid, or has too many digits.
    """
    try:
        value = Decimal(text)
        digits = max(0, -int(value.as_tuple().exponent))
    except (InvalidOperation, ValueError):
        raise UsageError(
            f"Expected a number. Received: {text[:40]!r}.", code="not-a-number", received=text[:40]
        ) from None
    if digits > MAX_DIGITS or abs(value) >= 1 << 62:
        raise UsageError(
            f"Expected a number of at most {MAX_DIGITS} decimal digits and 62 bits. Received: "
            f"{text[:40]}.",
            code="number-too-long",
            received=text[:40],
        )
    if not digits:
        return ["int", int(value)]
    element = int(value.scaleb(digits))
    if abs(element) >> 62:
        raise UsageError(
            f"Expected a number of at most 62 bits. Received: {text[:40]}.",
            code="number-too-long",
            received=text[:40],
        )
    return ["decimal", element, digits]


def _parse_sql_text(text: str, kind: ColumnType) -> Expression:
    """Parse a literal text as the type that it is compared or mixed with.

    Raises:
        UsageError: it is not a value of this type.
    """
    try:
        match kind.kind:
            case "number":
                value = _parse_sql_number(text)
                digits = value[2] if value[0] == "decimal" else 0
                if digits > kind.digits and not kind.fraction:
                    raise ValueError("more digits behind the point than its type has")
                return value
            case "bool":
                return ["bool", bool(parse_column_element(text, kind))]
            case "text":
                return ["text", hash_column_text(text)]
            case "date":
                return ["date", parse_date(text)]
            case "timestamp":
                return ["timestamp", parse_timestamp(text, "us"), "us"]
    except (KeyError, ValueError):
        raise UsageError(
            f"Expected a value of type {kind}. Received: {text[:40]!r}.",
            code="value-of-other-type",
            received=text[:40],
            expected=kind,
        ) from None
    return ["word", text]


def _is_text_literal(cast: Any) -> bool:
    node = cast.this.unnest()
    return type(node).__name__ == "Literal" and bool(node.is_string)


def _add_months(days: int, count: int) -> int:
    start = datetime.date(1970, 1, 1) + datetime.timedelta(days=days)
    at = start.year * 12 + start.month - 1 + count
    year, month = divmod(at, 12)
    if not 1 <= year < 9999:
        raise UsageError(
            "Expected a date in the years 1 to 9999.", code="number-out-of-range", operation="date"
        )
    following = datetime.date(year + (month == 11), (month + 1) % 12 + 1, 1)
    last = (following - datetime.timedelta(days=1)).day
    return (datetime.date(year, month + 1, min(start.day, last)) - datetime.date(1970, 1, 1)).days

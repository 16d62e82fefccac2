"""Expressions of SQL as expressions of a plan."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from typing import Any

from tfe_bench.errors import UsageError
from tfe_bench.models.queries.accepted import name_of, refused
from tfe_bench.models.queries.expressions import Facts, typed
from tfe_bench.models.queries.plan import COMPARISONS, Expression
from tfe_bench.models.queries.types import (
    BOOL,
    DATE,
    MOST_DIGITS,
    NUMBER,
    SECONDS_OF_DAY,
    TEXT,
    TIMESTAMP,
    UNITS,
    Type,
    days_of,
    element_of,
    hash_of,
    time_of,
)

# Types of no column, of which only the kind counts.
_SOME_DATE, _SOME_TIME = Type(DATE, 0, 0), Type(TIMESTAMP, 0, 0, unit="s")
# Pairs of a condition and a value that one CASE has.
_MOST_BRANCHES = 32
_MONTHS = {"MONTH": 1, "YEAR": 12}
_SECONDS = {"SECOND": 1, "MINUTE": 60, "HOUR": 3600, "DAY": 86400, "WEEK": 7 * 86400}


def null_of(kind: Type) -> Expression:
    """NULL of a type."""
    some: dict[str, Expression] = {
        BOOL: ["bool", False],
        DATE: ["date", 0],
        TIMESTAMP: ["timestamp", 0, kind.unit],
        TEXT: ["text", 0],
        NUMBER: ["decimal", 0, kind.digits] if kind.digits else ["int", 0],
    }
    values = [["word", word] for word in kind.words] or [some[kind.kind]]
    return ["case", *(part for value in values for part in (["bool", False], value)), ["null"]]


class Scalars:
    """Makes expressions over one relation.

    Args:
        facts: its columns.
        names: their names by the alias and the name that the query says.
        more: columns that stand for whole expressions, by the text of these.
    """

    def __init__(
        self, facts: Facts, names: Mapping[tuple[str, str], str], more: Mapping[str, str] = {}
    ) -> None:
        from sqlglot import exp

        self._facts, self._names, self._more, self._exp = facts, names, more, exp
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
        self._of_two: dict[Any, str] = of_two
        self._makers: dict[Any, Callable[[Any], Expression]] = {
            exp.Column: self._column,
            exp.Literal: self._literal,
            exp.Boolean: lambda e: ["bool", bool(e.this)],
            exp.Null: lambda e: ["null"],
            exp.Neg: lambda e: self._negative(self.expression(e.this)),
            exp.Not: lambda e: ["not", self.expression(e.this)],
            exp.Abs: lambda e: ["abs", self.expression(e.this)],
            exp.Between: self._between,
            exp.In: self._in,
            exp.Is: self._is,
            exp.Case: self._case,
            exp.If: self._if,
            exp.Coalesce: self._coalesce,
            exp.Least: lambda e: ["least", *self._mixed([e.this, *e.expressions])],
            exp.Greatest: lambda e: ["greatest", *self._mixed([e.this, *e.expressions])],
            exp.Extract: self._extract,
            exp.Year: lambda e: ["year", self._date(e.this)],
            exp.Month: lambda e: ["month", self._date(e.this)],
            exp.Cast: self._cast,
            exp.Date: lambda e: self._date(e.this),
        }

    def condition(self, node: Any) -> Expression:
        """A condition."""
        return self.expression(node)

    def expression(self, node: Any) -> Expression:
        """Any expression.

        Raises:
            UsageError: it is not offered, or names what is not there.
        """
        node = node.unnest()
        if (name := self._more.get(node.sql())) is not None:
            return ["col", name]
        kind = type(node)
        if kind in self._of_two:
            if isinstance(node.right.unnest(), self._exp.Interval):
                return self._shifted(node)
            name, operands = self._of_two[kind], self._alike([node.left, node.right])
            return [name, *(self._paired(*operands) if name in COMPARISONS else operands)]
        if kind not in self._makers:
            if isinstance(node, self._exp.AggFunc):
                raise UsageError("An aggregate stands in SELECT, HAVING and ORDER BY only.")
            if isinstance(node, self._exp.Subquery | self._exp.Select):
                raise refused("A subquery as a value")
            if isinstance(node, self._exp.Exists):
                raise refused("EXISTS below OR, or as a value")
            raise refused(name_of(node), node.sql(dialect="duckdb"))
        return self._makers[kind](node)

    def _column(self, node: Any) -> Expression:
        for name in (node.name, node.name.lower()):
            if (found := self._names.get((node.table, name))) is not None:
                return ["col", found]
        raise UsageError(
            f"The column {node.sql()[:80]!r} is not there, or neither a key of GROUP BY nor inside "
            "of an aggregate."
        )

    def _literal(self, node: Any) -> Expression:
        return ["word", str(node.this)] if node.is_string else _number(str(node.this))

    def _negative(self, e: Expression) -> Expression:
        return [e[0], -e[1], *e[2:]] if e[0] in ("int", "decimal") else ["neg", e]

    # ---- operands of one type

    def _alike(self, nodes: Sequence[Any]) -> list[Expression]:
        """Operands of one type: texts that are written out become what the others are."""
        return self._as_others([self.expression(node) for node in nodes])

    def _as_others(self, given: Sequence[Expression]) -> list[Expression]:
        kinds = [k for e in given if e[0] != "word" and (k := self._kind(e)) is not None]
        if not kinds:
            return list(given)
        made = [_word(e[1], kinds[0]) if e[0] == "word" else e for e in given]
        times = [k.kind for e in made if (k := self._kind(e)) is not None]
        if TIMESTAMP not in times:
            return made
        return [["to_timestamp", e] if self._is_kind(e, DATE) else e for e in made]

    def _kind(self, e: Expression) -> Type | None:
        return typed(e, self._facts).type

    def _is_kind(self, e: Expression, kind: str) -> bool:
        found = self._kind(e)
        return found is not None and found.kind == kind

    def _paired(self, left: Expression, right: Expression) -> list[Expression]:
        """The sides of a comparison: a number that is written out is rounded as the reals that it
        is compared with, so that = finds what was put as this number, and < no such value."""
        return [self._rounded(left, [right], True), self._rounded(right, [left], True)]

    def _mixed(self, nodes: Sequence[Any]) -> list[Expression]:
        """Values of one type that stand for each other."""
        return self._as_choices(self._alike(nodes))

    def _as_choices(self, given: Sequence[Expression]) -> list[Expression]:
        return [self._rounded(e, given, False) for e in given]

    def _rounded(self, e: Expression, others: Sequence[Expression], within: bool) -> Expression:
        """A public number with the fractional bits of private reals.

        Args:
            within: whether the number may be another one that is outside of their range, too.
        """
        own = typed(e, self._facts)
        if own.constant is None or own.known.kind != NUMBER:
            return e
        if own.known.denominator == 1 and not within:
            return e
        facts = [typed(other, self._facts) for other in others]
        reals = [f.known for f in facts if f.type is not None and f.constant is None]
        fraction = max((kind.fraction for kind in reals), default=0)
        if not fraction or any(kind.digits for kind in reals):
            return e
        element = round(Fraction(own.constant, own.known.denominator) * (1 << fraction))
        if within:
            shift = fraction - reals[0].fraction
            low, high = reals[0].low << shift, reals[0].high << shift
            element = max(low - 1, min(high + 1, element))
        return ["fixed", element, fraction]

    # ---- conditions

    def _between(self, node: Any) -> Expression:
        this, low, high = self._alike([node.this, node.args["low"], node.args["high"]])

        def within(first: Expression, last: Expression) -> Expression:
            above, below = self._paired(this, first), self._paired(this, last)
            return ["and", [">=", *above], ["<=", *below]]

        if not node.args.get("symmetric"):
            return within(low, high)
        return ["or", within(low, high), within(high, low)]

    def _in(self, node: Any) -> Expression:
        if node.args.get("query") is not None:
            raise refused("IN (SELECT ...) below OR or NOT")
        this, *others = self._alike([node.this, *node.expressions])
        pairs = [self._paired(this, other) for other in others]
        if all(one == this for one, _ in pairs):
            return ["in", this, *(other for _, other in pairs)]
        found = [["=", *pair] for pair in pairs]
        return ["or", *found] if len(found) > 1 else found[0]

    def _is(self, node: Any) -> Expression:
        if isinstance(node.expression, self._exp.Null):
            return ["is_null", self.expression(node.this)]
        if isinstance(node.expression, self._exp.Boolean):
            wanted = ["bool", bool(node.expression.this)]
            return ["coalesce", ["=", self.expression(node.this), wanted], ["bool", False]]
        raise refused("IS DISTINCT FROM")

    # ---- choices

    def _case(self, node: Any) -> Expression:
        conditions = []
        for each in node.args["ifs"]:
            if node.this is not None:
                conditions.append(["=", *self._paired(*self._alike([node.this, each.this]))])
            else:
                conditions.append(self.expression(each.this))
        results = [self.expression(each.args["true"]) for each in node.args["ifs"]]
        default = node.args.get("default")
        results.append(["null"] if default is None else self.expression(default))
        return self._choice(conditions, results)

    def _if(self, node: Any) -> Expression:
        false = node.args.get("false")
        results = [self.expression(node.args["true"])]
        results.append(["null"] if false is None else self.expression(false))
        return self._choice([self.expression(node.this)], results)

    def _coalesce(self, node: Any) -> Expression:
        results = self._mixed([node.this, *node.expressions])
        if self._has_new_word(results):
            there = [["not", ["is_null", e]] for e in results[:-1]]
            return self._choice(there, results)
        return ["coalesce", *results]

    def _choice(self, conditions: Sequence[Expression], results: list[Expression]) -> Expression:
        """The first result whose condition is true; the last one if none is."""
        results = self._as_choices(self._as_others(results))
        branches = list(zip([*conditions, ["bool", True]], results, strict=True))
        if self._has_new_word(results):
            branches = [part for branch in branches for part in self._by_word(*branch)]
        *pairs, (_, last) = branches
        if len(pairs) > _MOST_BRANCHES:
            raise UsageError(
                f"A CASE of words takes at most {_MOST_BRANCHES} of them. Received: {len(pairs)}."
            )
        return ["case", *(part for pair in pairs for part in pair), last]

    def _has_new_word(self, results: Sequence[Expression]) -> bool:
        """Whether a word is written out that a category among the results does not have."""
        words = {e[1] for e in results if e[0] == "word"}
        listed = [k.words for e in results if e[0] != "word" and (k := self._kind(e)) and k.words]
        return any(words - set(each) for each in listed)

    def _by_word(
        self, condition: Expression, result: Expression
    ) -> list[tuple[Expression, Expression]]:
        """A branch of a category as one of each of its words: words alone make a new category."""
        kind = self._kind(result)
        if result[0] == "word" or kind is None:
            return [(condition, result)]
        found = [
            (["and", condition, ["=", result, ["word", word]]], ["word", word])
            for word in kind.words
        ]
        return [*found, (condition, ["null"])]

    # ---- dates

    def _extract(self, node: Any) -> Expression:
        part = str(node.name).lower()
        if part not in ("year", "month"):
            raise refused(f"EXTRACT({part[:40].upper()})")
        return [part, self._date(node.expression)]

    def _cast(self, node: Any) -> Expression:
        wanted = str(node.to.this.name).upper()
        if wanted == "DATE":
            return self._date(node.this)
        if wanted in ("TIMESTAMP", "TIMESTAMPNTZ") or (wanted == "TIMESTAMPTZ" and _is_text(node)):
            return self._time(node.this)
        e = self.expression(node.this)
        if wanted in ("DOUBLE", "FLOAT", "REAL"):
            return ["real", e]
        kind = self._kind(e)
        is_whole = kind is not None and kind.kind == NUMBER and kind.denominator == 1
        if wanted in ("INT", "BIGINT", "INTEGER", "SMALLINT", "HUGEINT") and is_whole:
            return e
        raise refused(f"CAST to {wanted}")

    def _date(self, node: Any) -> Expression:
        """A date: of a text that is written out, of a timestamp, or as it is."""
        e = self.expression(node)
        if e[0] == "word":
            return _word(e[1], _SOME_DATE)
        if self._is_kind(e, TIMESTAMP):
            return ["to_date", e]
        if not self._is_kind(e, DATE):
            raise refused(f"A DATE of a {self._kind(e)}")
        return e

    def _time(self, node: Any) -> Expression:
        """A timestamp: of a text that is written out, of a date's midnight, or as it is."""
        e = self.expression(node)
        if e[0] == "word":
            return _word(e[1], _SOME_TIME)
        if self._is_kind(e, DATE):
            return ["to_timestamp", e]
        if not self._is_kind(e, TIMESTAMP):
            raise refused(f"A TIMESTAMP of a {self._kind(e)}")
        return e

    def _shifted(self, node: Any) -> Expression:
        """A date or time and an interval: days for any date, else for one that is written out."""
        if type(node) not in (self._exp.Add, self._exp.Sub):
            raise refused("INTERVAL but behind + or -", node.sql(dialect="duckdb"))
        interval = node.right.unnest()
        e, named = self.expression(node.left), interval.args.get("unit")
        try:
            count = int(str(interval.this.this))
            unit = str(named.name).upper().removesuffix("S")
        except (AttributeError, TypeError, ValueError):
            raise refused("An INTERVAL that is no whole number of a unit") from None
        count = count if type(node) is self._exp.Add else -count
        if unit in ("DAY", "WEEK") and self._is_kind(e, DATE):
            days = count * (7 if unit == "WEEK" else 1)
            return ["date", e[1] + days] if e[0] == "date" else ["+", e, ["int", days]]
        if e[0] == "date" and unit in _MONTHS:
            return ["date", _months_on(e[1], count * _MONTHS[unit])]
        if e[0] == "timestamp" and unit in (*_MONTHS, *_SECONDS):
            parts = 10**6
            micro = e[1] * (parts // UNITS[e[2]])
            if unit in _MONTHS:
                day, rest = divmod(micro, SECONDS_OF_DAY * parts)
                day = _months_on(day, count * _MONTHS[unit])
                return ["timestamp", day * SECONDS_OF_DAY * parts + rest, "us"]
            return ["timestamp", micro + count * _SECONDS[unit] * parts, "us"]
        raise refused(f"INTERVAL in {unit[:40]}S with a {self._kind(e)} of a table")


def _number(text: str) -> Expression:
    """A number that is written out.

    Raises:
        UsageError: it is none, or has too many digits.
    """
    try:
        value = Decimal(text)
        digits = max(0, -int(value.as_tuple().exponent))
    except (InvalidOperation, ValueError):
        raise UsageError(f"Expected a number. Received: {text[:40]!r}.") from None
    if digits > MOST_DIGITS or abs(value) >= 1 << 62:
        raise UsageError(
            f"A number has at most {MOST_DIGITS} digits behind the point and 62 bits. "
            f"Received: {text[:40]}."
        )
    if not digits:
        return ["int", int(value)]
    element = int(value.scaleb(digits))
    if abs(element) >> 62:
        raise UsageError(f"A number has at most 62 bits. Received: {text[:40]}.")
    return ["decimal", element, digits]


def _word(text: str, kind: Type) -> Expression:
    """A text that is written out, as the type that it is compared or mixed with.

    Raises:
        UsageError: it is no value of this type.
    """
    try:
        match kind.kind:
            case "number":
                value = _number(text)
                digits = value[2] if value[0] == "decimal" else 0
                if digits > kind.digits and not kind.fraction:
                    raise ValueError("more digits behind the point than its type has")
                return value
            case "bool":
                return ["bool", bool(element_of(text, kind))]
            case "text":
                return ["text", hash_of(text)]
            case "date":
                return ["date", days_of(text)]
            case "timestamp":
                return ["timestamp", time_of(text, "us"), "us"]
    except (KeyError, ValueError):
        raise UsageError(f"Expected a value of type {kind}. Received: {text[:40]!r}.") from None
    return ["word", text]


def _is_text(cast: Any) -> bool:
    node = cast.this.unnest()
    return type(node).__name__ == "Literal" and bool(node.is_string)


def _months_on(days: int, count: int) -> int:
    start = datetime.date(1970, 1, 1) + datetime.timedelta(days=days)
    at = start.year * 12 + start.month - 1 + count
    year, month = divmod(at, 12)
    if not 1 <= year < 9999:
        raise UsageError("A date is of the years 1 to 9999.")
    following = datetime.date(year + (month == 11), (month + 1) % 12 + 1, 1)
    last = (following - datetime.timedelta(days=1)).day
    return (datetime.date(year, month + 1, min(start.day, last)) - datetime.date(1970, 1, 1)).days

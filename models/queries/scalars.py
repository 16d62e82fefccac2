"""Expressions of SQL as expressions of a plan."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any

from tfe_bench.errors import UsageError
from tfe_bench.models.queries.accepted import name_of, refused
from tfe_bench.models.queries.expressions import Facts, typed
from tfe_bench.models.queries.plan import Expression
from tfe_bench.models.queries.types import (
    BOOL,
    DATE,
    MOST_DIGITS,
    NUMBER,
    TEXT,
    TIMESTAMP,
    Type,
    days_of,
    hash_of,
    time_of,
)


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
            exp.Coalesce: lambda e: ["coalesce", *self._alike([e.this, *e.expressions])],
            exp.Least: lambda e: ["least", *self._alike([e.this, *e.expressions])],
            exp.Greatest: lambda e: ["greatest", *self._alike([e.this, *e.expressions])],
            exp.Extract: self._extract,
            exp.Year: lambda e: ["year", self.expression(e.this)],
            exp.Month: lambda e: ["month", self.expression(e.this)],
            exp.Cast: self._cast,
            exp.Date: lambda e: self._dated(e.this),
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
            return [self._of_two[kind], *self._alike([node.left, node.right])]
        if kind not in self._makers:
            if isinstance(node, self._exp.AggFunc):
                raise UsageError("An aggregate stands in SELECT, HAVING and ORDER BY only.")
            if isinstance(node, self._exp.Subquery | self._exp.Select):
                raise refused("A subquery as a value")
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
        if node.is_string:
            return ["word", str(node.this)]
        try:
            value = Decimal(str(node.this))
        except InvalidOperation:
            raise UsageError("This is no number.") from None
        digits = max(0, -int(value.as_tuple().exponent))
        if digits > MOST_DIGITS or abs(value) >= 1 << 62:
            raise UsageError(
                f"A number has at most {MOST_DIGITS} digits behind the point and 62 bits. "
                f"Received: {str(node.this)[:40]}."
            )
        if not digits:
            return ["int", int(value)]
        element = int(value.scaleb(digits))
        if abs(element) >> 62:
            raise UsageError(f"A number has at most 62 bits. Received: {str(node.this)[:40]}.")
        return ["decimal", element, digits]

    def _negative(self, e: Expression) -> Expression:
        return [e[0], -e[1], *e[2:]] if e[0] in ("int", "decimal") else ["neg", e]

    def _alike(self, nodes: Sequence[Any]) -> list[Expression]:
        """Operands of one type: texts that are written out become what the others are."""
        made = [self.expression(node) for node in nodes]
        return self._as_others(made, made)

    def _as_others(
        self, given: Sequence[Expression], others: Sequence[Expression]
    ) -> list[Expression]:
        kinds = [typed(e, self._facts).type for e in others if e[0] not in ("word", "null")]
        kind = next((k for k in kinds if k is not None), None)
        if kind is None:
            return list(given)
        return [self._word(e[1], kind) if e[0] == "word" else e for e in given]

    def _word(self, text: str, kind: Any) -> Expression:
        try:
            if kind.kind == TEXT:
                return ["text", hash_of(text)]
            if kind.kind == DATE:
                return ["date", days_of(text)]
            if kind.kind == TIMESTAMP:
                return ["timestamp", time_of(text, "us"), "us"]
        except ValueError:
            raise UsageError(f"A {kind} is due. Received: {text[:40]!r}.") from None
        return ["word", text]

    def _between(self, node: Any) -> Expression:
        this, low, high = self._alike([node.this, node.args["low"], node.args["high"]])
        within = ["and", [">=", this, low], ["<=", this, high]]
        if not node.args.get("symmetric"):
            return within
        return ["or", within, ["and", [">=", this, high], ["<=", this, low]]]

    def _in(self, node: Any) -> Expression:
        if node.args.get("query") is not None:
            raise refused("IN (SELECT ...) below OR or NOT")
        return ["in", *self._alike([node.this, *node.expressions])]

    def _is(self, node: Any) -> Expression:
        if isinstance(node.expression, self._exp.Null):
            return ["is_null", self.expression(node.this)]
        if isinstance(node.expression, self._exp.Boolean):
            wanted = ["bool", bool(node.expression.this)]
            return ["coalesce", ["=", self.expression(node.this), wanted], ["bool", False]]
        raise refused("IS DISTINCT FROM")

    def _case(self, node: Any) -> Expression:
        conditions = []
        for each in node.args["ifs"]:
            if node.this is not None:
                conditions.append(["=", *self._alike([node.this, each.this])])
            else:
                conditions.append(self.expression(each.this))
        default = node.args.get("default")
        results = [self.expression(each.args["true"]) for each in node.args["ifs"]]
        results.append(["null"] if default is None else self.expression(default))
        results = self._as_others(results, results)
        pairs = [part for pair in zip(conditions, results, strict=False) for part in pair]
        return ["case", *pairs, results[-1]]

    def _if(self, node: Any) -> Expression:
        false = node.args.get("false")
        results = [self.expression(node.args["true"])]
        results.append(["null"] if false is None else self.expression(false))
        return ["case", self.expression(node.this), *self._as_others(results, results)]

    def _extract(self, node: Any) -> Expression:
        part = str(node.name).lower()
        if part not in ("year", "month"):
            raise refused(f"EXTRACT({part[:40].upper()})")
        return [part, self.expression(node.expression)]

    def _cast(self, node: Any) -> Expression:
        wanted = str(node.to.this.name).upper()
        if wanted == "DATE":
            return self._dated(node.this)
        if wanted in ("TIMESTAMP", "TIMESTAMPNTZ", "TIMESTAMPTZ") and self._is_text(node.this):
            return self._word(str(node.this.unnest().this), _Kind(TIMESTAMP))
        e = self.expression(node.this)
        if wanted in ("DOUBLE", "FLOAT", "REAL"):
            return ["real", e]
        kind = typed(e, self._facts).type
        whole = kind is not None and kind.kind == "number" and kind.denominator == 1
        if wanted in ("INT", "BIGINT", "INTEGER", "SMALLINT", "HUGEINT") and whole:
            return e
        raise refused(f"CAST to {wanted}")

    def _is_text(self, node: Any) -> bool:
        node = node.unnest()
        return isinstance(node, self._exp.Literal) and bool(node.is_string)

    def _dated(self, node: Any) -> Expression:
        if self._is_text(node):
            return self._word(str(node.unnest().this), _Kind(DATE))
        e = self.expression(node)
        kind = typed(e, self._facts).type
        if kind is None or kind.kind != DATE:
            raise refused("CAST to DATE")
        return e

    def _shifted(self, node: Any) -> Expression:
        """A date and an interval: days for any date, months and years for one that is written."""
        interval = node.right.unnest()
        e = self.expression(node.left)
        try:
            count = int(str(interval.this.this)) if interval.this is not None else 0
        except ValueError:
            raise refused("An INTERVAL that is no whole number") from None
        unit = str(interval.args["unit"].name).upper().removesuffix("S")
        sign = 1 if type(node) is self._exp.Add else -1
        if unit in ("DAY", "WEEK"):
            days = sign * count * (7 if unit == "WEEK" else 1)
            if e[0] == "date":
                return ["date", e[1] + days]
            return ["+", e, ["int", days]]
        if unit not in ("MONTH", "YEAR") or e[0] != "date":
            raise refused(f"INTERVAL in {unit[:40]}S with a date of a table")
        return ["date", _months_on(e[1], sign * count * (12 if unit == "YEAR" else 1))]


class _Kind:
    """A kind of type alone."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def __str__(self) -> str:
        return self.kind


def _months_on(days: int, count: int) -> int:
    start = datetime.date(1970, 1, 1) + datetime.timedelta(days=days)
    at = start.year * 12 + start.month - 1 + count
    year, month = divmod(at, 12)
    if not 1 <= year < 9999:
        raise UsageError("A date is of the years 1 to 9999.")
    following = datetime.date(year + (month == 11), (month + 1) % 12 + 1, 1)
    last = (following - datetime.timedelta(days=1)).day
    return (datetime.date(year, month + 1, min(start.day, last)) - datetime.date(1970, 1, 1)).days

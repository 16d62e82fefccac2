"""Expressions over private columns, computed by the three workers inside graphs.

A value is computed in the type from `expressions.infer_expression_fact`; a condition as a bit that
is 1 if it is true, and 0 if it is false or NULL. NOT is pushed down to the leaves first, so that
each leaf is
correct by itself: it holds, and none of its operands is NULL.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np

from tfe_bench.protocols.functions.exp_one_round import to_signed_word
from tfe_bench.protocols.ring import arithmetic, full_range, relational, shapes, truncation
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared
from tfe_bench.protocols.tables import bits
from tfe_bench.protocols.tables.relation import Column
from tfe_bench.queries.column_facts import (
    ColumnFact,
    case_result_type,
    column_scale_factor,
    common_column_type,
    constant_column_element,
)
from tfe_bench.queries.days import timestamps_to_days
from tfe_bench.queries.division import divide_bounded_columns, multiply_by_public_ratio
from tfe_bench.queries.expressions import (
    Facts,
    dropped_bits,
    first_days,
    infer_expression_fact,
    public_reciprocal,
    ratio_type,
)
from tfe_bench.queries.plan_syntax import COMPARISONS, Expression
from tfe_bench.queries.types import BITS, BOOL, TEXT, ColumnType, units_per_day

# Bits of a comparison.
_WORD = 64
_OPPOSITE = {"=": "<>", "<>": "=", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}
# Public if equal in all rows.
Bit = Shared | bool


@dataclass(frozen=True)
class ColumnValue:
    """A value in every row.

    Attributes:
        data: elements [n]; bits of Z_2 if the fact's type is a bool.
        null: bits of the rows that are NULL.
        fact: its public fact.
    """

    data: Shared
    null: Bit
    fact: ColumnFact


def value_to_column(value: ColumnValue) -> Column:
    """Convert a value to a column of a relation."""
    null = value.null
    if isinstance(null, bool):
        null = constant_truth_column(value.data, null) if value.fact.nullable else None  # type: ignore[assignment]
    kind = value.fact.value_type
    if kind.kind == BOOL:
        return Column(value.data, 1, null)  # type: ignore[arg-type]
    data = arithmetic.add_constant(value.data, to_signed_word(-kind.offset))
    return Column(data, kind.width, null)  # type: ignore[arg-type]


def column_to_value(column: Column, fact: ColumnFact) -> ColumnValue:
    """Convert a column of a relation to a value."""
    data = column.values
    if fact.value_type.kind != BOOL:
        data = arithmetic.add_constant(data, np.int64(fact.value_type.offset))
    return ColumnValue(data, False if column.null is None else column.null, fact)


def constant_truth_column(like: Shared, value: bool) -> Shared:
    """Return a public bit in every row."""
    return bits.share_public_row_bits(like, np.full(like.shape.as_list(), int(value), np.int64))


class ExpressionEvaluator:
    """Evaluator of expressions over the columns of one relation.

    Args:
        like: any column, for the number of rows and the dealer.
    """

    def __init__(
        self, party: Party, columns: Mapping[str, Column], facts: Facts, like: Shared
    ) -> None:
        self._party, self._columns, self._facts = party, columns, facts
        self._rows = like.map(lambda a: a)
        if self._rows.bits:
            self._rows = replace(self._rows, bits=0)
        # cache of computed values, by their text
        self._values: dict[str, ColumnValue] = {}
        self._bits: dict[str, Shared] = {}

    # ---- conditions

    def compute_truth(self, e: Expression, negated: bool = False) -> Bit:
        """Compute whether a condition is true (with negated: false), not NULL."""
        name, *rest = e
        if name == "not":
            return self.compute_truth(rest[0], not negated)
        if name in ("and", "or"):
            parts = [self.compute_truth(each, negated) for each in rest]
            return self._or_all(parts) if (name == "or") != negated else self._and_all(parts)
        if name == "null":
            return False
        if name == "bool":
            return bool(rest[0]) != negated
        if name == "is_null":
            null = self.compute_value(rest[0]).null
            return self._invert_bit(null) if negated else null
        if name == "in":
            op = "<>" if negated else "="
            parts = [self.compute_truth([op, rest[0], each]) for each in rest[1:]]
            return self._and_all(parts) if negated else self._or_all(parts)
        if name in COMPARISONS:
            return self._compare_values(_OPPOSITE[name] if negated else name, *rest)
        value = self.compute_value(e)
        bit = bits.invert(value.data) if negated else value.data
        return self._and_all([bit, self._invert_bit(value.null)])

    def _and_all(self, parts: Sequence[Bit]) -> Bit:
        private = [p for p in parts if not isinstance(p, bool)]
        if any(p is False for p in parts):
            return False
        while len(private) > 1:
            private = [
                bits.all_of(self._party, private[i : i + 6]) for i in range(0, len(private), 6)
            ]
        return private[0] if private else True

    def _or_all(self, parts: Sequence[Bit]) -> Bit:
        return self._invert_bit(self._and_all([self._invert_bit(p) for p in parts]))

    def _invert_bit(self, bit: Bit) -> Bit:
        return (not bit) if isinstance(bit, bool) else bits.invert(bit)

    def and_bits(self, a: Bit, b: Bit) -> Bit:
        """Compute the AND of two bits."""
        return self._and_all([a, b])

    def as_shared(self, bit: Bit) -> Shared:
        """Convert a public or private bit to a private one."""
        return constant_truth_column(self._rows, bit) if isinstance(bit, bool) else bit

    def _compare_values(self, name: str, left: Expression, right: Expression) -> Bit:
        first, second = (infer_expression_fact(each, self._facts) for each in (left, right))
        if first.type is None or second.type is None:
            return False
        kind = common_column_type(first, second)
        a, b = (self._cast_to(each, kind) for each in (left, right))
        not_null = [self._invert_bit(a.null), self._invert_bit(b.null)]
        if name in (">", "<="):
            left, right, a, b, name = right, left, b, a, {">": "<", "<=": ">="}[name]
        public_result = None
        if a.fact.constant is not None and b.fact.constant is not None:
            x, y = a.fact.constant, b.fact.constant
            public_result = {"=": x == y, "<>": x != y, "<": x < y, ">=": x >= y}[name]
        elif kind.kind != TEXT:
            # the bounds of the types may decide it for all rows
            public_result = _decide_comparison(name, a.fact.value_type, b.fact.value_type)
        if public_result is not None:
            return self._and_all([public_result, *not_null])
        op = {"<>": "=", ">=": "<"}.get(name, name)
        key = json.dumps([op, left, right])
        if key not in self._bits:
            self._bits[key] = self._compare_words(op, kind, a, b)
        bit = self._bits[key] if name == op else bits.invert(self._bits[key])
        return self._and_all([bit, *not_null])

    def _compare_words(self, name: str, kind: ColumnType, a: ColumnValue, b: ColumnValue) -> Shared:
        """Compute [a = b] or [a < b]."""
        party = self._party
        if kind.kind == BOOL:
            if name == "=":
                return bits.invert(bits.xor(a.data, b.data))
            return bits.all_of(party, [bits.invert(a.data), b.data])
        one, two = a.fact.value_type, b.fact.value_type
        furthest = max(abs(one.high - two.low), abs(two.high - one.low))
        width = furthest.bit_length() + 1
        if name == "=":
            if width <= _WORD:
                result = relational.equal(party, a.data, b.data, width)
            else:
                result = full_range.equal(party, a.data, b.data)
        elif width <= _WORD:
            result = relational.less(party, a.data, b.data, width)
        else:
            result = full_range.less(party, a.data, b.data)
        return bits.from_masked(party, result)

    # ---- values

    def compute_value(self, e: Expression) -> ColumnValue:
        """Compute a value in the type from `infer_expression_fact`."""
        key = json.dumps(e)
        if key not in self._values:
            self._values[key] = self._compute_node(e)
        return self._values[key]

    def _compute_node(self, e: Expression) -> ColumnValue:
        fact = infer_expression_fact(e, self._facts)
        name, *rest = e
        if name == "col":
            return column_to_value(self._columns[rest[0]], fact)
        if fact.constant is not None:
            return self._public_value(fact, fact.constant)
        if name == "case":
            return self._compute_case(fact, rest)
        if name == "coalesce":
            return self._compute_coalesce(fact, rest)
        if fact.value_type == BITS:
            data = self.as_shared(self.compute_truth(e))
            null: Bit = False
            if fact.nullable:
                false = self.as_shared(self.compute_truth(e, negated=True))
                null = bits.invert(bits.xor(data, false))  # (never both)
            return ColumnValue(data, null, fact)
        operands = [self.compute_value(each) for each in rest]
        null = self._or_all([o.null for o in operands])
        data, more = self._compute_number(name, fact, operands)
        return ColumnValue(data, self._or_all([null, more]), fact)

    def _public_value(self, fact: ColumnFact, element: int) -> ColumnValue:
        if fact.value_type.kind == BOOL:
            return ColumnValue(constant_truth_column(self._rows, bool(element)), False, fact)
        zero = self._rows.map(lambda a: 0 * a)
        return ColumnValue(arithmetic.add_constant(zero, np.int64(element)), False, fact)

    def _cast_to(self, e: Expression, kind: ColumnType) -> ColumnValue:
        """Cast a value to a `common_column_type`; its fact gets its bounds in that type."""
        fact = infer_expression_fact(e, self._facts)
        if fact.type is None:
            nothing = self._public_value(
                ColumnFact(kind, constant=max(kind.low, min(kind.high, 0))), 0
            )
            return ColumnValue(nothing.data, True, ColumnFact(kind, True))
        if fact.constant is not None:
            element = constant_column_element(fact, kind)
            if kind.kind != BOOL and kind.kind != TEXT:
                kind = replace(kind, low=element, high=element) if not kind.words else kind
            return self._public_value(ColumnFact(kind, constant=element), element)
        value, by = self.compute_value(e), column_scale_factor(fact.value_type, kind)
        own_type = fact.value_type
        if by != 1:
            value = replace(value, data=arithmetic.mul_public(value.data, np.int64(by)))
        if kind.kind in (BOOL, TEXT) or kind.words:
            return replace(value, fact=replace(fact, type=kind))
        bounds = replace(kind, low=own_type.low * by, high=own_type.high * by)
        return replace(value, fact=replace(fact, type=bounds))

    def _select_value(
        self, condition: Bit, then: ColumnValue, other: ColumnValue, kind: ColumnType
    ) -> ColumnValue:
        fact = ColumnFact(kind, True)
        if isinstance(condition, bool):
            return replace(then if condition else other, fact=fact)
        party = self._party
        if kind.kind == BOOL:
            data = self._select_bits(condition, then.data, other.data)
        else:
            difference = arithmetic.sub(then.data, other.data)
            data = arithmetic.add(other.data, bits.multiply_by_bit(party, condition, difference))
        null: Bit
        if isinstance(then.null, bool) and isinstance(other.null, bool) and then.null == other.null:
            null = then.null
        else:
            null = self._select_bits(
                condition, self.as_shared(then.null), self.as_shared(other.null)
            )
        return ColumnValue(data, null, fact)

    def _select_bits(self, condition: Shared, then: Shared, other: Shared) -> Shared:
        changed = bits.all_of(self._party, [condition, bits.xor(then, other)])
        return bits.xor(other, changed)

    def _compute_case(self, fact: ColumnFact, rest: Sequence[Expression]) -> ColumnValue:
        kind = fact.value_type
        result = self._cast_to(rest[-1], kind)
        for i in reversed(range(0, len(rest) - 1, 2)):
            condition = self.compute_truth(rest[i])
            result = self._select_value(condition, self._cast_to(rest[i + 1], kind), result, kind)
        return replace(result, fact=fact)

    def _compute_coalesce(self, fact: ColumnFact, rest: Sequence[Expression]) -> ColumnValue:
        kind = fact.value_type
        result = self._cast_to(rest[-1], kind)
        for each in reversed(rest[:-1]):
            value = self._cast_to(each, kind)
            result = self._select_value(
                self._invert_bit(value.null), replace(value, null=False), result, kind
            )
        return replace(result, fact=fact)

    def _compute_number(
        self, name: str, fact: ColumnFact, values: Sequence[ColumnValue]
    ) -> tuple[Shared, Bit]:
        """Compute a number, and the bits of rows where it is NULL although its
        operands are not.
        """
        party, kind = self._party, fact.value_type
        data = [value.data for value in values]
        types = [value.fact.value_type for value in values]
        match name:
            case "+" | "-":
                x, y = (
                    arithmetic.mul_public(d, np.int64(kind.denominator // t.denominator))
                    for d, t in zip(data, types, strict=True)
                )
                return (arithmetic.add if name == "+" else arithmetic.sub)(x, y), False
            case "*":
                known = [value.fact.constant for value in values]
                if known[0] is not None:
                    product = arithmetic.mul_public(data[1], np.int64(known[0]))
                elif known[1] is not None:
                    product = arithmetic.mul_public(data[0], np.int64(known[1]))
                else:
                    product = arithmetic.mul(party, *data)
                whole = replace(kind, fraction=types[0].fraction + types[1].fraction)
                if drop := dropped_bits(whole):
                    product = self._truncate_bits(product, drop)
                return product, False
            case "neg":
                return arithmetic.neg(data[0]), False
            case "abs":
                if types[0].low >= 0:
                    return data[0], False
                below = bits.from_masked(
                    party, relational.is_negative(party, data[0], types[0].bits + 1)
                )
                twice = arithmetic.mul_public(
                    bits.multiply_by_bit(party, below, data[0]), np.int64(2)
                )
                return arithmetic.sub(data[0], twice), False
            case "least" | "greatest":
                return self._compute_extreme(name, kind, values), False
            case "to_timestamp":
                return arithmetic.mul_public(data[0], np.int64(units_per_day("s"))), False
            case "to_date":
                return timestamps_to_days(party, data[0], types[0]), False
            case "real":
                return multiply_by_public_ratio(party, data[0], types[0], Fraction(1)), False
            case "/":
                ratio = public_reciprocal(values[1].fact)
                if ratio is not None:
                    return multiply_by_public_ratio(party, data[0], types[0], ratio), False
                top = Fraction(types[1].denominator)
                x = multiply_by_public_ratio(party, data[0], types[0], top)
                bound = ratio_type(types[0], top)
                zero: Bit = False
                if types[1].low == 0:
                    is_zero = relational.equal(
                        party, data[1], data[1].map(lambda a: 0 * a), types[1].bits + 1
                    )
                    zero = bits.from_masked(party, is_zero)
                return divide_bounded_columns(
                    party, x, data[1], bound.magnitude, types[1].high
                ), zero
            case _:
                return self._date_part(name, types[0], data[0]), False

    def _truncate_bits(self, x: Shared, drop: int) -> Shared:
        short = truncation.truncate(self._party, replace(x, fractional_bits=drop), drop)
        return replace(short, fractional_bits=0)

    def _compute_extreme(
        self, name: str, kind: ColumnType, values: Sequence[ColumnValue]
    ) -> Shared:
        def scale_value(value: ColumnValue) -> Shared:
            by = column_scale_factor(value.fact.value_type, kind)
            return arithmetic.mul_public(value.data, np.int64(by))

        width = case_result_type([value.fact for value in values]).bits
        of_two: Callable[[Party, Shared, Shared], Shared]
        if width == _WORD:  # differences may take 65 bits
            of_two = full_range.minimum if name == "least" else full_range.maximum
        else:
            narrow = relational.minimum if name == "least" else relational.maximum
            of_two = functools.partial(narrow, bits=min(_WORD, width + 2))
        return functools.reduce(functools.partial(of_two, self._party), map(scale_value, values))

    def _date_part(self, name: str, kind: ColumnType, days: Shared) -> Shared:
        """Compute the year or month of a date: the number of first days of years or
        months up to it.
        """
        from tfe_bench.queries.types import days_to_date

        first = days_to_date(kind.low)
        years = self._count_passed(days, kind, first_days(kind, monthly=False))
        if name == "year":
            return arithmetic.add_constant(years, np.int64(first.year))
        months = self._count_passed(days, kind, first_days(kind, monthly=True))
        within = arithmetic.sub(months, arithmetic.mul_public(years, np.int64(12)))
        return arithmetic.add_constant(within, np.int64(first.month))

    def _count_passed(self, days: Shared, kind: ColumnType, cuts: Sequence[int]) -> Shared:
        if not cuts:
            return days.map(lambda a: 0 * a)
        n = int(days.shape[0])
        table = shapes.broadcast_to(shapes.expand_dims(days, 1), [n, len(cuts)])
        less = arithmetic.add_constant(table, -np.array([cuts], np.int64))
        below = relational.is_negative(self._party, shapes.reshape(less, [-1]), kind.bits + 2)
        one = bits.to_number(self._party, bits.invert(bits.from_masked(self._party, below)))

        def sum_rows(a: Any) -> Any:
            from tfe_bench.protocols.session import tensor_ops

            return tensor_ops.reduce_sum(tensor_ops.reshape(a, [n, len(cuts)]), [1], False)

        return one.map(sum_rows)


def _decide_comparison(name: str, one: ColumnType, two: ColumnType) -> bool | None:
    """Return the public result of a comparison if the bounds of both sides determine
    it, else None.
    """
    if one.low == one.high == two.low == two.high:
        return name in ("=", ">=")
    if one.high < two.low:
        return name in ("<", "<>")
    if one.low > two.high:
        return name in (">=", "<>")
    if one.low >= two.high and name in ("<", ">="):
        return name == ">="
    return None

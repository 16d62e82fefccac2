"""Type inference: the public fact of a checked expression, given the columns that it names.

Interval arithmetic on the declared ranges of columns bounds every result, so that none exceeds the
range of its comparison or word; an expression that cannot be shown to fit is refused.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction

from tfe_bench.cluster.stored import Source
from tfe_bench.errors import UsageError, did_you_mean
from tfe_bench.queries.column_facts import (
    ColumnFact,
    case_result_type,
    common_column_type,
    greatest_or_least_type,
    rescale_bounds,
)
from tfe_bench.queries.plan_syntax import COMPARISONS, Expression
from tfe_bench.queries.types import (
    BITS,
    DATE,
    FRACTION,
    HASHES,
    NUMBER,
    TIMESTAMP,
    ColumnType,
    category_type,
    days_to_date,
    int_column_type,
    parse_date,
    rescaled_column_type,
    units_per_day,
)

# Bits of a private divisor.
MAX_DIVISOR = 24
# Fractional bits that a product keeps.
_MAX_FRACTION = 24
# Bits of a number that is multiplied by a ratio.
MAX_INEXACT = 44
# Comparisons of one row for EXTRACT.
_MAX_CUTS = 300


Facts = Mapping[str, ColumnFact]


def infer_expression_fact(expression: Expression, columns: Facts) -> ColumnFact:
    """Infer the fact of a checked expression.

    Raises:
        UsageError: an unknown column, incompatible operands, or values that may exceed 62 bits.
    """
    name, *rest = expression
    if name in _CONSTANTS:
        return _CONSTANTS[name](*rest)
    if name == "col":
        if rest[0] not in columns:
            raise UsageError(
                f"There is no column {rest[0][:80]!r}.{did_you_mean(rest[0], columns)}",
                code="column-not-found",
            )
        return columns[rest[0]]
    facts = [infer_expression_fact(each, columns) for each in rest]
    sources = frozenset[Source]().union(*(fact.sources for fact in facts))
    nullable = any(fact.nullable for fact in facts)
    if name in ("and", "or", "not"):
        for fact in facts:
            if fact.type not in (BITS, None):
                raise UsageError(
                    f"{name.upper()} takes conditions. Received: a {fact.type}.",
                    code="type-mismatch",
                )
        return ColumnFact(BITS, nullable, sources)
    if name == "is_null":
        return ColumnFact(BITS, False, sources)
    if name in COMPARISONS or name == "in":
        for other in facts[1:]:
            common_column_type(facts[0], other, ordered=name in ("<", "<=", ">", ">="))
        return ColumnFact(BITS, nullable, sources)
    if name == "case":
        for condition in facts[:-1:2]:
            if condition.type not in (BITS, None):
                raise UsageError(
                    f"CASE takes conditions. Received: a {condition.type}.", code="type-mismatch"
                )
        values = [*facts[1:-1:2], facts[-1]]
        result_type = case_result_type(values)
        return ColumnFact(result_type, any(v.nullable for v in values), sources)
    if name == "coalesce":
        return ColumnFact(case_result_type(facts), all(f.nullable for f in facts), sources)
    if name in ("least", "greatest"):  # (both skip NULLs in DuckDB)
        result_type = case_result_type(facts)
        if not result_type.ordered:
            raise UsageError("LEAST and GREATEST take ordered types.", code="unordered-type")
        if nullable:
            raise UsageError(
                "LEAST and GREATEST take no nullable columns. Use CASE.", code="nullable-column"
            )
        return ColumnFact(greatest_or_least_type(name, facts, result_type), nullable, sources)
    if name in ("year", "month"):
        return ColumnFact(_infer_date_part(name, facts[0]), nullable, sources)
    if name in ("to_date", "to_timestamp"):
        return replace(_infer_timestamp_cast(name, facts[0]), nullable=nullable, sources=sources)
    result_fact = _infer_sql_arithmetic(name, facts)
    private = [fact for fact in facts if fact.constant is None]
    affine = len(private) == 1 and private[0].affine and _is_exact_sql_arithmetic(name, facts)
    return replace(
        result_fact, nullable=nullable or result_fact.nullable, sources=sources, affine=affine
    )


def _is_exact_sql_arithmetic(name: str, facts: Sequence[ColumnFact]) -> bool:
    """Return whether arithmetic on one private operand is exactly a * x + b in every row."""
    one = facts[0].value_type
    match name:
        case "+" | "-" | "neg":
            return True
        case "*":
            fraction = sum(fact.value_type.fraction for fact in facts)
            return not dropped_bits(replace(one, fraction=fraction))
        case "real" | "/":
            ratio = Fraction(1) if name == "real" else public_reciprocal(facts[1])
            if ratio is None:
                return False
            by = ratio * (1 << FRACTION) / one.denominator
            return by.denominator == 1
    return False


def _infer_sql_arithmetic(name: str, facts: Sequence[ColumnFact]) -> ColumnFact:
    types = []
    for fact in facts:
        kind = fact.value_type
        if kind.kind not in (NUMBER, DATE) or (kind.kind == DATE and name not in ("+", "-")):
            raise UsageError(f"{name} takes numbers. Received: a {kind}.", code="type-mismatch")
        types.append(kind)
    one = types[0]
    if name in ("neg", "abs"):
        low, high = -one.high, -one.low
        if name == "abs":
            low, high = (
                (0, one.magnitude)
                if one.low < 0 < one.high
                else (
                    min(abs(one.low), abs(one.high)),
                    one.magnitude,
                )
            )
        constant = facts[0].constant
        if constant is not None:
            constant = -constant if name == "neg" else abs(constant)
        return ColumnFact(
            rescaled_column_type(one, low, high, one.digits, one.fraction), constant=constant
        )
    if name == "real":
        return ColumnFact(ratio_type(one, Fraction(1)))
    if name == "/":
        return _infer_quotient(facts)
    two = types[1]
    if DATE in (one.kind, two.kind):
        return _infer_date_sum(name, one, two, facts)
    digits, fraction = max(one.digits, two.digits), max(one.fraction, two.fraction)
    if name == "*":
        digits, fraction = one.digits + two.digits, one.fraction + two.fraction
        edges = [x * y for x in (one.low, one.high) for y in (two.low, two.high)]
        kind = rescaled_column_type(one, min(edges), max(edges), digits, fraction)
        constant = _fold_sql_constants(facts, lambda x, y: x * y)
        if constant is None and (drop := dropped_bits(kind)):
            kind = rescaled_column_type(
                one, (kind.low >> drop) - 1, (kind.high >> drop) + 2, digits, FRACTION
            )
        return ColumnFact(kind, constant=constant)
    (low, high), (first, last) = (
        rescale_bounds((t.low, t.high), t, digits, fraction) for t in (one, two)
    )
    if name == "-":
        first, last = -last, -first
    kind = rescaled_column_type(one, low + first, high + last, digits, fraction)
    sign = 1 if name == "+" else -1
    by = [kind.denominator // t.denominator for t in types]
    return ColumnFact(
        kind, constant=_fold_sql_constants(facts, lambda x, y: x * by[0] + sign * y * by[1])
    )


def dropped_bits(product: ColumnType) -> int:
    """Return the number of fractional bits that a private product loses."""
    return product.fraction - FRACTION if product.fraction > _MAX_FRACTION else 0


def _fold_sql_constants(
    facts: Sequence[ColumnFact], function: Callable[[int, int], int]
) -> int | None:
    x, y = (fact.constant for fact in facts)
    return None if x is None or y is None else function(x, y)


def _infer_date_sum(
    name: str, one: ColumnType, two: ColumnType, facts: Sequence[ColumnFact]
) -> ColumnFact:
    """Infer a date plus or minus days, or the days between two dates."""
    kinds = (one.kind, two.kind)
    days = [t for t in (one, two) if t.kind == NUMBER]
    if any(t.denominator != 1 for t in days) or kinds not in (
        (DATE, NUMBER),
        *([(NUMBER, DATE)] if name == "+" else [(DATE, DATE)]),
    ):
        raise UsageError("Expected date + days, date - days, or date - date.", code="type-mismatch")
    sign = 1 if name == "+" else -1
    low, high = (one.low + two.low, one.high + two.high)
    if sign < 0:
        low, high = one.low - two.high, one.high - two.low
    constant = _fold_sql_constants(facts, lambda x, y: x + sign * y)
    if kinds == (DATE, DATE):
        return ColumnFact(int_column_type(low, high), constant=constant)
    if not -(10**6) <= low <= high <= 10**6:
        raise UsageError("A date plus days leaves the supported years.", code="number-out-of-range")
    return ColumnFact(ColumnType(DATE, low, high), constant=constant)


def ratio_type(kind: ColumnType, ratio: Fraction) -> ColumnType:
    """Return the type of a number times a public ratio: fixed(16) with an error of at most 2 ulp.

    Raises:
        UsageError: the result does not fit.
    """
    by = ratio * (1 << FRACTION) / kind.denominator
    if by.denominator != 1 and kind.magnitude.bit_length() > MAX_INEXACT:
        raise UsageError(
            f"A dividend has at most {MAX_INEXACT} bits. Received: "
            f"{kind.magnitude.bit_length()}. Declare a narrower range, as int[0,120].",
            code="value-too-wide",
        )
    edges = sorted(int(edge * by) for edge in (kind.low, kind.high))
    return rescaled_column_type(kind, edges[0] - 2, edges[1] + 2, 0, FRACTION)


def public_reciprocal(fact: ColumnFact) -> Fraction | None:
    """Return the reciprocal of a public divisor; None for a private one.

    Raises:
        UsageError: the divisor is 0.
    """
    if fact.constant is None:
        return None
    if fact.constant == 0:
        raise UsageError("A division by 0.", code="division-by-zero")
    return Fraction(fact.value_type.denominator, fact.constant)


def _infer_quotient(facts: Sequence[ColumnFact]) -> ColumnFact:
    one, two = facts[0].value_type, facts[1].value_type
    ratio = public_reciprocal(facts[1])
    if ratio is not None:
        return ColumnFact(ratio_type(one, ratio))
    if two.low < 0:
        raise UsageError(
            "A private divisor may not be negative. Declare a range from 0, as int[0,1000].",
            code="negative-divisor",
        )
    if two.high >> MAX_DIVISOR:
        raise UsageError(
            f"A private divisor has at most {MAX_DIVISOR} bits. Received: "
            f"{two.high.bit_length()}. Declare a narrower range.",
            code="divisor-too-wide",
        )
    top = ratio_type(one, Fraction(two.denominator))
    if top.magnitude >> 60:
        raise UsageError(
            "A numerator has at most 60 bits. Declare a narrower range.", code="value-too-wide"
        )
    return ColumnFact(
        replace(top, low=min(top.low, -1), high=max(top.high, 1)), nullable=two.low == 0
    )


def _infer_timestamp_cast(name: str, fact: ColumnFact) -> ColumnFact:
    """Infer the date of a timestamp, or the midnight of a date."""
    kind, constant = fact.value_type, fact.constant
    expected_kind = TIMESTAMP if name == "to_date" else DATE
    if kind.kind != expected_kind:
        raise UsageError(
            f"{name} takes a {expected_kind}. Received: a {kind}.", code="type-mismatch"
        )
    if name == "to_date":
        day = units_per_day(kind.unit)
        result_type = ColumnType(DATE, kind.low // day, kind.high // day)
        return ColumnFact(result_type, constant=None if constant is None else constant // day)
    day = units_per_day("s")
    result_type = ColumnType(TIMESTAMP, kind.low * day, kind.high * day, unit="s")
    return ColumnFact(result_type, constant=None if constant is None else constant * day)


def _infer_date_part(name: str, fact: ColumnFact) -> ColumnType:
    if fact.value_type.kind != DATE:
        raise UsageError(
            f"{name} takes a date. Received: a {fact.value_type}.", code="type-mismatch"
        )
    first, last = (days_to_date(day).year for day in (fact.value_type.low, fact.value_type.high))
    count = (last - first) * (12 if name == "month" else 1)
    if count > _MAX_CUTS:
        raise UsageError(
            f"EXTRACT({name}) of dates from {first} to {last} takes {count} comparisons; at "
            f"most {_MAX_CUTS} are supported. Declare a narrower range, as "
            "date[2015-01-01,2025-12-31].",
            code="too-large",
        )
    return int_column_type(first, last) if name == "year" else int_column_type(1, 12)


def first_days(kind: ColumnType, monthly: bool) -> list[int]:
    """Return the first days of years or months that begin after a type's lowest date."""
    low, high = days_to_date(kind.low), days_to_date(kind.high)
    days = []
    for year in range(low.year, high.year + 1):
        for month in range(1, 13) if monthly else (1,):
            day = parse_date(datetime.date(year, month, 1).isoformat())
            if kind.low < day <= kind.high:
                days.append(day)
    return days


def _int_constant(value: int) -> ColumnFact:
    return ColumnFact(int_column_type(value, value), constant=value)


def _decimal_constant(value: int, digits: int) -> ColumnFact:
    return ColumnFact(ColumnType(NUMBER, value, value, digits), constant=value)


def _word_constant(word: str) -> ColumnFact:
    return ColumnFact(category_type((word,)), constant=0)


_CONSTANTS: Mapping[str, Callable[..., ColumnFact]] = {
    "int": _int_constant,
    "decimal": _decimal_constant,
    "fixed": lambda value, fraction: ColumnFact(
        ColumnType(NUMBER, value, value, fraction=fraction), constant=value
    ),
    "bool": lambda value: ColumnFact(BITS, constant=int(value)),
    "date": lambda days: ColumnFact(ColumnType(DATE, days, days), constant=days),
    "timestamp": lambda value, unit: ColumnFact(
        ColumnType(TIMESTAMP, value, value, unit=unit), constant=value
    ),
    "word": _word_constant,
    "text": lambda value: ColumnFact(HASHES, constant=value),
    "null": lambda: ColumnFact(None, True),
}

"""Type inference: the public fact of a checked expression, given the columns that it names.

Interval arithmetic on the declared ranges of columns bounds every result, so that none exceeds the
range of its comparison or word; an expression that cannot be shown to fit is refused.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from tfe_bench.cluster.stored import Source
from tfe_bench.errors import UsageError, did_you_mean
from tfe_bench.queries.plan import COMPARISONS, Expression
from tfe_bench.queries.types import (
    BITS,
    CATEGORY,
    DATE,
    FRACTION,
    HASHES,
    NUMBER,
    TIMESTAMP,
    UNITS,
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


@dataclass(frozen=True)
class ColumnFact:
    """Public fact about a column or an expression.

    Attributes:
        type: its type; None for NULL itself.
        nullable: whether rows may be NULL.
        sources: table columns that its values depend on.
        affine: whether it is exactly a * x + b for one table column x and public a and b; rounding
            of single rows depends on more than the column's sum.
        constant: the element of all rows; None: it is private.
    """

    type: ColumnType | None
    nullable: bool = False
    sources: frozenset[Source] = frozenset()
    affine: bool = False
    constant: int | None = None

    @property
    def is_word(self) -> bool:
        """True for a literal word."""
        return self.type is not None and self.type.kind == CATEGORY and self.constant is not None

    @property
    def value_type(self) -> ColumnType:
        """Type of the expression.

        Raises:
            UsageError: the expression is NULL alone.
        """
        if self.type is None:
            raise UsageError(
                "NULL needs another value that determines its type.", code="untyped-null"
            )
        return self.type


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
        return ColumnFact(_greatest_or_least_type(name, facts, result_type), nullable, sources)
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


def common_column_type(a: ColumnFact, b: ColumnFact, ordered: bool = False) -> ColumnType:
    """Return the type in which two values are compared or replace each other.

    Raises:
        UsageError: no common type exists, or it has no order although one is required.
    """
    if a.type is None or b.type is None:
        return (a if b.type is None else b).value_type
    one, two = a.type, b.type
    if one.kind != two.kind:
        raise UsageError(f"Expected one type. Received: {one} and {two}.", code="type-mismatch")
    if ordered and not one.ordered:
        raise UsageError("Texts have no order; a category has one.", code="unordered-type")
    match one.kind:
        case "number":
            digits, fraction = max(one.digits, two.digits), max(one.fraction, two.fraction)
            (low, high), (first, last) = (
                _rescale_bounds((t.low, t.high), t, digits, fraction) for t in (one, two)
            )
            if digits or fraction:
                return rescaled_column_type(one, min(low, first), max(high, last), digits, fraction)
            return int_column_type(min(low, first), max(high, last))
        case "category":
            return _common_category(a, b)
        case "timestamp":
            finer = max((one, two), key=lambda t: UNITS[t.unit])
            bounds = [
                edge * (UNITS[finer.unit] // UNITS[t.unit])
                for t in (one, two)
                for edge in (t.low, t.high)
            ]
            return replace(finer, low=min(bounds), high=max(bounds))
        case _:
            return replace(one, low=min(one.low, two.low), high=max(one.high, two.high))


def _common_category(a: ColumnFact, b: ColumnFact) -> ColumnType:
    one, two = a.value_type, b.value_type
    if a.constant is not None or b.constant is not None:
        word, listed = (one, two) if a.constant is not None else (two, one)
        if word.words[0] not in listed.words:
            raise UsageError(
                f"{word.words[0][:40]!r} is not a word of the "
                f"category.{did_you_mean(word.words[0], listed.words)} Known: "
                f"{', '.join(listed.words[:10])}.",
                code="unknown-word",
            )
        return listed
    if one.words != two.words:
        first = next(
            (i for i, (x, y) in enumerate(zip(one.words, two.words, strict=False)) if x != y),
            min(len(one.words), len(two.words)),
        )
        raise UsageError(
            f"Two categories have different words from number {first + 1} on.",
            code="category-mismatch",
        )
    return one


def constant_column_element(fact: ColumnFact, kind: ColumnType) -> int:
    """Return a constant's element in a `common_column_type`."""
    assert fact.constant is not None and fact.type is not None
    if kind.kind == CATEGORY and fact.type.words != kind.words:
        return kind.words.index(fact.type.words[0])
    return fact.constant * column_scale_factor(fact.type, kind)


def column_scale_factor(kind: ColumnType, target: ColumnType) -> int:
    """Return the factor that converts elements to a `common_column_type`."""
    if kind.kind == TIMESTAMP:
        return UNITS[target.unit] // UNITS[kind.unit]
    return target.denominator // kind.denominator


def _rescale_bounds(
    bounds: Sequence[int], kind: ColumnType, digits: int, fraction: int
) -> tuple[int, int]:
    by = int(10 ** (digits - kind.digits) << (fraction - kind.fraction))
    return bounds[0] * by, bounds[1] * by


def _greatest_or_least_type(name: str, facts: Sequence[ColumnFact], kind: ColumnType) -> ColumnType:
    """Return a type with the bounds of LEAST or GREATEST: a least value is at most the smallest
    upper bound.
    """
    if kind.words:
        return kind
    bounds = []
    for fact in facts:
        value_type = fact.value_type
        if fact.constant is not None:
            bounds.append((constant_column_element(fact, kind),) * 2)
        else:
            factor = column_scale_factor(value_type, kind)
            bounds.append((value_type.low * factor, value_type.high * factor))
    of = min if name == "least" else max
    low, high = (of(edges) for edges in zip(*bounds, strict=True))
    return replace(kind, low=low, high=high)


def case_result_type(facts: Sequence[ColumnFact]) -> ColumnType:
    """Return the type of a choice among values; literal words alone form a category in sorted
    order.

    Raises:
        UsageError: no common type exists.
    """
    words = {w for f in facts if f.type is not None for w in f.type.words}
    if len(words) > 1 and all(f.type is None or f.is_word for f in facts):
        return category_type(tuple(sorted(words)))
    choice = ColumnFact(None)
    for fact in facts:
        kind = common_column_type(choice, fact)
        # a lone word stays a constant and takes its code from the other category
        constant = fact.constant if kind.kind == CATEGORY and len(kind.words) == 1 else None
        choice = ColumnFact(kind, constant=constant)
    return choice.value_type


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
        _rescale_bounds((t.low, t.high), t, digits, fraction) for t in (one, two)
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

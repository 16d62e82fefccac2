"""Public facts about columns, and the types that several of them have in common."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tfe_bench.cluster.stored import Source
from tfe_bench.errors import UsageError, did_you_mean
from tfe_bench.queries.types import (
    CATEGORY,
    TIMESTAMP,
    UNITS,
    ColumnType,
    category_type,
    int_column_type,
    rescaled_column_type,
)


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
                rescale_bounds((t.low, t.high), t, digits, fraction) for t in (one, two)
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


def rescale_bounds(
    bounds: Sequence[int], kind: ColumnType, digits: int, fraction: int
) -> tuple[int, int]:
    """Convert bounds of a type to elements with more digits or fractional bits."""
    by = int(10 ** (digits - kind.digits) << (fraction - kind.fraction))
    return bounds[0] * by, bounds[1] * by


def greatest_or_least_type(name: str, facts: Sequence[ColumnFact], kind: ColumnType) -> ColumnType:
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

"""Groups and aggregates: bounds on the number of groups, and types of aggregates."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from tfe_bench.errors import UsageError
from tfe_bench.queries.column_facts import ColumnFact
from tfe_bench.queries.expressions import MAX_DIVISOR, ratio_type
from tfe_bench.queries.plan_syntax import PARTS, parse_quantile
from tfe_bench.queries.types import (
    BOOL,
    CATEGORY,
    NUMBER,
    TEXT,
    ColumnType,
    int_column_type,
    rescaled_column_type,
)

# Groups whose values are summed without a sort.
MAX_DENSE = 32
# Groups that are all released, with or without rows.
MAX_RELEASED = 1024
# Rows of quantiles.
_MAX_QUANTILE_ROWS = 1 << 24
# Bits of a value together with the number of its partition.
_MAX_WINDOW_BITS = 59


def public_code_group_count(keys: Sequence[ColumnFact], functions: Sequence[str]) -> int:
    """Return the number of groups by public codes; 0 if rows are sorted into groups."""
    count = public_key_combination_count(keys)
    ranked = {"min", "max"} & set(functions) or any(map(parse_quantile, functions))
    return count if count <= MAX_DENSE and not ranked else 0


def public_key_combination_count(keys: Sequence[ColumnFact]) -> int:
    """Return the number of combinations of the keys' public codes; 0 for other keys or above
    MAX_RELEASED.
    """
    count = 1
    for fact in keys:
        if fact.value_type.kind not in (CATEGORY, BOOL) or fact.nullable:
            return 0
        count *= fact.value_type.high + 1
    return count if keys and count <= MAX_RELEASED else 0


def max_group_count(keys: Sequence[ColumnFact], rows: int) -> int:
    """Return the largest possible number of groups, by the number of rows and the
    ranges of the keys.
    """
    count = 1
    for fact in keys:
        kind = fact.value_type
        values = rows if kind.kind == TEXT else kind.high - kind.low + 1 + fact.nullable
        count = min(rows, count * values)
    return count


def aggregate_fact(function: str, fact: ColumnFact | None, rows: int, keys: bool) -> ColumnFact:
    """Infer the fact about an aggregate.

    Args:
        fact: fact about its argument; None: it counts rows.
        rows: number of rows of the grouped relation.
        keys: whether there are keys; then every group has a row.

    Raises:
        UsageError: it does not take such an argument, or a value may be too large.
    """
    if function == "count":
        return ColumnFact(
            int_column_type(0, rows), False, frozenset() if fact is None else fact.sources
        )
    assert fact is not None
    kind, nullable = fact.value_type, fact.nullable or not keys
    if function in ("min", "max"):
        if not kind.ordered:
            raise UsageError(
                "MIN and MAX take values of an ordered type; texts have no order.",
                code="unordered-type",
                operation=function,
            )
        return ColumnFact(kind, nullable, fact.sources)
    quantile = parse_quantile(function)
    if quantile and rows > _MAX_QUANTILE_ROWS:
        raise UsageError(
            f"Quantiles take at most {_MAX_QUANTILE_ROWS} rows. Received: {rows}.",
            code="too-large",
            operation=function,
            received=rows,
        )
    if quantile and quantile[0] == "quantile_disc":
        if not kind.ordered or kind.kind == BOOL:
            raise UsageError(
                f"QUANTILE_DISC takes values of an ordered type. Received: a {kind}.",
                code="unordered-type",
                operation=function,
                received=kind,
            )
        return ColumnFact(kind, nullable, fact.sources)
    if kind.kind != NUMBER:
        function = function.partition(":")[0]
        raise UsageError(
            f"{function.upper()} takes numbers. Received: a {kind}.",
            code="type-mismatch",
            operation=function,
            received=kind,
        )
    if quantile:  # in thousandths of the distance between two values
        bounds = kind.low * PARTS, kind.high * PARTS
        return ColumnFact(
            rescaled_column_type(kind, *bounds, kind.digits + 3, kind.fraction),
            nullable,
            fact.sources,
        )
    low, high = min(0, kind.low * rows), max(0, kind.high * rows)
    total = rescaled_column_type(kind, low, high, kind.digits, kind.fraction)
    if function == "sum":
        return ColumnFact(total, nullable, fact.sources)
    if total.magnitude >> 60 or rows >> MAX_DIVISOR:
        raise UsageError(
            "AVG takes sums below 2^60 of fewer than 2^24 rows. Declare a range.",
            code="value-too-wide",
            operation="avg",
        )
    return ColumnFact(ratio_type(kind, Fraction(1)), nullable, fact.sources)


def check_window_extreme(kind: ColumnType, rows: int) -> None:
    """Reject MIN or MAX over a window that would not be correct.

    Raises:
        UsageError: a column of bools, or one too wide for a comparison behind the number of a
            partition.
    """
    max_bits = _MAX_WINDOW_BITS - rows.bit_length()
    if kind.kind == BOOL or kind.width > max_bits:
        raise UsageError(
            f"MIN and MAX OVER take columns of at most {max_bits} bits among {rows} rows, and "
            f"no bools. Received: a {kind} of {kind.width} bits. Declare a narrower range, as "
            "int[0,120].",
            code="value-too-wide",
            operation="over",
            received=kind.width,
            expected=max_bits,
        )

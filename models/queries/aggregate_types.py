"""Groups and aggregates: how many groups there may be, and what types aggregates have."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from tfe_bench.errors import UsageError
from tfe_bench.models.queries.expressions import MAX_DIVISOR, Fact, ratio_type
from tfe_bench.models.queries.plan import PARTS, parse_quantile
from tfe_bench.models.queries.types import BOOL, CATEGORY, NUMBER, TEXT, Type, int_type, scaled_type

# Groups whose values are added up without a sort.
MAX_DENSE = 32
# Groups that are all told of, of a row or not.
MAX_RELEASED = 1024
# Rows that quantiles are taken of.
_MAX_QUANTILE_ROWS = 1 << 24
# Bits of a value and of the number of a partition.
_MAX_WINDOW_BITS = 59


def dense_group_count(keys: Sequence[Fact], functions: Sequence[str]) -> int:
    """How many groups public codes make; 0 where rows are sorted to group them."""
    count = public_group_count(keys)
    ranked = {"min", "max"} & set(functions) or any(map(parse_quantile, functions))
    return count if count <= MAX_DENSE and not ranked else 0


def public_group_count(keys: Sequence[Fact]) -> int:
    """How many combinations of public codes keys have; 0: of others, or of more than MOST_TOLD."""
    count = 1
    for fact in keys:
        if fact.value_type.kind not in (CATEGORY, BOOL) or fact.nullable:
            return 0
        count *= fact.value_type.high + 1
    return count if keys and count <= MAX_RELEASED else 0


def max_group_count(keys: Sequence[Fact], rows: int) -> int:
    """How many groups of so many rows there are at most, by the ranges of the keys."""
    count = 1
    for fact in keys:
        kind = fact.value_type
        values = rows if kind.kind == TEXT else kind.high - kind.low + 1 + fact.nullable
        count = min(rows, count * values)
    return count


def aggregate_fact(function: str, fact: Fact | None, rows: int, keys: bool) -> Fact:
    """The fact about an aggregate.

    Args:
        fact: about its argument; None: rows are counted.
        rows: of the relation that is grouped.
        keys: whether there are any: then no group has no row.

    Raises:
        UsageError: it does not take such an argument, or a value may be too large.
    """
    if function == "count":
        return Fact(int_type(0, rows), False, frozenset() if fact is None else fact.sources)
    assert fact is not None
    kind, nullable = fact.value_type, fact.nullable or not keys
    if function in ("min", "max"):
        if not kind.ordered:
            raise UsageError("MIN and MAX take what has an order; a text has none.")
        return Fact(kind, nullable, fact.sources)
    quantile = parse_quantile(function)
    if quantile and rows > _MAX_QUANTILE_ROWS:
        raise UsageError(f"Quantiles are of {_MAX_QUANTILE_ROWS} rows at most. Received: {rows}.")
    if quantile and quantile[0] == "quantile_disc":
        if not kind.ordered or kind.kind == BOOL:
            raise UsageError(f"QUANTILE_DISC takes what has an order. Received: a {kind}.")
        return Fact(kind, nullable, fact.sources)
    if kind.kind != NUMBER:
        function = function.partition(":")[0]
        raise UsageError(f"{function.upper()} takes numbers. Received: a {kind}.")
    if quantile:  # in thousandths of what lies between two values
        bounds = kind.low * PARTS, kind.high * PARTS
        return Fact(
            scaled_type(kind, *bounds, kind.digits + 3, kind.fraction), nullable, fact.sources
        )
    low, high = min(0, kind.low * rows), max(0, kind.high * rows)
    total = scaled_type(kind, low, high, kind.digits, kind.fraction)
    if function == "sum":
        return Fact(total, nullable, fact.sources)
    if total.magnitude >> 60 or rows >> MAX_DIVISOR:
        raise UsageError("AVG takes sums below 2^60 of fewer than 2^24 rows. Declare a range.")
    return Fact(ratio_type(kind, Fraction(1)), nullable, fact.sources)


def check_window_extreme(kind: Type, rows: int) -> None:
    """Refuses a least or largest value of a window that would not be right.

    Raises:
        UsageError: a column of bools, or one too wide to be compared with the number of a partition
            in front.
    """
    max_bits = _MAX_WINDOW_BITS - rows.bit_length()
    if kind.kind == BOOL or kind.width > max_bits:
        raise UsageError(
            f"MIN and MAX OVER take columns of at most {max_bits} bits among {rows} rows, and no "
            f"bools. Received: a {kind} of {kind.width} bits. Declare a narrower range, as "
            "int[0,120]."
        )

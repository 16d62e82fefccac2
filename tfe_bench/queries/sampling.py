"""TABLESAMPLE of SQL: compile it to the fields of a step `sample` of a plan."""

from __future__ import annotations

from decimal import Decimal, InvalidOperation
from typing import Any

from tfe_bench.errors import UsageError
from tfe_bench.queries.accepted import unsupported_sql_error

# Parts of a percentage; more digits are refused.
_PARTS = 10_000
_MAX_ROWS = 1 << 31


def parse_sample(node: Any) -> dict[str, int]:
    """Parse a TABLESAMPLE; return the fields of a step that draws rows in the same way.

    Raises:
        UsageError: the method is not supported, or the size is invalid.
    """
    method = str(getattr(node.args.get("method"), "name", "")).upper()
    if method != "RESERVOIR":  # (SYSTEM draws blocks of a file; BERNOULLI each row on its own)
        raise unsupported_sql_error(
            f"TABLESAMPLE {method}; write TABLESAMPLE RESERVOIR(10 PERCENT), which"
        )
    percent = node.args.get("percent")
    size = _parse_size(node.args.get("size") if percent is None else percent)
    if percent is None:
        if size > _MAX_ROWS or size != int(size):
            raise _invalid_size_error(f"a whole number of rows up to {_MAX_ROWS}", size)
        return {"count": int(size)}
    parts = size * _PARTS
    if size > 100 or parts != int(parts):
        raise _invalid_size_error("a percentage of 0 to 100 with at most four decimals", size)
    return {"parts": int(parts)}


def _parse_size(node: Any) -> Decimal:
    expected = "a public number of rows, or a percentage"
    if getattr(node, "is_string", True):  # (also of nodes other than literals)
        raise _invalid_size_error(expected, node)
    try:
        size = Decimal(str(node.this))
    except InvalidOperation:
        raise _invalid_size_error(expected, node) from None
    if not size.is_finite() or size < 0:
        raise _invalid_size_error(expected, node)
    return size


def _invalid_size_error(expected: str, received: object) -> UsageError:
    shown = str(received)[:40]
    return UsageError(
        f"TABLESAMPLE takes {expected}. Received: {shown}.",
        code="number-out-of-range",
        operation="tablesample",
        received=shown,
        expected=expected,
    )

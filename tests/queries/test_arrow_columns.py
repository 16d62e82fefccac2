"""Columns of Arrow are encoded at once, to the same elements as one value at a time."""

from __future__ import annotations

import datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from tfe_bench.errors import TfeBenchError
from tfe_bench.queries import io
from tfe_bench.queries.types import parse_type

DAY = datetime.date(2020, 2, 29)
CASES = [
    (pa.array([1, None, -3]), "int"),
    (pa.array([1, 2], pa.int8()), "int[0,1]"),
    (pa.array([4, 2], pa.uint64()), "int[0,4]"),
    (pa.array([2**62, -(2**63)]), "int64"),
    (pa.array([1.5, None, float("nan"), -2.25]), "fixed"),
    (pa.array([1e300, 1.0]), "fixed"),
    (pa.array([float("inf"), 1.0]), "fixed"),
    (pa.array([Decimal("1.25"), None, Decimal("-7.10")]), "decimal(2)"),
    (pa.array([Decimal("1.25"), None]), "decimal(4)"),
    (pa.array([Decimal("1.25"), None]), "decimal(1)"),
    (pa.array([Decimal("12345678901234567890.12")]), "decimal(2)"),
    (pa.array([DAY, None]), "date"),
    (pa.array([True, None, False]), "bool"),
    (pa.array(["b", None, "a"]), "category(a,b)"),
    (pa.array(["b", None, "z"]), "category(a,b)"),
]


def _encode_outcome(values: Any, kind: str) -> Any:
    try:
        encoded = io.encode_column("c", values, parse_type(kind))
    except TfeBenchError as error:
        return type(error), str(error)
    return encoded.distances.tolist(), None if encoded.null is None else encoded.null.tolist()


@pytest.mark.parametrize(("values", "kind"), CASES, ids=lambda value: str(value)[:20])
def test_at_once_as_one_by_one(values: Any, kind: str) -> None:
    expected = _encode_outcome(values.to_pylist(), kind)
    assert _encode_outcome(values, kind) == expected
    assert _encode_outcome(pa.chunked_array([values[:1], values[1:]]), kind) == expected

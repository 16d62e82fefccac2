"""Exact conversion of operands of several kinds and scales to one kind and scale."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from tfe_bench.arrays.array_spec import BITS
from tfe_bench.arrays.operations import BITS_OR_NUMBERS, FACTORS, Apply, Operation
from tfe_bench.protocols.api.operands import WEIGHT_BITS


def align_operand_scales(
    apply: Apply, operation: Operation, arguments: dict[str, Any]
) -> dict[str, Any]:
    """Convert private integers and truth values among arguments to numbers of one scale.

    A value of fewer fractional bits gets zero bits appended, which is exact; nothing is rounded.
    """
    if operation.operands is None:
        return arguments
    operands = {key: each for key, each in arguments.items() if key not in ("condition", "indices")}
    private = [
        v for each in operands.values() for v in _iterate_operand_values(each) if hasattr(v, "kind")
    ]
    others = [
        v for each in operands.values() for v in _iterate_operand_values(each) if _is_real_number(v)
    ]
    if not private or (
        operation.operands == BITS_OR_NUMBERS and all(v.kind == BITS for v in private)
    ):
        return arguments
    scale = max(v.fractional_bits for v in private)
    if scale == 0 and any(not _is_whole(v) for v in others):
        scale = WEIGHT_BITS

    def cast_operand(value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return type(value)(cast_operand(each) for each in value)
        if not hasattr(value, "kind"):
            return value
        value = apply("cast", value) if value.kind == BITS else value
        fits = operation.operands == FACTORS or value.fractional_bits == scale
        return value if fits else apply("cast", value, scale)

    return {key: cast_operand(each) if key in operands else each for key, each in arguments.items()}


def _iterate_operand_values(value: Any) -> Iterator[Any]:
    if isinstance(value, (list, tuple)):
        for each in value:
            yield from _iterate_operand_values(each)
    else:
        yield value


def _is_real_number(value: Any) -> bool:
    return isinstance(value, (float, np.floating, np.ndarray)) and np.asarray(value).dtype == float


def _is_whole(value: Any) -> bool:
    array = np.asarray(value)
    return bool(np.all(array == np.rint(array)))

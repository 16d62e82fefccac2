"""JSON from clients and peers: bounded before it is parsed, and type-checked before it is used."""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn

from tfe_bench.errors import ProtocolError

# The largest message: the submission of a model with thousands of layers.
MOST_BYTES = 64 << 20
# Bytes of a query with one or two names.
MOST_QUESTION = 1 << 12
MOST_DEPTH = 64


def parse_untrusted_json(
    blob: bytes | memoryview, subject: str, max_bytes: int = MOST_BYTES, allow_nan: bool = False
) -> Any:
    """Parse untrusted JSON.

    Args:
        subject: the expected message, for the error's text.
        max_bytes: a longer message is not parsed.
        allow_nan: whether NaN and Infinity may occur, as in a worker's measurements.

    Raises:
        ProtocolError: it is longer, nested deeper than MOST_DEPTH, or not JSON.
    """
    if len(blob) > max_bytes:
        raise ProtocolError(
            f"{subject} is too long. Received: {len(blob)} bytes, at most {max_bytes}.",
            code="message-too-long",
            operation=subject,
            received=len(blob),
            expected=max_bytes,
        )
    try:
        options: dict[str, Any] = (
            {}
            if allow_nan
            else {"parse_constant": _reject_json_constant, "parse_float": _parse_finite_json_number}
        )
        value = json.loads(bytes(blob), **options)
        level = [value]
        for _ in range(MOST_DEPTH):
            level = [
                child
                for node in level
                if isinstance(node, dict | list)
                for child in (node.values() if isinstance(node, dict) else node)
            ]
            if not level:
                return value
    except (ValueError, RecursionError):
        raise ProtocolError(
            f"{subject} is malformed.", code="malformed-message", operation=subject
        ) from None
    raise ProtocolError(
        f"{subject} is nested too deeply. At most {MOST_DEPTH} levels are read.",
        code="nested-too-deeply",
        operation=subject,
        expected=MOST_DEPTH,
    )


def parse_untrusted_json_object(
    blob: bytes | memoryview, subject: str, max_bytes: int = MOST_BYTES, allow_nan: bool = False
) -> dict[str, Any]:
    """Parse an untrusted JSON object.

    Raises:
        ProtocolError: as `parse_untrusted_json`, or the value is not an object.
    """
    value = parse_untrusted_json(blob, subject, max_bytes, allow_nan)
    if not isinstance(value, dict):
        raise ProtocolError(f"{subject} is malformed.", code="malformed-message", operation=subject)
    return value


def _reject_json_constant(constant: str) -> NoReturn:
    raise ValueError(constant)


def _parse_finite_json_number(digits: str) -> float:
    if math.isinf(value := float(digits)):  # 1e999
        raise ValueError(digits)
    return value

"""JSON from clients and peers: bounded before it is parsed, and typed before it is used."""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn

from tfe_bench.errors import ProtocolError

# The largest that there is: the submission of a model with thousands of layers.
MOST_BYTES = 64 << 20
# Of a question that takes a name or two.
MOST_QUESTION = 1 << 12
MOST_DEPTH = 64


def parse_json(
    blob: bytes | memoryview, subject: str, max_bytes: int = MOST_BYTES, allow_nan: bool = False
) -> Any:
    """JSON that a stranger sent.

    Args:
        what: it should be, for the error's text.
        most: bytes; longer ones are not looked at.
        nan: whether NaN and Infinity may occur: a worker's measurements have them.

    Raises:
        ProtocolError: it is longer, nested deeper than MOST_DEPTH, or no JSON.
    """
    if len(blob) > max_bytes:
        raise ProtocolError(
            f"{subject} is too long. Received: {len(blob)} bytes, at most {max_bytes}."
        )
    try:
        options: dict[str, Any] = (
            {} if allow_nan else {"parse_constant": _reject_constant, "parse_float": _parse_finite}
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
        raise ProtocolError(f"{subject} is malformed.") from None
    raise ProtocolError(f"{subject} is nested too deeply. At most {MOST_DEPTH} levels are read.")


def parse_object(
    blob: bytes | memoryview, subject: str, max_bytes: int = MOST_BYTES, allow_nan: bool = False
) -> dict[str, Any]:
    """The same of a JSON object.

    Raises:
        ProtocolError: as `parse`, or it is something else.
    """
    value = parse_json(blob, subject, max_bytes, allow_nan)
    if not isinstance(value, dict):
        raise ProtocolError(f"{subject} is malformed.")
    return value


def _reject_constant(constant: str) -> NoReturn:
    raise ValueError(constant)


def _parse_finite(digits: str) -> float:
    if math.isinf(value := float(digits)):  # 1e999
        raise ValueError(digits)
    return value

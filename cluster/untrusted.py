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


def parse(blob: bytes | memoryview, what: str, most: int = MOST_BYTES, nan: bool = False) -> Any:
    """JSON that a stranger sent.

    Args:
        what: it should be, for the error's text.
        most: bytes; longer ones are not looked at.
        nan: whether NaN and Infinity may occur: a worker's measurements have them.

    Raises:
        ProtocolError: it is longer, nested deeper than MOST_DEPTH, or no JSON.
    """
    if len(blob) > most:
        raise ProtocolError(f"{what} is too long. Received: {len(blob)} bytes, at most {most}.")
    try:
        own: dict[str, Any] = {} if nan else {"parse_constant": _refuse, "parse_float": _finite}
        value = json.loads(bytes(blob), **own)
        level = [value]
        for _ in range(MOST_DEPTH):
            level = [
                child
                for each in level
                if isinstance(each, dict | list)
                for child in (each.values() if isinstance(each, dict) else each)
            ]
            if not level:
                return value
    except (ValueError, RecursionError):
        raise ProtocolError(f"{what} is malformed.") from None
    raise ProtocolError(f"{what} is nested too deeply. At most {MOST_DEPTH} levels are read.")


def parse_object(
    blob: bytes | memoryview, what: str, most: int = MOST_BYTES, nan: bool = False
) -> dict[str, Any]:
    """The same of a JSON object.

    Raises:
        ProtocolError: as `parse`, or it is something else.
    """
    value = parse(blob, what, most, nan)
    if not isinstance(value, dict):
        raise ProtocolError(f"{what} is malformed.")
    return value


def _refuse(constant: str) -> NoReturn:
    raise ValueError(constant)


def _finite(digits: str) -> float:
    if math.isinf(value := float(digits)):  # 1e999
        raise ValueError(digits)
    return value

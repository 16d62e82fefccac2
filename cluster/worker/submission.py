"""Parsing of a job's header from a client: the type and size of every field."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tfe_bench.cluster import wire
from tfe_bench.errors import ProtocolError

_MOST_NAME = 200
_MOST_RANK = 32
_MOST_DIMENSION = 1 << 62
_MOST_BITS = 127


def parse_job_submission(blob: bytes) -> dict[str, Any]:
    """Parse a job's header from a client's first message.

    The job and its program check the values of the fields.

    Raises:
        ProtocolError: it is malformed; names the first invalid field.
    """
    header = wire.JobStreamReader(iter([blob])).next_event()
    if header is None or header["event"] != "submit":
        raise ProtocolError(
            "A job starts with its submission. Received: another message.",
            code="submission-missing",
        )
    _check_submission_fields(header, _FIELDS)
    names = set()
    for row in header["inputs"]:
        if not isinstance(row, dict):
            raise _malformed_submission_error("inputs", "a list of objects")
        _check_submission_fields(row, _INPUT_FIELDS)
        names.add(row["name"])
    if len(names) != len(header["inputs"]):
        raise _malformed_submission_error("inputs", "a list of inputs of different names")
    return header


def _check_submission_fields(
    values: Mapping[str, Any], fields: Mapping[str, tuple[Callable[[Any], bool], str]]
) -> None:
    for name, (fits, expected) in fields.items():
        if not fits(values.get(name)):
            raise _malformed_submission_error(name, expected)


def _malformed_submission_error(name: str, expected: str) -> ProtocolError:
    # (the received value may be long, or a seed)
    return ProtocolError(
        f'A job\'s submission is malformed: "{name}" is {expected}.',
        code="malformed-submission",
        operation=name,
        expected=expected,
    )


def _is_submitted_name(value: object) -> bool:
    return isinstance(value, str) and 0 < len(value) <= _MOST_NAME


def _is_submitted_count(value: object, largest: int) -> bool:
    return type(value) is int and 0 <= value <= largest


def _is_submitted_shape(value: object) -> bool:
    if not isinstance(value, list) or len(value) > _MOST_RANK:
        return False
    return all(_is_submitted_count(size, _MOST_DIMENSION) for size in value)


def _is_submitted_seeds(value: object) -> bool:
    return isinstance(value, dict) and all(isinstance(seed, str) for seed in value.values())


def _is_traffic_shaping(value: object) -> bool:
    if not isinstance(value, list):
        return value is None
    return len(value) == 2 and all(_is_submitted_count(number, 1 << 62) for number in value)


_FIELDS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "job": (_is_submitted_name, "a text"),
    "program": (_is_submitted_name, f"a text of at most {_MOST_NAME} characters"),
    "parameters": (lambda v: isinstance(v, dict), "an object"),
    "shaping": (_is_traffic_shaping, "two numbers, or null"),
    "warm_up_bytes": (lambda v: v is None or _is_submitted_count(v, 1 << 62), "a number of bytes"),
    "inputs": (lambda v: isinstance(v, list), "a list"),
}
_INPUT_FIELDS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "name": (_is_submitted_name, f"a text of at most {_MOST_NAME} characters"),
    "shape": (_is_submitted_shape, f"a list of at most {_MOST_RANK} sizes"),
    "fractional_bits": (
        lambda v: _is_submitted_count(v, _MOST_BITS),
        f"a number from 0 to {_MOST_BITS}",
    ),
    "limbs": (lambda v: _is_submitted_count(v, 2) and v > 0, "1 or 2"),
    "late": (lambda v: v is None or type(v) is bool, "true or false"),
    "seeds": (_is_submitted_seeds, "an object of texts"),
}

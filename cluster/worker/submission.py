"""The header of a job as a client sent it: every field of the type and size that it must have."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tfe_bench.cluster import wire
from tfe_bench.errors import ProtocolError

_MOST_NAME = 200
_MOST_RANK = 32
_MOST_DIMENSION = 1 << 62
_MOST_BITS = 127


def parse(blob: bytes) -> dict[str, Any]:
    """A job's header, from a client's first message.

    What its values may be, given these types, is for the job and its program to say.

    Raises:
        ProtocolError: it is none; names the first field that does not fit.
    """
    header = wire.Reader(iter([blob])).next_event()
    if header is None or header["event"] != "submit":
        raise ProtocolError("A job begins with its submission.")
    _check(header, _FIELDS)
    names = set()
    for each in header["inputs"]:
        if not isinstance(each, dict):
            raise _malformed("inputs", "a list of objects")
        _check(each, _INPUT_FIELDS)
        names.add(each["name"])
    if len(names) != len(header["inputs"]):
        raise _malformed("inputs", "a list of inputs of different names")
    return header


def _check(
    given: Mapping[str, Any], fields: Mapping[str, tuple[Callable[[Any], bool], str]]
) -> None:
    for name, (fits, wanted) in fields.items():
        if not fits(given.get(name)):
            raise _malformed(name, wanted)


def _malformed(name: str, wanted: str) -> ProtocolError:
    # (what was received may be long, or a seed)
    return ProtocolError(f'A job\'s submission is malformed: "{name}" is {wanted}.')


def _name(value: object) -> bool:
    return isinstance(value, str) and 0 < len(value) <= _MOST_NAME


def _whole(value: object, most: int) -> bool:
    return type(value) is int and 0 <= value <= most


def _shape(value: object) -> bool:
    if not isinstance(value, list) or len(value) > _MOST_RANK:
        return False
    return all(_whole(size, _MOST_DIMENSION) for size in value)


def _seeds(value: object) -> bool:
    return isinstance(value, dict) and all(isinstance(seed, str) for seed in value.values())


def _shaping(value: object) -> bool:
    if not isinstance(value, list):
        return value is None
    return len(value) == 2 and all(_whole(each, 1 << 62) for each in value)


_FIELDS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "job": (_name, "a text"),
    "program": (_name, f"a text of at most {_MOST_NAME} characters"),
    "parameters": (lambda v: isinstance(v, dict), "an object"),
    "shaping": (_shaping, "two numbers, or null"),
    "warm_up_bytes": (lambda v: v is None or _whole(v, 1 << 62), "a number of bytes"),
    "inputs": (lambda v: isinstance(v, list), "a list"),
}
_INPUT_FIELDS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "name": (_name, f"a text of at most {_MOST_NAME} characters"),
    "shape": (_shape, f"a list of at most {_MOST_RANK} sizes"),
    "fractional_bits": (lambda v: _whole(v, _MOST_BITS), f"a number from 0 to {_MOST_BITS}"),
    "limbs": (lambda v: _whole(v, 2) and v > 0, "1 or 2"),
    "late": (lambda v: v is None or type(v) is bool, "true or false"),
    "seeds": (_seeds, "an object of texts"),
}

"""Declarative reader of untrusted values: frozen dataclasses whose fields state what they accept.

A request is a class:

    @dataclass(frozen=True)
    class SortRequest(Request):
        algorithm: str = choice_field(("auto", "radix"), default="auto")
        descending: bool = flag_field(default=False)

`SortRequest.from_parameters(parameters, "sort")` returns one, or raises an error that names the
field, the accepted values and the received one.  Client and workers use the same class: a client
creates it, and sends `to_parameters()`.  Nothing is converted silently: true is no integer, and a
list of the wrong length is refused before its elements are read.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, dataclass
from typing import Any, Self, TypeVar

from tfe_bench.errors import TfeBenchError, UsageError, did_you_mean

_SHOWN = 80
_RULE = "rule"

T = TypeVar("T")
U = TypeVar("U")


class _Mismatch(Exception):
    """A value that a rule does not accept.

    Args:
        expected: the accepted values, as a noun phrase.
        code: a code of error_codes.py.
        advice: a sentence for the end of the error's text.
    """

    def __init__(self, expected: str, code: str = "wrong-type", advice: str = "") -> None:
        super().__init__(expected)
        self.expected, self.code, self.advice = expected, code, advice


@dataclass(frozen=True)
class Rule:
    """The values that a field accepts.

    Attributes:
        read: returns the value of an untrusted one, or raises _Mismatch or a TfeBenchError.
        write: returns a JSON value of the field's value.
        request: the class of a nested request, which reads itself.
    """

    read: Callable[[object], Any]
    write: Callable[[Any], Any] = lambda value: value
    request: type[Request] | None = None


def _declare_field(rule: Rule, default: Any) -> Any:
    if isinstance(default, (list, dict)):
        raise TypeError("A default of a field is immutable.")
    return dataclasses.field(default=default, metadata={_RULE: rule})


def _integer_rule(least: int, most: int) -> Rule:
    def read_value(value: object) -> int:
        if type(value) is not int:  # (true is no integer)
            raise _Mismatch(f"an integer from {least} to {most}")
        if not least <= value <= most:
            raise _Mismatch(f"an integer from {least} to {most}", "number-out-of-range")
        return value

    return Rule(read_value)


def integer_field(least: int, most: int, *, default: Any = MISSING) -> Any:
    """Declare a field for an integer from `least` to `most`."""
    return _declare_field(_integer_rule(least, most), default)


def number_field(least: float, most: float, *, default: Any = MISSING) -> Any:
    """Declare a field for a finite number from `least` to `most`, read as a float."""

    def read_value(value: object) -> float:
        if type(value) not in (int, float):
            raise _Mismatch(f"a number from {least:g} to {most:g}")
        assert isinstance(value, (int, float))
        if not least <= value <= most:  # (NaN is neither)
            raise _Mismatch(f"a number from {least:g} to {most:g}", "number-out-of-range")
        return float(value)

    return _declare_field(Rule(read_value), default)


def _read_flag(value: object) -> bool:
    if type(value) is not bool:
        raise _Mismatch("true or false")
    return value


def flag_field(*, default: Any = MISSING) -> Any:
    """Declare a field for true or false."""
    return _declare_field(Rule(_read_flag), default)


def text_rule(max_length: int = 200) -> Rule:
    """Return a rule for a printable, non-empty text."""

    def read_value(value: object) -> str:
        if not isinstance(value, str):
            raise _Mismatch(f"a text of 1 to {max_length} characters")
        if not (1 <= len(value) <= max_length and value.isprintable()):
            raise _Mismatch(f"a printable text of 1 to {max_length} characters", "invalid-name")
        return value

    return Rule(read_value)


def text_field(max_length: int = 200, *, default: Any = MISSING) -> Any:
    """Declare a field for a printable text of 1 to `max_length` characters."""
    return _declare_field(text_rule(max_length), default)


def choice_field(
    names: Collection[str] | Callable[[], Collection[str]], *, default: Any = MISSING
) -> Any:
    """Declare a field for one of several names.

    Args:
        names: the names, or a function that returns them where they are not known on import.
    """

    def read_value(value: object) -> str:
        known = names() if callable(names) else names
        if isinstance(value, str) and value in known:
            return value
        listed = f"one of {', '.join(known)}"
        if not isinstance(value, str):
            raise _Mismatch(listed)
        raise _Mismatch(listed, "unknown-name", did_you_mean(value[:_SHOWN], known))

    return _declare_field(Rule(read_value), default)


def _refuse_writing(value: object) -> Any:
    raise TypeError(f"A field of type {type(value).__name__} is read only.")


def parsed_field(
    read: Callable[[Any], Any],
    write: Callable[[Any], Any] = _refuse_writing,
    *,
    default: Any = MISSING,
) -> Any:
    """Declare a field whose own reader checks it, such as `Plan.from_header`.

    Args:
        read: returns the value of an untrusted JSON value, or raises a TfeBenchError.
        write: returns the JSON value, for requests that a client creates.
    """
    return _declare_field(Rule(read, write), default)


def list_field(element: Rule, least: int, most: int, *, default: Any = MISSING) -> Any:
    """Declare a field for a list of `least` to `most` values, read as a tuple."""

    def read_value(value: object) -> tuple[Any, ...]:
        expected = f"a list of {least} to {most} values"
        if not isinstance(value, list) or len(value) < least:
            raise _Mismatch(expected)
        if len(value) > most:
            raise _Mismatch(expected, "too-large")
        return tuple(element.read(each) for each in value)

    return _declare_field(
        Rule(read_value, lambda values: [element.write(v) for v in values]), default
    )


def nested_field(request: type[Request], *, default: Any = MISSING) -> Any:
    """Declare a field for another request."""
    return _declare_field(
        Rule(lambda value: value, lambda value: value.to_parameters(), request), default
    )


@dataclass(frozen=True)
class Request:
    """Base of requests.

    Each field that a subclass reads is declared by a function of this module; further fields, with
    init=False, hold values that it derives.
    """

    @classmethod
    def field_names(cls) -> list[str]:
        """Return the names of its fields."""
        return [each.name for each in _declared_fields(cls)]

    @classmethod
    def from_parameters(
        cls, values: object, subject: str, error: type[TfeBenchError] = UsageError
    ) -> Self:
        """Read an untrusted mapping.

        Args:
            values: the fields by name.
            subject: the name of the request in error texts.
            error: the class of the error that is raised.

        Raises:
            UsageError: by default: a field is unknown, missing or not accepted; the text names it.
        """
        if not isinstance(values, Mapping):
            raise error(
                f"{subject} is an object of fields. Received: another type.",
                code="wrong-type",
                operation=subject,
            )
        known = cls.field_names()
        for name in values:
            if name not in known:
                shown = str(name)[:_SHOWN]
                raise error(
                    f"{subject} has no field {shown!r}.{did_you_mean(shown, known)} Known: "
                    f"{', '.join(known)}.",
                    code="unknown-option",
                    operation=subject,
                    received=shown,
                    expected=", ".join(known),
                )
        return cls(**_read_fields(cls, values, subject, error))

    def to_parameters(self) -> dict[str, Any]:
        """Return the JSON values of the fields that differ from their defaults."""
        parameters = {}
        for each in _declared_fields(type(self)):
            value = getattr(self, each.name)
            if each.default is MISSING or value != each.default:
                parameters[each.name] = each.metadata[_RULE].write(value)
        return parameters


@dataclass(frozen=True, kw_only=True)
class DerivingRequest(Request):
    """A request from which a worker derives values by the headers of tables that it stores."""

    _derivations: list[tuple[Any, Any]] = dataclasses.field(
        default_factory=list, init=False, compare=False, repr=False
    )

    def derive_once(self, tables: T, derive: Callable[[T], U]) -> tuple[T, U]:
        """Return tables, and what `derive` returns for them; the same ones are derived once.

        The caller looks the tables up each time, with the client's rights.
        """
        if not self._derivations or self._derivations[0][0] != tables:
            self._derivations[:] = [(tables, derive(tables))]
        return self._derivations[0]


def _declared_fields(cls: type[Request]) -> list[dataclasses.Field[Any]]:
    """Return the fields that are read; others hold what a request derives from them."""
    return [each for each in dataclasses.fields(cls) if _RULE in each.metadata]


def _read_fields(
    cls: type[Request], values: Mapping[str, Any], subject: str, error: type[TfeBenchError]
) -> dict[str, Any]:
    accepted: dict[str, Any] = {}
    for each in _declared_fields(cls):
        if each.name not in values:
            if each.default is MISSING:
                raise error(
                    f"{subject} lacks the field {each.name!r}.",
                    code="missing-argument",
                    operation=each.name,
                )
            continue
        value, rule = values[each.name], each.metadata[_RULE]
        if rule.request is not None:
            accepted[each.name] = rule.request.from_parameters(
                value, f"{subject}.{each.name}", error
            )
            continue
        try:
            accepted[each.name] = rule.read(value)
        except _Mismatch as mismatch:
            shown = _show_value(value)
            raise error(
                f"{subject}: {each.name} is {mismatch.expected}. Received: {shown}."
                f"{mismatch.advice}",
                code=mismatch.code,
                operation=each.name,
                received=value[:_SHOWN] if isinstance(value, str) else shown,
                expected=mismatch.expected,
            ) from None
    return accepted


def _show_value(value: object) -> str:
    try:
        return repr(value)[:_SHOWN]
    except ValueError:  # more digits than Python prints
        return "a long number"

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

A `Header` is a request with a subject and an error class of its own: facts about stored or planned
values, and tables of configuration files.
"""

from __future__ import annotations

import dataclasses
import reprlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, dataclass
from typing import Any, ClassVar, Self, TypeVar

from tfe_bench.errors import TfeBenchError, UsageError, did_you_mean

_SHOWN = 80
# Codes of values that are not of a request's form; a class can replace them by one of its own.
_FORM_CODES = ("wrong-type", "unknown-option", "missing-argument")
_RULE = "rule"
_CLASS_ARGUMENTS = ("subject", "error", "code", "is_only_code", "is_complete", "writes_defaults")
# (the representation of a large value would take as much memory again)
_BOUNDED = reprlib.Repr()
_BOUNDED.maxlevel, _BOUNDED.maxstring, _BOUNDED.maxother = 3, 2 * _SHOWN, 2 * _SHOWN

T = TypeVar("T")
U = TypeVar("U")


class Mismatch(Exception):
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
        read: returns the value of an untrusted one, or raises Mismatch or a TfeBenchError.
        write: returns a JSON value of the field's value.
        request: the class of a nested request, which reads itself.
        least, most: bounds of a number, of a text's length, or of a list's or mapping's size; None
            if another reader checks the value.
    """

    read: Callable[[object], Any]
    write: Callable[[Any], Any] = lambda value: value
    request: type[Request] | None = None
    least: float | None = None
    most: float | None = None


def declare_field(rule: Rule, default: Any = MISSING, factory: Any = MISSING) -> Any:
    """Declare a field that a rule reads; without a default, it must be present.

    Args:
        factory: returns the default, such as `dict`.
    """
    if factory is not MISSING:
        return dataclasses.field(default_factory=factory, metadata={_RULE: rule})
    if isinstance(default, (list, dict)):
        raise TypeError("A default of a field is immutable.")
    return dataclasses.field(default=default, metadata={_RULE: rule})


def integer_rule(least: int, most: int) -> Rule:
    """Return a rule for an integer from `least` to `most`."""

    def read_value(value: object) -> int:
        if type(value) is not int:  # (true is no integer)
            raise Mismatch(f"an integer from {least} to {most}")
        if not least <= value <= most:
            raise Mismatch(f"an integer from {least} to {most}", "number-out-of-range")
        return value

    return Rule(read_value, least=least, most=most)


def integer_field(least: int, most: int, *, default: Any = MISSING) -> Any:
    """Declare a field for an integer from `least` to `most`."""
    return declare_field(integer_rule(least, most), default)


def number_field(least: float, most: float, *, default: Any = MISSING) -> Any:
    """Declare a field for a finite number from `least` to `most`, read as a float."""

    def read_value(value: object) -> float:
        if type(value) not in (int, float):
            raise Mismatch(f"a number from {least:g} to {most:g}")
        assert isinstance(value, (int, float))
        if not least <= value <= most:  # (NaN is neither)
            raise Mismatch(f"a number from {least:g} to {most:g}", "number-out-of-range")
        return float(value)

    return declare_field(Rule(read_value, least=least, most=most), default)


def _read_flag(value: object) -> bool:
    if type(value) is not bool:
        raise Mismatch("true or false")
    return value


# Reads true or false.
flag_rule = Rule(_read_flag)


def flag_field(*, default: Any = MISSING) -> Any:
    """Declare a field for true or false."""
    return declare_field(flag_rule, default)


def text_rule(max_length: int = 200) -> Rule:
    """Return a rule for a printable, non-empty text."""

    def read_value(value: object) -> str:
        if not isinstance(value, str):
            raise Mismatch(f"a text of 1 to {max_length} characters")
        if not (1 <= len(value) <= max_length and value.isprintable()):
            raise Mismatch(f"a printable text of 1 to {max_length} characters", "invalid-name")
        return value

    return Rule(read_value, least=1, most=max_length)


def label_rule(max_length: int, least: int = 0, code: str = "invalid-name") -> Rule:
    """Return a rule for any text of `least` to `max_length` characters."""

    def read_value(value: object) -> str:
        if not isinstance(value, str) or not least <= len(value) <= max_length:
            raise Mismatch(f"a text of {least} to {max_length} characters", code)
        return value

    return Rule(read_value, least=least, most=max_length)


def text_field(max_length: int = 200, *, default: Any = MISSING) -> Any:
    """Declare a field for a printable text of 1 to `max_length` characters."""
    return declare_field(text_rule(max_length), default)


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
            raise Mismatch(listed)
        raise Mismatch(listed, "unknown-name", did_you_mean(value[:_SHOWN], known))

    return declare_field(Rule(read_value), default)


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
    return declare_field(Rule(read, write), default)


def checked_field(*, default: Any = MISSING) -> Any:
    """Declare a field that the class itself checks when an object is created."""
    return declare_field(Rule(lambda value: value), default)


def list_rule(element: Rule, least: int, most: int, code: str = "too-large") -> Rule:
    """Return a rule for a list of `least` to `most` values, read as a tuple.

    Args:
        code: the code of the error of a longer list.
    """

    def read_value(value: object) -> tuple[Any, ...]:
        expected = f"a list of {least} to {most} values"
        if not isinstance(value, list) or len(value) < least:
            raise Mismatch(expected)
        if len(value) > most:
            raise Mismatch(expected, code)
        return tuple(element.read(each) for each in value)

    return Rule(
        read_value, lambda values: [element.write(v) for v in values], least=least, most=most
    )


def list_field(
    element: Rule, least: int, most: int, code: str = "too-large", *, default: Any = MISSING
) -> Any:
    """Declare a field for a list of `least` to `most` values, read as a tuple."""
    return declare_field(list_rule(element, least, most, code), default)


def mapping_rule(element: Rule, most: int) -> Rule:
    """Return a rule for an object of at most `most` values by name."""

    def read_value(value: object) -> dict[str, Any]:
        expected = f"an object of at most {most} values by name"
        if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
            raise Mismatch(expected)
        if len(value) > most:
            raise Mismatch(expected, "too-large")
        return {name: element.read(each) for name, each in value.items()}

    return Rule(
        read_value,
        lambda values: {name: element.write(v) for name, v in values.items()},
        least=0,
        most=most,
    )


def optional_rule(rule: Rule) -> Rule:
    """Return a rule that also accepts null, read as None."""

    def read_value(value: object) -> Any:
        try:
            return None if value is None else rule.read(value)
        except Mismatch as mismatch:
            raise Mismatch(f"{mismatch.expected}, or null", mismatch.code) from None

    return dataclasses.replace(
        rule, read=read_value, write=lambda v: None if v is None else rule.write(v)
    )


def object_rule(
    kind: type, read: Callable[[Any], Any], write: Callable[[Any], Any] = lambda v: v.to_header()
) -> Rule:
    """Return a rule for an object that `read` returns; an object of the class stays."""
    return Rule(lambda value: value if isinstance(value, kind) else read(value), write)


def header_rule(header: type[Header]) -> Rule:
    """Return a rule for a header within another one; an object of the class stays."""
    return object_rule(header, header.from_header)


def nested_field(request: type[Request], *, default: Any = MISSING) -> Any:
    """Declare a field for another request."""
    return declare_field(
        Rule(lambda value: value, lambda value: value.to_parameters(), request), default
    )


# (eq=False: a subclass with eq=False compares by identity)
@dataclass(frozen=True, eq=False)
class Request:
    """Base of requests.

    Each field that a subclass reads is declared by a function of this module; further fields, with
    init=False, hold values that it derives.
    """

    # Replaces the codes of errors about the form of the values, or all codes.
    _code: ClassVar[str] = ""
    _is_only_code: ClassVar[bool] = False
    # Whether fields with a default must be present too.
    _is_complete: ClassVar[bool] = False
    _writes_defaults: ClassVar[bool] = False

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
                f"{subject} is an object of fields. Received: {_show_value(values)}.",
                code=cls._code or "wrong-type",
                operation=subject,
            )
        known = cls.field_names()
        for name in values:
            if name not in known:
                raise cls._unknown_field_error(str(name)[:_SHOWN], known, subject, error)
        return cls(**_read_fields(cls, values, subject, error))

    @classmethod
    def _unknown_field_error(
        cls, name: str, known: list[str], subject: str, error: type[TfeBenchError]
    ) -> TfeBenchError:
        return error(
            f"{subject} has no field {name!r}.{did_you_mean(name, known)} Known: "
            f"{', '.join(known)}.",
            code=cls._code or "unknown-option",
            operation=subject,
            received=name,
            expected=", ".join(known),
        )

    @classmethod
    def _missing_field_error(
        cls, name: str, rule: Rule, subject: str, error: type[TfeBenchError]
    ) -> TfeBenchError:
        return error(
            f"{subject} lacks the field {name!r}.",
            code=cls._code or "missing-argument",
            operation=name,
        )

    @classmethod
    def _mismatch_error(
        cls,
        name: str,
        value: object,
        mismatch: Mismatch,
        subject: str,
        error: type[TfeBenchError],
    ) -> TfeBenchError:
        shown = _show_value(value)
        replaces = cls._code and (cls._is_only_code or mismatch.code in _FORM_CODES)
        return error(
            f"{subject}: {name} is {mismatch.expected}. Received: {shown}.{mismatch.advice}",
            code=cls._code if replaces else mismatch.code,
            operation=name,
            received=value[:_SHOWN] if isinstance(value, str) else shown,
            expected=mismatch.expected,
        )

    def to_parameters(self) -> dict[str, Any]:
        """Return the JSON values of the fields; defaults are left out."""
        parameters, is_whole = {}, self._is_complete or self._writes_defaults
        for each in _declared_fields(type(self)):
            value = getattr(self, each.name)
            if is_whole or _is_required(each) or value != _default_value(each):
                parameters[each.name] = each.metadata[_RULE].write(value)
        return parameters


@dataclass(frozen=True, eq=False, kw_only=True)
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


@dataclass(frozen=True, eq=False)
class Header(Request):
    """Base of headers, which know their subject and the class of their errors.

    Class arguments:
        subject: the name of the header in error texts.
        error: the class of its errors.
        code: replaces the codes of errors about the header's form.
        is_only_code: whether it replaces all codes of the fields' rules.
        is_complete: whether fields with a default must be present too, and are always written.
        writes_defaults: whether fields with their default are written.
    """

    _subject: ClassVar[str] = "a header"
    _error: ClassVar[type[TfeBenchError]] = UsageError

    def __init_subclass__(cls, **arguments: str | bool | type[TfeBenchError]) -> None:
        """Set the class arguments; those that are left out stay as in the base class."""
        super().__init_subclass__()
        for name, value in arguments.items():
            if name not in _CLASS_ARGUMENTS:
                raise TypeError(f"A header has no class argument {name!r}.")
            setattr(cls, f"_{name}", value)

    @classmethod
    def from_header(cls, header: object) -> Self:
        """Read a header from an untrusted source.

        Raises:
            TfeBenchError: of the header's class: it is invalid; the text names the field.
        """
        return cls.from_parameters(header, cls._subject, cls._error)

    def check_fields(self) -> None:
        """Read the values of an object that was created directly; it gets what the rules return.

        Raises:
            TfeBenchError: of the header's class: a rule does not accept a value.
        """
        values = {name: getattr(self, name) for name in self.field_names()}
        # (rules return tuples for lists)
        values |= {name: list(value) for name, value in values.items() if type(value) is tuple}
        for name, value in _read_fields(type(self), values, self._subject, self._error).items():
            object.__setattr__(self, name, value)

    def to_header(self) -> dict[str, Any]:
        """Return the header as JSON."""
        return self.to_parameters()


def _declared_fields(cls: type[Request]) -> list[dataclasses.Field[Any]]:
    """Return the fields that are read; others hold what a request derives from them."""
    return [each for each in dataclasses.fields(cls) if _RULE in each.metadata]


def _is_required(declared: dataclasses.Field[Any]) -> bool:
    return declared.default is MISSING and declared.default_factory is MISSING


def _default_value(declared: dataclasses.Field[Any]) -> Any:
    if declared.default_factory is not MISSING:
        return declared.default_factory()
    return declared.default


def _read_fields(
    cls: type[Request], values: Mapping[str, Any], subject: str, error: type[TfeBenchError]
) -> dict[str, Any]:
    accepted: dict[str, Any] = {}
    for each in _declared_fields(cls):
        rule: Rule = each.metadata[_RULE]
        if each.name not in values:
            if cls._is_complete or _is_required(each):
                raise cls._missing_field_error(each.name, rule, subject, error)
            continue
        value = values[each.name]
        if rule.request is not None:
            accepted[each.name] = rule.request.from_parameters(
                value, f"{subject}.{each.name}", error
            )
            continue
        try:
            accepted[each.name] = rule.read(value)
        except Mismatch as mismatch:
            raise cls._mismatch_error(each.name, value, mismatch, subject, error) from None
    return accepted


def _show_value(value: object) -> str:
    try:
        return _BOUNDED.repr(value)[:_SHOWN]
    except ValueError:  # more digits than Python prints
        return "a long number"

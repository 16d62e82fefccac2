"""Tables of TOML files, as dataclasses that name every mistake."""

from __future__ import annotations

import contextlib
import json
import math
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tfe_bench.cluster.schema import Header, Mismatch, Rule, declare_field
from tfe_bench.errors import ConfigError, SecurityError, TfeBenchError, did_you_mean

_MAX_BYTES = 1 << 20


@dataclass(frozen=True)
class TomlTable(Header, subject="the file", error=ConfigError):
    """Base of tables of TOML files: their subject is the table's name, such as ``[cluster]``."""

    @classmethod
    def _unknown_field_error(
        cls, name: str, known: list[str], subject: str, error: type[TfeBenchError]
    ) -> TfeBenchError:
        return error(
            f"{subject}: unknown key {quote_received_value(name)}.{did_you_mean(name, known)} "
            f"Known keys: {', '.join(known)}.",
            code="unknown-option",
            operation=subject,
            received=name,
            expected=", ".join(known),
        )

    @classmethod
    def _missing_field_error(
        cls, name: str, rule: Rule, subject: str, error: type[TfeBenchError]
    ) -> TfeBenchError:
        expected = ""
        with contextlib.suppress(TfeBenchError):
            try:
                rule.read(None)
            except Mismatch as mismatch:
                expected = mismatch.expected
        return error(
            f'{subject}: "{name}" is missing. Add it: {expected}.',
            code="missing-argument",
            operation=name,
            expected=expected,
        )

    @classmethod
    def _mismatch_error(
        cls, name: str, value: object, mismatch: Mismatch, subject: str, error: type[TfeBenchError]
    ) -> TfeBenchError:
        return error(
            f'{subject}: "{name}" must be {mismatch.expected}. Received: '
            f"{quote_received_value(value)}.{mismatch.advice}",
            code=mismatch.code,
            operation=name,
            received=value,
            expected=mismatch.expected,
        )


def _type_rule(kind: type, expected: str) -> Rule:
    def read_value(value: object) -> Any:
        if type(value) is not kind:  # not isinstance: true is no integer
            raise Mismatch(expected)
        return value

    return Rule(read_value)


def _read_number(value: object) -> float:
    if type(value) in (int, float):
        try:
            number = float(value)  # type: ignore[arg-type]
        except OverflowError:  # more than 1024 bits
            number = math.inf
        if math.isfinite(number):
            return number
    raise Mismatch("a finite number")


def _read_texts(value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(type(item) is str for item in value):
        raise Mismatch("a list of texts in quotes")
    return tuple(value)


TEXT, INTEGER = _type_rule(str, "a text in quotes"), _type_rule(int, "a whole number")
FLAG, NUMBER, TEXTS = _type_rule(bool, "true or false"), Rule(_read_number), Rule(_read_texts)
TEXT_OR_TEXTS = Rule(lambda v: TEXTS.read(v) if isinstance(v, list) else (TEXT.read(v),))


def table_field(key: str, table: type[TomlTable]) -> Any:
    """Declare a field for the table ``[key]``, with the defaults of its fields if missing."""

    def read_value(value: object) -> TomlTable:
        if not isinstance(value, dict):
            raise Mismatch(f"a table, [{key}]")
        return table.from_parameters(value, f"[{key}]", ConfigError)

    return declare_field(Rule(read_value), factory=table)


def tables_field(key: str, table: type[TomlTable]) -> Any:
    """Declare a field for all tables ``[[key]]``, read as a tuple; none if missing."""

    def read_value(value: object) -> tuple[TomlTable, ...]:
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            raise Mismatch(
                f"a list of tables, each under [[{key}]]",
                advice=f" Write [[{key}]] with double brackets.",
            )
        return tuple(
            table.from_parameters(item, f"[[{key}]] number {number}", ConfigError)
            for number, item in enumerate(value, start=1)
        )

    return declare_field(Rule(read_value), ())


def parse_toml(text: str) -> dict[str, Any]:
    """Parse TOML.

    Raises:
        ConfigError: it is malformed; the error names and quotes the line.
    """
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ConfigError(
            "The file is nested too deeply. Rewrite it with fewer levels.", code="nested-too-deeply"
        ) from None
    except ValueError as error:
        position = re.search(r"at line (\d+)", str(error))
        lines = text.splitlines()
        number = int(position[1]) if position else len(lines)
        line = lines[number - 1] if 0 < number <= len(lines) else ""
        raise ConfigError(
            f"This is not valid TOML: {error}. Received: {quote_received_value(line)}. Correct "
            "the line.",
            code="invalid-toml",
        ) from None


def load_toml(path: Path) -> dict[str, Any]:
    """Read and parse a TOML file.

    Raises:
        ConfigError: it cannot be read or is malformed.
    """
    return parse_toml(read_config_text(path))


@contextlib.contextmanager
def prefix_config_errors(prefix: object) -> Iterator[None]:
    """Prefix every ConfigError and SecurityError of the block with a file's or field's name."""
    try:
        yield
    except (ConfigError, SecurityError) as error:
        raise error.with_text(f"{prefix}: {error}") from None


def read_config_text(path: Path) -> str:
    """Read the text of a configuration.

    Raises:
        ConfigError: it cannot be read, is not UTF-8, or is too long.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(
            f"The file cannot be read. Received: {error.strerror}. "
            'Check the path; "python -m tfe_bench certs all" creates a cluster for evaluation.',
            code="file-not-readable",
            received=error.strerror,
        ) from None
    if len(data) > _MAX_BYTES:
        raise ConfigError(
            f"The file is too long for a configuration. Received: {len(data)} bytes. "
            "Check the path.",
            code="too-large",
            received=len(data),
            expected=_MAX_BYTES,
        )
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise ConfigError(
            f"The file is not UTF-8 text. Received: other bytes in line {line}. Save it as UTF-8.",
            code="not-utf8",
            received=f"line {line}",
        ) from None


def quote_received_value(value: object) -> str:
    """Quote a received value for an error text."""
    try:
        text = json.dumps(value, default=str)
    except ValueError:  # more digits than Python prints, in hexadecimal
        return "a long number"
    return text if len(text) <= 100 else f"{text[:97]}..."

"""Readers of TOML files that name every mistake."""

from __future__ import annotations

import contextlib
import json
import math
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from tfe_bench.errors import ConfigError, SecurityError, did_you_mean

_MAX_BYTES = 1 << 20

T = TypeVar("T")


class TomlTable:
    """One table of a TOML file, read key by key, so that errors name the key.

    Args:
        values: the parsed table.
        where: the table's name in error texts, such as ``[cluster]``.
        known: the keys that may occur.

    Raises:
        ConfigError: the table has an unknown key.
    """

    def __init__(self, values: Mapping[str, Any], where: str, known: Iterable[str]) -> None:
        self._values = values
        self.where = where
        known = list(known)
        for key in values:
            if key not in known:
                raise ConfigError(
                    f"{where}: unknown key {quote_received_value(key)}.{did_you_mean(key, known)} "
                    f"Known keys: {', '.join(known)}.",
                    code="unknown-option",
                    operation=where,
                    received=key,
                    expected=", ".join(known),
                )

    def get_text(self, key: str, default: str | None = None) -> str:
        """Return a string. Raises ConfigError for another type, or if it is missing."""
        return self._get_typed(key, default, str, "a text in quotes")

    def get_integer(self, key: str, default: int | None = None) -> int:
        """Return an integer. Raises ConfigError as `get_text` does."""
        return self._get_typed(key, default, int, "a whole number")

    def get_boolean(self, key: str, default: bool | None = None) -> bool:
        """Return ``true`` or ``false``. Raises ConfigError as `get_text` does."""
        return self._get_typed(key, default, bool, "true or false")

    def get_number(self, key: str, default: float | None = None) -> float:
        """Return a finite number. Raises ConfigError as `get_text` does."""
        value = self._get_value(key, default, expected := "a finite number")
        if type(value) is int or (type(value) is float and math.isfinite(value)):
            return float(value)
        raise self._type_error(key, value, expected)

    def get_texts(self, key: str, default: tuple[str, ...] | None = None) -> tuple[str, ...]:
        """Return a list of strings. Raises ConfigError as `get_text` does."""
        value = self._get_value(key, default, expected := "a list of texts in quotes")
        if isinstance(value, list | tuple) and all(type(item) is str for item in value):
            return tuple(value)
        raise self._type_error(key, value, expected)

    def get_text_or_texts(self, key: str) -> tuple[str, ...]:
        """Return a string or strings, "" if missing. Raises ConfigError as `get_text` does."""
        if isinstance(self._values.get(key), list):
            return self.get_texts(key)
        return (self.get_text(key, ""),)

    def get_table(self, key: str, known: Iterable[str]) -> TomlTable:
        """Return the table ``[key]``, empty if missing. Raises ConfigError as `TomlTable` does."""
        return TomlTable(self._get_typed(key, {}, dict, f"a table, [{key}]"), f"[{key}]", known)

    def get_tables(self, key: str, known: Iterable[str]) -> list[TomlTable]:
        """Return all tables ``[[key]]``. Raises ConfigError as `TomlTable` does."""
        values = self._values.get(key, [])
        if not isinstance(values, list) or not all(isinstance(item, dict) for item in values):
            raise ConfigError(
                f"{self.where}: {quote_received_value(key)} is a list of tables, each under "
                f"[[{key}]]. "
                f"Received: {quote_received_value(values)}. Write [[{key}]] with double brackets.",
                code="wrong-type",
                operation=key,
                received=values,
                expected="a list of tables",
            )
        known = list(known)
        return [
            TomlTable(item, f"[[{key}]] number {number}", known)
            for number, item in enumerate(values, start=1)
        ]

    def _get_typed(self, key: str, default: Any, kind: type[T], expected: str) -> T:
        value = self._get_value(key, default, expected)
        if type(value) is kind:  # not isinstance: true is no integer
            return value
        raise self._type_error(key, value, expected)

    def _get_value(self, key: str, default: Any, expected: str) -> Any:
        if key not in self._values and default is None:
            raise ConfigError(
                f'{self.where}: "{key}" is missing. Add it: {expected}.',
                code="missing-argument",
                operation=key,
                expected=expected,
            )
        return self._values.get(key, default)

    def _type_error(self, key: str, value: Any, expected: str) -> ConfigError:
        return ConfigError(
            f'{self.where}: "{key}" must be {expected}. Received: {quote_received_value(value)}.',
            code="wrong-type",
            operation=key,
            received=value,
            expected=expected,
        )


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
    text = json.dumps(value, default=str)
    return text if len(text) <= 100 else f"{text[:97]}..."

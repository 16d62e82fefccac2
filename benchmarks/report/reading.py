"""Reading of records for a report: from several files, of older and newer versions, from others.

As strict as `records.read_records`, with two exceptions: fields that this version does
not know are dropped with a note, and fields that may be None may be missing.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

from tfe_bench.benchmarks.provenance import VERSIONED, Machine
from tfe_bench.benchmarks.records import (
    SCHEMA,
    Record,
    Seconds,
    iterate_record_lines,
    read_records_text,
)
from tfe_bench.benchmarks.report.annexes import (
    AnnexRecord,
    find_report_sections,
    load_report_sections,
)
from tfe_bench.errors import DataError

Entry = Record | AnnexRecord
_SUFFIXES: Final = (".jsonl", ".json")
# Sums of what is below stay exact in a double, and no figure is near it.
_LARGEST: Final = 1 << 60


@dataclass(frozen=True)
class ReportInput:
    """The records of a report.

    Attributes:
        records: in the order of the files, each once.
        notes: readable notes on what was dropped.
        files: files with records.
        others: records of annexes and other packages, each once.
    """

    records: tuple[Record, ...]
    notes: tuple[str, ...]
    files: tuple[Path, ...]
    others: tuple[AnnexRecord, ...] = ()


def read_report_input(paths: Sequence[Path]) -> ReportInput:
    """Read the records of files and folders.

    Args:
        paths: .jsonl or .json files, or folders with such files (subfolders are not read).

    Raises:
        DataError: a file cannot be read or holds no records (the text gives file and line), or
            there are no records at all.
    """
    entries: list[Entry] = []
    notes: list[str] = []
    files: list[Path] = []
    for path in paths:
        for file in _list_files(path):
            file_entries, file_notes = _read_record_file(file, listed=file == path)
            notes += file_notes
            files += [file] if file_entries else []
            entries += file_entries
    if not entries:
        raise DataError(
            "The files and folders hold no records. Received: "
            f"{', '.join(repr(str(p)) for p in paths)}. Create records with --record FILE "
            "or the command suite.",
            code="no-records",
            received=", ".join(map(str, paths)),
        )
    once = list({entry.to_json(): entry for entry in entries}.values())
    if len(once) < len(entries):
        notes.append(f"{len(entries) - len(once)} records were there twice and count once.")
    notes += map(str, load_report_sections()[1])
    others = tuple(entry for entry in once if isinstance(entry, AnnexRecord))
    return ReportInput(_select_records(once), tuple(notes), tuple(files), others)


def _select_records(entries: Sequence[Entry]) -> tuple[Record, ...]:
    return tuple(entry for entry in entries if isinstance(entry, Record))


def read_measurement_lines(path: Path) -> tuple[list[Entry], list[str]]:
    """Return a JSON-lines file's records of all technologies, and notes on what was dropped.

    Raises:
        DataError: the file cannot be read, or a line is not a record (the text gives its number).
    """
    entries: list[Entry] = []
    unknown: Counter[str] = Counter()
    for number, line in iterate_record_lines(path):
        entries.append(_parse_record(_parse_json(line, path, number), path, number, unknown))
    return entries, _unknown_field_notes(path, unknown)


def _list_files(path: Path) -> list[Path]:
    if not path.exists():
        raise DataError(
            f"Expected an existing file or folder. Received: {str(path)!r}.",
            code="file-not-found",
            received=path,
        )
    if not path.is_dir():
        if path.suffix.lower() not in _SUFFIXES:
            raise DataError(
                f"Expected a .jsonl or .json file of records. Received: {str(path)!r}.",
                code="unsupported-file-type",
                received=path,
            )
        return [path]
    try:
        return sorted(p for p in path.iterdir() if p.suffix.lower() in _SUFFIXES and p.is_file())
    except OSError as error:
        raise DataError(
            f"Cannot read the folder {str(path)!r}: {error.strerror}.",
            code="file-not-readable",
            received=path,
        ) from error


def _read_record_file(path: Path, listed: bool) -> tuple[list[Entry], list[str]]:
    """Read a file; `listed`: it was named itself; a folder may hold other JSON files too."""
    if path.suffix.lower() == ".jsonl":
        return read_measurement_lines(path)
    whole = _parse_json(read_records_text(path), path, None)
    entries = whole if isinstance(whole, list) else [whole]
    if not listed and not any(isinstance(e, dict) and "schema" in e for e in entries):
        return [], [f"{path.name} holds no records and was left out."]
    unknown: Counter[str] = Counter()
    records = [_parse_record(entry, path, None, unknown) for entry in entries]
    return records, _unknown_field_notes(path, unknown)


def _describe_place(path: Path, line: int | None) -> str:
    return f"{str(path)!r}" if line is None else f"Line {line} of {str(path)!r}"


def _parse_json(text: str, path: Path, line: int | None) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"{_describe_place(path, line)}: expected JSON. Received: {error}.",
            code="invalid-json",
            received=path,
        ) from error


def _parse_record(flat: Any, path: Path, line: int | None, unknown: Counter[str]) -> Entry:
    if not isinstance(flat, dict):
        kind = type(flat).__name__
        raise DataError(
            f"{_describe_place(path, line)}: expected a record as a JSON object. Received: {kind}.",
            code="not-an-object",
            operation="record",
            received=kind,
        )
    if (sections := find_report_sections(flat.get("schema"))) is not None:
        try:
            _check_bounds(flat)
            return sections.parse_record(json.dumps(flat))
        except (DataError, ValueError, RecursionError) as error:
            raise _name_record_line(error, path, line) from error
    known = {f.name: str(f.type) for f in fields(Record)}
    flat = _keep_known_fields(flat, {"schema", *known}, "", unknown)
    for name, part in (("seconds", Seconds), ("machine", Machine)):
        if isinstance(flat.get(name), dict):
            flat[name] = _keep_known_fields(
                flat[name], {f.name for f in fields(part)}, f"{name}.", unknown
            )
    if isinstance(flat.get("versions"), dict):
        versions = _keep_known_fields(flat["versions"], set(VERSIONED), "versions.", unknown)
        flat["versions"] = dict.fromkeys(VERSIONED) | versions
    for name, kind in known.items():
        if kind.endswith(" | None"):
            flat.setdefault(name, None)
    flat.setdefault("schema", SCHEMA if "workload" in flat else None)
    try:
        _check_bounds(flat)
        return Record.from_json(json.dumps(flat))
    except (DataError, ValueError, RecursionError) as error:
        raise _name_record_line(error, path, line) from error


def _name_record_line(error: Exception, path: Path, line: int | None) -> DataError:
    """Return the error of a malformed record with its file and line."""
    text = f"{_describe_place(path, line)}: {error}"
    if isinstance(error, DataError):
        return error.with_text(text)
    return DataError(text, code="invalid-record")


def _keep_known_fields(
    values: dict[str, Any], known: set[str], prefix: str, unknown: Counter[str]
) -> dict[str, Any]:
    """Return the known fields; count the unknown ones."""
    unknown.update(prefix + name for name in set(values) - known)
    return {name: value for name, value in values.items() if name in known}


def _check_bounds(value: Any) -> None:
    """Reject integers beyond any figure: they exceed the range of the plots' numbers."""
    if isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            _check_bounds(part)
    elif isinstance(value, int) and abs(value) > _LARGEST:
        raise DataError(
            f"Expected figures with magnitudes of at most 2^60. Received: {str(value)[:20]}...",
            code="too-large",
            received=str(value)[:20],
        )


def _unknown_field_notes(path: Path, unknown: Counter[str]) -> list[str]:
    return [
        f"{path.name}: the field {name!r} of {count} records is unknown here and was ignored."
        for name, count in sorted(unknown.items())
    ]

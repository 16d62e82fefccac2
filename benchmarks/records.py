"""The record of one measurement: everything needed to judge the number and to repeat it.

The printed table is drawn from the record alone (benchmarks/table.py).  A record is made
to be published: it holds no data and no host names, and of the cluster's file only the name.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import functools
import json
import math
import os
import stat
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, Protocol, cast

from tfe_bench.benchmarks import fields
from tfe_bench.benchmarks.fields import PerParty
from tfe_bench.benchmarks.provenance import (
    VERSIONED,
    Machine,
    commit,
    read_machine_facts,
    versions,
)
from tfe_bench.errors import DataError, UsageError

SCHEMA: Final = 1

# Fields that the first records lack.
_LATER: Final = (
    *("cpu_seconds", "messages", "bytes_by_link", "breakdown", "prediction"),
    *("links", "agreement", "error"),
)

_UNBOUNDED: Mapping[str, float] = {
    "NaN": math.nan,
    "Infinity": math.inf,
    "-Infinity": -math.inf,
}
_UNBOUNDED_NAMES: Mapping[str, str] = {str(value): name for name, value in _UNBOUNDED.items()}


@dataclass(frozen=True, slots=True)
class Seconds:
    """Wall-clock run times in seconds, in the order of measurement.

    Raises:
        UsageError: no times, a negative or non-finite one, or figures that disagree.
    """

    median: float
    min: float
    max: float
    all: tuple[float, ...]

    def __post_init__(self) -> None:
        times = tuple(fields.check_record_number("seconds.all", t) for t in self.all)
        if not times:
            raise UsageError(
                "Expected at least one time in seconds.all. Received: none.",
                code="empty-input",
                operation="seconds.all",
            )
        object.__setattr__(self, "all", times)
        for name, expected in (
            ("median", statistics.median(times)),
            ("min", min(times)),
            ("max", max(times)),
        ):
            received = fields.check_record_number(f"seconds.{name}", getattr(self, name))
            if not math.isclose(received, expected, rel_tol=1e-9, abs_tol=1e-12):
                raise UsageError(
                    f"Expected seconds.{name} to be {expected!r}, as computed from seconds.all. "
                    f"Received: {received!r}.",
                    code="inconsistent-times",
                    operation=name,
                    received=received,
                )
            object.__setattr__(self, name, received)

    @classmethod
    def from_times(cls, times: Iterable[float]) -> Seconds:
        """Return the times with their median, minimum and maximum."""
        every = tuple(times)
        if not every:
            raise UsageError(
                "Expected at least one time of a measurement. Received: none.",
                code="empty-input",
                operation="times",
            )
        return cls(float(statistics.median(every)), min(every), max(every), every)


def current_record_time() -> str:
    """Return the current time in a record's format: ISO 8601 in UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One measurement.

    Lists of three hold one figure per party. None means "not measured" (another
    framework's process, or a party out of sight), never zero.

    Args:
        workload: its name, as on the command line.
        parameters: parameters of the run: JSON values by name.
        repeats: number of timed runs, without warm-up.
        seconds: their wall-clock times in seconds, without graph building and start.
        build_seconds: tracing and first call, in seconds.
        start_seconds: starting the workers and joining them, in seconds.
        share_seconds: sharing the inputs and sending them to the workers, in seconds.
        bytes_sent: payload bytes that each party sent in one run.
        frame_bytes: the same with message headers.
        rounds: total (offline + online) rounds: messages on the critical path.
        rounds_ahead: online rounds, with the dealer's correlated randomness dealt in advance.
        peak_memory: growth above an idle worker, in bytes.
        idle_memory: an idle worker, in bytes.
        correct: True if the result agrees with the plaintext, None if not checked.
        max_error: greatest absolute difference from the plaintext; may be infinite or NaN.
        ring: bits of the ring.
        fractional_bits: bits after the point.
        protocol: the variant, e.g. "exact" truncation.
        profile: the network profile, e.g. "lan".
        profile_emulation: the method of emulation, e.g. "netns+tun", with ", host-limited" if the
            links do not meet the profile's figures; None if nothing was shaped.
        links: figures of the links measured just before; None if nothing was shaped.
        tls: True if the workers' connections were encrypted.
        cluster: "local", or the file name of the cluster.
        versions: as from `versions()`.
        machine: as from `machine()`.
        commit: as from `commit()`.
        time: of the measurement, ISO 8601 in UTC.
        cpu_seconds: processor time of each worker in one run, user and system, in seconds.
        messages: that each party sent in one run.
        bytes_by_link: payload bytes by sender and receiver.
        breakdown: parts of each worker's last run, in seconds (docs/benchmarking.md).
        prediction: as from `prediction.forecast`.
        agreement: of a model's private outputs with plaintext ones: "samples", "top1" and "top5"
            as parts of 1, "largest_error", and "relative_error" of the plaintext's range.
        error: the largest error in the "unit" that it is judged in, and its "value", as from
            `error_metrics.error_to_json`; None if that is the absolute one.

    Records of versions without the last fields are read as not measured.

    Raises:
        UsageError: a field has another type, or impossible figures.
    """

    workload: str
    parameters: Mapping[str, Any]
    repeats: int
    seconds: Seconds
    build_seconds: float | None
    start_seconds: float | None
    share_seconds: float | None
    bytes_sent: PerParty | None
    frame_bytes: PerParty | None
    rounds: int | None
    rounds_ahead: int | None
    peak_memory: PerParty | None
    idle_memory: PerParty | None
    correct: bool | None
    max_error: float | None
    ring: int
    fractional_bits: int
    protocol: str
    profile: str
    profile_emulation: str | None
    tls: bool
    cluster: str
    versions: Mapping[str, str | None] = field(default_factory=versions)
    machine: Machine = field(default_factory=read_machine_facts)
    commit: str | None = field(default_factory=commit)
    time: str = field(default_factory=current_record_time)
    cpu_seconds: tuple[float, float, float] | None = None
    messages: PerParty | None = None
    bytes_by_link: tuple[PerParty, ...] | None = None
    breakdown: tuple[Mapping[str, Any], ...] | None = None
    prediction: Mapping[str, Any] | None = None
    links: Mapping[str, Any] | None = None
    agreement: Mapping[str, Any] | None = None
    error: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        for record_field in dataclasses.fields(self):
            value, check = getattr(self, record_field.name), _find_record_field_check(record_field)
            if check is not None and not (value is None and _is_optional(record_field)):
                object.__setattr__(self, record_field.name, check(record_field.name, value))
        if "/" in self.cluster or "\\" in self.cluster:
            raise UsageError(
                f"Expected a file name without folders as cluster. Received: {self.cluster!r}.",
                code="invalid-name",
                operation="cluster",
                received=self.cluster,
            )
        if not isinstance(self.seconds, Seconds) or not isinstance(self.machine, Machine):
            raise UsageError(
                "Expected a Seconds as `seconds` and a Machine as `machine`. Received: "
                "another type.",
                code="wrong-type",
                operation="seconds, machine",
            )
        if self.repeats != len(self.seconds.all):
            raise UsageError(
                f"Expected as many repeats as times. Received: {self.repeats} repeats and "
                f"{len(self.seconds.all)} times.",
                code="length-mismatch",
                operation="repeats",
                received=self.repeats,
            )

    def to_json(self) -> str:
        """Return the record as one line of ASCII JSON, with the field "schema".

        A max_error that is NaN or infinite is written as "NaN", "Infinity" or "-Infinity",
        since JSON has no such numbers.
        """
        flat = {"schema": SCHEMA, **asdict(self)}
        error = self.max_error
        if error is not None and not math.isfinite(error):
            flat["max_error"] = _UNBOUNDED_NAMES[str(error)]
        return json.dumps(flat, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Record:
        """Return the record that `to_json` wrote.

        Raises:
            DataError: not JSON, another schema, unknown or missing fields, or wrong types.
        """
        try:
            flat = json.loads(text, parse_constant=_refuse_record_constant)
        except (ValueError, RecursionError) as error:
            raise DataError(
                f"Expected one JSON object as a record. Received: {error}.",
                code="invalid-json",
                operation="record",
            ) from error
        if not isinstance(flat, dict):
            raise DataError(
                f"Expected one JSON object as a record. Received: {type(flat).__name__}.",
                code="not-an-object",
                operation="record",
                received=type(flat).__name__,
            )
        schema = flat.pop("schema", None)
        if type(schema) is not int or schema != SCHEMA:
            raise DataError(
                f"Expected a record of schema {SCHEMA}. Received: schema {schema!r}.",
                code="unsupported-format",
                operation="schema",
                received=schema,
            )
        fields.check_record_field_names(
            "record", flat, [f.name for f in dataclasses.fields(cls)], _LATER
        )
        for name, part in (("seconds", Seconds), ("machine", Machine)):
            if not isinstance(flat[name], dict):
                raise DataError(
                    f"Expected an object as {name} of the record. Received: {flat[name]!r}.",
                    code="not-an-object",
                    operation=name,
                    received=flat[name],
                )
            fields.check_record_field_names(
                name, flat[name], [f.name for f in dataclasses.fields(part)]
            )
        if isinstance(flat["max_error"], str):
            flat["max_error"] = _UNBOUNDED.get(flat["max_error"], flat["max_error"])
        if not isinstance(flat["seconds"]["all"], list):
            raise DataError(
                "Expected a list as seconds.all. Received: another type.",
                code="not-a-list",
                operation="seconds.all",
            )
        try:
            flat["seconds"] = Seconds(**flat["seconds"])
            flat["machine"] = Machine(**flat["machine"])
            return cls(**flat)
        except UsageError as error:
            raise DataError(
                f"The record is invalid. {error}",
                code=error.code,
                operation=error.operation,
                received=error.received,
                expected=error.expected,
            ) from error


def _check_versions(_: str, value: object) -> dict[str, str | None]:
    if not isinstance(value, Mapping) or set(value) != set(VERSIONED):
        raise UsageError(
            f"Expected exactly the names {', '.join(VERSIONED)} in versions. Received: {value!r}.",
            code="unknown-name",
            operation="versions",
            received=value,
        )
    for name, version in value.items():
        if version is not None:
            fields.check_record_text(f"versions.{name}", version)
    return {name: value[name] for name in VERSIONED}


def check_record_time(_: str, value: object) -> str:
    """Return a time in the format of `current_record_time`."""
    try:
        offset = datetime.fromisoformat(cast(str, value)).utcoffset()
    except (TypeError, ValueError):
        offset = None
    if offset != timedelta(0):
        raise UsageError(
            f"Expected a time in UTC by ISO 8601, such as {current_record_time()!r}. Received: "
            f"{value!r}.",
            code="invalid-time",
            operation="time",
            received=value,
        )
    return cast(str, value)


def _refuse_record_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


# By the field, or else by its type as it is written above.
_CHECKS: Final[Mapping[str, Callable[[str, object], Any]]] = {
    "max_error": functools.partial(fields.check_record_number, finite=False),
    "versions": _check_versions,
    "time": check_record_time,
    "str": fields.check_record_text,
    "int": fields.check_record_count,
    "float": fields.check_record_number,
    "bool": fields.check_record_bool,
    "Mapping[str, Any]": fields.copy_json_object,
    "PerParty": fields.check_per_party(fields.check_record_count),
    "tuple[float, float, float]": fields.check_per_party(fields.check_record_number),
    "tuple[PerParty, ...]": fields.check_per_party(
        fields.check_per_party(fields.check_record_count)
    ),
    "tuple[Mapping[str, Any], ...]": fields.check_per_party(fields.copy_json_object),
}


def _find_record_field_check(
    record_field: dataclasses.Field[Any],
) -> Callable[[str, object], Any] | None:
    return _CHECKS.get(record_field.name) or _CHECKS.get(
        str(record_field.type).removesuffix(" | None")
    )


def _is_optional(record_field: dataclasses.Field[Any]) -> bool:
    return str(record_field.type).endswith(" | None")


class JsonLine(Protocol):
    """A line of JSON: a record, or a measurement of another technology."""

    def to_json(self) -> str: ...


def append_record(path: str | os.PathLike[str], record: JsonLine) -> None:
    """Append the record as one line to a JSON-lines file, created with mode 0600 if missing.

    The line is written in a single write at the end of the file, under a lock, so that several
    commands may share one file.  A write that a full disk cuts short is undone; an incomplete last
    line of another writer is terminated first.

    Raises:
        DataError: the file cannot be written.
    """
    line = (record.to_json() + "\n").encode()
    try:
        written = _append_line(path, line)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise DataError(
            f"Cannot write the record to {os.fspath(path)!r}: {reason}.",
            code="file-not-writable",
            received=path,
        ) from error
    if not written:
        raise DataError(
            f"Cannot append the whole record to {os.fspath(path)!r}. The disk may be full.",
            code="disk-full",
            received=path,
        )


def _append_line(path: str | os.PathLike[str], line: bytes) -> bool:
    """Append a whole line to a file, or nothing; return True if it fits."""
    existed = os.path.lexists(path)
    handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        with contextlib.suppress(OSError):  # not every file system has locks
            fcntl.flock(handle, fcntl.LOCK_EX)
        facts = os.fstat(handle)
        regular, size = stat.S_ISREG(facts.st_mode), facts.st_size
        if size and os.pread(handle, 1, size - 1) != b"\n":
            line = b"\n" + line
        done = False
        try:
            done = os.write(handle, line) == len(line)
            if done and regular:
                done = False
                os.fsync(handle)
                done = os.fstat(handle).st_nlink > 0  # another command may have removed the file
        finally:
            if not done and regular:
                os.ftruncate(handle, size)
                if size == 0 and not existed:
                    os.unlink(path)
        return done
    finally:
        os.close(handle)


def iterate_record_lines(path: str | os.PathLike[str]) -> Iterator[tuple[int, str]]:
    """Yield the lines of a file of records that are not blank, with their numbers from 1.

    Raises:
        DataError: the file cannot be read.
    """
    return (
        (n, line) for n, line in enumerate(read_records_text(path).split("\n"), 1) if line.strip()
    )


def read_records_text(path: str | os.PathLike[str]) -> str:
    """Return the text of a file of records.

    Raises:
        DataError: it cannot be read.
    """
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8 text"
        raise DataError(
            f"Cannot read records from {os.fspath(path)!r}: {reason}.",
            code="file-not-readable" if isinstance(error, OSError) else "not-utf8",
            received=path,
        ) from error


def read_records(path: str | os.PathLike[str]) -> list[Record]:
    """Return the records of a JSON-lines file, in order; blank lines are skipped.

    Raises:
        DataError: the file cannot be read, or a line is not a record (the text gives its number).
    """
    records = []
    for number, line in iterate_record_lines(path):
        try:
            records.append(Record.from_json(line))
        except DataError as error:
            raise error.with_text(f"Line {number} of {os.fspath(path)!r}: {error}") from error
    return records

"""The record of one measurement: everything needed to judge the number and to repeat it.

The printed table is drawn from the record alone (benchmarks/table.py).  A record is made
to be published: it holds no data and no host names, and of the cluster's file only the name.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import stat
import statistics
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar, Final, Protocol, cast

from tfe_bench.benchmarks.fields import (
    AMOUNT,
    COUNT,
    JSON_OBJECT,
    PER_PARTY,
    TEXT,
    PerParty,
    RecordLine,
    RecordPart,
)
from tfe_bench.benchmarks.provenance import (
    VERSIONED,
    Machine,
    commit,
    read_machine_facts,
    versions,
)
from tfe_bench.cluster.schema import (
    Mismatch,
    Rule,
    declare_field,
    flag_field,
    flag_rule,
    header_rule,
    integer_rule,
    list_field,
    list_rule,
    mapping_rule,
    optional_rule,
)
from tfe_bench.errors import DataError, UsageError
from tfe_bench.protocols.session.openings import MAX_OPENINGS

SCHEMA: Final = 1

# Fields that the first records lack.
_LATER: Final = (
    *("cpu_seconds", "messages", "bytes_by_link", "breakdown", "prediction"),
    *("links", "agreement", "error", "instruction_sets", "opened"),
)

_MOST_TIMES: Final = 1 << 20


@dataclass(frozen=True)
class Seconds(RecordPart, subject="seconds of a record"):
    """Wall-clock run times in seconds, in the order of measurement.

    Raises:
        UsageError: no times, a negative or non-finite one, or figures that disagree.
    """

    median: float = declare_field(AMOUNT)
    min: float = declare_field(AMOUNT)
    max: float = declare_field(AMOUNT)
    all: tuple[float, ...] = list_field(AMOUNT, 1, _MOST_TIMES)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, expected in (
            ("median", statistics.median(self.all)),
            ("min", min(self.all)),
            ("max", max(self.all)),
        ):
            received = getattr(self, name)
            if not math.isclose(received, expected, rel_tol=1e-9, abs_tol=1e-12):
                raise UsageError(
                    f"Expected seconds.{name} to be {expected!r}, as computed from seconds.all. "
                    f"Received: {received!r}.",
                    code="inconsistent-times",
                    operation=name,
                    received=received,
                )

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


def _read_time(value: object) -> str:
    try:
        offset = datetime.fromisoformat(cast(str, value)).utcoffset()
    except (TypeError, ValueError):
        offset = None
    if offset != timedelta(0):
        expected = f"a time in UTC by ISO 8601, such as {current_record_time()!r}"
        raise Mismatch(expected, code="invalid-time")
    return cast(str, value)


def _read_file_name(value: object) -> str:
    name: str = TEXT.read(value)
    if "/" in name or "\\" in name:
        raise Mismatch("a file name without folders", "invalid-name")
    return name


def _read_versions(value: object) -> dict[str, str | None]:
    texts = mapping_rule(_TEXT_OR_NONE, len(VERSIONED)).read(value)
    if set(texts) != set(VERSIONED):
        raise Mismatch(f"an object of exactly {', '.join(VERSIONED)}", "unknown-name")
    return {name: texts[name] for name in VERSIONED}


def _read_error(value: object) -> float:
    if value in ("NaN", "Infinity", "-Infinity"):  # (JSON has no such numbers)
        return float(value)
    if type(value) not in (int, float):
        raise Mismatch('a number, "NaN", "Infinity" or "-Infinity"')
    try:
        return float(cast(float, value))
    except OverflowError:
        return math.inf


def _write_error(value: float) -> float | str:
    return value if math.isfinite(value) else json.dumps(value)


TIME = Rule(_read_time)
_TEXT_OR_NONE, _COUNT_OR_NONE = optional_rule(TEXT), optional_rule(COUNT)
_AMOUNT_OR_NONE, _OBJECT_OR_NONE = optional_rule(AMOUNT), optional_rule(JSON_OBJECT)
_COUNTS_OR_NONE = optional_rule(PER_PARTY)
_TEXTS_OR_NONE = optional_rule(list_rule(TEXT, 3, 3))
_AMOUNTS_OR_NONE = optional_rule(list_rule(AMOUNT, 3, 3))
_LINKS_OR_NONE = optional_rule(list_rule(PER_PARTY, 3, 3))
_OBJECTS_OR_NONE = optional_rule(list_rule(JSON_OBJECT, 3, 3))


@dataclass(frozen=True)
class RecordedOpening(RecordPart, subject="openings of a record"):
    """Values of one kind that became public to workers.

    Attributes:
        what: their kind.
        count, bits: the number of values, and the bits of all of them.
        to: the party that learned them; None: all three.
    """

    what: str = declare_field(TEXT)
    count: int = declare_field(COUNT)
    bits: int = declare_field(COUNT)
    to: int | None = declare_field(optional_rule(integer_rule(0, 2)))


_OPENED_OR_NONE = optional_rule(list_rule(header_rule(RecordedOpening), 0, MAX_OPENINGS))


@dataclass(frozen=True, kw_only=True)
class Record(RecordLine, subject="a record of this version"):
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
        instruction_sets: the widest one that each worker's kernels use: "avx2", "avx512", "ifma"
            or "amx".
        opened: what the whole job opened to workers, all its runs together; () for nothing.

    Records of versions without the last fields are read as not measured.

    Raises:
        UsageError: a field has another type, or impossible figures.
    """

    schema: ClassVar[int] = SCHEMA
    later_fields: ClassVar[tuple[str, ...]] = _LATER

    workload: str = declare_field(TEXT)
    parameters: Mapping[str, Any] = declare_field(JSON_OBJECT)
    repeats: int = declare_field(COUNT)
    seconds: Seconds = declare_field(header_rule(Seconds))
    build_seconds: float | None = declare_field(_AMOUNT_OR_NONE)
    start_seconds: float | None = declare_field(_AMOUNT_OR_NONE)
    share_seconds: float | None = declare_field(_AMOUNT_OR_NONE)
    bytes_sent: PerParty | None = declare_field(_COUNTS_OR_NONE)
    frame_bytes: PerParty | None = declare_field(_COUNTS_OR_NONE)
    rounds: int | None = declare_field(_COUNT_OR_NONE)
    rounds_ahead: int | None = declare_field(_COUNT_OR_NONE)
    peak_memory: PerParty | None = declare_field(_COUNTS_OR_NONE)
    idle_memory: PerParty | None = declare_field(_COUNTS_OR_NONE)
    correct: bool | None = declare_field(optional_rule(flag_rule))
    max_error: float | None = declare_field(optional_rule(Rule(_read_error, _write_error)))
    ring: int = declare_field(COUNT)
    fractional_bits: int = declare_field(COUNT)
    protocol: str = declare_field(TEXT)
    profile: str = declare_field(TEXT)
    profile_emulation: str | None = declare_field(_TEXT_OR_NONE)
    tls: bool = flag_field()
    cluster: str = declare_field(Rule(_read_file_name))
    versions: Mapping[str, str | None] = declare_field(Rule(_read_versions), factory=versions)
    machine: Machine = declare_field(header_rule(Machine), factory=read_machine_facts)
    commit: str | None = declare_field(_TEXT_OR_NONE, factory=commit)
    time: str = declare_field(TIME, factory=current_record_time)
    cpu_seconds: tuple[float, float, float] | None = declare_field(_AMOUNTS_OR_NONE, None)
    messages: PerParty | None = declare_field(_COUNTS_OR_NONE, None)
    bytes_by_link: tuple[PerParty, ...] | None = declare_field(_LINKS_OR_NONE, None)
    breakdown: tuple[Mapping[str, Any], ...] | None = declare_field(_OBJECTS_OR_NONE, None)
    prediction: Mapping[str, Any] | None = declare_field(_OBJECT_OR_NONE, None)
    links: Mapping[str, Any] | None = declare_field(_OBJECT_OR_NONE, None)
    agreement: Mapping[str, Any] | None = declare_field(_OBJECT_OR_NONE, None)
    error: Mapping[str, Any] | None = declare_field(_OBJECT_OR_NONE, None)
    instruction_sets: tuple[str, str, str] | None = declare_field(_TEXTS_OR_NONE, None)
    opened: tuple[RecordedOpening, ...] | None = declare_field(_OPENED_OR_NONE, None)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.repeats != len(self.seconds.all):
            raise UsageError(
                f"Expected as many repeats as times. Received: {self.repeats} repeats and "
                f"{len(self.seconds.all)} times.",
                code="length-mismatch",
                operation="repeats",
                received=self.repeats,
            )


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

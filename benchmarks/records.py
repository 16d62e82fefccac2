"""The record of one measurement: everything needed to judge the number and to repeat it.

The printed table is drawn from the record alone (benchmarks/table.py).  A record is made
to be published: it holds no data and no host names, and of the cluster's file only the name.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import importlib.metadata
import json
import math
import os
import platform
import stat
import statistics
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, cast

import tfe_bench
from tfe_bench.errors import DataError, UsageError, did_you_mean

SCHEMA: Final = 1
VERSIONED: Final = ("tfe_bench", "tensorflow", "numpy", "grpcio", "python")

PerParty = tuple[int, int, int]
# Fields that the first records lack.
_LATER: Final = (
    *("cpu_seconds", "messages", "bytes_by_link", "breakdown", "prediction"),
    *("links", "agreement", "error"),
)

_DISTRIBUTIONS: Mapping[str, tuple[str, ...]] = {
    "tensorflow": ("tensorflow", "tensorflow-cpu", "tensorflow-intel", "tf-nightly"),
}


@dataclass(frozen=True, slots=True)
class Seconds:
    """Wall-clock run times in seconds, in the order they were measured.

    Raises:
        UsageError: no times, a negative or non-finite one, or figures that disagree.
    """

    median: float
    min: float
    max: float
    all: tuple[float, ...]

    def __post_init__(self) -> None:
        times = tuple(_number("seconds.all", t) for t in self.all)
        if not times:
            raise UsageError("seconds.all holds one time or more. Received: none.")
        object.__setattr__(self, "all", times)
        for name, expected in (
            ("median", statistics.median(times)),
            ("min", min(times)),
            ("max", max(times)),
        ):
            given = _number(f"seconds.{name}", getattr(self, name))
            if not math.isclose(given, expected, rel_tol=1e-9, abs_tol=1e-12):
                raise UsageError(f"seconds.{name} is {expected!r} by `all`. Received: {given!r}.")
            object.__setattr__(self, name, given)

    @classmethod
    def of(cls, times: Iterable[float]) -> Seconds:
        """Returns the times with their median, least and greatest."""
        every = tuple(times)
        if not every:
            raise UsageError("A measurement has one time or more. Received: none.")
        return cls(float(statistics.median(every)), min(every), max(every), every)


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine that ran the client, and with "local" the workers too.

    Args:
        cpu: the model's name.
        cores: how many this process may use.
        memory_bytes: how much there is to use.
        kernel: system and release.
    """

    cpu: str
    cores: int
    memory_bytes: int
    kernel: str

    def __post_init__(self) -> None:
        _text("machine.cpu", self.cpu)
        _text("machine.kernel", self.kernel)
        object.__setattr__(self, "cores", _count("machine.cores", self.cores))
        object.__setattr__(self, "memory_bytes", _count("machine.memory_bytes", self.memory_bytes))


def machine() -> Machine:
    """Returns this machine, within the limits that its container sets."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    quota = _first_line("/sys/fs/cgroup/cpu.max").split()
    if len(quota) == 2 and quota[0].isdigit():
        cores = min(cores or 1, max(1, math.ceil(int(quota[0]) / int(quota[1]))))
    ceiling = _first_line("/sys/fs/cgroup/memory.max")
    if ceiling.isdigit():
        memory = min(memory, int(ceiling))
    return Machine(_cpu(), cores or 1, memory, f"{platform.system()} {platform.release()}")


def versions() -> dict[str, str | None]:
    """Returns the versions that a result depends on, None for what is not installed.

    Reads the installed packages' metadata and imports none of them.
    """
    found: dict[str, str | None] = {}
    for name in VERSIONED:
        found[name] = next(filter(None, map(_version, _DISTRIBUTIONS.get(name, (name,)))), None)
    found["tfe_bench"] = tfe_bench.__version__  # the code that runs, also from a bare checkout
    found["python"] = platform.python_version()
    return found


@functools.cache
def commit(file: Path = Path(__file__)) -> str | None:
    """Returns the git commit of the checkout that `file` runs from, '+dirty' if it was modified.

    None where the code was installed from a package, or git is missing or refuses. A
    checkout that merely surrounds an installed package does not count. Never raises. The
    first answer is kept: it is the nearest to what was imported.
    """
    real = file.resolve()
    if _git(real.parent, "ls-files", "--error-unmatch", "--", real.name) is None:
        return None
    head = _git(real.parent, "rev-parse", "--verify", "HEAD")
    changes = _git(real.parent, "status", "--porcelain", "--untracked-files=no")
    if not head or changes is None:
        return None
    return f"{head}+dirty" if changes else head


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One measurement.

    Lists of three hold one figure per party. None means "not measured" (another
    framework's process, or a party out of sight), never zero.

    Args:
        workload: its name, as on the command line.
        parameters: what it was run with: JSON values by name.
        repeats: how many timed runs, warm-up not among them.
        seconds: their wall-clock times in seconds, without graph building and start.
        build_seconds: tracing and first call, in seconds.
        start_seconds: starting the workers and joining them, in seconds.
        share_seconds: sharing the inputs and sending them to the workers, in seconds.
        bytes_sent: payload bytes that each party sent in one run.
        frame_bytes: the same with message headers.
        rounds: messages on the critical path, everything counted from a cold start.
        rounds_ahead: the same with the dealer's material already there.
        peak_memory: growth above an idle worker, in bytes.
        idle_memory: an idle worker, in bytes.
        correct: whether the result agrees with the plaintext, None where not checked.
        max_error: greatest absolute difference from the plaintext; may be infinite or NaN.
        ring: bits of the ring.
        fractional_bits: bits after the point.
        protocol: the variant, e.g. "exact" truncation.
        profile: the network profile, e.g. "lan".
        profile_emulation: how it was made, e.g. "netns+tun", with ", host-limited" where the
            links do not hold the profile's figures; None where nothing was shaped.
        links: what the links were measured to hold just before; None where nothing was shaped.
        tls: whether the workers' connections were encrypted.
        cluster: "local", or the file name of the cluster.
        versions: as from `versions()`.
        machine: as from `machine()`.
        commit: as from `commit()`.
        time: of the measurement, ISO 8601 in UTC.
        cpu_seconds: processor time of each worker in one run, user and system, in seconds.
        messages: that each party sent in one run.
        bytes_by_link: payload bytes by sender and receiver.
        breakdown: where each worker's last run went, in seconds (docs/performance.md).
        prediction: as from `prediction.forecast`.
        agreement: of a model's private outputs with plaintext ones: "samples", "top1" and "top5"
            as parts of 1, "largest_error", and "relative_error" of the plaintext's range.
        error: the largest error in the "unit" that it is judged in, and its "value", as from
            `judged.as_json`; None where that is the absolute one.

    Records of before these last fields are read as if nobody had measured them.

    Raises:
        UsageError: a field has another type, or figures that cannot be.
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
    machine: Machine = field(default_factory=machine)
    commit: str | None = field(default_factory=commit)
    time: str = field(default_factory=_now)
    cpu_seconds: tuple[float, float, float] | None = None
    messages: PerParty | None = None
    bytes_by_link: tuple[PerParty, ...] | None = None
    breakdown: tuple[Mapping[str, Any], ...] | None = None
    prediction: Mapping[str, Any] | None = None
    links: Mapping[str, Any] | None = None
    agreement: Mapping[str, Any] | None = None
    error: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        def put(name: str, value: object) -> None:
            object.__setattr__(self, name, value)

        for name in ("workload", "protocol", "profile", "cluster"):
            _text(name, getattr(self, name))
        for name in ("profile_emulation", "commit"):
            if getattr(self, name) is not None:
                _text(name, getattr(self, name))
        if "/" in self.cluster or "\\" in self.cluster:
            raise UsageError(f"cluster is a file name without folders. Received: {self.cluster!r}.")
        put("parameters", _json_object("parameters", self.parameters))
        if self.links is not None:
            put("links", _json_object("links", self.links))
        for name in ("repeats", "ring", "fractional_bits"):
            put(name, _count(name, getattr(self, name)))
        for name in ("rounds", "rounds_ahead"):
            if getattr(self, name) is not None:
                put(name, _count(name, getattr(self, name)))
        for name in ("build_seconds", "start_seconds", "share_seconds"):
            if getattr(self, name) is not None:
                put(name, _number(name, getattr(self, name)))
        for name in ("bytes_sent", "frame_bytes", "messages", "peak_memory", "idle_memory"):
            if getattr(self, name) is not None:
                put(name, _per_party(name, getattr(self, name)))
        for name, check in (
            ("cpu_seconds", _number),
            ("bytes_by_link", _per_party),
            ("breakdown", _json_object),
        ):
            if getattr(self, name) is not None:
                put(name, _three(name, getattr(self, name), check))
        if self.prediction is not None:
            put("prediction", _json_object("prediction", self.prediction))
        if self.agreement is not None:
            put("agreement", _json_object("agreement", self.agreement))
        if self.error is not None:
            put("error", _json_object("error", self.error))
        if self.max_error is not None:
            put("max_error", _number("max_error", self.max_error, finite=False))
        if self.correct is not None:
            put("correct", _truth("correct", self.correct))
        put("tls", _truth("tls", self.tls))
        put("versions", _check_versions(self.versions))
        if not isinstance(self.seconds, Seconds) or not isinstance(self.machine, Machine):
            raise UsageError("`seconds` is a Seconds and `machine` a Machine.")
        if self.repeats != len(self.seconds.all):
            raise UsageError(
                f"repeats is the number of times. Received: {self.repeats} repeats and "
                f"{len(self.seconds.all)} times."
            )
        _check_time(self.time)

    def to_json(self) -> str:
        """Returns the record as one line of ASCII JSON, with the field "schema".

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
        """Returns the record that `to_json` wrote.

        Raises:
            DataError: no JSON, another schema, unknown or missing fields, wrong types.
        """
        try:
            flat = json.loads(text, parse_constant=_refuse_constant)
        except (ValueError, RecursionError) as error:
            raise DataError(f"A record is one JSON object. Received: {error}.") from error
        if not isinstance(flat, dict):
            raise DataError(f"A record is one JSON object. Received: {type(flat).__name__}.")
        schema = flat.pop("schema", None)
        if type(schema) is not int or schema != SCHEMA:
            raise DataError(f"Records of schema {SCHEMA} are read. Received: schema {schema!r}.")
        _check_fields("record", flat, [f.name for f in fields(cls)], _LATER)
        for name, part in (("seconds", Seconds), ("machine", Machine)):
            if not isinstance(flat[name], dict):
                raise DataError(f"A record's {name} is an object. Received: {flat[name]!r}.")
            _check_fields(name, flat[name], [f.name for f in fields(part)])
        if isinstance(flat["max_error"], str):
            flat["max_error"] = _UNBOUNDED.get(flat["max_error"], flat["max_error"])
        if not isinstance(flat["seconds"]["all"], list):
            raise DataError("A record's seconds.all is a list.")
        try:
            flat["seconds"] = Seconds(**flat["seconds"])
            flat["machine"] = Machine(**flat["machine"])
            return cls(**flat)
        except UsageError as error:
            raise DataError(f"A record's figures do not fit. {error}") from error


def append(path: str | os.PathLike[str], record: Record) -> None:
    """Adds the record as one line to a JSON-lines file, which is made with mode 0600 if missing.

    The line goes out in a single write at the end of the file, under a lock, so that several
    commands may share one file.  What a full disk cuts short is taken back; the part of a line that
    something else left at the end is closed off first.

    Raises:
        DataError: the file cannot be written.
    """
    line = (record.to_json() + "\n").encode()
    try:
        written = _append(path, line)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise DataError(f"Cannot write the record to {os.fspath(path)!r}: {reason}.") from error
    if not written:
        raise DataError(f"No room for the record in {os.fspath(path)!r}: the disk may be full.")


def _append(path: str | os.PathLike[str], line: bytes) -> bool:
    """Adds all of a line to a file, or nothing; whether it fitted."""
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
                done = os.fstat(handle).st_nlink > 0  # not one that another command took back
        finally:
            if not done and regular:
                os.ftruncate(handle, size)
                if size == 0 and not existed:
                    os.unlink(path)
        return done
    finally:
        os.close(handle)


def read(path: str | os.PathLike[str]) -> list[Record]:
    """Returns the records of a JSON-lines file, in order; blank lines are skipped.

    Raises:
        DataError: the file cannot be read, or a line is no record (its number is given).
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").split("\n")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8 text"
        raise DataError(f"Cannot read records from {os.fspath(path)!r}: {reason}.") from error
    records = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                records.append(Record.from_json(line))
            except DataError as error:
                raise DataError(f"Line {number} of {os.fspath(path)!r}: {error}") from error
    return records


# --- this machine -----------------------------------------------------------------------------


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _first_line(path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""


def _cpu() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name" and value.strip():
                return value.strip()
    except (OSError, ValueError):
        pass
    return platform.processor() or platform.machine() or "unknown"


def _git(folder: Path, *arguments: str) -> str | None:
    """What git prints, or None if it fails. Runs no hook or monitor of the checkout."""
    command = ["git", "--no-optional-locks", "-c", "core.fsmonitor=false", *arguments]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


# --- checking fields --------------------------------------------------------------------------

_UNBOUNDED: Mapping[str, float] = {
    "NaN": math.nan,
    "Infinity": math.inf,
    "-Infinity": -math.inf,
}
_UNBOUNDED_NAMES: Mapping[str, str] = {str(value): name for name, value in _UNBOUNDED.items()}


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


def _plain(value: Any) -> Any:
    """A NumPy scalar as the Python number it stands for, without importing NumPy."""
    return value.item() if type(value).__module__ == "numpy" and hasattr(value, "item") else value


def _text(name: str, value: object) -> None:
    if not isinstance(value, str) or not value:
        raise UsageError(f"{name} is text. Received: {value!r}.")


def _truth(name: str, value: object) -> bool:
    value = _plain(value)
    if not isinstance(value, bool):
        raise UsageError(f"{name} is true or false. Received: {value!r}.")
    return value


def _count(name: str, value: object) -> int:
    value = _plain(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise UsageError(f"{name} is an integer, 0 or more. Received: {value!r}.")
    return value


def _number(name: str, value: object, *, finite: bool = True) -> float:
    value = _plain(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UsageError(f"{name} is a number. Received: {value!r}.")
    try:
        value = float(value)
    except OverflowError:
        value = math.inf
    if finite and not (math.isfinite(value) and value >= 0):
        raise UsageError(f"{name} is finite and 0 or more. Received: {value!r}.")
    return value


def _per_party(name: str, value: object) -> PerParty:
    if not isinstance(value, list | tuple) or len(value) != 3:
        raise UsageError(f"{name} holds three integers, one per party. Received: {value!r}.")
    return cast(PerParty, tuple(_count(name, v) for v in value))


def _three(name: str, value: object, check: Callable[[str, object], Any]) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple) or len(value) != 3:
        raise UsageError(f"{name} has one entry per party. Received: {value!r}.")
    return tuple(check(name, v) for v in value)


def _json_object(name: str, value: object) -> dict[str, Any]:
    """A deep copy with lists for tuples, so that a record equals what is read back."""
    if not isinstance(value, Mapping) or not all(isinstance(k, str) for k in value):
        raise UsageError(f"{name} are values by name. Received: {value!r}.")
    return {k: _json_value(f"{name}.{k}", v) for k, v in value.items()}


def _json_value(name: str, value: Any) -> Any:
    value = _plain(value)
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    if isinstance(value, list | tuple):
        return [_json_value(name, v) for v in value]
    if isinstance(value, Mapping):
        return _json_object(name, value)
    raise UsageError(f"{name} is a JSON value. Received: {type(value).__name__}.")


def _check_versions(value: object) -> dict[str, str | None]:
    if not isinstance(value, Mapping) or set(value) != set(VERSIONED):
        raise UsageError(f"versions has the names {', '.join(VERSIONED)}. Received: {value!r}.")
    for name, version in value.items():
        if version is not None:
            _text(f"versions.{name}", version)
    return {name: value[name] for name in VERSIONED}


def _check_time(value: object) -> None:
    try:
        offset = datetime.fromisoformat(cast(str, value)).utcoffset()
    except (TypeError, ValueError):
        offset = None
    if offset != timedelta(0):
        raise UsageError(f"time is ISO 8601 in UTC, e.g. {_now()!r}. Received: {value!r}.")


def _check_fields(
    what: str, given: Mapping[str, object], known: list[str], optional: Sequence[str] = ()
) -> None:
    for name in given:
        if name not in known:
            hint = did_you_mean(name, known)
            raise DataError(f"A {what} has no field {name!r}.{hint} Was it written by a newer one?")
    missing = [name for name in known if name not in given and name not in optional]
    if missing:
        raise DataError(f"A {what} lacks {', '.join(missing)}.")

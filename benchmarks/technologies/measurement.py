"""One measurement of another technology, as a line of JSON.

A `Record` (benchmarks/records.py) describes a job of three workers.  A `Measurement` has no
parties: it has named figures, each with a unit, and lists those that are modeled, not measured.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any, ClassVar, Final

from tfe_bench.benchmarks import fields
from tfe_bench.benchmarks.provenance import Machine, commit, read_machine_facts
from tfe_bench.benchmarks.records import Seconds, check_record_time, current_record_time
from tfe_bench.benchmarks.report.annexes import AnnexRecord
from tfe_bench.errors import DataError, UsageError

SCHEMA: Final = "technologies 1"

# The libraries whose versions a measurement contains.
LIBRARIES: Final = ("numpy", "seal-python", "gmpy2", "tenseal", "tensorflow")


def list_versions() -> dict[str, str]:
    """Return the versions of the installed LIBRARIES by name."""
    versions = {}
    for name in LIBRARIES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement(AnnexRecord):
    """The cost of one job by one technology.

    Args:
        technology: "functional", "homomorphic", "storage", "secret-sharing" or "plaintext".
        job: the computation, as on the command line or in a table.
        parameters: JSON values by name; they contain no data.
        seconds: wall-clock times of the runs; None if the job was modeled or is not supported.
        figures: all other results, numbers or texts by name. The name ends with the unit
            (`_seconds`, `_bytes`, `_bits`); a pure number has no unit.
        modeled: names of the figures that a model computed.
        correct: whether the result agrees with plaintext; None without a result to check.
        libraries: versions by name.
        machine: the machine, as `provenance.read_machine_facts()` returns it.
        commit: the commit, as `provenance.commit()` returns it.
        time: the time of the measurement, ISO 8601 in UTC.

    Raises:
        UsageError: a field has another type, a figure is NaN or infinite, or a modeled figure is
            missing.
    """

    schema: ClassVar[str] = SCHEMA

    technology: str
    job: str
    parameters: Mapping[str, Any]
    seconds: Seconds | None
    figures: Mapping[str, Any]
    modeled: tuple[str, ...] = ()
    correct: bool | None = None
    libraries: Mapping[str, str] = field(default_factory=list_versions)
    machine: Machine = field(default_factory=read_machine_facts)
    commit: str | None = field(default_factory=commit)
    time: str = field(default_factory=current_record_time)

    def __post_init__(self) -> None:
        for name in ("technology", "job"):
            fields.check_record_text(name, getattr(self, name))
        for name in ("parameters", "figures", "libraries"):
            object.__setattr__(self, name, fields.copy_json_object(name, getattr(self, name)))
        object.__setattr__(
            self, "modeled", tuple(fields.check_record_text("modeled", n) for n in self.modeled)
        )
        if missing := set(self.modeled) - set(self.figures):
            raise UsageError(
                "Expected names of figures in the field modeled. "
                f"Received: {', '.join(sorted(missing))}.",
                code="unknown-name",
                operation="modeled",
                received=", ".join(sorted(missing)),
            )
        if self.seconds is not None and not isinstance(self.seconds, Seconds):
            raise UsageError(
                f"Expected a Seconds or None for the field seconds. Received: {self.seconds!r}.",
                code="wrong-type",
                operation="seconds",
            )
        if not isinstance(self.machine, Machine):
            raise UsageError(
                f"Expected a Machine for the field machine. Received: {self.machine!r}.",
                code="wrong-type",
                operation="machine",
            )
        if self.correct is not None:
            fields.check_record_bool("correct", self.correct)
        if self.commit is not None:
            fields.check_record_text("commit", self.commit)
        check_record_time("time", self.time)

    def describe_work(self) -> str:
        """Return the name in a list of wrong results."""
        return f"{self.technology} {self.job}"

    def to_json(self) -> str:
        """Return the measurement as one line of ASCII JSON, with the field "schema"."""
        return json.dumps({"schema": SCHEMA, **dataclasses.asdict(self)}, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Measurement:
        """Parse a line that `to_json` wrote.

        Raises:
            DataError: the text is not JSON or has another schema, unknown or missing fields, or
                values of wrong types.
        """
        try:
            flat = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise DataError(
                f"Expected a measurement as one JSON object. Received: {error}.",
                code="invalid-json",
                operation="measurement",
            ) from error
        if not isinstance(flat, dict) or flat.pop("schema", None) != SCHEMA:
            raise DataError(
                f"Expected a measurement of schema {SCHEMA!r}. Received: another JSON value or "
                "schema. Read the file with the version that wrote it.",
                code="unsupported-format",
                operation="measurement",
                expected=SCHEMA,
            )
        fields.check_record_field_names(
            "measurement", flat, [f.name for f in dataclasses.fields(cls)]
        )
        if not isinstance(flat["modeled"], list):
            raise DataError(
                "Expected a list in the measurement's field modeled. "
                f"Received: {flat['modeled']!r}.",
                code="wrong-type",
                operation="modeled",
            )
        for name, part in (("seconds", Seconds), ("machine", Machine)):
            if name == "seconds" and flat[name] is None:
                continue
            if not isinstance(flat[name], dict):
                raise DataError(
                    f"Expected an object in the measurement's field {name}. "
                    f"Received: {flat[name]!r}.",
                    code="wrong-type",
                    operation=name,
                )
            fields.check_record_field_names(
                name, flat[name], [f.name for f in dataclasses.fields(part)]
            )
        try:
            if flat["seconds"] is not None:
                flat["seconds"] = Seconds(**flat["seconds"])
            flat["machine"] = Machine(**flat["machine"])
            return cls(**flat)
        except (UsageError, TypeError) as error:
            raise DataError(
                f"The fields of a measurement are invalid. {error}",
                code="invalid-measurement",
            ) from error


def select_measurements(records: Iterable[object]) -> list[Measurement]:
    """Return the records that are measurements of other technologies."""
    return [record for record in records if isinstance(record, Measurement)]

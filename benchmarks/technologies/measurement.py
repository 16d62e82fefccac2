"""One measurement of another technology, as a line of JSON.

A `Record` (benchmarks/records.py) is a job of three workers.  Here nothing is known of parties: a
measurement has named figures, each with a unit, and says which of them are models and not measured.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any, Final

from tfe_bench.benchmarks import fields
from tfe_bench.benchmarks.provenance import Machine, commit, machine
from tfe_bench.benchmarks.records import Seconds, check_time, current_time
from tfe_bench.errors import DataError, UsageError

SCHEMA: Final = "technologies 1"

# The libraries whose versions a measurement names.
LIBRARIES: Final = ("numpy", "seal-python", "gmpy2", "tenseal", "tensorflow")


def list_versions() -> dict[str, str]:
    """Versions of those LIBRARIES that are installed."""
    found = {}
    for name in LIBRARIES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """What one job of one technology cost.

    Args:
        technology: "functional", "homomorphic", "storage", "secret-sharing" or "plaintext".
        job: what was computed, as on the command line or in a table.
        parameters: it ran with, JSON values by name; no data.
        seconds: wall-clock times of its runs; None where it was modeled or is not supported.
        figures: all else that is told, numbers or words by name; the unit ends the name
            (`_seconds`, `_bytes`, `_bits`), a pure number has none.
        modeled: names of figures that a model gave.
        correct: whether the result agrees with plaintext; None where there is none to check.
        libraries: versions by name.
        machine: as from `provenance.machine()`.
        commit: as from `provenance.commit()`.
        time: of the measurement, ISO 8601 in UTC.

    Raises:
        UsageError: a field has another type, a figure is NaN or infinite, or a modeled one missing.
    """

    technology: str
    job: str
    parameters: Mapping[str, Any]
    seconds: Seconds | None
    figures: Mapping[str, Any]
    modeled: tuple[str, ...] = ()
    correct: bool | None = None
    libraries: Mapping[str, str] = field(default_factory=list_versions)
    machine: Machine = field(default_factory=machine)
    commit: str | None = field(default_factory=commit)
    time: str = field(default_factory=current_time)

    def __post_init__(self) -> None:
        for name in ("technology", "job"):
            fields.check_text(name, getattr(self, name))
        for name in ("parameters", "figures", "libraries"):
            object.__setattr__(self, name, fields.copy_json_object(name, getattr(self, name)))
        object.__setattr__(
            self, "modeled", tuple(fields.check_text("modeled", n) for n in self.modeled)
        )
        if missing := set(self.modeled) - set(self.figures):
            raise UsageError(f"modeled names figures. Received: {', '.join(sorted(missing))}.")
        if self.seconds is not None and not isinstance(self.seconds, Seconds):
            raise UsageError(f"seconds is a Seconds or None. Received: {self.seconds!r}.")
        if not isinstance(self.machine, Machine):
            raise UsageError(f"machine is a Machine. Received: {self.machine!r}.")
        if self.correct is not None:
            fields.check_bool("correct", self.correct)
        if self.commit is not None:
            fields.check_text("commit", self.commit)
        check_time("time", self.time)

    def to_json(self) -> str:
        """One line of ASCII JSON, with the field "schema"."""
        return json.dumps({"schema": SCHEMA, **dataclasses.asdict(self)}, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Measurement:
        """What `to_json` wrote.

        Raises:
            DataError: no JSON, another schema, unknown or missing fields, wrong types.
        """
        try:
            flat = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise DataError(f"A measurement is one JSON object. Received: {error}.") from error
        if not isinstance(flat, dict) or flat.pop("schema", None) != SCHEMA:
            raise DataError(f"A measurement is an object of schema {SCHEMA!r}.")
        fields.check_names("measurement", flat, [f.name for f in dataclasses.fields(cls)])
        if not isinstance(flat["modeled"], list):
            raise DataError("A measurement's modeled is a list.")
        for name, part in (("seconds", Seconds), ("machine", Machine)):
            if name == "seconds" and flat[name] is None:
                continue
            if not isinstance(flat[name], dict):
                raise DataError(f"A measurement's {name} is an object. Received: {flat[name]!r}.")
            fields.check_names(name, flat[name], [f.name for f in dataclasses.fields(part)])
        try:
            if flat["seconds"] is not None:
                flat["seconds"] = Seconds(**flat["seconds"])
            flat["machine"] = Machine(**flat["machine"])
            return cls(**flat)
        except (UsageError, TypeError) as error:
            raise DataError(f"A measurement's figures do not fit. {error}") from error

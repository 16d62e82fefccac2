"""One measurement of another technology, as a line of JSON.

A `Record` (benchmarks/records.py) describes a job of three workers.  A `Measurement` has no
parties: it has named figures, each with a unit, and lists those that are modeled, not measured.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import metadata
from typing import Any, ClassVar, Final

from tfe_bench.benchmarks.fields import JSON_OBJECT, TEXT, RecordLine
from tfe_bench.benchmarks.provenance import Machine, commit, read_machine_facts
from tfe_bench.benchmarks.records import TIME, Seconds, current_record_time
from tfe_bench.benchmarks.report.annexes import AnnexRecord
from tfe_bench.cluster.schema import (
    declare_field,
    flag_rule,
    header_rule,
    list_field,
    optional_rule,
)
from tfe_bench.errors import UsageError

SCHEMA: Final = "technologies 1"
_MOST_FIGURES: Final = 1 << 16

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


@dataclass(frozen=True, kw_only=True)
class Measurement(RecordLine, AnnexRecord, subject="a measurement of this version"):
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

    technology: str = declare_field(TEXT)
    job: str = declare_field(TEXT)
    parameters: Mapping[str, Any] = declare_field(JSON_OBJECT)
    seconds: Seconds | None = declare_field(optional_rule(header_rule(Seconds)))
    figures: Mapping[str, Any] = declare_field(JSON_OBJECT)
    modeled: tuple[str, ...] = list_field(TEXT, 0, _MOST_FIGURES, default=())
    correct: bool | None = declare_field(optional_rule(flag_rule), None)
    libraries: Mapping[str, str] = declare_field(JSON_OBJECT, factory=list_versions)
    machine: Machine = declare_field(header_rule(Machine), factory=read_machine_facts)
    commit: str | None = declare_field(optional_rule(TEXT), factory=commit)
    time: str = declare_field(TIME, factory=current_record_time)

    def __post_init__(self) -> None:
        super().__post_init__()
        if missing := set(self.modeled) - set(self.figures):
            raise UsageError(
                "Expected names of figures in the field modeled. "
                f"Received: {', '.join(sorted(missing))}.",
                code="unknown-name",
                operation="modeled",
                received=", ".join(sorted(missing)),
            )

    def describe_work(self) -> str:
        """Return the name in a list of wrong results."""
        return f"{self.technology} {self.job}"


def select_measurements(records: Iterable[object]) -> list[Measurement]:
    """Return the records that are measurements of other technologies."""
    return [record for record in records if isinstance(record, Measurement)]

"""Sections of the report, and their kinds of records, that annexes and other packages register."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from tfe_bench import extensions
from tfe_bench.benchmarks.provenance import Machine
from tfe_bench.benchmarks.report.drawing import Maker, Picture
from tfe_bench.benchmarks.report.parts import Section
from tfe_bench.errors import ConfigError

GROUP = "tfe_bench.report_sections"


class AnnexRecord:
    """Base of records of other kinds than the core's.

    Attributes:
        schema: the field "schema" of its JSON object.
        time: the time, ISO 8601 in UTC.
        machine: the machine that was measured.
        correct: True or False for a checked result; None without a check.
    """

    schema: ClassVar[str]
    time: str
    machine: Machine
    correct: bool | None

    def describe_work(self) -> str:
        """Return the name in a list of wrong results."""
        raise NotImplementedError

    def to_json(self) -> str:
        """Return the record as one line."""
        raise NotImplementedError


@dataclass(frozen=True)
class ReportSections:
    """The sections of an annex or of another package.

    Attributes:
        schema: the field "schema" of its records.
        parse_record: reads an untrusted record from JSON; raises DataError.
        picture_names: the names of all pictures.
        list_pictures: returns the maker of each picture, by name.
        build_sections: returns the sections of records and drawn pictures; none without records.
        introduction: a sentence for the introduction of a page with such records.
    """

    schema: str
    parse_record: Callable[[str], AnnexRecord]
    picture_names: tuple[str, ...]
    list_pictures: Callable[[Sequence[Any]], Mapping[str, Maker]]
    build_sections: Callable[[Sequence[Any], Mapping[str, Picture]], list[Section]]
    introduction: str = ""

    def select_records(self, records: Sequence[AnnexRecord]) -> list[AnnexRecord]:
        """Return the records of its schema."""
        return [record for record in records if record.schema == self.schema]


@functools.cache
def load_report_sections() -> tuple[dict[str, ReportSections], tuple[ConfigError, ...]]:
    """Return the registered sections by the schema of their records, and errors of broken ones."""
    sections: dict[str, ReportSections] = {}
    refused = []
    points = extensions.list_entry_points(GROUP).values()
    for point in sorted(points, key=extensions.is_own, reverse=True):
        try:
            loaded = extensions.load_entry_point(point, ReportSections)
        except ConfigError as error:
            refused.append(error)
            continue
        if sections.setdefault(loaded.schema, loaded) is not loaded:
            refused.append(
                ConfigError(
                    f"Report sections for records of schema {loaded.schema!r} exist. Received: "
                    f"other ones, {point.value}. Uninstall their package.",
                    code="duplicate-name",
                    operation=loaded.schema,
                    received=point.value,
                )
            )
    return sections, tuple(refused)


def find_report_sections(schema: object) -> ReportSections | None:
    """Return the sections for records of a schema; None for records of the core.

    Raises:
        ConfigError: no package has the schema, and a package cannot be loaded.
    """
    if not isinstance(schema, str):
        return None
    sections, refused = load_report_sections()
    unloaded = [error for error in refused if error.code == "extension-not-loadable"]
    if schema not in sections and unloaded:
        raise unloaded[0]
    return sections.get(schema)

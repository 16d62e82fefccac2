"""The sections of `report` on other technologies; each technology has its own module."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Final

from tfe_bench.benchmarks.report.annexes import ReportSections
from tfe_bench.benchmarks.report.drawing import Maker, Picture
from tfe_bench.benchmarks.report.parts import Section
from tfe_bench.benchmarks.technologies.compare import page as compare
from tfe_bench.benchmarks.technologies.compare import table
from tfe_bench.benchmarks.technologies.functional import page as functional
from tfe_bench.benchmarks.technologies.homomorphic import page as homomorphic
from tfe_bench.benchmarks.technologies.measurement import SCHEMA, Measurement
from tfe_bench.benchmarks.technologies.storage import page as storage

# Modules with NAMES of pictures, `list_pictures(measured)`, which returns their makers, and
# `build_sections(measured, pictures)`, which is empty without measurements of the technology.
PAGES: Final[tuple[ModuleType, ...]] = (compare, functional, homomorphic, storage)


def list_technology_pictures(measured: Sequence[Measurement]) -> dict[str, Maker]:
    """Return the makers of the pictures of all pages, by name."""
    return {
        name: make
        for page in PAGES
        for name, make in page.list_pictures(_select_technology_page(page, measured)).items()
    }


def build_technology_sections(
    measured: Sequence[Measurement], pictures: Mapping[str, Picture]
) -> list[Section]:
    """Build the sections of all pages, in order."""
    return [
        section
        for page in PAGES
        for section in page.build_sections(_select_technology_page(page, measured), pictures)
    ]


def _select_technology_page(page: ModuleType, measured: Sequence[Measurement]) -> list[Measurement]:
    """Select the measurements of a page; only the comparison's page shows its cells."""
    return [m for m in measured if table.is_technology_cell(m) == (page is compare)]


SECTIONS: Final = ReportSections(
    schema=SCHEMA,
    parse_record=Measurement.from_json,
    picture_names=tuple(name for page in PAGES for name in page.NAMES),
    list_pictures=list_technology_pictures,
    build_sections=build_technology_sections,
    introduction="Beside it, other ways to compute on what stays private.",
)

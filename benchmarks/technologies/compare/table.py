"""All cells of the table: measured in sequence and compared with plaintext."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from tfe_bench.benchmarks.technologies.compare.cells import (
    TECHNOLOGIES,
    unsupported_technology_cell,
)
from tfe_bench.benchmarks.technologies.compare.tasks import JOBS, ComparedTask
from tfe_bench.benchmarks.technologies.measurement import Measurement
from tfe_bench.errors import ConfigError, OpsMissing


class Technology(Protocol):
    """The interface of a technology: it measures tasks."""

    def measure_task(self, task: ComparedTask) -> Measurement: ...


# Builds a technology before its first task.
Maker = Callable[[], Technology]


def measure_tasks(
    makers: Mapping[str, Maker],
    tasks: Sequence[ComparedTask],
    progress: Callable[[float, str], None],
) -> Iterator[Measurement]:
    """Measure every task by every technology, task by task.

    Cells of a technology without its library contain that reason.

    Args:
        makers: factories by name, in the order of the table's columns; plaintext first.
        tasks: the rows of the table.
        progress: receives the finished fraction and a text.
    """
    technologies: dict[str, Technology | ConfigError | OpsMissing] = {}
    cells = [(task, name) for task in tasks for name in makers]
    plain: Measurement | None = None
    for number, (task, name) in enumerate(cells):
        progress(number / len(cells), f"{task.label}, {name}")
        if name not in technologies:
            try:
                technologies[name] = makers[name]()
            except (ConfigError, OpsMissing) as error:
                technologies[name] = error
        technology = technologies[name]
        if isinstance(technology, ConfigError | OpsMissing):
            yield unsupported_technology_cell(name, task, f"not measured. {technology}")
            continue
        cell = technology.measure_task(task)
        if name == "plaintext":
            plain = cell
        yield add_slowdown(cell, plain)


def add_slowdown(cell: Measurement, plain: Measurement | None) -> Measurement:
    """Return the cell with its slowdown against plaintext."""
    times = [None if m is None else technology_cell_seconds(m) for m in (cell, plain)]
    if times[0] is None or not times[1]:
        return cell
    figures = {**cell.figures, "slowdown": times[0] / times[1]}
    modeled = cell.modeled
    if "latency_seconds" in modeled:
        modeled = (*modeled, "slowdown")
    return replace(cell, figures=figures, modeled=modeled)


def select_technology_cells(measurements: Sequence[Measurement]) -> list[Measurement]:
    """Select the newest measurement of each cell, in the table's order."""
    newest: dict[tuple[str, str, str], Measurement] = {}
    for m in sorted(measurements, key=lambda m: m.time):
        if is_technology_cell(m):
            newest[m.job, technology_cell_variant(m), m.technology] = m
    first = {
        (m.job, technology_cell_variant(m)): i for i, m in reversed([*enumerate(newest.values())])
    }

    def place(m: Measurement) -> tuple[int, int, int]:
        row = first[m.job, technology_cell_variant(m)]
        return [*JOBS].index(m.job), row, TECHNOLOGIES.index(m.technology)

    return sorted(newest.values(), key=place)


def is_technology_cell(m: Measurement) -> bool:
    """Return whether a measurement belongs to this table, not to a technology's own command."""
    return m.job in JOBS and m.technology in TECHNOLOGIES and "variant" in m.parameters


def technology_cell_variant(m: Measurement) -> str:
    """Return the variant of a cell: the row within its job."""
    return str(m.parameters.get("variant", ""))


def technology_cell_seconds(m: Measurement, network: str = "local") -> float | None:
    """Return seconds of a cell, measured locally or modeled for a network; None without a time."""
    return read_technology_figure(
        m, "latency_seconds" if network == "local" else f"{network}_seconds"
    )


def read_technology_figure(m: Measurement, name: str) -> float | None:
    """Read a number of an untrusted record; None if it is missing or no number."""
    value: Any = m.figures.get(name)
    known = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if known else None

"""Columns of the pages' tables: a figure or parameter of a measurement, and its format.

Records are untrusted: a value that is missing, or not a number, is an empty cell.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tfe_bench.benchmarks.report import cells
from tfe_bench.benchmarks.report.parts import NOTHING, Cell, Table
from tfe_bench.benchmarks.technologies.measurement import Measurement

Column = Callable[[Measurement], Cell]
# Formats a number, or its absence.
Format = Callable[[Any], Cell]


def read_number(values: Mapping[str, Any], name: str) -> Any:
    """Return a number of an untrusted record; None if it is missing or no number."""
    value = values.get(name)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value if is_number else None


def scale_number(value: float | None, scale: float) -> float | None:
    """Return scale * value; None without a value."""
    return None if value is None else scale * value


def figure_column(name: str, show: Format = cells.seconds, scale: float = 1) -> Column:
    """Return a column of scale * a figure."""
    return lambda m: show(scale_number(read_number(m.figures, name), scale))


def parameter_column(name: str, show: Format = cells.seconds) -> Column:
    """Return a column of a parameter that is a number."""
    return lambda m: show(read_number(m.parameters, name))


def text_column(name: str, values: str = "figures") -> Column:
    """Return a column of a text among the figures or parameters."""
    return lambda m: str(getattr(m, values).get(name, ""))


def median_column(scale: float = 1) -> Column:
    """Return a column of scale * the median run time."""
    return lambda m: cells.seconds(scale * m.seconds.median if m.seconds else None)


def format_rounded(value: float | None) -> Cell:
    """Format a number without decimals."""
    return cells.whole(None if value is None else round(value))


def format_error(value: float | None) -> Cell:
    """Format an error with two digits."""
    return NOTHING if value is None else f"{value:.1e}"


def build_table(
    columns: Mapping[str, Column], measured: Iterable[Measurement], caption: str
) -> Table:
    """Return a table of measurements, one line each."""
    return Table([*columns], [[cell(m) for cell in columns.values()] for m in measured], caption)

"""Relational workloads: tables generated from a seed, and a SQL query on them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from tfe_bench.errors import UsageError

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class GeneratedTable:
    """One generated table.

    Attributes:
        columns: int64 each: numbers, hundredths of a decimal(2), days of a date, positions of a
            word in its category.
        types: types of the columns, as `table put` takes them.
        unique: columns without repeated values.
        hashed_by, links: as `table put` takes them; link targets come first.
    """

    columns: Mapping[str, Ints]
    types: Mapping[str, str]
    unique: tuple[str, ...] = ()
    hashed_by: str = ""
    links: tuple[str, ...] = ()

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(next(iter(self.columns.values())))


@dataclass(frozen=True)
class RelationalWorkload:
    """A query on tables.

    Attributes:
        name: as on the command line.
        about: the question, and its source.
        sql: in DuckDB's dialect.
        make: function from a size and a random generator to tables by name.
        sizes: sizes for `make`: the usual one, and a small one.
        scaled: True if the size is a scale factor, not a number of rows.
    """

    name: str
    about: str
    sql: str
    make: Callable[[float, np.random.Generator], Mapping[str, GeneratedTable]]
    sizes: tuple[float, float]
    scaled: bool = False
    doc: Mapping[str, Any] = field(default_factory=dict)

    def make_tables(self, size: float, seed: int) -> Mapping[str, GeneratedTable]:
        """Make the tables of the query.

        Raises:
            UsageError: the size is out of range.
        """
        if not 0 < size <= (100 if self.scaled else 2**31):
            size_range = "a scale factor above 0, 100 at most" if self.scaled else "1 to 2^31 rows"
            raise UsageError(
                f"{self.name} takes {size_range}. Received: {size:g}.",
                code="number-out-of-range",
                operation=self.name,
                received=size,
                expected=size_range,
            )
        return self.make(size, np.random.default_rng(seed))


def to_arrow(table: GeneratedTable) -> Any:
    """Return a table of pyarrow."""
    import pyarrow

    return pyarrow.table(
        {name: _to_arrow_array(v, table.types[name]) for name, v in table.columns.items()}
    )


def _to_arrow_array(values: Ints, kind: str) -> Any:
    import pyarrow

    word, _, inside = kind.partition("(")
    if word == "category":
        words = pyarrow.array(inside.rstrip(")").split(","))
        return pyarrow.DictionaryArray.from_arrays(values.astype(np.int32), words).cast("string")
    if word == "decimal":
        # 128 bits, the low word first
        halves = np.stack([values, values >> 63], 1)
        data = pyarrow.py_buffer(np.ascontiguousarray(halves))
        return pyarrow.Array.from_buffers(pyarrow.decimal128(18, 2), len(values), [None, data])
    if word.startswith("date"):
        return pyarrow.array(values.astype(np.int32), pyarrow.date32())
    if word == "bool":
        return pyarrow.array(values != 0)
    return pyarrow.array(values)

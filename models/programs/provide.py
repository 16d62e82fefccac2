"""The program "provide": the workers keep an owner's rows, for others to train on.

What is public: how many rows, which shape, names of columns, the owner, and who may use them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tfe_bench.cluster.jobs import InputSpec
from tfe_bench.cluster.stored import DATA, check_about
from tfe_bench.errors import UsageError
from tfe_bench.models import kept
from tfe_bench.models.csv_file import MOST_TEXT
from tfe_bench.models.rows import LABEL_BITS
from tfe_bench.models.tables import TARGETS, Table

NAME_IS = "A data set's name"
_FACTS = ("rows", "x", "y", "target", "classes", "columns")
# Of a Table, besides: there for tables that were read from files.
UNITS = ("label", "classes", "scale", "unit")


def check(parameters: Mapping[str, Any], inputs: Sequence[InputSpec]) -> None:
    """Refuses what is no data set.

    Raises:
        UsageError: naming what does not fit.
    """
    about = kept.check_keeping("provide", parameters, NAME_IS)
    if set(about) - {"units"} != set(_FACTS):
        raise UsageError(f'"about" holds {", ".join(_FACTS)}.')
    rows, classes = about["rows"], about["classes"]
    if type(rows) is not int or rows < 1 or type(classes) is not int or classes < 1:
        raise UsageError("A data set has 1 row or more, and 1 class or more.")
    check_about(about)
    if about["target"] not in TARGETS:
        raise UsageError(f"A target is {', '.join(TARGETS)}.")
    columns = about["columns"]
    if not isinstance(columns, list) or not all(
        isinstance(c, str) and len(c) <= MOST_TEXT for c in columns
    ):
        raise UsageError(f"Names of columns are texts of at most {MOST_TEXT} characters.")
    if columns and about["x"] != [len(columns)]:
        raise UsageError(
            f"Every feature has a name, or none has. Received: {len(columns)} names of columns for "
            f"features {about['x']}."
        )
    table_of(about)
    # Features have the scale that their owner says; a training refuses another than its own.
    bits = {"x": next((i.fractional_bits for i in inputs if i.name == "x"), 0), "y": LABEL_BITS}
    wanted = [
        InputSpec(part, (rows, *about[part]), bits[part])
        for part in ("x", "y")
        if _is_shape(about[part])
    ]
    if not wanted or list(inputs) != wanted:
        raise UsageError(
            f"The inputs of a data set are its rows as it says: x {about['x']}, y {about['y']}. "
            f"Received: {[(i.name, list(i.shape), i.fractional_bits) for i in inputs][:4]}."
        )


def table_of(about: Mapping[str, Any]) -> Table | None:
    """What a data set's rows are to a model; None where its owner did not say.

    Raises:
        UsageError, DataError: it is no table, or another than the rows.
    """
    units = about.get("units")
    if units is None:
        return None
    if not isinstance(units, Mapping) or set(units) != set(UNITS):
        raise UsageError(f'"units" holds {", ".join(UNITS)}.')
    known = {"columns": about["columns"], "target": about["target"], "logits": True}
    return Table.of({**units, **known})


def _is_shape(value: object) -> bool:
    if value is None:
        return False
    if not isinstance(value, list) or not all(type(n) is int and n > 0 for n in value):
        raise UsageError("A shape is a list of positive integers, or null.")
    return True


PROGRAM = kept.keeping("provide", DATA, check, "keeps an owner's rows")

"""Stored items as private arrays: stored arrays, columns of tables, and data sets."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from tfe_bench.arrays import lineage
from tfe_bench.arrays.array import PrivateArray
from tfe_bench.arrays.array_spec import DECIMAL, FIXED, ArraySpec
from tfe_bench.arrays.bounds import Bounds
from tfe_bench.arrays.node import ExpressionNode
from tfe_bench.arrays.plan import STORED, ExpressionLeaf
from tfe_bench.cluster.stored import ARRAY, DATA, LABEL_BITS, TABLE, check_name
from tfe_bench.cluster.stored_shares import StoredEntry
from tfe_bench.errors import UsageError, did_you_mean
from tfe_bench.queries.schema import TableSchema
from tfe_bench.queries.types import FRACTION, ColumnType

if TYPE_CHECKING:
    from tfe_bench.cluster.client import Client

_KINDS = (ARRAY, TABLE, DATA)


def _stored_array(
    cluster: Client, spec: ArraySpec, *about: str, bounds: Bounds | None = None
) -> PrivateArray:
    leaf = ExpressionLeaf(STORED, spec.kind, spec.shape, spec.scale, about)
    if spec.kind == DECIMAL:  # (the plan begins with the conversion)
        spec = ArraySpec(FIXED, spec.shape, FRACTION)
    return PrivateArray(cluster, ExpressionNode(spec, leaf=leaf, bounds=bounds))


def _column_bounds(column_type: ColumnType, spec: ArraySpec) -> Bounds:
    """Return the bounds of a column's elements, at the scale of its array."""
    scale = FRACTION if spec.kind == DECIMAL else spec.scale
    unit = Fraction(1 << scale, column_type.denominator)
    bounds = Bounds(math.floor(column_type.low * unit), math.ceil(column_type.high * unit))
    return bounds if unit == 1 else bounds.spread()


class Columns:
    """A table or data set at the workers: `rows["income"]` is a column as a private array.

    Args:
        cluster: cluster that stores it.
        infix: its kind of stored item.
        kept: its entry in the workers' list.
    """

    def __init__(self, cluster: Client, infix: str, entry: StoredEntry) -> None:
        self._cluster, self._infix, self._kept = cluster, infix, entry

    @property
    def owner(self) -> str:
        """The client that stored it."""
        return self._kept.owner

    @property
    def columns(self) -> list[str]:
        """Names of columns; for a data set also x, all features, and y, the label."""
        if self._infix == TABLE.infix:
            return list(TableSchema.from_header(self._kept.about).columns)
        about = self._kept.about
        return [*(part for part in ("x", "y") if about[part] is not None), *about["columns"]]

    def __getitem__(self, column: str) -> PrivateArray:
        name, deployment = self._kept.name, self._kept.deployment
        if column not in self.columns:
            raise UsageError(
                f"{name!r} has no column "
                f"{str(column)[:80]!r}.{did_you_mean(str(column), self.columns)} Columns: "
                f"{', '.join(self.columns[:20])}.",
                code="column-not-found",
                operation=name,
                received=str(column)[:80],
            )
        if self._infix == TABLE.infix:
            schema = TableSchema.from_header(self._kept.about)
            spec, column_type = (
                lineage.column_spec(name, schema, column),
                schema.columns[column].type,
            )
            about = (self._infix, name, deployment, column)
            return _stored_array(
                self._cluster, spec, *about, bounds=_column_bounds(column_type, spec)
            )
        if column not in ("x", "y"):
            return self["x"][:, self._kept.about["columns"].index(column)]
        scale = LABEL_BITS if column == "y" else self._cluster.config.fractional_bits
        spec = lineage.dataset_part_spec(name, self._kept.about, column, scale)
        return _stored_array(self._cluster, spec, self._infix, name, deployment, column)

    def __repr__(self) -> str:
        return f"Columns({self._kept.name!r}, owner={self.owner!r}, columns={self.columns[:20]})"


def load_stored_array(cluster: Client, name: str) -> Any:
    """Load a stored item that this client may use, by name.

    Returns:
        a PrivateArray, or Columns of a table or data set.

    Raises:
        UsageError: no item has the name, or several have.
    """
    if not isinstance(name, str):
        raise UsageError(
            f"Expected the name of a stored item. Received: {type(name).__name__}.",
            code="wrong-type",
            operation="name",
            received=type(name).__name__,
        )
    matching: list[tuple[str, dict[str, Any]]] = []
    names: list[str] = []
    for kind in _KINDS:
        for row in cluster.stored(kind.infix):
            names.append(str(row["name"]))
            if row["name"] == name:
                matching.append((kind.infix, row))
    if len(matching) != 1:
        count_text = "nothing" if not matching else "several things"
        raise UsageError(
            f"The workers store {count_text} under the name {name[:80]!r} that this client "
            f"may use as private arrays.{did_you_mean(name, names)}",
            code="array-not-found",
            received=name[:80],
        )
    infix, row = matching[0]
    entry = StoredEntry.from_row(row)
    if not entry.complete:
        raise UsageError(
            f"Not all workers store {name!r}. Ask its owner to store it again.",
            code="incomplete-item",
            operation=name,
        )
    if infix != ARRAY.infix:
        return Columns(cluster, infix, entry)
    return _stored_array(
        cluster, lineage.parse_array_header(entry.about), infix, name, entry.deployment, ""
    )


def remove_array(cluster: Client, name: str) -> None:
    """Remove an array that this client stored.

    Raises:
        UsageError: no stored array has this name.
    """
    cluster.run("array_remove", {"name": check_name(name, "An array's name")}, {})


def list_arrays(cluster: Client) -> dict[str, StoredEntry]:
    """Return the stored private arrays that this client may use, by name."""
    return {str(row["name"]): StoredEntry.from_row(row) for row in cluster.stored(ARRAY.infix)}

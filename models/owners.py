"""Data that its owners provide: rows or columns whose shares workers keep, for others to train on.

An owner shares its rows once (program "provide") and says which clients may use them. Whoever may
orders trainings on them (program "train") and gets their results; nobody sees the rows, but a
trained model tells about the data it was trained on whatever it tells: that is what the owner
permits.

What is public: how many rows, which shape, names of columns, the owner, and who may use them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tfe_bench.cluster.client import Client
from tfe_bench.cluster.requests import JobResult, PrivateInput, Progress, spec_of
from tfe_bench.cluster.stored import DATA, check_name
from tfe_bench.models.datasets import Rows
from tfe_bench.models.kept import Kept, ordered
from tfe_bench.models.programs import provide as program
from tfe_bench.models.rows import encoded_labels, shared_features, shared_targets
from tfe_bench.models.tables import Table


def listed(cluster: Client) -> dict[str, Kept]:
    """The data sets that a client may use, by name."""
    return {str(row["name"]): Kept.of(row) for row in cluster.stored(DATA.infix)}


def provide(
    cluster: Client,
    name: str,
    rows: Rows,
    clients: Sequence[str] = (),
    replace: bool = False,
    progress: Progress | None = None,
) -> JobResult:
    """Shares rows among the workers, which keep them under a name for others to train on.

    Args:
        rows: features, labels, or both.
        clients: who may train on them besides this one; "*" for every client of the cluster.
        replace: what this client provided under the name before.

    Raises:
        UsageError: the name is none or taken.
        RangeError: values that do not fit.
        PolicyError: an operator does not let this client provide.
    """
    inputs: dict[str, PrivateInput] = {}
    if rows.x is not None:
        inputs["x"] = shared_features(rows.x, cluster.config.fractional_bits)
    if rows.y is not None:
        inputs["y"] = shared_targets(encoded_labels(rows))
    about = {
        "rows": len(rows),
        "x": list(inputs["x"].shape[1:]) if "x" in inputs else None,
        "y": list(inputs["y"].shape[1:]) if "y" in inputs else None,
        "target": rows.target,
        "classes": rows.classes,
        "columns": list(rows.columns),
        **_units(rows.table),
    }
    parameters = ordered(name, clients, replace, about)
    specs = [spec_of(name, value) for name, value in inputs.items()]
    program.check(parameters, specs)  # here too: a mistake costs nothing then
    return cluster.run("provide", parameters, inputs, progress)


def _units(table: Table | None) -> dict[str, Any]:
    if table is None:
        return {}
    header = table.header()
    return {"units": {key: header[key] for key in program.UNITS}}


def withdraw(cluster: Client, name: str) -> None:
    """Removes a data set of this client's from all workers."""
    cluster.run("withdraw", {"name": check_name(name, program.NAME_IS)}, {})

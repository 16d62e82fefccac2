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

import numpy as np

from tfe_bench.cluster.client import Client
from tfe_bench.cluster.requests import AnyInput, JobResult, Progress, input_spec
from tfe_bench.cluster.stored import DATA, check_name
from tfe_bench.errors import RangeError, UsageError
from tfe_bench.models import service
from tfe_bench.models.datasets import Rows
from tfe_bench.models.private import PrivateModel
from tfe_bench.models.programs import provide as program
from tfe_bench.models.rows import encode_labels, share_features, share_targets
from tfe_bench.models.stored_shares import StoredEntry, storage_parameters
from tfe_bench.models.tables import Table


def list_datasets(cluster: Client) -> dict[str, StoredEntry]:
    """The data sets that a client may use, by name."""
    return {str(row["name"]): StoredEntry.from_row(row) for row in cluster.stored(DATA.infix)}


def provide(
    cluster: Client,
    name: str,
    rows: Rows,
    clients: Sequence[str] = (),
    replace: bool = False,
    progress: Progress | None = None,
    through: PrivateModel | None = None,
) -> JobResult:
    """Shares rows among the workers, which keep them under a name for others to train on.

    Args:
        rows: features, labels, or both.
        clients: who may train on them besides this one; "*" for every client of the cluster.
        replace: what this client provided under the name before.
        through: a model whose outputs are kept in place of the features: `convert(model).until(
            layer)`.  Nobody sees them, and the workers learn neither its weights nor the rows.

    Raises:
        UsageError: the name is none or taken, or the model does not take the rows.
        RangeError: values that do not fit, or that leave the model's range: nothing is kept then.
        PolicyError: an operator does not let this client provide.
    """
    inputs: dict[str, AnyInput] = {}
    cluster.check_members(clients)
    shape = None if rows.x is None else list(np.shape(rows.x)[1:])
    if through is not None:
        if rows.x is None:
            raise UsageError("Features come from rows. Received: labels only.")
        service.check_private(through, "provide", "convert(model).until(layer)")
        if through.fractional_bits != cluster.config.fractional_bits:
            raise UsageError(
                f"Features have the {cluster.config.fractional_bits} fractional bits of the "
                f"cluster. Received: a model with {through.fractional_bits}. Convert it with "
                f"fractional_bits={cluster.config.fractional_bits}."
            )
        inputs.update(through.shared_weights() | through.shared_inputs(rows.x))
        shape = list(through.graph.shapes[through.graph.outputs[0]])
    elif rows.x is not None:
        inputs["x"] = share_features(rows.x, cluster.config.fractional_bits)
    if rows.y is not None:
        inputs["y"] = share_targets(encode_labels(rows))
    about = {
        "rows": len(rows),
        "x": shape,
        "y": list(inputs["y"].shape[1:]) if "y" in inputs else None,
        "target": rows.target,
        "classes": rows.classes,
        "columns": [] if through else list(rows.columns),
        **_unit_facts(None if through else rows.table),
    }
    parameters = storage_parameters(name, clients, replace, about)
    if through is not None:
        model_parameters = through.parameters(cluster.profile.name, check_range=None)
        parameters[program.THROUGH] = model_parameters
    specs = [input_spec(name, value) for name, value in inputs.items()]
    program.check_dataset(parameters, specs)  # here too: a mistake costs nothing then
    result = cluster.run("provide", parameters, inputs, progress)
    out_of_range = None if through is None else through.left_range(result)
    if out_of_range is not None and out_of_range.any():
        withdraw(cluster, name)
        raise RangeError(
            f"Values left the range that the model was planned for in {int(out_of_range.sum())} of "
            f"{out_of_range.size} rows, so that none are kept. Convert it with samples like these."
        )
    return result


def _unit_facts(table: Table | None) -> dict[str, Any]:
    if table is None:
        return {}
    header = table.header()
    return {"units": {key: header[key] for key in program.UNITS}}


def withdraw(cluster: Client, name: str) -> None:
    """Removes a data set of this client's from all workers."""
    cluster.run("withdraw", {"name": check_name(name, program.NAME_SUBJECT)}, {})

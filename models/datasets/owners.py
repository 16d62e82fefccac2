"""Data of owners: rows or columns whose shares workers store, for other clients' trainings.

An owner shares its rows once (program "provide") and lists the clients that may use them.  These
clients run trainings on them (program "train") and receive the results.  No client and no worker
sees the rows.  A trained model may leak information about its training rows; the owner permits
that.
Public are the number of rows, their shape, names of columns, the owner, and the permitted clients.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tfe_bench.cluster.client import Client
from tfe_bench.cluster.requests import AnyInput, JobResult, Progress, private_input_spec
from tfe_bench.cluster.stored import DATA, check_name
from tfe_bench.cluster.stored_shares import StorageRequest, StoredEntry
from tfe_bench.errors import RangeError, UsageError
from tfe_bench.models.convert.tables import Table
from tfe_bench.models.datasets import request as requests
from tfe_bench.models.datasets.readers import Rows
from tfe_bench.models.datasets.sharing import (
    encode_labels,
    share_training_features,
    share_training_targets,
)
from tfe_bench.models.inference import service
from tfe_bench.models.inference.private import PrivateModel


def list_datasets(cluster: Client) -> dict[str, StoredEntry]:
    """Return the data sets that a client may use, by name."""
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
    """Share rows with the workers, which store them under a name for other clients' trainings.

    Args:
        rows: features, labels, or both.
        clients: other clients that may train on them; "*" for every client of the cluster.
        replace: whether to replace data that this client provided under the name before.
        through: a model whose outputs are stored in place of the features:
            `convert(model).until(layer)`. They stay shared, and the workers learn neither its
            weights nor the rows.

    Raises:
        UsageError: the name is invalid or used, or the model does not accept the rows.
        RangeError: values cannot be encoded, or leave the model's range; nothing is stored then.
        PolicyError: an operator does not permit this client to provide data.
    """
    inputs: dict[str, AnyInput] = {}
    cluster.check_members(clients)
    shape = None if rows.x is None else list(np.shape(rows.x)[1:])
    if through is not None:
        if rows.x is None:
            raise UsageError(
                "A model requires features of rows. Received: labels only.",
                code="missing-features",
                operation="through",
            )
        service.check_private_model(through, "provide", "convert(model).until(layer)")
        if through.fractional_bits != cluster.config.fractional_bits:
            raise UsageError(
                f"Expected features with the {cluster.config.fractional_bits} fractional bits of "
                f"the cluster. Received: a model with {through.fractional_bits}. Convert it with "
                f"fractional_bits={cluster.config.fractional_bits}.",
                code="scale-mismatch",
                operation="through",
                received=through.fractional_bits,
                expected=cluster.config.fractional_bits,
            )
        inputs.update(through.shared_weights() | through.shared_inputs(rows.x))
        shape = list(through.graph.shapes[through.graph.outputs[0]])
    elif rows.x is not None:
        inputs["x"] = share_training_features(rows.x, cluster.config.fractional_bits)
    if rows.y is not None:
        inputs["y"] = share_training_targets(encode_labels(rows))
    about = {
        "rows": len(rows),
        "x": shape,
        "y": list(inputs["y"].shape[1:]) if "y" in inputs else None,
        "target": rows.target,
        "classes": rows.classes,
        "columns": [] if through else list(rows.columns),
        **_dataset_unit_facts(None if through else rows.table),
    }
    parameters = StorageRequest(name, clients, replace, about).to_parameters()
    if through is not None:
        model_parameters = through.parameters(cluster.profile.name, check_range=None)
        parameters[requests.THROUGH] = model_parameters
    specs = [private_input_spec(name, value) for name, value in inputs.items()]
    requests.parse_dataset(parameters, specs)  # checked at the client too, before anything is sent
    result = cluster.run("provide", parameters, inputs, progress)
    out_of_range = None if through is None else through.left_range(result)
    if out_of_range is not None and out_of_range.any():
        withdraw(cluster, name)
        raise RangeError(
            f"Values left the planned range of the model in {int(out_of_range.sum())} of "
            f"{out_of_range.size} rows; none are stored. Convert it with samples like these.",
            code="left-planned-range",
            operation="through",
            received=int(out_of_range.sum()),
        )
    return result


def _dataset_unit_facts(table: Table | None) -> dict[str, Any]:
    if table is None:
        return {}
    header = table.to_header()
    return {"units": {key: header[key] for key in requests.UNITS}}


def withdraw(cluster: Client, name: str) -> None:
    """Remove a data set of this client from all workers."""
    cluster.run("withdraw", {"name": check_name(name, requests.NAME_SUBJECT)}, {})

"""Prediction service: models that workers store, and requests of clients.

There are three roles, each with its own certificate.  The model's owner deploys it (program
"deploy").  Clients that the owner and all three operators permit send inputs and receive results
(program "serve").  The workers hold shares of both and learn neither.
Public are the model's layers, shapes and fixed-point formats, its owner, and its permitted clients.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from tfe_bench.cluster.client import Client
from tfe_bench.cluster.requests import JobResult, Progress
from tfe_bench.cluster.stored import check_name
from tfe_bench.cluster.stored_shares import StorageRequest, StoredEntry
from tfe_bench.errors import DataError, UsageError, did_you_mean
from tfe_bench.models.convert import graph as graphs
from tfe_bench.models.convert.calibration import ModelPlan
from tfe_bench.models.convert.tables import Table
from tfe_bench.models.inference import request as requests
from tfe_bench.models.inference import weights
from tfe_bench.models.inference.ahead_setting import KEY
from tfe_bench.models.inference.private import PrivateModel
from tfe_bench.models.layers.base.scales import ColumnScale


class DeployedModel(StoredEntry):
    """A deployed model, as described to a client."""

    @cached_property
    def private(self) -> PrivateModel:
        """The layers, fixed-point formats and ranges, without weights.

        Raises:
            DataError, UsageError: this version cannot read them; the text names the model.
        """
        try:
            return PrivateModel(
                ModelPlan.from_header(self.about["plan"]), self.about["bounds"], True
            )
        except (DataError, UsageError) as error:
            text = f"The deployed model {self.name!r} cannot be read. {error}"
            raise error.with_text(text) from None

    @property
    def preprocessing(self) -> str | None:
        """Preprocessing of pictures for the model (see models.images), None if unknown."""
        preprocessing: str | None = self.about["preprocessing"]
        return preprocessing

    @property
    def ahead_setting(self) -> Mapping[str, Any] | None:
        """Setting of the material that the workers make before requests; None: they make none."""
        setting: Mapping[str, Any] | None = self.about.get(KEY)
        return setting

    @property
    def table(self) -> Table | None:
        """Names of columns and classes; None if the model was not trained on a table."""
        return requests.read_deployed_table(self.about)


def list_deployed(cluster: Client) -> list[DeployedModel]:
    """Return the deployed models that a client may use, even if this version cannot read them.

    Raises:
        ClusterError: a worker does not answer.
    """
    return [DeployedModel.from_row(row) for row in cluster.stored()]


def find(cluster: Client, name: str) -> DeployedModel:
    """Return the deployed model of a name.

    Raises:
        UsageError: there is no such model that this client may use, or the workers store different
            deployments.
        DataError: an older version deployed it in a format that this version does not read.
    """
    check_name(name)
    models = {str(row["name"]): row for row in cluster.stored()}
    if name not in models:
        hint = f"Known: {', '.join(models)}." if models else "None are available."
        raise UsageError(
            f"There is no model {name!r} that this client may use.{did_you_mean(name, models)} "
            f"{hint}",
            code="model-not-found",
            operation=name,
        )
    model = DeployedModel.from_row(models[name])
    if not model.complete:
        raise UsageError(
            f"The workers store different deployments of model {name!r}. Its owner must deploy "
            "it again (--replace).",
            code="deployment-mismatch",
            operation=name,
        )
    _ = model.private, model.table  # raises here if they cannot be read
    return model


def deploy(
    cluster: Client,
    private: PrivateModel,
    name: str,
    clients: Sequence[str] = (),
    replace: bool = False,
    preprocessing: str | None = None,
    progress: Progress | None = None,
    table: Table | None = None,
    ahead: int = 0,
    ahead_batch: int = 1,
) -> JobResult:
    """Share a model's weights with the workers, which store them under a name.

    Args:
        private: the result of `tfe_bench.convert`.
        name: lower-case letters, digits, - and _.
        clients: other clients that may use it; "*" for every client of the cluster.
        replace: whether to replace a model that this client deployed under the name before.
        preprocessing: preprocessing of pictures, one of `images.PREPROCESSINGS`.
        table: names of the model's columns and classes.
        ahead: number of predictions for which the workers make the correlated randomness before
            their request, on disk and for one use each; 0: none.
        ahead_batch: number of samples of each of these predictions.

    Raises:
        UsageError: the name is invalid or used, or the model's precision differs from the
            cluster's.
        PolicyError: an operator does not permit this client to deploy.
    """
    cluster.check_open()
    cluster.check_members(clients)
    check_private_model(private, "deploy", "convert(model)")
    check_cluster_precision(cluster)
    parameters = deployment_parameters(private, name, clients, replace, preprocessing, table)
    if ahead:
        settings = private.asked(cluster.profile.name, ahead_batch)
        parameters["about"][KEY] = {
            "entries": ahead,
            "batch": ahead_batch,
            "profile": settings["profile"],
            "check_range": settings["check_range"],
        }
    # Checked at the client too, before anything is sent.
    requests.parse_deployed_model(parameters, weights.weight_specs(private.plan))
    return cluster.run("deploy", parameters, private.shared_weights(), progress)


def deployment_parameters(
    private: PrivateModel,
    name: str,
    clients: Sequence[str],
    replace: bool,
    preprocessing: str | None = None,
    table: Table | None = None,
) -> dict[str, Any]:
    """Return parameters of the program "deploy"; `deploy` documents them."""
    about = {
        "plan": private.plan.to_header(),
        "bounds": private.bounds,
        "preprocessing": preprocessing,
    }
    if table is not None:
        about["table"] = table.to_header()
    return StorageRequest(name, clients, replace, about).to_parameters()


def undeploy(cluster: Client, name: str) -> None:
    """Remove a model of this client from all workers.

    Raises:
        UsageError: there is no such model; the error for another client's model is the same.
    """
    cluster.run("undeploy", {"name": check_name(name)}, {})


def predict(
    cluster: Client,
    model: str | DeployedModel | PrivateModel,
    images: Any,
    *,
    batch: int | None = None,
    profile: str | None = None,
    progress: Progress | None = None,
    check_range: bool | None = None,
) -> tuple[Any, JobResult]:
    """Return a model's outputs for private images and their cost; this client alone learns them.

    Args:
        model: the name of a deployed model, a result of `find`, or a result of `tfe_bench.convert`,
            whose weights are shared for this job alone.
        images: preprocessed images [batch, ...]; several inputs by name or in order.
        batch: number of samples that pass the model at once; None: request.default_batch.
        profile: the network profile for which the protocols plan; None: the cluster's.
        check_range: whether the workers detect, for this client alone, that a value left its
            planned range; None: if the plan allows it.

    Returns:
        float64 outputs (a list of them if the model has several), and the job's result.

    Raises:
        UsageError: this client may not use the model, its precision differs from the cluster's, or
            it does not accept the images.
        RangeError: images exceed the model's range, or values inside the model left their range.
        PolicyError: an operator does not permit this client.
    """
    cluster.check_open()
    profile_name = cluster.profile.name if profile is None else profile
    if isinstance(model, (str, DeployedModel)):
        deployed = find(cluster, model) if isinstance(model, str) else model
        options = deployed.private.asked(profile_name, batch, check_range)
        parameters = {"name": deployed.name, "deployment": deployed.deployment, **options}
        inputs = deployed.private.shared_inputs(images)
        result = cluster.run("serve", parameters, inputs, progress)
        return deployed.private.decode(result), result
    check_private_model(
        model,
        "predict",
        "convert(model), or a deployed model's name; of a Trainable, convert(private.keras)",
    )
    check_cluster_precision(cluster)
    inputs = {**model.shared_weights(), **model.shared_inputs(images)}
    parameters = model.parameters(profile_name, batch, check_range)
    result = cluster.run("predict", parameters, inputs, progress)
    return model.decode(result), result


def check_private_model(private: object, operation: str, expected: str) -> None:
    """Reject an object that `convert` did not return.

    Raises:
        UsageError: the object has another type.
    """
    if not isinstance(private, PrivateModel):
        raise UsageError(
            f"Expected {expected} in {operation}. Received: {type(private).__name__}.",
            code="wrong-type",
            operation=operation,
            received=type(private).__name__,
        )


def check_cluster_precision(cluster: Client) -> None:
    """Reject a cluster with another ring than that of models; models have their own scales.

    Raises:
        UsageError: the rings differ.
    """
    if cluster.config.ring != 64:
        raise UsageError(
            "Models require a cluster over Z_2^64. Received: the cluster "
            f"{cluster.config.name!r} over Z_2^{cluster.config.ring}. Use another cluster.",
            code="ring-mismatch",
            operation=cluster.config.name,
            received=cluster.config.ring,
            expected=64,
        )


def accept_unscaled_columns(private: PrivateModel, table: Table) -> PrivateModel:
    """Return a converted model of scaled columns as one that accepts a table's unscaled columns."""
    (name,) = private.graph.inputs
    if table.scale is None and table.unit is None:
        return private
    graph_changes: dict[str, Any] = {}
    if table.scale is not None:
        graph_changes["scaling"] = {
            name: _compose_scaling(private.graph.scaling.get(name), table.scale)
        }
    if table.unit is not None:
        inverse = table.unit.inverse()
        graph_changes["results"] = tuple(
            (
                np.multiply(f, inverse.factor).tolist(),
                (np.multiply(o, inverse.factor) + inverse.offset).tolist(),
            )
            for f, o in private.graph.results or [(1.0, 0.0)] * len(private.graph.outputs)
        )
    graph = graphs.replace_layers(private.graph, private.graph.layers, **graph_changes)
    return PrivateModel(replace(private.plan, graph=graph), private.bounds, private.calibrated)


def _compose_scaling(inner: Any, scale: ColumnScale) -> tuple[Any, Any]:
    """Compose a scale with the input scaling that a graph already has."""
    factor, offset = (1.0, 0.0) if inner is None else inner
    first = np.multiply(scale.factor, factor)
    return first.tolist(), (np.multiply(scale.offset, factor) + offset).tolist()

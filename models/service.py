"""The prediction service: a model that workers hold, and who asks them for predictions.

Three roles, each with its own certificate: the model's owner deploys it (program "deploy"), clients
whom the owner and all three operators let in send inputs and get results (program "serve"), and the
workers hold shares of both and learn neither.

What is public: the model's layers, shapes and fixed point, its owner, who may use it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from tfe_bench.cluster.client import Client
from tfe_bench.cluster.requests import JobResult, Progress
from tfe_bench.cluster.stored import check_name
from tfe_bench.errors import DataError, UsageError, did_you_mean
from tfe_bench.models import weights
from tfe_bench.models.calibration import Plan
from tfe_bench.models.private import PrivateModel
from tfe_bench.models.programs import deploy as program
from tfe_bench.models.stored_shares import StoredEntry, storage_parameters
from tfe_bench.models.tables import Table


class DeployedModel(StoredEntry):
    """A model that workers hold, as its client knows it."""

    @cached_property
    def private(self) -> PrivateModel:
        """Its layers, fixed point and ranges, without its weights.

        Raises:
            DataError, UsageError: this version cannot read them; the model is named.
        """
        try:
            return PrivateModel(Plan.from_header(self.about["plan"]), self.about["bounds"], True)
        except (DataError, UsageError) as error:
            raise type(error)(f"The deployed model {self.name!r} cannot be read. {error}") from None

    @property
    def preprocessing(self) -> str | None:
        """The way of `tfe_bench.models.images` in which pictures are prepared for it, if known."""
        preprocessing: str | None = self.about["preprocessing"]
        return preprocessing

    @property
    def table(self) -> Table | None:
        """Names of its columns and classes; None if it did not learn from a table."""
        return program.read_table(self.about)


def list_deployed(cluster: Client) -> list[DeployedModel]:
    """The deployed models that a client may use, also those that this version cannot read.

    Raises:
        ClusterError: a worker does not answer.
    """
    return [DeployedModel.from_row(row) for row in cluster.stored()]


def find(cluster: Client, name: str) -> DeployedModel:
    """The deployed model of a name.

    Raises:
        UsageError: there is none that this client may use, or the workers do not agree on it.
        DataError: an older version deployed it, in a format that this one does not read.
    """
    check_name(name)
    models = {str(row["name"]): row for row in cluster.stored()}
    if name not in models:
        hint = f"Known: {', '.join(models)}." if models else "It may use none."
        raise UsageError(
            f"There is no model {name!r} that this client may use."
            f"{did_you_mean(name, models)} {hint}"
        )
    model = DeployedModel.from_row(models[name])
    if not model.complete:
        raise UsageError(
            f"The workers hold different deployments of model {name!r}. Its owner deploys it again "
            "(--replace)."
        )
    _ = model.private, model.table  # (what cannot be read is refused here)
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
) -> JobResult:
    """Shares a model's weights among the workers, which keep them under a name.

    Args:
        private: of `tfe_bench.convert`.
        name: lower-case letters, digits, - and _.
        clients: who may use it besides this one; "*" for every client of the cluster.
        replace: what this client deployed under the name before.
        preprocessing: of pictures; see `tfe_bench.models.images.WAYS`.
        table: names of the model's columns and classes.

    Raises:
        UsageError: the name is none or taken, or the model's precision is not the cluster's.
        PolicyError: an operator does not let this client deploy.
    """
    cluster.check_open()
    cluster.check_members(clients)
    check_private(private, "deploy", "convert(model)")
    check_precision(cluster)
    parameters = deployment_parameters(private, name, clients, replace, preprocessing, table)
    # Here too: a mistake costs nothing then.
    program.check_deployed_model(parameters, weights.weight_specs(private.plan))
    return cluster.run("deploy", parameters, private.shared_weights(), progress)


def deployment_parameters(
    private: PrivateModel,
    name: str,
    clients: Sequence[str],
    replace: bool,
    preprocessing: str | None = None,
    table: Table | None = None,
) -> dict[str, Any]:
    """Parameters of the program "deploy"; what they mean, `deploy` says."""
    about = {
        "plan": private.plan.header(),
        "bounds": private.bounds,
        "preprocessing": preprocessing,
    }
    if table is not None:
        about["table"] = table.header()
    return storage_parameters(name, clients, replace, about)


def undeploy(cluster: Client, name: str) -> None:
    """Removes a model of this client's from all workers.

    Raises:
        UsageError: there is none; another client's is as unknown.
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
    """Outputs of a model for private images, reconstructed here alone, and what they cost.

    Args:
        model: the name of a deployed one, what `find` said of it, or one of `tfe_bench.convert`,
            whose weights are shared for this once.
        images: prepared as the model wants them, [batch, ...]; several inputs by name or in order.
        batch: samples that go through the model at once; None: as many as
            programs.predict.default_batch says.
        profile: the network for which the protocols plan; None: the cluster's.
        check_range: whether the workers find out, for this client alone, that a value left the
            range that the model was planned for; None: where the plan admits it.

    Returns:
        float64 outputs (a list of them if the model has several), and the job's result.

    Raises:
        UsageError: a model that this client may not use, another precision than the cluster's, or
            images that the model does not take.
        RangeError: images outside of the model's range, or values inside of it that left theirs.
        PolicyError: an operator does not let this client ask.
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
    check_private(
        model,
        "predict",
        "convert(model), or a deployed model's name; of a Trainable, convert(private.keras)",
    )
    check_precision(cluster)
    inputs = {**model.shared_weights(), **model.shared_inputs(images)}
    parameters = model.parameters(profile_name, batch, check_range)
    result = cluster.run("predict", parameters, inputs, progress)
    return model.decode(result), result


def check_private(private: object, operation: str, expected: str) -> None:
    """Refuses what `convert` did not give.

    Raises:
        UsageError: saying what is wanted.
    """
    if not isinstance(private, PrivateModel):
        raise UsageError(f"{operation} takes {expected}. Received: {type(private).__name__}.")


def check_precision(cluster: Client) -> None:
    """Refuses a cluster of another ring than models have; their scales are their own.

    Raises:
        UsageError: naming both.
    """
    if cluster.config.ring != 64:
        raise UsageError(
            f"Models are computed over Z_2^64. Received: the cluster {cluster.config.name!r} over "
            f"Z_2^{cluster.config.ring}. Use another cluster."
        )

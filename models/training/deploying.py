"""Deployment of a trained model at the workers: training state becomes weights of a deployed model.

Its owner is the client that ordered the training.  No party and no client sees the weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tfe_bench.cluster import stored_shares
from tfe_bench.cluster.jobs import Context
from tfe_bench.cluster.stored import Sources
from tfe_bench.errors import UsageError
from tfe_bench.models.convert.calibration import MARGIN, ModelPlan
from tfe_bench.models.convert.graph import Graph
from tfe_bench.models.inference import service, weights
from tfe_bench.models.inference.request import parse_deployed_model
from tfe_bench.protocols.session.sharing import Shared

if TYPE_CHECKING:
    from tfe_bench.models.convert.tables import Table
    from tfe_bench.models.training.recipe import Recipe


def trained_model_parameters(
    model: Any,
    name: str,
    clients: Sequence[str] = (),
    replace: bool = True,
    table: Table | None = None,
) -> dict[str, Any]:
    """Return parameters of the program "deploy" for a model whose weights are still to be trained.

    Its ranges are unknown in advance, so each layer accepts |v| < 2^14.  No layer is merged into
    the
    weights of another: the deployed weights are the trained weights as they are.

    Args:
        table: table of the training rows; predictions then take its columns unscaled.

    Raises:
        UsageError: the name or the clients are invalid, or prediction does not support a layer.
    """
    from tfe_bench.models.convert import from_keras
    from tfe_bench.models.inference.private import build_private_model

    graph = model if isinstance(model, Graph) else from_keras.from_keras(model)
    private = build_private_model(graph, None, None, 16, MARGIN, merge=False)
    if table is not None:
        private = service.accept_unscaled_columns(private, table)
    return service.deployment_parameters(private, name, clients, replace, table=table)


def check_trained_model(recipe: Recipe, parameters: Mapping[str, Any]) -> None:
    """Reject an invalid deployment, or one of another model than the trained one.

    Raises:
        UsageError, DataError: a parameter is invalid; the text names it.
    """
    about = parameters.get("about")
    if not isinstance(about, Mapping) or "plan" not in about:
        raise UsageError(
            'Expected a plan, bounds of its inputs and a preprocessing in "about".',
            code="invalid-parameters",
            operation="about",
        )
    plan = ModelPlan.from_header(about["plan"])
    parse_deployed_model(parameters, weights.weight_specs(plan))
    _state_keys(recipe, plan)


def _state_keys(recipe: Recipe, plan: ModelPlan) -> list[str]:
    """Return the key in the training state of each weight array of a plan.

    Raises:
        UsageError: an array of the plan is not part of the training state.
    """
    shapes = {key: tuple(a.shape) for key, a in recipe.graph.weight_arrays().items()}
    keys = []
    for part in weights.weight_parts(plan):
        key = f"{part.layer.name}/{part.name.removesuffix('0')}"
        if shapes.get(key) != part.shape:
            raise UsageError(
                "This model cannot be deployed by its training: prediction requires the weights "
                f"{part.first_key!r} {list(part.shape)}, which are not part of the training "
                "(such as those of a Normalization, BatchNormalization or Rescaling). Train "
                "without deploy, and deploy the trained model.",
                code="unsupported-layer",
                operation=part.first_key,
            )
        keys.append(key)
    return keys


def store_trained_model(
    context: Context,
    recipe: Recipe,
    parameters: Mapping[str, Any],
    state: Mapping[str, Shared],
    sources: Sources,
) -> None:
    """Store the trained weights at all three workers, or at none.

    Args:
        sources: the sources of the training data.
    """
    from tfe_bench.models.layers.base.operations import add_fractional_bits
    from tfe_bench.protocols.ring import refresh, truncation

    party, store = context.party, stored_shares.require_share_store(context)
    store.permit_writing(parameters["name"], context.client, parameters["replace"])
    plan = ModelPlan.from_header(parameters["about"]["plan"])
    parts = list(weights.weight_parts(plan))

    def rescale_weights(*values: Shared) -> list[Shared]:
        rescaled = []
        for part, x in zip(parts, values, strict=True):
            dropped_bits = x.fractional_bits - part.fractional_bits
            if part.negated:
                x = x.map(lambda a: -a)
            if dropped_bits > 0:
                x = truncation.truncate(party, x, dropped_bits)
            else:
                x = refresh.refresh(party, add_fractional_bits(x, part.fractional_bits))
            rescaled.append(x)
        return rescaled

    values = party.function(rescale_weights)(*(state[key] for key in _state_keys(recipe, plan)))
    facts = stored_shares.build_stored_facts(parameters, context.client, sources)
    values_by_name = {weights.weight_input_name(i): x for i, x in enumerate(values)}
    stored_shares.store_share_values(party, store, facts, values_by_name)

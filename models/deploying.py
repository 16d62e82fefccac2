"""A trained model that stays at the workers: its state becomes the weights of a deployed model.

Its owner is the client that ordered the training; neither it nor anybody else sees the weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tfe_bench.cluster.jobs import Context
from tfe_bench.cluster.stored import Sources
from tfe_bench.errors import UsageError
from tfe_bench.models import service, stored_shares, weights
from tfe_bench.models.calibration import MARGIN, Plan
from tfe_bench.models.graph import Graph
from tfe_bench.models.programs import deploy as program
from tfe_bench.protocols.session.sharing import Shared

if TYPE_CHECKING:
    from tfe_bench.models.tables import Table
    from tfe_bench.models.training.recipe import Recipe


def trained_model_parameters(
    model: Any,
    name: str,
    clients: Sequence[str] = (),
    replace: bool = True,
    table: Table | None = None,
) -> dict[str, Any]:
    """Of the program "deploy", for a model whose weights are yet to be trained.

    Its ranges are not known before: each layer takes |v| < 2^14.  No layer is merged into
    another's weights, since what is deployed are the weights as they are trained.

    Args:
        table: of the rows that are trained on: predictions take its columns as they are.

    Raises:
        UsageError: a name or clients that do not fit, or layers that prediction lacks.
    """
    from tfe_bench.models import from_keras
    from tfe_bench.models.private import build_private_model

    graph = model if isinstance(model, Graph) else from_keras.from_keras(model)
    private = build_private_model(graph, None, None, 16, MARGIN, merge=False)
    if table is not None:
        private = table.scaled(private)
    return service.deployment_parameters(private, name, clients, replace, table=table)


def check_trained_model(recipe: Recipe, parameters: Mapping[str, Any]) -> None:
    """Refuses a deployment that is none, or is of another model than the one that is trained.

    Raises:
        UsageError, DataError: naming what does not fit.
    """
    about = parameters.get("about")
    if not isinstance(about, Mapping) or "plan" not in about:
        raise UsageError('"about" holds a plan, bounds of its inputs and a preprocessing.')
    plan = Plan.from_header(about["plan"])
    program.check_deployed_model(parameters, weights.weight_specs(plan))
    _state_keys(recipe, plan)


def _state_keys(recipe: Recipe, plan: Plan) -> list[str]:
    """The key in the training's state of each array of a plan.

    Raises:
        UsageError: an array of the plan is none of them.
    """
    shapes = {key: tuple(a.shape) for key, a in recipe.graph.weight_arrays().items()}
    keys = []
    for part in weights.weight_parts(plan):
        key = f"{part.layer.name}/{part.name.removesuffix('0')}"
        if shapes.get(key) != part.shape:
            raise UsageError(
                "This model cannot stay at the workers when it is trained: prediction computes "
                f"with the weights {part.first_key!r} {list(part.shape)}, which are none of the "
                "training's (as those of a Normalization, BatchNormalization or Rescaling). "
                "Take the weights, and deploy the model then."
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
    """Keeps the trained weights at all three workers, or at none.

    Args:
        sources: what they were trained on.
    """
    from tfe_bench.models.kinds.operations import add_fractional_bits
    from tfe_bench.protocols.ring import refresh, truncation

    party, store = context.party, stored_shares.require_store(context)
    store.permit_writing(parameters["name"], context.client, parameters["replace"])
    plan = Plan.from_header(parameters["about"]["plan"])
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
    facts = stored_shares.build_facts(parameters, context.client, sources)
    values_by_name = {weights.weight_input_name(i): x for i, x in enumerate(values)}
    stored_shares.store_values(party, store, facts, values_by_name)

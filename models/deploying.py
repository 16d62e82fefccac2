"""A trained model that stays at the workers: its state becomes the weights of a deployed model.

Its owner is the client that ordered the training; neither it nor anybody else sees the weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tfe_bench.cluster.jobs import Context
from tfe_bench.cluster.stored import Sources
from tfe_bench.errors import UsageError
from tfe_bench.models import kept, service, weights
from tfe_bench.models.graph import Graph
from tfe_bench.models.programs import deploy as program
from tfe_bench.models.ranges import MARGIN, Plan
from tfe_bench.protocols.session.sharing import Shared

if TYPE_CHECKING:
    from tfe_bench.models.tables import Table
    from tfe_bench.models.training.recipe import Recipe


def parameters(
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
    from tfe_bench.models.private import plan_of

    graph = model if isinstance(model, Graph) else from_keras.from_keras(model)
    private = plan_of(graph, None, None, 16, MARGIN, merge=False)
    if table is not None:
        private = table.scaled(private)
    return service.deployment(private, name, clients, replace, table=table)


def check(recipe: Recipe, given: Mapping[str, Any]) -> None:
    """Refuses a deployment that is none, or is of another model than the one that is trained.

    Raises:
        UsageError, DataError: naming what does not fit.
    """
    about = given.get("about")
    if not isinstance(about, Mapping) or "plan" not in about:
        raise UsageError('"about" holds a plan, bounds of its inputs and a preprocessing.')
    plan = Plan.of(about["plan"])
    program.check(given, weights.specs(plan))
    _keys(recipe, plan)


def _keys(recipe: Recipe, plan: Plan) -> list[str]:
    """The key in the training's state of each array of a plan.

    Raises:
        UsageError: an array of the plan is none of them.
    """
    shapes = {key: tuple(a.shape) for key, a in recipe.graph.arrays().items()}
    found = []
    for part in weights.parts(plan):
        key = f"{part.layer.name}/{part.name.removesuffix('0')}"
        if shapes.get(key) != part.shape:
            raise UsageError(
                "This model cannot stay at the workers when it is trained: prediction computes "
                f"with the weights {part.key!r} {list(part.shape)}, which are none of the "
                "training's (as those of a Normalization, BatchNormalization or Rescaling). "
                "Take the weights, and deploy the model then."
            )
        found.append(key)
    return found


def deploy(
    context: Context,
    recipe: Recipe,
    given: Mapping[str, Any],
    state: Mapping[str, Shared],
    sources: Sources,
) -> None:
    """Keeps the trained weights at all three workers, or at none.

    Args:
        sources: what they were trained on.
    """
    from tfe_bench.models.kinds.operations import shifted
    from tfe_bench.protocols.ring import refresh, truncation

    party, store = context.party, kept.store_of(context)
    store.permit_writing(given["name"], context.client, given["replace"])
    plan = Plan.of(given["about"]["plan"])
    parts = list(weights.parts(plan))

    def scaled(*values: Shared) -> list[Shared]:
        found = []
        for part, x in zip(parts, values, strict=True):
            fewer = x.fractional_bits - part.fractional_bits
            if part.negated:
                x = x.map(lambda a: -a)
            if fewer > 0:
                x = truncation.truncate(party, x, fewer)
            else:
                x = refresh.refresh(party, shifted(x, part.fractional_bits))
            found.append(x)
        return found

    values = party.function(scaled)(*(state[key] for key in _keys(recipe, plan)))
    facts = kept.facts_of(given, context.client, sources)
    named = {weights.input_name(i): x for i, x in enumerate(values)}
    kept.write(party, store, facts, named)

"""The table of optimizers in docs/training_reference.md: settings, and the cost of an update."""

from __future__ import annotations

import numpy as np

from tfe_bench.cluster.schema import flag_rule
from tfe_bench.models.convert.graph import Graph
from tfe_bench.models.layers.base.layer import LayerSpec
from tfe_bench.models.layers.base.operations import Operations, ProtocolSetting
from tfe_bench.models.layers.base.passes import ForwardContext
from tfe_bench.models.training import state, updates
from tfe_bench.models.training.optimizers import NAMES
from tfe_bench.models.training.recipe import Recipe
from tfe_bench.protocols.session.cost import Cost
from tfe_bench.protocols.session.counting import Private, count_cost
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared

WEIGHTS = 1000


def count_update_cost(name: str) -> Cost:
    """Count the cost of an update of WEIGHTS weights."""
    layer = LayerSpec("dense", "dense", ("x",), {}, {"kernel": np.zeros((WEIGHTS, 1))})
    graph = Graph("update", {"x": (WEIGHTS,)}, (layer,), ("dense",))
    recipe = Recipe.build(graph, name, "mse")
    numbers, public = recipe.numbers, updates.public_learning_rates(recipe, 0)
    held = {
        s.key: Private(s.shape, s.fractional_bits).to_symbolic()
        for s in state.list_training_state_specs(recipe)
    }

    def run_update(party: Party, gradient: Shared) -> None:
        p = ForwardContext(Operations(party, ProtocolSetting()), held, numbers, public=public)
        updates.update_training_state(p, recipe, {"dense/kernel": gradient})

    return count_cost(run_update, Private((WEIGHTS, 1), numbers.activation + numbers.gradient)).cost


def table() -> str:
    """Return the lines of the table."""
    lines = [
        "| name | of keras.optimizers | settings | rounds | bytes per weight |\n",
        "|---|---|---|--:|--:|\n",
    ]
    for name, (cls, options) in sorted(NAMES.items()):
        given = ", ".join(f"`{key}={value}`" for key, value in options.items())
        own = [f"`{key}={value}` alone" for key, (value, _) in cls.fixed_options.items()]
        for setting in cls.list_own_settings():
            rule = setting.metadata["rule"]
            accepted = "true or false" if rule is flag_rule else f"{rule.least} to {rule.most}"
            own.append(f"`{setting.name}` {accepted}")
        found = count_update_cost(name)
        lines.append(
            f"| `{name}` | {' or '.join(f'`{c}`' for c in cls.keras_classes)}"
            f"{' with ' if given else ''}{given} | {', '.join(own)} | {found.rounds} | "
            f"{round(found.total / 8 / WEIGHTS)} |\n"
        )
    return "".join(lines)

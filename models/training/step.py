"""One step: from a batch and the state to the next state, all of it private."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from tfe_bench.models.training import gradients, moves, nodes, order, state, updates
from tfe_bench.models.training.operations import Operations, Running, Setting, Value
from tfe_bench.models.training.passes import Pass
from tfe_bench.models.training.pricing import Priced, Pricing
from tfe_bench.models.training.recipe import Recipe
from tfe_bench.protocols.cost import Cost
from tfe_bench.protocols.party import Party
from tfe_bench.protocols.sharing import Shared


def _slope(ops: Operations, recipe: Recipe, output: Value, y: Value) -> Value:
    """The loss's gradient of one sample by the model's output, without its public factor."""
    f = recipe.numbers.gradient
    if recipe.loss.categorical:
        return ops.sub(ops.softmax(output), y)
    if recipe.loss.name == "binary_crossentropy":
        return ops.sub(ops.logistic(output), y)
    # (what comes from a ReLU has fewer bits than the target)
    fraction = max(output.fractional_bits, f)
    d = ops.sub(ops.shifted(output, fraction), ops.shifted(y, fraction))
    return ops.truncate(d, fraction - f) if fraction > f else d


def _step(
    ops: Operations,
    recipe: Recipe,
    held: Mapping[str, Value],
    x: Value,
    y: Value,
    public: Mapping[str, Any],
) -> tuple[dict[str, Value], Value | None]:
    p = Pass(ops, recipe, held, public)
    output = gradients.forward(p, x)
    d = _slope(ops, recipe, output, y)
    found = gradients.backward(p, d, nodes.differentiated(recipe.graph, recipe.frozen))
    return updates.update(ops, recipe, held, found, public), None


def step(
    party: Party,
    recipe: Recipe,
    setting: Setting,
    held: Mapping[str, Shared],
    x: Shared,
    y: Shared,
    public: Mapping[str, Any],
) -> tuple[dict[str, Shared], Shared | None]:
    """The next state, inside party.function.

    Args:
        held: the state by key, as state.specs says.
        x: features [batch, ...] with numbers.activation fractional bits.
        y: targets [batch, ...] with numbers.gradient fractional bits.
        public: `public_values` of the step, as int64 tensors.

    Returns:
        The state, and None.

    Rounds and bits: `step_cost`.
    """
    return _step(Running(party, setting), recipe, held, x, y, public)


def public_values(recipe: Recipe, number: int) -> dict[str, Any]:
    """What is public about a step and changes from one to the next, int64 arrays by name.

    Args:
        number: of the step, counted from 0 over all epochs.
    """
    rates = updates.public_rates(recipe, number)
    found: dict[str, Any] = {name: np.asarray(rate, np.int64) for name, rate in rates.items()}
    for layer in recipe.graph.layers:
        if layer.op == "dropout":
            shape = (recipe.batch, *recipe.graph.shapes[layer.name])
            kept = order.kept(
                recipe.seed, number, layer.name, math.prod(shape), layer.options["rate"]
            )
            found[moves.dropout_name(layer.name)] = kept.reshape(shape).astype(np.int64)
    return found


def step_cost(recipe: Recipe, setting: Setting) -> Cost:
    """Cost of `step`."""
    ops = Pricing(setting)
    held = {s.key: Priced(s.shape, s.fractional_bits) for s in state.specs(recipe)}
    x = Priced((recipe.batch, *recipe.input_shape), recipe.numbers.activation)
    y = Priced((recipe.batch, *recipe.output_shape), recipe.numbers.gradient)
    _step(ops, recipe, held, x, y, dict.fromkeys(public_values(recipe, 0)))
    return ops.total

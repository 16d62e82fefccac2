"""The shared state between steps: the weights, and the optimizer's slots of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from tfe_bench.errors import UsageError
from tfe_bench.models.convert.graph import Array
from tfe_bench.models.training.optimizers.optimizer import OptimizerSlot
from tfe_bench.models.training.recipe import Recipe

T = TypeVar("T")
# The slot of the weights' moving average.
AVERAGE = "average"


@dataclass(frozen=True)
class TrainingStateSpec:
    """One array of the state.

    Attributes:
        key: "layer/weight", or "layer/weight:slot" for an optimizer's slot.
        shape, fractional_bits: public.
    """

    key: str
    shape: tuple[int, ...]
    fractional_bits: int


def list_optimizer_slots(recipe: Recipe) -> list[OptimizerSlot]:
    """List the slots of each array of trained weights."""
    optimizer_slots = list(recipe.optimizer.list_slots(recipe.numbers))
    average = OptimizerSlot(AVERAGE, recipe.numbers.weight)
    return [*optimizer_slots, average] if recipe.optimizer.use_ema else optimizer_slots


def list_training_state_specs(recipe: Recipe) -> list[TrainingStateSpec]:
    """List the arrays of a recipe's state, in their order: weights first."""
    shapes = {k: tuple(int(n) for n in a.shape) for k, a in recipe.graph.weight_arrays().items()}
    state_specs = [
        TrainingStateSpec(key, shapes[key], recipe.numbers.weight) for key in recipe.order
    ]
    for key in list_trained_keys(recipe):
        state_specs += [
            TrainingStateSpec(f"{key}:{s.name}", shapes[key], s.fractional_bits)
            for s in list_optimizer_slots(recipe)
        ]
    return state_specs


def list_trained_keys(recipe: Recipe) -> list[str]:
    """List the keys of the weights that the optimizer changes."""
    return [key for key in recipe.order if key not in recipe.frozen]


def build_initial_training_state(
    recipe: Recipe, arrays: Mapping[str, Array] | None = None
) -> dict[str, Array]:
    """Return the state before the first step, float64 by key.

    Args:
        arrays: weights by key; None: those of the recipe's graph.

    Raises:
        UsageError: arrays are missing or have other shapes.
    """
    weights = recipe.graph.weight_arrays() if arrays is None else arrays
    state, starts = {}, {slot.name: slot for slot in list_optimizer_slots(recipe)}
    for spec in list_training_state_specs(recipe):
        key, remembered, name = spec.key.partition(":")
        if remembered:
            slot, k = starts[name], recipe.exponents.get(key, 0)
            state[spec.key] = np.full(spec.shape, slot.initial * 2.0 ** (-slot.power * k))
            continue
        array = weights.get(spec.key)
        if array is None or tuple(array.shape) != spec.shape:
            raise UsageError(
                f"Expected weights {spec.key!r} of shape {list(spec.shape)}. Received: "
                f"{None if array is None else list(array.shape)}.",
                code="shape-mismatch",
                operation=spec.key,
                received=None if array is None else list(array.shape),
            )
        state[spec.key] = np.asarray(array, np.float64)
    return state


def select_final_weights(recipe: Recipe, state: Mapping[str, T]) -> dict[str, T]:
    """Return the final weights of a training by key: their averages, if it has them."""
    averaged = set(list_trained_keys(recipe)) if recipe.optimizer.use_ema else set()
    return {k: state[f"{k}:{AVERAGE}" if k in averaged else k] for k in recipe.order}


def to_keras_weights(recipe: Recipe, arrays: Mapping[str, Array]) -> list[Array]:
    """Convert the weights of a state for the Keras model's set_weights, float32."""
    return [np.asarray(arrays[key], np.float32) for key in recipe.order]

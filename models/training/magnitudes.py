"""Magnitudes of mean gradients, measured in plaintext at the initial weights before sharing.

The client has weights and rows in plaintext before a training starts. From a few batches it plans a
public exponent k for each array of weights: mean gradients stay below 2^(BOUND_BITS + k), at least
2^BOUND_BITS times the largest measured one. Adaptive updates compute with 2^-k times the gradients,
and all updates use fewer fractional bits for large sums, so that no product wraps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from tfe_bench.errors import RangeError
from tfe_bench.models.convert.graph import Array, Graph
from tfe_bench.models.layers.base import public_randomness as shuffling
from tfe_bench.models.training import plaintext, state, updates
from tfe_bench.models.training.optimizers.optimizer import BOUND_BITS, CLIPPED_RANGE
from tfe_bench.models.training.recipe import MOST_EXPONENT, Recipe

# Number of measured batches of the first epoch, besides those of the largest features and labels.
_BATCHES = 4
# Number of rows that are searched for the largest.
_MOST_SEARCHED = 1 << 16
# Exponents are multiples of this, so that they reveal less about the rows.
_STEP = 2
# Gradients below 2^-_QUIET are scaled up: they may grow 2^(BOUND_BITS + _QUIET)-fold.
_QUIET = 6


def plan_exponents(
    recipe: Recipe, model: Any, x: Any, y: Any, seed: int, weights: Array | None = None
) -> Recipe:
    """Return the recipe with exponents for the gradients of its initial weights on these rows.

    Args:
        model: the Keras model at the start of training; it is not changed. Other kinds of models
            are not measured: all exponents are 0.
        x, y: features and labels as in Keras.
        seed: seed of the order of the rows.
        weights: weights of the samples.

    Raises:
        UsageError, RangeError: labels or shapes do not fit, or no exponent fits the gradients.
    """
    if isinstance(model, Graph) or not state.list_trained_keys(recipe):
        return recipe
    x, targets = np.asarray(x), recipe.encode_labels(y)
    rows = _choose_gradient_rows(recipe, x, targets, seed)
    if not all(np.isfinite(recipe.encode_features(x[batch_rows])).all() for batch_rows in rows):
        return recipe  # sharing the rows refuses it
    batches = [(x[r], targets[r], None if weights is None else weights[r]) for r in rows]
    largest_gradients = plaintext.PlaintextTwin(model, recipe).measure_gradients(batches)
    scale = recipe.gradient_share / recipe.loss.compute_share(recipe.output_shape, recipe.batch)
    sizes = {key: value / float(scale) for key, value in largest_gradients.items()}
    if recipe.optimizer.clips_gradients:
        bounds, max_exponent = _bound_clipped_gradients(recipe, sizes), MOST_EXPONENT
    else:
        bounds, max_exponent = (
            _bound_gradient_sums(recipe, sizes),
            _find_max_gradient_exponent(recipe),
        )
    min_exponent = recipe.optimizer.least_exponent
    return replace(recipe, exponents=_choose_gradient_exponents(bounds, min_exponent, max_exponent))


def _choose_gradient_rows(recipe: Recipe, x: Array, targets: Array, seed: int) -> list[Array]:
    """Choose rows of some batches: the first of an epoch, and those with the largest numbers."""
    count, size = len(x), recipe.batch
    row_sets = list(shuffling.draw_epoch_batches(seed, 0, count, size)[:_BATCHES])
    for values in (x, targets):
        part = values[:_MOST_SEARCHED].reshape(min(count, _MOST_SEARCHED), -1)
        if part.dtype.kind in "fiu":
            row_sets.append(np.argsort(-np.abs(part).max(1).astype(np.float64))[:size])
    return row_sets


def _choose_gradient_exponents(
    sizes: Mapping[str, float], min_exponent: int, max_exponent: int
) -> dict[str, int]:
    """Choose k for each array's gradients: their logarithm above 1, and from 2^-_QUIET down."""
    exponents = {}
    for key, size in sizes.items():
        bits = math.log2(size) if size else 0.0
        k = math.ceil(max(0.0, bits) / _STEP) or math.ceil(min(0.0, bits + _QUIET) / _STEP)
        exponents[key] = min(max(k * _STEP, min_exponent), max_exponent)
    return {key: k for key, k in exponents.items() if k}


def _find_max_gradient_exponent(recipe: Recipe) -> int:
    """Return the largest exponent for which no sum of gradients over the batch wraps."""
    used_bits = (
        updates.build_update_terms(recipe).max_bits + (recipe.batch - 1).bit_length() + BOUND_BITS
    )
    return min(MOST_EXPONENT, updates.MOST_PRODUCT - used_bits)


def _bound_gradient_sums(recipe: Recipe, gradients: Mapping[str, Array]) -> dict[str, float]:
    """Return the largest gradient of each array.

    Raises:
        RangeError: one leaves less than a factor of two for the gradients of later steps.
    """
    max_size = 2.0 ** (_find_max_gradient_exponent(recipe) + BOUND_BITS - 1)
    largest = {key: float(np.abs(g).max(initial=0.0)) for key, g in gradients.items()}
    for key, size in largest.items():
        if not size <= max_size:
            raise RangeError(
                f"With batches of {recipe.batch} rows, the first mean gradients may be at most "
                f"{max_size:.3g}. Received: {size:.3g} for {key!r}. Scale features and labels, as "
                "to "
                "mean 0 and deviation 1.",
                code="gradient-too-large",
                operation=key,
            )
    return largest


def _bound_clipped_gradients(recipe: Recipe, gradients: Mapping[str, Array]) -> dict[str, float]:
    """Bound the gradients after clipping.

    Raises:
        RangeError: before it they exceed the range of clipping.
    """
    optimizer = recipe.optimizer
    norms = {key: float(np.linalg.norm(g)) for key, g in gradients.items()}
    for key, norm in norms.items():
        if not norm < 1 << (CLIPPED_RANGE - 1):
            raise RangeError(
                f"Clipping supports mean gradients with norms below {1 << CLIPPED_RANGE}. "
                "Received: "
                f"{norm:.3g} for {key!r} at the initial weights. Scale features and labels.",
                code="gradient-too-large",
                operation=key,
            )
    bound = optimizer.clipvalue or optimizer.clipnorm or optimizer.global_clipnorm
    assert bound is not None
    return {key: min(norm, bound) for key, norm in norms.items()}

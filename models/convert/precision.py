"""Errors of a model's values in fixed point, estimated in plaintext on public samples.

Weights are rounded as they are when shared.  Each layer's value is rounded to its fractional bits,
stochastically as by a truncation of shares.  Short series have their own error.  The error of a
layer's own protocol (about an ulp, docs/operations.md) is not included.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from tfe_bench.models.convert import plaintext
from tfe_bench.models.convert.calibration import ModelPlan
from tfe_bench.models.convert.graph import Array, replace_layers

# Number of evaluated samples; 1 for models with more than _LARGE_MODEL weights.
SAMPLES = 4
_LARGE_MODEL = 1_000_000
# Error, as a fraction of a layer's range, above which a warning appears.
MAX_ERROR = 0.01


@dataclass(frozen=True)
class LayerError:
    """Error of one layer's values.

    Attributes:
        largest: estimate of the largest |private - exact|.
        range: the largest |exact|.
    """

    largest: float
    range: float

    @property
    def relative(self) -> float:
        """The largest error as a fraction of the range."""
        return self.largest / self.range if self.range else 0.0


def estimate_layer_errors(plan: ModelPlan, samples: Mapping[str, Array]) -> dict[str, LayerError]:
    """Estimate the errors of all layers, by name.

    Args:
        samples: public inputs by name, [batch, ...].
    """
    count = 1 if plan.graph.weight_count > _LARGE_MODEL else SAMPLES
    public_inputs = {name: a[:count] for name, a in samples.items()}
    exact_values: dict[str, Array] = {}
    plaintext.evaluate_graph(plan.graph, public_inputs, exact_values.__setitem__)
    error_by_name: dict[str, float] = {}

    def record_error(name: str, value: Array) -> None:
        error_by_name[name] = float(np.abs(value - exact_values[name]).max(initial=0))

    rng = np.random.default_rng(1)

    def round_value(name: str, value: Array) -> Array:
        scale = 2.0 ** plan.fraction_of(name)
        chance = 0.5 if name in plan.graph.inputs else rng.random(value.shape)
        return np.asarray(np.floor(value * scale + chance) / scale)

    layers = [
        replace(
            x, weights={k: _round_weights(w, plan.weight_bits(x, k)) for k, w in x.weights.items()}
        )
        for x in plan.graph.layers
    ]
    plaintext.evaluate_graph(
        replace_layers(plan.graph, layers),
        public_inputs,
        record_error,
        round_value,
        approximated=True,
    )
    return {
        x.name: LayerError(
            error_by_name[x.name], float(np.abs(exact_values[x.name]).max(initial=0))
        )
        for x in plan.graph.layers
    }


def _round_weights(weights: Array, bits: int) -> Array:
    return np.rint(np.asarray(weights, np.float64) * 2.0**bits) / 2.0**bits

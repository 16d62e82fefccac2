"""How far a model's values are off in fixed point: on public samples, in the clear.

Weights are rounded as they are shared, and each layer's value to its fractional bits, up or down by
chance as a truncation of shares does; short series are off by what they are.  What a layer's own
protocol adds (about an ulp, docs/operations.md) is not in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from tfe_bench.models import plaintext
from tfe_bench.models.graph import Array, replaced
from tfe_bench.models.ranges import Plan

# Samples that are looked at, and of models with more weights than these one.
SAMPLES = 4
_LARGE = 1_000_000
# What is worth a warning, of a layer's range.
MOST_ERROR = 0.01


@dataclass(frozen=True)
class Error:
    """Of one layer's values.

    Attributes:
        largest: the largest |private - exact|, as estimated.
        range: the largest |exact|.
    """

    largest: float
    range: float

    @property
    def relative(self) -> float:
        """The largest error, of the range."""
        return self.largest / self.range if self.range else 0.0


def errors(plan: Plan, samples: Mapping[str, Array]) -> dict[str, Error]:
    """The errors of all layers, by name.

    Args:
        samples: public inputs by name, [batch, ...].
    """
    count = 1 if plan.graph.parameters > _LARGE else SAMPLES
    some = {name: a[:count] for name, a in samples.items()}
    exact: dict[str, Array] = {}
    plaintext.evaluate(plan.graph, some, exact.__setitem__)
    off: dict[str, float] = {}

    def compare(name: str, value: Array) -> None:
        off[name] = float(np.abs(value - exact[name]).max(initial=0))

    rng = np.random.default_rng(1)

    def rounded(name: str, value: Array) -> Array:
        scale = 2.0 ** plan.fraction_of(name)
        chance = 0.5 if name in plan.graph.inputs else rng.random(value.shape)
        return np.asarray(np.floor(value * scale + chance) / scale)

    layers = [
        replace(x, weights={k: _rounded(w, plan.weight_bits(x, k)) for k, w in x.weights.items()})
        for x in plan.graph.layers
    ]
    plaintext.evaluate(replaced(plan.graph, layers), some, compare, rounded, approximated=True)
    return {
        x.name: Error(off[x.name], float(np.abs(exact[x.name]).max(initial=0)))
        for x in plan.graph.layers
    }


def _rounded(weights: Array, bits: int) -> Array:
    return np.rint(np.asarray(weights, np.float64) * 2.0**bits) / 2.0**bits

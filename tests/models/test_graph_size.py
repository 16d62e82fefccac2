"""Number of ops in a transformer's graph: building them dominates its first request."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tfe_bench.cluster.simulate import simulate
from tfe_bench.models.convert import plaintext
from tfe_bench.models.inference import execute, weights
from tfe_bench.models.inference.private import convert
from tfe_bench.protocols.session.fixedpoint import FixedPoint
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared

keras: Any = pytest.importorskip("keras")
L: Any = keras.layers
WIDE, LONG = 16, 4


def encoder_model(blocks: int) -> Any:
    """Build blocks as in BERT."""
    model_input = keras.Input((LONG, WIDE))
    x = L.LayerNormalization()(model_input)
    for _ in range(blocks):
        y = L.MultiHeadAttention(2, WIDE // 2)(x, x)
        x = L.LayerNormalization()(L.Add()([x, y]))
        y = L.Dense(WIDE)(L.Dense(4 * WIDE, "gelu")(x))
        x = L.LayerNormalization()(L.Add()([x, y]))
    return keras.Model(model_input, x)


def count_ops(blocks: int, images: Any) -> list[int]:
    """Count the ops of each party's graph."""
    plan = convert(encoder_model(blocks), samples=images, activations="series").plan
    s = execute.tune_prediction(plan)
    (name,) = plan.graph.inputs
    x = FixedPoint(plan.fraction_of(name)).encode(
        plaintext.scale_owner_inputs(plan.graph, images)[name]
    )

    def program(party: Party, x: Shared, *shares: Shared) -> Any:
        own: dict[str, Shared] = {}
        for part, w in zip(weights.weight_parts(plan), shares, strict=True):
            own |= dict.fromkeys(part.keys, replace(w, fractional_bits=part.fractional_bits))

        def model(own: Any, x: Shared) -> Any:
            return execute.run_model(party, s, own, [x])

        f = party.function(model)
        f(own, replace(x, fractional_bits=plan.fraction_of(name)))
        (graph,) = f._traced.values()
        return graph.ops

    return list(simulate(program, x[:1], *weights.encode_weights(plan)).outputs)


def test_a_block_of_a_transformer_takes_few_ops(rng: np.random.Generator) -> None:
    """There were 2,700 per party when each constant and each segment of a norm had its own ops."""
    images = rng.normal(0, 1, (4, LONG, WIDE)).astype(np.float32)
    one, two = (count_ops(blocks, images) for blocks in (1, 2))
    for few, more in zip(one, two, strict=True):
        assert 0 < more - few < 1500

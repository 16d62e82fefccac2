"""Weights held as seeds: results, messages and shares equal those of fully expanded weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.protocols.test_seeded import hold_input
from tfe_bench.cluster.simulate import simulate
from tfe_bench.models.convert import plaintext
from tfe_bench.models.inference import execute, weights
from tfe_bench.models.inference.private import PrivateModel, convert
from tfe_bench.protocols.ring import rotation
from tfe_bench.protocols.session import seeded
from tfe_bench.protocols.session.fixedpoint import FixedPoint
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.seeded import Seeded
from tfe_bench.protocols.session.sharing import Shared

keras: Any = pytest.importorskip("keras")
L: Any = keras.layers
KEYS = [bytes([i]) * 16 for i in range(3)]


def shared_table_model() -> Any:
    x = keras.Input((6, 6, 2))
    y = L.Conv2D(3, 3, activation="relu")(x)
    y = L.BatchNormalization()(L.DepthwiseConv2D(2)(y))
    y = L.Flatten()(y)
    table = L.Dense(5)
    return keras.Model(x, L.Add()([table(y), L.Dense(5, activation="gelu")(y)]))


def predict_once(
    private: PrivateModel, images: Any, profile: str, watched: bool, whole: bool
) -> Any:
    """Simulate one prediction; return also whether the weights' masks are fully expanded."""
    plan = private.plan
    s = execute.tune_prediction(plan, profile, len(images), watched)
    (name,) = plan.graph.inputs
    x = FixedPoint(plan.fraction_of(name)).encode(
        plaintext.scale_owner_inputs(plan.graph, images)[name]
    )

    def program(party: Party, x: Shared) -> Any:
        own: dict[str, Shared | Seeded] = {}
        for i, part in enumerate(weights.weight_parts(plan)):
            seed_pair = bytes([i]) * 16, bytes([100 + i]) * 16
            w = hold_input(party.index, weights.encode_weight_part(part), seed_pair)
            w = Seeded(w.m, w.l1, w.l2, w.shape, w.dealer, part.fractional_bits)
            own |= dict.fromkeys(part.keys, seeded.expand_masks(w) if whole else w)

        def model(own: Any, x: Shared) -> Any:
            return execute.run_model(party, s, own, [x])

        return party.function(model)(own, x)

    return simulate(program, x, fractional_bits=plan.fraction_of(name), keys=KEYS)


@pytest.mark.parametrize(
    ("profile", "watched", "turned"),
    [("local", False, False), ("local", True, False), ("wan", False, True)],
)
def test_seeds_change_no_share_and_no_message(
    profile: str, watched: bool, turned: bool, rng: np.random.Generator, monkeypatch: Any
) -> None:
    images = rng.uniform(-1, 1, (3, 6, 6, 2)).astype(np.float32)
    private = convert(shared_table_model(), samples=images)
    if turned:  # each party deals for a third
        monkeypatch.setattr(rotation, "is_worthwhile", lambda cost, bits: True)
    few, all_ = (predict_once(private, images, profile, watched, whole) for whole in (False, True))
    assert (few.to, few.rounds) == (all_.to, all_.rounds)
    for one, other in zip(few.outputs, all_.outputs, strict=True):
        for a, b in zip(one, other, strict=True):
            for part in ("m", "l1", "l2"):
                mine, theirs = getattr(a, part), getattr(b, part)
                assert (mine is None) == (theirs is None)
                if mine is not None:
                    np.testing.assert_array_equal(np.asarray(mine), np.asarray(theirs))

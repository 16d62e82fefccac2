"""Every layer in two phases: material before the request, and the rest with it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.models.case_shares import split_case_shares
from tests.models.test_execute import (
    NEAR,
    UNWATCHED,
    Array,
    Case,
    layer_models,
    make_case,
    model_of,
    shake_weights,
    small_net,
)
from tests.protocols.pads import assert_counters, words_under_one_pad
from tfe_bench.cluster.simulate import Simulation, reconstruct, simulate
from tfe_bench.models.convert import plaintext
from tfe_bench.models.inference import execute
from tfe_bench.models.inference.private import convert
from tfe_bench.protocols.ring import refresh, rotation
from tfe_bench.protocols.session.material import KeptMessages
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared

keras: Any = pytest.importorskip("keras")
L: Any = keras.layers
ULP = 2.0**-16


def simulate_phases(cases: list[Case], dealer: int, record: bool = False) -> Simulation:
    """Return the outputs of each case, and the payload bits and rounds of both its phases."""
    flat = [a for _, own, x in cases for a in (*own, x)]

    def program(party: Party, *shares: Shared) -> Any:
        results = []
        for s, own, x in split_case_shares(cases, shares):

            def model(own: Any, x: list[Shared], s: execute.Prediction = s) -> Any:
                return execute.run_model(party, s, own, [refresh.refresh(party, x[0])])

            function, kept = party.ahead_function(model, request=[1]), KeptMessages()
            party.reset_counters()
            material = function.make_material(kept, own, [x.map(lambda a: 0 * a)])
            made = 8 * sum(party.counters()["payload"])
            party.reset_counters()
            outputs = function.use_material(material, kept, own, [x])
            sent = 8 * sum(party.counters()["payload"])
            results.append((outputs, (made, sent), party.rounds()))
        return results

    return simulate(program, *flat, dealer=dealer, record=record, timeout=600)


def check_case(sim: Simulation, i: int, case: Case, expected: Array, near: float) -> None:
    s = case[0]
    ring, *flags = (
        reconstruct(list(parts)) for parts in zip(*(out[i][0] for out in sim.outputs), strict=True)
    )
    assert len(flags) == s.watched and not np.any(flags)
    outputs = ring * 2.0 ** -s.plan.fraction_of(s.plan.graph.outputs[0])
    (outputs,) = plaintext.finish_model_outputs(s.plan.graph, [outputs])
    assert (np.abs(outputs - expected) / np.maximum(np.abs(expected), 1)).max() < near
    # Both phases send what one call sends, the re-masking of the input, and two counts.
    made, sent = zip(*(out[i][1] for out in sim.outputs), strict=True)
    re_masked, cost = 128 * case[2].size, execute.model_cost(s)
    assert sum(made) + sum(sent) == cost.total + re_masked + 3 * 2 * 64


def check_pads(sim: Simulation) -> None:
    """Check that no mask hides two messages: a dealer may compute one again, never another."""
    assert words_under_one_pad(sim.pads) == 0
    assert_counters(sim.pads, *range(3))


def recurrent_models() -> dict[str, Any]:
    return {
        "lstm": model_of(L.LSTM(3, return_sequences=True), L.Dense(2), shape=(4, 3)),
        "gru": model_of(L.GRU(3), shape=(5, 2)),
    }


@pytest.mark.parametrize(
    "part", [0, *(pytest.param(part, marks=pytest.mark.slow) for part in (1, 2, 3))]
)
def test_every_layer_agrees_with_keras(part: int, rng: np.random.Generator) -> None:
    keras.utils.set_random_seed(int(rng.integers(1 << 31)))
    dealer, cases, expected, nears = int(rng.integers(3)), [], [], []
    models = {**layer_models(), **recurrent_models()}
    for i, (name, model) in enumerate(models.items()):
        if i % 4 != part:
            continue
        shake_weights(model, rng)
        images = rng.normal(0, 1, (3, *model.input_shape[1:])).clip(-3, 3).astype(np.float32)
        private = convert(model, samples=images)
        watched = i // 4 % 2 == 1 and name not in (*UNWATCHED, *recurrent_models())
        cases.append(make_case(private, images, watched=watched))
        expected.append(np.asarray(model(images, training=False)))
        nears.append(NEAR.get(name, 2.0**-9 if name in recurrent_models() else 32 * ULP))
    sim = simulate_phases(cases, dealer, record=True)
    for i, (case, want, near) in enumerate(zip(cases, expected, nears, strict=True)):
        check_case(sim, i, case, want, near)
    check_pads(sim)


@pytest.mark.parametrize("dealers", [(0, 1, 2), (0, 2, 2, 1), (2,), ()])
def test_every_party_may_deal(
    dealers: tuple[int, ...], rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last case divides the batch into thirds, each with a dealer."""
    images = rng.uniform(0, 1, (2 if dealers else 4, 8, 8, 1)).astype(np.float32)
    model = shake_weights(small_net(), rng)
    s, *inputs = make_case(convert(model, samples=images), images, "wan", True)
    if dealers:
        layers = len(s.plan.graph.layers)
        s = replace(s, dealers=tuple(dealers[i % len(dealers)] for i in range(layers)))
    else:
        monkeypatch.setattr(rotation, "is_worthwhile", lambda cost, bits: True)
    case: Case = (s, *inputs)  # type: ignore[assignment]
    sim = simulate_phases([case], 0, record=True)
    check_case(sim, 0, case, np.asarray(model(images, training=False)), 32 * ULP)
    check_pads(sim)
    made = [out[0][1][0] for out in sim.outputs]
    assert sum(made) > execute.model_cost(s).total // 3

"""Norms whose statistics' range samples tell: fewer rounds, and what is outside is noticed."""

from __future__ import annotations

from dataclasses import replace
from operator import itemgetter
from typing import Any

import keras
import numpy as np
import pytest

from tfe_bench.cluster.simulate import simulate
from tfe_bench.errors import UsageError
from tfe_bench.models import execute, plaintext, weights
from tfe_bench.models.private import convert
from tfe_bench.models.ranges import Plan
from tfe_bench.protocols.session.fixedpoint import FixedPoint
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared

L = keras.layers


def model_of(layer: Any) -> Any:
    return keras.Sequential([L.Input((3, 24)), layer])


def ran(plan: Plan, given: Any) -> tuple[Any, Any, Any]:
    """The values, the flags of the samples, and what it cost."""
    scaled = plaintext.scaled(plan.graph, given)
    s = execute.tuned(plan, "local", len(next(iter(scaled.values()))), True)
    scales = [plan.fraction_of(name) for name in plan.graph.inputs]
    parts = list(weights.parts(plan))

    def program(party: Party, *shares: Shared) -> Any:
        def graph(*shares: Shared) -> list[Shared]:
            pairs = zip(shares, scales, strict=False)
            inputs = [replace(x, fractional_bits=f) for x, f in pairs]
            named: dict[str, Shared] = {}
            for part, w in zip(parts, shares[len(scales) :], strict=True):
                named |= dict.fromkeys(part.keys, replace(w, fractional_bits=part.fractional_bits))
            return execute.run(party, s, named, inputs)

        return party.function(graph)(*shares)

    words = [
        FixedPoint(f).encode(scaled[n]) for n, f in zip(plan.graph.inputs, scales, strict=True)
    ]
    sim = simulate(program, *words, *weights.encode(plan))
    value, flags = (sim.value(itemgetter(i)) for i in range(2))
    cost = execute.model_cost(s)
    assert sim.sent == cost.by_party(0) and sim.rounds == cost.rounds
    return value * 2.0 ** -plan.fraction_of(plan.graph.outputs[0]), flags != 0, cost


@pytest.mark.parametrize("kind", ["LayerNormalization", "RMSNormalization"])
def test_a_norm_knows_its_rows_and_tells_of_others(kind: str, rng: np.random.Generator) -> None:
    """A quarter to four times as large as samples is right; far from it, flagged."""
    layer = getattr(L, kind)(epsilon=1e-6)
    model = model_of(layer)
    samples = rng.normal(0, 1, (16, 3, 24)).astype(np.float32)
    private = convert(model, samples=samples)
    numbers = next(n for n in private.plan.numbers.values() if n.low)
    assert 2 <= numbers.bits - numbers.low <= 12
    rows = samples[:6] * np.array([1, 4, 0.26, 1, 1, 1])[:, None, None]
    rows[3, 1] /= 400  # one row of the sample
    rows[4] /= 4000
    value, flags, cost = ran(private.plan, rows.astype(np.float32))
    assert flags.tolist() == [False, False, False, True, True, False]
    right = np.asarray(model(rows, training=False))
    assert np.abs(value - right)[[0, 1, 2, 5]].max() < 2.0**-12
    declared = convert(model, ranges=4.0 * float(np.abs(samples).max()))
    assert not any(n.low for n in declared.plan.numbers.values())
    value, flags, other = ran(declared.plan, rows.astype(np.float32))
    assert not flags.any() and cost.rounds <= other.rounds - 4 and cost.total < other.total
    assert np.abs(value - right).max() < 4000 * 2.0**-16  # (inputs are rounded)


def test_constant_rows_among_samples_leave_only_epsilon_to_rely_on() -> None:
    samples = np.ones((4, 3, 24), np.float32) * np.arange(1, 5)[:, None, None]
    samples[:2] += np.sin(np.arange(24))
    private = convert(model_of(L.LayerNormalization()), samples=samples)
    assert not any(n.low for n in private.plan.numbers.values())


def test_a_stranger_s_ends_are_checked(rng: np.random.Generator) -> None:
    samples = rng.normal(0, 1, (16, 3, 24)).astype(np.float32)
    header = convert(model_of(L.LayerNormalization()), samples=samples).plan.header()
    (name,) = (n for n, row in header["numbers"].items() if len(row) == 4)
    assert Plan.of(header).header() == header
    row = header["numbers"][name]
    for low in (1, row[2] - 1, row[2], 63):
        plan = Plan.of({**header, "numbers": {**header["numbers"], name: [*row[:3], low]}})
        with pytest.raises(UsageError, match=name):
            execute.check_executable(plan)

"""Train recipes in the simulator, several in one run, and record the cost of each step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tfe_bench.cluster.simulate import measure_graph_call, reconstruct, simulate
from tfe_bench.models.layers.base.operations import ProtocolSetting
from tfe_bench.models.training import evaluate, state, step
from tfe_bench.models.training.examples import append_weights
from tfe_bench.models.training.recipe import Recipe
from tfe_bench.protocols.session.fixedpoint import FixedPoint
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared

Array = np.ndarray[Any, Any]
LOCAL = ProtocolSetting()


@dataclass(frozen=True, eq=False)
class Case:
    """One training: batches are consecutive in x and y, and restart after the last one."""

    recipe: Recipe
    x: Array
    y: Array
    steps: int
    setting: ProtocolSetting = LOCAL
    evaluated: bool = False
    loss: bool = False
    weights: Array | None = None


@dataclass(frozen=True, eq=False)
class Result:
    """State after the steps by key, cost and loss of the last step, and number of right answers."""

    state: dict[str, Array]
    calls: list[Any]
    right: int | None
    loss: float | None


def batch_rows(case: Case, number: int) -> slice:
    """Return the rows of a step's batch."""
    start = number * case.recipe.batch % len(case.x)
    return slice(start, start + case.recipe.batch)


def train_cases(cases: Sequence[Case], dealer: int = 0) -> list[Result]:
    """Run all cases in one simulation."""
    flat, specs = [], [state.list_training_state_specs(c.recipe) for c in cases]
    for case, own in zip(cases, specs, strict=True):
        first = state.build_initial_training_state(case.recipe)
        flat += [FixedPoint(s.fractional_bits).encode(first[s.key]) for s in own]
        flat.append(FixedPoint(16).encode(case.recipe.encode_features(case.x)))
        labels = append_weights(case.recipe, case.recipe.encode_labels(case.y), case.weights)
        flat.append(FixedPoint(20).encode(labels))

    def train_one(party: Party, case: Case, held: dict[str, Shared], x: Shared, y: Shared) -> Any:
        import tensorflow as tf

        recipe, setting = case.recipe, case.setting

        def next_state(held: Any, x: Shared, y: Shared, public: Any) -> Any:
            return step.run_step(party, recipe, setting, held, x, y, public, case.loss)

        function = party.function(next_state)
        inputs: Any = ()
        total = None
        for number in range(case.steps):
            values = step.public_values(recipe, number)
            public = {k: tf.constant(v, tf.int64) for k, v in values.items()}
            cut = batch_rows(case, number)
            a, b = (v.map(lambda t, cut=cut: t[cut]) for v in (x, y))
            inputs = (held, a, b, public)
            held, total = function(*inputs)
        calls = measure_graph_call(party, function, *inputs)
        right = None
        if case.evaluated:
            right = party.function(
                lambda held, x, y: evaluate.score_evaluation_batch(
                    party, recipe, setting, held, x, y
                )
            )(held, x, y)
        return held, calls, right, total

    def program(party: Party, *shares: Shared) -> Any:
        left, outputs = iter(shares), []
        for case, own in zip(cases, specs, strict=True):
            held = {s.key: replace(next(left), fractional_bits=s.fractional_bits) for s in own}
            x = replace(next(left), fractional_bits=16)
            y = replace(next(left), fractional_bits=20)
            outputs.append(train_one(party, case, held, x, y))
        return outputs

    sim = simulate(program, *flat, dealer=dealer)
    results = []
    for i, (case, own) in enumerate(zip(cases, specs, strict=True)):
        outs = [out[i] for out in sim.outputs]
        held = {
            s.key: FixedPoint(s.fractional_bits).decode(reconstruct([o[0][s.key] for o in outs]))
            for s in own
        }
        right = int(reconstruct([o[2] for o in outs])) if case.evaluated else None
        loss = None
        if case.loss:
            total = FixedPoint(outs[0][3].fractional_bits).decode(reconstruct([o[3] for o in outs]))
            loss = step.mean_training_loss(case.recipe, float(total))
        results.append(Result(held, [o[1] for o in outs], right, loss))
    return results

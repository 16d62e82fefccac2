"""The program "train" without a cluster: its outputs, and the bits and scores it computes."""

from __future__ import annotations

import operator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.refusals import raises
from tfe_bench.cluster.jobs import Context, InputSpec
from tfe_bench.cluster.simulate import simulate
from tfe_bench.errors import DataError, UsageError
from tfe_bench.models.layers.base.operations import ProtocolSetting
from tfe_bench.models.training import evaluate, state
from tfe_bench.models.training import examples as inputs
from tfe_bench.models.training import program as train
from tfe_bench.models.training.plaintext import PlaintextTwin
from tfe_bench.models.training.recipe import Recipe
from tfe_bench.models.training.training_job import CheckpointOptions, TrainingJob

_BATCH, _ROWS = 16, 70


def _make_recipe(
    loss: str = "mean_squared_error", seed: int = 2, optimizer: str = "SGD", **options: Any
) -> Recipe:
    import keras

    start = keras.initializers.GlorotUniform(seed=seed)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, kernel_initializer=start)])
    chosen = getattr(keras.optimizers, optimizer)(0.1, **options)
    return Recipe.build(model, chosen, loss, _BATCH)


def test_one_bit_says_whether_a_weight_left_its_range(rng: np.random.Generator) -> None:
    bound, one = evaluate.LARGEST_WEIGHT, 1 << 24
    edge = round(bound * one)
    inside = rng.integers(-edge + 1, edge, 500)
    cases = [
        ([edge - 1, 1 - edge, 0, -1, 1], 0),
        (inside.tolist(), 0),
        ([0], 0),
        *(([*inside[:70], bad], 1) for bad in (edge, -edge, edge + 1, -edge - 1)),
        *(([0, bad], 1) for bad in (2**63 - 1, -(2**63), 2**62, -(2**62), 2**40)),
        ([edge, -edge, 2**63 - 1] * 40, 1),
    ]

    def program(party: Any, *weights: Any) -> Any:
        looked = party.function(lambda w: evaluate.detect_weight_overflow(party, [w]))
        return [looked(w) for w in weights]

    dealer = int(rng.integers(3))
    arrays = [np.array(values, np.int64) for values, _ in cases]
    done = simulate(program, *arrays, fractional_bits=24, dealer=dealer)
    for out in done.outputs:
        assert [int(bit) for bit in out] == [expected for _, expected in cases]


def test_squared_errors_are_added_up(rng: np.random.Generator) -> None:
    recipe = _make_recipe()
    x, y = rng.normal(0, 1, (50, 3)), rng.normal(0, 1, (50, 1))
    arrays = state.build_initial_training_state(recipe)
    specs = state.list_training_state_specs(recipe)

    def program(party: Any, x: Any, y: Any, *held: Any) -> Any:
        named = {s.key: v for s, v in zip(specs, held, strict=True)}
        from dataclasses import replace

        named = {s.key: replace(named[s.key], fractional_bits=s.fractional_bits) for s in specs}
        operands = replace(x, fractional_bits=16), replace(y, fractional_bits=20)
        f = party.function(
            lambda h, a, b: evaluate.score_evaluation_batch(
                party, recipe, ProtocolSetting(), h, a, b
            )
        )
        return f(named, *operands)

    ring = [np.rint(x * 2**16), np.rint(y * 2**20)]
    ring += [np.rint(arrays[s.key] * 2.0**s.fractional_bits) for s in specs]
    done = simulate(program, *(r.astype(np.int64) for r in ring), dealer=int(rng.integers(3)))
    kernel, bias = (arrays[k] for k in recipe.order)
    expected = float(((x @ kernel + bias - y) ** 2).sum())
    assert abs(done.value() / 2.0**evaluate.ERROR_BITS - expected) < 50 * 2.0**-10


def test_a_job_trains_scores_and_hands_over_weights_alone(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    # (it begins with stored state, and ends with averages)
    recipe = _make_recipe(optimizer="Adagrad", use_ema=True, ema_momentum=0.5)
    x = rng.normal(0, 1, (_ROWS, 3))
    y = (x @ [[0.5], [-1.0], [0.25]]) + 0.1
    job = TrainingJob(recipe, 2, _ROWS, 3, test=_ROWS, steps=7)
    arrays = state.build_initial_training_state(recipe)
    job_inputs = {
        f"state{i}": (arrays[s.key] * 2.0**s.fractional_bits, s.fractional_bits)
        for i, s in enumerate(state.list_training_state_specs(recipe))
    }
    for prefix in ("", "test_"):
        job_inputs |= {f"{prefix}x": (x * 2**16, 16), f"{prefix}y": (y * 2**20, 20)}
    fractions: list[str] = []
    measured: dict[int, Any] = {}

    def program(party: Any, *shares: Any) -> Any:
        from dataclasses import replace

        named = {
            name: replace(share, fractional_bits=bits)
            for (name, (_, bits)), share in zip(job_inputs.items(), shares, strict=True)
        }
        request = train.parse_training(
            job.to_header(),
            [InputSpec(k, tuple(v.shape.as_list()), v.fractional_bits) for k, v in named.items()],
        )
        context = Context(
            *(party, job.to_header(), named, lambda fraction, text: fractions.append(text)),
            request=request,
        )
        outputs = train.run_training(context)
        measured[party.index] = context.measurements
        return [outputs[name] for name in ("state0", "state1", "scores")]

    parsed: list[Any] = []

    def count_jobs(header: Any) -> TrainingJob:
        parsed.append(header)
        return read_job(header)

    read_job = TrainingJob.from_header
    monkeypatch.setattr(TrainingJob, "from_header", count_jobs)
    done = simulate(program, *(np.rint(v).astype(np.int64) for v, _ in job_inputs.values()))
    assert len(parsed) == 3  # once at each worker, for its admission and its run
    *values, errors = (done.value(operator.itemgetter(i)) for i in range(3))
    weights = [v / 2.0**24 for v in values]
    errors = errors / 2.0**evaluate.ERROR_BITS / _ROWS
    model_recipe = recipe
    import keras

    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.set_weights([arrays[k] for k in recipe.order])
    twin = PlaintextTwin(model, model_recipe)
    for step in range(7):
        rows = job.batch_rows(step)
        twin.train_step(x[rows], y[rows])
    error = float(((np.asarray(twin.model(x)) - y) ** 2).mean())
    for ours, theirs in zip(weights, twin.finish_training(), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=5e-3)
    assert errors.shape == (2,) and abs(errors[-1] - error) < 1e-2
    for each in measured.values():
        assert each["scored"] == [4, 7] and each["steps"] == 7 and len(each["seconds"]) == 6
        assert len(each["rounds"]) == 1 and each["losses"] == []
    assert any("epoch 2 of 2, step 3 of 4" in text for text in fractions)


def test_a_mean_loss_is_published_to_16_bits_rounded_by_no_coin(rng: np.random.Generator) -> None:
    """Round without a coin: the sum has the coins of many truncations in its last bits."""
    recipe, steps = _make_recipe(), 5
    answers = steps * _BATCH
    drop = 24 - 16 + 6  # 2^6 <= 80 answers
    totals = [*rng.integers(0, 2**40, 5).tolist(), 0, 1 << (drop - 1), (1 << (drop - 1)) - 1]

    def program(party: Any, *totals: Any) -> Any:
        training = SimpleNamespace(_party=party, _recipe=recipe, _loss_steps=steps)
        tell = train._TrainingRun._reveal_loss
        return [[tell(training, t) for t in totals] for _ in range(3)]  # type: ignore[arg-type]

    done = simulate(program, *(np.array(t) for t in totals), fractional_bits=24)
    for out in done.outputs:
        for mean_loss in out:
            for mean, total in zip(mean_loss, totals, strict=True):
                rounded = (total + (1 << (drop - 1))) >> drop
                assert mean == rounded * 2.0 ** (drop - 24) / answers
                assert abs(mean - total / 2.0**24 / answers) <= 2.0**-17


def test_squared_errors_of_a_long_epoch_do_not_wrap() -> None:
    """Run 400 steps with errors of 50: their sum of squares is 1.6e7, above 2^23."""
    from tfe_bench.models.training import step

    recipe = _make_recipe()
    state_values = {
        s.key: (state.build_initial_training_state(recipe)[s.key] * 0, s.fractional_bits)
        for s in state.list_training_state_specs(recipe)
    }
    state_values |= {"x": (np.zeros((_BATCH, 3)), 16), "y": (np.full((_BATCH, 1), 50 * 2**20), 20)}

    def program(party: Any, *shares: Any) -> Any:
        from dataclasses import replace

        held = {
            name: replace(share, fractional_bits=bits)
            for (name, (_, bits)), share in zip(state_values.items(), shares, strict=True)
        }
        x, y = held.pop("x"), held.pop("y")
        public = step.public_values(recipe, 0)
        graph = party.function(
            lambda h, a, b: step.run_step(party, recipe, ProtocolSetting(), h, a, b, public, True)[
                1
            ]
        )
        loss = graph(held, x, y)
        training = SimpleNamespace(_party=party, _recipe=recipe, _loss_steps=400)
        return train._TrainingRun._reveal_loss(training, loss.map(lambda a: 400 * a))  # type: ignore[arg-type]

    done = simulate(program, *(np.rint(v).astype(np.int64) for v, _ in state_values.values()))
    for mean in done.outputs:
        assert abs(mean - 2500) < 1


def test_orders_survive_json_and_strangers_do_not() -> None:
    import json

    recipe = _make_recipe()
    job = TrainingJob(recipe, 3, 64, 5, saving=CheckpointOptions("a", 5, True), chunk=32, guard=4)
    again = TrainingJob.from_header(json.loads(json.dumps(job.to_header())))
    assert (
        again.to_header() == job.to_header() and again.checkpoint_facts() == job.checkpoint_facts()
    )
    assert again.total_steps == 12 and [len(c) for c in again.chunk_ranges] == [32, 32]
    assert [i.name for i in again.expected_inputs()][-4:] == ["x0", "y0", "x1", "y1"]
    assert again.expected_inputs()[-1].late
    # names of layers and learning rates may vary
    assert _make_recipe().to_header() != job.recipe.to_header()
    other = TrainingJob(_make_recipe(), 9, 64, 5, chunk=32)
    assert other.checkpoint_facts() == job.checkpoint_facts()
    assert TrainingJob(recipe, 3, 64, 6, chunk=32).checkpoint_facts() != job.checkpoint_facts()
    header = job.to_header()
    for name in ("recipe", "epochs", "rows", "seed"):
        with pytest.raises((UsageError, DataError)):
            TrainingJob.from_header({k: v for k, v in header.items() if k != name})
    for name in header:
        odd: tuple[Any, ...] = ([], {}, "x", -1, 1.5, {"a": 1})
        for value in odd:
            if name == "deploy" and isinstance(value, dict):
                continue  # the program deploy's own parameters
            with pytest.raises((UsageError, DataError)):
                TrainingJob.from_header({**header, name: value})
    with raises(UsageError, "unknown-option"):
        TrainingJob.from_header({**header, "more": 1})


def test_rows_are_shuffled_alike_and_cut_whole() -> None:
    recipe = _make_recipe()
    x, y = np.arange(60.0).reshape(20, 3), np.arange(20.0)[:, None]
    examples = inputs.TrainingExamples(x, y)
    first, again = inputs.shuffle_examples(4, examples), inputs.shuffle_examples(4, examples)
    np.testing.assert_array_equal(first[0], again[0])
    assert sorted(first[1][:, 0]) == list(range(20)) and first[1][:, 0].tolist() != y[:, 0].tolist()
    np.testing.assert_array_equal(first[0][:, 0], 3 * first[1][:, 0])
    late = inputs.chunked_training_inputs(recipe, examples, 16)
    assert [v.shape for v in late.values()] == [(16, 3), (16, 1), (4, 3), (4, 1)]
    for name, value in late.items():
        batches = value.make()
        assert (batches.shape, batches.fractional_bits) == (value.shape, value.fractional_bits), (
            name
        )

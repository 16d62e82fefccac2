"""Models of several inputs: each input is used as itself, whatever its name and form."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tfe_bench as tfe
from tests.conftest import ORDERS, reorder_keys
from tests.refusals import raises
from tfe_bench.__main__ import main
from tfe_bench.errors import UsageError
from tfe_bench.models.convert.calibration import ModelPlan
from tfe_bench.models.convert.graph import Graph
from tfe_bench.models.inference import service, weights
from tfe_bench.models.inference.private import convert
from tfe_bench.models.inference.request import prediction_input_names, read_model_plan
from tfe_bench.models.training.recipe import Recipe
from tfe_bench.models.training.training_job import TrainingJob

keras: Any = pytest.importorskip("keras")
L: Any = keras.layers

FIRST, SECOND = np.array([[1.0, 2.0]]), np.array([[10.0, 20.0]])


def subtraction_model(*names: str, struct: Any = None) -> Any:
    """Build first - second + 0 * others, so that no two inputs are alike."""
    inputs = [keras.Input((2,), name=name) for name in names]
    first, second, *others = inputs
    difference = L.Subtract()([first, second])
    for other in others:
        difference = L.Add()([difference, L.Rescaling(0.0)(other)])
    return keras.Model(inputs if struct is None else struct(*inputs), difference)


def shared_weights() -> Any:
    x, y = keras.Input((3,), name="z"), keras.Input((3,), name="a")
    dense = L.Dense(2)
    norm = L.BatchNormalization()
    return keras.Model([x, y], {"z": L.ReLU()(dense(x)), "a": norm(dense(y))})


def recurrent_model() -> Any:
    tokens, more = keras.Input((4,), name="words", dtype="int32"), keras.Input((4, 2), name="more")
    x = L.Concatenate()([L.Embedding(5, 3)(tokens), more])
    return keras.Model([tokens, more], L.Dense(2)(L.LSTM(3)(x)))


def _make_plans() -> list[Any]:
    models = (
        subtraction_model("z", "a"),
        subtraction_model(*[f"input_layer_{i}" for i in range(9, 12)]),
        subtraction_model("z", "a", struct=lambda z, a: {"z": z, "a": a}),
        shared_weights(),
        recurrent_model(),
        keras.Sequential(
            [keras.Input((6, 6, 1)), L.Conv2D(2, 3), L.BatchNormalization(), L.ReLU()]
        ),
    )
    return [convert(model).plan for model in models]


def _plan_facts(plan: ModelPlan) -> list[Any]:
    """Return all parts of a plan that depend on its order."""
    graph = plan.graph
    return [
        json.dumps(plan.to_header()["graph"]["inputs"]),
        [(key, w.shape) for key, w in graph.weight_arrays().items()],
        [(part.keys, part.shape, part.fractional_bits) for part in weights.weight_parts(plan)],
        [*graph.inputs.items()],
        graph.outputs,
        graph.labels,
        [(x.name, x.op, x.inputs) for x in graph.layers],
        prediction_input_names(plan),
    ]


@pytest.mark.parametrize("order", ORDERS)
def test_a_header_says_the_same_in_any_order_of_its_keys(order: Any) -> None:
    for plan in _make_plans():
        header = json.loads(json.dumps(plan.to_header()))
        parsed = ModelPlan.from_header(reorder_keys(header, order))
        assert (
            _plan_facts(parsed) == _plan_facts(ModelPlan.from_header(header)) == _plan_facts(plan)
        )
        whole = reorder_keys(plan.graph.to_header(), order)
        assert Graph.from_header(whole, plan.graph.weight_arrays()).digest() == plan.graph.digest()
        assert _plan_facts(read_model_plan(reorder_keys(header, order))) == _plan_facts(plan)


@pytest.mark.parametrize("order", ORDERS)
def test_a_training_is_the_same_in_any_order_of_its_keys(order: Any) -> None:
    model = keras.Sequential([keras.Input((3,), name="z"), L.Dense(4, "relu"), L.Dense(2)])
    recipe = Recipe.build(model, keras.optimizers.Adam(0.1), keras.losses.MeanSquaredError())
    job = TrainingJob(recipe, epochs=1, rows=256, seed=1)
    header = json.loads(json.dumps(job.to_header()))
    parsed = TrainingJob.from_header(reorder_keys(header, order))
    assert (
        parsed.expected_inputs() == job.expected_inputs()
        and parsed.recipe.compute_digest() == recipe.compute_digest()
    )
    assert json.dumps(parsed.checkpoint_facts(), sort_keys=True) == json.dumps(
        job.checkpoint_facts(), sort_keys=True
    )


CASES: dict[str, tuple[Any, Any]] = {
    "listed": (["z", "a"], None),
    "numbered": (["input_layer_9", "input_layer_10", "input_layer_11"], None),
    "keyed": (["z", "a"], lambda z, a: {"z": z, "a": a}),
    "renamed": (["z", "a"], lambda z, a: {"right": z, "left": a}),
}


@pytest.mark.parametrize("case", CASES)
def test_inputs_are_taken_by_name_and_in_order_as_in_keras(
    cluster: tfe.LocalCluster, case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names, struct = CASES[case]
    model = subtraction_model(*names, struct=struct)
    keys = names if struct is None else list(struct("z", "a"))
    values = [FIRST, SECOND, FIRST][: len(keys)]
    by_name = dict(zip(keys, values, strict=True))
    expected = np.asarray(model(by_name if struct else values, training=False))
    np.testing.assert_array_equal(expected, FIRST - SECOND)
    samples = by_name if case == "keyed" else None
    private = convert(model, samples)
    deployed = f"in-{case}"
    service.deploy(cluster.client, private, deployed)
    ways: list[Any] = [by_name, dict(reversed(by_name.items()))]
    if private.graph.keyed:
        with pytest.raises(ValueError, match="structure"):
            model(values)
        with raises(UsageError, "input-mismatch"):
            cluster.predict(private, values)
    else:
        ways += [values, tuple(values)]
    for arrays in ways:
        np.testing.assert_allclose(private.plain(arrays), expected, atol=1e-9)
        np.testing.assert_allclose(cluster.predict(private, arrays), expected, atol=1e-3)
    np.testing.assert_allclose(cluster.predict(deployed, ways[-1]), expected, atol=1e-3)
    with raises(UsageError, "input-mismatch"):
        cluster.predict(private, {**by_name, "more": FIRST})


@pytest.mark.slow
def test_commands_take_inputs_by_name_from_npz_and_csv(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    z, a = keras.Input((1,), name="z"), keras.Input((1,), name="a")
    keras.Model([z, a], L.Subtract()([z, a])).save(tmp_path / "m.keras")
    np.savez(tmp_path / "x.npz", a=SECOND.T, z=FIRST.T)
    (tmp_path / "x.csv").write_text("id,a,z\n7,10,1\n8,20,2\n")
    expected = [[-9.0], [-18.0]]
    keeping = ["--models", str(tmp_path / "kept"), "--json"]
    assert main(["deploy", str(tmp_path / "m.keras"), "--name", "m", *keeping]) == 0
    for model in (str(tmp_path / "m.keras"), "m"):
        for file in ("x.npz", "x.csv"):
            capsys.readouterr()
            assert main(["predict", model, "--input", str(tmp_path / file), *keeping]) == 0
            (outputs,) = json.loads(capsys.readouterr().out)["outputs"]
            np.testing.assert_allclose(outputs, expected, atol=1e-3)
    out = tmp_path / "out.csv"
    arguments = ["predict", "m", "--input", str(tmp_path / "x.csv"), *keeping[:2]]
    assert main([*arguments, "--output", str(out)]) == 0
    assert "sample 0" not in capsys.readouterr().out
    header, *rows = [line.split(",") for line in out.read_text().splitlines()]
    assert header == ["id", "output0"] and [row[0] for row in rows] == ["7", "8"]
    assert main(arguments) == 0
    assert "sample 1: -18" in capsys.readouterr().out  # a number, not a class

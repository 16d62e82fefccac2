"""Table facts keep names and scales; public scales are coarse, nothing is scaled twice."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.refusals import raises
from tfe_bench.errors import DataError, RangeError, UsageError
from tfe_bench.models.convert import tables
from tfe_bench.models.convert.calibration import ModelPlan
from tfe_bench.models.convert.from_keras import from_keras
from tfe_bench.models.convert.optimize import optimize_graph
from tfe_bench.models.convert.plaintext import evaluate_graph
from tfe_bench.models.convert.tables import Table
from tfe_bench.models.datasets import owners, sources
from tfe_bench.models.datasets.request import read_dataset_table
from tfe_bench.models.inference import service, weights
from tfe_bench.models.inference.private import convert
from tfe_bench.models.layers.base import scales
from tfe_bench.models.layers.base.scales import ColumnScale
from tfe_bench.models.training import deploying
from tfe_bench.models.training.recipe import Recipe
from tfe_bench.models.training.trainable import trainable

keras: Any = pytest.importorskip("keras")
L: Any = keras.layers


def _adapt_normalization(x: Any, **options: Any) -> Any:
    layer = L.Normalization(**options)
    layer.adapt(x.astype(np.float32))
    return layer


def _draw_columns(rng: np.random.Generator) -> Any:
    """Return columns as tables have them: a ratio, a year, an income, a constant."""
    columns = [rng.uniform(0, 0.01, 60), rng.integers(2000, 2024, 60), rng.lognormal(11, 1, 60)]
    return np.stack([*columns, np.full(60, 7.0)], 1)


# ---- scales


def test_scales_are_parted_into_coarse_ones_and_the_rest(rng: np.random.Generator) -> None:
    factor = rng.choice([-1, 1], 200) * 2.0 ** rng.uniform(-40, 40, 200)
    offset = rng.normal(0, 1, 200) * 2.0 ** rng.uniform(-5, 12, 200)
    x = rng.normal(0, 1, 200) / factor
    want = x * factor + offset
    for split, public in ((scales.split_scale, 0), (scales.split_scale_last, 1)):
        pairs = split(factor, offset)
        first, then = pairs
        got = (x * first[0] + first[1]) * then[0] + then[1]
        np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-9)
        f, o = pairs[public]
        assert (np.log2(f) == np.rint(np.log2(f))).all()
        steps = 2 * o if public == 0 else 2 * o / f
        assert (steps == np.rint(steps)).all()
        f, o = pairs[1 - public]
        assert (np.abs(f) > 0.7).all() and (np.abs(f) < 1.42).all() and (np.abs(o) < 0.4).all()
    assert scales.is_identity_scale(scales.split_scale(0.25, 1.5)[1])
    (first, _) = scales.split_scale(0.0, 3.0)
    assert np.isfinite(first).all()


def test_columns_of_any_size_are_scaled_and_hopeless_ones_named(rng: np.random.Generator) -> None:
    for power in (-55.0, -20.0, 0.0, 20.0, 55.0):
        x = (rng.normal(0, 1, (80, 1)) + 3) * 2.0**power
        scale = scales.fit_column_scale(x, ("a",))
        scaled = scale.apply(x)
        assert abs(scaled.mean()) <= 0.26 and 0.7 < scaled.std() < 1.42
        np.testing.assert_allclose(scale.inverse().apply(scaled), x, rtol=1e-9)
    steady = np.full((9, 1), 1e6 / 3)
    assert not scales.fit_column_scale(steady, ("a",)).apply(steady).any()
    for power in (-70.0, 70.0, 600.0):
        with raises(RangeError, "value-out-of-range", operation="b"):
            x = rng.normal(0, 1, (80, 2)) * [1.0, 2.0**power]
            scales.fit_column_scale(x, ("a", "b"))


# ---- Normalization


def _normalized_models(rng: np.random.Generator) -> dict[str, tuple[Any, Any]]:
    x = _draw_columns(rng)
    numbers = rng.normal(0, 1, (60, 4))
    images = rng.normal(3, 9, (8, 3, 3, 2))
    y = rng.normal(50_000, 20_000, (60, 2))
    inverse = _adapt_normalization(y, invert=True)
    layer = L.Normalization(mean=x.mean(0), variance=x.var(0))
    shared = L.Rescaling([2.0, -0.5], offset=300.0)
    return {
        "adapted": (x, [_adapt_normalization(x), L.Dense(3)]),
        "given": (x, [layer, L.Dense(3)]),
        "a number": (numbers, [L.Normalization(None, 5.0, 9.0), L.Rescaling(1e-5), L.Dense(2)]),
        "images": (images, [_adapt_normalization(images), L.Conv2D(2, 2), L.Flatten(), L.Dense(1)]),
        "second": (numbers, [L.Dense(3), L.Normalization(-1, [0.1] * 3, [4.0] * 3), L.Dense(2)]),
        "alone": (numbers, [_adapt_normalization(numbers)]),
        "of the label": (numbers, [L.Dense(2), inverse]),
        "of a function": (numbers, [L.Dense(2, activation="sigmoid"), inverse]),
        "rescaled label": (numbers, [L.Dense(2), L.ReLU(), shared]),
    }


def test_normalization_computes_what_keras_computes(rng: np.random.Generator) -> None:
    for name, (x, layers) in _normalized_models(rng).items():
        model = keras.Sequential([L.Input(x.shape[1:]), *layers])
        want = model.predict(x, verbose=0)
        size = float(np.abs(want).max())
        graph = from_keras(model)
        assert np.abs(evaluate_graph(graph, x)[0] - want).max() < 1e-4 * size, name
        optimized = optimize_graph(graph)
        assert np.abs(evaluate_graph(optimized, x)[0] - want).max() < 1e-4 * size, name
        again = type(optimized).from_header(optimized.to_header(), optimized.weight_arrays())
        assert np.abs(evaluate_graph(again, x)[0] - want).max() < 1e-4 * size, name
        private = convert(model, samples=x)
        assert np.abs(private.plain(x) - want).max() < 1e-4 * size, name
        # labels of 50,000 are shared near 1, and so are columns
        assert all(b < 4096 for b in private.bounds.values()), name


def test_statistics_are_coarse_where_they_are_public_and_never_in_a_training(
    rng: np.random.Generator,
) -> None:
    x = _draw_columns(rng)
    model = keras.Sequential(
        [L.Input((4,)), _adapt_normalization(x), L.Dense(1, activation="sigmoid")]
    )
    header_text = json.dumps(convert(model, samples=x).plan.to_header())
    recipe = Recipe.build(model, "sgd", "binary_crossentropy")
    trained = json.dumps(recipe.to_header())
    for value in (*x.mean(0)[:3], *x.std(0)[:3], *(1 / x.std(0)[:3])):
        assert f"{value:.6g}"[:6] not in header_text and f"{value:.6g}"[:6] not in trained
    np.testing.assert_allclose(recipe.encode_features(x)[:, :3].std(0), 1, atol=1e-4)
    # its weights are those of Keras and are not trained; a copy is scaled as the model is
    private = trainable(model)
    private.compile("sgd", "binary_crossentropy")
    assert len(recipe.order) == 2 and len(model.weights) == 5
    want = model.predict(x, verbose=0)
    np.testing.assert_array_equal(private.initial_model().predict(x, verbose=0), want)
    late = keras.Sequential([L.Input((4,)), L.Dense(4), _adapt_normalization(x), L.Dense(1)])
    with raises(UsageError, "misplaced-normalization"):
        Recipe.build(late, "sgd", "mse")
    several = L.Normalization(axis=(1, 2), mean=np.ones((2, 3)), variance=np.ones((2, 3)))
    for layer, code in (
        (several, "unsupported-layer"),
        (L.Normalization(None, 1.0, -1.0), "number-out-of-range"),
    ):
        bad = keras.Sequential([L.Input((2, 3)), layer])
        with raises((UsageError, RangeError), code):
            from_keras(bad)


# ---- trained weights that stay at the workers


def test_a_model_that_stays_computes_with_the_weights_it_was_trained_to(
    rng: np.random.Generator,
) -> None:
    """Check that no pass merges other layers' numbers into an array that training replaces."""
    image = [L.Input((6, 6, 1)), L.Conv2D(2, 3)]
    kept = {
        "average": [*image, L.AveragePooling2D(2), L.Flatten(), L.Dense(1)],
        "global average": [*image, L.GlobalAveragePooling2D(), L.Dense(1)],
        "dense": [L.Input((4,)), L.Dense(4, activation="relu"), L.Dense(1)],
        "scaled": [L.Input((4,)), L.Rescaling(0.3, 1.7), L.Dense(1)],
    }
    for name, layers in kept.items():
        model = keras.Sequential(layers)
        parameters = deploying.trained_model_parameters(model, "a")
        recipe = Recipe.build(model, "sgd", "mse")
        deploying.check_trained_model(recipe, parameters)
        plan = ModelPlan.from_header(parameters["about"]["plan"])
        held = recipe.graph.weight_arrays()
        arrays = dict(
            zip(
                (f"{p.layer.name}/{p.name}" for p in weights.weight_parts(plan)),
                (held[key] for key in deploying._state_keys(recipe, plan)),
                strict=True,
            )
        )
        graph = type(plan.graph).from_header(plan.graph.to_header(), arrays)
        x = rng.normal(0, 1, (5, *model.input_shape[1:]))
        want = model.predict(x, verbose=0)
        np.testing.assert_allclose(
            evaluate_graph(graph, x)[0], want, rtol=0, atol=1e-4, err_msg=name
        )
    lost = {
        "batch norm": [L.Input((4,)), L.Dense(4), L.BatchNormalization(), L.Dense(1)],
        "between": [L.Input((4,)), L.Dense(4), L.Rescaling(2.0, 1.0), L.ReLU(), L.Dense(1)],
        "normalization": [L.Input((4,)), L.Normalization(-1, [0.3] * 4, [3.0] * 4), L.Dense(1)],
    }
    for name, layers in lost.items():
        model = keras.Sequential(layers)
        parameters = deploying.trained_model_parameters(model, "a")
        with raises(UsageError, "unsupported-layer"):
            deploying.check_trained_model(Recipe.build(model, "sgd", "mse"), parameters)
            raise AssertionError(name)


# ---- tables


def _make_table(**changed: Any) -> Table:
    scale = ColumnScale((0.5, 2.0), (-1.5, 0.0))
    fields = {"columns": ("a", "b"), "target": "binary", "label": "y", "classes": ("n", "j")}
    return Table(**{**fields, "scale": scale, **changed})


def test_a_table_goes_with_its_model(tmp_path: Path, rng: np.random.Generator) -> None:
    unit = ColumnScale((2.0**-10,), (-3.5,))
    for table in (
        _make_table(),
        _make_table(target="number", classes=(), unit=unit),
        _make_table(scale=None),
    ):
        model = keras.Sequential([L.Input((2,)), L.Dense(1)])
        whole = table.in_units(model)
        tables.save_with_table(whole, table, tmp_path / "m.keras")
        assert (tmp_path / "m.keras").stat().st_mode & 0o777 == 0o600
        assert tables.load_table(tmp_path / "m.keras") == table
        read = keras.models.load_model(tmp_path / "m.keras")
        x = rng.normal(3, 2, (9, 2))
        scaled = x if table.scale is None else table.scale.apply(x)
        want = model.predict(scaled, verbose=0)
        if table.unit is not None:
            want = table.unit.inverse().apply(want)
        np.testing.assert_allclose(read.predict(x, verbose=0), want, rtol=1e-5, atol=1e-4)
        # a model that stays at the workers gets the same scales
        scaled_model = service.accept_unscaled_columns(convert(model), table)
        np.testing.assert_allclose(scaled_model.plain(x), want, rtol=1e-5, atol=1e-4)
        if table.scale is not None:
            inner = tables.find_scaled_model(read)
            np.testing.assert_array_equal(inner.get_weights()[0], model.get_weights()[0])
    model.save(tmp_path / "plain.keras")
    assert tables.load_table(tmp_path / "plain.keras") is None
    (tmp_path / "no.keras").write_bytes(b"no")
    with raises(DataError, "invalid-model-file"):
        tables.load_table(tmp_path / "no.keras")
    with zipfile.ZipFile(tmp_path / "plain.keras", "a") as file:
        file.writestr("tfe_bench.json", "[" * 100_000)
    with pytest.raises(DataError):
        tables.load_table(tmp_path / "plain.keras")


def test_tables_of_strangers_are_checked() -> None:
    good = _make_table().to_header()
    assert Table.from_header(json.loads(json.dumps(good))) == _make_table()
    for changed in (
        {"columns": ["a", "a"]},
        {"columns": ["a", 5]},
        {"columns": ["a" * 201, "b"]},
        {"columns": "ab"},
        {"columns": [""] * 100_001},
        {"target": "x"},
        {"label": 5},
        {"logits": 1},
        {"classes": None},
        {"scale": [[1.0], [0.0]]},
        {"scale": [[1.0, float("nan")], [0.0, 0.0]]},
        {"scale": [[1.0, 0.0], [0.0, 0.0]]},
        {"scale": [[1.0, True], [0.0, 0.0]]},
        {"unit": [[1.0, 1.0], [0.0, 0.0]]},
        {"unit": 5},
        {"more": 1},
    ):
        with pytest.raises(DataError):
            Table.from_header({**good, **changed})
    with pytest.raises(DataError):
        Table.from_header(None)


def test_probabilities_are_those_of_the_outputs() -> None:
    logits = np.array([[-1.0], [2.0]])
    yes = 1 / (1 + np.exp(-logits[:, 0]))
    np.testing.assert_allclose(_make_table().probabilities(logits), np.stack([1 - yes, yes], 1))
    got = _make_table(logits=False).probabilities(yes[:, None])
    np.testing.assert_allclose(got, np.stack([1 - yes, yes], 1))
    three = np.array([[0.0, 1.0, 800.0]])
    np.testing.assert_allclose(_make_table(target="classes").probabilities(three), [[0, 0, 1]])
    number = _make_table(target="number")
    np.testing.assert_array_equal(number.probabilities(logits), logits)


def _make_facts(table: Table | None, rows: int = 5, **changed: Any) -> dict[str, Any]:
    fields = {"rows": rows, "x": [2], "y": [1], "target": "binary", "classes": 2}
    return {**fields, "columns": ["a", "b"], **owners._dataset_unit_facts(table), **changed}


def test_rows_of_owners_mean_the_same_in_one_column() -> None:
    rows = sources.DatasetRef(("p", "q"), None, {})

    def joined(first: Any, other: Any) -> Any:
        return sources.combine_dataset_schemas(rows, {"p": ("alice", first), "q": ("bob", other)})

    assert joined(_make_facts(_make_table()), _make_facts(_make_table())).table == _make_table()
    assert joined(_make_facts(None), _make_facts(None)).table is None
    with raises(
        UsageError,
        "scales-mismatch",
        operation="the column 'b'",
        names=("'p' of 'alice'", "--scale"),
    ):
        joined(
            _make_facts(_make_table()),
            _make_facts(_make_table(scale=ColumnScale((0.5, 4.0), (-1.5, 0.0)))),
        )
    with raises(UsageError, "scales-mismatch", operation="the label 'y'"):
        joined(_make_facts(_make_table()), _make_facts(_make_table(classes=("j", "n"))))
    with raises(UsageError, "scales-mismatch", operation="the column 'a'"):
        joined(_make_facts(_make_table()), _make_facts(_make_table(scale=None)))

    beside = sources.DatasetRef(("p", "q"), "l", {})
    left, right = _make_facts(_make_table(), y=None), _make_facts(_make_table(scale=None), y=None)
    label = _make_facts(_make_table(columns=(), scale=None, label="z"), x=None, columns=[])
    facts = {"p": ("alice", left), "q": ("bob", right), "l": ("bob", label)}
    combined = sources.combine_dataset_schemas(beside, facts).table
    assert combined is not None and combined.columns == ("p.a", "p.b", "q.a", "q.b")
    assert combined.scale == ColumnScale((0.5, 2.0, 1.0, 1.0), (-1.5, 0.0, 0.0, 0.0))
    assert (combined.label, combined.classes) == ("z", ("n", "j"))
    for bad in ({"label": "y"}, 5, {**_make_facts(_make_table())["units"], "scale": 3}):
        with pytest.raises((UsageError, DataError)):
            read_dataset_table({**_make_facts(None), "units": bad})

"""A kind of layer is one class, also in another package: discovered, converted, run and trained."""

from __future__ import annotations

import importlib
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from tests.models.test_execute import make_case, run_all
from tests.models.training.bench import Case, train_cases
from tests.refusals import Matching, raises
from tfe_bench import discovery
from tfe_bench.cluster.simulate import assert_costs
from tfe_bench.errors import UsageError
from tfe_bench.models import layers
from tfe_bench.models.convert.graph import Graph
from tfe_bench.models.inference import execute
from tfe_bench.models.inference.private import convert
from tfe_bench.models.layers.base import registry
from tfe_bench.models.layers.base.checks import check_options, check_single_input
from tfe_bench.models.layers.base.kind import Kind, Observer
from tfe_bench.models.layers.base.layer import (
    Array,
    FixedPointFormat,
    LayerSpec,
    Options,
    PlacedLayer,
    Shape,
    Shapes,
)
from tfe_bench.models.layers.base.passes import ForwardContext, Gradients
from tfe_bench.models.layers.base.planning import PRODUCT_BITS, LayerFormatPlanner
from tfe_bench.models.training import state, step
from tfe_bench.models.training.recipe import Recipe
from tfe_bench.protocols.ring import reductions
from tfe_bench.protocols.session.sharing import Shared

keras: Any = pytest.importorskip("keras")
L: Any = keras.layers


class KerasSquare(L.Layer):  # type: ignore[misc]  # (Keras is untyped)
    """x * x, as its owner implements it for Keras."""

    def call(self, x: Any) -> Any:
        return x * x


class Square(Kind):
    """x * x, as its owner implements it for tfe_bench."""

    op = "their_square"

    def find_keras_layers(self, keras: Any) -> list[type]:
        return [KerasSquare]

    def infer_shape(self, input_shapes: list[Shape], options: Options, weights: Shapes) -> Shape:
        check_options(options)
        return check_single_input(input_shapes, weights)

    def compute_plaintext(self, x: LayerSpec, values: list[Array], observe: Observer) -> Array:
        return np.square(values[0])

    def plan_format(self, planner: LayerFormatPlanner, x: LayerSpec) -> FixedPointFormat:
        f, m = planner.get_input_format(x)
        if 2 * (f + m) > PRODUCT_BITS:
            planner.report_unfit(x, f"squares values up to {2.0**m:g}")
        return FixedPointFormat(f)

    def bound_output(self, node: PlacedLayer, input_limits: list[int]) -> int | None:
        return (input_limits[0] ** 2 >> node.numbers.fraction) + 1

    def forward(self, p: ForwardContext, node: PlacedLayer, *values: Shared) -> Shared:
        (x,), f = values, node.numbers.fraction
        y = p.ops.run_protocol(reductions.square, x)
        return p.ops.truncate(y, y.fractional_bits - f)

    def forward_training(self, p: ForwardContext, node: PlacedLayer, *values: Shared) -> Shared:
        p.saved[node.output] = p.ops.mul_public(values[0], 2)
        return self.forward(p, node, *values)

    def backward(
        self, p: ForwardContext, node: PlacedLayer, g: Shared, needs_input_gradient: bool
    ) -> Gradients:
        return [p.multiply_slope(node, g)]


def old_square() -> Any:
    """Return Square with the names of the previous release."""

    class OldSquare(Kind):
        op = "their_old_square"

        def classes(self, keras: Any) -> list[type]:
            return [KerasSquare]

        def shape(self, given: Any, options: Any, weights: Any) -> Any:
            assert super().reach(None, given) == 0  # type: ignore[misc]  # (an old name)
            checks: Any = importlib.import_module("tfe_bench.models.layers.base.checks")
            checks.only(options)
            return checks.alone(given, weights)

        def plain(self, x: Any, values: Any, seen: Any) -> Array:
            return np.asarray(np.square(values[0]))

        def numbers(self, planner: Any, x: Any) -> Any:
            f, _ = planner.most(x)
            layer: Any = importlib.import_module("tfe_bench.models.layers.base.layer")
            return layer.Numbers(f)

        def limit(self, node: Any, given: Any) -> int:
            return int((given[0] ** 2 >> node.numbers.fraction) + 1)

        def forward(self, p: Any, node: Any, *values: Any) -> Any:
            y = p.ops.call(reductions.square, values[0])
            return p.ops.truncate(y, y.fractional_bits - node.numbers.fraction)

        def train(self, p: Any, node: Any, *values: Any) -> Any:
            p.kept[node.output] = p.ops.times(values[0], 2)
            return self.forward(p, node, *values)

        def backward(self, p: Any, node: Any, g: Any, wanted: bool) -> Any:
            return [p.times_slope(node, g)]

    return OldSquare


@dataclass
class Point:
    """An entry point of a package that is not installed."""

    held: Any
    name: str = "square"
    value: str = "theirs:Square"

    def load(self) -> Any:
        return self.held


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Install the other package."""
    monkeypatch.setattr(registry, "entry_points", lambda group: [Point(Square)])
    monkeypatch.setattr(registry, "KINDS", registry.discover_layer_kinds())


def square_model() -> Any:
    return keras.Sequential([L.Input((4,)), L.Dense(3), KerasSquare(), L.Dense(2)])


def test_a_kind_of_another_package_is_converted_predicted_and_priced(
    installed: None, rng: np.random.Generator
) -> None:
    keras.utils.set_random_seed(int(rng.integers(1 << 31)))
    model, images = square_model(), rng.normal(0, 1, (3, 4)).clip(-3, 3).astype(np.float32)
    private = convert(model, samples=images)
    assert Graph.from_header(private.graph.to_header()).to_header() == private.graph.to_header()
    dealer, some = int(rng.integers(3)), make_case(private, images, watched=True)
    ((got, calls),) = run_all([some], dealer)
    assert np.abs(got - model.predict(images, verbose=0)).max() < 64 * 2.0**-16
    assert_costs(calls, execute.model_cost(some[0]), dealer)


def test_a_kind_of_another_package_learns(installed: None, rng: np.random.Generator) -> None:
    """One step: the weights before it change as in Keras, within 2^-9 of the largest change."""
    keras.utils.set_random_seed(int(rng.integers(1 << 31)))
    model, x, y = (
        square_model(),
        rng.normal(0, 1, (8, 4)).astype(np.float32),
        rng.normal(0, 1, (8, 2)),
    )
    recipe = Recipe.build(model, keras.optimizers.SGD(0.125), "mse", 8)
    (result,) = train_cases([Case(recipe, x, y, 1)])
    before = model.get_weights()
    model.compile(keras.optimizers.SGD(0.125), "mse")
    model.train_on_batch(x, y)
    for got, want, old in zip(
        state.to_keras_weights(recipe, result.state), model.get_weights(), before, strict=True
    ):
        largest_change = float(np.abs(want - old).max())
        assert largest_change > 0
        assert np.abs(got - want).max() < 2.0**-9 * (largest_change + 2.0**-6)
    assert_costs(result.calls, step.step_cost(recipe, Case(recipe, x, y, 1).setting))


def test_old_names_are_accepted_with_a_warning(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kind with the old names predicts and learns as one with the new names."""
    with pytest.warns(DeprecationWarning, match="classes has the new name find_keras_layers"):
        old = old_square()
    x, y = rng.normal(0, 1, (4, 4)).clip(-3, 3).astype(np.float32), rng.normal(0, 1, (4, 2))
    model, outputs = square_model(), []
    for kind in (Square, old):
        monkeypatch.setattr(registry, "entry_points", lambda group, kind=kind: [Point(kind)])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            monkeypatch.setattr(registry, "KINDS", registry.discover_layer_kinds())
            ((predicted, _),) = run_all([make_case(convert(model, samples=x), x, watched=True)], 0)
            recipe = Recipe.build(model, keras.optimizers.SGD(0.125), "mse", 4)
            (result,) = train_cases([Case(recipe, x, y, 1)])
        outputs.append([predicted, *state.to_keras_weights(recipe, result.state)])
    for new, got in zip(*outputs, strict=True):
        assert np.abs(new - got).max() < 2.0**-10
    with pytest.warns(DeprecationWarning, match="Layer has the new name LayerSpec"):
        assert importlib.import_module("tfe_bench.models.layers.base.layer").Layer is LayerSpec
    with pytest.raises(AttributeError):
        importlib.import_module("tfe_bench.models.layers.base.layer").Layr  # noqa: B018


def test_without_the_package_its_layers_are_refused_by_name() -> None:
    with raises(
        UsageError,
        "unsupported-layer",
        received=Matching("KerasSquare"),
        names=("docs/keras_layers.md",),
    ):
        convert(square_model())
    layer = LayerSpec("a", Square.op, ("x",))
    with raises(UsageError, "unknown-name", operation="a", received=Square.op):
        Graph("m", {"x": (2,)}, (layer,), ("a",))


class DuplicateSquare(Square):
    """A kind whose name is in use."""

    op = "dense"


@pytest.mark.parametrize(
    ("held", "text"),
    [(DuplicateSquare, "'dense' already"), (object(), "'square'"), (int, "'square'")],
)
def test_entry_points_that_are_no_kinds_are_refused(
    held: Any, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "entry_points", lambda group: [Point(held)])
    code = "duplicate-name" if held is DuplicateSquare else "invalid-entry-point"
    with raises(UsageError, code, operation=text.split("'")[1]):
        registry.discover_layer_kinds()


def test_every_module_of_layers_has_a_kind_or_is_what_kinds_have_in_common() -> None:
    homes = {type(kind).__module__ for kind in registry.KINDS.values()}
    shared = {
        module.__name__
        for module in discovery.import_package_modules(layers.__name__, layers.__path__)
    } - homes
    assert {name.rpartition(".")[2] for name in shared} == {"base", "linear", "smooth"}

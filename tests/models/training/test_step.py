"""A complete step: no mask hides two messages, and equal inputs produce different words."""

from __future__ import annotations

import ast
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.paths import ROOT
from tfe_bench.cluster.simulate import simulate
from tfe_bench.models.layers.base.operations import ProtocolSetting
from tfe_bench.models.training import state, step
from tfe_bench.models.training.examples import append_weights
from tfe_bench.models.training.recipe import Recipe
from tfe_bench.protocols.session.fixedpoint import FixedPoint
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared

keras: Any = pytest.importorskip("keras")
L: Any = keras.layers


def protocol_model() -> Any:
    """Return a model with one of each of the larger protocols."""
    return keras.Sequential(
        [
            L.Input((6, 6, 1)),
            L.Conv2D(2, 3),
            L.BatchNormalization(),
            L.MaxPooling2D(2),
            L.ReLU(),
            L.Flatten(),
            L.Dense(4, activation="relu"),
            L.Dense(4, activation="tanh"),
            L.Dense(3, activation="softmax"),
        ]
    )


@pytest.mark.parametrize(
    ("optimizer", "weighted"),
    [
        ("amsgrad", True),  # the maximum of both
        pytest.param("sgd", True, marks=pytest.mark.slow),
        pytest.param("amsgrad", False, marks=pytest.mark.slow),
    ],
)
def test_each_mask_of_a_step_hides_one_message_of_one_call(
    optimizer: str, weighted: bool, rng: np.random.Generator
) -> None:
    recipe = Recipe.build(protocol_model(), optimizer, "categorical_crossentropy", 4)
    recipe = replace(recipe, weighted=4 if weighted else 0)
    specs, first = (
        state.list_training_state_specs(recipe),
        state.build_initial_training_state(recipe),
    )
    x = rng.normal(0, 1, (4, 6, 6, 1))
    y = append_weights(
        recipe, np.eye(3)[rng.integers(0, 3, 4)], rng.uniform(0, 3, 4) if weighted else None
    )
    arrays = [FixedPoint(s.fractional_bits).encode(first[s.key]) for s in specs]
    operands = [*arrays, FixedPoint(16).encode(x), FixedPoint(20).encode(y)]

    def program(party: Party, *shares: Shared) -> Any:
        import tensorflow as tf

        held = {
            s.key: replace(v, fractional_bits=s.fractional_bits)
            for s, v in zip(specs, shares, strict=False)
        }
        x, y = replace(shares[-2], fractional_bits=16), replace(shares[-1], fractional_bits=20)
        public = {k: tf.constant(v) for k, v in step.public_values(recipe, 0).items()}

        def next_state(held: Any, x: Shared, y: Shared, public: Any) -> Any:
            return step.run_step(party, recipe, ProtocolSetting(), held, x, y, public)[0]

        function = party.function(next_state)
        # shares and secrets are the same in both calls: only masks differ
        return [function(held, x, y, public) for _ in range(2)]

    pads = simulate(program, *operands, record=True).pads
    sent = pads[pads["sent"] == 1]
    names = set(zip(sent["key"], sent["hi"], sent["lo"], strict=True))
    assert len(sent) > 100 and len(names) == len(sent)
    # messages of more than 16 bytes: shorter ones may be equal by chance
    long = sent[sent["bytes"] > 16]
    assert len(set(long["digest"])) == len(long) > 100


def _is_set(x: ast.expr) -> bool:
    """Return whether an expression is a set."""
    if isinstance(x, ast.BinOp) and isinstance(x.op, (ast.BitAnd, ast.BitOr, ast.BitXor, ast.Sub)):
        return any(_is_set(v) for v in (x.left, x.right))
    if isinstance(x, ast.Call):
        name = getattr(x.func, "id", getattr(x.func, "attr", ""))
        return name in ("set", "frozenset", "keys")
    return isinstance(x, (ast.Set, ast.SetComp))


@pytest.mark.parametrize(
    "folder", ["protocols", "models/training", "models/layers", "models/inference"]
)
def test_no_loop_goes_over_a_set(folder: str) -> None:
    """Sets of texts have another order in each process, but all parties must send in one order."""
    offenders = []
    for path in sorted((ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, (ast.For, ast.comprehension)):
                iterated = node.iter
                plain = (
                    isinstance(iterated, ast.Call) and getattr(iterated.func, "attr", "") == "keys"
                )
                if _is_set(iterated) and not plain:
                    offenders.append(f"{path.name}: {ast.unparse(iterated)}")
    assert not offenders

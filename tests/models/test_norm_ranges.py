"""Norms with ranges of statistics from samples: fewer rounds, and outliers are detected."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from operator import itemgetter
from typing import Any

import keras
import numpy as np
import pytest

from tests.refusals import raises
from tfe_bench.cluster.simulate import simulate
from tfe_bench.errors import UsageError
from tfe_bench.models.convert import plaintext
from tfe_bench.models.convert.calibration import ModelPlan
from tfe_bench.models.inference import execute, weights
from tfe_bench.models.inference.private import convert
from tfe_bench.models.layers.base import PlacedLayer, row_scheme
from tfe_bench.models.layers.normalize import Normalize
from tfe_bench.protocols.session.fixedpoint import FixedPoint
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared

L = keras.layers


def model_of(layer: Any) -> Any:
    return keras.Sequential([L.Input((3, 24)), layer])


def run_plan(plan: ModelPlan, arrays: Any) -> tuple[Any, Any, Any]:
    """Return the values, the flags of the samples, and the cost."""
    scaled = plaintext.scale_owner_inputs(plan.graph, arrays)
    s = execute.tune_prediction(plan, "local", len(next(iter(scaled.values()))), True)
    scales = [plan.fraction_of(name) for name in plan.graph.inputs]
    parts = list(weights.weight_parts(plan))

    def program(party: Party, *shares: Shared) -> Any:
        def graph(*shares: Shared) -> list[Shared]:
            pairs = zip(shares, scales, strict=False)
            inputs = [replace(x, fractional_bits=f) for x, f in pairs]
            named: dict[str, Shared] = {}
            for part, w in zip(parts, shares[len(scales) :], strict=True):
                named |= dict.fromkeys(part.keys, replace(w, fractional_bits=part.fractional_bits))
            return execute.run_model(party, s, named, inputs)

        return party.function(graph)(*shares)

    words = [
        FixedPoint(f).encode(scaled[n]) for n, f in zip(plan.graph.inputs, scales, strict=True)
    ]
    sim = simulate(program, *words, *weights.encode_weights(plan))
    value, flags = (sim.value(itemgetter(i)) for i in range(2))
    cost = execute.model_cost(s)
    assert sim.sent == cost.by_party(0) and sim.rounds == cost.rounds
    return value * 2.0 ** -plan.fraction_of(plan.graph.outputs[0]), flags != 0, cost


@pytest.mark.parametrize("kind", ["LayerNormalization", "RMSNormalization"])
def test_a_norm_knows_its_rows_and_tells_of_others(kind: str, rng: np.random.Generator) -> None:
    """Accept rows of a quarter to four times the samples' size, and flag rows far from it."""
    layer = getattr(L, kind)(epsilon=1e-6)
    model = model_of(layer)
    samples = rng.normal(0, 1, (16, 3, 24)).astype(np.float32)
    private = convert(model, samples=samples)
    numbers = next(n for n in private.plan.numbers.values() if n.low)
    assert 2 <= numbers.bits - numbers.low <= 12
    rows = samples[:6] * np.array([1, 4, 0.26, 1, 1, 1])[:, None, None]
    rows[3, 1] /= 400  # one row of the sample
    rows[4] /= 4000
    value, flags, cost = run_plan(private.plan, rows.astype(np.float32))
    assert flags.tolist() == [False, False, False, True, True, False]
    right = np.asarray(model(rows, training=False))
    assert np.abs(value - right)[[0, 1, 2, 5]].max() < 2.0**-12
    declared = convert(model, ranges=4.0 * float(np.abs(samples).max()))
    assert not any(n.low for n in declared.plan.numbers.values())
    value, flags, other = run_plan(declared.plan, rows.astype(np.float32))
    assert not flags.any() and cost.rounds <= other.rounds - 4
    # (an input without a known limit needs a second statistic, which costs short rows most)
    assert cost.total < 1.1 * other.total
    assert np.abs(value - right).max() < 4000 * 2.0**-16  # (inputs are rounded)


def test_constant_rows_among_samples_leave_only_epsilon_to_rely_on() -> None:
    samples = np.ones((4, 3, 24), np.float32) * np.arange(1, 5)[:, None, None]
    samples[:2] += np.sin(np.arange(24))
    private = convert(model_of(L.LayerNormalization()), samples=samples)
    assert not any(n.low for n in private.plan.numbers.values())


def test_a_stranger_s_ends_are_checked(rng: np.random.Generator) -> None:
    samples = rng.normal(0, 1, (16, 3, 24)).astype(np.float32)
    header = convert(model_of(L.LayerNormalization()), samples=samples).plan.to_header()
    (name,) = (n for n, row in header["numbers"].items() if len(row) == 4)
    assert ModelPlan.from_header(header).to_header() == header
    row = header["numbers"][name]
    for low in (1, row[2] - 1, row[2], 63):
        plan = ModelPlan.from_header(
            {**header, "numbers": {**header["numbers"], name: [*row[:3], low]}}
        )
        with raises(UsageError, "invalid-plan", operation=name):
            execute.check_executable_plan(plan)


def scheme_of(plan: ModelPlan) -> tuple[PlacedLayer, row_scheme.NormalizationScheme]:
    """Return the scheme of the only norm with range checks."""
    nodes = execute.tune_prediction(plan, "local", 1, True).placed_layers()
    (node,) = (n for n in nodes if n.layer.op == "normalize")
    return node, Normalize()._build_scheme(node)


@pytest.mark.parametrize("kind", ["LayerNormalization", "RMSNormalization"])
def test_a_norm_of_fewer_bits_than_its_rows_could_take_tells_of_them(
    kind: str, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Use rows of few large values: they bound values, but not a row of such values.

    If a row's statistic exceeds its modulus and falls among correct ones, only the second statistic
    flags it.
    """
    n = 256
    model = keras.Sequential([L.Input((2, n)), L.Dense(n, use_bias=False), getattr(L, kind)()])
    model.layers[0].set_weights([np.eye(n, dtype=np.float32)])
    samples = rng.normal(0, 0.1, (8, 2, n)).astype(np.float32)
    samples[..., 7] = 12.0
    private = convert(model, samples=samples)
    node, scheme = scheme_of(private.plan)
    assert scheme.is_exact and scheme.coarse and scheme.read_bits < 60
    assert scheme.bound_statistic(node.input_limits[0]) >> scheme.read_bits > 1
    rows = np.concatenate([samples[:3], samples[:1] * 3, samples[:1] * 0.3])
    signs = np.where(np.arange(n) % 2, 1.0, -1.0)
    units = np.sqrt(2.0**scheme.read_bits + 2.0 ** (scheme.bits - 1)) / n
    assert units < node.input_limits[0]
    rows[2, 1] = signs * units * 2.0 ** -node.input_scales[0]
    value, flags, _ = run_plan(private.plan, rows)
    assert flags.tolist() == [False, False, True, False, False]
    right = np.asarray(model(rows, training=False))
    assert np.abs(value - right)[[0, 1, 3, 4]].max() < 2.0**-11
    monkeypatch.setattr(row_scheme.NormalizationScheme, "minimize_bits", without_second)
    assert not run_plan(private.plan, rows)[1].any()


def test_a_norm_of_an_input_tells_of_all_that_its_bounds_allow(rng: np.random.Generator) -> None:
    """Test inputs without a public limit: a client keeps to the bounds of the model."""
    n = 1024
    samples = rng.normal(0, 0.1, (8, 2, n)).astype(np.float32)
    samples[..., 7] = 40.0
    private = convert(keras.Sequential([L.Input((2, n)), L.LayerNormalization()]), samples=samples)
    node, scheme = scheme_of(private.plan)
    bound = 4 * 40 << node.input_scales[0]
    assert not node.input_limits and scheme.is_exact and scheme.bound_statistic(bound) >> 64
    assert scheme.coarse and scheme.bound_statistic(bound, scheme.coarse) >> 64 - scheme.coarse == 0
    rows = samples[:3].copy()
    signs = np.where(np.arange(n) % 2, 1.0, -1.0)
    units = np.sqrt(2.0**64 + 2.0 ** (scheme.bits - 1)) / n
    assert units < bound
    rows[1, 0] = signs * units * 2.0 ** -node.input_scales[0]
    assert run_plan(private.plan, rows)[1].tolist() == [False, True, False]


@pytest.mark.parametrize("by", ["variance", "mean_square"])
@pytest.mark.parametrize("count", [2, 24, 768, 4096])
def test_no_row_within_its_limit_is_taken_for_another(
    by: str, count: int, rng: np.random.Generator
) -> None:
    """Compare the statistics of rows at the ends of the distinguishable range, in integers."""
    tried = 0
    for arguments, bits, room in [(12, 50, 3), (16, 44, 0), (12, 61, 8), (10, 30, 12), (16, 52, 6)]:
        plain = row_scheme.NormalizationScheme(count, by, 1e-6, arguments, 0, bits, bits - 9)
        limit = math.isqrt(1 << (bits + 2 * room)) // count + 1
        scheme = plain.minimize_bits(limit, 20)
        if scheme is None:
            continue
        assert bits + 2 <= scheme.read_bits <= 64
        epsilon = scheme.to_ring(Fraction(1e-6))
        for top in (
            2.0**bits,
            2.0 ** (bits + 1),
            2.0**scheme.read_bits,
            2.0**scheme.read_bits * 1.3,
        ):
            tried += 1
            x = np.where(np.arange(count) % 2, 1, -1) * int(min(limit, math.sqrt(top) / count))
            x = np.array([int(v) for v in x + rng.integers(-1, 2, count)], object)
            x = np.clip(x, -limit, limit)
            exact = statistic(scheme, x) + epsilon
            read_value = exact % (1 << scheme.read_bits)
            first = 1 << scheme.low <= read_value < 1 << scheme.bits
            second = True
            if scheme.coarse:
                masks = [rng.integers(0, 2**62, count).astype(object) for _ in range(2)]
                m = x + masks[0] + masks[1]
                cut = (m >> scheme.coarse) - sum(mask >> scheme.coarse for mask in masks)
                coarse = statistic(scheme, cut)
                assert coarse < 1 << (scheme.read_bits - scheme.coarse)
                second = coarse <= scheme.coarse_bound < 1 << (scheme.read_bits - scheme.coarse - 2)
            right = 1 << scheme.low <= exact < 1 << scheme.bits
            assert (first and second) == right
    assert tried >= 8


def statistic(scheme: row_scheme.NormalizationScheme, x: Any) -> int:
    """Return n Q - S^2, or n Q."""
    return int(
        scheme.count * (x * x).sum() - (x.sum() ** 2 if scheme.statistic == "variance" else 0)
    )


_IN_FEWEST = row_scheme.NormalizationScheme.minimize_bits


def without_second(
    self: row_scheme.NormalizationScheme, limit: int | None, least: int = 0
) -> row_scheme.NormalizationScheme | None:
    """Return the scheme with the same used bits, without a second statistic."""
    narrow = _IN_FEWEST(self, limit, least)
    return narrow and replace(narrow, coarse=0)

"""Inputs held as seeds instead of masks: the same words, generated in the graph."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.graphs import keep_python_graphs
from tfe_bench.cluster import seeds
from tfe_bench.cluster.simulate import reconstruct, simulate
from tfe_bench.lazy_tensorflow import tf
from tfe_bench.protocols.ring import arithmetic, conv, products
from tfe_bench.protocols.session import seeded
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.seeded import Seeded
from tfe_bench.protocols.session.sharing import Shared

SEEDS = bytes(range(16)), bytes(range(16, 32))


def hold_input(
    party: int, values: Any, seed_pair: tuple[bytes, bytes] = SEEDS, dealer: int = 0
) -> Seeded:
    """Return a job party's part of a client's input."""
    _, _, m = seeds.share_values_by_seeds(values, drawn_seeds=seed_pair)
    one, two = (tf.constant(list(seed), tf.uint8) for seed in seed_pair)
    role = (party - dealer) % 3
    return Seeded(
        tf.constant(m.reshape(values.shape)) if role != 0 else None,
        one if role != 2 else None,
        two if role != 1 else None,
        values.shape,
        dealer,
    )


@pytest.mark.parametrize("shape", [(), (1,), (2,), (7,), (3, 5), (0, 4), (513, 3), (40_000,)])
def test_a_seed_stands_for_the_words_that_a_client_masks_with(shape: tuple[int, ...]) -> None:
    values = np.zeros(shape, np.int64)
    for party in range(3):
        x = seeded.expand_masks(hold_input(party, values))
        for words, seed in zip((x.l1, x.l2), SEEDS, strict=True):
            if words is not None:
                want = seeds.expand_seed(seed, values.size).reshape(shape)
                np.testing.assert_array_equal(np.asarray(words), want)


def test_shares_of_seeds_are_shares_of_the_value(rng: np.random.Generator) -> None:
    values = rng.integers(-(2**63), 2**63, (5, 7))
    parts = [seeded.expand_masks(hold_input(p, values)) for p in range(3)]
    assert [[t is None for t in (x.m, x.l1, x.l2)] for x in parts] == [
        [True, False, False],
        [False, False, True],
        [False, True, False],
    ]
    np.testing.assert_array_equal(reconstruct(parts), values)
    assert seeded.expand_masks(parts[0]) is parts[0]


@pytest.mark.parametrize("dealer", range(3))
def test_a_graph_takes_seeds_and_makes_masks_when_it_wants_them(
    dealer: int, rng: np.random.Generator
) -> None:
    """Make masks after the value by which they are multiplied."""
    x, w = rng.integers(-(2**20), 2**20, (3, 6)), rng.integers(-(2**20), 2**20, (6, 4))

    def program(party: Party, x: Shared) -> Any:
        def product(own: Seeded, x: Shared) -> Shared:
            y = arithmetic.mul(party, x, x)
            return arithmetic.matmul(party, y, seeded.expand_masks(own, [y]))

        f = party.function(product)
        result = f(hold_input(party.index, w, dealer=dealer), x)
        (graph,) = f._traced.values()
        concrete: Any = graph.concrete
        expansions = [
            op for op in concrete.graph.get_operations() if op.type == "TfeBench>ExpandSeed"
        ]
        waiting = [{i.type for i in op.control_inputs} - {"Placeholder"} for op in expansions]
        return result, waiting

    with keep_python_graphs():
        sim = simulate(program, x, dealer=dealer)
    np.testing.assert_array_equal(sim.value(lambda out: out[0]), (x * x) @ w)
    for party, (_, waiting) in enumerate(sim.outputs):
        assert len(waiting) == (2 if party == dealer else 1) and all(waiting)


@pytest.mark.parametrize(
    ("side", "kernel", "stride"), [(5, 1, 1), (6, 1, 2), (7, 3, 1), (50, 3, 1)]
)
@pytest.mark.parametrize("dealer", range(3))
def test_a_convolution_before_a_truncation_computes_the_combined_kernel_itself(
    dealer: int, side: int, kernel: int, stride: int, rng: np.random.Generator
) -> None:
    x = rng.integers(-(2**12), 2**12, (1, side, side, 3))
    w = rng.integers(-(2**12), 2**12, (kernel, kernel, 3, 5))
    windows = conv.Windows((stride, stride))

    def program(party: Party, x: Shared) -> Any:
        def convolve(own: Seeded, x: Shared) -> Shared:
            terms = [
                products.BilinearShareProduct(
                    x,
                    seeded.expand_masks(own, [x]),
                    lambda a, b: conv.convolve_ring_elements(a, b, windows),
                )
            ]
            return products.exchange_truncated_sum(party, "product", terms, None, 4, 40)[0]

        f = party.function(convolve)
        result = f(hold_input(party.index, w, dealer=dealer), x)
        (graph,) = f._traced.values()
        concrete: Any = graph.concrete
        types = [op.type for op in concrete.graph.get_operations()]
        return result, types

    with keep_python_graphs():
        sim = simulate(program, x, dealer=dealer)
    result = (sim.value(lambda out: out[0]) + 2**39) % 2**40 - 2**39
    expected = tf.nn.conv2d(x.astype(np.float64), w.astype(np.float64), stride, "VALID").numpy()
    assert np.abs(result - expected / 16).max() < 2
    for _, types in sim.outputs:
        assert "TfeBench>ConvCombined" in types and "TfeBench>RingConv2D" not in types


@pytest.mark.parametrize("rows", [1, 5, 40])
@pytest.mark.parametrize("dealer", range(3))
def test_a_product_before_a_truncation_computes_the_combined_weights_itself(
    dealer: int, rows: int, rng: np.random.Generator
) -> None:
    x, w = rng.integers(-(2**12), 2**12, (2, rows, 70)), rng.integers(-(2**12), 2**12, (70, 45))

    def program(party: Party, x: Shared) -> Any:
        def product(own: Seeded, x: Shared) -> Shared:
            terms = [
                products.BilinearShareProduct(
                    x, seeded.expand_masks(own, [x]), products.sum_matrix_products
                )
            ]
            return products.exchange_truncated_sum(party, "product", terms, None, 4, 40)[0]

        f = party.function(product)
        result = f(hold_input(party.index, w, dealer=dealer), x)
        (graph,) = f._traced.values()
        concrete: Any = graph.concrete
        types = [op.type for op in concrete.graph.get_operations()]
        return result, types

    with keep_python_graphs():
        sim = simulate(program, x, dealer=dealer)
    result = (sim.value(lambda out: out[0]) + 2**39) % 2**40 - 2**39
    assert np.abs(result - (x @ w) / 16).max() < 2
    for _, types in sim.outputs:
        assert "TfeBench>MatMulCombined" in types and "TfeBench>RingMatMul" not in types


def test_what_holds_seeds_becomes_no_text_and_no_number() -> None:
    x = hold_input(0, np.zeros((2, 3), np.int64))
    for text in (repr(x), str(x), f"{x}"):
        assert text == "Seeded(shape=[2, 3], fractional_bits=0, dealer=0)"
    with pytest.raises(TypeError, match="cannot become"):
        bool(x)
    with pytest.raises(TypeError, match="cannot become"):
        np.asarray(x)

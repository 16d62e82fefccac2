"""Sums of products, exchanged exactly or truncated."""

from __future__ import annotations

import functools
from dataclasses import replace
from operator import itemgetter
from typing import Any

import numpy as np
import pytest

from tests.refusals import raises
from tfe_bench.cluster.simulate import assert_costs, measure_graph_call, simulate
from tfe_bench.errors import UsageError
from tfe_bench.protocols.ring import arithmetic, conv, products
from tfe_bench.protocols.ring.products import (
    BilinearMap,
    BilinearShareProduct,
    exchange_sum,
    exchange_truncated_sum,
    sum_elementwise_products,
    sum_matrix_products,
)
from tfe_bench.protocols.session import tensor_ops
from tfe_bench.protocols.session.cost import Cost
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared


@pytest.mark.parametrize("dealer", range(3))
def test_sums_of_products_are_right_at_the_edges_and_cost_what_is_declared(
    dealer: int, rng: np.random.Generator
) -> None:
    """`exchanged` is exact; `truncated` is off by less than 1 unit for |sum| <= 2^39 - 2^16."""
    n, top = 10_000, 1 << 18
    edges = np.array([0, 1, -1, top, -top, top - 1, 1 - top])
    x = np.stack([np.concatenate([edges, rng.integers(-top, top, n - 7)]) for _ in range(2)])
    w = np.stack([np.concatenate([edges[::-1], rng.integers(-top, top, n - 7)]) for _ in range(2)])
    bound = (1 << 39) - (1 << 16)
    exact = (x * w).sum(0)
    targets = np.concatenate([[bound, -bound, 0, 1, -1], rng.integers(-bound, bound, n - 5)])
    addend = targets - exact
    drop, bits = 16, 24

    def program(party: Party, x: Shared, w: Shared, addend: Shared) -> Any:
        addend = replace(addend, fractional_bits=2 * x.fractional_bits)

        def terms(x: Shared, w: Shared) -> list[BilinearShareProduct]:
            cut = [(x.map(lambda a, i=i: a[i]), w.map(lambda a, i=i: a[i])) for i in (0, 1)]
            return [BilinearShareProduct(a, b, sum_elementwise_products) for a, b in cut]

        def exact(x: Shared, w: Shared, c: Shared) -> Any:
            return arithmetic.add(exchange_sum(party, "product_sum", terms(x, w)), c)

        def short(x: Shared, w: Shared, c: Shared) -> Any:
            return exchange_truncated_sum(party, "truncated_sum", terms(x, w), c, drop, bits)[0]

        functions = [party.function(f) for f in (exact, short)]
        values = [f(x, w, addend) for f in functions]
        with raises(UsageError, "scale-mismatch"):
            functions[0](x, w, replace(addend, fractional_bits=3))
        return values, [measure_graph_call(party, f, x, w, addend) for f in functions]

    sim = simulate(program, x, w, addend, dealer=dealer, fractional_bits=8)
    assert (sim.value(lambda out: out[0][0]) == targets).all()
    small = sim.value(lambda out: out[0][1])
    signed = np.array([int(v) - (int(v) >> (bits - 1) << bits) for v in small])
    assert (np.abs(signed * 2.0**drop - targets) < 2**drop).all()
    costs = (Cost(64 * n, 64 * n, 64 * n, 1, 2), Cost(41 * n, 24 * n, 24 * n, 1, 2))
    for i, cost in enumerate(costs):
        assert_costs([out[1][i] for out in sim.outputs], cost, dealer)


CONVOLUTIONS: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any], bool]] = [
    ((2, 5, 6, 2), (3, 2, 2, 4), {"strides": 2, "padding": "SAME"}, False),
    ((1, 4, 4, 1), (2, 2, 1, 3), {"strides": 1, "padding": [[1, 0], [2, 1]]}, False),
    ((1, 6, 5, 2), (2, 2, 2, 1), {"strides": 1, "padding": "VALID", "dilations": 2}, False),
    ((2, 4, 4, 3), (2, 2, 3, 2), {"strides": 1, "padding": "SAME"}, True),
]
MAPS: dict[str, tuple[tuple[int, ...], tuple[int, ...], BilinearMap]] = {
    "elementwise": ((3, 1, 5), (2, 1), sum_elementwise_products),
    "matrices": ((4, 33), (33, 5), sum_matrix_products),
    "batches that broadcast": ((2, 1, 3, 4), (3, 4, 2), sum_matrix_products),
    "one row": ((1, 9), (9, 7), sum_matrix_products),
    **{
        f"convolution {i}": (
            image,
            kernel,
            functools.partial(
                conv.convolve_ring_elements,
                windows=conv.Windows.from_arguments("conv", **options),
                depthwise=depthwise,
            ),
        )
        for i, (image, kernel, options, depthwise) in enumerate(CONVOLUTIONS)
    },
}
# (drop, bits, width): twice the sum is shared where width < 64.
DROPS = [(1, 2, 0), (1, 62, 0), (20, 43, 0), (20, 44, 0), (13, 20, 63), (13, 20, 64), (61, 2, 0)]


@pytest.mark.parametrize("name", MAPS)
def test_one_product_at_each_party_is_a_sum_truncated_for_any_bilinear_map(
    name: str, rng: np.random.Generator
) -> None:
    """Check two products and an addend at the edges of their range, in rings of all sizes."""
    left, right, bilinear = MAPS[name]
    x, w = (rng.integers(-(2**63), 2**63 - 1, (2, *shape)) for shape in (left, right))
    operands = [[tensor_ops.constant(v) for v in a] for a in (x, w)]
    product = np.asarray(bilinear(*operands))
    targets = []
    for drop, bits, _ in DROPS:
        most = (1 << (bits - 1 + drop)) - (1 << drop)
        edges = [most, -most, 0, 1, -1, most - 1]
        drawn = rng.integers(-most, most, product.size, endpoint=True)
        drawn[: len(edges)] = edges[: product.size]
        targets.append(drawn.reshape(product.shape))
    addends = np.stack(targets) - product  # modulo 2^64

    def program(party: Party, x: Shared, w: Shared, addends: Shared) -> Any:
        def run_all(x: Shared, w: Shared, addends: Shared) -> Any:
            pairs = [
                BilinearShareProduct(
                    x.map(lambda a, i=i: a[i]), w.map(lambda a, i=i: a[i]), bilinear
                )
                for i in (0, 1)
            ]
            return [
                exchange_truncated_sum(
                    party,
                    "truncated_sum",
                    pairs,
                    addends.map(lambda a, i=i: a[i]),
                    drop,
                    bits,
                    width,
                )[0]
                for i, (drop, bits, width) in enumerate(DROPS)
            ]

        return party.function(run_all)(x, w, addends)

    sim = simulate(program, x, w, addends, dealer=int(rng.integers(3)))
    for i, (drop, bits, _) in enumerate(DROPS):
        small = sim.value(itemgetter(i)).astype(object)
        signed = (small + (1 << (bits - 1))) % (1 << bits) - (1 << (bits - 1))
        errors = abs(signed * (1 << drop) - targets[i].astype(object))
        assert (errors < 1 << drop).all(), (drop, bits)


def test_a_product_of_too_few_bits_gives_other_results(
    monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator
) -> None:
    """Check that tests notice a reader of arbitrary bits: all run with random ones."""
    x = rng.integers(-(2**20), 2**20, (6, 6))

    def program(party: Party, x: Shared) -> Any:
        pair = BilinearShareProduct(x, x, sum_matrix_products)
        return exchange_truncated_sum(party, "truncated_sum", [pair], None, 8, 40)[0]

    def measure_error() -> int:
        small = simulate(lambda p, x: p.function(lambda x: program(p, x))(x), x).value()
        signed = (small.astype(object) + (1 << 39)) % (1 << 40) - (1 << 39)
        return int(abs(signed * 256 - (x @ x).astype(object)).max())

    assert measure_error() < 256
    limit = products.limit_read_bits
    monkeypatch.setattr(products, "limit_read_bits", lambda bits: limit(bits - 2))
    assert measure_error() > 1 << 40

"""A party that alters its messages: what the others send and answer depends on no private value."""

from __future__ import annotations

import functools
import threading
import zlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.protocols.catalogue.order import sum_by_codes
from tests.protocols.deviations import ALTERATIONS, Deviation
from tests.protocols.entry import reshape_shares
from tests.protocols.recorded_messages import MessageRecorder, Sizes
from tfe_bench.cluster.simulate import simulate
from tfe_bench.protocols.functions import exponential, polynomial
from tfe_bench.protocols.nn import attention, cross_entropy, relu
from tfe_bench.protocols.ring import arithmetic, products, truncation
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared

N, SCALE = 4, 16


def predict_by_relu(party: Party, x: Shared, y: Shared) -> Any:
    images, weights = reshape_shares(x, 2, 2), reshape_shares(y, 2, 2)
    z = relu.truncated_product(
        party, images, weights, SCALE, 40, products.sum_matrix_products, None
    )
    return relu.relu(party, z)


def predict_by_attention(party: Party, x: Shared, y: Shared) -> Any:
    query, key = reshape_shares(x, 1, 2, 2), reshape_shares(y, 1, 2, 2)
    return attention.attention(party, query, key, key, spread=8.0)


def train_step(party: Party, x: Shared, y: Shared) -> Any:
    """Compute new weights from the gradient of a softmax layer."""
    images, weights = reshape_shares(x, 2, 2), reshape_shares(y, 2, 2)
    logits = truncation.truncate(party, arithmetic.matmul(party, images, weights), SCALE)
    p = cross_entropy.softmax_for_gradient(
        party, replace(logits.map(lambda a: a * 1024), fractional_bits=SCALE + 10), bits=24
    )
    gradient = arithmetic.matmul(party, images, p)
    down = truncation.truncate(party, gradient, gradient.fractional_bits - SCALE)
    return arithmetic.sub(weights, down)


def compute_expression(party: Party, x: Shared, y: Shared) -> Any:
    product = truncation.truncate(party, arithmetic.mul(party, x, y), SCALE)
    curve = polynomial.polyval(party, [0.5, -1.0, 0.25], product, 30)
    return arithmetic.add(curve, exponential.exp(party, x, "one-round"))


def query_dense_groups(party: Party, x: Shared, y: Shared) -> Any:
    return sum_by_codes(party, replace(x, fractional_bits=0), replace(y, fractional_bits=0))


PROGRAMS: dict[str, tuple[Callable[[Party, Shared, Shared], Any], bool]] = {
    "a prediction with ReLU": (predict_by_relu, False),
    "a prediction with attention": (predict_by_attention, False),
    "a training step": (train_step, False),
    "an expression": (compute_expression, False),
    "a dense query": (query_dense_groups, True),
}


def describe_results(value: Any) -> Any:
    """Return kinds and shapes of results, without their words."""
    if isinstance(value, (list, tuple)):
        return [describe_results(v) for v in value]
    if isinstance(value, Shared):
        parts = [None if part is None else part.shape for part in (value.m, value.l1, value.l2)]
        return [value.dealer, value.fractional_bits, value.limbs, value.bits, *parts]
    return None if value is None else np.shape(value)


def record_runs(name: str, pairs: int, seed: int) -> list[tuple[Deviation, list[Any]]]:
    """Run a program on two inputs, for random pairs of a slot and an alteration.

    Returns:
        each deviation, and for each input what the two other parties sent and returned.
    """
    program, makes_graphs = PROGRAMS[name]
    watch, barrier = MessageRecorder(deviates=True), threading.Barrier(3)
    rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
    inputs = rng.integers(-(1 << 18), 1 << 18, (4, N))
    drawn: list[Deviation] = []
    seen: dict[tuple[int, int, int], tuple[Sizes, Any]] = {}

    def draw_deviations(names: dict[int, str]) -> None:
        sent = sorted({(m.source, names[m.site], m.slot) for s in watch.sizes for m in s})
        for _ in range(pairs):
            party, site, slot = sent[rng.integers(len(sent))]
            drawn.append(Deviation(party, str(rng.choice(ALTERATIONS)), (site, slot)))

    def run_party(party: Party, *shares: Shared) -> None:
        p = party.index
        graph: Callable[..., Any] = functools.partial(program, party)
        if not makes_graphs:
            graph = party.function(functools.partial(program, party))

        def run(*operands: Shared) -> Any:
            watch.start[p] = party._step
            result = graph(*operands)
            watch.honest.update(watch.take_messages(p))
            return result

        run(*shares[:2])
        barrier.wait(300)
        if p == 0:
            draw_deviations(party.site_names)
        barrier.wait(300)
        for i, deviation in enumerate(drawn):
            for j in range(2):
                barrier.wait(300)
                watch.deviation = deviation
                result = run(*shares[2 * j : 2 * j + 2])
                seen[i, j, p] = watch.sizes[p], describe_results(result)

    with watch.record_graphs():
        simulate(run_party, *inputs, keys=[rng.bytes(16) for _ in range(3)], fractional_bits=SCALE)

    def list_answers(i: int, j: int) -> list[Any]:
        party = drawn[i].party
        sizes = [seen[i, j, p][0] for p in range(3)]
        others = [{m: n for m, n in each.items() if m.source != party} for each in sizes]
        return [others, [seen[i, j, p][1] for p in range(3) if p != party]]

    return [(d, [list_answers(i, j) for j in range(2)]) for i, d in enumerate(drawn)]


@pytest.mark.parametrize(
    "pairs", [3, pytest.param(40, marks=pytest.mark.slow)], ids=["a few", "many"]
)
@pytest.mark.parametrize("name", PROGRAMS)
def test_what_the_others_do_depends_on_no_input(name: str, pairs: int, seed: int) -> None:
    """Compare sizes, names and results' shapes for two inputs; an error of a party fails."""
    runs = record_runs(name, pairs, seed)
    assert len(runs) == pairs
    for deviation, (first, second) in runs:
        assert any(first[0]), deviation
        assert first == second, deviation

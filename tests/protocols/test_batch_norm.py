"""Batch normalization: within 1e-3 of TensorFlow, forward, backward and in running statistics."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from tests.protocols.dealers import by_a_dealer
from tests.refusals import raises
from tfe_bench.cluster.simulate import assert_costs, measure_graph_call, simulate
from tfe_bench.errors import UsageError
from tfe_bench.protocols.nn import batch_norm
from tfe_bench.protocols.ring import arithmetic, products
from tfe_bench.protocols.ring.products import exchange_truncated_sum
from tfe_bench.protocols.session.counting import Private, count_cost
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared

Array = np.ndarray[Any, Any]
F, H = 16, 20
SHAPES = [(32, 6, 6, 9), (128, 12), (2, 4), (9, 5, 7, 40)]  # 24732 elements, powers of two or not


def encode_fixed(a: Array, bits: int) -> Array:
    return np.round(a * 2.0**bits).astype(np.int64)


def batch_inputs(shape: tuple[int, ...], rng: np.random.Generator) -> list[Array]:
    """Return x, gamma, beta, dy, running mean and variance; channels have very different sizes."""
    c = shape[-1]
    x = rng.normal(0, 1, shape) * np.geomspace(0.01, 30, c) + rng.normal(0, 2, c)
    x[..., 0] = 0.25  # a channel without variance
    ends = rng.choice(np.array([-100.0, 100.0, 0.0]), c)
    return [
        x,
        np.where(rng.integers(4, size=c) == 0, ends, rng.normal(1, 0.5, c)),
        rng.normal(0, 1, c),
        rng.normal(0, 0.01, shape),
        rng.normal(0, 1, c),
        rng.uniform(0.1, 3, c),
    ]


def set_scales(values: tuple[Shared, ...]) -> list[Shared]:
    scales = (F, 24, 24, H, 24, 24)
    return [replace(v, fractional_bits=f) for v, f in zip(values, scales, strict=True)]


@by_a_dealer
def test_all_of_it_is_tensorflows_and_costs_what_it_says(
    dealer: int, rng: np.random.Generator
) -> None:
    import tensorflow as tf

    shape = SHAPES[:2] if dealer == 0 else SHAPES[2:]
    values = [batch_inputs(s, rng) for s in shape]
    words = [
        encode_fixed(v, f)
        for each in values
        for v, f in zip(each, (F, 24, 24, H, 24, 24), strict=True)
    ]

    def program(p: Party, *words: Shared) -> Any:
        result = []
        for i in range(len(shape)):
            x, gamma, beta, dy, mean, variance = set_scales(words[6 * i : 6 * i + 6])
            normalize = p.function(lambda x, g: batch_norm.normalize_batch(p, x, g))
            apply = p.function(lambda n, b: batch_norm.apply_normalization(p, n, b))
            back = p.function(lambda n, d: batch_norm.batch_norm_gradients(p, n, d))
            running = p.function(lambda n, m, v: batch_norm.update_running(p, n, m, v))
            n = normalize(x, gamma)
            calls = [
                measure_graph_call(p, normalize, x, gamma),
                measure_graph_call(p, apply, n, beta),
                measure_graph_call(p, back, n, dy),
                measure_graph_call(p, running, n, mean, variance),
            ]
            result.append((apply(n, beta), back(n, dy), running(n, mean, variance), calls))
        return result

    sim = simulate(program, *words, dealer=dealer)
    for i, (x, gamma, beta, dy, mean, variance) in enumerate(values):
        a, g, b = (tf.Variable(v) for v in (x, gamma, beta))
        with tf.GradientTape() as tape:
            m, v = tf.nn.moments(a, list(range(x.ndim - 1)))
            y = tf.nn.batch_normalization(a, m, v, b, g, 1e-3)
        gradients = tape.gradient(y, [a, g, b], output_gradients=tf.constant(dy))
        want = [np.asarray(w) for w in gradients]
        m, v, y = (np.asarray(t) for t in (m, v, y))

        def got(pick: Callable[[Any], Shared], i: int = i) -> Array:
            bits = pick(sim.outputs[0][i]).fractional_bits
            revealed: Array = sim.value(functools.partial(lambda at, o: pick(o[at]), i)) / 2.0**bits
            return revealed

        size = 1 + abs(gamma)
        assert (abs(got(lambda o: o[0]) - y) / size).max() < 1e-3
        dx, rate = want[0], abs(gamma) / np.sqrt(v + 1e-3)
        assert (abs(got(lambda o: o[1].x) - dx) / (rate + 1)).max() < 1e-4  # |dy| ~ 1e-2
        assert abs(got(lambda o: o[1].gamma) - want[1]).max() < 1e-3
        assert abs(got(lambda o: o[1].beta) - want[2]).max() < 1e-6 * x.size
        wrong = abs(got(lambda o: o[2][0]) - (0.99 * mean + 0.01 * m))
        assert (wrong < 1e-6 + abs(m - mean) * 2.0**-21).all()  # the momentum has 20 bits
        late = 0.99 * variance + 0.01 * v
        assert (abs(got(lambda o: o[2][1]) - late) / late).max() < 1e-4
        channels = x.shape[-1]
        per_channel = Private((channels,), batch_norm.FACTOR)
        first = count_cost(batch_norm.normalize_batch, Private(x.shape, F), per_channel)
        costs = [
            first.cost,
            count_cost(batch_norm.apply_normalization, first.results, per_channel).cost,
            count_cost(batch_norm.batch_norm_gradients, first.results, Private(x.shape, H)).cost,
            count_cost(batch_norm.update_running, first.results, per_channel, per_channel).cost,
        ]
        assert [c.rounds for c in costs] == [14, 2, 3, 1]
        for j, cost in enumerate(costs):
            assert_costs([out[i][3][j] for out in sim.outputs], cost, dealer)


def test_the_sum_before_its_truncation_joins_a_relus_exchange(rng: np.random.Generator) -> None:
    x, gamma, beta = batch_inputs((32, 8), rng)[:3]

    def program(p: Party, x: Shared, gamma: Shared, beta: Shared) -> Shared:
        def layer(x: Shared, gamma: Shared, beta: Shared) -> Shared:
            x = replace(x, fractional_bits=F)
            gamma, beta = (replace(v, fractional_bits=24) for v in (gamma, beta))
            n = batch_norm.normalize_batch(p, x, gamma)
            product = products.BilinearShareProduct(
                n.centered, n.factor, products.sum_elementwise_products
            )
            addend = batch_norm.beta_addend(n, beta)
            return exchange_truncated_sum(p, "truncated_sum", [product], addend, drop=24, bits=30)[
                0
            ]

        small: Shared = p.function(layer)(x, gamma, beta)
        return small

    words = [encode_fixed(v, f) for v, f in ((x, F), (gamma, 24), (beta, 24))]
    got = simulate(program, *words).value()
    signed = np.where(got >= 2**29, got - 2**30, got).astype(np.int64) / 2.0**F
    want = gamma * (x - x.mean(0)) / np.sqrt(x.var(0) + 1e-3) + beta
    assert (abs(signed - want) / (1 + abs(gamma))).max() < 1e-3


def test_numbers_are_integers_that_all_parties_agree_on() -> None:
    for m in (2, 3, 128, 4607, 2**24):
        n = batch_norm.plan_batch_norm(m, epsilon=1e-5)
        assert abs(n.root_factor / 2**20 - np.sqrt(m / 2**n.shift)) < 2**-20
        assert abs(n.count_reciprocal(40) / 2**40 - 1 / m) <= 2**-41
        assert n.epsilon == round(1e-5 * 2**40) and n.slope_bits + 7 + 3 * n.rstd_bits <= 46


def test_a_mean_whose_reciprocal_has_no_bits_left_is_refused() -> None:
    """1/M gets 62 - bits fractional bits: for 2^24 values of 40 bits it would be 0."""
    for bits in range(17, 41):
        most = min(2**24, 2 ** (55 - bits + 1) - 1)
        n = batch_norm.plan_batch_norm(most, bits=bits)
        assert abs(n.count_reciprocal(n.mean_bits) * most / 2**n.mean_bits - 1) <= 2.0**-7
        if most < 2**24:
            with raises(UsageError, "too-large", operation="batch_norm"):
                batch_norm.plan_batch_norm(most + 1, bits=bits)
    with raises(UsageError, "number-out-of-range", operation="batch_norm", received=1):
        batch_norm.plan_batch_norm(1)


NOT_PRIVATE: Any = np.zeros((8, 4))
REFUSED: dict[str, Callable[[Party, Shared, Shared], Any]] = {
    "a public tensor": lambda p, x, g: batch_norm.normalize_batch(p, NOT_PRIVATE, g),
    "a small ring": lambda p, x, g: batch_norm.normalize_batch(p, replace(x, bits=31), g),
    "a vector": lambda p, x, g: batch_norm.normalize_batch(p, g, g),
    "another scale of gamma": lambda p, x, g: batch_norm.normalize_batch(
        p, x, replace(g, fractional_bits=16)
    ),
    "gammas of other channels": lambda p, x, g: batch_norm.normalize_batch(
        p, x, g.map(lambda a: a[:2])
    ),
    "too small an epsilon": lambda p, x, g: batch_norm.normalize_batch(p, x, g, epsilon=1e-6),
    "one element": lambda p, x, g: batch_norm.normalize_batch(p, x.map(lambda a: a[:1]), g),
    "8 fractional bits": lambda p, x, g: batch_norm.normalize_batch(
        p, replace(x, fractional_bits=8), g
    ),
    "a gradient of another shape": lambda p, x, g: batch_norm.batch_norm_gradients(
        p, batch_norm.normalize_batch(p, x, g), g
    ),
    "a gradient with 40 bits": lambda p, x, g: batch_norm.batch_norm_gradients(
        p, batch_norm.normalize_batch(p, x, g), replace(x, fractional_bits=40)
    ),
    "a momentum above 1": lambda p, x, g: batch_norm.update_running(
        p, batch_norm.normalize_batch(p, x, g), g, g, 1.5
    ),
    "statistics of another scale": lambda p, x, g: batch_norm.update_running(
        p, batch_norm.normalize_batch(p, x, g), arithmetic.add(x, x).map(lambda a: a[0]), g
    ),
}


CODES = {
    "a public tensor": "not-private",
    "a small ring": "unsupported-ring",
    "a vector": "rank-mismatch",
    "another scale of gamma": "shape-mismatch",
    "gammas of other channels": "shape-mismatch",
    "too small an epsilon": "number-out-of-range",
    "one element": "number-out-of-range",
    "8 fractional bits": "number-out-of-range",
    "a gradient of another shape": "shape-mismatch",
    "a gradient with 40 bits": "unsupported-scale",
    "a momentum above 1": "number-out-of-range",
    "statistics of another scale": "shape-mismatch",
}


def test_what_does_not_fit_is_refused_with_what_was_received() -> None:
    def program(p: Party, x: Shared, g: Shared) -> None:
        def all_of(x: Shared, g: Shared) -> Shared:
            x, g = replace(x, fractional_bits=16), replace(g, fractional_bits=24)
            assert REFUSED.keys() == CODES.keys()
            for what, refused in REFUSED.items():
                with raises(UsageError, CODES[what]):
                    refused(p, x, g)
            return x

        p.function(all_of)(x, g)

    simulate(program, np.zeros((8, 4), np.int64), np.zeros(4, np.int64))

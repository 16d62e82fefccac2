"""Max pooling equals TensorFlow's for every window, stride and padding, at the declared cost."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.protocols.dealers import by_a_dealer
from tests.refusals import raises
from tfe_bench.cluster.simulate import assert_costs, measure_graph_call, share_for_party, simulate
from tfe_bench.errors import UsageError
from tfe_bench.protocols.nn import pool
from tfe_bench.protocols.ring.conv import Pair
from tfe_bench.protocols.session.counting import Private, count_cost
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared

Array = np.ndarray[Any, Any]
Case = tuple[Pair, Pair, str]
EDGES = np.array(
    sorted(
        {0, 2**29 - 1, -(2**29)}
        | {s * (2**k + d) for s in (1, -1) for k in range(29) for d in (-1, 0, 1)}
    ),
    np.int64,
)
CASES: list[Case] = [
    (1, 1, "VALID"),
    (1, 3, "SAME"),
    (2, 2, "VALID"),
    (2, 2, "SAME"),
    (2, 1, "SAME"),
    (3, 2, "SAME"),
    ((2, 3), (1, 2), "SAME"),
    ([3, 1], [2, 1], "VALID"),
    (5, 4, "SAME"),
    ((9, 11), 1, "VALID"),
    ((10, 1), (12, 1), "SAME"),
]


def nested_item(*places: int) -> Callable[[Any], Any]:
    """Return an item of a party's nested outputs."""
    return lambda out: functools.reduce(lambda nest, place: nest[place], places, out)


def expected_pool(x: Array, case: Case) -> Array:
    """Return TensorFlow's result; float64 holds these values exactly."""
    import tensorflow as tf

    ksize, strides, padding = case
    return np.asarray(tf.nn.max_pool2d(tf.constant(x, tf.float64), ksize, strides, padding)).astype(
        np.int64
    )


def draw_images(shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Return edges, random and all negative values: cells outside of the image never win."""
    x = rng.choice(EDGES, shape)
    x[1:] = rng.integers(-(2**29), 2**29, x[1:].shape)
    x[-1:] = -1 - abs(x[-1:] >> 1)
    return x


def test_pooling_is_that_of_tensorflow_and_costs_what_it_says_whatever_the_values(
    rng: np.random.Generator,
) -> None:
    dealer = int(rng.integers(3))
    x = draw_images((8, 9, 11, 13), rng)  # 10296 values

    def program(p: Party, x: Shared) -> Any:
        zeros = share_for_party(np.zeros(x.shape, np.int64), p.index, b"zero", dealer=dealer)
        result = []
        for case in CASES:
            graph = p.function(lambda x, case=case: pool.max_pool2d(p, x, *case))
            result.append(
                (graph(x), measure_graph_call(p, graph, x), measure_graph_call(p, graph, zeros))
            )
        return result

    sim = simulate(program, x, dealer=dealer, fractional_bits=16)
    for i, case in enumerate(CASES):
        assert np.array_equal(sim.value(nested_item(i, 0)), expected_pool(x, case)), case
        assert all(out[i][0].fractional_bits == 16 for out in sim.outputs)
        cost = count_cost(pool.max_pool2d, Private(x.shape), *case).cost
        for k in (1, 2):
            assert_costs([out[i][k] for out in sim.outputs], cost, dealer)


@by_a_dealer
def test_every_dealer_pools_and_other_widths_and_profiles_cost_what_they_say(
    dealer: int, rng: np.random.Generator
) -> None:
    x = draw_images((3, 4, 6, 2), rng)
    wide = x << 32
    options: list[dict[str, Any]] = [{"bits": 64}, {"bits": 62, "profile": "wan"}]

    def program(p: Party, x: Shared, wide: Shared) -> Any:
        graphs = [
            p.function(lambda x, o=o: pool.max_pool2d(p, x, 2, 2, "SAME", **o)) for o in options
        ]
        inputs = (wide, x)
        return [(g(a), measure_graph_call(p, g, a)) for g, a in zip(graphs, inputs, strict=True)]

    sim = simulate(program, x, wide, dealer=dealer)
    for i, want in enumerate((wide, x)):
        expected = want.reshape(3, 2, 2, 3, 2, 2).max(axis=(2, 4))
        assert np.array_equal(sim.value(nested_item(i, 0)), expected)
        cost = count_cost(pool.max_pool2d, Private(x.shape), 2, 2, "SAME", **options[i]).cost
        assert_costs([out[i][1] for out in sim.outputs], cost, dealer)


def test_an_empty_batch_gives_an_empty_result() -> None:
    shapes = ((0, 4, 4, 3), (2, 4, 4, 0))

    def program(p: Party, *shares: Shared) -> Any:
        def function(*shares: Shared) -> Any:
            return [pool.max_pool2d(p, x, k, 2) for x in shares for k in (2, 3)]

        return p.function(function)(*shares)

    sim = simulate(program, *(np.zeros(s, np.int64) for s in shapes))
    assert sim.sent == (0, 0, 0)
    want = [(0, 2, 2, 3), (0, 1, 1, 3), (2, 2, 2, 0), (2, 1, 1, 0)]
    assert [sim.value(nested_item(i)).shape for i in range(4)] == want


Use = Callable[[Party, Shared], Any]


def two_words(x: Shared) -> Shared:
    import tensorflow as tf

    return replace(x.map(lambda a: tf.stack([a, a], axis=-1)), limbs=2)


REFUSED: dict[str, tuple[str, Use]] = {
    "a public tensor": (
        "not-private",
        lambda p, x: pool.max_pool2d(p, np.zeros((1, 4, 4, 1)), 2, 2),  # type: ignore[arg-type]
    ),
    "two words": ("unsupported-ring", lambda p, x: pool.max_pool2d(p, two_words(x), 2, 2)),
    "a small ring": (
        "unsupported-ring",
        lambda p, x: pool.max_pool2d(p, replace(x, bits=31), 2, 2),
    ),
    "rank 3": ("rank-mismatch", lambda p, x: pool.max_pool2d(p, x.map(lambda a: a[0]), 2, 2)),
    "windows of no cell": ("invalid-pair", lambda p, x: pool.max_pool2d(p, x, 0, 2)),
    "three sizes": ("invalid-pair", lambda p, x: pool.max_pool2d(p, x, (2, 2, 2), 2)),
    "a size of a half": ("invalid-pair", lambda p, x: pool.max_pool2d(p, x, 2.5, 2)),  # type: ignore[arg-type]
    "a truth value as a size": ("invalid-pair", lambda p, x: pool.max_pool2d(p, x, True, 2)),
    "no size": ("invalid-pair", lambda p, x: pool.max_pool2d(p, x, None, 2)),  # type: ignore[arg-type]
    "strides of 0": ("invalid-pair", lambda p, x: pool.max_pool2d(p, x, 2, 0)),
    "a negative stride": ("invalid-pair", lambda p, x: pool.max_pool2d(p, x, 2, (1, -1))),
    "unknown padding": ("invalid-padding", lambda p, x: pool.max_pool2d(p, x, 2, 2, "same")),
    "explicit padding": ("invalid-padding", lambda p, x: pool.max_pool2d(p, x, 2, 2, [[0, 0]])),  # type: ignore[arg-type]
    "a window larger than the image": (
        "window-too-large",
        lambda p, x: pool.max_pool2d(p, x, (2, 5), 1),
    ),
    "an image without a row": (
        "window-too-large",
        lambda p, x: pool.max_pool2d(p, x.map(lambda a: a[:, :0]), 2, 2, "SAME"),
    ),
    "a cost of rank 3": (
        "rank-mismatch",
        lambda p, x: count_cost(pool.max_pool2d, Private((4, 4, 1)), 2, 2),
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_max_pool2d_refuses(what: str) -> None:
    code, use = REFUSED[what]
    with raises(UsageError, code, operation="max_pool2d"):
        simulate(
            lambda p, x: p.function(lambda x: use(p, x))(x),
            np.zeros((2, 4, 4, 3), np.int64),
        )


def test_max_pool2d_refuses_an_unknown_batch_and_profile() -> None:
    x = np.zeros((2, 4, 4, 3), np.int64)
    with raises(UsageError, "rank-mismatch"):
        simulate(lambda p, x: p.function(lambda x: pool.max_pool2d(p, x, 2, 2), dynamic=True)(x), x)
    with raises(UsageError, "unknown-name") as caught:
        simulate(
            lambda p, x: p.function(lambda x: pool.max_pool2d(p, x, 2, 2, profile="lann"))(x), x
        )
    assert 'Did you mean "lan"' in str(caught.value)

"""Gradients of sums and averages over windows are TensorFlow's, and local."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tfe_bench.cluster.simulate import simulate
from tfe_bench.errors import UsageError
from tfe_bench.protocols.ring import average_gradient, reductions
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared

Array = np.ndarray[Any, Any]
# image, windows, strides, padding
CASES: list[tuple[tuple[int, ...], Any, Any, str]] = [
    ((8, 8, 3), 2, 2, "VALID"),
    ((7, 9, 3), 2, 2, "SAME"),
    ((9, 9, 3), 3, 2, "VALID"),
    ((9, 8, 5), (3, 2), (2, 1), "SAME"),
]
BITS = 20


def test_gradients_are_tensorflows_and_send_nothing(rng: np.random.Generator) -> None:
    import tensorflow as tf

    n = 3
    given: list[Array] = []
    wanted: list[Array] = []
    for image, ksize, strides, padding in CASES:
        x = tf.Variable(np.zeros((n, *image)))
        with tf.GradientTape(persistent=True) as tape:
            y = tf.nn.avg_pool2d(x, ksize, strides, padding)
            z = tf.reduce_mean(x, (1, 2))
        g = [rng.integers(-(2**30), 2**30, t.shape) for t in (y, z)]
        given += g
        wanted += [
            np.asarray(tape.gradient(t, x, output_gradients=tf.constant(v.astype(np.float64))))
            for t, v in zip((y, z), g, strict=True)
        ]

    def program(p: Party, *given: Shared) -> Any:
        def layers(*given: Shared) -> list[Shared]:
            out = []
            for i, (image, ksize, strides, padding) in enumerate(CASES):
                g, h = given[2 * i : 2 * i + 2]
                out.append(average_gradient.avg_pool(g, image, ksize, strides, padding, BITS))
                out.append(average_gradient.global_avg_pool(h, (None, *image), BITS))
                out.append(average_gradient.sum_pool(g, image, ksize, strides, padding))
                out.append(average_gradient.global_sum_pool(h, image))
            return out

        return p.function(layers)(*given)

    sim = simulate(program, *given, fractional_bits=10)
    assert sim.sent == (0, 0, 0)
    for i, (image, ksize, _, padding) in enumerate(CASES):
        for j in range(2):
            bits = sim.outputs[0][4 * i + j].fractional_bits - 10
            got = sim.value(lambda out, k=4 * i + j: out[k]) / 2.0**bits  # type: ignore[misc]
            want = wanted[2 * i + j]
            exact = i == 0
            bound = 0 if exact else 2.0 ** (30 - BITS) * 9
            assert abs(got - want).max() <= bound, (image, j)
            assert bits == ([2, 6][j] if exact else BITS)
        sums = sim.value(lambda out, k=4 * i + 2: out[k])  # type: ignore[misc]
        if padding == "VALID":
            count = ksize**2
            assert abs(sums - wanted[2 * i] * count).max() < 1e-5
        everywhere = sim.value(lambda out, k=4 * i + 3: out[k])  # type: ignore[misc]
        assert np.array_equal(
            everywhere, np.broadcast_to(given[2 * i + 1][:, None, None], (n, *image))
        )


def test_a_sum_pools_gradient_is_its_transpose(rng: np.random.Generator) -> None:
    x = rng.integers(-99, 99, (2, 7, 6, 3))
    g = rng.integers(-99, 99, (2, 4, 3, 3))

    def program(p: Party, x: Shared, g: Shared) -> Any:
        def both(x: Shared, g: Shared) -> Any:
            return (
                reductions.sum_pool(x, 3, 2, "SAME"),
                average_gradient.sum_pool(g, x.shape, 3, 2, "SAME"),
            )

        return p.function(both)(x, g)

    sim = simulate(program, x, g)
    y, dx = (sim.value(lambda out, i=i: out[i]) for i in range(2))  # type: ignore[misc]
    assert (y * g).sum() == (x * dx).sum()


NOT_PRIVATE: Any = np.zeros((1, 2, 2, 1))
REFUSED: list[Callable[[Shared], Any]] = [
    lambda g: average_gradient.sum_pool(NOT_PRIVATE, (4, 4, 2), 2),
    lambda g: average_gradient.sum_pool(g, (4, 4), 2),
    lambda g: average_gradient.avg_pool(g, (None, 4, 2), 2),
    lambda g: average_gradient.avg_pool(g, (4, 4, 2), 0),
    lambda g: average_gradient.avg_pool(g, (9, 9, 2), 2),
    lambda g: average_gradient.avg_pool(g, (6, 6, 2), 3, factor_bits=0),
    lambda g: average_gradient.global_avg_pool(g, (4, 2)),
    lambda g: average_gradient.global_sum_pool(NOT_PRIVATE, (4, 4, 2)),
]


def test_what_does_not_fit_is_refused_with_what_was_received() -> None:
    def program(p: Party, g: Shared) -> None:
        def all_of(g: Shared) -> Shared:
            for refused in REFUSED:
                with pytest.raises(UsageError, match="Received: "):
                    refused(g)
            return g

        p.function(all_of)(g)

    simulate(program, np.zeros((1, 2, 2, 2), np.int64))

"""Gradients of convolutions equal TensorFlow's, are exact in the ring, and cost as products."""

from __future__ import annotations

import functools
from collections.abc import Callable
from operator import itemgetter
from typing import Any

import numpy as np

from tests.protocols.dealers import by_a_dealer
from tests.refusals import raises
from tfe_bench.cluster.simulate import assert_costs, measure_graph_call, simulate
from tfe_bench.errors import UsageError
from tfe_bench.protocols.ring import arithmetic, conv, conv_gradients, products
from tfe_bench.protocols.ring.conv import Windows
from tfe_bench.protocols.session.counting import Private, cost_of
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared

Array = np.ndarray[Any, Any]
INT64 = np.iinfo(np.int64)

# images, kernel, strides, padding, dilations, depthwise
Case = tuple[tuple[int, ...], tuple[int, ...], Any, Any, Any, bool]
CASES: list[Case] = [
    ((2, 28, 28, 1), (5, 5, 1, 20), 1, "VALID", 1, False),
    ((2, 12, 12, 20), (5, 5, 20, 50), 1, "VALID", 1, False),
    ((3, 28, 28, 1), (5, 5, 1, 5), 2, "SAME", 1, False),
    ((2, 6, 7, 3), (3, 2, 3, 4), (2, 3), "SAME", 1, False),
    ((1, 9, 9, 2), (3, 2, 2, 5), 1, "VALID", 2, False),
    ((2, 5, 6, 2), (3, 3, 2, 3), (1, 2), ((1, 0), (2, 3)), 1, False),
    ((3, 4, 5, 6), (1, 1, 6, 7), 1, "VALID", 1, False),
    ((0, 4, 4, 2), (3, 3, 2, 2), 1, "SAME", 1, False),
    ((2, 6, 7, 3), (3, 3, 3, 1), 1, "SAME", 1, True),
    ((1, 7, 7, 9), (3, 2, 9, 2), 2, "SAME", 1, True),
    ((1, 8, 5, 40), (2, 3, 40, 1), 1, "VALID", 2, True),
]


def draw_words(rng: np.random.Generator, shape: Any) -> Array:
    """Return ring elements, one in four of them an edge value."""
    plain = rng.integers(INT64.min, INT64.max, shape, np.int64, endpoint=True)
    edges = rng.choice(np.array([0, 1, -1, INT64.min, INT64.max, 2**31, -(2**32)]), shape)
    chosen: Array = np.where(rng.integers(4, size=shape) == 0, edges, plain)
    return chosen


def windows_of(case: Case) -> Windows:
    return Windows.from_arguments("layer", case[2], case[3], case[4])


def result_shape(case: Case) -> tuple[int, ...]:
    x, w, depthwise = case[0], case[1], case[5]
    windows = windows_of(case)
    height, width = (int(windows.window_count(i, x[1 + i], w[i])) for i in range(2))
    return x[0], height, width, w[2] * w[3] if depthwise else w[3]


def plain_gradients(case: Case, x: Array, w: Array, d: Array) -> tuple[Array, Array]:
    """Compute the definition, element of the kernel by element, on int64 that wraps."""
    windows = windows_of(case)
    n, height, width, _ = d.shape
    before = [windows.padding_before(i, x.shape[1 + i], w.shape[i]) for i in range(2)]
    room = [(w.shape[i] - 1) * windows.dilations[i] + windows.strides[i] for i in range(2)]
    widths = [(0, 0), *((b, b + r) for b, r in zip(before, room, strict=True)), (0, 0)]
    padded, back = np.pad(x, widths), np.zeros_like(np.pad(x, widths))
    dw = np.zeros_like(w)
    (rows, columns), (down, right) = windows.strides, windows.dilations
    for i in range(w.shape[0]):
        for j in range(w.shape[1]):
            a, b = i * down, j * right
            down_to, right_to = a + (height - 1) * rows + 1, b + (width - 1) * columns + 1
            cells = (slice(None), slice(a, down_to, rows), slice(b, right_to, columns))
            if case[5]:
                each = d.reshape(n, height, width, w.shape[2], w.shape[3])
                back[cells] += (each * w[i, j]).sum(-1)
                dw[i, j] = (padded[cells][..., None] * each).sum((0, 1, 2))
            else:
                back[cells] += d @ w[i, j].T
                dw[i, j] = np.tensordot(padded[cells], d, ((0, 1, 2), (0, 1, 2)))
    top, left = before
    return back[:, top : top + x.shape[1], left : left + x.shape[2]], dw


def test_the_reference_has_tensorflows_gradients(rng: np.random.Generator) -> None:
    import tensorflow as tf

    for case in CASES:
        x_shape, w_shape, _, padding, _, depthwise = case
        windows = windows_of(case)
        if x_shape[0] == 0 or (depthwise and windows.strides[0] != windows.strides[1]):
            continue
        x, w = rng.integers(-9, 9, x_shape), rng.integers(-9, 9, w_shape)
        d = rng.integers(-9, 9, result_shape(case))
        a, b = (tf.Variable(v.astype(np.float64)) for v in (x, w))
        with tf.GradientTape() as tape:
            image = a
            if not isinstance(padding, str):
                image, padding = tf.pad(a, [(0, 0), *padding, (0, 0)]), "VALID"
            layer = tf.nn.depthwise_conv2d if depthwise else tf.nn.conv2d
            steps = [1, *windows.strides, 1]
            # TensorFlow lacks gradients of dilated kernels here: put zeros between the kernel's
            # elements
            spread = [
                np.eye(k * n)[::n, : 1 - n or None]
                for k, n in zip(w_shape[:2], windows.dilations, strict=True)
            ]
            kernel = tf.einsum("ia,jb,ijcf->abcf", *spread, b)
            y = layer(image, kernel, steps, padding)
        assert y.shape == d.shape
        want = tape.gradient(y, [a, b], output_gradients=tf.constant(d, tf.float64))
        for got, expected in zip(plain_gradients(case, x, w, d), want, strict=True):
            assert np.array_equal(got, np.asarray(expected)), case


@by_a_dealer
def test_gradients_are_exact_modulo_2_64_and_cost_what_a_product_costs(
    dealer: int, rng: np.random.Generator
) -> None:
    inputs = [draw_words(rng, s) for case in CASES for s in (case[0], case[1], result_shape(case))]
    expected: list[Array] = []
    for i, case in enumerate(CASES):
        expected += plain_gradients(case, *inputs[3 * i : 3 * i + 3])

    def program(p: Party, *values: Shared) -> Any:
        def layers(*values: Shared) -> list[Shared]:
            out = []
            for i, case in enumerate(CASES):
                x, w, d = values[3 * i : 3 * i + 3]
                back = conv_gradients.input_gradient(windows_of(case), case[0], case[5])
                kernel = conv_gradients.kernel_gradient(windows_of(case), case[1], case[5])
                out.append(
                    products.exchange_sum(
                        p, "product_sum", [products.BilinearShareProduct(d, w, back)]
                    )
                )
                out.append(
                    products.exchange_sum(
                        p, "product_sum", [products.BilinearShareProduct(x, d, kernel)]
                    )
                )
            return out

        f = p.function(layers)
        return f(*values), measure_graph_call(p, f, *values)

    sim = simulate(program, *inputs, dealer=dealer, fractional_bits=7)
    for i, want in enumerate(expected):
        got = sim.value(functools.partial(lambda i, out: out[0][i], i))
        assert got.shape == want.shape and np.array_equal(got, want), CASES[i // 2]
        assert all(out[0][i].fractional_bits == 14 for out in sim.outputs)
    elements = sum(want.size for want in expected)
    assert_costs(
        [out[1] for out in sim.outputs],
        cost_of(arithmetic.mul, *[Private((elements,))] * 2),
        dealer,
    )


def test_gradients_follow_a_batch_that_the_graph_does_not_know(rng: np.random.Generator) -> None:
    case: Case = ((3, 6, 5, 2), (3, 3, 2, 4), 2, "SAME", 1, False)
    x, w, d = (
        draw_words(rng, case[0]),
        draw_words(rng, case[1]),
        draw_words(rng, result_shape(case)),
    )

    def program(p: Party, x: Shared, w: Shared, d: Shared) -> Any:
        def layer(x: Shared, w: Shared, d: Shared) -> Any:
            back = conv_gradients.input_gradient(windows_of(case), x.shape[1:])
            kernel = conv_gradients.kernel_gradient(windows_of(case), case[1])
            return [
                products.exchange_sum(
                    p, "product_sum", [products.BilinearShareProduct(d, w, back)]
                ),
                products.exchange_sum(
                    p, "product_sum", [products.BilinearShareProduct(x, d, kernel)]
                ),
            ]

        f = p.function(layer, dynamic=True)
        return [*f(x, w, d), *f(x.map(lambda a: a[:1]), w, d.map(lambda a: a[:1]))]

    sim = simulate(program, x, w, d)
    for at, batch in ((0, 3), (2, 1)):
        for i, want in enumerate(plain_gradients(case, x[:batch], w, d[:batch])):
            assert np.array_equal(sim.value(itemgetter(at + i)), want)


def test_what_does_not_fit_is_refused_by_name_with_what_was_received() -> None:
    import tensorflow as tf

    windows = Windows.from_arguments("layer", 1, "VALID")
    image, kernel, d = (tf.zeros(s, tf.int64) for s in ((1, 6, 6, 2), (3, 3, 2, 4), (1, 4, 4, 4)))
    back = conv_gradients.input_gradient(windows, (6, 6, 2))
    of_kernel = conv_gradients.kernel_gradient(windows, (3, 3, 2, 4))
    refused: dict[str, list[Callable[[], Any]]] = {
        "input_gradient": [
            lambda: conv_gradients.input_gradient(windows, (6, 6)),
            lambda: conv_gradients.input_gradient(windows, (None, 6, 2)),
            lambda: back([d[0]], [kernel]),
            lambda: back([d[:, :3]], [kernel]),
        ],
        "kernel_gradient": [
            lambda: conv_gradients.kernel_gradient(windows, (3, 3, 2)),
            lambda: conv_gradients.kernel_gradient(windows, (3, None, 2, 4)),
            lambda: of_kernel([image], [d[0]]),
            lambda: of_kernel([image], [d[:, :, :3]]),
        ],
    }
    for name, calls in refused.items():
        codes = ("unknown-shape", "unknown-shape", "rank-mismatch", "shape-mismatch")
        for call, code in zip(calls, codes, strict=True):
            with raises(UsageError, code, operation=name):
                call()
    assert back([d], [kernel]).shape == image.shape
    assert of_kernel([image], [d]).shape == kernel.shape
    assert np.array_equal(conv.convolve_ring_elements([image], [kernel], windows).shape, d.shape)

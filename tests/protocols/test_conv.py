"""Convolutions are exact in the ring with TensorFlow's windows, and cost as declared."""

from __future__ import annotations

from collections.abc import Callable
from operator import itemgetter
from typing import Any

import numpy as np
import pytest

from tests.protocols.dealers import by_a_dealer
from tests.refusals import raises
from tfe_bench.cluster.simulate import assert_costs, measure_graph_call, share_for_party, simulate
from tfe_bench.errors import UsageError
from tfe_bench.protocols.ring import arithmetic, conv, convert
from tfe_bench.protocols.ring.products import BilinearShareProduct, exchange_sum
from tfe_bench.protocols.session.counting import Private, cost_of
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared

Array = np.ndarray[Any, Any]
INT64 = np.iinfo(np.int64)

# images, kernel, strides, padding, dilations
Case = tuple[tuple[int, ...], tuple[int, ...], Any, Any, Any]
FULL: list[Case] = [
    ((2, 6, 7, 3), (3, 3, 3, 4), 1, "SAME", 1),
    ((1, 6, 7, 3), (3, 2, 3, 4), (2, 3), "SAME", 1),
    ((1, 8, 5, 2), (2, 4, 2, 3), 2, "VALID", 1),
    ((2, 9, 9, 2), (3, 2, 2, 5), 1, "SAME", (2, 3)),
    ((1, 9, 9, 2), (3, 2, 2, 5), 1, "VALID", 2),
    ((1, 5, 6, 2), (3, 3, 2, 3), (1, 2), ((1, 0), (2, 3)), 1),
    ((1, 5, 6, 2), (3, 3, 2, 3), [1, 2, 2, 1], [[0, 0], [1, 2], [0, 1], [0, 0]], [1, 1, 1, 1]),
    ((3, 4, 5, 6), (1, 1, 6, 7), 1, "VALID", 1),
    ((3, 4, 5, 6), (1, 1, 6, 7), 2, "SAME", 1),
    ((1, 16, 16, 3), (7, 7, 3, 8), 2, ((3, 3), (3, 3)), 1),
    ((4, 12, 12, 1), (5, 5, 1, 16), 1, "SAME", 1),
    ((1, 3, 3, 2), (3, 3, 2, 2), 1, "VALID", 1),
    ((0, 4, 4, 2), (3, 3, 2, 2), 1, "SAME", 1),
    ((1, 50, 50, 4), (3, 3, 4, 8), 1, "SAME", 1),
]
DEPTHWISE: list[Case] = [
    ((2, 6, 7, 3), (3, 3, 3, 1), 1, "SAME", 1),
    ((1, 6, 7, 9), (3, 2, 9, 2), 2, "SAME", 1),
    ((1, 8, 5, 40), (2, 3, 40, 1), 1, "VALID", 2),
    ((1, 5, 6, 2), (3, 3, 2, 3), (1, 2), ((1, 0), (2, 3)), 1),
]


def draw_words(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Return ring elements, one in four of them an edge value."""
    plain = rng.integers(INT64.min, INT64.max, shape, np.int64, endpoint=True)
    edges = rng.choice(np.array([0, 1, -1, INT64.min, INT64.max, 2**31, -(2**32)]), shape)
    return np.where(rng.integers(4, size=shape) == 0, edges, plain)


def windows_of(strides: Any, padding: Any, dilations: Any) -> tuple[Any, ...]:
    """Return pairs for every accepted form of the arguments."""

    def pair(value: Any) -> tuple[int, int]:
        several = [value, value] if isinstance(value, int) else list(value)
        several = several[1:3] if len(several) == 4 else several
        return several[0], several[1]

    if not isinstance(padding, str) and len(padding) == 4:
        padding = padding[1:3]
    return pair(strides), padding, pair(dilations)


def plain_convolution(x: Array, w: Array, windows: tuple[Any, Any, Any], depthwise: bool) -> Array:
    """Compute the definition on int64 that wraps."""
    strides, padding, dilations = windows_of(*windows)
    widths: list[tuple[int, int]] = []
    out: list[int] = []
    for axis in range(2):
        size, stride = x.shape[1 + axis], strides[axis]
        reach = (w.shape[axis] - 1) * dilations[axis] + 1
        if padding == "SAME":
            count = -(-size // stride)
            total = max((count - 1) * stride + reach - size, 0)
            widths.append((total // 2, total - total // 2))
        else:
            widths.append((0, 0) if padding == "VALID" else tuple(padding[axis]))
            count = (size + sum(widths[-1]) - reach) // stride + 1
        out.append(count)
    padded = np.pad(x, [(0, 0), *widths, (0, 0)])
    outputs = w.shape[2] * w.shape[3] if depthwise else w.shape[3]
    y = np.zeros((x.shape[0], *out, outputs), np.int64)
    for i in range(w.shape[0]):
        for j in range(w.shape[1]):
            a, b = i * dilations[0], j * dilations[1]
            rows = slice(a, a + (out[0] - 1) * strides[0] + 1, strides[0])
            columns = slice(b, b + (out[1] - 1) * strides[1] + 1, strides[1])
            part = padded[:, rows, columns]
            if depthwise:
                y += (part[..., None] * w[i, j]).reshape(y.shape)
            else:
                y += part @ w[i, j]
    return y


def draw_operands(rng: np.random.Generator) -> list[Array]:
    return [draw_words(rng, shape) for case in FULL + DEPTHWISE for shape in case[:2]]


@by_a_dealer
def test_convolutions_are_exact_modulo_2_64_with_private_and_public_kernels(
    dealer: int, rng: np.random.Generator
) -> None:
    inputs = draw_operands(rng)
    kernels = inputs[1::2]

    def program(p: Party, *values: Shared) -> Any:
        def layers(*values: Shared) -> list[Shared]:
            out = []
            for i, (_, _, *windows) in enumerate(FULL + DEPTHWISE):
                x, w = values[2 * i], values[2 * i + 1]
                full = i < len(FULL)
                out.append((conv.conv2d if full else conv.depthwise_conv2d)(p, x, w, *windows))
                public = conv.conv2d_public if full else conv.depthwise_conv2d_public
                steps, padding, spread = windows
                out.append(public(x, kernels[i], steps, padding, spread, fractional_bits=3))
            return out

        return p.function(layers)(*values)

    sim = simulate(program, *inputs, dealer=dealer, fractional_bits=7)
    for i, (_, _, *windows) in enumerate(FULL + DEPTHWISE):
        x, w = inputs[2 * i : 2 * i + 2]
        want = plain_convolution(x, w, (windows[0], windows[1], windows[2]), i >= len(FULL))
        for j, scale in ((2 * i, 14), (2 * i + 1, 10)):
            got = sim.value(itemgetter(j))
            assert got.shape == want.shape and np.array_equal(got, want), (i, j)
            assert all(out[j].fractional_bits == scale for out in sim.outputs)
            assert all(out[j].shape == want.shape for out in sim.outputs)


def test_the_reference_has_tensorflows_windows(rng: np.random.Generator) -> None:
    import tensorflow as tf

    for i, (x_shape, w_shape, *windows) in enumerate(FULL + DEPTHWISE):
        x, w = rng.integers(-9, 9, x_shape), rng.integers(-9, 9, w_shape)
        strides, padding, dilations = windows_of(*windows)
        if i >= len(FULL) and strides[0] != strides[1]:
            continue  # tf.nn.depthwise_conv2d accepts square strides only
        if not isinstance(padding, str):
            x, padding = np.pad(x, [(0, 0), *padding, (0, 0)]), "VALID"
            windows = [windows[0], padding, windows[2]]
        if 0 in x_shape:
            continue
        layer = tf.nn.conv2d if i < len(FULL) else tf.nn.depthwise_conv2d
        steps = [1, *strides, 1]
        got = layer(x.astype(np.float64), w.astype(np.float64), steps, padding, None, dilations)
        want = plain_convolution(x, w, (windows[0], windows[1], windows[2]), i >= len(FULL))
        assert np.array_equal(np.asarray(got), want), i


def test_convolutions_follow_sizes_that_the_graph_does_not_know(rng: np.random.Generator) -> None:
    x, w = draw_words(rng, (3, 6, 5, 2)), draw_words(rng, (3, 3, 2, 4))

    def program(p: Party, x: Shared, w: Shared) -> Any:
        f = p.function(lambda x, w: conv.conv2d(p, x, w, 2, "SAME"), dynamic=True)
        return f(x, w), f(x.map(lambda a: a[:1]), w)

    sim = simulate(program, x, w)
    want = plain_convolution(x, w, (2, "SAME", 1), False)
    assert np.array_equal(sim.value(itemgetter(0)), want)
    assert np.array_equal(sim.value(itemgetter(1)), want[:1])


def test_shares_of_a_convolution_add_up_before_they_are_opened(rng: np.random.Generator) -> None:
    """Exchange two layers once, as a fused layer does."""
    x, w, v = (
        draw_words(rng, (1, 6, 5, 8)),
        draw_words(rng, (3, 3, 8, 8)),
        draw_words(rng, (3, 3, 8, 1)),
    )
    windows = conv.Windows.from_arguments("layer", 1, "SAME")

    def program(p: Party, x: Shared, w: Shared, v: Shared) -> Any:
        def layer(x: Shared, w: Shared, v: Shared) -> Shared:
            full = BilinearShareProduct(
                x, w, lambda a, b: conv.convolve_ring_elements(a, b, windows)
            )
            depthwise = BilinearShareProduct(
                x, v, lambda a, b: conv.convolve_ring_elements(a, b, windows, True)
            )
            return exchange_sum(p, "layer", [full, depthwise])

        return p.function(layer)(x, w, v)

    want = plain_convolution(x, w, (1, "SAME", 1), False) + plain_convolution(
        x, v, (1, "SAME", 1), True
    )
    assert np.array_equal(simulate(program, x, w, v).value(), want)


@by_a_dealer
def test_convolutions_cost_what_they_say_whatever_the_values(
    dealer: int, rng: np.random.Generator
) -> None:
    shapes = [((2, 5, 4, 3), (3, 3, 3, 2)), ((1, 9, 3, 3), (3, 3, 3, 1))]
    inputs = [
        (draw(x), draw(w))
        for x, w in shapes
        for draw in (lambda shape: draw_words(rng, shape), lambda shape: np.zeros(shape, np.int64))
    ]

    def program(p: Party) -> list[Any]:
        result = []
        for layer in (conv.conv2d, conv.depthwise_conv2d):
            graph = p.function(lambda x, w, layer=layer: layer(p, x, w, 2, "SAME"))
            for x, w in inputs:
                pair = [share_for_party(v, p.index, b"value", dealer=dealer) for v in (x, w)]
                result.append(measure_graph_call(p, graph, *pair))
        public = p.function(lambda x: conv.conv2d_public(x, inputs[0][1]))
        result.append(
            measure_graph_call(
                p, public, share_for_party(inputs[0][0], p.index, b"value", dealer=dealer)
            )
        )
        return result

    *calls, public = zip(*simulate(program).outputs, strict=True)
    assert [sent for sent, _ in public] == [0, 0, 0]
    sizes = [2 * 3 * 2 * 2] * 2 + [1 * 5 * 2 * 1] * 2 + [2 * 3 * 2 * 6] * 2 + [1 * 5 * 2 * 3] * 2
    for n, call in zip(sizes, calls, strict=True):
        assert_costs(call, cost_of(arithmetic.mul, *[Private((n,))] * 2), dealer)


@pytest.mark.parametrize("layer", ["conv2d", "depthwise_conv2d"])
def test_frozen_shares_under_fresh_masks_give_other_words_on_every_message(
    layer: str, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tfe_bench.protocols.session.party import Site

    x, w = draw_words(rng, (1, 6, 6, 4)), draw_words(rng, (3, 3, 4, 4))
    received: dict[tuple[int, int], list[Any]] = {}
    plain = Site.recv

    def recv(self: Site, shape: Any, source: int, slot: int = 0, dtype: Any = None) -> Any:
        data = plain(self, shape, source, slot, dtype)
        received.setdefault((self.party.index, slot), []).append(data)
        return data

    monkeypatch.setattr(Site, "recv", recv)

    def program(p: Party, x: Shared, w: Shared) -> Any:
        def run(x: Shared, w: Shared) -> Any:
            getattr(conv, layer)(p, x, w)
            mine = sorted(slot for party, slot in received if party == p.index)
            return [received[p.index, slot][-1] for slot in mine]

        f = p.function(run)
        return [f(x, w) for _ in range(4)]

    sim = simulate(program, x, w)
    dealt = 0
    for party, runs in enumerate(sim.outputs):
        for messages in zip(*runs, strict=True):
            observed = np.concatenate([np.asarray(m).ravel() for m in messages])
            assert len(np.unique(observed)) == len(observed), party
            dealt += 1
    assert dealt == 3  # E2 receives from D; E1 and E2 receive from each other


REFUSED: dict[str, Callable[[Party, Shared, Shared], Any]] = {
    "conv2d of a public kernel": lambda p, x, w: conv.conv2d(p, x, np.zeros((1, 1, 2, 1))),  # type: ignore[arg-type]
    "conv2d of a wide value": lambda p, x, w: conv.conv2d(
        p, convert.extend_to_wide(p, x, 1), convert.extend_to_wide(p, w, 1)
    ),
    "conv2d of other channels": lambda p, x, w: conv.conv2d(
        p, x, arithmetic.add(w, w).map(lambda a: a[:, :, :1])
    ),
    "conv2d of a matrix": lambda p, x, w: conv.conv2d(p, x.map(lambda a: a[0]), w),
    "conv2d of a kernel without filters": lambda p, x, w: conv.conv2d(p, x, w.map(lambda a: a[0])),
    "conv2d of a kernel larger than the image": lambda p, x, w: conv.conv2d(p, x, w, dilations=2),
    "conv2d with a stride of 0": lambda p, x, w: conv.conv2d(p, x, w, 0),
    "conv2d with three strides": lambda p, x, w: conv.conv2d(p, x, w, (1, 1, 1)),
    "conv2d with strides along the batch": lambda p, x, w: conv.conv2d(p, x, w, [2, 1, 1, 1]),
    "conv2d with half a stride": lambda p, x, w: conv.conv2d(p, x, w, 0.5),  # type: ignore[arg-type]
    "conv2d with a negative dilation": lambda p, x, w: conv.conv2d(p, x, w, 1, "SAME", -1),
    "conv2d with an unknown padding": lambda p, x, w: conv.conv2d(p, x, w, 1, "FULL"),
    "conv2d with negative pads": lambda p, x, w: conv.conv2d(p, x, w, 1, ((0, -1), (0, 0))),
    "conv2d with pads along the batch": lambda p, x, w: conv.conv2d(
        p, x, w, 1, ((1, 0), (0, 0), (0, 0), (0, 0))
    ),
    "conv2d with ragged pads": lambda p, x, w: conv.conv2d(p, x, w, 1, ((1,), (0, 0))),
    "depthwise_conv2d of other channels": lambda p, x, w: conv.depthwise_conv2d(
        p, x, w.map(lambda a: a[:, :, :1])
    ),
    "conv2d_public of a private kernel": lambda p, x, w: conv.conv2d_public(x, w),
    "conv2d_public of reals": lambda p, x, w: conv.conv2d_public(x, np.zeros((1, 1, 2, 1))),
    "conv2d_public of public images": lambda p, x, w: conv.conv2d_public(
        np.zeros((1, 4, 4, 2), np.int64),  # type: ignore[arg-type]
        np.zeros((1, 1, 2, 1), np.int64),
    ),
    "conv2d_public of a wide value": lambda p, x, w: conv.conv2d_public(
        convert.extend_to_wide(p, x, 1), np.zeros((1, 1, 2, 1), np.int64)
    ),
    "depthwise_conv2d_public of other channels": lambda p, x, w: conv.depthwise_conv2d_public(
        x, np.zeros((1, 1, 3, 1), np.int64)
    ),
}


def test_what_does_not_fit_is_refused_by_name_with_what_was_received() -> None:
    texts: dict[str, str] = {}

    def program(p: Party, x: Shared, w: Shared) -> None:
        def all_of(x: Shared, w: Shared) -> Shared:
            for what, refused in REFUSED.items():
                with pytest.raises(UsageError) as caught:
                    refused(p, x, w)
                texts[what] = str(caught.value)
            other = share_for_party(np.zeros((3, 3, 2, 1)), p.index, b"other", dealer=1)
            with raises(UsageError, "operand-mismatch"):
                conv.conv2d(p, x, other)
            return x

        p.function(all_of)(x, w)

    simulate(program, np.zeros((1, 4, 4, 2), np.int64), np.zeros((3, 3, 2, 1), np.int64))
    for what, text in texts.items():
        assert text.startswith(what.split()[0]) and "Received: " in text, (what, text)

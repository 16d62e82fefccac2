"""TensorFlow's functions on private tensors reject unsupported arguments by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

import tfe_bench as tfe
from tests.protocols.test_functional import FIXED, OPERATIONS, F, untyped
from tests.refusals import raises
from tfe_bench.cluster.simulate import share_for_party, simulate
from tfe_bench.errors import ProtocolError, RangeError, UsageError
from tfe_bench.protocols.ring import convert
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared

Array = np.ndarray[Any, Any]
IMAGES = np.zeros((1, 3, 3, 1))
ONE = [
    "abs",
    "argmax",
    "argmin",
    "exp",
    "leaky_relu",
    "log",
    "negative",
    "reciprocal",
    "reduce_max",
]
ONE += ["reduce_mean", "reduce_min", "reduce_sum", "relu", "relu_derivative", "reveal", "rsqrt"]
ONE += ["gelu"]
ONE += ["sigmoid", "sign", "softmax", "sqrt", "square", "tanh", "cumsum", "squeeze", "transpose"]
# Functions tested with wide values; `reveal` and functions that rearrange elements have separate
# tests.
WIDE = [n for n in ONE if n not in ("negative", "reduce_sum", "squeeze", "transpose")]
SORTED = ["sort", "top_k", "median"]
Bad = tuple[str, Callable[[Any], Any]]


def call_on_public(name: str, value: Any, x: Any) -> Any:
    return getattr(tfe, name)(value)


def call_on_bits(name: str, x: Any) -> Any:
    return getattr(tfe, name)(x < 0)


BAD: list[Bad] = [
    ("add_n", lambda x: tfe.add_n([])),
    ("add_n", lambda x: tfe.add_n(x)),
    ("add_n", lambda x: tfe.add_n([x, x[:2]])),
    ("add_n", lambda x: tfe.add_n([x, "text"])),
    ("add_n", lambda x: tfe.add_n([np.ones(3)])),
    ("maximum", lambda x: tfe.maximum(x, "a")),
    ("maximum", lambda x: tfe.maximum(1, 2)),
    ("maximum", lambda x: tfe.maximum(x, x[:2])),
    ("minimum", lambda x: tfe.minimum(x, tfe.cast(x < 0))),
    ("minimum", lambda x: tfe.minimum(x, 0, bits=0)),
    ("clip_by_value", lambda x: tfe.clip_by_value(x, 1, 0)),
    ("clip_by_value", lambda x: untyped.clip_by_value(1, x, x)),
    ("clip_by_value", lambda x: tfe.clip_by_value(x, "a", 1)),
    ("clip_by_value", lambda x: tfe.clip_by_value(x, x[:2], 1)),
    ("sign", lambda x: tfe.sign(x, bits=65)),
    ("reduce_sum", lambda x: tfe.reduce_sum(x, 1)),
    ("reduce_mean", lambda x: tfe.reduce_mean(x[:0])),
    ("reduce_mean", lambda x: tfe.reduce_mean(x, (0, 0))),
    ("reduce_max", lambda x: tfe.reduce_max(x, 1)),
    ("reduce_max", lambda x: tfe.reduce_max(x[:0])),
    ("reduce_max", lambda x: untyped.reduce_max(x, 0.5)),
    ("reduce_min", lambda x: tfe.reduce_min(x, bits="64")),  # type: ignore[arg-type]
    ("argmax", lambda x: tfe.argmax(x, 2)),
    ("argmax", lambda x: tfe.argmax(x[:0])),
    ("argmin", lambda x: tfe.argmin(x, None)),  # type: ignore[arg-type]
    ("relu", lambda x: tfe.relu(x, bits=100)),
    ("leaky_relu", lambda x: tfe.leaky_relu(x, x)),
    ("leaky_relu", lambda x: tfe.leaky_relu(x, [0.1, 0.2])),  # type: ignore[arg-type]
    ("leaky_relu", lambda x: tfe.leaky_relu(tfe.cast(x < 0))),
    ("sigmoid", lambda x: tfe.sigmoid(tfe.cast(x < 0))),
    ("tanh", lambda x: tfe.tanh(tfe.cast(x, 24))),
    ("gelu", lambda x: tfe.gelu(tfe.cast(x, 17))),
    ("softmax", lambda x: tfe.softmax(x, 1)),
    ("softmax", lambda x: tfe.softmax(x[0])),
    ("softmax", lambda x: tfe.softmax(x[:0])),
    ("exp", lambda x: tfe.exp(x, "series")),
    ("exp", lambda x: tfe.exp(x, clamp="yes")),
    ("log", lambda x: tfe.log(tfe.cast(x < 0))),
    ("log", lambda x: tfe.log(x, bits=63)),
    ("reciprocal", lambda x: tfe.reciprocal(x, bits=1)),
    ("sqrt", lambda x: tfe.sqrt(tfe.cast(x, 25))),
    ("rsqrt", lambda x: tfe.rsqrt(x, bits="all")),  # type: ignore[arg-type]
    ("polyval", lambda x: tfe.polyval([1.0], x)),
    ("polyval", lambda x: tfe.polyval(1.0, x)),
    ("polyval", lambda x: tfe.polyval([x, 1], x)),
    ("polyval", lambda x: tfe.polyval(["a", "b"], x)),
    ("polyval", lambda x: tfe.polyval([np.nan, 1.0], x)),
    ("polyval", lambda x: tfe.polyval([1.0] * 12, x)),
    ("polyval", lambda x: untyped.polyval([1.0, 2.0], 3.0)),
    ("max_pool2d", lambda x: tfe.max_pool2d(x, 2)),
    ("max_pool2d", lambda x: untyped.max_pool2d(IMAGES, 2)),
    ("max_pool2d", lambda x: tfe.max_pool2d(as_images(x), 4)),
    ("max_pool2d", lambda x: tfe.max_pool2d(as_images(x), 0)),
    ("max_pool2d", lambda x: tfe.max_pool2d(as_images(x), 2, 2, "FULL")),
    ("max_pool2d", lambda x: untyped.max_pool2d(as_images(x), 2, "a")),
    ("avg_pool2d", lambda x: tfe.avg_pool2d(x, 2)),
    ("avg_pool2d", lambda x: untyped.avg_pool2d(IMAGES, 2)),
    ("avg_pool2d", lambda x: tfe.avg_pool2d(as_images(x), (1, 2, 3))),
    ("avg_pool2d", lambda x: tfe.avg_pool2d(as_images(x), 4)),
    ("avg_pool2d", lambda x: tfe.avg_pool2d(as_images(x), 2, 2, "FULL")),
    ("conv2d", lambda x: tfe.conv2d(IMAGES, IMAGES)),
    ("conv2d", lambda x: tfe.conv2d(as_images(x), "kernel")),
    ("conv2d", lambda x: tfe.conv2d(as_images(x), as_images(x) < 0)),
    ("conv2d", lambda x: tfe.conv2d(x, x)),
    ("conv2d", lambda x: tfe.conv2d(as_images(x), np.zeros((2, 2, 3, 1)))),
    ("conv2d", lambda x: tfe.conv2d(as_images(x), np.zeros((4, 4, 1, 1)))),
    ("conv2d", lambda x: tfe.conv2d(as_images(x), np.zeros((2, 2, 1, 1)), 0)),
    ("conv2d", lambda x: tfe.conv2d(as_images(x), np.zeros((2, 2, 1, 1)), bias=np.zeros(2))),
    ("conv2d", lambda x: tfe.conv2d(as_images(x), np.zeros((2, 2, 1, 1)), bias=tfe.cast(x < 0))),
    ("depthwise_conv2d", lambda x: tfe.depthwise_conv2d(as_images(x), np.zeros((2, 2)))),
    ("depthwise_conv2d", lambda x: tfe.depthwise_conv2d(as_images(x), x)),
    ("concat", lambda x: tfe.concat(x, 0)),
    ("concat", lambda x: tfe.concat([np.ones(3)], 0)),
    ("concat", lambda x: tfe.concat([x, np.ones((2, 2))], 0)),
    ("concat", lambda x: tfe.concat([x, ["a"]], 0)),
    ("concat", lambda x: tfe.concat([x, tfe.cast(x, 8)], 0)),
    ("stack", lambda x: tfe.stack([])),
    ("stack", lambda x: tfe.stack([x, np.ones(2)])),
    ("stack", lambda x: tfe.stack([x, x < 0])),
    ("unstack", lambda x: tfe.unstack(x, 2)),
    ("unstack", lambda x: untyped.unstack(np.ones(3))),
    ("unstack", lambda x: tfe.unstack(x, axis=1)),
    ("pad", lambda x: untyped.pad(np.ones(3), [[0, 1]])),
    ("pad", lambda x: tfe.pad(x, [[0, -1]])),
    ("pad", lambda x: tfe.pad(x, [[0, 1]], "EDGE")),
    ("pad", lambda x: tfe.pad(x, [[0, 1]], constant_values="a")),  # type: ignore[arg-type]
    ("pad", lambda x: tfe.pad(x, [[0, 1]], constant_values=1e30)),
    ("pad", lambda x: tfe.pad(tfe.cast(x < 0), [[0, 1]], constant_values=0.5)),
    ("reshape", lambda x: tfe.reshape(x, [2])),
    ("reshape", lambda x: tfe.reshape(x < 0, [2])),
    ("split", lambda x: tfe.split(x, 2)),
    ("slice", lambda x: tfe.slice(x, [2], [2])),
    ("gather", lambda x: tfe.gather(x, [3])),
    ("tile", lambda x: tfe.tile(x, [-1])),
    ("expand_dims", lambda x: tfe.expand_dims(x, 3)),
    ("broadcast_to", lambda x: tfe.broadcast_to(x, [2])),
    ("reverse", lambda x: tfe.reverse(x, [1])),
    ("reveal", lambda x: tfe.reveal(x, to=3)),
]
BAD += [(name, partial(call_on_public, name, np.ones(3))) for name in ONE]
BAD += [(name, partial(call_on_public, name, "text")) for name in ONE]
OF_BITS = ("reveal", "squeeze", "transpose")  # accept bits as well
BAD += [(name, partial(call_on_bits, name)) for name in ONE if name not in OF_BITS]

BETWEEN: list[Bad] = [
    ("sort", lambda x: tfe.sort(x, 1)),
    ("sort", lambda x: tfe.sort(x, direction="UP")),
    ("sort", lambda x: tfe.sort(x.map(lambda a: a[0]))),
    ("sort", lambda x: tfe.sort(x[:0])),
    ("top_k", lambda x: tfe.top_k(x, 0)),
    ("top_k", lambda x: tfe.top_k(x, 4)),
    ("top_k", lambda x: tfe.top_k(x, 1.0)),  # type: ignore[arg-type]
    ("median", lambda x: tfe.median(x, 1)),
    ("median", lambda x: tfe.median(x[:0])),
    ("quantile", lambda x: tfe.quantile(x, 1.5)),
    ("quantile", lambda x: tfe.quantile(x, x)),
    ("quantile", lambda x: tfe.quantile(x, np.nan)),
    ("quantile", lambda x: untyped.quantile(np.ones(3), 0.5)),
]
BETWEEN += [(name, partial(call_on_public, name, np.ones(3))) for name in SORTED]


def as_images(x: Shared) -> Shared:
    """Return x as [1, 3, 3, 1]."""
    return tfe.reshape(tfe.tile(x, [3]), [1, 3, 3, 1])


def expect_refusal(name: str, wrong: Callable[[Any], Any], x: Shared) -> None:
    """Expect an error whose text begins with the function's name and states the received value."""
    with pytest.raises((UsageError, RangeError)) as caught:
        wrong(x)
        pytest.fail(f"{name} takes {wrong}")
    text = str(caught.value)
    assert text.startswith((f"{name} ", f"{name}:")) and "Received: " in text, (name, text)


def refuse_all(bad: list[Bad], value: Array) -> None:
    """Check that each call with a wrong argument is rejected, on private reals."""

    def graph(x: Shared) -> Shared:
        for name, wrong in bad:
            expect_refusal(name, wrong, x)
        return x

    simulate(lambda p, x: p.function(graph)(x), FIXED.encode(value), fractional_bits=F)


def test_what_functions_do_not_take_is_refused_by_name_with_what_was_received() -> None:
    def program(p: Party, x: Shared) -> None:
        def graph(x: Shared) -> Shared:
            wide = convert.extend_to_wide(p, x, 3)
            other = share_for_party(np.zeros(3), p.index, b"other", F, dealer=1)
            for name, wrong in BAD:
                expect_refusal(name, wrong, x)
            for name in WIDE:
                expect_refusal(name, getattr(tfe, name), wide)
            expect_refusal("concat", lambda x: tfe.concat([x, other], 0), x)
            expect_refusal("stack", lambda x: tfe.stack([x, wide]), x)
            expect_refusal("maximum", lambda x: tfe.maximum(x, other), x)
            for between in (*SORTED, "quantile"):
                with raises(ProtocolError, "inside-party-function", operation=between):
                    getattr(tfe, between)(x, *([0.5] if between == "quantile" else []))
            return x

        p.function(graph)(x)
        for name, wrong in BETWEEN:
            expect_refusal(name, wrong, x)

    simulate(program, FIXED.encode(np.array([1.0, -2.0, 3.0])), fractional_bits=F)


# Local functions: they send nothing, and need no party.
LOCAL = {"add", "add_n", "broadcast_to", "concat", "cumsum", "expand_dims", "gather", "negative"}
LOCAL |= {"pad", "reduce_sum", "reshape", "reverse", "slice", "split", "squeeze", "stack"}
LOCAL |= {"subtract", "tile", "transpose", "unstack", "logical_not", "logical_xor"}


LOCAL |= {"bitcast", "scatter_nd", "tensor_scatter_nd_update", "invert", "left_shift"}
WINDOWS = ["avg_pool2d", "max_pool2d", "max_pool_with_argmax"]
WINDOWS += ["adaptive_avg_pool2d", "adaptive_max_pool2d"]
# Composed functions are rejected by the first function that they call.
BY = {"clip_by_value": "maximum", "pow": "square", "floor_div": "floordiv", "mod": "floormod"}
BY |= dict.fromkeys(("einsum", "matvec", "tensordot"), "matmul")
BY |= dict.fromkeys(("reduce_prod", "cumprod"), "multiply")
BY |= dict.fromkeys(("reduce_variance", "reduce_std"), "reduce_mean")


def test_functions_want_a_running_party_and_its_graph() -> None:
    def arguments(name: str, x: Shared) -> tuple[Any, ...]:
        image = tfe.reshape(tfe.concat([x, x, x], 0), [1, 3, 3, 1])
        i = replace(x, fractional_bits=0)
        special: dict[str, tuple[Any, ...]] = {
            **{name: (image, 2) for name in WINDOWS},
            **{name: (i, i) for name in ("bitwise_and", "bitwise_or", "bitwise_xor")},
            **{name: (i,) for name in ("popcount", "unpack_bits")},
            **{name: (i, 3) for name in ("bit_extract", "one_hot", "right_shift")},
            "bincount": (i, None, None, 3),
            "einsum": ("i,i->", x, x),
            "histogram_fixed_width": (x, [0.0, 1.0], 3),
            "matvec": (x[None], x),
            "tensordot": (x, x, 1),
            "clip_by_value": (x, 0, 1),
            "conv2d": (image, image[0, ..., None]),
            "depthwise_conv2d": (image, image[0, ..., None]),
            "in_range": (x, 31),
            "matmul": (x[None], x[:, None]),
            "polyval": ([1.0, 2.0], x),
            "pow": (x, 2),
            "quantile": (x, 0.5),
            "scaled_dot_product_attention": (x, x, x),
            "where": (x, x, x),
        }
        two = {"divide", "equal", "greater", "greater_equal", "less", "less_equal", "maximum"}
        two |= {"minimum", "multiply", "not_equal", "atan2"}
        two |= {"floordiv", "floormod", "floor_div", "mod"}
        return special.get(name, (x, x) if name in two else (x,))

    public = {
        "logical_and",
        "logical_or",
        "pack_bits",
        "where",
    }  # of bits
    names = OPERATIONS - LOCAL - public - {"cast"}
    x = share_for_party(np.zeros(3), 0, b"seed", F)
    for name in names:
        with raises(ProtocolError, "no-active-party"):
            getattr(tfe, name)(*arguments(name, x))

    def program(p: Party, x: Shared) -> None:
        for name in names - {*SORTED, "quantile"}:
            named = BY.get(name, name)
            with raises(ProtocolError, "outside-party-function", operation=named):
                getattr(tfe, name)(*arguments(name, x))

    simulate(program, FIXED.encode(np.zeros(3)), fractional_bits=F)

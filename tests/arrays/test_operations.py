"""Every operation of expressions, through reveal, compared with NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.special

from tests.arrays.simulated import tfb
from tfe_bench import LocalCluster
from tfe_bench.arrays import operations
from tfe_bench.arrays.array import PrivateArray, apply_array_operation

X = np.array([[-1.5, 0.25, 2.0], [3.5, -0.75, 1.25]])
Y = np.array([[0.5, 1.5, 2.5], [1.0, 4.0, 0.5]])
N = np.array([[3, 1, 2], [7, 0, 5]])
W = np.array([[1.0, -0.5], [0.25, 2.0], [-1.0, 0.5]])
B = np.array([[True, False, True], [False, False, True]])
IMAGES = np.linspace(-1, 1, 32).reshape(1, 4, 4, 2)
COUNTS = np.bincount(N.ravel())
K = np.linspace(-0.5, 0.5, 16).reshape(2, 2, 2, 2)


def _softmax(x: Any) -> Any:
    return scipy.special.softmax(x, axis=-1)


def _pool_windows(x: Any) -> Any:
    return x.reshape(1, 2, 2, 2, 2, 2).transpose(0, 1, 3, 2, 4, 5).reshape(1, 2, 2, 4, 2)


def _convolve(x: Any, k: Any) -> Any:
    result = np.zeros((1, 3, 3, 2))
    for i in range(3):
        for j in range(3):
            result[0, i, j] = np.tensordot(x[0, i : i + 2, j : j + 2], k, 3)
    return result


def _convolve_depthwise(x: Any, k: Any) -> Any:
    result = np.zeros((1, 3, 3, 4))
    for i in range(3):
        for j in range(3):
            result[0, i, j] = np.einsum("abc,abcd->cd", x[0, i : i + 2, j : j + 2], k).reshape(-1)
    return result


def _set_parts(x: Any) -> Any:
    result = x.copy()
    result[1] = 9.0
    return result


def _attention(x: Any) -> Any:
    return _softmax(x @ x.T / np.sqrt(3)) @ x


UP = np.arange(1, 4)  # some positions of bits
# By name: the expression of (x, y, n, w, b), and its plaintext form.
Case = tuple[Callable[..., Any], Any]
CASES: dict[str, Case] = {
    "bit_extract": (lambda v: tfb.bit_extract(v.n, 1), (N >> 1) & 1 == 1),
    "count_outside": (lambda v: apply_array_operation("count_outside", v.n, 1, 5), 2),
    "count_steep": (lambda v: apply_array_operation("count_steep", v.y, v.n.cast(16), 1), 1),
    "count_zeros": (lambda v: apply_array_operation("count_zeros", v.n), 1),
    "bitwise_and": (lambda v: v.n & 3, N & 3),
    "bitwise_or": (lambda v: 4 | v.n, N | 4),
    "bitwise_xor": (lambda v: tfb.bitwise_xor(v.n, v.n + 1), N ^ (N + 1)),
    "invert": (lambda v: ~v.n, ~N),
    "left_shift": (lambda v: v.n << 2, N << 2),
    "right_shift": (lambda v: v.n >> 1, N >> 1),
    "unpack_bits": (lambda v: tfb.unpack_bits(v.n, 4)[..., 1:], (N[..., None] >> UP & 1) == 1),
    "pack_bits": (lambda v: tfb.pack_bits(tfb.unpack_bits(v.n)), N),
    "bitcast": (lambda v: tfb.bitcast(v.x, 20), X / 16),
    "foldl": (lambda v: tfb.foldl(lambda s, x: s + x, v.x, v.x[0]), X.sum(0) + X[0]),
    "popcount": (lambda v: tfb.popcount(v.n), np.bitwise_count(N)),
    "einsum": (lambda v: tfb.einsum("ij,jk->ki", v.x, v.w), np.einsum("ij,jk->ki", X, W)),
    "matvec": (lambda v: tfb.matvec(v.x, v.w[:, 0]), X @ W[:, 0]),
    "tensordot": (lambda v: tfb.tensordot(v.x, v.w, 1), X @ W),
    "atan2": (lambda v: tfb.atan2(v.x, v.y), np.arctan2(X, Y)),
    "cos": (lambda v: np.cos(v.x), np.cos(X)),
    "erf": (lambda v: tfb.erf(v.x), scipy.special.erf(X)),
    "exp": (lambda v: np.exp(v.x), np.exp(X)),
    "log": (lambda v: np.log(v.y), np.log(Y)),
    "polyval": (lambda v: tfb.polyval([0.5, -1.0, 2.0], v.x), np.polyval([0.5, -1.0, 2.0], X)),
    "reciprocal": (lambda v: tfb.reciprocal(v.y), 1 / Y),
    "rsqrt": (lambda v: tfb.rsqrt(v.y), 1 / np.sqrt(Y)),
    "sin": (lambda v: tfb.sin(v.x), np.sin(X)),
    "sqrt": (lambda v: np.sqrt(v.y), np.sqrt(Y)),
    "gather": (lambda v: tfb.gather(v.x, [2, 0], axis=1), X[:, [2, 0]]),
    "one_hot": (lambda v: tfb.one_hot(v.n, 8), np.eye(8)[N]),
    "scatter_nd": (
        lambda v: tfb.scatter_nd([[2], [0]], v.x, [3, 3]),
        np.stack([X[1], np.zeros(3), X[0]]),
    ),
    "tensor_scatter_nd_update": (
        lambda v: tfb.tensor_scatter_nd_update(v.x, [[1]], [[9.0] * 3]),
        _set_parts(X),
    ),
    "avg_pool2d": (lambda v: tfb.avg_pool2d(v.i, 2), _pool_windows(IMAGES).mean(3)),
    "conv2d": (lambda v: tfb.conv2d(v.i, v.k), _convolve(IMAGES, K)),
    "depthwise_conv2d": (lambda v: tfb.depthwise_conv2d(v.i, K), _convolve_depthwise(IMAGES, K)),
    "gelu": (lambda v: tfb.gelu(v.x), X * (1 + scipy.special.erf(X / np.sqrt(2))) / 2),
    "leaky_relu": (lambda v: tfb.leaky_relu(v.x), np.where(X > 0, X, 0.2 * X)),
    "max_pool2d": (lambda v: tfb.max_pool2d(v.i, 2), _pool_windows(IMAGES).max(3)),
    "relu": (lambda v: tfb.relu(v.x), np.maximum(X, 0)),
    "relu_derivative": (lambda v: tfb.relu_derivative(v.x), (X > 0) * 1),
    "scaled_dot_product_attention": (
        lambda v: tfb.scaled_dot_product_attention(v.x, v.x, v.x),
        _attention(X),
    ),
    "sigmoid": (lambda v: tfb.sigmoid(v.x), scipy.special.expit(X)),
    "silu": (lambda v: tfb.silu(v.x), X * scipy.special.expit(X)),
    "softmax": (lambda v: tfb.softmax(v.x), _softmax(X)),
    "tanh": (lambda v: np.tanh(v.x), np.tanh(X)),
    "abs": (lambda v: abs(v.x), np.abs(X)),
    "add": (lambda v: v.x + v.y, X + Y),
    "divide": (lambda v: v.x / v.y, X / Y),
    "matmul": (lambda v: v.x @ v.w, X @ W),
    "multiply": (lambda v: Y * v.x, X * Y),
    "negative": (lambda v: -v.x, -X),
    "square": (lambda v: np.square(v.x), X**2),
    "subtract": (lambda v: 1 - v.x, 1 - X),
    "adaptive_avg_pool2d": (
        lambda v: tfb.adaptive_avg_pool2d(v.i, 2),
        _pool_windows(IMAGES).mean(3),
    ),
    "adaptive_max_pool2d": (
        lambda v: tfb.adaptive_max_pool2d(v.i, 2),
        _pool_windows(IMAGES).max(3),
    ),
    "max_pool_with_argmax": (
        lambda v: tfb.max_pool_with_argmax(v.i, 2)[0],
        _pool_windows(IMAGES).max(3),
    ),
    "pow": (lambda v: v.x**3, X**3),
    "cast": (lambda v: tfb.cast(v.n, 16), N.astype(float)),
    "equal": (lambda v: v.n == 2, N == 2),
    "greater": (lambda v: v.x > 1, X > 1),
    "greater_equal": (lambda v: v.x >= v.y, X >= Y),
    "in_range": (lambda v: tfb.in_range(v.x, 18), np.abs(X) < 2),
    "less": (lambda v: v.x > 1, X > 1),
    "less_equal": (lambda v: v.x <= 1.25, X <= 1.25),
    "logical_and": (lambda v: v.b & (v.x > 0), B & (X > 0)),
    "logical_not": (lambda v: ~v.b, ~B),
    "logical_or": (lambda v: v.b | (v.x > 0), B | (X > 0)),
    "logical_xor": (lambda v: v.b ^ B, B ^ B),
    "not_equal": (lambda v: v.n != 2, N != 2),
    "where": (lambda v: np.where(v.b, v.x, 0.0), np.where(B, X, 0.0)),
    "argmax": (lambda v: np.argmax(v.x, axis=1), X.argmax(1)),
    "argmin": (lambda v: v.x.argmin(), X.argmin()),
    "clip_by_value": (lambda v: np.clip(v.x, -1.0, 1.0), np.clip(X, -1, 1)),
    "maximum": (lambda v: np.maximum(v.x, Y), np.maximum(X, Y)),
    "median": (lambda v: np.median(v.y, axis=1), np.median(Y, axis=1)),
    "minimum": (lambda v: tfb.minimum(v.x, v.y), np.minimum(X, Y)),
    "quantile": (lambda v: tfb.quantile(v.y, 0.5, 1), np.median(Y, axis=1)),
    "reduce_max": (lambda v: v.x.max(axis=0), X.max(0)),
    "reduce_min": (lambda v: np.min(v.x), X.min()),
    "sign": (lambda v: np.sign(v.x), np.sign(X)),
    "sort": (lambda v: np.sort(v.x), np.sort(X)),
    "top_k": (lambda v: tfb.top_k(v.x, 2)[0], -np.sort(-X)[:, :2]),
    "ceil": (lambda v: np.ceil(v.x), np.ceil(X)),
    "floor": (lambda v: np.floor(v.x), np.floor(X)),
    "floor_div": (lambda v: tfb.floor_div(v.n, 2), N // 2),
    "floordiv": (lambda v: v.n // 2, N // 2),
    "floormod": (lambda v: v.n % 4, N % 4),
    "mod": (lambda v: tfb.mod(v.n, 3), N % 3),
    "round": (lambda v: tfb.round(v.x), np.round(X)),
    "cummax": (lambda v: tfb.cummax(v.x, axis=1), np.maximum.accumulate(X, 1)),
    "cumprod": (lambda v: np.cumprod(v.x, axis=1), np.cumprod(X, 1)),
    "reduce_prod": (lambda v: np.prod(v.y, axis=1), Y.prod(1)),
    "bincount": (
        lambda v: tfb.bincount(tfb.reshape(v.n, [-1]), maxlength=8),
        np.bincount(N.ravel()),
    ),
    "histogram_fixed_width": (
        lambda v: tfb.histogram_fixed_width(v.x, [-2.0, 4.0], 3),
        np.histogram(X, 3, (-2, 4))[0],
    ),
    "norm": (lambda v: np.linalg.norm(v.x), np.linalg.norm(X)),
    "reduce_std": (lambda v: v.x.std(axis=0), X.std(0)),
    "reduce_variance": (lambda v: np.var(v.x), X.var()),
    "add_n": (lambda v: tfb.add_n([v.x, v.y, X]), X + Y + X),
    "concat": (lambda v: np.concatenate([v.x, v.y]), np.concatenate([X, Y])),
    "pad": (lambda v: tfb.pad(v.x, [(0, 1), (1, 0)]), np.pad(X, [(0, 1), (1, 0)])),
    "reduce_mean": (lambda v: v.x.mean(axis=1), X.mean(1)),
    "stack": (lambda v: np.stack([v.x, v.y], axis=1), np.stack([X, Y], 1)),
    "unstack": (lambda v: tfb.unstack(v.x)[1], X[1]),
    "cumsum": (lambda v: v.x.cumsum(), X.cumsum()),
    "reduce_sum": (lambda v: np.sum(v.x, axis=0, keepdims=True), X.sum(0, keepdims=True)),
    "broadcast_to": (lambda v: np.broadcast_to(v.x, (2, 2, 3)), np.broadcast_to(X, (2, 2, 3))),
    "expand_dims": (lambda v: np.expand_dims(v.x, 1), X[:, None]),
    "getitem": (lambda v: v.x[..., ::-2], X[..., ::-2]),
    "reshape": (lambda v: v.x.reshape(3, -1), X.reshape(3, -1)),
    "reverse": (lambda v: np.flip(v.x, 1), np.flip(X, 1)),
    "slice": (lambda v: tfb.slice(v.x, [0, 1], [2, 2]), X[:, 1:]),
    "split": (lambda v: tfb.split(v.x, 3, axis=1)[2], X[:, 2:]),
    "squeeze": (lambda v: tfb.squeeze(v.x[:1]), X[0]),
    "tile": (lambda v: tfb.tile(v.x, [1, 2]), np.tile(X, (1, 2))),
    "transpose": (lambda v: v.x.T, X.T),
}


# Cases per job: larger graphs take long to trace on a busy machine.
TOGETHER = 12


class PrivateOperands:
    """The private arrays of the cases."""

    def __init__(self, cluster: LocalCluster) -> None:
        named = {"x": X, "y": Y, "n": N, "w": W, "b": B, "i": IMAGES, "k": K}
        self.cluster = cluster
        for name, array in named.items():
            setattr(self, name, cluster.private(array))


@pytest.fixture(scope="module")
def revealed(cluster: LocalCluster) -> dict[str, Any]:
    """Return the results of all cases, by a few jobs."""
    inputs = PrivateOperands(cluster)
    arrays = {name: case(inputs) for name, (case, _) in CASES.items()}
    names = list(arrays)
    results: dict[str, Any] = {}
    for i in range(0, len(names), TOGETHER):
        part = names[i : i + TOGETHER]
        results.update(zip(part, cluster.reveal(*(arrays[name] for name in part)), strict=True))
    return {name: (arrays[name], each) for name, each in results.items()}


def test_every_operation_has_a_case() -> None:
    assert set(CASES) == set(operations.list_operations())


def test_every_public_operation_is_offered() -> None:
    public = {name for name in tfb._public_modules() if tfb._is_public_operation(name)}
    own = {"foldl", "getitem", "count_outside", "count_steep", "count_zeros"}
    assert public - {"reveal"} == set(operations.list_operations()) - own


@pytest.mark.parametrize("name", CASES)
def test_as_numpy(name: str, revealed: dict[str, Any]) -> None:
    private_value, result = revealed[name]
    expected = np.asarray(CASES[name][1])
    assert isinstance(private_value, PrivateArray) and private_value.shape == expected.shape
    assert np.shape(result) == expected.shape
    if private_value.kind != "fixed":
        np.testing.assert_array_equal(result, expected)
    else:
        np.testing.assert_allclose(result, expected, atol=2e-3, rtol=1e-3)


# The largest values that an operation's bits allow, |v| < 2^(bits - 1 - 16).
LARGE = np.array([[-(2.0**43), 2.0**42.5, -3e4, 1.0], [1e9, 2e4, -1e6, -1.0]])
WIDE: dict[str, Case] = {
    "relu": (lambda v: tfb.relu(v), np.maximum(LARGE, 0)),
    "relu_derivative": (lambda v: tfb.relu_derivative(v), np.float64(LARGE >= 0)),
    "leaky_relu": (
        lambda v: tfb.leaky_relu(v / 2.0**22),
        LARGE / 2.0**22 * np.where(LARGE < 0, 0.2, 1),
    ),
    "max_pool2d": (
        lambda v: tfb.max_pool2d(v.reshape([1, 2, 4, 1]), 2, 2, "VALID"),
        LARGE.reshape(2, 2, 2).max((0, 2)).reshape(1, 1, 2, 1),
    ),
    "adaptive_max_pool2d": (
        lambda v: tfb.adaptive_max_pool2d(v.reshape([1, 2, 4, 1]), 1),
        LARGE.max().reshape(1, 1, 1, 1),
    ),
    "max_pool_with_argmax": (
        lambda v: tfb.max_pool_with_argmax(v.reshape([1, 2, 4, 1]), 2, 2, "VALID")[0],
        LARGE.reshape(2, 2, 2).max((0, 2)).reshape(1, 1, 2, 1),
    ),
    "erf": (lambda v: tfb.erf(v), scipy.special.erf(LARGE)),
    "gelu": (lambda v: tfb.gelu(v), LARGE * scipy.special.ndtr(LARGE)),
    "sigmoid": (lambda v: tfb.sigmoid(v), scipy.special.expit(LARGE)),
    "silu": (lambda v: tfb.silu(v), LARGE * scipy.special.expit(LARGE)),
    "softmax": (lambda v: tfb.softmax(v), _softmax(LARGE)),
    "tanh": (lambda v: tfb.tanh(v), np.tanh(LARGE)),
    "polyval": (lambda v: tfb.polyval([0.5, 1.0], v), LARGE / 2 + 1),
    "scaled_dot_product_attention": (
        lambda v: tfb.scaled_dot_product_attention(v * 0, v * 0, v / 2.0**20),
        np.tile(LARGE.mean(0) / 2.0**20, (2, 1)),
    ),
}


def test_no_operation_takes_small_values_for_granted(cluster: LocalCluster) -> None:
    """Check that default widths suit large values, as an expression's author may not
    know the ranges.
    """
    assert set(WIDE) == {name for name, each in operations.list_operations().items() if each.bits}
    operand = cluster.private(LARGE, bound=2.0**44)
    results = cluster.reveal(*(of(operand) for of, _ in WIDE.values()))
    for (name, (_, expected)), value in zip(WIDE.items(), results, strict=True):
        np.testing.assert_allclose(value, expected, atol=2e-3, rtol=1e-3, err_msg=name)

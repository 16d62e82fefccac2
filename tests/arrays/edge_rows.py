"""Operations on integers and on rows of values with plaintext references."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from tests.arrays.edge_cases import EXACT, NAN, PAIRS, plain_softmax, real_cases, weighted_error
from tests.arrays.edges import ULP, Case, Real, relative_error
from tests.arrays.simulated import tfb
from tfe_bench.arrays.operations import MAX_REPEATS

# ---- integers

WHOLE: Mapping[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "negative": (lambda x: -x, lambda x: -x),
    "square": (np.square, np.square),
    "times 3": (lambda x: x * 3, lambda x: x * 3),
    "plus 1": (lambda x: x + 1, lambda x: x + 1),
    "plus a half": (lambda x: x + 0.5, lambda x: x + Real(0.5)),
    "cast": (lambda x: x.cast(16), lambda x: x),
    "astype": (lambda x: x.astype(bool), lambda x: x != 0),
    "invert": (lambda x: ~x, np.invert),
    "left_shift": (lambda x: x << 3, lambda x: x << 3),
    "right_shift": (lambda x: x >> 3, lambda x: x >> 3),
    "and": (lambda x: x & 255, lambda x: x & 255),
    "or": (lambda x: x | 2**40, lambda x: x | 2**40),
    "popcount": (tfb.popcount, lambda x: np.bitwise_count(x.view(np.uint64))),
    "bit_extract": (lambda x: tfb.bit_extract(x, 63), lambda x: x < 0),
    "pack_bits": (lambda x: tfb.pack_bits(tfb.unpack_bits(x, 8)) * 1.5, lambda x: (x & 255) * 1.5),
    "sign": (np.sign, np.sign),
    "less": (lambda x: x < -(2**62), lambda x: x < -(2**62)),
    "equal": (lambda x: x == 5, lambda x: x == 5),
    "relu": (tfb.relu, lambda x: np.maximum(x, 0)),
    "power": (lambda x: x**5, lambda x: x**5),
    "one_hot": (lambda x: tfb.one_hot(x, 5), lambda x: x[:, None] == np.arange(5)),
    "one_hot in 8 bits": (
        lambda x: tfb.one_hot(x, 3, bits=8),
        lambda x: x[:, None] == np.arange(3),
    ),
    "gather": (
        lambda x: tfb.gather((x * 0)[:2] + 9, x),
        lambda x: np.where((x >= 0) & (x < 2), 9, 0),
    ),
    "logical_not": (lambda x: ~((x > 3) | (x < 1)), lambda x: (x <= 3) & (x >= 1)),
    "bitcast": (lambda x: tfb.bitcast(x, 16) * 1.0, lambda x: x.astype(Real) / 2**16),
    "clip": (lambda x: x.clip(-3, 2**41), lambda x: x.clip(-3, 2**41)),
    **{
        f"floor {d}": (lambda x, d=d: x // d, lambda x, d=d: x // d)
        for d in (7, -5, 1024, 2**33 + 1)
    },
    **{f"rest {d}": (lambda x, d=d: x % d, lambda x, d=d: x % d) for d in (7, -5, 2**33 + 1)},
    "floor of 2^35": (
        lambda x: 2**35 // x,
        lambda x: np.where(x == 0, NAN, np.floor(Real(2**35) / (x + (x == 0)))),
    ),
}


def _integer_cases() -> dict[str, Case]:
    cases = {name: Case(private, plain, "i") for name, (private, plain) in WHOLE.items()}
    for d in (0.1, 1e-6):
        cases[f"times {d}"] = Case(
            lambda x, d=d: x * d, lambda x, d=d: x * Real(d), "i", weighted_error
        )
        cases[f"over {d}"] = Case(
            lambda x, d=d: x / d, lambda x, d=d: x / Real(d), "i", weighted_error
        )
    return cases


# ---- reductions

Row = tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any], str]


def _as_cells(x: Any) -> Any:
    return tfb.reshape(x, [-1, 1, x.shape[1], 1])


def _flatten(x: Any) -> Any:
    return tfb.reshape(x, [-1])


def _as_real(x: Any) -> Any:
    return x.astype(Real)


def _variance_error(p: Any, x: Any) -> Any:
    return p * 2.0**-19 + (4 + 6 * np.sqrt(p)) * ULP


def _spread_error(p: Any, x: Any) -> Any:
    return 1.2 * ULP + (x.max(1) - x.min(1)) * 2.0**-16.5


def _product_error(p: Any, x: Any) -> Any:
    most = np.maximum(1, np.maximum(np.abs(x), 1).prod(1, keepdims=True))
    return 4 * x.shape[1] * ULP * most.reshape(-1, *[1] * (p.ndim - 1))


def _sum_of(p: Any, x: Any) -> Any:
    return 2 * ULP + np.abs(x).sum(1) * 2.0**-24


def _dot_rows(x: Any, y: Any) -> Any:
    return (x * y).sum(1)


def _plain_attention(x: Any, y: Any) -> Any:
    q, k = (v.reshape(-1, 2, 2) for v in (x, y))
    return plain_softmax(np.einsum("bik,bjk->bij", q, k) / np.sqrt(Real(2))) @ k


def _private_attention(x: Any, y: Any) -> Any:
    q, k = (tfb.reshape(v, [-1, 2, 2]) for v in (x, y))
    return tfb.scaled_dot_product_attention(q, k, k)


def _attended_off(p: Any, x: Any, y: Any) -> Any:
    return (np.abs(y).max(1) * 2.0**-9 + 2.0**-9)[:, None, None]


def _window(x: Any) -> Any:
    """Return as many elements of each row as a window may have."""
    return x[:, :MAX_REPEATS]


# For rows of any length.
LONG: Mapping[str, Row] = {
    "sum": (lambda x: x.sum(1), lambda x: x.sum(1), EXACT, "fi"),
    "cumsum": (lambda x: np.cumsum(x, 1), lambda x: np.cumsum(x, 1), EXACT, "fi"),
    "mean": (lambda x: x.mean(1), lambda x: _as_real(x).mean(1), relative_error(0, 3.1), "fib"),
    "var": (lambda x: x.var(1), lambda x: _as_real(x).var(1), _variance_error, "fi"),
    "std": (lambda x: x.std(1), lambda x: _as_real(x).std(1), relative_error(2.0**-18, 3.5), "fib"),
    "std of a sample": (
        lambda x: x.std(1, ddof=1),
        lambda x: x.std(1, ddof=1),
        relative_error(2.0**-18, 5),
        "f",
    ),
    "norm": (
        lambda x: tfb.norm(x, axis=1),
        lambda x: np.sqrt((x * x).sum(1)),
        relative_error(2.0**-19, 3.1),
        "f",
    ),
    "norm 1": (lambda x: tfb.norm(x, 1, axis=1), lambda x: np.abs(x).sum(1), EXACT, "f"),
    "maximum": (lambda x: x.max(1), lambda x: x.max(1), EXACT, "fi"),
    "argmin": (lambda x: x.argmin(1), lambda x: x.argmin(1), EXACT, "fi"),
    "mean square": (
        lambda x: (x * x).mean(1),
        lambda x: (x * x).mean(1),
        relative_error(0, 6),
        "f",
    ),
    "weights": (
        lambda x: x @ np.full(x.shape[1], 0.1),
        lambda x: x.sum(1) * Real(0.1),
        _sum_of,
        "f",
    ),
    "large weights": (
        lambda x: x @ np.full(x.shape[1], 1e6),
        lambda x: x.sum(1) * Real(1e6),
        relative_error(0, 2),
        "f",
    ),
    "einsum": (lambda x: tfb.einsum("ij->i", x), lambda x: x.sum(1), EXACT, "f"),
    "average": (
        lambda x: _flatten(tfb.avg_pool2d(_as_cells(_window(x)), [1, _window(x).shape[1]])),
        lambda x: _window(x).mean(1),
        lambda p, x: 2 * ULP + np.abs(_window(x)).sum(1) * 2.0**-31,
        "f",
    ),
}
SHORT: Mapping[str, Row] = {
    "prod": (lambda x: x.prod(1), lambda x: x.prod(1), lambda p, x: _product_error(p, x), "f"),
    "whole prod": (lambda x: x.prod(1), lambda x: x.prod(1), EXACT, "i"),
    "cumprod": (lambda x: tfb.cumprod(x, 1), lambda x: x.cumprod(1), _product_error, "f"),
    "cummax": (
        lambda x: tfb.cummax(x, 1),
        lambda x: np.maximum.accumulate(x, 1),
        EXACT,
        "fi",
    ),
    "sort": (np.sort, np.sort, EXACT, "fi"),
    "top_k": (lambda x: tfb.top_k(x, 2)[0], lambda x: -np.sort(-x)[:, :2], EXACT, "f"),
    "median": (
        lambda x: np.median(x, axis=1),
        lambda x: np.median(x, axis=1),
        relative_error(0, 1.1),
        "f",
    ),
    "quantile": (
        lambda x: tfb.quantile(x, 0.3, 1),
        lambda x: np.quantile(_as_real(x), 0.3, axis=1),
        _spread_error,
        "fi",
    ),
    "softmax": (tfb.softmax, plain_softmax, relative_error(0, 2.2), "f"),
    "softmax in 31 bits": (
        lambda x: tfb.softmax(x, bits=31),
        plain_softmax,
        relative_error(0, 2.2),
        "f",
    ),
    "argmax in 31 bits": (lambda x: tfb.argmax(x, 1, bits=31), lambda x: x.argmax(1), EXACT, "f"),
    "largest cell": (
        lambda x: _flatten(tfb.max_pool2d(_as_cells(x), [1, x.shape[1]])),
        lambda x: x.max(1),
        EXACT,
        "fi",
    ),
    "convolution": (
        lambda x: _flatten(
            tfb.conv2d(_as_cells(x), np.full((1, x.shape[1], 1, 1), 0.1), bias=np.array([1e9]))
        ),
        lambda x: x.sum(1) * Real(0.1) + Real(1e9),
        _sum_of,
        "f",
    ),
    "depthwise": (
        lambda x: _flatten(
            tfb.depthwise_conv2d(_as_cells(x), np.full((1, x.shape[1], 1, 1), 0.1), bias=[1e9])
        ),
        lambda x: x.sum(1) * Real(0.1) + Real(1e9),
        _sum_of,
        "f",
    ),
    "cells with places": (
        lambda x: _flatten(
            tfb.max_pool_with_argmax(_as_cells(x), [1, x.shape[1]], [1, x.shape[1]], "VALID")[0]
        ),
        lambda x: x.max(1),
        EXACT,
        "f",
    ),
    "adaptive average": (
        lambda x: _flatten(tfb.adaptive_avg_pool2d(_as_cells(x), 1)),
        lambda x: x.mean(1),
        relative_error(0, 2),
        "f",
    ),
    "adaptive maximum": (
        lambda x: _flatten(tfb.adaptive_max_pool2d(_as_cells(x), 1)),
        lambda x: x.max(1),
        EXACT,
        "f",
    ),
    "parts": (
        lambda x: sum(tfb.unstack(x, axis=1)) + tfb.split(x, x.shape[1], 1)[0][:, 0],
        lambda x: x.sum(1) + x[:, 0],
        EXACT,
        "f",
    ),
    "moves": (
        lambda x: tfb.squeeze(tfb.expand_dims(tfb.tile(tfb.reverse(x, [1]), [1, 2]), 0), 0),
        lambda x: np.tile(x[:, ::-1], (1, 2)),
        EXACT,
        "f",
    ),
    "scatter": (
        lambda x: tfb.scatter_nd([[0]] * x.shape[1], x.T, [1, x.shape[0]]).T,
        lambda x: x.sum(1)[:, None],
        EXACT,
        "f",
    ),
}
DOTS: Mapping[str, Case] = {
    "matmul": Case(
        lambda x, y: _flatten(x[:, None, :] @ y[:, :, None]),
        _dot_rows,
        "ff",
        relative_error(0, 2.5),
    ),
    "einsum": Case(
        lambda x, y: tfb.einsum("ij,ij->i", x, y), _dot_rows, "ff", relative_error(0, 2.5)
    ),
    "whole": Case(lambda x, y: tfb.einsum("ij,ij->i", x, y), _dot_rows, "ii"),
    "mixed": Case(
        lambda x, y: tfb.einsum("ij,ij->i", x, y), _dot_rows, "fi", relative_error(0, 2.5)
    ),
    "matvec": Case(
        lambda x, y: tfb.matvec(x, y[0]), lambda x, y: x @ y[0], "ff", relative_error(0, 2.5)
    ),
    "tensordot": Case(
        lambda x, y: tfb.tensordot(x, y[0], 1), lambda x, y: x @ y[0], "ff", relative_error(0, 2.5)
    ),
    "convolution": Case(
        lambda x, y: _flatten(
            tfb.conv2d(_as_cells(x), tfb.reshape(y[0], [1, y.shape[1], 1, 1]), bias=np.array([1.0]))
        ),
        lambda x, y: x @ y[0] + 1,
        "ff",
        relative_error(0, 3),
    ),
}


def _row_cases(table: Mapping[str, Row], size: int) -> dict[str, Case]:
    return {
        f"{kind}{size} {name}": Case(private, plain, kind, off, (size,))
        for name, (private, plain, off, kinds) in table.items()
        if size > 1 or "sample" not in name  # (one value has no sample variance)
        for kind in kinds
    }


CASES: dict[str, Case] = {
    **{f"f {name}": case for name, case in real_cases().items()},
    **{f"i {name}": case for name, case in _integer_cases().items()},
    **{f"{case.kinds} {name}": case for name, case in PAIRS.items()},
    **_row_cases(SHORT, 3),
    **{name: case for size in (1, 3, 257, 5000) for name, case in _row_cases(LONG, size).items()},
    **{
        f"{case.kinds}{size} {name}": replace(case, shape=(size,))
        for size in (3, 257, 5000)
        for name, case in DOTS.items()
    },
    "ff4 attention": Case(_private_attention, _plain_attention, "ff", _attended_off, (4,)),
}

"""Operations on elements with plaintext references, for test_edges.py."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import scipy.special as sp

from tests.arrays.edges import ULP, Case, Real, relative_error
from tests.arrays.simulated import tfb

NAN = np.nan
EXACT, ROOT = relative_error(0, 0), relative_error(2.0**-20, 1.3)


def use_doubles(f: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of SciPy, in double precision."""
    return lambda x: f(np.asarray(x, np.float64))


def weighted_error(p: Any, x: Any) -> Any:
    """Return the error of a public factor of 24 bits, at least 2^-41, and of a truncation."""
    return 2 * ULP + np.abs(p) * 2.0**-23 + np.abs(x) * 2.0**-41


def power_error(p: Any, x: Any, y: Any = 2) -> Any:
    """Return the error of e^(y ln(x))."""
    return np.abs(p) * ((2 * np.abs(y) + 3) * ULP + np.abs(y) * 2.0**-18) + 3 * ULP


def squaring_error(n: int) -> Callable[..., Any]:
    """Return the error of a power by repeated squaring."""
    return lambda p, x: 8 * n * ULP * np.maximum(np.abs(x), 1) ** (n - 1)


def plain_remainder(x: Any, y: Any) -> Any:
    """Compute NumPy's remainder, without rounding before it."""
    return x - y * np.floor(x / y)


def plain_root(x: Any) -> Any:
    """Compute square roots; a rounding error below 0 counts as 0."""
    return np.where((x < 0) & (x >= -8 * ULP), 0, np.sqrt(x))


def plain_softmax(x: Any) -> Any:
    powers = np.exp(x - x.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


# ---- single reals

SMOOTH: Mapping[str, tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]]] = {
    "relu": (tfb.relu, lambda x: np.maximum(x, 0), EXACT),
    "relu_derivative": (tfb.relu_derivative, lambda x: x >= 0, EXACT),
    "leaky_relu": (tfb.leaky_relu, lambda x: np.where(x > 0, x, Real(0.2) * x), weighted_error),
    "sigmoid": (tfb.sigmoid, use_doubles(sp.expit), relative_error(0, 2.2)),
    "tanh": (tfb.tanh, use_doubles(np.tanh), relative_error(0, 2.2)),
    "erf": (tfb.erf, use_doubles(sp.erf), relative_error(0, 3.2)),
    "gelu": (tfb.gelu, use_doubles(lambda x: x * sp.ndtr(x)), relative_error(0, 3.2)),
    "silu": (tfb.silu, use_doubles(lambda x: x * sp.expit(x)), relative_error(0, 2.2)),
    "abs": (tfb.abs, np.abs, EXACT),
    "sign": (tfb.sign, np.sign, EXACT),
    "log": (tfb.log, np.log, relative_error(0, 1.2 + 2.0**-18 / ULP)),
    "sqrt": (tfb.sqrt, plain_root, ROOT),
    "rsqrt": (tfb.rsqrt, lambda x: np.where(x > 0, 1 / np.sqrt(x), NAN), ROOT),
    "reciprocal": (tfb.reciprocal, lambda x: 1 / x, ROOT),
}
OTHERS: Mapping[str, tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]]] = {
    "negative": (lambda x: -x, lambda x: -x, EXACT),
    "exp": (tfb.exp, np.exp, relative_error(2.0**-28, 1.5)),
    "sin": (tfb.sin, np.sin, lambda p, x: 2.2 * ULP + 2.0**-46 * np.abs(x)),
    "cos": (tfb.cos, np.cos, lambda p, x: 2.2 * ULP + 2.0**-46 * np.abs(x)),
    "floor": (tfb.floor, np.floor, EXACT),
    "ceil": (tfb.ceil, np.ceil, EXACT),
    "round": (tfb.round, np.rint, EXACT),
    "square": (tfb.square, np.square, relative_error(0, 2)),
    "x * x": (lambda x: x * x, np.square, relative_error(0, 2)),
    "x / x": (lambda x: x / x, lambda x: x / x, ROOT),
    **{
        f"power {n}": (lambda x, n=n: x**n, lambda x, n=n: x**n, squaring_error(n))
        for n in (1, 2, 3, 7, 64)
    },
    "power -1": (lambda x: x**-1, lambda x: 1 / x, ROOT),
    "power 0.5": (lambda x: x**0.5, plain_root, ROOT),
    "power 1.5": (lambda x: x**1.5, lambda x: np.where(x > 0, x ** Real(1.5), NAN), power_error),
    "base 2": (lambda x: 2.0**x, lambda x: Real(2) ** x, lambda p, x: power_error(p, 1, x)),
    "base 1e6": (lambda x: 1e6**x, lambda x: Real(1e6) ** x, lambda p, x: power_error(p, 1, 8 * x)),
    "polyval": (
        lambda x: tfb.polyval([0.5, -1.0, 2.0], x),
        lambda x: x * x / 2 - x + 2,
        lambda p, x: 2 * ULP + x * x * 2.0**-24,
    ),
    "polyval 1e9": (
        lambda x: tfb.polyval([1e9, 1.0], x),
        lambda x: Real(1e9) * x + 1,
        weighted_error,
    ),
    "cast 8": (lambda x: tfb.cast(x, 8), lambda x: x, relative_error(0, 2.0**8)),
    "cast exact": (lambda x: tfb.cast(x, 8, "exact"), lambda x: x, relative_error(0, 2.0**7)),
    "cast 24": (lambda x: tfb.cast(x, 24), lambda x: x, EXACT),
    "cast 61": (lambda x: tfb.cast(x, 61), lambda x: x, EXACT),
    "astype int": (lambda x: x.astype(int), np.trunc, EXACT),
    "bitcast": (lambda x: tfb.bitcast(x, 20), lambda x: x / 16, EXACT),
    "in_range": (lambda x: tfb.in_range(x, 31), lambda x: (x >= -(2.0**14)) & (x < 2.0**14), EXACT),
    "where": (
        lambda x: np.where(x > 0, x, 7e13) * 2,
        lambda x: np.where(x > 0, x, 7e13) * 2,
        EXACT,
    ),
    "pad": (
        lambda x: tfb.pad(x.reshape([-1, 1]), [[0, 0], [0, 1]], constant_values=1e9) * 1e3,
        lambda x: np.stack([x, 0 * x + 1e9], 1) * 1e3,
        EXACT,
    ),
    "otherwise": (
        lambda x: tfb.divide(1.0, x, otherwise=5.0),
        lambda x: np.where(x == 0, 5, 1 / x),
        ROOT,
    ),
    "log otherwise": (
        lambda x: tfb.log(x, otherwise=-20.0),
        lambda x: np.where(x <= 0, -20, np.log(x)),
        SMOOTH["log"][2],
    ),
    "leaky_relu 1e9": (
        lambda x: tfb.leaky_relu(x, 1e9),
        lambda x: np.where(x > 0, x, Real(1e9) * x),
        weighted_error,
    ),
    "add_n": (
        lambda x: tfb.add_n([x, np.full(x.shape, 3e13), np.full(x.shape, 3e13)]),
        lambda x: x + Real(6e13),
        EXACT,
    ),
    "clip to 5e12": (lambda x: np.clip(x, -1, 5e12), lambda x: np.clip(x, -1, 5e12), EXACT),
    "clip in 31 bits": (
        lambda x: tfb.clip_by_value(x, -1.0, 2e4, bits=31),
        lambda x: np.clip(x, -1, 2e4),
        EXACT,
    ),
    "atan2 1": (
        lambda x: tfb.atan2(x, 1.0),
        np.arctan,
        lambda p, x: 4 * ULP + np.abs(p) * 2.0**-19,
    ),
    "divide by several": (
        lambda x: tfb.stack([x, x], 1) // np.array([7.0, -1e6]),
        lambda x: np.floor(np.stack([x / 7, x / -1e6], 1)),
        EXACT,
    ),
}
# A public number d on either side, for (x, d).
BY_PUBLIC: Mapping[str, tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]]] = {
    "x // d": (lambda x, d: x // d, lambda x, d: np.floor(x / d), EXACT),
    "x % d": (lambda x, d: x % d, plain_remainder, EXACT),
    "x * d": (lambda x, d: x * d, lambda x, d: x * d, weighted_error),
    "x / d": (lambda x, d: x / d, lambda x, d: x / d, weighted_error),
    "d / x": (
        lambda x, d: d / x,
        lambda x, d: d / x,
        lambda p, x: 1.3 * ULP + np.abs(p) * 2.0**-20 + ULP / 2 / np.abs(x),
    ),
    "d // x": (lambda x, d: d // x, lambda x, d: np.floor(d / x), EXACT),
    "x + d": (lambda x, d: x + d, lambda x, d: x + d, EXACT),
    "d - x": (lambda x, d: d - x, lambda x, d: d - x, EXACT),
    "x < d": (lambda x, d: x < d, lambda x, d: x < d, EXACT),
    "max": (lambda x, d: np.maximum(x, d), np.maximum, EXACT),
}
NUMBERS = (7.0, -1024.0, 0.5, 1e6, -3e9)
BITS = (2, 20, 31)


def real_cases() -> dict[str, Case]:
    cases = {
        name: Case(private, plain, off=off)
        for name, (private, plain, off) in {**SMOOTH, **OTHERS}.items()
    }
    for name, (private, plain, off) in SMOOTH.items():
        for bits in BITS:
            cases[f"{name} in {bits} bits"] = Case(
                lambda x, f=private, b=bits: f(x, bits=b), plain, off=off
            )
    for name, (private, plain, off) in BY_PUBLIC.items():
        more = {"x + d": (*NUMBERS, 7e13, -7e13), "d // x": NUMBERS[:-1]}  # (refused)
        for d in more.get(name, NUMBERS):
            cases[name.replace("d", f"{d:g}")] = Case(
                lambda x, f=private, d=d: f(x, d), lambda x, f=plain, d=d: f(x, Real(d)), off=off
            )
    return cases


# ---- two operands

PAIRS: Mapping[str, Case] = {
    "add": Case(lambda x, y: x + y, lambda x, y: x + y, "ff"),
    "subtract": Case(lambda x, y: x - y, lambda x, y: x - y, "ff"),
    "multiply": Case(lambda x, y: x * y, lambda x, y: x * y, "ff", relative_error(0, 2)),
    "divide": Case(lambda x, y: x / y, lambda x, y: x / y, "ff", ROOT),
    "divide unsigned": Case(
        lambda x, y: tfb.divide(x, y, signed=False),
        lambda x, y: np.where(y > 0, x / y, NAN),
        "ff",
        ROOT,
    ),
    "less": Case(lambda x, y: x < y, np.less, "ff"),
    "greater_equal": Case(lambda x, y: x >= y, np.greater_equal, "ff"),
    "equal": Case(lambda x, y: x == y, np.equal, "ff"),
    "maximum": Case(np.maximum, np.maximum, "ff"),
    "minimum": Case(np.minimum, np.minimum, "ff"),
    "where": Case(lambda x, y: np.where(x < y, x, y) * 2, lambda x, y: np.minimum(x, y) * 2, "ff"),
    "atan2": Case(
        np.arctan2,
        lambda x, y: np.where((x == 0) & (y == 0), 0, np.arctan2(x, y)),
        "ff",
        lambda p, x, y: 4.2 * ULP + np.abs(p) * 2.0**-19,
    ),
    "power": Case(lambda x, y: x**y, lambda x, y: np.where(x > 0, x**y, NAN), "ff", power_error),
    "floordiv": Case(lambda x, y: x // y, lambda x, y: np.floor(x / y), "ff"),
    "floormod": Case(lambda x, y: x % y, plain_remainder, "ff"),
    "add_n": Case(lambda x, y: tfb.add_n([x, y, x]), lambda x, y: 2 * x + y, "ff"),
    "clip": Case(
        lambda x, y: tfb.clip_by_value(x, -1.0, y),
        lambda x, y: np.minimum(np.maximum(x, -1), y),
        "ff",
    ),
    "stack": Case(
        lambda x, y: tfb.stack([x, y], 1) * tfb.concat([x[:, None], y[:, None]], 1),
        lambda x, y: np.stack([x * x, y * y], 1),
        "ff",
        relative_error(0, 2),
    ),
    "update": Case(
        lambda x, y: tfb.tensor_scatter_nd_update(x, [[0]], y[:1]) * 3.0,
        lambda x, y: 3 * np.concatenate([y[:1], x[1:]]),
        "ff",
    ),
    "mixed product": Case(lambda x, y: x * y, lambda x, y: x * y, "fi", relative_error(0, 2)),
    "mixed sum": Case(lambda x, y: x + y, lambda x, y: x + y, "fi"),
    "mixed quotient": Case(lambda x, y: x / y, lambda x, y: x.astype(Real) / y, "if", ROOT),
    "mixed order": Case(lambda x, y: x < y, np.less, "fi"),
    "mixed choice": Case(
        lambda x, y: np.where(x > 0, x, y), lambda x, y: np.where(x > 0, x, y), "fi"
    ),
    "mixed power": Case(
        lambda x, y: x**y, lambda x, y: np.where(x == 0, NAN, x**y), "fi", power_error
    ),
    "truth times": Case(lambda b, x: b * x, lambda b, x: b * x, "bf"),
    "truth plus": Case(lambda b, x: b + x, lambda b, x: b + x, "bi"),
    "truth over": Case(lambda b, x: b / x, lambda b, x: b / x, "bf", ROOT),
    "truth and": Case(lambda b, x: b & x, np.logical_and, "bb"),
    "whole sum": Case(lambda x, y: x + y, lambda x, y: x + y, "ii"),
    "whole product": Case(lambda x, y: x * y, lambda x, y: x * y, "ii"),
    "whole order": Case(lambda x, y: x < y, np.less, "ii"),
    "whole equal": Case(lambda x, y: x == y, np.equal, "ii"),
    "whole maximum": Case(np.maximum, np.maximum, "ii"),
    "whole floor": Case(
        lambda x, y: x // y, lambda x, y: np.floor(x.astype(Real) / np.where(y == 0, NAN, y)), "ii"
    ),
    "whole rest": Case(
        lambda x, y: x % y,
        lambda x, y: np.where(y == 0, NAN, np.mod(x, y + (y == 0)).astype(Real)),
        "ii",
    ),
    "whole words": Case(lambda x, y: (x & y) + (x ^ y), lambda x, y: (x & y) + (x ^ y), "ii"),
    "whole clip": Case(
        lambda x, y: tfb.clip_by_value(x, -5, y),
        lambda x, y: np.minimum(np.maximum(x, -5), y),
        "ii",
    ),
}

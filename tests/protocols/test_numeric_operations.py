"""Rounding and remainders, words of bits, scans, statistics and elementary functions."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import tensorflow as tf

import tfe_bench as tfe
from tests.protocols.test_functional import FIXED, ULP, Array, Case, F, check_functions, draw_reals
from tests.protocols.test_functional_refusals import refuse_all
from tfe_bench.protocols.session.sharing import Shared

INTEGERS = tfe.FixedPoint(0)
MOST = 2**63 - 1
ENDS = np.array([0, 1, -1, 2, -2, 2**31, -(2**31), 2**62, -(2**62), MOST, -MOST, -MOST - 1])


def wrap_integers(values: Any) -> Array:
    """Return Python integers modulo 2^64, as int64."""
    flat = [(int(v) + MOST + 1) % 2**64 - MOST - 1 for v in np.ravel(values)]
    return np.array(flat, np.int64).reshape(np.shape(values))


def test_rounding_is_exact_and_halves_go_to_the_even_number(rng: np.random.Generator) -> None:
    near = (np.arange(-12, 13)[:, None] / 4 + np.array([-ULP, 0, ULP])).ravel()
    large = rng.integers(-(2**61), 2**61, 40)
    x = np.concatenate([near, large * ULP, [2.0**45 - 0.5, 0.5 - 2.0**44]])
    cases: list[Case] = [
        (tfe.floor, np.floor, 0),
        (tfe.ceil, np.ceil, 0),
        (tfe.round, np.rint, 0),
        (lambda x: tfe.round(tfe.cast(x < 0)), lambda x: x < 0, 0),
        (lambda x: tfe.floor(tfe.cast(x < 0, 48)), lambda x: x < 0, 0),
    ]
    check_functions(cases, x, dealer=int(rng.integers(3)))


def test_division_with_a_remainder_is_exact(rng: np.random.Generator) -> None:
    top = 2**30 - 1
    x = np.array([0, 1, -1, top, -top, 6, 7, -7, -8, *rng.integers(-top, top, 30)])
    y = np.where(rng.random(x.size) < 0.5, rng.integers(1000, top, x.size), 1 + x % 999)
    y = np.where(np.abs(x // y) < 2**20, y, 2**12) * rng.choice([-1, 1], x.size)
    wide = rng.integers(-(2**61), 2**61, x.size)
    divisors = [1, -1, 2, 3, -7, 10**9, 2**31 + 11, -(2**40), 3**38]
    cases: list[Case] = [
        case
        for d in divisors
        for case in (
            (lambda x, y, w, d=d: x // d, lambda x, y, w, d=d: x // d, 0),
            (lambda x, y, w, d=d: x % d, lambda x, y, w, d=d: x % d, 0),
        )
    ]
    cases += [
        (lambda x, y, w: tfe.floor_div(x, y), lambda x, y, w: x // y, 0),
        (lambda x, y, w: tfe.mod(x, y, bits=60), lambda x, y, w: x % y, 0),
        (lambda x, y, w: tfe.floormod(x, abs(y), signed=False), lambda x, y, w: x % abs(y), 0),
        (lambda x, y, w: 5000 // y, lambda x, y, w: 5000 // y, 0),
        (lambda x, y, w: x[:3] % [5, -3, 4], lambda x, y, w: x[:3] % [5, -3, 4], 0),
        (lambda x, y, w: w // 2**20, lambda x, y, w: w // 2**20, 0),
        (lambda x, y, w: w % 2**50, lambda x, y, w: w % 2**50, 0),
        (lambda x, y, w: tfe.floormod(x, [[9]]), lambda x, y, w: x[None] % 9, 0),
        (lambda x, y, w: tfe.floordiv(x % 8, 3, bits=4), lambda x, y, w: x % 8 // 3, 0),
    ]
    check_functions(cases, x, y, wide, dealer=int(rng.integers(3)), fixed=INTEGERS)
    # reals: as encoded
    v, w = x * ULP, y * ULP
    third = round(2**F / 3) * ULP
    cases = [
        (lambda v, w: v // w, lambda v, w: v // w, 0),
        (lambda v, w: v % w, lambda v, w: v % w, 0),
        (lambda v, w: v // (1 / 3), lambda v, w: v // third, 0),
        (lambda v, w: v % -2.5, lambda v, w: v % -2.5, 0),
    ]
    check_functions(cases, v, w, dealer=int(rng.integers(3)))


NINE = np.arange(9)


def _bits_3_to_40(x: Any, y: Any, s: Any) -> Any:
    return x >> 3 & (1 << 37) - 1


def _permute_values(bits: Any, of: Any) -> Any:
    """Pass eight bits through NumPy's and TensorFlow's operations that move elements."""
    private = of is tfe
    parts = of.split(of.reshape(bits, [2, 4]), 2, axis=1)
    joined = (of.concat if private else np.concatenate)([parts[1], parts[0][:, ::-1]], axis=1)
    rows = of.stack([joined, np.ones((2, 4), bool), of.transpose(of.transpose(joined))])
    wide = of.broadcast_to(of.expand_dims(rows, 1), [3, 2, 2, 4])
    wide = of.tile(tfe.gather(wide, [2, 0], axis=0) if private else wide[[2, 0]], [1, 1, 2, 1])
    wide = tfe.reverse(wide, [3]) if private else wide[..., ::-1]
    return of.pad(of.squeeze(wide[:, :1], 1), [[0, 0], [1, 0], [0, 2]])


def test_words_of_bits(rng: np.random.Generator) -> None:
    x = np.concatenate([ENDS, rng.integers(-MOST, MOST, 12)])
    y = rng.permutation(x)
    small = np.append(rng.integers(-128, 128, 6), [-128, 127])
    pairs: list[tuple[Callable[..., Any], Callable[..., Any]]] = [
        (tfe.bitwise_and, np.bitwise_and),
        (tfe.bitwise_or, np.bitwise_or),
        (tfe.bitwise_xor, np.bitwise_xor),
    ]
    cases: list[Case] = [
        (lambda x, y, s: tfe.bitwise_and(y, x[:2, None]), lambda x, y, s: y & x[:2, None], 0),
        (lambda x, y, s: tfe.bitwise_xor(x, y, 64), lambda x, y, s: x ^ y, 0),
        (lambda x, y, s: tfe.bitwise_or(s, small[::-1], 8), lambda x, y, s: s | small[::-1], 0),
    ]
    for f, g in pairs:
        cases += [
            (lambda x, y, s, f=f: f(s, s[:1], 8), lambda x, y, s, g=g: g(s, s[:1]), 0),
            (lambda x, y, s, f=f: f(-256, x), lambda x, y, s, g=g: g(x, -256), 0),
        ]
    cases += [
        (lambda x, y, s, m=m: tfe.bitwise_and(x, m), lambda x, y, s, m=m: x & m, 0)
        for m in (0, -1, 1, 0x30F0, MOST, -MOST - 1)
    ]
    cases += [
        (
            lambda x, y, s, k=k: tfe.cast(tfe.bit_extract(x, k)),
            lambda x, y, s, k=k: x >> k & 1,
            0,
        )
        for k in (0, 1, 31, 63)
    ]
    cases += [
        (lambda x, y, s: tfe.pack_bits(tfe.unpack_bits(x)), lambda x, y, s: x, 0),
        (lambda x, y, s: tfe.pack_bits(tfe.unpack_bits(x)[..., 3:40]), _bits_3_to_40, 0),
        (
            lambda x, y, s: tfe.cast(tfe.unpack_bits(s, 9)),
            lambda x, y, s: s[:, None] >> NINE & 1,
            0,
        ),
        (lambda x, y, s: tfe.cast(tfe.unpack_bits(s, 1)), lambda x, y, s: s[:, None] & 1, 0),
        (
            lambda x, y, s: tfe.cast(_permute_values(s < 0, tfe)),
            lambda x, y, s: _permute_values(s < 0, np) * 1,
            0,
        ),
        (lambda x, y, s: tfe.invert(x), lambda x, y, s: ~x, 0),
        (
            lambda x, y, s: tfe.popcount(x),
            lambda x, y, s: [int(v % 2**64).bit_count() for v in x.astype(object)],
            0,
        ),
        (
            lambda x, y, s: tfe.popcount(s, 8),
            lambda x, y, s: [int(v % 256).bit_count() for v in s],
            0,
        ),
        *(
            (lambda x, y, s, k=k: tfe.left_shift(x, k), lambda x, y, s, k=k: x << k, 0)
            for k in (0, 1, 63)
        ),
        *(
            (
                lambda x, y, s, k=k: tfe.right_shift(s * 2**54 + 5, k),
                lambda x, y, s, k=k: (s * 2**54 + 5) >> k,
                0,
            )
            for k in (0, 1, 48, 49, 63)
        ),
    ]
    check_functions(cases, x, y, small, dealer=int(rng.integers(3)), fixed=INTEGERS)


def test_products_and_running_values(rng: np.random.Generator) -> None:
    x = draw_reals(rng, 2, 5, 3, scale=2)
    i = rng.integers(-MOST, MOST, (7, 2))
    product = 5 * 2.0**5  # of five factors below 2
    cases: list[Case] = [
        (tfe.reduce_prod, np.prod, 30 * 2.0**14),
        (lambda x: tfe.reduce_prod(x, 1), lambda x: x.prod(1), product),
        (
            lambda x: tfe.reduce_prod(x, [-1, 0], True),
            lambda x: x.prod((0, 2), keepdims=True),
            6 * 2.0**6,
        ),
        (lambda x: tfe.reduce_prod(x[:, :0], 1), lambda x: x[:, :0].prod(1), 0),
        *(
            (
                lambda x, e=e, r=r: tfe.cumprod(x, 1, e, r),
                lambda x, e=e, r=r: tf.math.cumprod(x, 1, e, r).numpy(),
                product,
            )
            for e in (False, True)
            for r in (False, True)
        ),
        (lambda x: tfe.cumprod(x[0, 0, :0]), lambda x: x[0, 0, :0], 0),
        (lambda x: tfe.cummax(x, -2), lambda x: np.maximum.accumulate(x, 1), 0),
        (
            lambda x: tfe.cummax(x, 2, True, bits=20),
            lambda x: np.maximum.accumulate(x[..., ::-1], 2)[..., ::-1],
            0,
        ),
    ]
    check_functions(cases, x, dealer=int(rng.integers(3)))
    with np.errstate(over="ignore"):
        cases = [
            (lambda i: tfe.reduce_prod(i, 0), lambda i: i.prod(0), 0),
            (lambda i: tfe.cumprod(i), lambda i: i.cumprod(0), 0),
            (lambda i: i**0, lambda i: np.ones_like(i), 0),
            (lambda i: i**3, lambda i: i**3, 0),
        ]
        check_functions(cases, i, dealer=int(rng.integers(3)), fixed=INTEGERS)


def test_norms_and_moments(rng: np.random.Generator) -> None:
    x = draw_reals(rng, 3, 7, 4, scale=50)
    x[:, :, 3] = -12.5  # no variance
    x[0, :, 0] = ULP * rng.integers(-3, 4, 7)  # and a small one
    long = np.linalg.norm(x)
    cases: list[Case] = [
        (lambda x: tfe.norm(x, 2), np.linalg.norm, 1.1 + long * 2.0**-20 / ULP),
        (
            lambda x: tfe.norm(x, axis=[0, 2], keepdims=True),
            lambda x: np.linalg.norm(x, axis=(0, 2), keepdims=True),
            1.1 + long * 2.0**-20 / ULP,
        ),
        (lambda x: tfe.norm(x, 1, 1), lambda x: np.abs(x).sum(1), 0),
        (lambda x: tfe.norm(x, np.inf), lambda x: np.abs(x).max(), 0),
        (lambda x: tfe.reduce_variance(x, 1), lambda x: x.var(1), 3 + 1000 * 7 * 2.0**-15),
        (
            lambda x: tfe.reduce_variance(x, [0, 1], True),
            lambda x: x.var((0, 1), keepdims=True),
            3 + 1000 * 21 * 2.0**-15,
        ),
        (lambda x: tfe.reduce_std(x, 1), lambda x: x.std(1), 3 + 50 * 2.0**-19 / ULP),
        (lambda x: tfe.reduce_std(x[0, 0, 0]), lambda x: 0.0, 3),
    ]
    check_functions(cases, x, dealer=int(rng.integers(3)))
    # a mean of integers is not an integer
    i = rng.integers(-(2**31), 2**31, (3, 4, 4, 1))
    cases = [
        (lambda i: tfe.reduce_mean(i, 0), lambda i: i.mean(0), 1 + 2.0**31 * 3 * 2.0**-31 / ULP),
        (lambda i: tfe.reduce_mean(i), lambda i: i.mean(), 1 + 2.0**31 * 48 * 2.0**-31 / ULP),
        (lambda i: tfe.reduce_mean(i, 1), lambda i: i.mean(1), 0),
        (lambda i: tfe.reduce_mean(i[:1], 0), lambda i: i[0] * 1.0, 0),
        (
            lambda i: tfe.avg_pool2d(i, 2),
            lambda i: i.reshape(3, 2, 2, 2, 2, 1).mean((2, 4)),
            0,
        ),
    ]
    check_functions(cases, i, dealer=int(rng.integers(3)), fixed=INTEGERS)


def test_counts(rng: np.random.Generator) -> None:
    i = rng.integers(-2, 6, (3, 8))
    i[0, :3] = [2**61, -(2**61), 2**40]
    w = rng.integers(-9, 9, (3, 8))
    real = w / 4

    def counted(i: Array, weights: Any = None, n: int = 4) -> Array:
        inside = (i >= 0) & (i < n)
        weight = None if weights is None else np.broadcast_to(weights, i.shape)[inside]
        return np.bincount(i[inside], weight, n)

    def by_rows(i: Array, n: int) -> Array:
        return np.stack([counted(row, None, n) for row in i])

    cases: list[Case] = [
        (lambda i, w: tfe.bincount(i, maxlength=4), lambda i, w: counted(i), 0),
        (lambda i, w: tfe.bincount(i, w, 2, 4), lambda i, w: counted(i, w), 0),
        (lambda i, w: tfe.bincount(i, real, None, 4), lambda i, w: counted(i, real), 0),
        (lambda i, w: tfe.bincount(i, maxlength=6, axis=-1), lambda i, w: by_rows(i, 6), 0),
        (
            lambda i, w: tfe.bincount(w, maxlength=1, axis=0, bits=6),
            lambda i, w: counted(w, None, 1),
            0,
        ),
        (lambda i, w: tfe.bincount(i[:, :0], maxlength=3), lambda i, w: np.zeros(3), 0),
        (
            lambda i, w: tfe.histogram_fixed_width(w, [-5, 5], 7),
            lambda i, w: tf.histogram_fixed_width(w.ravel(), [-5, 5], 7).numpy(),
            0,
        ),
    ]
    check_functions(cases, i, w, dealer=int(rng.integers(3)), fixed=INTEGERS)
    x = np.append(draw_reals(rng, 50, scale=3), [-1.0, 2.0, 0.5, 2.0**40, -(2.0**40)])

    def binned(x: Array, low: Fraction, high: Fraction, n: int) -> Array:
        places = [math.floor(n * (Fraction(v) - low) / (high - low)) for v in x]
        return np.bincount(np.clip(places, 0, n - 1), minlength=n)

    cases = [
        (
            lambda x, a=a, b=b, n=n: tfe.histogram_fixed_width(x, [a, b], n),
            lambda x, a=a, b=b, n=n: binned(x, Fraction(a), Fraction(b), n),
            0,
        )
        for a, b, n in ((-1.0, 2.0, 6), (-1.0, 2.0, 7), (0.1, 0.2, 3), (0.0, 1.0, 1))
    ]
    check_functions(cases, x, dealer=int(rng.integers(3)))


def test_angles_erf_and_powers(rng: np.random.Generator) -> None:
    turns = np.rint(np.arange(-9, 10) * math.pi / 4 / ULP) * ULP
    near = (turns[:, None] + np.array([-ULP, 0, ULP])).ravel()
    x = np.concatenate(
        [near, draw_reals(rng, 200, scale=20), [2.0**14 - ULP, ULP - 2.0**14, 2.0**44]]
    )
    y = np.concatenate([rng.permutation(near), draw_reals(rng, 199, scale=0.01), [0, ULP, 7, -7]])
    p = np.abs(x) + ULP
    e = np.clip(y, -3, 3)
    layer = np.abs(x) < 2.0**14
    safe = np.where(layer, x, 1.0)
    far = np.abs(x) * 2.0 ** (F - 62) / ULP
    error = np.vectorize(math.erf)(x)

    def relative(y: Array, part: Any, ulp: float) -> Any:
        return ulp + np.abs(y) * part / ULP

    power = np.minimum(p**e, np.exp(31.7))
    steps = (1.4 * np.abs(e) + 1.2) * ULP
    inverse = np.where(x == 0, 0, 1 / np.where(x == 0, 1, x))
    cases: list[Case] = [
        (lambda x, y, p, e: tfe.sin(x), lambda x, y, p, e: np.sin(x), 2 + far),
        (lambda x, y, p, e: tfe.cos(x), lambda x, y, p, e: np.cos(x), 2 + far),
        (
            lambda x, y, p, e: tfe.atan2(y, safe),
            lambda x, y, p, e: np.arctan2(y, safe),
            4,
        ),
        (
            lambda x, y, p, e: tfe.atan2(tfe.where(layer, x, 1), y),
            lambda x, y, p, e: np.arctan2(safe, y),
            4,
        ),
        (lambda x, y, p, e: tfe.erf(x, 62), lambda x, y, p, e: error, 3),
        (lambda x, y, p, e: x**0, lambda x, y, p, e: np.ones_like(x), 0),
        (lambda x, y, p, e: x**-1, lambda x, y, p, e: inverse, relative(inverse, 2.0**-20, 1.2)),
        (
            lambda x, y, p, e: (abs(e) + 1) ** -3,
            lambda x, y, p, e: (np.abs(e) + 1) ** -3.0,
            3 * (1 + 1.2 + 2.0**-20 / ULP),
        ),
        (
            lambda x, y, p, e: p**0.5,
            lambda x, y, p, e: np.sqrt(p),
            relative(np.sqrt(p), 2.0**-20, 1.2),
        ),
        (
            lambda x, y, p, e: p**0.3,
            lambda x, y, p, e: p**0.3,
            relative(p**0.3, 1.65 * ULP, 1.2),
        ),
        (
            lambda x, y, p, e: tfe.pow(p, e),
            lambda x, y, p, e: power,
            np.where(power < np.exp(31), relative(power, steps, 1.2), np.inf),
        ),
        (
            lambda x, y, p, e: 2**e,
            lambda x, y, p, e: 2**e,
            relative(2**e, 1.5 * ULP, 1.2),
        ),
    ]
    check_functions(cases, x, y, p, e, dealer=int(rng.integers(3)))


def negative_bits(x: Shared) -> Shared:
    return tfe.cast(x < 0)


BAD: list[tuple[str, Callable[[Any], Any]]] = [
    ("floor", lambda x: tfe.floor(tfe.cast(x, 49))),
    ("round", lambda x: tfe.round(x < 0)),
    ("floordiv", lambda x: x // 0),
    ("floordiv", lambda x: x // 2.0**-20),
    ("floordiv", lambda x: tfe.floordiv(x, 3, bits=32)),
    ("floordiv", lambda x: tfe.floor_div(x, x, bits=61)),
    ("floormod", lambda x: x % "a"),
    ("floormod", lambda x: tfe.mod(x, negative_bits(x))),
    ("floormod", lambda x: negative_bits(x) % 0.5),
    ("bitwise_and", lambda x: tfe.bitwise_and(x, 1)),
    ("bitwise_and", lambda x: tfe.bitwise_and(negative_bits(x), 0.5)),
    ("bitwise_or", lambda x: tfe.bitwise_or(negative_bits(x), 2**63)),
    ("bitwise_xor", lambda x: tfe.bitwise_xor(negative_bits(x), x)),
    ("bitwise_xor", lambda x: tfe.bitwise_xor(negative_bits(x), 1, bits=65)),
    ("bit_extract", lambda x: tfe.bit_extract(negative_bits(x), 64)),
    ("bit_extract", lambda x: tfe.bit_extract(negative_bits(x), x)),
    ("unpack_bits", lambda x: tfe.unpack_bits(x)),
    ("unpack_bits", lambda x: tfe.unpack_bits(negative_bits(x), 65)),
    ("pack_bits", lambda x: tfe.pack_bits(x)),
    ("concat", lambda x: tfe.concat([x < 0, x], 0)),
    ("stack", lambda x: tfe.stack([x < 0, 0.5])),
    ("reshape", lambda x: tfe.reshape(x < 0, [7])),
    ("pad", lambda x: tfe.pad(x < 0, [[0, 1]], constant_values=2)),
    ("bitcast", lambda x: tfe.bitcast(x, 62)),
    ("bitcast", lambda x: tfe.bitcast(x < 0, 0)),
    ("popcount", lambda x: tfe.popcount(x)),
    ("popcount", lambda x: tfe.popcount(negative_bits(x), 1)),
    ("invert", lambda x: tfe.invert(x)),
    ("left_shift", lambda x: tfe.left_shift(negative_bits(x), -1)),
    ("right_shift", lambda x: tfe.right_shift(negative_bits(x), 64)),
    ("right_shift", lambda x: tfe.right_shift(negative_bits(x), [1])),  # type: ignore[arg-type]
    ("reduce_prod", lambda x: tfe.reduce_prod(x, 1)),
    ("cumprod", lambda x: tfe.cumprod(x, -2)),
    ("cummax", lambda x: tfe.cummax(x, bits=1)),
    ("norm", lambda x: tfe.norm(x, 3)),
    ("norm", lambda x: tfe.norm(tfe.reshape(x, [1, 3]), 1, [0, 1])),
    ("norm", lambda x: tfe.norm(negative_bits(x))),
    ("reduce_variance", lambda x: tfe.reduce_variance(negative_bits(x))),
    ("reduce_variance", lambda x: tfe.reduce_variance(tfe.cast(x, 25))),
    ("reduce_std", lambda x: tfe.reduce_std(x[:0])),
    ("bincount", lambda x: tfe.bincount(x, maxlength=3)),
    ("bincount", lambda x: tfe.bincount(negative_bits(x))),
    ("bincount", lambda x: tfe.bincount(negative_bits(x), maxlength=2**16 + 1)),
    ("bincount", lambda x: tfe.bincount(negative_bits(x), minlength=3, maxlength=2)),
    ("bincount", lambda x: tfe.bincount(negative_bits(x), [1, 2], maxlength=2)),
    ("bincount", lambda x: tfe.bincount(negative_bits(x), maxlength=2, axis=1)),
    ("histogram_fixed_width", lambda x: tfe.histogram_fixed_width(x, [1, 1])),
    ("histogram_fixed_width", lambda x: tfe.histogram_fixed_width(x, [0, np.inf])),
    ("histogram_fixed_width", lambda x: tfe.histogram_fixed_width(x, [0, 1], 0)),
    ("sin", lambda x: tfe.sin(negative_bits(x))),
    ("cos", lambda x: tfe.cos(tfe.cast(x, 17))),
    ("atan2", lambda x: tfe.atan2(x, x, bits=32)),
    ("atan2", lambda x: tfe.atan2(1.0, 2.0)),
    ("erf", lambda x: tfe.erf(tfe.cast(x, 7))),
    ("erf", lambda x: tfe.erf(x, 63)),
    ("pow", lambda x: x**65),
    ("pow", lambda x: x**-65),
    ("pow", lambda x: negative_bits(x) ** -1),
    ("pow", lambda x: negative_bits(x) ** 0.5),
    ("pow", lambda x: x ** [1, 2, 3]),
    ("pow", lambda x: x**np.nan),
    ("pow", lambda x: x ** negative_bits(x)),
    ("pow", lambda x: (-2) ** x),
    ("pow", lambda x: negative_bits(x) ** negative_bits(x)),
]


def test_what_does_not_fit_is_refused_by_name() -> None:
    assert FIXED.fractional_bits == F
    refuse_all(BAD, np.array([1.0, -2.0, 3.0]))

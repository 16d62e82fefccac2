"""Every operation that takes `bits` is right at every width that it takes, up to the edges of it.

`WIDTHS` has a row for each of them; those that only pass their width on are `BEHIND` one.  The
operations are found by their signatures, so that a new one without a row fails here.  By default
the widths are those where something changes; all of them are `pytest -m slow
tests/protocols/test_widths.py`.
"""

from __future__ import annotations

import importlib
import inspect
import math
import pkgutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any

import numpy as np
import pytest

import tfe_bench as tfe
from tfe_bench import models, protocols
from tfe_bench.cluster.simulate import simulate
from tfe_bench.errors import UsageError
from tfe_bench.protocols.functions import piecewise
from tfe_bench.protocols.nn import (
    activations,
    batch_norm,
    cross_entropy,
    gelu,
    linear,
    pool_gradient,
)
from tfe_bench.protocols.nn import relu as rectifier
from tfe_bench.protocols.ring import products, shapes
from tfe_bench.protocols.session.counting import Private, Tally, count
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import MaskedBits, Shared

Array = np.ndarray[Any, Any]
F = 16
ONE = 1 << F
ENCODED = 1 << 62  # ring units of everything that can be encoded
LIMITS = (-3, 5)  # of clip_by_value and of capped_relu, in ring units
KNOT = piecewise.EDGE << F
DROP = 7
ROWS = 24  # of logits
# where the largest constant of each stops to fit, and one opening to suffice
OF_GELU = (2, 19, 20, 47, 62)
OF_SIGMOID, OF_SOFTMAX = (2, 20, 21, 49, 62), (2, 19, 20, 48, 62)
POLYNOMIAL = [0.5, -1.25]


@dataclass(frozen=True)
class Row:
    """One operation.

    Attributes:
        least, most: the widths that it takes.
        inputs: (width, rng) -> its private operands, ring elements.
        run: (party, width, *operands) -> private numbers or bits.
        right: (width, *operands) -> what comes out, in ring units: floats, or exact integers.
        off: (right) -> the error of floats that its documentation states, in those units.
        some: of the widths, those that are tested by default; none: the least and the most.
        fraction: fractional bits of the operands.
        refused: widths that it does not take.
    """

    least: int
    most: int
    inputs: Callable[[int, np.random.Generator], list[Array]]
    run: Callable[..., Any]
    right: Callable[..., Array]
    off: Callable[[Array], Any] = lambda right: 0
    some: tuple[int, ...] = ()
    fraction: int = F
    refused: tuple[int, ...] = (1, 65)


# ---- operands


def below(top: int, rng: np.random.Generator, constants: Iterable[int] = ()) -> Array:
    """Ring elements with |x| < top: the edges, 0, powers of two, what is near constants, others."""
    top = min(top, ENCODED)
    near = {0, top // 2, top - 1, top - 2, *(1 << k for k in range(62)), *map(abs, constants)}
    near |= {e + d for e in near for d in (-1, 1)}
    edges = sorted(s * e for e in near for s in (-1, 1) if 0 <= e < top)
    return np.concatenate([np.array(edges, np.int64), rng.integers(1 - top, top, 16)])


def values(bits: int, rng: np.random.Generator) -> list[Array]:
    """Ring elements with |x| < 2^(bits-1)."""
    return [below(1 << (bits - 1), rng)]


def halves(bits: int, rng: np.random.Generator) -> list[Array]:
    """Ring elements with |x| < 2^(bits-2)."""
    return [below(1 << (bits - 2), rng)]


def pairs(bits: int, rng: np.random.Generator) -> list[Array]:
    """x and y, encoded, with |x - y| < 2^(bits-1)."""
    top = min(1 << (bits - 1), 2 * ENCODED - 2)
    apart = [s * d for d in (0, 1, 2, top // 2, top - 2, top - 1) if d < top for s in (-1, 1)]
    apart += [int(d) for d in rng.integers(1 - top, top, 16)]
    y = [-(d // 2) for d in apart]
    return [np.array([a + b for a, b in zip(apart, y, strict=True)]), np.array(y)]


def clipped(bits: int, rng: np.random.Generator) -> list[Array]:
    """Ring elements whose distance from both limits is below 2^(bits-1)."""
    low, high = LIMITS
    top = 1 << (bits - 1)
    x = below(top, rng, [low, high, top + low, top - high])
    return [x[np.maximum(np.abs(x - low), np.abs(x - high)) < min(top, ENCODED)]]


def rows(width: int) -> Callable[[int, np.random.Generator], list[Array]]:
    """[n, width], encoded, whose differences along a row are below 2^(bits-1)."""

    def made(bits: int, rng: np.random.Generator) -> list[Array]:
        top = min(1 << (bits - 1), 2 * ENCODED - 2)
        picks = [p % top for p in (0, 1, top // 2, top - 2, top - 1)]
        every = [[picks[i] for i in rng.integers(0, 5, width)] for _ in range(40)]
        every += [[picks[i] for i in (0, *[4] * (width - 1))], [picks[4]] * width]
        every += [[int(v) for v in rng.integers(0, top, width)] for _ in range(8)]
        return [np.array([[v - top // 2 for v in row] for row in every])]

    return made


def logits(
    classes: int, f: int, less: int = 0
) -> Callable[[int, np.random.Generator], list[Array]]:
    """[ROWS, classes] with |x| < 2^(bits-1) - less 2^f: the edges, and where a class stops to
    count."""

    def made(bits: int, rng: np.random.Generator) -> list[Array]:
        top = (1 << (bits - 1)) - (less << f)
        x = rng.choice(below(top, rng, [activations._cutoff(f)]), (ROWS, classes))
        x[0], x[1], x[2], x[3] = top - 1, 1 - top, 1 - top, 0
        x[2, -1] = top - 1
        few = min(top, 3 << f)
        x[4:10] = rng.integers(1 - few, few, (6, classes))
        return [x]

    return made


def labelled(bits: int, rng: np.random.Generator) -> list[Array]:
    """Logits of 5 classes, and a one-hot row of labels for each of them."""
    (x,) = logits(5, F, cross_entropy.CUTOFF)(bits, rng)
    return [x, np.eye(5, dtype=np.int64)[rng.integers(0, 5, ROWS)] << F]


def quotients(bits: int, rng: np.random.Generator) -> list[Array]:
    """x and y with |x|, |x / y| < 2^30 ring units and |y| < 2^bits."""
    y = below(1 << bits, rng)
    most = np.minimum(2.0**30 - 1, np.abs(y) * 2.0**-F * (2.0**30 - 2)).astype(np.int64)
    return [most * rng.choice([-1, 1], y.size), y]


def multiplied(bits: int, rng: np.random.Generator) -> list[Array]:
    """x and 1 with |x| <= 2^(bits-1+DROP) - 2^DROP."""
    x = below((((1 << (bits - 1)) - 1) << DROP) + 1, rng)
    return [x, np.ones_like(x)]


def four(bits: int, rng: np.random.Generator) -> list[Array]:
    """[n, 4] with |x| < 2^(bits-2)."""
    return [rng.choice(below(1 << (bits - 2), rng), (40, 4))]


def channels(bits: int, rng: np.random.Generator) -> list[Array]:
    """[8, 4] with |x| < 2^(bits-1), whose columns vary no more than the variance may."""
    top = (1 << (bits - 1)) - 1
    spread = min(top // 2, 8 * ONE)
    x = rng.integers(-spread, spread + 1, (8, 4))
    return [x + np.array([spread - top, top - spread, 0, 0])]


def activation_edges(f: int) -> list[int]:
    """Where sigmoid and tanh, a sigmoid with a fractional bit less, compare."""
    return [
        e for g in (f, f - 1) for e in (activations._cutoff(g), activations._cutoff(g) + (1 << g))
    ]


def gelu_edges(f: int) -> list[int]:
    """Where GELU compares."""
    step = gelu.bump(f).step
    return [step, 2 * step]


# ---- what is right, and how it is called


def sigmoid(v: Array) -> Array:
    t = np.exp(-np.abs(v))
    return np.asarray(np.where(v >= 0, 1, t) / (1 + t))


def normal(v: Array) -> Array:
    """The normal distribution, by its complement."""
    return np.asarray(np.vectorize(math.erfc, [float])(-v / math.sqrt(2)) / 2)


def slope(v: Array) -> Array:
    """Of GELU."""
    return np.asarray(normal(v) + v * np.exp(-v * v / 2) / math.sqrt(2 * math.pi))


def softmax(v: Array) -> Array:
    e = np.exp(v - v.max(-1, keepdims=True))
    return np.asarray(e / e.sum(-1, keepdims=True))


def loss(bits: int, x: Array, y: Array) -> Array:
    v = x / ONE
    log = np.log(np.exp(v - v.max(-1, keepdims=True)).sum(-1)) + v.max(-1)
    return np.asarray((log - (v * y / ONE).sum(-1)).sum() * 2.0**cross_entropy.INNER)


def ulp(count: float) -> Callable[[Array], Any]:
    return lambda right: count


def relative(part: float, count: float) -> Callable[[Array], Any]:
    return lambda right: np.abs(right) * part + count


def inverse(x: Array) -> Array:
    return np.where(x == 0, 0, ONE / np.where(x == 0, 1, x / ONE))


def positive(function: Callable[[Array], Array], otherwise: float = 0.0) -> Callable[..., Array]:
    def right(bits: int, x: Array) -> Array:
        return np.where(x > 0, function(np.where(x > 0, x, ONE) / ONE) * ONE, otherwise)

    return right


def divided(bits: int, x: Array, y: Array) -> Array:
    return np.where(y == 0, 0, x / np.where(y == 0, 1, y) * ONE)


def largest(bits: int, x: Array) -> Array:
    return np.asarray(x.max(-1))


def images(x: Shared) -> Shared:
    """Windows of 4 as images of one channel."""
    return shapes.reshape(x, [-1, 2, 2, 1])


def line(x: Shared) -> Shared:
    return shapes.reshape(x, [-1])


def pooled(p: Party, bits: int, x: Shared, relu: bool) -> Shared:
    found = pool_gradient.max_pool2d_with_choice(p, images(x), 2, 2, relu=relu, bits=bits)
    return line(found[0])


def normalised(p: Party, bits: int, x: Shared) -> Shared:
    gamma = replace(x.map(lambda a: a[0] * 0), fractional_bits=batch_norm.FACTOR)
    return batch_norm.normalise(p, x, gamma, bits=bits).centred


# ---- the rows


def activation(
    function: Callable[[Shared, int], Shared], right: Callable[[Array], Array], f: int
) -> Row:
    return Row(
        2,
        62,
        lambda b, rng: [below(1 << (b - 1), rng, activation_edges(f))],
        lambda p, b, x: function(x, b),
        lambda b, x: right(x * 2.0**-f) * 2.0**f,
        ulp(2),
        OF_SIGMOID if f == F else (f + 4,),
        f,
        (1, 63),
    )


LESS: dict[str, tuple[Callable[..., Any], Callable[[Array, Array], Array]]] = {
    "predicates.less": (tfe.less, np.less),
    "predicates.less_equal": (tfe.less_equal, np.less_equal),
    "predicates.greater": (tfe.greater, np.greater),
    "predicates.greater_equal": (tfe.greater_equal, np.greater_equal),
    "predicates.equal": (tfe.equal, np.equal),
    "predicates.not_equal": (tfe.not_equal, np.not_equal),
    "ranking.maximum": (tfe.maximum, np.maximum),
    "ranking.minimum": (tfe.minimum, np.minimum),
}

WIDTHS: dict[str, Row] = {
    **{
        name: Row(2, 64, pairs, lambda p, b, x, y, g=g: g(x, y, b), lambda b, x, y, h=h: h(x, y))
        for name, (g, h) in LESS.items()
    },
    "ranking.clip_by_value": Row(
        4,  # (the narrowest whose values reach both limits)
        64,
        clipped,
        lambda p, b, x: tfe.clip_by_value(x, LIMITS[0] / ONE, LIMITS[1] / ONE, b),
        lambda b, x: np.clip(x, *LIMITS),
    ),
    "ranking.sign": Row(
        2, 64, values, lambda p, b, x: tfe.sign(x, b), lambda b, x: np.sign(x) * ONE
    ),
    "operators.abs": Row(2, 64, halves, lambda p, b, x: tfe.abs(x, b), lambda b, x: np.abs(x)),
    "ranking.reduce_max": Row(
        2, 64, rows(3), lambda p, b, x: tfe.reduce_max(x, 1, bits=b), largest
    ),
    "ranking.reduce_min": Row(
        2, 64, rows(11), lambda p, b, x: tfe.reduce_min(x, 1, bits=b), lambda b, x: x.min(-1)
    ),
    "ranking.argmax": Row(
        2, 64, rows(3), lambda p, b, x: tfe.argmax(x, 1, b), lambda b, x: x.argmax(-1)
    ),
    "ranking.argmin": Row(
        2, 64, rows(11), lambda p, b, x: tfe.argmin(x, 1, b), lambda b, x: x.argmin(-1)
    ),
    "neural.relu": Row(
        2, 64, values, lambda p, b, x: tfe.relu(x, b), lambda b, x: np.maximum(x, 0)
    ),
    "neural.relu_derivative": Row(
        2, 64, values, lambda p, b, x: tfe.relu_derivative(x, b), lambda b, x: x >= 0
    ),
    "neural.leaky_relu": Row(
        2,
        39,
        values,
        lambda p, b, x: tfe.leaky_relu(x, bits=b),
        lambda b, x: np.where(x >= 0, x, 0.2 * x),
        lambda right: 1 + np.maximum(-right, 0) * 2.0**-24,
        refused=(1, 40),
    ),
    "neural.max_pool2d": Row(
        2, 64, rows(4), lambda p, b, x: line(tfe.max_pool2d(images(x), 2, bits=b)), largest
    ),
    **{
        f"neural.{name}, {f} fractional bits": activation(g, h, f)
        for name, g, h in (("sigmoid", tfe.sigmoid, sigmoid), ("tanh", tfe.tanh, np.tanh))
        for f in (8, F, 20)
    },
    **{
        f"neural.gelu, {f} fractional bits": Row(
            2,
            62,
            lambda b, rng, f=f: [below(1 << (b - 1), rng, gelu_edges(f))],  # type: ignore[misc]
            lambda p, b, x: tfe.gelu(x, b),
            lambda b, x, f=f: normal(x * 2.0**-f) * x,
            ulp(3),
            OF_GELU if f == F else (f + 4,),
            f,
            (1, 63),
        )
        for f in (8, F)
    },
    "gelu.slope": Row(
        21,
        62,
        lambda b, rng: [below(1 << (b - 1), rng, [5 * ONE])],
        lambda p, b, x: gelu.slope(p, x, b),
        lambda b, x: slope(x / ONE) * 2.0**piecewise.RESULT_BITS,
        ulp(2.0 ** (piecewise.RESULT_BITS - 9.5)),
        (21, 55, 56, 62),
        refused=(1, 20),
    ),
    **{
        f"neural.softmax, {classes} classes, {f} fractional bits": Row(
            2,
            62,
            logits(classes, f),
            lambda p, b, x: tfe.softmax(x, bits=b),
            lambda b, x, f=f: softmax(x * 2.0**-f) * 2.0**f,
            ulp(2),
            OF_SOFTMAX if (classes, f) == (3, F) else (f + 3,),
            f,
            (1, 63),
        )
        for classes, f in ((3, F), (12, F), (3, 8), (3, 20))
    },
    "elementary.log": Row(
        2,
        62,
        lambda b, rng: [below(1 << b, rng)],
        lambda p, b, x: tfe.log(x, b),
        positive(np.log, np.log(2.0**-F) * ONE),
        ulp(1.1 + 2.0**-18 * ONE),
        some=(2,),
        refused=(1, 63),
    ),
    "elementary.reciprocal": Row(
        2,
        62,
        lambda b, rng: [below(1 << b, rng)],
        lambda p, b, x: tfe.reciprocal(x, bits=b),
        lambda b, x: inverse(x),
        relative(2.0**-20, 1.2),
        some=(2,),
        refused=(1, 63),
    ),
    "elementary.reciprocal, positive": Row(
        2,
        62,
        lambda b, rng: [below(1 << b, rng)],
        lambda p, b, x: tfe.reciprocal(x, False, b),
        lambda b, x: np.maximum(inverse(x), 0),
        relative(2.0**-20, 1.2),
        some=(2,),
        refused=(1, 63),
    ),
    "elementary.sqrt": Row(
        2,
        62,
        lambda b, rng: [below(1 << b, rng)],
        lambda p, b, x: tfe.sqrt(x, b),
        positive(np.sqrt),
        relative(2.0**-20, 1.2),
        some=(2,),
        refused=(1, 63),
    ),
    "elementary.rsqrt": Row(
        2,
        62,
        lambda b, rng: [below(1 << b, rng)],
        lambda p, b, x: tfe.rsqrt(x, b),
        positive(lambda v: 1 / np.sqrt(v)),
        relative(2.0**-20, 1.2),
        some=(2,),
        refused=(1, 63),
    ),
    "operators.divide": Row(
        2,
        62,
        quotients,
        lambda p, b, x, y: tfe.divide(x, y, bits=b),
        divided,
        relative(2.0**-20, 1.25),
        some=(2,),
        refused=(1, 63),
    ),
    "elementary.polyval": Row(
        2,
        61,
        values,
        lambda p, b, x: tfe.polyval(POLYNOMIAL, x, b),
        lambda b, x: np.polyval(POLYNOMIAL, x / ONE) * ONE,
        ulp(1.2),
        refused=(1, 62),
    ),
    # what has no public name of its own
    "cross_entropy.softmax_for_gradient": Row(
        23,
        45,
        logits(5, F, cross_entropy.CUTOFF),
        lambda p, b, x: cross_entropy.softmax_for_gradient(p, x, bits=b),
        lambda b, x: softmax(x / ONE) * 2.0**cross_entropy.RESULT_BITS,
        ulp(2.0 ** (cross_entropy.RESULT_BITS - 14)),
        some=(23,),
        refused=(22, 46),
    ),
    "cross_entropy.softmax_for_gradient, 20 classes": Row(
        23,
        45,
        logits(20, F, cross_entropy.CUTOFF),
        lambda p, b, x: cross_entropy.softmax_for_gradient(p, x, bits=b),
        lambda b, x: softmax(x / ONE) * 2.0**cross_entropy.RESULT_BITS,
        ulp(2.0 ** (cross_entropy.RESULT_BITS - 14)),
        some=(23,),
        refused=(22, 46),
    ),
    "cross_entropy.softmax_for_gradient, 40 fractional bits": Row(
        23,
        39,
        lambda b, rng: [x << 24 for x in logits(5, F, cross_entropy.CUTOFF)(b, rng)],
        lambda p, b, x: cross_entropy.softmax_for_gradient(p, x, bits=b),
        lambda b, x: softmax(x * 2.0**-40) * 2.0**cross_entropy.RESULT_BITS,
        ulp(2.0 ** (cross_entropy.RESULT_BITS - 14)),
        (),
        40,
        (22, 40),
    ),
    "cross_entropy.softmax_and_loss": Row(
        23,
        38,
        labelled,
        lambda p, b, x, y: cross_entropy.softmax_and_loss(p, x, y, bits=b)[1],
        loss,
        ulp(ROWS * 2.0 ** (cross_entropy.INNER - 17)),
        some=(38,),
        refused=(22, 39),
    ),
    "piecewise.logistic": Row(
        23,
        64,
        lambda b, rng: [below((1 << (b - 1)) - KNOT, rng, [KNOT, KNOT // 2])],
        lambda p, b, x: piecewise.logistic(p, x, bits=b),
        lambda b, x: sigmoid(x / ONE) * 2.0**piecewise.RESULT_BITS,
        ulp(2.0 ** (piecewise.RESULT_BITS - 10.5)),
        (23, 56, 57, 64),
        refused=(1, 22),
    ),
    "batch_norm.normalise": Row(
        F + 1,
        40,
        channels,
        lambda p, b, x: normalised(p, b, x),
        lambda b, x: x - x.mean(0),
        ulp(2),
        some=(40,),
        refused=(F, 41),
    ),
    "pool_gradient.max_pool2d_with_choice": Row(
        4,
        64,
        four,
        lambda p, b, x: pooled(p, b, x, False),
        largest,
        refused=(3, 65),
    ),
    "pool_gradient.max_pool2d_with_choice, with relu": Row(
        4,
        64,
        four,
        lambda p, b, x: pooled(p, b, x, True),
        lambda b, x: np.maximum(x.max(-1), 0),
        refused=(3, 65),
    ),
    "relu.truncated_product": Row(
        2,
        64 - DROP,
        multiplied,
        lambda p, b, x, y: rectifier.truncated_product(p, x, y, DROP, b, products.elementwise),
        lambda b, x, y: x * 2.0**-DROP,
        ulp(1),
        refused=(1, 58),
    ),
    "products.truncated": Row(
        2,
        64 - DROP,
        multiplied,
        lambda p, b, x, y: products.truncated(
            p, "truncated_sum", [products.Product(x, y, products.elementwise)], None, DROP, b
        )[0],
        lambda b, x, y: x * 2.0**-DROP,
        ulp(1),
        refused=(1, 58),
    ),
    "predicates.in_range": Row(
        2,
        63,
        lambda b, rng: [below(1 << 62, rng, [1 << (b - 1), (1 << (b - 1)) + 1])],
        lambda p, b, x: tfe.in_range(x, b),
        lambda b, x: ((-1 << (b - 1) <= x) & (x < 1 << (b - 1))).astype(np.int64),
        refused=(1, 64),
    ),
    "linear.capped_relu": Row(
        4,  # (the narrowest that the limit fits)
        64,
        lambda b, rng: [below((1 << (b - 1)) - LIMITS[1], rng, LIMITS)],
        lambda p, b, x: linear.capped_relu(p, x, LIMITS[1], b, None),
        lambda b, x: np.clip(x, 0, LIMITS[1]),
        refused=(3, 65),
    ),
}

# Operations that hand their width on to one with a row, or are handed it by one.
BEHIND = {
    "range_check.in_range": "predicates.in_range",
    "activations.sigmoid": "neural.sigmoid",
    "activations.tanh": "neural.tanh",
    "activations.softmax": "neural.softmax",
    "gelu.gelu": "neural.gelu",
    "compare.msb": "predicates.less",
    "compare.less_than": "predicates.less",
    "extremes.reduce_max": "ranking.reduce_max",
    "extremes.reduce_min": "ranking.reduce_min",
    "extremes.argmax": "ranking.argmax",
    "extremes.argmin": "ranking.argmin",
    "extremes.one_hot": "ranking.argmax",
    "logarithm.log": "elementary.log",
    "piecewise.evaluate": "piecewise.logistic",
    "polynomial.polyval": "elementary.polyval",
    "pool.max_pool2d": "neural.max_pool2d",
    "reciprocal.divide": "operators.divide",
    "reciprocal.reciprocal": "elementary.reciprocal",
    "relational.equal": "predicates.equal",
    "relational.greater": "predicates.greater",
    "relational.greater_equal": "predicates.greater_equal",
    "relational.less": "predicates.less",
    "relational.less_equal": "predicates.less_equal",
    "relational.maximum": "ranking.maximum",
    "relational.minimum": "ranking.minimum",
    "relational.negative": "predicates.less",
    "relational.not_equal": "predicates.not_equal",
    "relational.zero": "predicates.equal",
    "relu.derivative": "neural.relu_derivative",
    "relu.relu": "neural.relu",
    "relu.relu_with_derivative": "neural.relu",
    "roots.rsqrt": "elementary.rsqrt",
    "roots.sqrt": "elementary.sqrt",
}


def taking_bits() -> set[str]:
    """ "module.function" of every public operation on private values that takes a width."""
    found = set()
    for package in (protocols, models):
        for each in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            module = importlib.import_module(each.name)
            for name, function in inspect.getmembers(module, inspect.isfunction):
                if function.__module__ != module.__name__ or name.startswith("_"):
                    continue
                parameters = inspect.signature(function).parameters
                width = parameters.get("bits")
                kinds = {str(p.annotation) for p in parameters.values()}
                operation = name in tfe.__all__ or kinds & {"Party", "Shared"}
                if operation and width is not None and str(width.annotation).startswith("int"):
                    found.add(f"{each.name.rpartition('.')[2]}.{name}")
    return found


def test_every_operation_that_takes_bits_has_a_row() -> None:
    named = {name.partition(",")[0] for name in WIDTHS}
    assert taking_bits() == named | set(BEHIND) and not named & set(BEHIND)
    assert set(BEHIND.values()) <= named


def signed(x: Array, ring_bits: int) -> Array:
    """Elements of a small ring as the integers around 0 that they stand for."""
    if ring_bits == 64:
        return x
    half = 1 << (ring_bits - 1)
    return (x.astype(np.int64) + half) % (1 << ring_bits) - half


Cases = list[tuple[int, list[Array]]]


def cases_of(name: str, widths: Iterable[int], seed: int) -> Cases:
    """The operands of an operation at some widths."""
    inputs = WIDTHS[name].inputs
    return [(b, inputs(b, np.random.default_rng([seed, b]))) for b in sorted(set(widths))]


def run(name: str, p: Party, given: Any) -> list[Shared]:
    """The operation at each width, inside of one graph."""
    found = [WIDTHS[name].run(p, b, *xs) for b, xs in given]
    return [tfe.cast(y) if isinstance(y, MaskedBits) else y for y in found]


def counted(name: str, cases: Cases) -> Tally:
    """What `run` costs."""
    f = WIDTHS[name].fraction
    given = tuple((b, tuple(Private(x.shape, f) for x in xs)) for b, xs in cases)
    return count(lambda p, given: run(name, p, given), given)


def check(name: str, widths: Iterable[int], seed: int) -> None:
    """Runs an operation at some widths, in one graph, and compares every element, and the cost."""
    row = WIDTHS[name]
    cases = cases_of(name, widths, seed)

    def program(p: Party, *flat: Shared) -> Any:
        left = iter(flat)
        given = [(b, [next(left) for _ in xs]) for b, xs in cases]
        found = p.function(lambda given: run(name, p, given))(given)
        for b in row.refused:
            with pytest.raises(UsageError):
                p.function(lambda xs, b=b: row.run(p, b, *xs))(given[0][1])
        return found

    flat = [x for _, xs in cases for x in xs]
    sim = simulate(program, *flat, fractional_bits=row.fraction, dealer=seed % 3)
    cost = counted(name, cases).cost
    assert (sim.sent, sim.rounds, sim.cold) == (cost.by_party(seed % 3), cost.rounds, cost.cold)
    for i, (b, xs) in enumerate(cases):
        got = signed(sim.value(itemgetter(i)), sim.outputs[0][i].ring_bits)
        right = np.asarray(row.right(b, *xs))
        assert got.shape == right.shape, (name, b)
        if right.dtype.kind != "f":
            wrong = got != right
        else:
            wrong = np.abs(got - right) > row.off(right) + np.abs(right) * 2.0**-51
        assert not wrong.any(), (
            name,
            b,
            [x[wrong][:4] for x in xs],
            got[wrong][:4],
            right[wrong][:4],
        )


@pytest.mark.parametrize("name", WIDTHS)
def test_an_operation_is_right_where_something_changes(name: str, seed: int) -> None:
    row = WIDTHS[name]
    check(name, row.some or (row.least, row.most), seed)


@pytest.mark.slow
@pytest.mark.parametrize("name", WIDTHS)
def test_an_operation_is_right_at_every_width(name: str, seed: int) -> None:
    row = WIDTHS[name]
    check(name, range(row.least, row.most + 1), seed)

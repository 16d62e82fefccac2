"""Rounding, words of bits, angles and powers, running products, counts, and private positions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from tfe_bench.benchmarks import error_metrics
from tfe_bench.benchmarks.operations import catalogue
from tfe_bench.benchmarks.operations.catalogue import ULP, Array, Arrays, Options, Shape
from tfe_bench.benchmarks.operations.comparisons import check_operand_magnitudes
from tfe_bench.errors import UsageError
from tfe_bench.protocols.api import (
    bitwise,
    contractions,
    elementary,
    indexing,
    powers,
    rounding,
    scans,
    statistics,
)
from tfe_bench.protocols.session.sharing import Shared

_ONE = 1 << catalogue.FRACTIONAL_BITS


def _bind_public_function(function: Callable[..., Shared], *names: str) -> catalogue.Run:
    """Return a runner of a public function on the named inputs."""
    return lambda party, x, options: function(*(x[name] for name in names or ("x",)))


_function = partial(catalogue.register, size=(1 << 16,))
_exact = partial(_function, tolerance=None)
_of_two = catalogue.same_operand_shapes("x", "y")


def _operand_magnitude_check(
    name: str, bits: int, limit_text: str
) -> Callable[[Arrays, Options], None]:
    return lambda rings, options: check_operand_magnitudes(name, rings, bits, limit_text)


# ---- rounding


def _draw_rounding_operands(size: Shape, rng: np.random.Generator) -> dict[str, Array]:
    """Draw reals of all magnitudes, a quarter of them halves."""
    x = catalogue.draw_log_uniform(rng, ULP, 2.0**45.9, size, signed=True)
    return {"x": np.where(rng.random(size) < 0.25, rng.integers(-99, 99, size) / 2, x)}


_exact(
    "floor",
    "the largest whole number that is not above x",
    _bind_public_function(rounding.floor),
    lambda x, _: x["x"] // _ONE * _ONE,
    inputs=_draw_rounding_operands,
    variant="T5",
)
_exact(
    "round",
    "the nearest whole number, of two the even one",
    _bind_public_function(rounding.round),
    lambda x, _: np.rint(x["x"] / _ONE).astype(np.int64) * _ONE,
    inputs=lambda size, rng: {
        "x": np.clip(_draw_rounding_operands(size, rng)["x"], -(2.0**30), 2.0**30)
    },
    variant="bit extraction, T5",
)


def _draw_remainder_operands(size: Shape, rng: np.random.Generator) -> dict[str, Array]:
    y = catalogue.draw_log_uniform(rng, 2.0**-6, 2.0**13, size, signed=True)
    return {"x": rng.uniform(-(2.0**13), 2.0**13, size), "y": y}


_exact(
    "floordiv",
    "floor(x / y) for |x|, |y| < 2^14, |x / y| < 2^21",
    _bind_public_function(rounding.floordiv, "x", "y"),
    lambda x, _: x["x"] // x["y"] * _ONE,
    shapes=_of_two,
    inputs=_draw_remainder_operands,
    domain=_operand_magnitude_check("floordiv", 30, "less than 2^14"),
    variant="reciprocal, two comparisons",
)

# ---- words

_word = partial(_exact, size=(1 << 12,), input_bits=0)


def _draw_word_operands(*names: str) -> catalogue.Inputs:
    def inputs(size: Shape, rng: np.random.Generator) -> dict[str, Array]:
        return {n: rng.integers(-(2**63), 2**63 - 1, size, np.int64) for n in names}

    return inputs


_word(
    "popcount",
    "how many bits of 64 are 1",
    _bind_public_function(bitwise.popcount),
    lambda x, _: np.bitwise_count(x["x"].view(np.uint64)).astype(np.int64),
    inputs=_draw_word_operands("x"),
    variant="LUT-msb of every width",
)
# ---- angles and powers

_function(
    "sin",
    "sin(x) for every x",
    _bind_public_function(elementary.sin),
    lambda x, _: np.sin(x["x"]),
    tolerance=catalogue.ulps(2.1),
    inputs=catalogue.uniform(-1e4, 1e4),
    variant="one turn is the ring, polynomial",
)
_function(
    "atan2",
    "the angle of (x, y), |x|, |y| < 2^14",
    _bind_public_function(elementary.atan2, "y", "x"),
    lambda x, _: np.arctan2(x["y"], x["x"]),
    tolerance=catalogue.ulps(4),
    shapes=catalogue.same_operand_shapes("y", "x"),
    inputs=lambda size, rng: {
        name: catalogue.draw_log_uniform(rng, 2.0**-8, 2.0**13.9, size, signed=True)
        for name in "yx"
    },
    domain=_operand_magnitude_check("atan2", 30, "less than 2^14"),
    variant="division, polynomial",
)
_function(
    "erf",
    "for |x| < 2^14",
    _bind_public_function(elementary.erf),
    lambda x, _: np.vectorize(math.erf, [float])(x["x"]),
    tolerance=catalogue.ulps(3),
    inputs=catalogue.uniform(-5, 5),
    domain=_operand_magnitude_check("erf", 30, "less than 2^14"),
    variant="piecewise polynomial",
)


def _power_error(inputs: Arrays, exact: Array) -> Array:
    """Return the tolerance of pow: a logarithm's error times y."""
    return np.abs(exact) * (1.4 * np.abs(inputs["y"]) + 1.2) * ULP + 1.1 * ULP


_function(
    "pow",
    "x^y for x > 0 and a private y",
    _bind_public_function(powers.pow, "x", "y"),
    lambda x, _: x["x"] ** x["y"],
    tolerance=catalogue.Tolerance(_power_error, error_metrics.RELATIVE),
    shapes=_of_two,
    inputs=lambda size, rng: {
        "x": catalogue.draw_log_uniform(rng, 0.1, 10.0, size),
        "y": rng.uniform(-2, 2, size),
    },
    variant="logarithm, exponential",
)

# ---- along rows

_function(
    "cumprod",
    "running products of each row, |x| < 1",
    lambda party, x, _: scans.cumprod(x["x"], 1),
    lambda x, _: np.cumprod(x["x"], 1),
    tolerance=catalogue.ulps(5),
    size=(1024, 64),
    inputs=catalogue.uniform(-0.9, 0.9),
    variant="prefix tree, T3",
)
_function(
    "reduce_std",
    "standard deviation of each row",
    lambda party, x, _: statistics.reduce_std(x["x"], 1),
    lambda x, _: np.std(x["x"], 1),
    tolerance=catalogue.relative(19, 3),
    size=(1024, 256),
    inputs=catalogue.uniform(-4, 4),
    per_input=True,
    variant="square root of the sum of squares",
)
_function(
    "einsum",
    "bij,bkj->bik, truncated; the size is b x i x j",
    lambda party, x, _: contractions.einsum("bij,bkj->bik", x["x"], x["y"]),
    lambda x, _: np.einsum("bij,bkj->bik", x["x"], x["y"]),
    tolerance=catalogue.ulps(1),
    size=(8, 64, 64),
    shapes=_of_two,
    inputs=catalogue.uniform(-10, 10, "x", "y"),
    variant="dealer form, T3",
)

# ---- counts and positions

_BINS, _RANGE, _DEPTH = 16, (0.0, 4.0), 16


def _exact_histogram(x: Arrays, options: Options) -> Array:
    place = np.floor_divide(x["x"], int(_RANGE[1]) * _ONE // _BINS)
    return np.bincount(np.clip(place, 0, _BINS - 1).reshape(-1), minlength=_BINS)


_exact(
    "histogram",
    f"how many values are in each of {_BINS} parts of a range",
    lambda party, x, _: statistics.histogram_fixed_width(x["x"], _RANGE, _BINS),
    _exact_histogram,
    size=(1 << 14,),
    inputs=lambda size, rng: {"x": np.minimum(rng.exponential(1.0, size), 1e6)},
    per_input=True,
    variant="LUT-msb 64 bits",
)
_exact(
    "one_hot",
    f"which of {_DEPTH} positions a private index is",
    lambda party, x, _: indexing.one_hot(x["x"], _DEPTH),
    lambda x, _: (x["x"][..., None] == np.arange(_DEPTH)).astype(np.int64),
    size=(1 << 14,),
    input_bits=0,
    inputs=lambda size, rng: {"x": rng.integers(-2, _DEPTH + 2, size)},
    per_input=True,
    variant="nested comparisons",
)


def _lookup_operand_shapes(size: Shape) -> dict[str, Shape]:
    n, width, index_count = size
    return {"x": (n, width), "i": (index_count,)}


def _lookup_operation_size(shapes: Sequence[Shape]) -> Shape:
    if [len(s) for s in shapes] != [2, 1]:
        raise UsageError(
            f"gather expects a table [n, width] and indices [m]. Received: {list(shapes)}.",
            code="shape-mismatch",
            operation="gather",
            received=list(shapes),
        )
    return (*shapes[0], *shapes[1])


_exact(
    "gather",
    "rows of a private table at private indices; the size is rows x width x indices",
    lambda party, x, _: indexing.gather(x["x"], x["i"]),
    lambda x, _: x["x"][x["i"]],
    size=(256, 16, 256),
    shapes=_lookup_operand_shapes,
    size_of=_lookup_operation_size,
    input_bits=0,
    inputs=lambda size, rng: {
        "x": rng.integers(-(2**40), 2**40, size[:2]),
        "i": rng.integers(0, size[0], size[2:]),
    },
    shrinks=(0, 2),
    variant="one-hot, matrix product",
)

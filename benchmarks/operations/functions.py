"""Elementary functions, over their whole valid range."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from tfe_bench.benchmarks.operations import catalogue
from tfe_bench.benchmarks.operations.catalogue import Array, Arrays, Options, Shape, call
from tfe_bench.benchmarks.operations.comparisons import check_operand_magnitudes
from tfe_bench.errors import UsageError
from tfe_bench.protocols.functions import exponential, logarithm, polynomial, reciprocal, roots
from tfe_bench.protocols.nn import activations, gelu, silu
from tfe_bench.protocols.order import extremes

_LAYER = 30  # |x| < 2^30 ring units
_MOST_CLASSES = 1 << 16


# ---- activations


def _draw_activation_logits(size: Shape, rng: np.random.Generator) -> dict[str, Array]:
    """Draw values where the function bends, and a quarter of any magnitude below 2^14."""
    large = catalogue.draw_log_uniform(rng, 2.0**-16, 2.0**13.9, size, signed=True)
    return {"x": np.where(rng.random(size) < 0.25, large, rng.uniform(-12, 12, size))}


def _activation_operand_check(name: str) -> Callable[[Arrays, Options], None]:
    what = "less than 2^14"
    return lambda rings, options: check_operand_magnitudes(name, rings, _LAYER, what)


_function = partial(catalogue.register, size=(1 << 16,))


def _register_activation(
    name: str, run: catalogue.Run, reference: catalogue.Reference, **more: Any
) -> None:
    """Register a function of a layer's values."""
    more = {"inputs": _draw_activation_logits, "domain": _activation_operand_check(name), **more}
    _function(name, "for |x| < 2^14", run, reference, **more)


def _exact_sigmoid(x: Arrays, options: Options) -> Array:
    t = np.exp(-np.abs(x["x"]))
    return np.asarray(np.where(x["x"] < 0, t, 1.0) / (1 + t))


def _exact_softmax(x: Arrays, options: Options) -> Array:
    e = np.exp(x["x"] - x["x"].max(axis=-1, keepdims=True))
    return np.asarray(e / e.sum(axis=-1, keepdims=True))


def _exact_gelu(x: Arrays, options: Options) -> Array:
    phi = np.vectorize(math.erfc, [float])(-x["x"] / math.sqrt(2)) / 2
    return np.asarray(x["x"] * phi)


_BY_EXP = {"tolerance": catalogue.ulps(2), "variant": "one-round exponential, polynomial"}
_register_activation("sigmoid", call(activations.sigmoid), _exact_sigmoid, **_BY_EXP)
_register_activation("tanh", call(activations.tanh), lambda x, _: np.tanh(x["x"]), **_BY_EXP)
_register_activation(
    "gelu",
    call(gelu.gelu),
    _exact_gelu,
    tolerance=catalogue.ulps(3),
    variant="piecewise polynomial",
)
_register_activation(
    "silu",
    call(silu.silu),
    lambda x, options: x["x"] * _exact_sigmoid(x, options),
    **_BY_EXP,
)


def _check_softmax(size: Shape, options: Options) -> None:
    if size[-1] > _MOST_CLASSES:
        raise UsageError(
            f"softmax takes at most {_MOST_CLASSES} classes. Received: {size[-1]}.",
            code="too-large",
            operation="softmax",
            received=size[-1],
        )
    extremes.choose_extreme_method("auto", size[0], size[-1], options["profile"])


_function(
    "softmax",
    "of each row, |x| < 2^14",
    call(activations.softmax),
    _exact_softmax,
    tolerance=catalogue.ulps(2),
    size=(128, 10),
    inputs=_draw_activation_logits,
    options={"profile": "local"},
    help="compute softmax of rows of private values",
    helps={"profile": "its maximum plans"},
    check=_check_softmax,
    domain=_activation_operand_check("softmax"),
    variant="one-round exponential, reciprocal",
)

# ---- exponential and logarithm

_function(
    "exp",
    "e^x for x from -75.5 to 31.8",
    call(exponential.exp),
    lambda x, _: np.exp(x["x"]),
    tolerance=catalogue.relative(29, 1.001),
    inputs=lambda size, rng: {
        "x": np.where(
            rng.random(size) < 0.5, rng.uniform(-12, 12, size), rng.uniform(-75, 31, size)
        )
    },
    variant="one-round",
)

# For positive numbers of 62 bits, from one ulp on.
_LOW, _HIGH = 2.0**-16, 2.0**45.9


def _draw_positive_operands(size: Shape, rng: np.random.Generator) -> dict[str, Array]:
    return {"x": catalogue.draw_log_uniform(rng, _LOW, _HIGH, size)}


_of_positive = partial(
    _function, inputs=_draw_positive_operands, variant="normalization, polynomial"
)
_of_positive(
    "log",
    "ln(x) for 0 < x < 2^46",
    call(logarithm.log),
    lambda x, _: np.log(x["x"]),
    tolerance=catalogue.ulps(1.1 + 0.25),  # 18 bits of precision are a quarter of an ulp
)

# ---- reciprocal and roots

for _name, _protocol, _exact in (
    ("reciprocal", reciprocal.reciprocal, lambda x, _: 1 / x["x"]),
    ("sqrt", roots.sqrt, lambda x, _: np.sqrt(x["x"])),
    ("rsqrt", roots.rsqrt, lambda x, _: 1 / np.sqrt(x["x"])),
):
    _of_positive(
        *(_name, "for 0 < x < 2^46", call(_protocol), _exact), tolerance=catalogue.relative(20, 1.2)
    )


def _draw_division_operands(size: Shape, rng: np.random.Generator) -> dict[str, Array]:
    """Draw |x| < 2^14 and y > 0 of all magnitudes for which |x / y| < 2^14."""
    y = catalogue.draw_log_uniform(rng, 2.0**-14, _HIGH, size)
    x = catalogue.draw_log_uniform(
        rng, 2.0**-16, np.minimum(2.0**13.9, y * 2.0**12), size, signed=True
    )
    return {"x": x, "y": y}


_of_positive(
    "divide",
    "x / y for |x|, |x / y| < 2^14, 0 < y < 2^46",
    call(reciprocal.divide, "x", "y"),
    lambda x, _: x["x"] / x["y"],
    tolerance=catalogue.relative(20, 1.25),
    shapes=catalogue.same_operand_shapes("x", "y"),
    inputs=_draw_division_operands,
)

# ---- polynomials

_COEFFICIENTS = (0.25, -1.5, 0.125, 3.0, -0.7)
_POLYNOMIAL_BITS = 20  # |x| < 2^3 at 16 fractional bits

_function(
    "polyval",
    "a polynomial of degree 4, |x| < 8",
    lambda party, x, _: polynomial.polyval(party, _COEFFICIENTS, x["x"], _POLYNOMIAL_BITS),
    lambda x, _: np.polyval(_COEFFICIENTS, x["x"]),
    tolerance=catalogue.ulps(1.2),
    inputs=catalogue.uniform(-7.99, 7.99),
    variant="one round",
)

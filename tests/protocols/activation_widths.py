"""Rows of WIDTHS for activations, their components, and their gradients."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

import tfe_bench as tfe
from tests.protocols.gated import FUNCTIONS, Function
from tests.protocols.operands import (
    KNOT,
    LIMITS,
    ONE,
    ROWS,
    Array,
    F,
    activation_edges,
    cross_entropy_loss,
    draw_below,
    draw_labeled,
    draw_logits,
    draw_signed,
    flatten_shares,
    log_softmax,
    sigmoid,
    softmax,
    within_ulp,
)
from tests.protocols.widths import Row
from tfe_bench.protocols.functions import piecewise
from tfe_bench.protocols.nn import (
    activations,
    cross_entropy,
    elu,
    linear,
    ramped,
    series,
    softsign,
    squareplus,
)
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared

# widths at which the largest constant of each no longer fits, and the last one with one exchange
OF_SIGMOID, OF_SOFTMAX = (2, 20, 21, 49, 62), (2, 19, 20, 48, 62)
SELU = elu.EluForm(1.05, 1.76)


def activation_row(
    function: Callable[[Shared, int], Shared], right: Callable[[Array], Array], f: int
) -> Row:
    return Row(
        2,
        62,
        lambda b, rng: [draw_below(1 << (b - 1), rng, activation_edges(f))],
        lambda p, b, x: function(x, b),
        lambda b, x: right(x * 2.0**-f) * 2.0**f,
        within_ulp(2),
        OF_SIGMOID if f == F else (f + 4,),
        f,
        (1, 63),
    )


def call_activation(function: Function, p: Party, x: Shared, bits: int) -> Any:
    """Call an activation as users or as models do."""
    public = getattr(tfe, function.name, None)
    return function.protocol(p, x, bits) if public is None else public(x, bits)


def gated_row(function: Function, f: int) -> Row:
    most = 62 if hasattr(tfe, function.name) else 63
    return Row(
        2,
        most,
        lambda b, rng: [draw_below(1 << (b - 1), rng, function.edges(f))],
        lambda p, b, x: call_activation(function, p, x, b),
        lambda b, x: function.value(x, f),
        within_ulp(function.ulps),
        (*function.widths[:-1], most) if f == F else (f + 4,),
        f,
        (1, most + 1),
    )


def gated_slope(function: Function) -> Row:
    """Return the row of a slope (its outermost knot takes one more bit)."""
    least = F + function.slope_edge.bit_length() + 2
    return Row(
        least,
        62,
        lambda b, rng: [draw_below(1 << (b - 1), rng, [function.slope_edge * ONE])],
        lambda p, b, x: function.module.slope(p, x, b),
        lambda b, x: function.slope(x / ONE) * 2.0**piecewise.RESULT_BITS,
        within_ulp(2.0 ** (piecewise.RESULT_BITS - 9.5)),
        (least, 55, 56, 62),
        refused=(1, least - 1),
    )


def gradient_row(classes: int, f: int = F) -> Row:
    """Return the row of softmax whose logits have less room, because of more fractional bits."""
    make_logits = draw_logits(classes, F, cross_entropy.CUTOFF)
    most = 45 if f == F else 39
    return Row(
        23,
        most,
        lambda b, rng: [x << (f - F) for x in make_logits(b, rng)],
        lambda p, b, x: cross_entropy.softmax_for_gradient(p, x, bits=b),
        lambda b, x: softmax(x * 2.0**-f) * 2.0**cross_entropy.RESULT_BITS,
        within_ulp(2.0 ** (cross_entropy.RESULT_BITS - 14)),
        (23,) if f == F else (),
        f,
        (22, most + 1),
    )


def series_row(name: str, f: int) -> Row:
    """Return the row of a series: errors near the knots and beyond are at most 2^-10.5, 2 ulp."""
    edges = [k << (f - 2) for k in (series.ACTIVATIONS[name].low, series.ACTIVATIONS[name].high)]
    more = f + series.activation_extra_bits(name)
    most = series.max_activation_bits(name, f)
    return Row(
        2,
        most,
        lambda b, rng: [draw_below(1 << (b - 1), rng, edges)],
        lambda p, b, x: series.evaluate_series(p, x, name, b),
        lambda b, x: EXACT[name](x * 2.0**-f) * 2.0**more,
        within_ulp(2 + 2.0 ** (more - 10.5)),
        (2, f, most),
        f,
        (1, most + 1),
    )


EXACT: dict[str, Callable[[Array], Array]] = {
    **{
        name: lambda v, of=function: of.value(v * 2.0**F, F) * 2.0**-F  # type: ignore[misc]
        for name, function in FUNCTIONS.items()
    },
    "sigmoid": sigmoid,
    "tanh": np.tanh,
    "erf": np.vectorize(math.erf, [np.float64]),
}

ACTIVATIONS: dict[str, Row] = {
    **{
        f"series.bent, {name}, {f} fractional bits": series_row(name, f)
        for name in EXACT
        for f in (8, F)
    },
    **{
        f"neural.{name}, {f} fractional bits": activation_row(g, h, f)
        for name, g, h in (("sigmoid", tfe.sigmoid, sigmoid), ("tanh", tfe.tanh, np.tanh))
        for f in (8, F, 20)
    },
    **{
        f"{'neural' if hasattr(tfe, name) else name}.{name}, {f} fractional bits": gated_row(
            function, f
        )
        for name, function in FUNCTIONS.items()
        for f in (8, F)
    },
    **{f"{name}.slope": gated_slope(function) for name, function in FUNCTIONS.items()},
    **{
        f"neural.softmax, {classes} classes, {f} fractional bits": Row(
            2,
            62,
            draw_logits(classes, f),
            lambda p, b, x: tfe.softmax(x, bits=b),
            lambda b, x, f=f: softmax(x * 2.0**-f) * 2.0**f,
            within_ulp(2),
            OF_SOFTMAX if (classes, f) == (3, F) else (f + 3,),
            f,
            (1, 63),
        )
        for classes, f in ((3, F), (12, F), (3, 8), (3, 20))
    },
    "cross_entropy.softmax_for_gradient": gradient_row(5),
    "cross_entropy.softmax_for_gradient, 20 classes": gradient_row(20),
    "cross_entropy.softmax_for_gradient, 40 fractional bits": gradient_row(5, 40),
    "cross_entropy.softmax_and_loss": Row(
        23,
        38,
        draw_labeled,
        lambda p, b, x, y: cross_entropy.softmax_and_loss(p, x, y, bits=b)[1],
        cross_entropy_loss,
        within_ulp(ROWS * 2.0 ** (cross_entropy.INNER - 17)),
        some=(38,),
        refused=(22, 39),
    ),
    "piecewise.logistic": Row(
        23,
        64,
        lambda b, rng: [draw_below((1 << (b - 1)) - KNOT, rng, [KNOT, KNOT // 2])],
        lambda p, b, x: piecewise.logistic(p, x, bits=b),
        lambda b, x: sigmoid(x / ONE) * 2.0**piecewise.RESULT_BITS,
        within_ulp(2.0 ** (piecewise.RESULT_BITS - 10.5)),
        (23, 56, 57, 64),
        refused=(1, 22),
    ),
    "linear.above": Row(
        2,
        63,
        draw_signed,
        lambda p, b, x: flatten_shares(linear.relu_at_knots(p, x, LIMITS, b)[0]),
        lambda b, x: np.maximum(x - np.array(LIMITS)[:, None], 0).reshape(-1),
        refused=(1, 65),
    ),
    "elu.elu": Row(
        2,
        63,
        lambda b, rng: [draw_below(1 << (b - 1), rng, [elu.EluForm().cutoff_units(F)])],
        lambda p, b, x: elu.elu(p, x, bits=b),
        lambda b, x: np.where(x > 0, x, np.expm1(np.minimum(x, 0) / ONE) * ONE),
        within_ulp(2),
        (*OF_SIGMOID, 63),
        refused=(1, 64),
    ),
    "elu.elu, scaled": Row(
        2,
        52,
        draw_signed,
        lambda p, b, x: elu.elu(p, x, SELU, b),
        lambda b, x: (
            SELU.positive * np.maximum(x, 0)
            + SELU.negative * np.expm1(np.minimum(x, 0) / ONE) * ONE
        ),
        lambda right: 3 + np.abs(right) * 2.0**-10,
        (2, 20, 52),
        refused=(1, 53),
    ),
    "ramped.ramped": Row(
        2,
        63,
        lambda b, rng: [draw_below(1 << (b - 1), rng, [3 * ONE])],
        lambda p, b, x: ramped.ramp_with_slope(p, x, bits=b)[0],
        lambda b, x: np.clip(x * np.clip(x / ONE + 3, 0, 6) / 6, -ONE, None),
        within_ulp(1.2),
        (*OF_SIGMOID, 63),
        refused=(1, 64),
    ),
    "softsign.softsign": Row(
        2,
        62,
        draw_signed,
        lambda p, b, x: softsign.softsign(p, x, b),
        lambda b, x: x / (1 + np.abs(x / ONE)),
        within_ulp(1.5),
        refused=(1, 64),
    ),
    "squareplus.squareplus": Row(
        2,
        31,
        draw_signed,
        lambda p, b, x: squareplus.squareplus(p, x, bits=b),
        lambda b, x: np.maximum(x, 0) + 2 * ONE / (np.abs(x / ONE) + np.hypot(x / ONE, 2)),
        within_ulp(3),
        refused=(1, 32),
    ),
    **{
        f"activations.log_softmax, {classes} classes": Row(
            2,
            62,
            draw_logits(classes, F),
            lambda p, b, x: activations.log_softmax(p, x, bits=b),
            # Differences of words are exact, those of floats are not.
            lambda b, x: log_softmax((x - x.max(-1, keepdims=True)) / ONE) * ONE,
            within_ulp(2.2),
            OF_SOFTMAX if classes == 3 else (19,),
            refused=(0, 63),
        )
        for classes in (3, 12)
    },
}

"""Protocols of protocols/functions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from tests.protocols.entry import Entry, sign_bits
from tests.protocols.seeded import drop_mask, merge_masks, one_turn_for_all
from tfe_bench.protocols.functions import (
    bit_planes,
    error_function,
    exp2,
    exp_select,
    exponential,
    harmonics,
    logarithm,
    piecewise,
    polynomial,
    reciprocal,
    trigonometry,
)
from tfe_bench.protocols.ring import arithmetic, reductions, small_ring
from tfe_bench.protocols.session import slices, tensor_ops
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared

# Two harmonics, of period 4.
SHORT = harmonics.Series(2, 1, (1000, 40_000, -9000, 3000, 20_000))


def powers_and_sum(party: Party, x: Shared, y: Shared) -> Any:
    """Compute powers of two and their sum."""
    t = small_ring.reduce_ring(x, exp2.exponent_ring_bits(x.fractional_bits))
    return exp2.exp2(party, t, 14, 38, lambda a: tensor_ops.reshape(a, [1, -1]))


def products_in_slices(party: Party, x: Shared, y: Shared) -> Any:
    """Compute products of three elements in two slices, of which both have the second element."""
    plan = slices.SlicePlan(3, 2, (), (2,))
    return slices.run_slices(party, arithmetic.mul, [x, y], plan)


def sum_in_slices(party: Party, x: Shared, y: Shared) -> Any:
    """Sum products of five elements: two slices of two, and the element after them."""

    def sum_products(party: Party, x: Shared, y: Shared) -> Shared:
        return reductions.reduce_sum(arithmetic.mul(party, x, y), 0, keepdims=True)

    plan = slices.SlicePlan(5, 2, (), (1,), is_sum=True)
    return slices.run_slices(party, sum_products, [x, y], plan)


ENTRIES: dict[str, Entry] = {
    "weighed": Entry(
        lambda p, x, y: bit_planes.sum_weighted_planes(p, sign_bits(p, x), np.array([1, -2]), [1]),
        ("weighed",),
        n=2,
        faults={"a sum of bits exchanges under a dealt mask": merge_masks("weighed", {1: 0})},
    ),
    "exp_one_round": Entry(
        lambda p, x, y: exponential.exp(p, x, "one-round"),
        ("exp_one_round",),
        fractional_bits=16,
        scalable=True,
        faults={
            "E2 sends an exponential's share as it is": drop_mask("exp_one_round", "is_e2"),
        },
    ),
    "exp2": Entry(
        powers_and_sum,
        ("exp2",),
        n=2,
        fractional_bits=12,
        faults={
            "powers of two are summed under the mask of one": merge_masks("exp2", {2: 1}),
            "E2 says its share of a row's sum": drop_mask("exp2", "is_e2"),
        },
    ),
    "exp_prime": Entry(
        lambda p, x, y: exponential.exp(p, x, "prime"), ("exp_prime",), fractional_bits=16
    ),
    "exp_clamp": Entry(
        lambda p, x, y: exponential.exp(p, x, "one-round", "low"),
        ("exp_clamp",),
        n=1,
        fractional_bits=16,
    ),
    "exp_pade": Entry(
        lambda p, x, y: exponential.exp(p, x, "pade"),
        ("pade_factors",),
        n=1,
        fractional_bits=4,
        faults={
            "products of bits of an exponent share a mask": merge_masks("pade_factors", {7: 6}),
        },
    ),
    "select_exp": Entry(
        lambda p, x, y: exp_select.select_exp(p, sign_bits(p, x), y),
        ("select_exp",),
        fractional_bits=16,
        scalable=True,
        many=lambda p, x, y, _: exp_select.select_exp(
            p, sign_bits(p, x, 64, None), replace(y, fractional_bits=16)
        ),
        faults={
            "a selected exponential exchanges under a residue's mask": merge_masks(
                "select_exp", {1: 0}
            )
        },
    ),
    "log": Entry(
        lambda p, x, y: logarithm.log(p, x, bits=3),
        ("log", "normalize"),
        n=1,
        fractional_bits=2,
        faults={
            "a stage of a normalization exchanges twice under one mask": merge_masks(
                "normalize", {3: 4}
            )
        },
    ),
    "reciprocal": Entry(
        lambda p, x, y: reciprocal.reciprocal(p, x, bits=8),
        ("mantissa", "product", "normalize"),
        n=1,
        fractional_bits=6,
        slow=True,
    ),
    "reciprocal_of_a_few_binades": Entry(
        lambda p, x, y: reciprocal.reciprocal_in(p, x, 1.0, 4.0),
        ("mantissa", "product", "normalize"),
        n=1,
        fractional_bits=8,
    ),
    "reciprocal_in": Entry(
        lambda p, x, y: reciprocal.reciprocal_in(p, x, 1.0, 2.0),
        ("reciprocal_in",),
        fractional_bits=12,
    ),
    "polyval": Entry(
        lambda p, x, y: polynomial.polyval(p, [1.0, -0.5, 0.25], x, 20),
        ("polyval",),
        fractional_bits=12,
        scalable=True,
        faults={"a polynomial exchanges under the dealt masks": merge_masks("polyval", {1: 0})},
    ),
    "erf": Entry(
        lambda p, x, y: error_function.fit_erf(12).first.evaluate(p, "erf", x),
        ("erf",),
        n=1,
        fractional_bits=12,
    ),
    "sine": Entry(
        lambda p, x, y: trigonometry._fit_quarter_sine(4).evaluate(p, "sine", x), ("sine",), n=1
    ),
    "atan": Entry(
        lambda p, x, y: trigonometry._fit_arctangent(8).evaluate(p, "atan", x),
        ("atan",),
        n=1,
        fractional_bits=8,
    ),
    "harmonics": Entry(
        lambda p, x, y: harmonics.evaluate_series(p, "harmonics", SHORT, x, 12, 16),
        ("harmonics",),
        n=1,
        fractional_bits=12,
        faults={
            "a series is exchanged under the mask of what is dealt": merge_masks(
                "harmonics", {1: 0}
            )
        },
    ),
    "slices": Entry(
        products_in_slices,
        ("mul",),
        faults={"slices share the masks of a product": one_turn_for_all("mul")},
    ),
    "sum_of_slices": Entry(
        sum_in_slices,
        ("mul",),
        n=5,
        faults={"slices share the masks of products that are summed": one_turn_for_all("mul")},
    ),
    "logistic": Entry(
        lambda p, x, y: piecewise.logistic(p, x, bits=28), ("logistic",), n=1, fractional_bits=20
    ),
}

"""Sums of private products (ring/products.py) with what layers add to them, and capped ReLUs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tfe_bench.errors import UsageError
from tfe_bench.protocols.nn import relu
from tfe_bench.protocols.ring import arithmetic, small_ring
from tfe_bench.protocols.ring.products import Product, opened, truncated
from tfe_bench.protocols.ring.range_check import Watch
from tfe_bench.protocols.session import local
from tfe_bench.protocols.session.counting import Counting
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared

RING = 64


def _check(products: Sequence[Product], addend: Shared | None) -> None:
    """Refuses a sum that is none.

    Raises:
        UsageError: no products, or operands of several scales, rings or dealers.
    """
    if not products:
        raise UsageError("A sum has a product at least.")
    for p in products:
        arithmetic.check_factors("product_sum", p.x, p.w)
    scales = {p.scale for p in products} | (set() if addend is None else {addend.fractional_bits})
    dealers = {p.x.dealer for p in products} | (set() if addend is None else {addend.dealer})
    if len(scales) != 1 or len(dealers) != 1:
        raise UsageError(
            "A sum wants products and addend of one scale and one dealer. Received: scales "
            f"{sorted(scales)}, dealers {sorted(dealers)}."
        )


def product_sum(party: Party, products: Sequence[Product], addend: Shared | None = None) -> Shared:
    """sum_i x_i . w_i + addend over Z_2^64 at the scale of the products.

    The addend is added to the opened sum, locally.

    Rounds: 1 (cold 2).  Bits sent: D, E1, E2 64 per element each (arithmetic.mul_cost).
    Raises:
        UsageError: operands of several scales, rings or dealers.
    """
    _check(products, addend)
    z = opened(party, "product_sum", products, len(products))
    return z if addend is None else arithmetic.add(z, addend)


def truncated_sum(
    party: Party,
    products: Sequence[Product],
    addend: Shared | None,
    drop: int,
    bits: int,
) -> Shared:
    """(sum_i x_i . w_i + addend) / 2^drop in Z_2^bits, stochastically rounded; never fails (T4).

    Args:
        addend: at the scale of the products, broadcast to them.
        bits: right for |sum| <= 2^(bits-1+drop) - 2^drop.

    Rounds: 1 (cold 2).  Bits sent: D drop + bits, E1, E2 bits per element.
    Raises:
        UsageError: operands of several scales, rings or dealers; bits + drop over 64.
    """
    _check(products, addend)
    return truncated(party, "truncated_sum", products, addend, drop, bits)[0]


def watched_sum(
    party: Party,
    products: Sequence[Product],
    addend: Shared | None,
    drop: int,
    bits: int,
) -> tuple[Shared, Any]:
    """`truncated_sum`, and the evaluators' additive shares of the same modulo 2^(64-drop).

    What Z_2^bits loses of a sum that is too large is in these shares still: D deals all 64 bits of
    the masks' products.

    Rounds: 1 (cold 2).  Bits sent: D 64, E1, E2 bits per element.
    Raises:
        UsageError: as `truncated_sum`.
    """
    _check(products, addend)
    return truncated(party, "truncated_sum", products, addend, drop, bits, whole=True)


# ---- activations with a largest value


def capped_relu(party: Party, x: Shared, most: int, bits: int, openings: int | None) -> Shared:
    """min(max(x, 0), most) = relu(x) - relu(x - most), both compared at once.

    Args:
        x: of Z_2^64 or of a small ring; |x| + most < 2^(bits-1) ring units.
        most: public, in ring units.

    Rounds: those of relu.relu.  Bits sent: those of twice the elements.
    Raises:
        UsageError: the comparison has no room for most.
    """
    width = bits if x.ring_bits == 64 else x.ring_bits
    if most >> (width - 1):
        raise UsageError(
            f"A ReLU capped at {most} ring units wants {most.bit_length() + 2} bits or more. "
            f"Received: {width}."
        )
    both = relu.relu(party, _and_lowered(x, most), bits, openings)
    return both.map(lambda a: a[0] - a[1])


def _and_lowered(x: Shared, most: int) -> Shared:
    """[x, x - most]"""
    two = x.map(lambda a: local.stack([a, a]))
    if two.m is None:
        return two
    shift = np.array([0, most], np.int64).reshape([2, *([1] * len(x.shape))])
    return replace(two, m=local.low_bits(two.m - shift, x.ring_bits))


def watched_relu(
    party: Party,
    watch: Watch,
    x: Shared,
    u: Any,
    drop: int,
    most: int | None = None,
    openings: int | None = 2,
) -> Shared:
    """max(x, 0), or with `most` `capped_relu`; `watch` is told where x is not the whole sum.

    Args:
        x, u: of `watched_sum` with the same drop.

    Rounds and bits: as relu.relu and `capped_relu`.
    """
    bits = x.ring_bits
    values = x if most is None else _and_lowered(x, most)
    y, signed = relu.relu_watched(party, values, openings)
    if most is None:
        watch.zero(None if u is None else u - signed, RING - drop, bits)
        return y
    for turn, shift in enumerate((0, most)):
        lost = None
        if u is not None:
            lost = (u - shift if party.index == (x.dealer + 1) % 3 else u) - signed[turn]
        watch.zero(lost, RING - drop, bits)
    return y.map(lambda a: a[0] - a[1])


def watched_lift(party: Party, watch: Watch, x: Shared, u: Any, drop: int) -> Shared:
    """x of Z_2^k over Z_2^64, right for |x| < 2^(k-2); `watch` is told where it is not.

    Args:
        x, u: of `watched_sum` with the same drop.

    Rounds and bits: as small_ring.lift.
    """
    y = small_ring.lift(party, x)
    lost = None
    if isinstance(party, Counting):
        lost = u - y.m
    elif u is not None:
        lost = u + y.l2 if y.l1 is None else u - (y.m - y.l1)
    watch.zero(lost, RING - drop, x.ring_bits)
    return y

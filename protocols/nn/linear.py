"""Sums of private products, opened once: what convolutions, dense layers and residuals become.

z = sum_i x_i . w_i + addend, with every product at the scale of z.  The dealer deals the sum of the
products of masks, so that a sum costs what one product costs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tfe_bench.errors import UsageError
from tfe_bench.protocols.nn import relu
from tfe_bench.protocols.ring import arithmetic, small_ring
from tfe_bench.protocols.ring.range_check import Watch
from tfe_bench.protocols.ring.truncation import (
    bytes_of,
    open_mask_short,
    pack,
    unpack,
)
from tfe_bench.protocols.session import local
from tfe_bench.protocols.session.counting import Counting
from tfe_bench.protocols.session.party import K1, Party, Site
from tfe_bench.protocols.session.sharing import Shared

RING = 64

Two = Callable[[list[Any], list[Any]], Any]


@dataclass(frozen=True)
class Product:
    """x . w under a bilinear map.

    Attributes:
        x, w: private, over Z_2^64.
        two: the sum of the map over paired operands (arithmetic.product_shares).
    """

    x: Shared
    w: Shared
    two: Two

    @property
    def scale(self) -> int:
        """Fractional bits of the product."""
        return self.x.fractional_bits + self.w.fractional_bits


def elementwise(a: list[Any], b: list[Any]) -> Any:
    """Paired elementwise products, broadcast, and their sum."""
    total = a[0] * b[0]
    for p, q in zip(a[1:], b[1:], strict=True):
        total = total + p * q
    return total


def _checked(products: Sequence[Product], addend: Shared | None) -> int:
    """The scale of the sum.

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
    return scales.pop()


def _counted(products: Sequence[Product]) -> tuple[local.Abstract, list[Shared]]:
    """The sum, abstract, and all that it is made of."""
    parts = [p.two([p.x.any], [p.w.any]) for p in products]
    whole = local.joined(np.broadcast_shapes(*(z.shape for z in parts)), *parts)
    return whole, [v for p in products for v in (p.x, p.w)]


def _masks(s: Site, products: Sequence[Product]) -> Any:
    with s.in_turn():
        total = None
        for p in products:
            gamma = p.two([p.x.l1 + p.x.l2], [p.w.l1 + p.w.l2])
            total = gamma if total is None else total + gamma
    return total


def _crossed(s: Site, products: Sequence[Product]) -> Any:
    """What an evaluator adds to its share of the masks' products, E1's to be negated."""
    total = None
    for p in products:
        x, w = p.x, p.w
        if s.is_e1:
            part = p.two([x.m, x.l1], [w.l1, w.m])
        else:
            # (x, not w, is negated: the weights of all layers would be negated at once)
            part = p.two([x.m, -x.l2], [w.m - w.l2, w.m])
        total = part if total is None else total + part
    return total


def product_sum(party: Party, products: Sequence[Product], addend: Shared | None = None) -> Shared:
    """sum_i x_i . w_i + addend over Z_2^64 at the scale of the products.

    E1: z1 = G1 - sum_i (m_x l1_w + l1_x m_w);  E2: z2 = G2 + sum_i (m_x (m_w - l2_w) - l2_x m_w),
    where D deals G1 + G2 = sum_i lam_x lam_w.  The addend is added to the opened sum, locally.

    Rounds: 1 (cold 2).  Bits sent: D, E1, E2 64 per element each (arithmetic.mul_cost).
    Raises:
        UsageError: operands of several scales, rings or dealers.
    """
    scale = _checked(products, addend)
    if isinstance(party, Counting):
        whole, given = _counted(products)
        m = party.sent(arithmetic.mul_cost(whole.shape.num_elements()), whole.shape, *given)
        opened = Shared(m, None, None, products[0].x.dealer, scale)
        return opened if addend is None else arithmetic.add(opened, addend)
    import tensorflow as tf

    s = party.site("product_sum", len(products), scale, dealer=products[0].x.dealer)
    m = None
    if s.is_dealer:
        gamma = _masks(s, products)
        s.deal(gamma, None, 0, 0)
        shape = tf.shape(gamma, out_type=tf.int64)
    else:
        crossed = _crossed(s, products)
        shape = tf.shape(crossed, out_type=tf.int64)
        if s.is_e1:
            z = s.apply_mask(-crossed, K1, 0, "add", sent=False)
        else:
            z = crossed + s.recv(shape, s.d, 0)
        m = s.open_mask(z, 1, 1)
    l1, l2 = s.new_mask(shape, 1)
    opened = Shared(m, l1, l2, s.dealer, scale)
    return opened if addend is None else arithmetic.add(opened, addend)


def truncated_sum(
    party: Party,
    products: Sequence[Product],
    addend: Shared | None,
    drop: int,
    bits: int,
) -> Shared:
    """(sum_i x_i . w_i + addend) / 2^drop in Z_2^bits, stochastically rounded; never fails (T4).

    As relu.truncated_product, for several products: D deals drop + bits bits of the sum of the
    masks' products, floor(z1 / 2^drop) at E1 plus ceil(z2 / 2^drop) at E2 is a rounding.

    Args:
        addend: at the scale of the products, broadcast to them.
        bits: right for |sum| <= 2^(bits-1+drop) - 2^drop.

    Rounds: 1 (cold 2).  Bits sent: D drop + bits, E1, E2 bits per element.
    Raises:
        UsageError: operands of several scales, rings or dealers; bits + drop over 64.
    """
    return _truncated_sum(party, products, addend, drop, bits, drop + bits)[0]


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
    return _truncated_sum(party, products, addend, drop, bits, 64)


def _truncated_sum(
    party: Party,
    products: Sequence[Product],
    addend: Shared | None,
    drop: int,
    bits: int,
    width: int,
) -> tuple[Shared, Any]:
    scale = _checked(products, addend)
    if not (bits >= 2 and drop > 0 and bits + drop <= 64):
        raise UsageError(
            "truncated_sum wants drop >= 1, bits >= 2 and no more than 64 of both together. "
            f"Received: drop={drop}, bits={bits}."
        )
    if isinstance(party, Counting):
        whole, given = _counted(products)
        n = whole.shape.num_elements()
        cost = relu.truncated_product_cost(n, width - bits, bits)
        u = party.dealt(whole.shape, *given, addend)
        m = party.sent(cost, whole.shape, *given, addend)
        return Shared(m, None, None, products[0].x.dealer, scale - drop, 1, bits), u
    import tensorflow as tf

    s = party.site("truncated_sum", len(products), drop, bits, width, dealer=products[0].x.dealer)
    m = u = None
    if s.is_dealer:
        gamma = _masks(s, products)
        s.send(pack(s.apply_mask(gamma, K1, 0, "sub"), width), s.e2, 0, run_ahead=True)
        shape = tf.shape(gamma, out_type=tf.int64)
    else:
        crossed = _crossed(s, products)
        shape = tf.shape(crossed, out_type=tf.int64)
        if s.is_e1:
            z = s.apply_mask(-crossed, K1, 0, "add", sent=False)
            z = z if addend is None else z + (addend.m - addend.l1)
            u = local.arithmetic_shift(z, drop)
        else:
            z = crossed + unpack(s.recv(bytes_of(shape, width), s.d, 0, tf.uint8), shape, width)
            z = z if addend is None else z - addend.l2
            u = -local.arithmetic_shift(-z, drop)
        m = open_mask_short(s, u, tensor=1, slot=1, width=bits)
    l1, l2 = s.new_mask(shape, 1)
    return Shared(m, l1, l2, s.dealer, scale - drop, 1, bits), u


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

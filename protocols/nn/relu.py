"""ReLU and its derivative: a comparison with 0, its bit opened under a mask, one bit injection.

On a product that has not been truncated yet, `truncated_product` opens it directly in
a small ring (T4) and `relu` carries the result back to Z_2^64: convolution,
truncation and ReLU then take 5 rounds in all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tfe_bench.errors import UsageError
from tfe_bench.protocols.ring import arithmetic, compare, convert, logic
from tfe_bench.protocols.ring.truncation import (
    bytes_of,
    open_mask_short,
    pack,
    unpack,
)
from tfe_bench.protocols.session import local
from tfe_bench.protocols.session.cost import Cost, packed
from tfe_bench.protocols.session.counting import Counting
from tfe_bench.protocols.session.party import K1, Party
from tfe_bench.protocols.session.sharing import MaskedBits, Shared

RING = 64


def relu(
    party: Party,
    x: Shared,
    bits: int = compare.LAYER_BITS,
    openings: int | None = 2,
) -> Shared:
    """max(x, 0), exact for |x| < 2^(bits-1) ring units.

    Args:
        x: of Z_2^64, or of a small ring Z_2^k as `truncate_reduce` and `truncated_product` give it;
            then k takes the place of bits, and the result is of Z_2^64.
        bits: width of the comparison.  Outside of it the sign may be taken wrongly: the result is
            then x or 0 all the same, and nothing leaks.
        openings: of the comparison, 1 to 3; more rounds take fewer bits.

    Rounds: openings + 2 (cold + 3).  Bits sent: those of msb, open_bits and inject.
    """
    return relu_with_derivative(party, x, bits, openings)[0]


def relu_with_derivative(
    party: Party,
    x: Shared,
    bits: int = compare.LAYER_BITS,
    openings: int | None = 2,
) -> tuple[Shared, MaskedBits]:
    """(max(x, 0), [x < 0]): the bits, opened under a mask, serve the backward pass again.

    Rounds and bits: as `relu`.
    """
    small = _check("relu", x)
    negative = convert.open_bits(
        party, compare.msb(party, x, x.ring_bits if small else bits, openings)
    )
    return convert.inject(party, negative, x, negated=True, extend_ring=small), negative


def relu_watched(party: Party, x: Shared, openings: int | None = 2) -> tuple[Shared, Any]:
    """`relu` of a small ring's value, and the evaluators' additive shares of x read as signed.

    Rounds and bits: as `relu`.
    """
    _check("relu", x)
    negative = convert.open_bits(party, compare.msb(party, x, x.ring_bits, openings))
    return convert.inject_watched(party, negative, x)


def derivative(
    party: Party, x: Shared, bits: int = compare.LAYER_BITS, openings: int | None = 2
) -> Shared:
    """[x >= 0] as ring elements 0 and 1; |x| < 2^(bits-1).  At 0 it is 1 (TensorFlow says 0).

    Rounds: openings + 2 (cold + 3).  Bits sent: those of msb, open_bits and b2a.
    """
    small = _check("relu derivative", x)
    negative = convert.open_bits(
        party, compare.msb(party, x, x.ring_bits if small else bits, openings)
    )
    return convert.b2a(party, logic.invert(negative), local.shape(x.any))


def truncated_product(
    party: Party,
    x: Shared,
    y: Shared,
    drop: int,
    bits: int = compare.LAYER_BITS,
    two: Callable[[list[Any], list[Any]], Any] | None = None,
    bias: Shared | None = None,
) -> Shared:
    """(x . y + bias) / 2^drop in Z_2^bits, stochastically rounded; never fails (T4).

    Only z mod 2^(drop+bits) matters, so D deals that many bits of lam_x . lam_y; floor(z1 / 2^drop)
    at E1 plus ceil(z2 / 2^drop) at E2 is a rounding of z / 2^drop, error (-1, 1) ulp.

    Args:
        drop: fractional bits to drop.
        bits: k; right for |x . y + bias| <= 2^(k-1+drop) - 2^drop (2^(k-1), to which more could be
            rounded, reads as negative).
        two: sum of products of paired operands (arithmetic.product_shares); None is matmul.
        bias: private, at the scale of the product, broadcast to it.

    Rounds: 1 (cold 2).  Bits sent: D drop + bits, E1, E2 bits per element of the result.
    Raises:
        UsageError: rings, dealers or shapes that do not fit; bits + drop over 64.
    """
    if two is None:
        two = arithmetic.matrix_product
    whole = isinstance(drop, int) and isinstance(bits, int)
    if not (whole and bits >= 2 and drop > 0 and bits + drop <= RING):
        raise UsageError(
            "truncated_product wants drop >= 1, bits >= 2 and no more than 64 of both together. "
            f"Received: drop={drop}, bits={bits}."
        )
    _operands(x, y)
    if two is arithmetic.matrix_product:
        arithmetic.check_multipliable("truncated_product", x.shape, y.shape)
    if bias is not None:
        _operands(x, bias)
        if bias.fractional_bits != x.fractional_bits + y.fractional_bits:
            raise UsageError(
                "truncated_product wants its bias at the scale of the product, "
                f"{x.fractional_bits + y.fractional_bits} fractional bits. Received: {bias!r}."
            )
    scale, width = x.fractional_bits + y.fractional_bits - drop, drop + bits
    if isinstance(party, Counting):
        z = two([x.any], [y.any])
        _fits(bias, z)
        n = z.shape.num_elements()
        m = party.sent(truncated_product_cost(n, drop, bits), z.shape, x, y, bias)
        return Shared(m, None, None, x.dealer, scale, 1, bits)
    import tensorflow as tf

    s = party.site("truncated_product", drop, bits, bias is not None, dealer=x.dealer)
    m = None
    if s.is_dealer:
        with s.in_turn():
            gamma = two([x.l1 + x.l2], [y.l1 + y.l2])
        _fits(bias, gamma)
        s.send(pack(s.apply_mask(gamma, K1, 0, "sub"), width), s.e2, 0, run_ahead=True)
        shape = tf.shape(gamma, out_type=tf.int64)
    else:
        if s.is_e1:
            crossed = two([x.m, x.l1], [y.l1, y.m])
            _fits(bias, crossed)
            z = s.apply_mask(-crossed, K1, 0, "add", sent=False)
            z = z if bias is None else z + (bias.m - bias.l1)
            u = local.arithmetic_shift(z, drop)
        else:
            crossed = two([x.m, x.l2], [y.m - y.l2, -y.m])
            _fits(bias, crossed)
            shape = tf.shape(crossed, out_type=tf.int64)
            z = crossed + unpack(s.recv(bytes_of(shape, width), s.d, 0, tf.uint8), shape, width)
            z = z if bias is None else z - bias.l2
            u = -local.arithmetic_shift(-z, drop)
        shape = tf.shape(u, out_type=tf.int64)
        m = open_mask_short(s, u, tensor=1, slot=1, width=bits)
    l1, l2 = s.new_mask(shape, tensor=1)
    return Shared(m, l1, l2, x.dealer, scale, 1, bits)


def _operands(x: Shared, y: Shared) -> None:
    for operand in (x, y):
        if not isinstance(operand, Shared):
            raise UsageError(
                "truncated_product wants private tensors. "
                f"Received: {type(operand).__name__}. Use matmul_public and truncate for a public "
                "operand."
            )
        if operand.limbs != 1 or operand.ring_bits != RING:
            raise UsageError(f"truncated_product works over Z_2^64. Received: {operand!r}.")
    arithmetic.check_pair("truncated_product", x, y, same_scale=False)


def _fits(bias: Shared | None, product: Any) -> None:
    """Refuses a bias that would make the product larger than what D deals for."""
    if bias is None:
        return
    try:
        joint = local.broadcast_shape(product.shape, bias.shape)
    except ValueError:
        joint = None
    if joint is None or not joint.is_compatible_with(product.shape):
        raise UsageError(
            "truncated_product wants a bias that broadcasts to the product's shape "
            f"{product.shape}. Received: {bias!r}."
        )


def truncated_product_cost(n: int, drop: int, bits: int = compare.LAYER_BITS) -> Cost:
    """Cost of `truncated_product` for n result elements."""
    opened = packed(n, bits)
    return Cost(packed(n, drop + bits), opened, opened, rounds=1, cold=2)


def _check(name: str, x: Shared) -> bool:
    """Whether x is of a small ring."""
    if not isinstance(x, Shared):
        raise UsageError(f"{name} wants a private tensor. Received: {type(x).__name__}.")
    if x.limbs != 1:
        raise UsageError(f"{name} works over Z_2^64 or a smaller ring. Received: {x!r}.")
    return x.ring_bits < RING

"""ReLU and its derivative: a comparison with 0, its bit exchanged under a mask, one bit injection.

For a product that has not been truncated yet, `truncated_product` exchanges it directly in a small
ring (T4) and `relu` lifts the result to Z_2^64: convolution, truncation and ReLU then take 5 rounds
in all.
"""

from __future__ import annotations

from tfe_bench.protocols.ring import checks, compare, convert, logic, small_ring
from tfe_bench.protocols.ring.products import (
    BilinearMap,
    BilinearShareProduct,
    exchange_truncated_sum,
    sum_matrix_products,
)
from tfe_bench.protocols.session import tensor_ops
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import MaskedBits, Shared

RING = 64


def relu(
    party: Party,
    x: Shared,
    bits: int = compare.LAYER_BITS,
    exchanges: int | None = 2,
) -> Shared:
    """Compute max(x, 0), exact for |x| < 2^(bits-1) ring units.

    Args:
        x: of Z_2^64, or of a small ring Z_2^k as a result of `truncate_reduce` or
            `truncated_product`; then k replaces bits, and the result is in Z_2^64.
        bits: width of the comparison. Outside it the sign may be wrong: the result is then still x
            or 0, and nothing leaks.
        exchanges: of the comparison, 1 to 3; more rounds send fewer bits.

    Rounds: exchanges + 2 online, exchanges + 3 in total. Bits sent: those of msb, mask_bits and
    inject.
    """
    return relu_with_derivative(party, x, bits, exchanges)[0]


def relu_with_derivative(
    party: Party,
    x: Shared,
    bits: int = compare.LAYER_BITS,
    exchanges: int | None = 2,
) -> tuple[Shared, MaskedBits]:
    """Return (max(x, 0), [x < 0]): the bits, exchanged under a mask, also serve the backward pass.

    Rounds and bits: as `relu`.
    """
    is_small = _is_small_ring_relu("relu", x)
    negative = convert.mask_bits(
        party, compare.msb(party, x, x.ring_bits if is_small else bits, exchanges)
    )
    return convert.inject(party, negative, x, negated=True, extend_ring=is_small), negative


def relu_in(
    party: Party, x: Shared, bits: int, exchanges: int | None = 2, to: int | None = None
) -> Shared:
    """Compute max(x, 0) in x's ring Z_2^k, or in a larger one, for |x| < 2^(bits-1) and bits <= k.

    This suits results of which few bits are read, or many values: a selection in x's own ring sends
    4k bits, `relu` 256 and more. Each bit of a larger ring costs four bits and comes a round later.

    Args:
        to: ring of the result; None: x's own.

    Rounds: as `relu`, and 1 more to a larger ring. Bits sent: those of msb, mask_bits and
    small_ring.zero_shares_where.
    """
    checks.check_private_word_tensor("relu", x)
    negative = convert.mask_bits(party, compare.msb(party, x, bits, exchanges))
    return small_ring.zero_shares_where(party, negative, x, to or x.ring_bits)


def relu_derivative(
    party: Party, x: Shared, bits: int = compare.LAYER_BITS, exchanges: int | None = 2
) -> Shared:
    """Return [x >= 0] as ring elements 0 and 1; |x| < 2^(bits-1). At 0 it is 1 (in TensorFlow 0).

    Rounds: exchanges + 2 online, exchanges + 3 in total. Bits sent: those of msb, mask_bits and
    b2a.
    """
    is_small = _is_small_ring_relu("relu derivative", x)
    negative = convert.mask_bits(
        party, compare.msb(party, x, x.ring_bits if is_small else bits, exchanges)
    )
    return convert.b2a(party, logic.invert_bits(negative), tensor_ops.dynamic_shape(x.any))


def truncated_product(
    party: Party,
    x: Shared,
    y: Shared,
    drop: int,
    bits: int = compare.LAYER_BITS,
    bilinear: BilinearMap | None = None,
    bias: Shared | None = None,
) -> Shared:
    """Compute (x . y + bias) / 2^drop in Z_2^bits, stochastically rounded; never fails (T4).

    Error: (-1, 1) ulp.

    Args:
        drop: fractional bits to drop.
        bits: k; right for |x . y + bias| <= 2^(k-1+drop) - 2^drop (rounding of a larger value could
            reach 2^(k-1), which reads as negative).
        bilinear: sum of products of paired operands; None is matmul.
        bias: private, at the scale of the product, broadcast to it.

    Rounds: 1 online, 2 in total. Bits sent: D drop + bits + 1, E1, E2 bits per element of the
        result.
    Raises:
        UsageError: rings, dealers or shapes do not fit; bits + drop exceeds 64.
    """
    bilinear = sum_matrix_products if bilinear is None else bilinear
    checks.check_factors("truncated_product", x, y)
    if bilinear is sum_matrix_products:
        checks.check_matmul_shapes("truncated_product", x.shape, y.shape)
    if bias is not None:
        checks.check_private_64bit_tensor("truncated_product", bias)
    product = BilinearShareProduct(x, y, bilinear)
    return exchange_truncated_sum(party, "truncated_product", [product], bias, drop, bits)[0]


def _is_small_ring_relu(name: str, x: Shared) -> bool:
    """Return whether x is of a small ring."""
    return checks.check_private_word_tensor(name, x).ring_bits < RING

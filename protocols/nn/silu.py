"""SiLU (swish), x sigmoid(x), and its slope.

Source: Elfwing, Uchibe and Doya, Sigmoid-weighted linear units, 2018; the protocol is this
project's.
"""

from __future__ import annotations

import functools
from decimal import Decimal

from tfe_bench.protocols.functions import polynomial, small_product
from tfe_bench.protocols.nn import activations, gated
from tfe_bench.protocols.ring import compare
from tfe_bench.protocols.ring.checks import check_fractional_bits_range, check_private_64bit_tensor
from tfe_bench.protocols.session import slices, tensor_ops
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared

# The tail is multiplied by up to 14, so it has this many fractional bits more than x.
_EXTRA_BITS = 5


@slices.slice_elementwise
def silu(
    party: Party, x: Shared, bits: int = compare.LAYER_BITS, exchanges: int | None = None
) -> Shared:
    """Compute x / (1 + e^-x), error below 2 ulp, for every |x| < 2^(bits-1) ring units.

    silu(x) = max(x, 0) - a h(a) with a = |x| and sigmoid's tail h(a) = e^-a / (1 + e^-a). Where
    sigmoid counts as 0 or 1, a is 0, and silu is exactly 0 or x.

    Args:
        exchanges: of the comparisons; None: 1 for few elements, 2 for many.

    Rounds: exchanges + 5 online, exchanges + 6 in total. Bits sent: those of
    activations.sigmoid_parts and of the last step.
    Raises:
        UsageError: another ring, fewer than 8 or more than 16 fractional bits.
    """
    check_fractional_bits_range(
        "silu", check_private_64bit_tensor("silu", x, known=True), gated.MIN_BITS, gated.MAX_BITS
    )
    shape, tail_bits = x.shape.as_list(), x.fractional_bits + _EXTRA_BITS
    flat = x.map(lambda a: tensor_ops.reshape(a, [-1]))
    parts = activations.sigmoid_parts(party, flat, tail_bits, bits, exchanges)
    term = _plan_silu_product(x.fractional_bits), [parts.magnitude, parts.tail]
    y = gated.relu_minus_terms(party, "silu", parts.negative, flat, [term])
    return y.map(lambda a: tensor_ops.reshape(a, shape))


@functools.cache
def _plan_silu_product(f: int) -> polynomial.Plan:
    """Plan |x| h: |x| is at most the cutoff of sigmoid, h at most 1/2 plus a rounding error."""
    return small_product.plan_product(
        [activations.saturation_units(f).bit_length() + 1, f + _EXTRA_BITS + 1], f + _EXTRA_BITS
    )


# ---- the slope, for gradients


def _silu_slope(x: Decimal) -> Decimal:
    rising = 1 / (1 + (-x).exp())
    return rising + x * rising * (1 - rising)


slope = gated.Slope("silu_slope", _silu_slope, 10)

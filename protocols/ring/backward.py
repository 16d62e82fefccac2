"""Bit times value with the truncation in the same round: the gradient of a ReLU.

With T = 2^62 - 2^(f-1) and every part shifted logically, without a message,

    m' = (m + T) >> f,   l1' = l1 >> f,   l2' = l2 >> f,   k = 64 - f,

m' - l1' - l2' mod 2^k is x / 2^f + 2^(62-f), rounded: the three dropped fractions are off by
(-1, 2) units, and T subtracts half a unit. That value lies in [0, 2^(k-1)), so that as an integer
it is m' - lam + 2^k (1 - msb m') msb(lam) with lam = l1' + l2' - 2^k om: the value that
`convert.inject` with extend_ring multiplies with a bit. No step can fail, unlike a shift of the
share after the injection, whose wrap no party knows.
"""

from __future__ import annotations

from tfe_bench.errors import UsageError
from tfe_bench.protocols.ring import convert, masked
from tfe_bench.protocols.ring.checks import check_private_64bit_tensor, is_integer_between
from tfe_bench.protocols.ring.truncation import MAX_DROPPED_BITS
from tfe_bench.protocols.session import slots, tensor_ops
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import MaskedBits, Shared

RING = 64
# Mask numbers that an injection uses.
MASKS = 5


def _check_injection(bits: MaskedBits, x: Shared, drop: int) -> None:
    convert.check_inject("inject_truncated", bits, x)
    check_private_64bit_tensor("inject_truncated", x)
    if not is_integer_between(drop, 1, MAX_DROPPED_BITS):
        raise UsageError(
            f"inject_truncated drops 1 to {MAX_DROPPED_BITS} bits. Received: {drop!r}. "
            "Use convert.inject to drop none.",
            code="number-out-of-range",
            operation="inject_truncated",
            received=drop,
        )


def inject_truncated(
    party: Party, bits: MaskedBits, x: Shared, drop: int, *, negated: bool = False
) -> Shared:
    """Compute b * x / 2^drop, stochastically rounded, for bits in the row-major order of x's
    elements.

    With v = x / 2^drop as in the module's formula, b v = o v + (1 - 2o) beta v. D deals beta, beta
    lam (64 bits each) and om, msb(lam), beta msb(lam) (drop bits each, as they count 2^(64-drop)).

    Args:
        x: over Z_2^64, |x| < 2^62 - 2^(drop+1) in ring units; never fails there.
        drop: 1 to 48; the result has that many fractional bits fewer.
        negated: compute (1 - b) * x / 2^drop instead, for a ReLU's gradient with b = [z < 0].

    Off by less than 1.5 ulp, 2^-(drop+1) ulp in the mean; 0 exactly where the bit is 0.
    Rounds: 1 online (2 total). Bits sent: D 128 + 3 drop, E1, E2 64 per element each.
    Raises:
        UsageError: bits and x of different dealers or numbers, another ring, a wrong drop.
    """
    _check_injection(bits, x, drop)
    scale = x.fractional_bits - drop
    s = party.site(
        "inject_truncated",
        drop,
        negated,
        dealer=x.dealer,
        slots={**convert.list_injection_slots(ring_bits=RING - drop), 1: slots.declare_exchanged()},
    )
    share = convert.inject_shares(s, bits, x, 0, 0, negated=negated, output_mask=MASKS, drop=drop)
    return masked.exchange_masked(
        s, share, tensor_ops.dynamic_shape(x.any), MASKS, 1, scale=scale, is_masked=True
    )

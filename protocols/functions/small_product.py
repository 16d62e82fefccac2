"""Products of two or three small values with a truncation that never fails, in one round.

The polynomial x y (z) of protocols/functions/polynomial.py: D deals the products of every subset of
the masks, for each combination of their wraps. Compared with `mul` and `truncate` this saves a
round and accepts factors of small rings; it costs more dealt bits.
"""

from __future__ import annotations

from collections.abc import Sequence

from tfe_bench.errors import UsageError
from tfe_bench.protocols.functions import polynomial
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared


def plan_product(
    bits: Sequence[int], drop: int, out_bits: int = polynomial.RING
) -> polynomial.Plan:
    """Return the plan of a product: |factor| < 2^(bits - 1) each."""
    if len(bits) not in (2, 3):
        raise UsageError(
            f"product takes two or three factors. Received: {len(bits)}.",
            code="operand-count",
            operation="product",
            received=len(bits),
            expected="2 or 3",
        )
    # D rounds nothing: a product with an exact zero stays zero.
    return polynomial.plan_polynomial(bits, {(1,) * len(bits): 1}, drop, out_bits, slack=None)


def multiply_small(
    party: Party,
    factors: Sequence[tuple[Shared, int]],
    drop: int,
    out_bits: int = polynomial.RING,
) -> Shared:
    """Compute x y / 2^drop or x y z / 2^drop, stochastically rounded, in Z_2^out_bits.

    Args:
        factors: two or three of one shape, each with its bits: |x| < 2^(bits - 1) in ring units,
            in a ring of more than 2^bits (64-bit or smaller). Values outside give arbitrary
            results.
        drop: bits dropped, also from the scale; drop + out_bits <= 256.

    Off by less than 1 ulp, for all values; a product that is zero is zero.
    Rounds: 1 online (2 total). Bits sent: D 8 (drop + out_bits) per element for two factors, 26
        times that sum for three; E1, E2 out_bits each.
    Raises:
        UsageError: another number of factors, of different dealers, or in too small a ring.
    """
    p = plan_product([bits for _, bits in factors], drop, out_bits)
    scale = sum(x.fractional_bits for x, _ in factors) - drop
    return polynomial.evaluate_polynomial(party, "product", p, [x for x, _ in factors], scale)

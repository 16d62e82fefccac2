"""Softsign, x / (1 + |x|)."""

from __future__ import annotations

from tfe_bench.protocols.functions import reciprocal
from tfe_bench.protocols.nn import relu
from tfe_bench.protocols.ring import arithmetic, compare, convert
from tfe_bench.protocols.ring.checks import check_fractional_bits_range, check_private_64bit_tensor
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared


def softsign(
    party: Party, x: Shared, bits: int = compare.LAYER_BITS, exchanges: int | None = None
) -> Shared:
    """Compute x / (1 + |x|), error below 1.5 ulp and 2^-20, for every |x| < 2^(bits-1) ring units.

    It is 1 - 1 / (1 + |x|), with the sign of x.

    Args:
        exchanges: of the comparison; None: 1 for few elements, 2 for many.

    Rounds: those of relu.relu, reciprocal.reciprocal and an injection.
    Raises:
        UsageError: another ring, or fewer than 8 or more than 20 fractional bits.
    """
    return softsign_with_reciprocal(party, x, bits, exchanges)[0]


def softsign_with_reciprocal(
    party: Party, x: Shared, bits: int = compare.LAYER_BITS, exchanges: int | None = None
) -> tuple[Shared, Shared]:
    """Return the value, and 1 / (1 + |x|), whose square is the derivative.

    Rounds: as `softsign`.
    """
    check_fractional_bits_range(
        "softsign", check_private_64bit_tensor("softsign", x, known=True), 8, 20
    )
    one = 1 << x.fractional_bits
    count = compare.default_exchanges(x.shape.num_elements(), bits, exchanges)
    positive, negative = relu.relu_with_derivative(party, x, bits, count)
    magnitude = arithmetic.sub(arithmetic.add(positive, positive), x)
    width = compare.comparison_bits_with_constant(bits, one) - 1
    reciprocal_part = reciprocal.reciprocal(party, arithmetic.add_constant(magnitude, one), width)
    unsigned_value = arithmetic.add_constant(arithmetic.neg(reciprocal_part), one)
    negative_part = convert.inject(party, negative, unsigned_value)
    return arithmetic.sub(
        unsigned_value, arithmetic.add(negative_part, negative_part)
    ), reciprocal_part

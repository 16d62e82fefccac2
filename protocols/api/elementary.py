"""Elementary functions of private tensors: e^x, ln(x), 1 / x, roots, sines, erf and polynomials.

The party is that of the running program; errors name the public function.
"""

from __future__ import annotations

from tfe_bench.errors import UsageError
from tfe_bench.protocols.api import operands
from tfe_bench.protocols.functions import (
    error_function,
    exponential,
    logarithm,
    polynomial,
    roots,
    trigonometry,
)
from tfe_bench.protocols.functions import (
    reciprocal as reciprocals,
)
from tfe_bench.protocols.ring import checks, compare, shapes
from tfe_bench.protocols.session.party import current_party
from tfe_bench.protocols.session.sharing import Shared
from tfe_bench.protocols.session.types import Operand, Public


@operands.check_arguments()
def exp(x: Shared, method: str = "one-round", clamp: str = "both") -> Shared:
    """Compute e^x at x's scale.

    Args:
        method: "one-round", or the forms that exponential.py compares.
        clamp: "both": outside the method's range (exponential.choose_exp_form) the values of its
            ends, which are 0 and the largest; "low": of its lower end only; "none": garbage.

    Error: relative 2^-29 and 1 ulp at 16 fractional bits.
    Rounds: 4 online, 5 in total; 1 without clamp. Bits sent: those of exponential.exp.
    """
    return exponential.exp(current_party(), x, method, clamp)


@operands.check_arguments(scale=(1, 24), max_bits=62)
def log(x: Shared, bits: int = 62) -> Shared:
    """Compute ln(x) at x's scale for 0 < x < 2^bits ring units; -f ln(2) for x <= 0.

    Error, rounds and bits: logarithm.log (2^-18 and 1.1 ulp at 16 fractional bits, 8 rounds).
    """
    return logarithm.log(current_party(), x, bits)


@operands.check_arguments(scale=(1, 24), max_bits=62)
def reciprocal(x: Shared, signed: bool = True, bits: int = 62) -> Shared:
    """Compute 1 / x at x's scale for 0 < |x| < 2^bits ring units; 0 for x = 0.

    Args:
        signed: x of either sign; False requires x > 0 (else 0) and sends a quarter less.

    Error, rounds and bits: reciprocal.reciprocal (relative 2^-20 and 1.2 ulp, 9 rounds).
    """
    return reciprocals.reciprocal(current_party(), x, bits, signed=signed)


@operands.check_arguments(scale=(1, 24), max_bits=62)
def sqrt(x: Shared, bits: int = 62) -> Shared:
    """Compute sqrt(x) at x's scale for 0 < x < 2^bits ring units; 0 for x <= 0.

    Error, rounds and bits: roots.sqrt (relative 2^-20 and 1.2 ulp, 9 rounds).
    """
    return roots.sqrt(current_party(), x, bits)


@operands.check_arguments(scale=(1, 24), max_bits=62)
def rsqrt(x: Shared, bits: int = 62) -> Shared:
    """Compute 1 / sqrt(x); as `sqrt`."""
    return roots.rsqrt(current_party(), x, bits)


@operands.check_arguments(scale=(1, trigonometry.MAX_FRACTIONAL_BITS), known=True)
def sin(x: Shared) -> Shared:
    """Compute sin(x), at x's scale of 1 to 16 fractional bits.

    Error: below 2 ulp, and |x| 2^(f-62), which is a quarter of an ulp at |x| = 2^28 for f = 16; for
    all encoded x.
    Rounds: 5 online, 6 in total. Bits sent: those of trigonometry.sine.
    """
    return trigonometry.sine(current_party(), x, 0)


@operands.check_arguments(scale=(1, trigonometry.MAX_FRACTIONAL_BITS), known=True)
def cos(x: Shared) -> Shared:
    """Compute cos(x); as `sin`."""
    return trigonometry.sine(current_party(), x, 1)


def atan2(y: Operand, x: Operand, bits: int = compare.LAYER_BITS) -> Shared:
    """Compute the angle of the point (x, y), -pi to pi, broadcast; 0 for (0, 0). One may be public.

    Args:
        y, x: of one scale of 1 to 16 fractional bits.
        bits: |x|, |y| < 2^(bits-1) ring units; 2 to 31.

    Error: below 4 ulp. Rounds: 21 online, 22 in total. Bits sent: those of trigonometry.atan2.
    """
    bits = operands.check_comparison_width("atan2", bits, trigonometry.MAX_COMPARED_BITS)
    y, x = operands.share_operand_pair("atan2", y, x)
    y, x = operands.check_private_operand("atan2", y), operands.check_private_operand("atan2", x)
    checks.check_fractional_bits_range("atan2", x, 1, trigonometry.MAX_FRACTIONAL_BITS)
    operands.sizes("atan2", x)
    operands.sizes("atan2", y)
    result_shape = operands.broadcast_shapes("atan2", y.shape, x.shape).as_list()
    y, x = shapes.broadcast_to(y, result_shape), shapes.broadcast_to(x, result_shape)
    return trigonometry.atan2(operands.require_party_in_graph("atan2"), y, x, bits)


@operands.check_arguments(
    scale=(error_function.MIN_FRACTIONAL_BITS, error_function.MAX_FRACTIONAL_BITS),
    max_bits=62,
    known=True,
)
def erf(x: Shared, bits: int = compare.LAYER_BITS) -> Shared:
    """Compute the error function, at x's scale of 8 to 16 fractional bits.

    Args:
        bits: |x| < 2^(bits-1) ring units; 2 to 62.

    Error: below 3 ulp. Rounds: 10 online, 11 in total. Bits sent: those of error_function.erf.
    """
    return error_function.erf(current_party(), x, bits)


@operands.check_arguments(max_bits=63)
def polyval(coeffs: Public, x: Shared, bits: int = compare.LAYER_BITS) -> Shared:
    """Evaluate p(x) for public coefficients, the highest power first, as tf.math.polyval.

    Args:
        bits: |x| < 2^(bits-1) ring units, else garbage; fewer permit higher degrees (6 for 31).

    Error: below 1.2 ulp. Rounds: 1 online, 2 in total. Bits sent: those of polynomial.polyval.
    """
    coefficients = operands.static_public_operand("polyval", coeffs)
    if coefficients is None or coefficients.ndim != 1:
        raise UsageError(
            "polyval expects a list of public coefficients known while tracing. "
            f"Received: {operands.describe_type(coeffs)}.",
            code="not-static" if coefficients is None else "rank-mismatch",
            operation="polyval",
            received=operands.describe_type(coeffs),
        )
    try:
        return polynomial.polyval(current_party(), coefficients.tolist(), x, bits)
    except UsageError as error:
        if str(error).startswith("polyval"):
            raise
        text = f"polyval of degree {len(coefficients) - 1}: {error} Or give bits."
        raise error.with_text(text, "polyval") from None

"""Powers x ** y with public and private exponents."""

from __future__ import annotations

import numpy as np

from tfe_bench.errors import UsageError
from tfe_bench.protocols.api import elementary, operands
from tfe_bench.protocols.api.operators import multiply, square
from tfe_bench.protocols.ring import arithmetic, checks
from tfe_bench.protocols.session import tensor_ops
from tfe_bench.protocols.session.sharing import Shared
from tfe_bench.protocols.session.types import Operand, Public

MAX_POWER = 64


def pow(x: Operand, y: Operand) -> Shared:
    """Compute x ** y for a whole number y from -64 to 64, another public number, or a private one.

    Args:
        x: private; with a private y also public positive numbers. If y is not a whole number, x >
            0: other x count as one ulp (for 1/2 and -1/2: see `sqrt` and `rsqrt`).
        y: one public number, or private, broadcast. x ** 0 is 1, for x = 0 too.

    A whole y uses repeated squaring, of 1 / x if it is negative (0 for x = 0); 1/2 and -1/2 are
    `sqrt` and `rsqrt`; all others are e^(y ln(x)), where y ln(x) is below 31.8 and |y| below 2^14.
    Error: of each product 1 ulp, in all at most n max(|x|, 1)^(n-1) ulp; for a negative y also that
    of 1 / x; of e^(y ln(x)) relative (1.4 |y| + 1.2) 2^-f, and 1.1 ulp.
    Rounds: 2 for each binary digit of n after the first, and 2 more if more than one digit is 1; 9
    more for a negative y. e^(y ln(x)): 13 or 14.
    Raises:
        UsageError: integers with a y that is not a whole number from 0 to 64.
    """
    if operands.is_private(y):
        return _private_power(x, operands.check_private_operand("pow", y))
    exponent = operands.static_public_operand("pow", y)
    is_usable = exponent is not None and exponent.size == 1 and exponent.dtype.kind != "b"
    if exponent is None or not is_usable or not np.isfinite(exponent).all():
        raise UsageError(
            "pow expects one public number known while tracing, or a private tensor, as "
            f"its exponent. Received: {operands.describe_type(y)}. Compute the powers "
            "one by one.",
            code="not-static" if exponent is None else "unsupported-argument",
            operation="pow",
            received=operands.describe_type(y),
        )
    x, power = operands.check_private_operand("pow", x), float(exponent.item())
    if power == int(power):
        return _whole_power(x, int(power))
    checks.check_fractional_bits_range("pow", x, 1, 24)
    if power in (0.5, -0.5):
        return elementary.sqrt(x) if power > 0 else elementary.rsqrt(x)
    return elementary.exp(multiply(elementary.log(x), power))


def _whole_power(x: Shared, n: int) -> Shared:
    description = f"a whole exponent from {-MAX_POWER} to {MAX_POWER}"
    advice = " Use exp and log for others."
    operands.check_integer_range("pow", n, -MAX_POWER, MAX_POWER, description, advice=advice)
    if n < 0:
        checks.check_fractional_bits_range("pow", x, 1, 24)
        x, n = elementary.reciprocal(x), -n
    result: Shared | None = None
    while n:
        if n & 1:
            result = x if result is None else multiply(result, x)
        n >>= 1
        if n:
            x = square(x)
    if result is None:
        return arithmetic.add_constant(x.map(tensor_ops.zeros_like), 1 << x.fractional_bits)
    return result


def _private_power(x: Operand, y: Shared) -> Shared:
    """Compute e^(y ln(x)); the logarithm of a public x is computed in plaintext."""
    checks.check_fractional_bits_range("pow", y, 1, 24)
    if not operands.is_private(x):
        return elementary.exp(multiply(y, _public_logarithms(x)))
    base, y = operands.share_operand_pair("pow", x, y)
    return elementary.exp(multiply(y, elementary.log(base)))


def _public_logarithms(x: Public) -> Public:
    bases = operands.static_public_operand("pow", x)
    if bases is None or not np.all(np.isfinite(bases)) or np.any(bases <= 0):
        raise UsageError(
            "pow expects public bases that are positive, finite and known while tracing "
            f"with a private exponent. Received: {operands.describe_type(x)}.",
            code="not-static" if bases is None else "number-out-of-range",
            operation="pow",
            received=operands.describe_type(x),
            expected="positive numbers",
        )
    return np.log(bases.astype(np.float64))

"""Parameters of the three schemes, and their security by the standard's table.

Source: Albrecht et al., Homomorphic Encryption Security Standard (2018), table 1: uniform ternary
secrets, errors of standard deviation 3.2, classical attacks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tfe_bench.errors import SecurityError, UsageError, check_known, check_range

SCHEMES: Final = ("BFV", "BGV", "CKKS")
DEGREES: Final = (4096, 8192, 16384)
LEAST_SECURITY: Final = 128

# The most bits of the whole coefficient modulus, special prime included, by degree: at least 128,
# 192 and 256 bits of security.
_MOST_BITS: Final[Mapping[int, tuple[int, int, int]]] = {
    1024: (27, 19, 14),
    2048: (54, 37, 29),
    4096: (109, 75, 58),
    8192: (218, 152, 118),
    16384: (438, 305, 237),
    32768: (881, 611, 476),
}
_LEVELS: Final = (128, 192, 256)
_PRIME_BITS: Final = (20, 60)  # SEAL's limits without the smallest sizes, which have few primes
_MOST_PRIMES: Final = 40

# The library's own primes for 128 bits.
_USUAL: Final[Mapping[int, tuple[int, ...]]] = {
    1024: (27,),
    2048: (54,),
    4096: (36, 36, 37),
    8192: (43, 43, 44, 44, 44),
    16384: (48, 48, 48, 49, 49, 49, 49, 49, 49),
    32768: (*(55,) * 15, 56),
}
_PLAIN_BITS: Final = 20
# For CKKS the same number: all but the first and the special one are near the scale.
_USUAL_CKKS: Final[Mapping[int, tuple[int, ...]]] = {
    **_USUAL,
    4096: (40, 30, 39),
    8192: (47, 36, 36, 36, 60),
    16384: (58, *(40,) * 7, 60),
    32768: (60, *(50,) * 14, 60),
}


def estimate_security(degree: int, total_bits: int) -> int:
    """Return the bits of security by the standard's table: 256, 192, 128, or 0 for less.

    Raises:
        UsageError: the table does not list the degree.
    """
    if degree not in _MOST_BITS:
        raise UsageError(
            f"The degree is a power of two from {min(_MOST_BITS)} to {max(_MOST_BITS)}. "
            f"Received: {degree}.",
            code="degree-not-supported",
            received=degree,
        )
    granted = zip(_LEVELS, _MOST_BITS[degree], strict=True)
    return max((level for level, most in granted if total_bits <= most), default=0)


@dataclass(frozen=True)
class Parameters:
    """Parameters of one scheme.

    Args:
        scheme: "BFV", "BGV" or "CKKS".
        degree: N of the ring Z[X]/(X^N + 1).
        prime_bits: bits of the coefficient modulus' primes, the special prime of key switching
            last.
        precision_bits: bits of CKKS' scale, or of the other schemes' plaintext modulus.
        insecure: accept less than 128 bits of security, for comparison.

    Raises:
        UsageError: the parameters are invalid.
        SecurityError: they have less than 128 bits of security by the standard.
    """

    scheme: str
    degree: int
    prime_bits: tuple[int, ...]
    precision_bits: int
    insecure: bool = False

    def __post_init__(self) -> None:
        check_known("scheme", self.scheme, SCHEMES)
        granted = estimate_security(self.degree, self.total_bits)
        if not 2 <= len(self.prime_bits) <= _MOST_PRIMES:
            raise UsageError(
                "A coefficient modulus has two primes, the last of them for key switching, to "
                f"{_MOST_PRIMES}. Received: {len(self.prime_bits)}."
                + (" Take a degree of 4096 or more." if self.degree < 4096 else ""),
                code="number-out-of-range",
                operation="primes",
                received=len(self.prime_bits),
            )
        for bits in self.prime_bits:
            check_range("A prime's bits", bits, *_PRIME_BITS)
        precision_name = (
            "The scale's bits" if self.scheme == "CKKS" else "The plaintext modulus' bits"
        )
        least = self.degree.bit_length() + 1  # batching needs a prime that is 1 modulo 2N
        check_range(precision_name, self.precision_bits, 10 if self.scheme == "CKKS" else least, 59)
        room = sum(self.prime_bits[:-1])
        if self.precision_bits + 1 >= room:
            raise UsageError(
                f"{precision_name} leave no room in the modulus. Received: {self.precision_bits} "
                f"of {room}. Take fewer, or larger primes.",
                code="no-room-in-modulus",
                received=self.precision_bits,
                expected=f"below {room - 1}",
            )
        if granted < LEAST_SECURITY and not self.insecure:
            raise SecurityError(
                f"N = {self.degree} has {LEAST_SECURITY} bits of security with a modulus of at "
                f"most {_MOST_BITS[self.degree][0]} bits. Received: {self.total_bits}. Take a "
                "larger degree or smaller primes; --insecure-for-comparison measures them "
                "nevertheless.",
                code="insecure-parameters",
                received=self.total_bits,
                expected=f"at most {_MOST_BITS[self.degree][0]}",
            )

    @property
    def total_bits(self) -> int:
        """Bits of the whole modulus."""
        return sum(self.prime_bits)

    @property
    def security_bits(self) -> int:
        """Bits of security by the standard: 256, 192, 128, or 0 for less."""
        return estimate_security(self.degree, self.total_bits)

    @property
    def slots(self) -> int:
        """Number of values in a ciphertext."""
        return self.degree // 2 if self.scheme == "CKKS" else self.degree

    @property
    def levels(self) -> int:
        """Number of primes of a fresh ciphertext."""
        return len(self.prime_bits) - 1

    def as_json(self) -> dict[str, Any]:
        """Return the parameters for a record."""
        named = "scale_bits" if self.scheme == "CKKS" else "plaintext_modulus_bits"
        return {
            "scheme": self.scheme,
            "degree": self.degree,
            "prime_bits": list(self.prime_bits),
            named: self.precision_bits,
            "security_bits": self.security_bits,
        }


def usual_primes(scheme: str, degree: int) -> tuple[int, ...]:
    """Return the bits of a scheme's default primes at a degree; () if it has none."""
    return (_USUAL_CKKS if scheme == "CKKS" else _USUAL).get(degree, ())


def choose_scheme_parameters(
    scheme: str, degree: int, prime_bits: Sequence[int] | None = None, insecure: bool = False
) -> Parameters:
    """Choose the default primes of a degree, or the given ones, and a fitting scale or modulus.

    Raises:
        UsageError, SecurityError: as in `Parameters`.
    """
    estimate_security(degree, 0)
    bits = tuple(prime_bits or usual_primes(scheme, degree))
    if scheme != "CKKS":
        return Parameters(scheme, degree, bits, _PLAIN_BITS, insecure)
    # a product of two has twice the scale and some bits more
    scale = max(10, min((*bits[1:-1], (sum(bits[:-1]) - 6) // 2, 50)))
    return Parameters(scheme, degree, bits, scale, insecure)


def make_context(seal: Any, parameters: Parameters) -> Any:
    """Create the library's context.

    Raises:
        UsageError: the library rejects the parameters.
    """
    seal_parameters = seal.EncryptionParameters(
        getattr(seal.scheme_type, parameters.scheme.lower())
    )
    seal_parameters.set_poly_modulus_degree(parameters.degree)
    try:
        seal_parameters.set_coeff_modulus(
            seal.CoeffModulus.Create(parameters.degree, list(parameters.prime_bits))
        )
        if parameters.scheme != "CKKS":
            seal_parameters.set_plain_modulus(
                seal.PlainModulus.Batching(parameters.degree, parameters.precision_bits)
            )
    except (RuntimeError, ValueError) as error:  # too few primes of that size
        raise UsageError(
            f"The library has no such primes for N = {parameters.degree}. Received: "
            f"{', '.join(map(str, parameters.prime_bits))}. Take larger ones.",
            code="primes-not-available",
            received=parameters.prime_bits,
        ) from error
    levels = seal.sec_level_type
    context = seal.SEALContext(
        seal_parameters, True, levels.none if parameters.insecure else levels.tc128
    )
    if not context.parameters_set():
        raise UsageError(
            f"The library rejects the parameters: {context.parameter_error_message()}. Choose "
            "other ones.",
            code="parameters-rejected",
        )
    return context

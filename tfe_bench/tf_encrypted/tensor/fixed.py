"""Fixed-point configurations by tf-encrypted's names, for 64-bit words."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class FixedpointConfig:
    """The encoding of reals.

    Attributes:
        nbits: of the ring.
        precision_fractional: fractional bits; the other fields are for programs that read them.
    """

    scaling_base: int = 2
    nbits: int = 64
    precision_integral: int = 11
    precision_fractional: int = 16
    matmul_threshold: int = 256
    truncation_gap: int = 0
    use_noninteractive_truncation: bool = False

    @property
    def scaling_factor(self) -> int:
        """The encoding of 1."""
        return int(self.scaling_base**self.precision_fractional)

    @property
    def bound_single_precision(self) -> int:
        """The range of encoded values for which programs are planned."""
        return int(self.scaling_base ** (self.precision_integral + self.precision_fractional))


fixed64_heuristic = FixedpointConfig()
fixed64 = fixed64_heuristic
fixed64_ni = FixedpointConfig(precision_integral=10, precision_fractional=13)

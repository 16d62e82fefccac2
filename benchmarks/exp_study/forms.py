"""The forms of the study: a method with its parameters, in one of the rings."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from tfe_bench.protocols.functions import exponential
    from tfe_bench.protocols.session.cost import Cost

Reals = npt.NDArray[np.float64]

METHODS = ("one-round", "taylor", "prime", "pade")
CLAMPS = ("none", "low", "both")
SOFTMAX = ("one-round", "prime")
"""Methods whose range moves; to the others it makes no difference."""
# As protocols/functions/exponential.py declares them, besides the result's last place.
_RELATIVE = {
    64: {"one-round": 2.0**-29, "prime": 2.0**-10, "pade": 2.0**-12},
    128: {"one-round": 2.0**-44, "prime": 2.0**-21, "pade": 2.0**-13},
}
FRACTIONAL_BITS = {64: 16, 128: 40}
"""Of each ring's fixed point; 40 in the ring of 128 bits is what the published figures used."""


@dataclass(frozen=True)
class ExpForm:
    """One way to compute exp.

    Attributes:
        method: one of METHODS.
        ring_bits: 64 or 128.
        clamp: the clamped ends of the range: "none", "low" or "both".
        iterations: squarings, of "taylor".
        softmax: True if the range lies below 0, as after subtracting the maximum.
        fractional_bits: of x and the result; 0 stands for the ring's default.
    """

    method: str = "one-round"
    ring_bits: int = 64
    clamp: str = "none"
    iterations: int = 8
    softmax: bool = False
    fractional_bits: int = 0

    @property
    def fxp(self) -> int:
        """Number of fractional bits."""
        return self.fractional_bits or FRACTIONAL_BITS[self.ring_bits]

    @property
    def name(self) -> str:
        """Name of the form without its ring: one-round, taylor-8, prime clamp low."""
        words = [self.method]
        if self.method == "taylor":
            words[0] += f"-{self.iterations}"
        if self.softmax:
            words.append("softmax")
        if self.clamp != "none":
            words.append(f"clamp {self.clamp}")
        return " ".join(words)

    @property
    def label(self) -> str:
        """Name of the form with its ring."""
        return f"{self.name} / {self.ring_bits}"

    @property
    def parameters(self) -> dict[str, Any]:
        """Parameters of the program "exp"."""
        return {
            "method": self.method,
            "clamp": self.clamp,
            "iterations": self.iterations,
            "softmax": self.softmax,
        }

    def cost(self, n: int) -> Cost:
        """Return the declared cost of n elements.

        Raises:
            UsageError: there is no such form.
        """
        from tfe_bench.protocols.functions.exponential import exp
        from tfe_bench.protocols.session.counting import Private, cost_of

        x = Private((n,), self.fxp, limbs=self.ring_bits // 64)
        return cost_of(
            exp, x, self.method, self.clamp, iterations=self.iterations, softmax=self.softmax
        )

    def _choose_exp_form(self) -> exponential.ExpForm:
        from tfe_bench.protocols.functions import exponential

        return exponential.choose_exp_form(
            self.method, self.ring_bits, self.fxp, self.clamp, self.softmax, self.iterations
        )

    def valid_range(self) -> tuple[float, float]:
        """Return the declared range of x; a clamp decides the result outside of it."""
        exp_form = self._choose_exp_form()
        return exp_form.lowest_input, exp_form.highest_input

    def useful_range(self) -> tuple[float, float]:
        """Range of x with a useful result; with a clamp also lower x, whose exp is below an ulp."""
        low, high = self.valid_range()
        vanishes = math.exp(max(low, -700.0)) <= 2.0**-self.fxp
        return (-math.inf if self.clamp != "none" and vanishes else low), high

    def relative_error(self, x: Reals) -> Reals:
        """Return the declared relative error of exp(x); the rounding of the result adds to it."""
        if self.method != "taylor":
            return np.full_like(x, _RELATIVE[self.ring_bits][self.method])
        return np.minimum(x**2 / 2.0 ** (self.iterations + 1), 1.0)

    def error_tolerance(self, x: Reals) -> Reals:
        """Return the largest error of a correct result for x of the valid range.

        Twice the declared relative error, and four units of the last place (taylor: 2 * 2^k).
        """
        places = 4 if self.method != "taylor" else 2 * 2**self.iterations
        tolerance: Reals = 2 * self.relative_error(x) * np.exp(x) + places * 2.0**-self.fxp
        return tolerance

    def failure_probability(self) -> float:
        """Return the declared failure probability of one element of the valid range."""
        return self._choose_exp_form().failure_probability


def main_exp_forms() -> list[ExpForm]:
    """Return the four forms in both rings."""
    return [ExpForm(method, ring) for ring in (64, 128) for method in METHODS]


def variant_exp_forms(quick: bool = False) -> list[ExpForm]:
    """Return other clamps, the softmax ranges, and other numbers of squarings."""
    variants = [ExpForm("prime", 128, "low"), ExpForm("prime", 128, "both")]
    variants += [ExpForm(method, ring, softmax=True) for ring in (64, 128) for method in SOFTMAX]
    if not quick:
        variants += [ExpForm("one-round", 128, "low"), ExpForm("one-round", 128, "both")]
        variants.append(ExpForm("pade", 128, "both"))
        variants += [ExpForm("taylor", 128, iterations=k) for k in (4, 6, 10, 12)]
    return variants

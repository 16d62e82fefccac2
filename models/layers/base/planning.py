"""Planning of a model's fixed-point formats from bounds on its values."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

from tfe_bench.models.layers.base import renamed
from tfe_bench.models.layers.base.layer import FixedPointFormat, LayerSpec, Shape

# Comparisons use at most this many bits; larger values get fewer fractional bits.
MOST_BITS = 36
# Values without a product may use this many: the bits that one exchange compares, less 4.
MOST_COMPARED = 44
# With fewer fractional bits than these a value is useless.
FEWEST_BITS = 6
FEWEST_WEIGHT_BITS = 8
# Small values get at most this many more.
MOST_MORE_BITS = 20
# The largest weight of a layer keeps about this many significant bits.
SIGNIFICANT_BITS = 14
MOST_WEIGHT_BITS = 44
# Products stay below 2^62 before truncation (T3).
PRODUCT_BITS = 61
# Fractional bits of the alpha of LeakyReLU, and of the reciprocal of an average's count.
FACTOR_BITS = 24
# Fractional bits of slopes: their rounding is invisible in the whole range.
MOST_FACTOR_BITS = 32


def find_magnitude_exponent(bound: float, fraction: int) -> int:
    """Return m with bound + 2^(1 - fraction) <= 2^m: rounded values still fit."""
    return max(math.ceil(math.log2(bound + 2.0 ** (1 - fraction))), 4 - fraction)


class LayerFormatPlanner:
    """Bounds and scales of the values before a layer; the layer's kind chooses its own format.

    Args:
        inputs: names of the model's inputs.
        outputs: names of values that no layer uses, only the receiver of the outputs.
        bounds: bounds on |v|, by layer and by "layer:sum".
        fraction: fractional bits, where they fit.
        shapes: shapes of all values, without the batch.
        multiplied: names of values that only products with weights use.
    """

    def __init__(
        self,
        inputs: Collection[str],
        outputs: Collection[str],
        bounds: Mapping[str, float],
        fraction: int,
        shapes: Mapping[str, Shape],
        multiplied: Collection[str] = (),
    ) -> None:
        self.shapes = shapes
        self.bounds = dict(bounds)
        self.fraction = fraction
        self.outputs = outputs
        self.numbers: dict[str, FixedPointFormat] = {}
        self.unfit: list[str] = []
        self._inputs = inputs
        self._multiplied = multiplied

    def get_fractional_bits(self, name: str) -> int:
        """Return the fractional bits of a value."""
        return (
            self.choose_fractional_bits(name)
            if name in self._inputs
            else self.numbers[name].fraction
        )

    def choose_fractional_bits(self, name: str) -> int:
        """Choose the fractional bits of a value: more where it is small, if they are useful."""
        if name not in self._multiplied:
            return self.fraction
        small = -math.ceil(math.log2(self.bounds[name])) - 2 if self.bounds[name] > 0 else 0
        return self.fraction + min(max(small, 0), MOST_MORE_BITS)

    def get_magnitude(self, name: str) -> int:
        """Return m with |v| < 2^m."""
        return find_magnitude_exponent(self.bounds[name], self.fraction)

    def get_input_format(self, x: LayerSpec) -> tuple[int, int]:
        """Return (f, m): the most fractional bits of a layer's inputs, and |v| < 2^m for all."""
        return max(self.get_fractional_bits(i) for i in x.inputs), max(
            self.get_magnitude(i) for i in x.inputs
        )

    def report_unfit(self, layer: LayerSpec, reason: str) -> None:
        """Record a layer whose values fit no fixed-point format."""
        self.unfit.append(f"{layer.name!r} {reason}")

    def check_added(self, x: LayerSpec, largest: float) -> None:
        """Record a constant too large to be added within the declared ranges."""
        if largest > self.bounds[x.name] + self.bounds[x.inputs[0]]:
            self.report_unfit(x, f"adds {largest:g}, beyond its range of {self.bounds[x.name]:g}")

    def cap_magnitude(self, x: LayerSpec, bound: float) -> int:
        """Return the magnitude of the value that a ReLU compares: 6 - v may be larger than v."""
        return find_magnitude_exponent(bound + (x.options["max_value"] or 0.0), self.fraction)

    def choose_comparison_bits(self, x: LayerSpec, f: int, m: int) -> int:
        """Choose the bits of a comparison of values below 2^m with f fractional bits."""
        bits = max(f + 1 + m, 6)
        if bits > MOST_COMPARED:
            self.report_unfit(x, f"compares values up to {2.0**m:g}")
        return min(bits, MOST_COMPARED)

    def plan_factor(
        self, x: LayerSpec, alpha: float = 1.0, max_bits: int = FACTOR_BITS
    ) -> FixedPointFormat:
        """Plan a layer that multiplies by a public factor of max_bits, below or about alpha."""
        f, m = self.get_input_format(x)
        more = max(0, math.ceil(math.log2(abs(alpha)))) if alpha else 0
        e = min(max_bits, PRODUCT_BITS - f - max(m, 0) - more)
        if e < FEWEST_WEIGHT_BITS:
            self.report_unfit(x, f"takes values up to {2.0**m:g}")
        return FixedPointFormat(f, max(e, 1), self.choose_comparison_bits(x, f, m))

    def plan_differences(self, x: LayerSpec) -> FixedPointFormat:
        """Plan a layer that compares its values with each other: one bit more."""
        f, m = self.get_input_format(x)
        return FixedPointFormat(f, 0, self.choose_comparison_bits(x, f, m + 1))


renamed.accept_deprecated_attributes(LayerFormatPlanner, renamed.PLANNER)

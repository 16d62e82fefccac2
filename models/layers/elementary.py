"""Functions that Keras has as tensor operations, not as layers: roots, 1/x, |x|.

Where one is undefined (a root or logarithm below 0, 1/0), the result is that of its protocol.
"""

from __future__ import annotations

import math

import numpy as np

from tfe_bench.errors import UsageError
from tfe_bench.models.layers import base as L
from tfe_bench.models.layers.add import BroadcastKind
from tfe_bench.models.layers.base import Array, Options, Shape, Shapes
from tfe_bench.models.layers.smooth import Function
from tfe_bench.protocols.functions import logarithm, reciprocal, roots
from tfe_bench.protocols.ring import relational
from tfe_bench.protocols.session.sharing import Shared

# With fewer fractional bits values are useless; with more the constants do not fit.
_FEWEST, _MOST = Function.fractions
# f plus the bits of a numerator stay below this (reciprocal.divide).
_DIVISION_BITS = 54


class Abs(Function):
    """|x|."""

    op = "abs"
    is_memory_heavy = False
    uses_wide_words = False

    def compute_plaintext(self, x: L.LayerSpec, values: list[Array], observe: L.Observer) -> Array:
        return np.abs(values[0])

    def forward(self, p: L.ForwardContext, node: L.PlacedLayer, *values: Shared) -> Shared:
        x = L.convert_scale(p.ops, values[0], node.numbers.fraction)
        return p.ops.run_protocol(relational.maximum, x, p.ops.neg(x), node.numbers.bits + 1)

    def forward_training(self, p: L.ForwardContext, node: L.PlacedLayer, *values: Shared) -> Shared:
        """Return 2 max(x, 0) - x."""
        positive, p.saved[node.output] = p.ops.relu_with_derivative(values[0])
        return p.ops.sub(p.ops.mul_public(positive, 2), values[0])

    def backward(
        self, p: L.ForwardContext, node: L.PlacedLayer, g: Shared, needs_input_gradient: bool
    ) -> L.Gradients:
        """Return g or -g."""
        return [p.ops.sub(p.ops.mul_public(p.select_positive(node, g), 2), p.rescale_gradient(g))]


class Sqrt(Function):
    """sqrt(x), and 0 for x < 0."""

    op = "sqrt"
    protocol = staticmethod(roots.sqrt)

    def compute_plaintext(self, x: L.LayerSpec, values: list[Array], observe: L.Observer) -> Array:
        return np.asarray(np.sqrt(np.maximum(values[0], 0)))

    def bound_output(self, node: L.PlacedLayer, input_limits: list[int]) -> int | None:
        return math.isqrt(node.align_limits(input_limits)[0] << node.numbers.fraction) + 3


def _plaintext_reciprocal(x: Array) -> Array:
    return np.divide(1.0, x, out=np.zeros_like(x), where=x != 0)


class _InverseFunction(Function):
    """A function whose maximum is at one ulp."""

    def bound_output(self, node: L.PlacedLayer, input_limits: list[int]) -> int | None:
        return (1 << (2 * node.numbers.fraction)) + 2


class Rsqrt(_InverseFunction):
    """1 / sqrt(x), and 0 for x <= 0."""

    op = "rsqrt"
    protocol = staticmethod(roots.rsqrt)

    def compute_plaintext(self, x: L.LayerSpec, values: list[Array], observe: L.Observer) -> Array:
        return _plaintext_reciprocal(np.sqrt(np.maximum(values[0], 0)))


class Reciprocal(_InverseFunction):
    """1 / x, and 0 for x = 0."""

    op = "reciprocal"

    def compute_plaintext(self, x: L.LayerSpec, values: list[Array], observe: L.Observer) -> Array:
        return _plaintext_reciprocal(values[0])

    def forward(self, p: L.ForwardContext, node: L.PlacedLayer, *values: Shared) -> Shared:
        x = L.convert_scale(p.ops, values[0], node.numbers.fraction)
        return p.ops.run_protocol(reciprocal.reciprocal, x, node.numbers.bits, signed=True)


class Log(Function):
    """ln(x); for x <= 0 the logarithm of the smallest positive number."""

    op = "log"
    protocol = staticmethod(logarithm.log)

    def compute_plaintext(self, x: L.LayerSpec, values: list[Array], observe: L.Observer) -> Array:
        return np.asarray(np.log(np.maximum(values[0], 2.0**-16)))

    def bound_output(self, node: L.PlacedLayer, input_limits: list[int]) -> int | None:
        return 64 << node.numbers.fraction


class Divide(BroadcastKind):
    """x / y, and 0 for y = 0."""

    op = "divide"
    is_memory_heavy = True
    uses_wide_words = True
    max_inputs = 2

    def infer_shape(self, input_shapes: list[Shape], options: Options, weights: Shapes) -> Shape:
        broadcast_shape = super().infer_shape(input_shapes, options, weights)
        L.check_value(input_shapes[0] == input_shapes[1], "inputs of one shape", input_shapes)
        return broadcast_shape

    def compute_plaintext(self, x: L.LayerSpec, values: list[Array], observe: L.Observer) -> Array:
        return values[0] * _plaintext_reciprocal(values[1])

    def plan_format(self, planner: L.LayerFormatPlanner, x: L.LayerSpec) -> L.FixedPointFormat:
        f = max(planner.get_fractional_bits(i) for i in x.inputs)
        above, below = (planner.get_magnitude(i) for i in x.inputs)
        f = min(f, (_DIVISION_BITS - 1 - above) // 2)
        if f < _FEWEST:
            planner.report_unfit(x, f"divides values up to {2.0**above:g}")
            f = _FEWEST
        return L.FixedPointFormat(
            f, f + max(above, 0) + 1, planner.choose_comparison_bits(x, f, below)
        )

    def check_format(self, node: L.PlacedLayer) -> None:
        f, bits = node.numbers.fraction, node.numbers.scale
        if not _FEWEST <= f <= _MOST or not f < bits <= _DIVISION_BITS - f:
            raise UsageError(
                f"does not support numerators of {bits} bits with {f} fractional bits.",
                code="invalid-fixed-point-format",
            )

    def bound_output(self, node: L.PlacedLayer, input_limits: list[int]) -> int | None:
        return None  # the protocol of the quotient wraps

    def forward(self, p: L.ForwardContext, node: L.PlacedLayer, *values: Shared) -> Shared:
        numbers = node.numbers
        x, y = (L.convert_scale(p.ops, v, numbers.fraction) for v in values)
        return p.ops.run_protocol(
            reciprocal.divide, x, y, numbers.bits, signed=True, numerator_bits=numbers.scale
        )

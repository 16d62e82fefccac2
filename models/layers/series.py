"""Smooth activations by short Fourier series: off by up to 2^-10, for a quarter of the bytes."""

from __future__ import annotations

from dataclasses import replace

from tfe_bench.errors import UsageError
from tfe_bench.models.layers import base as L
from tfe_bench.models.layers.base import Array, Options, Shape, Shapes
from tfe_bench.models.layers.gated import Mish, Silu, Softplus
from tfe_bench.models.layers.gelu import Gelu, GeluTanh
from tfe_bench.models.layers.sigmoid import Sigmoid
from tfe_bench.models.layers.tanh import Tanh
from tfe_bench.protocols.nn import series
from tfe_bench.protocols.session.sharing import Shared

# The kinds that compute the same activations exactly.
_EXACT = {cls.op: cls() for cls in (Gelu, GeluTanh, Mish, Sigmoid, Silu, Softplus, Tanh)}


class FourierSeries(L.Kind):
    """An activation of series.BENDS, named as the kind that computes it exactly."""

    op = "series"
    is_pointwise = True

    def infer_shape(self, input_shapes: list[Shape], options: Options, weights: Shapes) -> Shape:
        L.check_options(options, "function")
        function = options["function"]
        L.check_value(
            function in list(series.ACTIVATIONS),
            f"a function of {', '.join(series.ACTIVATIONS)}",
            function,
        )
        return L.check_single_input(input_shapes, weights)

    def describe_layer(self, x: L.LayerSpec) -> str:
        return f"{x.options['function']}, series"

    def compute_plaintext(self, x: L.LayerSpec, values: list[Array], observe: L.Observer) -> Array:
        function = str(x.options["function"])
        return _EXACT[function].compute_plaintext(
            replace(x, op=function, options={}), values, observe
        )

    def compute_approximation(
        self, x: L.LayerSpec, values: list[Array], observe: L.Observer
    ) -> Array:
        return series.ACTIVATIONS[str(x.options["function"])].evaluate_plain(values[0])

    # ---- fixed point: `bits` are those of the input, at `choose_input_scale`

    def choose_input_scale(self, node: L.PlacedLayer) -> int:
        """Return the fractional bits of the series' input: the value's own, or one less."""
        return node.numbers.fraction - series.activation_extra_bits(
            str(node.layer.options["function"])
        )

    def plan_format(self, planner: L.LayerFormatPlanner, x: L.LayerSpec) -> L.FixedPointFormat:
        function = str(x.options["function"])
        f, m = planner.get_input_format(x)
        f = min(max(f, series.MIN_BITS), series.MAX_BITS)
        bits = planner.choose_comparison_bits(x, f, m)
        if bits > series.max_activation_bits(function, f):
            planner.report_unfit(x, f"takes values up to {2.0**m:g}")
        return L.FixedPointFormat(f + series.activation_extra_bits(function), 0, bits)

    def check_format(self, node: L.PlacedLayer) -> None:
        f, bits = self.choose_input_scale(node), node.numbers.bits
        if not series.MIN_BITS <= f <= series.MAX_BITS:
            raise UsageError(
                f"supports {series.MIN_BITS} to {series.MAX_BITS} fractional bits. Received: {f}.",
                code="invalid-fixed-point-format",
            )
        max_bits = series.max_activation_bits(str(node.layer.options["function"]), f)
        if not 2 <= bits <= max_bits:
            raise UsageError(
                f"supports values of 2 to {max_bits} bits. Received: {bits}.",
                code="invalid-fixed-point-format",
            )

    def bound_output(self, node: L.PlacedLayer, input_limits: list[int]) -> int | None:
        one = 1 << node.numbers.fraction
        if series.ACTIVATIONS[str(node.layer.options["function"])].ends is not None:
            return one + (one >> 8)
        return node.align_limits(input_limits)[0] + one

    def bound_comparison_bits(self, node: L.PlacedLayer, input_limits: list[int]) -> int:
        return self._rescale_limit(node, input_limits[0]).bit_length() + 1

    def _rescale_limit(self, node: L.PlacedLayer, limit: int) -> int:
        """Convert a limit of the input to `choose_input_scale`."""
        shift = self.choose_input_scale(node) - node.input_scales[0]
        return limit << shift if shift >= 0 else (limit >> -shift) + 1

    def can_check_range(self, node: L.PlacedLayer, input_limits: list[int] | None) -> bool:
        max_bits = series.max_activation_bits(
            str(node.layer.options["function"]), self.choose_input_scale(node)
        )
        return input_limits is None or self.bound_comparison_bits(node, input_limits) <= max_bits

    # ---- private inference

    def count_input_bits(self, node: L.PlacedLayer, input_index: int) -> int:
        f, function = self.choose_input_scale(node), str(node.layer.options["function"])
        if node.input_scales[0] > f:
            return 64  # (the input is truncated first)
        return series.activation_read_bits(function, f, self._bound_input(node))

    def _bound_input(self, node: L.PlacedLayer) -> int:
        """Bound |x| of the series' input, at its scale."""
        planned = 1 << (node.numbers.bits - 1)
        return (
            min(self._rescale_limit(node, node.input_limits[0]) + 1, planned)
            if node.input_limits
            else planned
        )

    def forward(self, p: L.ForwardContext, node: L.PlacedLayer, *values: Shared) -> Shared:
        x, function = (
            L.convert_scale(p.ops, values[0], self.choose_input_scale(node)),
            str(node.layer.options["function"]),
        )
        return p.ops.run_protocol(
            series.evaluate_series,
            x,
            function,
            node.numbers.bits,
            None,
            node.used_bits,
            self._bound_input(node),
        )

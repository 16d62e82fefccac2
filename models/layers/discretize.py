"""Discretization: the number of public boundaries that a value reaches, or its one-hot code."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from tfe_bench.models.layers import base as L
from tfe_bench.models.layers.base import Array, Options, Shape, Shapes
from tfe_bench.protocols.nn import linear
from tfe_bench.protocols.ring import compare, convert, logic, relational, shapes
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared

_MOST_BOUNDARIES = 64
_LARGEST_BOUNDARY = 1 << 20


def _compare_with_edges(party: Party, x: Shared, edges: Sequence[int], bits: int) -> Shared:
    """Return [x >= edge] for each edge, [len(edges), *shape], as 0 and 1 without scale."""
    differences = linear.subtract_knots(x, edges)
    width = compare.comparison_bits_with_constant(bits, max(map(abs, edges)))
    below = relational.is_negative(party, differences, width)
    return convert.b2a(party, logic.invert_bits(below), differences.shape)


class Discretize(L.Kind):
    """The bin of x: the number of boundaries b with x >= b; with `one_hot` 1 at this place."""

    op = "discretize"
    keras_layers = ("Discretization",)
    is_bounded = True
    is_memory_heavy = True

    def convert_layer(self, r: L.Reader, call: L.LayerCall) -> str:
        mode, boundaries = call.layer.output_mode, call.layer.bin_boundaries
        if mode not in ("int", "one_hot"):
            raise L.UnsupportedLayer(f"output_mode={mode!r}; 'int' and 'one_hot' are supported")
        if boundaries is None:
            raise L.UnsupportedLayer("bin_boundaries are not known; call adapt first")
        # (Keras compares in float32)
        options = {
            "boundaries": [float(np.float32(b)) for b in boundaries],
            "one_hot": mode == "one_hot",
        }
        return r.add_layer(call.name, self.op, call.inputs, None, **options)

    def infer_shape(self, input_shapes: list[Shape], options: Options, weights: Shapes) -> Shape:
        L.check_options(options, "boundaries", "one_hot")
        boundaries = options["boundaries"]
        fits = isinstance(boundaries, (list, tuple)) and 1 <= len(boundaries) <= _MOST_BOUNDARIES
        L.check_value(fits, f"1 to {_MOST_BOUNDARIES} boundaries", boundaries)
        fits = all(L.is_real(b) and abs(b) <= _LARGEST_BOUNDARY for b in boundaries)
        L.check_value(fits, f"boundaries up to {_LARGEST_BOUNDARY}", boundaries)
        fits = all(a < b for a, b in itertools.pairwise(boundaries))
        L.check_value(fits, "ascending boundaries", boundaries)
        L.check_value(isinstance(options["one_hot"], bool), "one_hot", options["one_hot"])
        x = L.check_single_input(input_shapes, weights)
        if not options["one_hot"]:
            return x
        return (*(x[:-1] if x[-1] == 1 else x), len(boundaries) + 1)

    def compute_plaintext(self, x: L.LayerSpec, values: list[Array], observe: L.Observer) -> Array:
        (v,), boundaries = values, x.options["boundaries"]
        places = np.digitize(v, boundaries)
        if not x.options["one_hot"]:
            return np.asarray(places, np.float64)
        places = places[..., 0] if v.shape[-1] == 1 else places
        return np.asarray(np.eye(len(boundaries) + 1)[places])

    def plan_format(self, planner: L.LayerFormatPlanner, x: L.LayerSpec) -> L.FixedPointFormat:
        f, m = planner.get_input_format(x)
        return L.FixedPointFormat(0, 0, planner.choose_comparison_bits(x, f, m + 1))

    def check_format(self, node: L.PlacedLayer) -> None:
        """Refuse a format with fractional bits, whatever the input has."""
        L.check_value(node.numbers.fraction == 0, "no fractional bits", node.numbers.fraction)

    def bound_output(self, node: L.PlacedLayer, input_limits: list[int]) -> int | None:
        options = node.layer.options
        return 1 if options["one_hot"] else len(options["boundaries"])

    def forward(self, p: L.ForwardContext, node: L.PlacedLayer, *values: Shared) -> Shared:
        (x,), ops, options = values, p.ops, node.layer.options
        scale = 1 << x.fractional_bits
        edges = [math.ceil(Fraction(b) * scale) for b in options["boundaries"]]
        steps = ops.run_protocol(_compare_with_edges, x, edges, node.numbers.bits)
        if not options["one_hot"]:
            return L.sum_axes(ops, steps, [0])
        # 1 at bin i: above boundary i - 1, and not above boundary i
        first = functools.partial(shapes.getitem, key=slice(0, 1))
        ends = ops.mul_public(ops.apply_local(first, steps, (1, *ops.get_shape(x))), 0)
        bins = ops.sub(
            ops.concat([ops.add_public(ends, 1), steps], 0), ops.concat([steps, ends], 0)
        )
        rank = len(ops.get_shape(bins))
        moved = ops.apply_local(
            lambda v: shapes.transpose(v, [*range(1, rank), 0]),
            bins,
            (*ops.get_shape(bins)[1:], len(edges) + 1),
        )
        return L.reshape_value(ops, moved, p.add_batch_axis(node.shape, x))

    def forward_training(self, p: L.ForwardContext, node: L.PlacedLayer, *values: Shared) -> Shared:
        y = self.forward(p, node, *values)
        return L.convert_scale(p.ops, y, node.numbers.fraction)

    def backward(
        self, p: L.ForwardContext, node: L.PlacedLayer, g: Shared, needs_input_gradient: bool
    ) -> L.Gradients:
        """Return 0: the value is constant between boundaries."""
        ops = p.ops
        zeros = ops.mul_public(p.rescale_gradient(g), 0)
        if node.layer.options["one_hot"]:
            zeros = L.sum_axes(ops, zeros, [len(node.shape)])
        return [L.reshape_value(ops, zeros, p.add_batch_axis(node.input_shapes[0], g))]

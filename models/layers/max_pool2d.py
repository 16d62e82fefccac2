"""MaxPooling and GlobalMaxPooling."""

from __future__ import annotations

import functools

import numpy as np

from tfe_bench.models.layers import base as L
from tfe_bench.models.layers.base import Array, Options, Shape
from tfe_bench.protocols.nn import pool, pool_gradient
from tfe_bench.protocols.order import extremes
from tfe_bench.protocols.ring import shapes
from tfe_bench.protocols.session.sharing import Shared


class MaxPooling(L.Kind):
    """The maximum of some values of each channel."""

    is_maximum = True

    def plan_format(self, planner: L.LayerFormatPlanner, x: L.LayerSpec) -> L.FixedPointFormat:
        return planner.plan_differences(x)


class MaxPool2D(L.WindowPooling, MaxPooling):
    """The maximum of each window."""

    op = "max_pool2d"
    keras_layers = tuple(f"{kind}Pooling{n}D" for kind in ("Max", "AdaptiveMax") for n in (1, 2, 3))
    can_fuse = True

    def compute_plaintext(self, x: L.LayerSpec, values: list[Array], observe: L.Observer) -> Array:
        o = x.options
        cell_values = (
            cell for _, _, cell in L.iterate_window_cells(values[0], o["ksize"], o, -np.inf)
        )
        return functools.reduce(np.maximum, cell_values)

    def forward(self, p: L.ForwardContext, node: L.PlacedLayer, *values: Shared) -> Shared:
        (x,), o, profile = values, node.layer.options, p.ops.setting.pooling_profile
        windows = (tuple(o["ksize"]), tuple(o["strides"]), o["padding"])
        bits = node.numbers.bits
        return p.ops.run_protocol(pool.max_pool2d, x, *windows, bits=bits, profile=profile)

    def forward_training(self, p: L.ForwardContext, node: L.PlacedLayer, *values: Shared) -> Shared:
        """Compute the maxima, with a fused ReLU if there is one."""
        y, p.saved[node.output] = p.ops.max_pool(
            values[0], node.layer.options, node.activation is not None
        )
        return y

    def backward(
        self, p: L.ForwardContext, node: L.PlacedLayer, g: Shared, needs_input_gradient: bool
    ) -> L.Gradients:
        return _unpool_layer_gradient(p, node, g)

    def explain_untrainable(self, x: L.LayerSpec, input_shapes: list[Shape]) -> str:
        return _check_pool_windows(x.name, input_shapes[0], x.options)


class GlobalMaxPool2D(L.GlobalPooling, MaxPooling):
    """The maximum of each channel."""

    op = "global_max_pool2d"
    keras_layers = tuple(f"GlobalMaxPooling{n}D" for n in (1, 2, 3))

    def compute_plaintext(self, x: L.LayerSpec, values: list[Array], observe: L.Observer) -> Array:
        return np.asarray(values[0].max((1, 2), keepdims=x.options["keepdims"]))

    def forward(self, p: L.ForwardContext, node: L.PlacedLayer, *values: Shared) -> Shared:
        (x,), bits, setting = values, node.numbers.bits, p.ops.setting
        batch, height, width, channels = p.ops.get_shape(x)
        cells_first = L.reshape_value(p.ops, x, (batch, height * width, channels))
        turned_shape = (height * width, batch, channels)
        rows = p.ops.apply_local(
            lambda v: shapes.transpose(v, [1, 0, 2]), cells_first, turned_shape
        )
        columns = L.reshape_value(p.ops, rows, (height * width, batch * channels))
        best = p.ops.run_protocol(
            extremes.reduce_max, columns, 0, bits=bits, profile=setting.pooling_profile
        )
        return L.reshape_value(p.ops, best, p.add_batch_axis(node.shape, x))

    def forward_training(self, p: L.ForwardContext, node: L.PlacedLayer, *values: Shared) -> Shared:
        """Compute a max pooling with one window."""
        y, p.saved[node.output] = p.ops.max_pool(
            values[0], _build_global_pool_window(node.input_shapes[0]), False
        )
        return L.reshape_value(p.ops, y, p.add_batch_axis(node.shape, values[0]))

    def backward(
        self, p: L.ForwardContext, node: L.PlacedLayer, g: Shared, needs_input_gradient: bool
    ) -> L.Gradients:
        """Place each channel's gradient at the cell of its maximum."""
        batch, channels = p.ops.get_shape(g)[0], node.shape[-1]
        return _unpool_layer_gradient(p, node, L.reshape_value(p.ops, g, (batch, 1, 1, channels)))

    def explain_untrainable(self, x: L.LayerSpec, input_shapes: list[Shape]) -> str:
        return _check_pool_windows(
            x.name, input_shapes[0], _build_global_pool_window(input_shapes[0])
        )


def _build_global_pool_window(input_shape: Shape) -> Options:
    """Return the options of a window as large as an image."""
    return {"ksize": input_shape[:2], "strides": input_shape[:2], "padding": "VALID"}


def _unpool_layer_gradient(p: L.ForwardContext, node: L.PlacedLayer, g: Shared) -> L.Gradients:
    """Place each window's gradient at the cell of its maximum."""
    f = p.precision.gradient
    g = p.ops.add_fractional_bits(g, max(g.fractional_bits, f + 1))
    return [p.ops.unpool(p.saved[node.output], g, f)]


def _check_pool_windows(name: str, input_shape: Shape, o: Options) -> str:
    """Refuse windows without a gradient; returns ""."""
    pool_gradient.pooling_window_geometry(
        name, [1, *input_shape], o["ksize"], o["strides"], o["padding"]
    )
    return ""

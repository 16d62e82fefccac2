"""Sums, means and maxima along axes, as those of the channels of an image."""

from __future__ import annotations

from typing import Any

from tfe_bench.models.layers import base as L

_KINDS = {"Mean": "global_avg_pool2d", "Sum": "global_sum_pool2d", "Max": "global_max_pool2d"}


def read_reduction_axes(axis: Any, rank: int) -> list[int]:
    """Read axes, counted without the batch.

    Raises:
        UnsupportedLayer: the batch is among them.
    """
    if axis is None:
        raise L.UnsupportedLayer("over all axes, the batch too; select them with axis=")
    axis_list = axis if isinstance(axis, (list, tuple)) else [axis]
    axes = sorted(L.canonicalize_axis(a, rank + 1) - 1 for a in axis_list)
    if len(set(axes)) < len(axes):
        raise L.UnsupportedLayer("over one axis twice")
    return axes


@L.register_reader("Mean", "Sum", "Max", "Amax")
def convert_keras_reduction(
    r: L.Reader, op: L.KerasOperation, x: L.TensorValue, axis: Any, keepdims: bool
) -> str:
    kind = _KINDS[type(op.keras_operation).__name__.replace("Amax", "Max")]
    return L.add_reduction_layer(
        r, op.name, kind, x, read_reduction_axes(axis, len(x.shape)), op.shape
    )


@L.register_reader("Min", "Amin")
def convert_keras_minimum(
    r: L.Reader, op: L.KerasOperation, x: L.TensorValue, axis: Any, keepdims: bool
) -> str:
    """Convert -max(-x)."""
    negated = _add_negation_layer(r, r.make_unique(f"{op.name}/neg"), x.name)
    axes = read_reduction_axes(axis, len(x.shape))
    maximum = L.add_reduction_layer(
        r,
        r.make_unique(f"{op.name}/max"),
        _KINDS["Max"],
        L.TensorValue(negated, x.shape, x.dtype),
        axes,
        op.shape,
    )
    return _add_negation_layer(r, op.name, maximum)


@L.register_reader("Var", "Std")
def convert_keras_variance(
    r: L.Reader, op: L.KerasOperation, x: L.TensorValue, axis: Any, keepdims: bool
) -> str:
    """Convert the mean of (x - mean)^2, or its root."""
    axes = read_reduction_axes(axis, len(x.shape))
    reduced_shape = tuple(1 if a in axes else n for a, n in enumerate(x.shape))
    mean = L.add_reduction_layer(
        r, r.make_unique(f"{op.name}/mean"), _KINDS["Mean"], x, axes, reduced_shape
    )
    difference = r.add_layer(r.make_unique(f"{op.name}/apart"), "subtract", [x.name, mean])
    square = r.add_layer(r.make_unique(f"{op.name}/square"), "multiply", [difference, difference])
    root = type(op.keras_operation).__name__ == "Std"
    name = r.make_unique(f"{op.name}/var") if root else op.name
    mean_square = L.add_reduction_layer(
        r, name, _KINDS["Mean"], L.TensorValue(square, x.shape, x.dtype), axes, op.shape
    )
    return r.add_layer(op.name, "sqrt", [mean_square]) if root else mean_square


def _add_negation_layer(r: L.Reader, name: str, value: str) -> str:
    return r.add_layer(name, "rescale", [value], None, scale=-1.0, offset=0.0)

"""Sums, means and largest values along axes, as those of the channels of an image."""

from __future__ import annotations

import math
from typing import Any

from tfe_bench.models.kinds.calls import Operation, Value, reads
from tfe_bench.models.kinds.layer import Shape
from tfe_bench.models.kinds.reading import Reader, Unfit, axis_of

_KINDS = {"Mean": "global_avg_pool2d", "Sum": "global_sum_pool2d", "Max": "global_max_pool2d"}


def reduced(r: Reader, name: str, kind: str, x: Value, axes: list[int], shape: Shape) -> str:
    """A kind over all cells of an image whose cells are what is reduced.

    Args:
        axes: counted without the batch.
        shape: of the result; one number for each sample has an axis of 1 here.
    """
    if not shape and r.training:
        raise Unfit("gives one number for each sample, without an axis; take keepdims=True")
    kept = [a for a in range(len(x.shape)) if a not in axes]
    value, order = x.name, [*axes, *kept]
    if order != sorted(order):
        turned = [a + 1 for a in order]
        value = r.emit(r.unique(f"{name}/turned"), "permute", [value], None, order=turned)
    cells = math.prod(x.shape[a] for a in axes)
    image = [cells, 1, math.prod(x.shape[a] for a in kept)]
    value = r.emit(r.unique(f"{name}/image"), "reshape", [value], None, shape=image)
    value = r.emit(r.unique(f"{name}/all"), kind, [value], None, keepdims=False)
    return r.emit(name, "reshape", [value], None, shape=list(shape) or [1])


def axes_of(axis: Any, rank: int) -> list[int]:
    """Axes counted without the batch.

    Raises:
        Unfit: the batch among them.
    """
    if axis is None:
        raise Unfit("over all axes, the batch too; say which with axis=")
    several = axis if isinstance(axis, (list, tuple)) else [axis]
    found = sorted(axis_of(a, rank + 1) - 1 for a in several)
    if len(set(found)) < len(found):
        raise Unfit("over one axis twice")
    return found


@reads("Mean", "Sum", "Max", "Amax")
def reduce(r: Reader, op: Operation, x: Value, axis: Any, keepdims: bool) -> str:
    kind = _KINDS[type(op.own).__name__.replace("Amax", "Max")]
    return reduced(r, op.name, kind, x, axes_of(axis, len(x.shape)), op.shape)


@reads("Min", "Amin")
def least(r: Reader, op: Operation, x: Value, axis: Any, keepdims: bool) -> str:
    """-max(-x)."""
    turned = _negated(r, r.unique(f"{op.name}/neg"), x.name)
    axes = axes_of(axis, len(x.shape))
    most = reduced(
        r,
        r.unique(f"{op.name}/max"),
        _KINDS["Max"],
        Value(turned, x.shape, x.dtype),
        axes,
        op.shape,
    )
    return _negated(r, op.name, most)


@reads("Var", "Std")
def variance(r: Reader, op: Operation, x: Value, axis: Any, keepdims: bool) -> str:
    """The mean of (x - mean)^2, or its root."""
    axes = axes_of(axis, len(x.shape))
    kept = tuple(1 if a in axes else n for a, n in enumerate(x.shape))
    mean = reduced(r, r.unique(f"{op.name}/mean"), _KINDS["Mean"], x, axes, kept)
    apart = r.emit(r.unique(f"{op.name}/apart"), "subtract", [x.name, mean])
    square = r.emit(r.unique(f"{op.name}/square"), "multiply", [apart, apart])
    root = type(op.own).__name__ == "Std"
    name = r.unique(f"{op.name}/var") if root else op.name
    found = reduced(r, name, _KINDS["Mean"], Value(square, x.shape, x.dtype), axes, op.shape)
    return r.emit(op.name, "sqrt", [found]) if root else found


def _negated(r: Reader, name: str, value: str) -> str:
    return r.emit(name, "rescale", [value], None, scale=-1.0, offset=0.0)

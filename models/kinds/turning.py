"""Layers of Keras with the channels first, as layers with the channels last between two turns.

The turns are local, and `models/moves.py` lets those that meet cancel.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tfe_bench.models.kinds.layer import Shape
from tfe_bench.models.kinds.reading import Call, Reader

Read = Callable[..., str]


def turned(r: Reader, given: str, name: str, order: list[int]) -> str:
    """A value with its axes in another order, the batch being 0."""
    return r.emit(r.unique(name), "permute", [given], None, order=order)


def last(shape: Shape) -> Shape:
    """A shape with the channels behind, which were in front."""
    return (*shape[1:], shape[0])


def channels_last(read: Read) -> Read:
    """A reader of layers with the channels last, made to read any; with the layer's activation.

    The wrapped reader gives the value without the activation, of the rank of its input or, where
    only channels are left, of rank 1.
    """

    @functools.wraps(read)
    def either(kind: Any, r: Reader, call: Call) -> str:
        if getattr(call.layer, "data_format", None) != "channels_first":
            return r.activated(call.layer, read(kind, r, call))
        rank = len(call.shapes[0])
        order = [*range(2, rank + 1), 1]
        given = [turned(r, name, f"{call.name}/channels_last", order) for name in call.inputs]
        single = len(call.shape) == 1
        inner = replace(
            call,
            inputs=given,
            shapes=[last(s) for s in call.shapes],
            shape=call.shape if single else last(call.shape),
        )
        found = read(kind, r, inner)
        if not single:
            back = [len(call.shape), *range(1, len(call.shape))]
            found = turned(r, found, f"{call.name}/channels_first", back)
        return r.activate(getattr(call.layer, "activation", None), found, call.name)

    return either


def reshaped(r: Reader, given: str, name: str, shape: Shape) -> str:
    """The elements of a value in another shape."""
    return r.emit(r.unique(name), "reshape", [given], None, shape=list(shape))


def axis_last(read: Read, r: Reader, call: Call, axis: int) -> str:
    """Reads a layer of one axis, counted with the batch, between turns that bring that behind."""
    rank = len(call.shapes[0])
    if axis == rank:
        return read(r, call)
    order = [*(i for i in range(1, rank + 1) if i != axis), axis]
    given = turned(r, call.inputs[0], f"{call.name}/axis_last", order)
    shape = tuple(call.shapes[0][i - 1] for i in order)
    found = read(r, replace(call, inputs=[given], shapes=[shape], shape=shape))
    back = [order.index(i) + 1 for i in range(1, rank + 1)]
    return turned(r, found, f"{call.name}/axis_back", back)


def sides(given: Any) -> list[list[int]]:
    """What Keras puts at, or cuts from, both sides of each axis."""
    pairs = given if isinstance(given[0], (list, tuple)) else [given]
    return [[int(n) for n in pair] for pair in pairs]

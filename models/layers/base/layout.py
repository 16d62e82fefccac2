"""Conversion of channels-first Keras layers: channels-last layers between two transposes.

The transposes are local, and adjacent ones are fused by a later pass over the graph.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tfe_bench.models.layers.base.layer import Shape
from tfe_bench.models.layers.base.reading import LayerCall, Reader

LayerReader = Callable[..., str]


def add_transpose_layer(r: Reader, input_name: str, name: str, order: list[int]) -> str:
    """Add a transpose; the batch is axis 0."""
    return r.add_layer(r.make_unique(name), "permute", [input_name], None, order=order)


def move_channels_axis_last(shape: Shape) -> Shape:
    """Move the first axis of a shape, the channels, to the end."""
    return (*shape[1:], shape[0])


def accept_channels_first(read: LayerReader) -> LayerReader:
    """Extend a reader of channels-last layers to both layouts, with the layer's activation.

    The wrapped reader returns the value without the activation, of the rank of its input or, if
    only channels remain, of rank 1.
    """

    @functools.wraps(read)
    def convert_any_layout(kind: Any, r: Reader, call: LayerCall) -> str:
        if getattr(call.layer, "data_format", None) != "channels_first":
            return r.add_layer_activation(call.layer, read(kind, r, call))
        rank = len(call.shapes[0])
        order = [*range(2, rank + 1), 1]
        inputs = [
            add_transpose_layer(r, name, f"{call.name}/channels_last", order)
            for name in call.inputs
        ]
        single = len(call.shape) == 1
        inner = replace(
            call,
            inputs=inputs,
            shapes=[move_channels_axis_last(s) for s in call.shapes],
            shape=call.shape if single else move_channels_axis_last(call.shape),
        )
        output = read(kind, r, inner)
        if not single:
            inverse_order = [len(call.shape), *range(1, len(call.shape))]
            output = add_transpose_layer(r, output, f"{call.name}/channels_first", inverse_order)
        return r.add_activation(getattr(call.layer, "activation", None), output, call.name)

    return convert_any_layout


def add_reshape_layer(r: Reader, input_name: str, name: str, shape: Shape) -> str:
    """Add a reshape of a value."""
    return r.add_layer(r.make_unique(name), "reshape", [input_name], None, shape=list(shape))


def convert_layer_axis_last(read: LayerReader, r: Reader, call: LayerCall, axis: int) -> str:
    """Convert a layer of one axis, counted with the batch, between transposes that move it last."""
    rank = len(call.shapes[0])
    if axis == rank:
        return read(r, call)
    order = [*(i for i in range(1, rank + 1) if i != axis), axis]
    input_name = add_transpose_layer(r, call.inputs[0], f"{call.name}/axis_last", order)
    shape = tuple(call.shapes[0][i - 1] for i in order)
    output = read(r, replace(call, inputs=[input_name], shapes=[shape], shape=shape))
    inverse_order = [order.index(i) + 1 for i in range(1, rank + 1)]
    return add_transpose_layer(r, output, f"{call.name}/axis_back", inverse_order)


def parse_padding_sides(value: Any) -> list[list[int]]:
    """Parse the amounts that Keras adds to, or cuts from, both sides of each axis."""
    pairs = value if isinstance(value[0], (list, tuple)) else [value]
    return [[int(n) for n in pair] for pair in pairs]

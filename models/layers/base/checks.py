"""Checks of a layer's options and weights, which may come from an untrusted model file.

Shapes leave out the batch; images are [height, width, channels].
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tfe_bench.models.layers.base import renamed
from tfe_bench.models.layers.base.layer import Options, Shape, Shapes

LARGEST_SIZE = 1 << 24


class InvalidOption(Exception):
    """An invalid option, weight or input; `registry.infer_shape` adds the layer's name."""


def check_value(is_valid: bool, expected: str, received: Any) -> None:
    if not is_valid:
        raise InvalidOption(f"expects {expected}. Received: {received!r}.")


def is_whole(value: Any, low: int = 1) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= LARGEST_SIZE


def is_real(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def read_pair(options: Options, name: str) -> tuple[int, int]:
    value = options.get(name)
    fits = isinstance(value, (list, tuple)) and len(value) == 2 and all(is_whole(v) for v in value)
    check_value(fits, f"{name} as two positive integers", value)
    assert value is not None
    return value[0], value[1]


def is_padding(value: Any, axes: int = 2) -> bool:
    return (
        isinstance(value, (list, tuple))
        and len(value) == axes
        and all(
            isinstance(side, (list, tuple)) and len(side) == 2 and all(is_whole(v, 0) for v in side)
            for side in value
        )
    )


def check_image(shape: Shape) -> None:
    check_value(len(shape) == 3, "images [height, width, channels]", list(shape))


def check_bias(weights: Shapes, count: int) -> None:
    if "bias" in weights:
        check_value(weights["bias"] == (count,), f"a bias [{count}]", list(weights["bias"]))


def check_options(options: Options, *names: str) -> None:
    check_value(set(options) == set(names), f"the options {sorted(names)}", sorted(options))


def check_weights(weights: Shapes, *names: str, optional: Sequence[str] = ()) -> None:
    fits = set(names) <= set(weights) <= {*names, *optional}
    check_value(fits, f"the weights {[*names, *optional]}", sorted(weights))


def check_single_input(input_shapes: Sequence[Shape], weights: Shapes) -> Shape:
    """Check that a layer has one input and no weights; returns the input's shape."""
    check_value(len(input_shapes) == 1, "one input", len(input_shapes))
    check_weights(weights)
    return input_shapes[0]


def read_axis(options: Options, rank: int) -> int:
    """Read the only option, an axis that counts the batch as axis 0."""
    check_options(options, "axis")
    axis = options["axis"]
    check_value(is_whole(axis) and axis <= rank, f"an axis from 1 to {rank} (0 is the batch)", axis)
    return int(axis)


def broadcast_shapes(shapes: Sequence[Shape]) -> Shape:
    """Compute the shape that several shapes broadcast to."""
    rank = max(len(s) for s in shapes)
    # The batch is the first axis, so ranks cannot differ.
    check_value(all(len(s) == rank for s in shapes), "inputs of one rank", shapes)
    result = []
    for sizes in zip(*shapes, strict=True):
        check_value(len(set(sizes) - {1}) <= 1, "inputs that broadcast", shapes)
        result.append(max(sizes))
    return tuple(result)


if not TYPE_CHECKING:  # (type checkers accept the new names alone)
    __getattr__ = renamed.find_deprecated_names(
        __name__,
        globals(),
        Bad="InvalidOption",
        need="check_value",
        whole="is_whole",
        real="is_real",
        pair="read_pair",
        pads="is_padding",
        image="check_image",
        bias="check_bias",
        only="check_options",
        held="check_weights",
        alone="check_single_input",
        axis_of="read_axis",
        broadcast="broadcast_shapes",
    )

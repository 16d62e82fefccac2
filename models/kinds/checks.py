"""What kinds of layers check of options and weights, which may come from a stranger.

Shapes leave out the batch; images are [height, width, channels].
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tfe_bench.models.kinds.layer import Options, Shape, Shapes

LARGEST_SIZE = 1 << 24


class Bad(Exception):
    """What is wrong with an option; `registry.infer` adds the layer's name."""


def need(fits: bool, what: str, received: Any) -> None:
    if not fits:
        raise Bad(f"wants {what}. Received: {received!r}.")


def whole(value: Any, low: int = 1) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= LARGEST_SIZE


def real(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def pair(options: Options, name: str) -> tuple[int, int]:
    value = options.get(name)
    fits = isinstance(value, (list, tuple)) and len(value) == 2 and all(whole(v) for v in value)
    need(fits, f"{name} as two positive integers", value)
    assert value is not None
    return value[0], value[1]


def pads(value: Any, axes: int = 2) -> bool:
    return (
        isinstance(value, (list, tuple))
        and len(value) == axes
        and all(
            isinstance(side, (list, tuple)) and len(side) == 2 and all(whole(v, 0) for v in side)
            for side in value
        )
    )


def image(shape: Shape) -> None:
    need(len(shape) == 3, "images [height, width, channels]", list(shape))


def bias(weights: Shapes, count: int) -> None:
    if "bias" in weights:
        need(weights["bias"] == (count,), f"a bias [{count}]", list(weights["bias"]))


def only(options: Options, *names: str) -> None:
    need(set(options) == set(names), f"the options {sorted(names)}", sorted(options))


def held(weights: Shapes, *names: str, optional: Sequence[str] = ()) -> None:
    fits = set(names) <= set(weights) <= {*names, *optional}
    need(fits, f"the weights {[*names, *optional]}", sorted(weights))


def alone(given: Sequence[Shape], weights: Shapes) -> Shape:
    """The shape that comes to a layer of one input and without weights."""
    need(len(given) == 1, "one input", len(given))
    held(weights)
    return given[0]


def axis_of(options: Options, rank: int) -> int:
    """An axis, which is all that a layer is told; counted with the batch, which is 0."""
    only(options, "axis")
    axis = options["axis"]
    need(whole(axis) and axis <= rank, f"an axis from 1 to {rank} (0 is the batch)", axis)
    return int(axis)


def broadcast(shapes: Sequence[Shape]) -> Shape:
    """The shape that some shapes broadcast to."""
    rank = max(len(s) for s in shapes)
    # The batch comes first, so that ranks cannot differ.
    need(all(len(s) == rank for s in shapes), "inputs of one rank", shapes)
    result = []
    for sizes in zip(*shapes, strict=True):
        need(len(set(sizes) - {1}) <= 1, "inputs that broadcast", shapes)
        result.append(max(sizes))
    return tuple(result)

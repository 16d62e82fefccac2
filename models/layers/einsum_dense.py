"""EinsumDense: a matrix product between turns and reshapes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tfe_bench.models.kinds.reading import Call, Reader, Unfit
from tfe_bench.models.kinds.turning import reshaped, turned
from tfe_bench.models.layers.identity import Composed


class EinsumDense(Composed):
    """x, summed with a kernel over the axes that its equation leaves out."""

    op = "einsum_dense"
    keras = ("EinsumDense",)

    def read(self, r: Reader, call: Call) -> str:
        layer, name, shape = call.layer, call.name, call.shapes[0]
        given, own, found = _letters(layer.equation, len(shape))
        summed = [a for a in given if a in own]
        new = [a for a in own if a not in given]
        rest = [a for a in given if a not in own]
        kept = [a for a in found if a in rest]
        simple = all(len(set(letters)) == len(letters) for letters in (given, own, found))
        whole = summed and found[0] == given[0] and sorted(found) == sorted([*rest, *new])
        if not (simple and whole):
            raise Unfit(
                f"of {layer.equation!r}; what is summed are axes of both, and others are of one"
            )
        sizes = dict(zip(given[1:], shape, strict=True))
        sizes |= dict(zip(own, layer.kernel.shape, strict=True))
        rest_sizes, new_sizes = ([int(sizes[a]) for a in part] for part in (kept[1:], new))
        # (batch, rest, summed) times [summed, new]
        order = [given.index(a) for a in (*kept[1:], *summed)]
        value = call.inputs[0]
        if order != sorted(order):
            value = turned(r, value, f"{name}/turned", order)
        depth = math.prod(int(sizes[a]) for a in summed)
        value = reshaped(r, value, f"{name}/rows", (math.prod(rest_sizes), depth))
        weights: dict[str, Any] = {"kernel": layer.kernel, "bias": layer.bias}
        if not r.training:
            kernel = np.asarray(layer.kernel).transpose([own.index(a) for a in (*summed, *new)])
            weights["kernel"] = kernel.reshape(depth, -1)
            if layer.bias is not None:
                weights["bias"] = _bias(layer, found, new, new_sizes)
        elif (summed, new) != ([own[0]], [own[-1]]) or (layer.bias_axes or new[0]) != new[0]:
            raise Unfit(
                f"of {layer.equation!r} with bias_axes={layer.bias_axes!r}, which is not trained; "
                "one axis is, times a matrix with a bias of its columns"
            )
        weights = {name: w for name, w in weights.items() if w is not None}
        value = r.emit(name, "dense", [value], weights)
        value = reshaped(r, value, f"{name}/axes", (*rest_sizes, *new_sizes))
        made = [*kept[1:], *new]
        back = [made.index(a) + 1 for a in found[1:]]
        if back != sorted(back):
            value = turned(r, value, f"{name}/back", back)
        return r.activated(layer, value) if layer.activation is not None else value


def _letters(equation: str, rank: int) -> tuple[list[str], list[str], list[str]]:
    """The axes of the input with the batch, of the kernel, and of the value."""
    left, found = equation.replace(" ", "").split("->")
    given, own = left.split(",")
    if "..." in given:
        free = [c for c in "ABCDEFGHIJKLMNOPQRSTUVWXYZ" if c not in equation]
        more = "".join(free[: rank + 1 - len(given.replace("...", ""))])
        given, found = given.replace("...", more), found.replace("...", more)
    return list(given), list(own), list(found)


def _bias(layer: Any, found: list[str], new: list[str], sizes: list[int]) -> Any:
    """The bias, for each place that the kernel gives.

    Raises:
        Unfit: it differs in axes of the input.
    """
    axes = layer.bias_axes or ""
    if not set(axes) <= set(new):
        raise Unfit(f"bias_axes {axes!r}; those of the kernel alone are supported")
    order = sorted(axes, key=found.index)  # (as the bias has them: in the order of the value)
    bias = np.asarray(layer.bias)
    bias = bias.reshape([n for n in bias.shape if n > 1] if bias.ndim > len(order) else bias.shape)
    bias = bias.reshape([sizes[new.index(a)] for a in order])
    bias = bias.transpose([order.index(a) for a in new if a in order])
    whole = [sizes[i] if a in order else 1 for i, a in enumerate(new)]
    return np.broadcast_to(bias.reshape(whole), sizes).reshape(-1).copy()

"""Masks that are written as numbers: what a softmax takes as x + (1 - m) * -1e9 hides places.

A number that large fits no fixed point, and its size means nothing: any that is far enough below
the others gives the same softmax.  So the sum becomes a layer `hide`, which takes off as much as
the planned range asks for, and m a mask that holds 0 and 1 alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from tfe_bench.models.graph import Graph, Layer, replaced
from tfe_bench.models.layers.hide import Hide
from tfe_bench.models.layers.softmax import Softmax
from tfe_bench.models.rewriting import wherever

# Smaller numbers are sums like others.
LEAST = 1e4
# Constants of several sizes are one where each is larger.
_FAR = 1e6
# Beside a number that large, what float32 rounds away.
_NOTHING = 1e-6

_MOVES = ("reshape", "permute", "repeat", "crop", "take")
_OF_TRUE = (*_MOVES, "concat", "multiply", "identity")


@dataclass(frozen=True)
class _Hidden:
    """A sum that hides places.

    Attributes:
        value: the name of what they are of.
        mask: the name of a mask.
        moves: between the mask and what is added to the value, the last one first.
        least: what is taken off where a place is hidden.
        inverted: whether the mask is 1 there.
        more: layers that are new.
    """

    value: str
    mask: str
    moves: tuple[Layer, ...]
    least: float
    inverted: bool
    more: tuple[Layer, ...] = ()


@wherever
def hide_masked(graph: Graph, x: Layer) -> Graph | None:
    """A mask in front of a softmax takes off what is enough, in place of a number like 1e9."""
    if x.op != Softmax.op:
        return None
    found = _search(graph, x.inputs[0], x.name, [])
    return None if found is None else _written(graph, x, *found)


def _search(
    graph: Graph, name: str, taker: str, between: list[Layer]
) -> tuple[Layer, list[Layer], _Hidden] | None:
    """The last sum before a softmax that hides places, and the layers between the two."""
    x = graph.by_name.get(name)
    if x is None or graph.uses()[name] != [taker]:
        return None
    if x.op != Hide.op and (found := _hidden(graph, x)) is not None:
        return x, between, found
    own, given = _scalars(x), x.inputs[:1]
    if x.op in ("add", "subtract"):
        given = x.inputs if x.op == "add" else given
        given = tuple(i for i in given if graph.shapes[i] == graph.shapes[name])
    elif x.op != Hide.op and x.op not in _MOVES and not (own and own[0] > 0):
        return None
    tried = (_search(graph, i, name, [*between, x]) for i in given)
    return next((each for each in tried if each is not None), None)


def _scalars(x: Layer) -> tuple[float, float] | tuple[()]:
    """(scale, offset) of a layer that is one number times its input and one more."""
    if x.op == "rescale":
        scale, offset = (np.asarray(x.options[k], np.float64) for k in ("scale", "offset"))
        return (float(scale.item()), float(offset.item())) if scale.size == offset.size == 1 else ()
    if x.op == "offset":
        bias = np.asarray(x.weights["bias"], np.float64)
        return (1.0, float(bias.flat[0])) if (bias == bias.flat[0]).all() else ()
    return ()


def _hidden(graph: Graph, x: Layer) -> _Hidden | None:
    """What a layer hides of what, None if it is no such sum."""
    if x.op in ("add", "subtract"):
        return _chosen(graph, x) or _added(graph, x)
    if x.op == "rescale":
        return _replaced(graph, x)
    if x.op == "offset":
        return _replaced(graph, x) or _constant(graph, x)
    return None


def _added(graph: Graph, x: Layer) -> _Hidden | None:
    """x + (1 - m) * -1e9, x - (1 - m) * 1e9 and the like."""
    for i, name in enumerate(x.inputs):
        sign = -1.0 if x.op == "subtract" else 1.0
        if x.op == "subtract" and i == 0:
            continue
        term = _term(graph, name, sign)
        others = [*x.inputs[:i], *x.inputs[i + 1 :]]
        shape = graph.shapes[x.name]
        if term is None or name in others:
            continue
        if len(others) > 1:
            rest = Layer(_free(graph, f"{x.name}@rest"), "add", tuple(others))
            return replace(term, value=rest.name, more=(rest,))
        if graph.shapes[others[0]] == shape:
            return replace(term, value=others[0])
    return None


def _term(graph: Graph, name: str, sign: float) -> _Hidden | None:
    """What is added to a value, if that is 0 where a mask says so and far below 0 elsewhere."""
    factor, offset, moves = sign, 0.0, list[Layer]()
    while not _is_truth(graph, name):
        x = graph.by_name.get(name)
        if x is None:
            return None
        if x.op in _MOVES:
            moves.append(x)
        elif own := _scalars(x):
            factor, offset = factor * own[0], offset + factor * own[1]
        else:
            return None
        name = x.inputs[0]
    zero, one = offset, factor + offset
    for hidden, shown, inverted in ((zero, one, False), (one, zero, True)):
        if hidden <= -LEAST and abs(shown) <= -hidden * _NOTHING and math.isfinite(hidden):
            return _Hidden("", name, tuple(moves), -hidden, inverted)
    return None


def _is_truth(graph: Graph, name: str) -> bool:
    """Whether a value holds 0 and 1 alone, or is made of inputs that may have to."""
    left, seen = [name], set[str]()
    while left:
        each = left.pop()
        if each in graph.scaling:
            return False
        if each in seen or each in graph.inputs:
            continue
        seen.add(each)
        x = graph.by_name[each]
        if x.op in ("negative", "zero"):
            continue
        if x.op == "constant" and np.isin(x.weights["bias"], (0.0, 1.0)).all():
            continue
        if x.op not in _OF_TRUE and _scalars(x) != (-1.0, 1.0):
            return False
        left += x.inputs
    return True


def _inputs_of(graph: Graph, hidden: _Hidden) -> list[str]:
    """The inputs that a mask is made of, which hold 0 and 1 then; comparisons take any numbers."""
    found, left = list[str](), [hidden.mask]
    while left:
        each = left.pop()
        if each in graph.inputs:
            found.append(each)
        elif each in graph.by_name and graph.by_name[each].op not in (
            "negative",
            "zero",
            "constant",
        ):
            left += graph.by_name[each].inputs
    return found


def _replaced(graph: Graph, x: Layer) -> _Hidden | None:
    """where(m, x, -1e9), which is m (x + 1e9) - 1e9."""
    chosen = graph.by_name.get(x.inputs[0])
    own = _scalars(x)
    if not own or own[0] != 1 or own[1] > -LEAST or chosen is None or chosen.op != "multiply":
        return None
    for mask, apart in (chosen.inputs, chosen.inputs[::-1]) if len(chosen.inputs) == 2 else ():
        of = graph.by_name.get(apart)
        if of is None or graph.shapes[of.inputs[0]] != graph.shapes[x.name]:
            continue
        if _scalars(of) == (1.0, -own[1]) and _is_truth(graph, mask):
            return _Hidden(of.inputs[0], mask, (), -own[1], False)
    return None


def _chosen(graph: Graph, x: Layer) -> _Hidden | None:
    """where(m, -1e9, x), which is x + m (-1e9 - x)."""
    if x.op != "add" or len(x.inputs) != 2:
        return None
    for name, value in (x.inputs, x.inputs[::-1]):
        chosen = graph.by_name.get(name)
        if chosen is None or chosen.op != "multiply" or len(chosen.inputs) != 2:
            continue
        for mask, apart in (chosen.inputs, chosen.inputs[::-1]):
            of = graph.by_name.get(apart)
            own = _scalars(of) if of is not None and of.inputs == (value,) else ()
            if not own or graph.shapes[value] != graph.shapes[x.name]:
                continue
            if own[0] == -1 and own[1] <= -LEAST and _is_truth(graph, mask):
                return _Hidden(value, mask, (), -own[1], True)
    return None


def _constant(graph: Graph, x: Layer) -> _Hidden | None:
    """x and a table in which some numbers are -1e9: those of a causal triangle, say."""
    bias = np.asarray(x.weights["bias"], np.float64)
    far = bias <= -LEAST
    if not far.any() or far.all():
        return None
    least = float(-bias[far].max())
    if least < _FAR and (bias[far] != -least).any():
        return None
    given, rest = x.inputs[0], np.where(far, 0.0, bias)
    kept = Layer(_free(graph, f"{x.name}@shown"), "constant", (given,), {}, {"bias": 1.0 - far})
    more: tuple[Layer, ...] = (kept,)
    if rest.any():
        own = Layer(_free(graph, f"{x.name}@rest"), "offset", (given,), {}, {"bias": rest})
        more, given = (kept, own), own.name
    return _Hidden(given, kept.name, (), least, False, more)


def _written(
    graph: Graph, softmax: Layer, sum_: Layer, between: Sequence[Layer], found: _Hidden
) -> Graph:
    """The softmax behind a layer that hides places of what came to it without the sum."""
    layers, shapes = [*found.more], dict(graph.shapes)
    mask, shape, least = found.mask, _shape_of_mask(graph, found), found.least
    taken = set(shapes) | {x.name for x in layers}

    def add(name: str, x: Layer) -> str:
        while name in taken:
            name += "@"
        taken.add(name)
        layers.append(replace(x, name=name))
        return name

    for x in reversed(found.moves):
        mask = add(f"{x.name}@mask", replace(x, inputs=(mask,)))
    moved = [x for x in between if x.op in _MOVES]
    if moved and shape != (whole := shapes[sum_.name]):
        times = [n // k for n, k in zip(whole, shape, strict=True)]
        mask = add(f"{sum_.name}@mask", Layer("", "repeat", (mask,), {"times": times}))
    for x in reversed(moved):
        mask = add(f"{x.name}@mask", replace(x, inputs=(mask,)))
    for x in between:
        own = _scalars(x)
        least *= own[0] if own else 1.0
    last = between[0].name if between else found.value
    options = {"least": least, "inverted": found.inverted}
    name = add(f"{softmax.name}@hidden", Layer("", Hide.op, (last, mask), options))
    swap = {softmax.name: replace(softmax, inputs=(name,))}
    for x in graph.layers:
        if sum_.name in x.inputs and x.name != softmax.name:
            inputs = tuple(found.value if i == sum_.name else i for i in x.inputs)
            swap[x.name] = replace(x, inputs=inputs)
    kept = [swap.get(x.name, x) for x in graph.layers if x is not sum_]
    named = dict.fromkeys([*graph.masks, *_inputs_of(graph, found)])
    masks = tuple(n for n in named if n not in graph.tokens)
    return _pruned(replaced(graph, [*kept, *layers], masks=masks))


def _shape_of_mask(graph: Graph, found: _Hidden) -> tuple[int, ...]:
    if found.moves:
        return tuple(graph.shapes[found.moves[0].name])
    for x in found.more:
        if x.name == found.mask:
            return tuple(int(n) for n in x.weights["bias"].shape)
    return tuple(graph.shapes[found.mask])


def _pruned(graph: Graph) -> Graph:
    """The graph without layers that nothing takes."""
    needed, kept = {*graph.outputs}, list[Layer]()
    for x in reversed(graph.layers):
        if x.name in needed:
            kept.append(x)
            needed.update(x.inputs)
    return replaced(graph, kept[::-1])


def _free(graph: Graph, name: str) -> str:
    return name if name not in graph.shapes else _free(graph, f"{name}@")

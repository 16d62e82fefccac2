"""Loops on private arrays: a function of one turn, which all turns carry out in one job."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tfe_bench.errors import UsageError
from tfe_bench.models.arrays import array, building
from tfe_bench.models.arrays.arguments import Ref, encoded
from tfe_bench.models.arrays.array import PrivateArray
from tfe_bench.models.arrays.bounds import Bounds, Guard, joined, usual, widest
from tfe_bench.models.arrays.evaluate import Meaning
from tfe_bench.models.arrays.node import Node
from tfe_bench.models.arrays.plan import FIXED, MOST_TURNS, TURN, Body, Leaf, checked_body

if TYPE_CHECKING:
    from tfe_bench.cluster.client import Client

_WANTS = "foldl wants private arrays, one or a list of them,"


def foldl(fn: Callable[..., Any], elems: Any, initializer: Any) -> Any:
    """fn(fn(fn(initializer, elems[0]), elems[1]), ...), as tf.foldl: a loop that is one job.

    `fn` is called once, with arrays that stand for those of any turn; what it takes from outside
    and what does not change from turn to turn is computed once.  All turns share one graph.

        def step(w, batch):
            x, y = batch
            return w - x.T @ (tfb.sigmoid(x @ w) - y) * (rate / 128)

        w = tfb.foldl(step, (xs, ys), w)  # xs: [steps, 128, features], ys: [steps, 128, 1]

    Args:
        fn: of what is carried on and the next element of elems (each a list where several were
            given); makes what is carried on, of the same kind, shape and scale.
        elems: private arrays with one length, of which each turn takes the next element; or a
            number of turns, 1 to 65536: fn then takes one argument.
        initializer: what the first turn begins with; public arrays become private.

    Returns:
        what the last turn makes, in initializer's structure.
    Raises:
        UsageError: fn makes something else, or sorts (a turn is one graph), or no array is private.
    """
    own, elements, outer = _listed(initializer), *_elements(elems)
    times = elements[0].shape[0] if elements else int(elems)
    cluster = next((x.cluster for x in [*own, *elements] if isinstance(x, PrivateArray)), None)
    if cluster is None and elems:
        # (fn may take private arrays from outside)
        tried = _listed(fn(initializer))
        cluster = next((x.cluster for x in tried if isinstance(x, PrivateArray)), None)
    if cluster is None:
        raise UsageError(f"{_WANTS} to begin with. Received: public values only.")
    first = [x if isinstance(x, PrivateArray) else array.private(cluster, x) for x in own]
    stand = [_standing(x, x._node.meaning, _carried(x._node)) for x in first]
    each = [_standing(x, _element(x._node.meaning), x._node.range, x._node) for x in elements]
    carried = _like(initializer, stand)
    made = _listed(fn(carried) if not elements else fn(carried, _like(outer, each)))
    if len(made) != len(first) or not all(isinstance(x, PrivateArray) for x in made):
        raise UsageError(
            f"fn makes what it is given to carry on: {len(first)} private arrays. Received: "
            f"{[type(x).__name__ for x in made]}."
        )
    for got, x in zip(made, first, strict=True):
        if got._node.meaning != x._node.meaning:
            raise UsageError(f"fn makes what it is given to carry on: {x!r}. Received: {got!r}.")
    texts, more = _counted(cluster, made, stand)
    if texts:
        none = array.private(cluster, np.zeros(len(texts), np.int64))
        count = _standing(none, none._node.meaning, none._node.range)
        first, made, stand = [*first, none], [*made, count + more], [*stand, count]
    body, held = _body([x._node for x in [*stand, *each]], [x._node for x in made])
    taken = [PrivateArray(cluster, node) for node in held]
    found = array.looped(first, elements, taken, times, body)
    done = [
        replace(x._node, bounds=before._node.range) for x, before in zip(found, stand, strict=True)
    ]
    if texts:
        counts = PrivateArray(cluster, done.pop())
        guards = tuple((text, counts[i]._node) for i, text in enumerate(texts))
        done = [replace(node, guards=guards) for node in done]
    return _like(initializer, [PrivateArray(cluster, node) for node in done])


def _carried(node: Node) -> Bounds:
    """The bounds that a value has before each turn: reals are held to them."""
    if node.meaning.kind != FIXED:
        return widest(node.meaning)
    return joined([node.range, usual(node.meaning)])


def _counted(
    cluster: Client, made: Sequence[PrivateArray], before: Sequence[PrivateArray]
) -> tuple[list[str], Any]:
    """What a turn counts, in words, and the numbers as one vector."""
    nodes = []
    for x, carried in zip(made, before, strict=True):
        own, due = x._node, carried._node.range
        if own.meaning.kind == FIXED and not own.range.within(*due):
            most = f"{due.most / (1 << own.meaning.scale):.6g}"
            guard = Guard((own,), f"foldl: a value leaves {most} between turns", *due)
            own = replace(own, guards=(*own.guards, array.count_of(cluster, guard)))
        nodes.append(own)
    texts, vector = array.counted(cluster, nodes, {})
    return texts, PrivateArray(cluster, vector[0]) if vector else None


def _listed(given: Any) -> list[Any]:
    return list(given) if isinstance(given, (list, tuple)) else [given]


def _like(given: Any, found: Sequence[PrivateArray]) -> Any:
    """Some arrays in the structure of what was given."""
    return type(given)(found) if isinstance(given, (list, tuple)) else found[0]


def _elements(elems: Any) -> tuple[list[PrivateArray], Any]:
    if type(elems) is int:
        if not 1 <= elems <= MOST_TURNS:
            raise UsageError(f"A loop takes 1 to {MOST_TURNS} turns. Received: {elems}.")
        return [], None
    found = _listed(elems)
    if not found or not all(isinstance(x, PrivateArray) for x in found):
        raise UsageError(
            f"{_WANTS} or a number of turns, as elems. Received: "
            f"{[type(x).__name__ for x in found]}."
        )
    sizes = {x.shape[:1] for x in found}
    if len(sizes) != 1 or not found[0].ndim or not 1 <= len(found[0]) <= MOST_TURNS:
        raise UsageError(
            f"All of elems have one length, 1 to {MOST_TURNS}: the number of turns. Received: "
            f"shapes {[list(x.shape) for x in found]}."
        )
    return found, elems


def _element(meaning: Meaning) -> Meaning:
    return Meaning(meaning.kind, meaning.shape[1:], meaning.scale)


def _standing(
    x: PrivateArray, meaning: Meaning, bounds: Bounds, part_of: Node | None = None
) -> PrivateArray:
    """What stands for an array of any turn."""
    leaf = Leaf(TURN, meaning.kind, meaning.shape, meaning.scale)
    return PrivateArray(x.cluster, Node(meaning, leaf=leaf, bounds=bounds, part_of=part_of))


def _body(given: Sequence[Node], outputs: Sequence[Node]) -> tuple[Body, list[Node]]:
    """What a turn does with what changes, and what it takes that does not."""
    order = building.ordered(outputs)
    changes = {id(node) for node in given}
    for node in order:
        if any(id(child) in changes for child in building.taken(node)):
            changes.add(id(node))
    inner = [node for node in order if id(node) in changes]
    wanted = [*outputs, *(child for node in inner for child in building.taken(node))]
    held = list({id(node): node for node in wanted if id(node) not in changes}.values())
    leaves = [*given, *held]
    numbers = {id(node): Ref(number) for number, node in enumerate(leaves)}
    steps = building.rows_of(inner, numbers, len(leaves))
    rows = [encoded(numbers[id(node)]) for node in outputs]
    return checked_body([len(leaves), steps, rows]), held

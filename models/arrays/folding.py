"""Loops on private arrays: a function of one turn, which all turns carry out in one job."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tfe_bench.errors import UsageError
from tfe_bench.models.arrays import array, building
from tfe_bench.models.arrays.arguments import Ref, encoded
from tfe_bench.models.arrays.array import PrivateArray
from tfe_bench.models.arrays.evaluate import Meaning
from tfe_bench.models.arrays.node import Node
from tfe_bench.models.arrays.plan import MOST_TURNS, TURN, Body, Leaf, checked_body

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
    if cluster is None:
        raise UsageError(f"{_WANTS} to begin with. Received: public values only.")
    first = [x if isinstance(x, PrivateArray) else array.private(cluster, x) for x in own]
    stand = [_standing(x, x._node.meaning) for x in first]
    each = [_standing(x, _element(x._node.meaning)) for x in elements]
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
    body, held = _body([x._node for x in [*stand, *each]], [x._node for x in made])
    taken = [PrivateArray(cluster, node) for node in held]
    return _like(initializer, array.looped(first, elements, taken, times, body))


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


def _standing(x: PrivateArray, meaning: Meaning) -> PrivateArray:
    """What stands for an array of any turn."""
    leaf = Leaf(TURN, meaning.kind, meaning.shape, meaning.scale)
    return PrivateArray(x.cluster, Node(meaning, leaf=leaf))


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

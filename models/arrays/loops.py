"""Loops of a plan: one graph for all turns, each of which is a step with masks of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tfe_bench.errors import UsageError
from tfe_bench.models.arrays import evaluate, operations
from tfe_bench.models.arrays.arguments import Ref
from tfe_bench.models.arrays.evaluate import Value
from tfe_bench.models.arrays.plan import MOST_TURNS, Body
from tfe_bench.protocols.session import party
from tfe_bench.protocols.session.counting import Counting


def carried_out(
    initial: Sequence[Value],
    elems: Sequence[Value],
    held: Sequence[Value],
    times: int,
    body: Body | None = None,
) -> list[Value]:
    """What the last turn of a loop makes.

    Args:
        initial: what the first turn begins with; each other one with what the last one made.
        elems: of which each turn takes the next element.
        held: what every turn takes as it is.
        times: turns.

    Raises:
        UsageError: a turn makes something else than the next one takes.
    """
    if body is None or not all(isinstance(each, (list, tuple)) for each in (initial, elems, held)):
        raise UsageError("A loop takes three lists of values, and a body.")
    if body.leaves != len(initial) + len(elems) + len(held):
        raise UsageError("A loop's body takes as many values as it is given.")
    if type(times) is not int or not 1 <= times <= MOST_TURNS:
        raise UsageError(f"A loop takes 1 to {MOST_TURNS} turns. Received: another number.")
    for each in elems:
        sizes = evaluate.meaning("foldl", each).shape
        if not sizes or sizes[0] != times:
            raise UsageError(
                f"Each turn takes one element of elems. Received: shape {list(sizes)} for {times} "
                "turns."
            )
    running = party.current()
    one = Turn(running, body, [evaluate.meaning("foldl", each) for each in initial])
    call = running.function(one.made)
    now: list[Value] = list(initial)
    if isinstance(running, Counting):
        before = running.mark()
        now = call(now, [_element(each, 0) for each in elems], list(held))
        running.again(before, times - 1)
        return now
    for i in range(times):
        now = call(now, [_element(each, i) for each in elems], list(held))
    return now


def _element(values: Value, i: int) -> Value:
    found: Value = operations.find("getitem").function(values, i)
    return found


class Turn:
    """One turn of a loop.

    Args:
        meanings: of what it begins with, and has to lead to.
    """

    def __init__(
        self, running: party.Party, body: Body, meanings: Sequence[evaluate.Meaning]
    ) -> None:
        self._party, self._body, self._meanings = running, body, meanings

    def made(self, *given: Sequence[Value]) -> list[Value]:
        """What the next turn begins with."""
        values = [each for part in given for each in part]
        known: dict[Ref, Any] = {Ref(number): each for number, each in enumerate(values)}
        for number, step in enumerate(self._body.steps, self._body.leaves):
            known |= evaluate.placed(number, evaluate.call(self._party, step, known))
        if any(ref not in known for ref in self._body.outputs):
            raise UsageError("A plan takes values that earlier steps make.")
        found = [known[ref] for ref in self._body.outputs]
        made = [evaluate.meaning("foldl", each) for each in found]
        if made != list(self._meanings):
            raise UsageError(
                "A turn of a loop makes what the next one takes, of one kind, shape and scale. "
                f"Received: {made} after {list(self._meanings)}."
            )
        return found


operations.add_loop("foldl", carried_out)

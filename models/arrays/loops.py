"""Loops of a plan: one graph for all turns, each of which is a step with masks of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tfe_bench.errors import UsageError
from tfe_bench.models.arrays import evaluate, operations
from tfe_bench.models.arrays.arguments import Ref
from tfe_bench.models.arrays.evaluate import Value
from tfe_bench.models.arrays.plan import MAX_ITERATIONS, LoopBody
from tfe_bench.protocols.session import party
from tfe_bench.protocols.session.counting import CostParty


def run_loop(
    initial: Sequence[Value],
    elems: Sequence[Value],
    captured: Sequence[Value],
    times: int,
    body: LoopBody | None = None,
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
    if body is None or not all(
        isinstance(each, (list, tuple)) for each in (initial, elems, captured)
    ):
        raise UsageError("A loop takes three lists of values, and a body.")
    if body.leaves != len(initial) + len(elems) + len(captured):
        raise UsageError("A loop's body takes as many values as it is given.")
    if type(times) is not int or not 1 <= times <= MAX_ITERATIONS:
        raise UsageError(f"A loop takes 1 to {MAX_ITERATIONS} turns. Received: another number.")
    for each in elems:
        sizes = evaluate.infer_spec("foldl", each).shape
        if not sizes or sizes[0] != times:
            raise UsageError(
                f"Each turn takes one element of elems. Received: shape {list(sizes)} for {times} "
                "turns."
            )
    current_party = party.current_party()
    iteration = LoopIteration(
        current_party, body, [evaluate.infer_spec("foldl", each) for each in initial]
    )
    call = current_party.function(iteration.run_iteration)
    state: list[Value] = list(initial)
    if isinstance(current_party, CostParty):
        before = current_party.take_snapshot()
        state = call(state, [_take_element(each, 0) for each in elems], list(captured))
        current_party.repeat(before, times - 1)
        return state
    for i in range(times):
        state = call(state, [_take_element(each, i) for each in elems], list(captured))
    return state


def _take_element(values: Value, i: int) -> Value:
    element: Value = operations.find_operation("getitem").function(values, i)
    return element


class LoopIteration:
    """One turn of a loop.

    Args:
        meanings: of what it begins with, and has to lead to.
    """

    def __init__(
        self, running: party.Party, body: LoopBody, meanings: Sequence[evaluate.ArraySpec]
    ) -> None:
        self._party, self._body, self._meanings = running, body, meanings

    def run_iteration(self, *parts: Sequence[Value]) -> list[Value]:
        """What the next turn begins with."""
        values = [value for part in parts for value in part]
        values_by_ref: dict[Ref, Any] = {Ref(number): value for number, value in enumerate(values)}
        for number, step in enumerate(self._body.steps, self._body.leaves):
            values_by_ref |= evaluate.index_results(
                number, evaluate.run_step(self._party, step, values_by_ref)
            )
        if any(ref not in values_by_ref for ref in self._body.outputs):
            raise UsageError("A plan takes values that earlier steps make.")
        outputs = [values_by_ref[ref] for ref in self._body.outputs]
        output_specs = [evaluate.infer_spec("foldl", value) for value in outputs]
        if output_specs != list(self._meanings):
            raise UsageError(
                "A turn of a loop makes what the next one takes, of one kind, shape and scale. "
                f"Received: {output_specs} after {list(self._meanings)}."
            )
        return outputs


operations.add_loop("foldl", run_loop)

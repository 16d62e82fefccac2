"""Loops of a plan: one graph for all iterations, each of which is a step with its own masks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tfe_bench.arrays import evaluate, operations
from tfe_bench.arrays.arguments import ValueReference
from tfe_bench.arrays.array_spec import ArraySpec
from tfe_bench.arrays.bounds import Bounds, OperationCall, widest_result_bounds
from tfe_bench.arrays.evaluate import Value
from tfe_bench.arrays.plan import MAX_ITERATIONS, LoopBody
from tfe_bench.errors import UsageError
from tfe_bench.protocols.session import party
from tfe_bench.protocols.session.counting import CostParty


def run_array_loop(
    initial: Sequence[Value],
    elems: Sequence[Value],
    captured: Sequence[Value],
    times: int,
    body: LoopBody | None = None,
) -> list[Value]:
    """Run a loop; return the outputs of the last iteration.

    Args:
        initial: loop variables before the first iteration; each further iteration takes the
            outputs of the previous one.
        elems: arrays of which each iteration takes the next element.
        captured: captured values, the same in every iteration.
        times: number of iterations.

    Raises:
        UsageError: the outputs of an iteration do not fit the next one.
    """
    if body is None or not all(
        isinstance(each, (list, tuple)) for each in (initial, elems, captured)
    ):
        raise UsageError("A loop takes three lists of values, and a body.", code="invalid-loop")
    if body.leaves != len(initial) + len(elems) + len(captured):
        raise UsageError(
            "A loop's body takes as many values as the loop has.", code="loop-value-mismatch"
        )
    if type(times) is not int or not 1 <= times <= MAX_ITERATIONS:
        raise UsageError(
            f"A loop takes 1 to {MAX_ITERATIONS} iterations. Received: another number.",
            code="number-out-of-range",
            operation="foldl",
        )
    for each in elems:
        sizes = evaluate.infer_array_spec("foldl", each).shape
        if not sizes or sizes[0] != times:
            raise UsageError(
                f"Each iteration takes one element of elems. Received: shape {list(sizes)} "
                f"for {times} iterations.",
                code="shape-mismatch",
                operation="foldl",
            )
    current_party = party.current_party()
    iteration = LoopIteration(
        current_party, body, [evaluate.infer_array_spec("foldl", each) for each in initial]
    )
    call = current_party.function(iteration.run_iteration)
    state: list[Value] = list(initial)
    if isinstance(current_party, CostParty):
        before = current_party.take_snapshot()
        state = call(state, [_take_loop_element(each, 0) for each in elems], list(captured))
        current_party.repeat(before, times - 1)
        return state
    for i in range(times):
        state = call(state, [_take_loop_element(each, i) for each in elems], list(captured))
    return state


def _take_loop_element(values: Value, i: int) -> Value:
    element: Value = operations.find_operation("getitem").function(values, i)
    return element


class LoopIteration:
    """One iteration of a loop.

    Args:
        meanings: specifications of its loop variables and of its outputs.
    """

    def __init__(self, running: party.Party, body: LoopBody, meanings: Sequence[ArraySpec]) -> None:
        self._party, self._body, self._meanings = running, body, meanings

    def run_iteration(self, *parts: Sequence[Value]) -> list[Value]:
        """Return the loop variables of the next iteration."""
        values = [value for part in parts for value in part]
        values_by_ref: dict[ValueReference, Any] = {
            ValueReference(number): value for number, value in enumerate(values)
        }
        for number, step in enumerate(self._body.steps, self._body.leaves):
            values_by_ref |= evaluate.index_step_results(
                number, evaluate.run_step(self._party, step, values_by_ref)
            )
        if any(ref not in values_by_ref for ref in self._body.outputs):
            raise UsageError(
                "A plan uses a value that no earlier step computes.", code="missing-value"
            )
        outputs = [values_by_ref[ref] for ref in self._body.outputs]
        output_specs = [evaluate.infer_array_spec("foldl", value) for value in outputs]
        if output_specs != list(self._meanings):
            raise UsageError(
                "The outputs of an iteration have the kind, shape and scale of the loop "
                f"variables. Received: {output_specs} after {list(self._meanings)}.",
                code="loop-mismatch",
                operation="foldl",
            )
        return outputs


@operations.array_operation(aliases={"foldl": run_array_loop}, between=True, loops=True)
def _bound_loop_variables(call: OperationCall) -> list[Bounds]:
    """Return the widest bounds: folding.py sets those of the values that a loop carries."""
    return widest_result_bounds(call)

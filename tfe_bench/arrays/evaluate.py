"""Execution of plans by a computing party or by a cost party, with the same code."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tfe_bench.arrays import operations
from tfe_bench.arrays.arguments import MAX_PARTS, ValueReference
from tfe_bench.arrays.array_spec import BITS, DECIMAL, FIXED, INT, ArraySpec
from tfe_bench.arrays.plan import ExpressionLeaf, ExpressionPlan, ExpressionStep
from tfe_bench.errors import ProtocolError, TfeBenchError, UsageError
from tfe_bench.protocols.ring import refresh
from tfe_bench.protocols.session import tensor_ops
from tfe_bench.protocols.session.counting import CostParty, Private
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import MaskedBits, Shared
from tfe_bench.protocols.tables import bits
from tfe_bench.queries import division

Value = Shared | MaskedBits
# Kinds of leaves that the first graph converts from words.
_RAW = (BITS, DECIMAL)
# Errors of operations for arguments of unexpected types.
_UNEXPECTED_ERRORS = (
    *(ArithmeticError, AssertionError, AttributeError, LookupError, MemoryError),
    *(NotImplementedError, RecursionError, TypeError, ValueError),
)


def infer_array_spec(op: str, value: object) -> ArraySpec:
    """Return the specification of an operation's result.

    Raises:
        UsageError: it is not a private array of 64-bit words with known sizes.
    """
    if isinstance(value, MaskedBits) and value.shape is not None:
        return ArraySpec(BITS, tuple(int(n) for n in value.shape), 0)
    if isinstance(value, Shared) and value.limbs == 1 and value.ring_bits == 64:
        sizes = value.shape.as_list() if value.shape is not None else None
        if sizes is not None and None not in sizes:
            kind = FIXED if value.fractional_bits else INT
            return ArraySpec(kind, tuple(int(n) for n in sizes), value.fractional_bits)
    raise UsageError(
        f"{op} with these arguments does not return private arrays.",
        code="unsupported-result",
        operation=op,
    )


def symbolic_words(leaf: ExpressionLeaf) -> Shared:
    """Return symbolic words of a leaf, for a cost party."""
    return Private(leaf.shape, 0 if leaf.kind == DECIMAL else leaf.scale).to_symbolic()


def leaf_words_to_bits(x: Shared) -> MaskedBits:
    """Convert words that are 0 or 1 to private bits. Local."""
    low = replace(x.map(lambda a: tensor_ops.low_bits(a, 1)), bits=1, fractional_bits=0)
    return replace(bits.to_masked(low), shape=tuple(int(n) for n in x.shape.as_list()))


def decode_leaf(party: Party, leaf: ExpressionLeaf, words: Shared) -> Value:
    """Convert a leaf's words to the value that steps take."""
    if leaf.kind == BITS:
        return leaf_words_to_bits(words)
    return division.decimals_to_fixed(party, words, leaf.scale)


def run_step(
    party: Party,
    step: ExpressionStep,
    values: Mapping[ValueReference, Any],
    returns_list: list[bool] | None = None,
) -> list[Value]:
    """Run a step; return its one or several values.

    Args:
        returns_list: receives whether the operation returns a list.

    Raises:
        UsageError: the operation does not take these arguments.
    """
    operation = operations.find_operation(step.op)
    try:
        args, named = step.decode_arguments(values)
    except KeyError:
        raise UsageError(
            "A plan uses a value that no earlier step computes.",
            code="missing-value",
            operation=step.op,
        ) from None
    if operation.check is not None:
        operation.check(operation.bind_arguments(args, named).arguments)
    if step.body is not None:
        named["body"] = step.body
    try:
        output = operation.function(*args, **named)
    except ProtocolError as error:
        if not isinstance(party, CostParty):
            raise
        raise UsageError(
            f"{step.op} cannot be priced with these arguments.",
            code="not-priced",
            operation=step.op,
        ) from error
    except TfeBenchError:
        raise
    except _UNEXPECTED_ERRORS as error:
        if not isinstance(party, CostParty):
            raise
        # (its text could quote any value)
        raise UsageError(
            f"{step.op} does not take these arguments ({type(error).__name__}). See "
            f"help(tfe_bench.{step.op}).",
            code="unsupported-argument",
            operation=step.op,
        ) from error
    results = list(output) if isinstance(output, (list, tuple)) else [output]
    if returns_list is not None:
        returns_list.append(isinstance(output, (list, tuple)))
    if len(results) > MAX_PARTS:
        raise UsageError(
            f"An operation returns at most {MAX_PARTS} arrays. Received: more.",
            code="too-many-results",
            operation=step.op,
        )
    return results


def index_step_results(number: int, results: Sequence[Value]) -> dict[ValueReference, Any]:
    """Return the values of a step by their references."""
    results_by_ref: dict[ValueReference, Any] = {
        ValueReference(number, place): each for place, each in enumerate(results)
    }
    if len(results) == 1:
        results_by_ref[ValueReference(number)] = results[0]
    return results_by_ref


def _next_graph_stage(stage: int) -> int:
    return stage + stage % 2


class GraphStageSchedule:
    """Assignment of steps to graphs: even stages are graphs, odd ones call graphs themselves."""

    def __init__(self, plan: ExpressionPlan) -> None:
        self.plan = plan
        base = len(plan.leaves)
        self._at: list[int] = [0] * base
        for step in plan.steps:
            latest = max(self._at[ref.number] for ref in step.operand_refs())
            if operations.find_operation(step.op).between:
                # (private bits among leaves are computed in the first graph)
                stage = latest + 1 if latest % 2 == 0 else latest + 2
            else:
                stage = _next_graph_stage(latest)
            self._at.append(stage)
        self.ends = [_next_graph_stage(self._at[output.ref.number]) for output in plan.outputs]
        self.last = max([*self._at, *self.ends], default=0)

    def stage_steps(self, stage: int) -> list[int]:
        """Return the numbers of a stage's values."""
        base = len(self.plan.leaves)
        numbers = [n for n in range(base, len(self._at)) if self._at[n] == stage]
        if stage == 0:
            return [*(n for n, leaf in enumerate(self.plan.leaves) if leaf.kind in _RAW), *numbers]
        return numbers


def run_expression_plan(
    party: Party,
    plan: ExpressionPlan,
    leaves: Sequence[Shared],
    name: Hashable | None = None,
    progress: Callable[[float, str], None] = lambda fraction, text: None,
    observe: Callable[[int, list[Value]], None] = lambda number, results: None,
) -> list[Shared]:
    """Run all steps of a checked plan; return the words of its outputs.

    Args:
        leaves: words of the leaves.
        name: key of everything public, if graphs are cached.
        observe: callback with the values of each step, and the number of its first value.
    """
    schedule = GraphStageSchedule(plan)
    base = len(plan.leaves)
    values: dict[ValueReference, Any] = {
        ValueReference(n): leaves[n] for n, leaf in enumerate(plan.leaves) if leaf.kind not in _RAW
    }
    fresh = plan.outputs_to_refresh
    results: dict[int, Shared] = {}

    def compute_step(number: int, known: Mapping[ValueReference, Any]) -> dict[ValueReference, Any]:
        results = run_step(party, plan.steps[number - base], known)
        observe(number, results)
        return index_step_results(number, results)

    for stage in range(schedule.last + 1):
        numbers = schedule.stage_steps(stage)
        ends = [i for i, end in enumerate(schedule.ends) if end == stage] if stage % 2 == 0 else []
        progress(stage / (schedule.last + 1), "compute")
        if stage % 2:
            for number in numbers:
                with party.active(), party.kept_graphs(name, number):
                    values.update(compute_step(number, values))
            continue
        stage_outputs = [i for i in ends if _is_computed_output(plan, i, fresh)]
        if numbers or stage_outputs:
            later_refs = _later_refs(plan, schedule, numbers)
            earlier_refs = [
                ref for ref in _needed_refs(plan, numbers, stage_outputs) if ref in values
            ]
            raw = [n for n in numbers if n < base]
            stage_graph = _GraphStage(
                plan,
                numbers,
                [(i, fresh[i]) for i in stage_outputs],
                later_refs,
                earlier_refs,
                raw,
                compute_step,
            )
            with party.kept_graphs(name, stage):
                later_values, out = party.function(functools.partial(stage_graph.run_graph, party))(
                    [values[ref] for ref in earlier_refs], [leaves[n] for n in raw]
                )
            values.update(zip(later_refs, later_values, strict=True))
            results.update(zip(stage_outputs, out, strict=True))
        for i in ends:
            if i not in stage_outputs:
                results[i] = values[plan.outputs[i].ref]
    return [results[i] for i in range(len(plan.outputs))]


@dataclass(frozen=True)
class _GraphStage:
    """One graph of a plan.

    Attributes:
        numbers: numbers of its values.
        outputs: outputs whose words it computes, and whether under a fresh mask.
        later_refs: references that later stages use.
        earlier_refs: references to values of earlier stages.
        leaf_numbers: leaves of bits and decimals, taken as words.
        step: runs a step.
    """

    plan: ExpressionPlan
    numbers: Sequence[int]
    outputs: Sequence[tuple[int, bool]]
    later_refs: Sequence[ValueReference]
    earlier_refs: Sequence[ValueReference]
    leaf_numbers: Sequence[int]
    step: Callable[[int, Mapping[ValueReference, Any]], dict[ValueReference, Any]]

    def run_graph(
        self, party: Party, earlier_values: Sequence[Any], leaf_words: Sequence[Shared]
    ) -> tuple[list[Any], list[Shared]]:
        """Return the values that later stages use, and the words of outputs."""
        known: dict[ValueReference, Any] = dict(zip(self.earlier_refs, earlier_values, strict=True))
        for number, word in zip(self.leaf_numbers, leaf_words, strict=True):
            known[ValueReference(number)] = decode_leaf(party, self.plan.leaves[number], word)
        for number in self.numbers:
            if number not in self.leaf_numbers:
                known.update(self.step(number, known))
        output_words = []
        for i, fresh in self.outputs:
            output_words.append(
                _deliver_output(party, _find_step_value(known, self.plan.outputs[i].ref), fresh)
            )
        return [_find_step_value(known, ref) for ref in self.later_refs], output_words


def _find_step_value(known: Mapping[ValueReference, Any], ref: ValueReference) -> Any:
    if ref not in known:
        raise UsageError("A plan uses a value that no earlier step computes.", code="missing-value")
    return known[ref]


def _deliver_output(party: Party, value: Value, fresh: bool) -> Shared:
    """Return the words of an output; under a fresh mask if it derives from values
    that others hold.
    """
    if isinstance(value, MaskedBits):
        from tfe_bench.protocols.api import predicates

        return predicates.cast(value)  # (exchanged under a fresh mask)
    return refresh.refresh(party, value) if fresh else value


def _is_computed_output(plan: ExpressionPlan, i: int, fresh: Sequence[bool]) -> bool:
    """Return whether an output differs from an unchanged leaf."""
    number = plan.outputs[i].ref.number
    return number >= len(plan.leaves) or plan.leaves[number].kind in _RAW or fresh[i]


def _needed_refs(
    plan: ExpressionPlan, numbers: Sequence[int], stage_outputs: Sequence[int]
) -> list[ValueReference]:
    """Return the references that a stage uses, in the same order at all parties."""
    base = len(plan.leaves)
    refs = [ref for n in numbers if n >= base for ref in plan.steps[n - base].operand_refs()]
    refs += [plan.outputs[i].ref for i in stage_outputs]
    return [ref for ref in dict.fromkeys(refs) if ref.number not in numbers]


def _later_refs(
    plan: ExpressionPlan, schedule: GraphStageSchedule, numbers: Sequence[int]
) -> list[ValueReference]:
    """Return the references to a stage's values that later stages use."""
    here, base = set(numbers), len(plan.leaves)
    later = [
        ref
        for n, step in enumerate(plan.steps, base)
        if n not in here
        for ref in step.operand_refs()
        if ref.number in here
    ]
    return list(dict.fromkeys(later))

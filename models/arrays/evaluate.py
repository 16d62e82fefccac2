"""Plans carried out by a party that computes, or by one that counts: the same code for both."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tfe_bench.errors import ProtocolError, TfeBenchError, UsageError
from tfe_bench.models.arrays import operations
from tfe_bench.models.arrays.arguments import MAX_PARTS, Ref
from tfe_bench.models.arrays.plan import (
    BITS,
    DECIMAL,
    FIXED,
    INPUT,
    INT,
    REVEAL,
    Leaf,
    Plan,
    Step,
)
from tfe_bench.models.queries import division
from tfe_bench.protocols.ring import refresh
from tfe_bench.protocols.session import tensor_ops
from tfe_bench.protocols.session.counting import CostParty, Private
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import MaskedBits, Shared
from tfe_bench.protocols.tables import bits

Value = Shared | MaskedBits
# Leaves whose words the first graph makes values of.
_RAW = (BITS, DECIMAL)
# What operations raise that meet arguments of a type that they do not expect.
_UNEXPECTED_ERRORS = (
    *(ArithmeticError, AssertionError, AttributeError, LookupError, MemoryError),
    *(NotImplementedError, RecursionError, TypeError, ValueError),
)


@dataclass(frozen=True)
class ArraySpec:
    """What is public of a private value: its elements' kind, shape and scale."""

    kind: str
    shape: tuple[int, ...]
    scale: int

    @property
    def elements(self) -> int:
        """How many there are."""
        return math.prod(self.shape)


def infer_spec(op: str, value: object) -> ArraySpec:
    """What an operation made.

    Raises:
        UsageError: no private array of 64-bit words, or of unknown sizes.
    """
    if isinstance(value, MaskedBits) and value.shape is not None:
        return ArraySpec(BITS, tuple(int(n) for n in value.shape), 0)
    if isinstance(value, Shared) and value.limbs == 1 and value.ring_bits == 64:
        sizes = value.shape.as_list() if value.shape is not None else None
        if sizes is not None and None not in sizes:
            kind = FIXED if value.fractional_bits else INT
            return ArraySpec(kind, tuple(int(n) for n in sizes), value.fractional_bits)
    raise UsageError(f"{op} makes nothing that a private array may be with these arguments.")


def symbolic_words(leaf: Leaf) -> Shared:
    """The words of a leaf that are not there, for a party that counts."""
    return Private(leaf.shape, 0 if leaf.kind == DECIMAL else leaf.scale).to_symbolic()


def words_to_bits(x: Shared) -> MaskedBits:
    """Words that are 0 or 1 as private bits.  Local."""
    low = replace(x.map(lambda a: tensor_ops.low_bits(a, 1)), bits=1, fractional_bits=0)
    return replace(bits.to_masked(low), shape=tuple(int(n) for n in x.shape.as_list()))


def decode_leaf(party: Party, leaf: Leaf, words: Shared) -> Value:
    """A leaf's words as the value that steps take."""
    if leaf.kind == BITS:
        return words_to_bits(words)
    return division.decimals_to_fixed(party, words, leaf.scale)


def run_step(
    party: Party, step: Step, values: Mapping[Ref, Any], returns_list: list[bool] | None = None
) -> list[Value]:
    """What a step makes, one value or several.

    Args:
        several: takes whether it makes a list.

    Raises:
        UsageError: the operation does not take these arguments.
    """
    operation = operations.find_operation(step.op)
    try:
        args, named = step.decode_arguments(values)
    except KeyError:
        raise UsageError("A plan takes values that earlier steps make.") from None
    if step.op in ("unstack", "split"):
        _check_parts(step.op, operation.bind_arguments(args, named).arguments)
    if step.body is not None:
        named["body"] = step.body
    try:
        output = operation.function(*args, **named)
    except ProtocolError as error:
        if not isinstance(party, CostParty):
            raise
        raise UsageError(f"{step.op} cannot be priced with these arguments.") from error
    except TfeBenchError:
        raise
    except _UNEXPECTED_ERRORS as error:
        if not isinstance(party, CostParty):
            raise
        # (its text could quote anything)
        raise UsageError(
            f"{step.op} does not take these arguments ({type(error).__name__}). See "
            f"help(tfe_bench.{step.op})."
        ) from error
    results = list(output) if isinstance(output, (list, tuple)) else [output]
    if returns_list is not None:
        returns_list.append(isinstance(output, (list, tuple)))
    if len(results) > MAX_PARTS:
        raise UsageError(f"An operation makes at most {MAX_PARTS} arrays. Received: more.")
    return results


def index_results(number: int, results: Sequence[Value]) -> dict[Ref, Any]:
    """What a step made, by the references to it."""
    results_by_ref: dict[Ref, Any] = {
        Ref(number, place): each for place, each in enumerate(results)
    }
    if len(results) == 1:
        results_by_ref[Ref(number)] = results[0]
    return results_by_ref


def _next_even(stage: int) -> int:
    return stage + stage % 2


class Schedule:
    """Which graph each step belongs to: even stages are graphs, odd ones call graphs themselves."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        base = len(plan.leaves)
        self._at: list[int] = [0] * base
        for step in plan.steps:
            latest = max(self._at[ref.number] for ref in step.operand_refs())
            if operations.find_operation(step.op).between:
                # (private bits among leaves are made in the first graph)
                stage = latest + 1 if latest % 2 == 0 else latest + 2
            else:
                stage = _next_even(latest)
            self._at.append(stage)
        self.ends = [_next_even(self._at[output.ref.number]) for output in plan.outputs]
        self.last = max([*self._at, *self.ends], default=0)

    def stage_steps(self, stage: int) -> list[int]:
        """The numbers of a stage's values."""
        base = len(self.plan.leaves)
        numbers = [n for n in range(base, len(self._at)) if self._at[n] == stage]
        if stage == 0:
            return [*(n for n, leaf in enumerate(self.plan.leaves) if leaf.kind in _RAW), *numbers]
        return numbers


def run_plan(
    party: Party,
    plan: Plan,
    leaves: Sequence[Shared],
    name: Hashable | None = None,
    progress: Callable[[float, str], None] = lambda fraction, text: None,
    observe: Callable[[int, list[Value]], None] = lambda number, made: None,
) -> list[Shared]:
    """All steps of a checked plan: the words of its outputs.

    Args:
        leaves: their words.
        name: of all that is public, if graphs are to be kept.
        seen: hears what each step made, by the number of its value.
    """
    schedule = Schedule(plan)
    base = len(plan.leaves)
    values: dict[Ref, Any] = {
        Ref(n): leaves[n] for n, leaf in enumerate(plan.leaves) if leaf.kind not in _RAW
    }
    fresh = needs_refresh(plan)
    results: dict[int, Shared] = {}

    def compute_step(number: int, known: Mapping[Ref, Any]) -> dict[Ref, Any]:
        results = run_step(party, plan.steps[number - base], known)
        observe(number, results)
        return index_results(number, results)

    for stage in range(schedule.last + 1):
        numbers = schedule.stage_steps(stage)
        ends = [i for i, end in enumerate(schedule.ends) if end == stage] if stage % 2 == 0 else []
        progress(stage / (schedule.last + 1), "compute")
        if stage % 2:
            for number in numbers:
                with party.active(), party.kept_graphs(name, number):
                    values.update(compute_step(number, values))
            continue
        stage_outputs = [i for i in ends if _is_computed(plan, i, fresh)]
        if numbers or stage_outputs:
            later_refs = _later_refs(plan, schedule, numbers)
            earlier_refs = [
                ref for ref in _needed_refs(plan, numbers, stage_outputs) if ref in values
            ]
            raw = [n for n in numbers if n < base]
            stage_graph = _Stage(
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


def _check_parts(op: str, arguments: Mapping[str, Any]) -> None:
    """Refuses to take an array apart into too many, before it is done."""
    if op == "split":
        parts = arguments["num_or_size_splits"]
        if type(parts) is int and parts > MAX_PARTS:
            raise UsageError(f"split makes at most {MAX_PARTS} arrays. Received: {parts}.")
        return
    sizes, axis = getattr(arguments["x"], "shape", None), arguments.get("axis", 0)
    if sizes is None or type(axis) is not int:
        return
    if -len(sizes) <= axis < len(sizes) and int(sizes[axis]) > MAX_PARTS:
        raise UsageError(f"unstack makes at most {MAX_PARTS} arrays. Received: more.")


@dataclass(frozen=True)
class _Stage:
    """One graph of a plan.

    Attributes:
        numbers: of its values.
        outputs: those that it makes the words of, and whether under a fresh mask.
        wanted: what later stages take of it.
        given: what it takes of earlier ones.
        raw: leaves of bits and decimals, which it takes as words.
        step: makes a step's values.
    """

    plan: Plan
    numbers: Sequence[int]
    outputs: Sequence[tuple[int, bool]]
    later_refs: Sequence[Ref]
    earlier_refs: Sequence[Ref]
    leaf_numbers: Sequence[int]
    step: Callable[[int, Mapping[Ref, Any]], dict[Ref, Any]]

    def run_graph(
        self, party: Party, earlier_values: Sequence[Any], leaf_words: Sequence[Shared]
    ) -> tuple[list[Any], list[Shared]]:
        """What later stages want, and the words of outputs."""
        known: dict[Ref, Any] = dict(zip(self.earlier_refs, earlier_values, strict=True))
        for number, word in zip(self.leaf_numbers, leaf_words, strict=True):
            known[Ref(number)] = decode_leaf(party, self.plan.leaves[number], word)
        for number in self.numbers:
            if number not in self.leaf_numbers:
                known.update(self.step(number, known))
        output_words = []
        for i, fresh in self.outputs:
            output_words.append(
                _deliver_output(party, _find_value(known, self.plan.outputs[i].ref), fresh)
            )
        return [_find_value(known, ref) for ref in self.later_refs], output_words


def _find_value(known: Mapping[Ref, Any], ref: Ref) -> Any:
    if ref not in known:
        raise UsageError("A plan takes values that earlier steps make.")
    return known[ref]


def _deliver_output(party: Party, value: Value, fresh: bool) -> Shared:
    """The words of an output; under a mask of its own, where it comes of what others hold."""
    if isinstance(value, MaskedBits):
        from tfe_bench.protocols.api import predicates

        return predicates.cast(value)  # (exchanged under a fresh mask)
    return refresh.refresh(party, value) if fresh else value


def needs_refresh(plan: Plan) -> list[bool]:
    """Which outputs leave to a client that does not know the masks of what they come of."""
    from_others = [leaf.source != INPUT for leaf in plan.leaves]
    for step in plan.steps:
        from_others.append(any(from_others[ref.number] for ref in step.operand_refs()))
    return [o.then == REVEAL and from_others[o.ref.number] for o in plan.outputs]


def trace_key(plan: Plan) -> str:
    """All that the graphs of a plan depend on: no names, and not where leaves come from."""
    fresh = needs_refresh(plan)
    ends = [[o.ref.number, o.ref.place, fresh[i]] for i, o in enumerate(plan.outputs)]
    return json.dumps(
        [
            [leaf.header()[1:4] for leaf in plan.leaves],
            [step.header() for step in plan.steps],
            [end for i, end in enumerate(ends) if _is_computed(plan, i, fresh)],
        ],
        sort_keys=True,
    )


def _is_computed(plan: Plan, i: int, fresh: Sequence[bool]) -> bool:
    """Whether an output is more than a leaf as it is."""
    number = plan.outputs[i].ref.number
    return number >= len(plan.leaves) or plan.leaves[number].kind in _RAW or fresh[i]


def _needed_refs(plan: Plan, numbers: Sequence[int], stage_outputs: Sequence[int]) -> list[Ref]:
    """Values that a stage takes, in one order at all parties."""
    base = len(plan.leaves)
    refs = [ref for n in numbers if n >= base for ref in plan.steps[n - base].operand_refs()]
    refs += [plan.outputs[i].ref for i in stage_outputs]
    return [ref for ref in dict.fromkeys(refs) if ref.number not in numbers]


def _later_refs(plan: Plan, schedule: Schedule, numbers: Sequence[int]) -> list[Ref]:
    """What later stages take of a stage's values."""
    here, base = set(numbers), len(plan.leaves)
    later = [
        ref
        for n, step in enumerate(plan.steps, base)
        if n not in here
        for ref in step.operand_refs()
        if ref.number in here
    ]
    return list(dict.fromkeys(later))

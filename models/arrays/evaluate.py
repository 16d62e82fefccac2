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
from tfe_bench.models.arrays.arguments import MOST_PARTS, Ref
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
from tfe_bench.models.queries import quotient
from tfe_bench.protocols.ring import refresh
from tfe_bench.protocols.session import local
from tfe_bench.protocols.session.counting import Counting, Private
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import MaskedBits, Shared
from tfe_bench.protocols.tables import bits

Value = Shared | MaskedBits
# Leaves whose words the first graph makes values of.
_RAW = (BITS, DECIMAL)
# What operations raise that meet arguments of a type that they do not expect.
_STUMBLED = (
    *(ArithmeticError, AssertionError, AttributeError, LookupError, MemoryError),
    *(NotImplementedError, RecursionError, TypeError, ValueError),
)


@dataclass(frozen=True)
class Meaning:
    """What is public of a private value: its elements' kind, shape and scale."""

    kind: str
    shape: tuple[int, ...]
    scale: int

    @property
    def elements(self) -> int:
        """How many there are."""
        return math.prod(self.shape)


def meaning(op: str, value: object) -> Meaning:
    """What an operation made.

    Raises:
        UsageError: no private array of 64-bit words, or of unknown sizes.
    """
    if isinstance(value, MaskedBits) and value.shape is not None:
        return Meaning(BITS, tuple(int(n) for n in value.shape), 0)
    if isinstance(value, Shared) and value.limbs == 1 and value.ring_bits == 64:
        sizes = value.shape.as_list() if value.shape is not None else None
        if sizes is not None and None not in sizes:
            kind = FIXED if value.fractional_bits else INT
            return Meaning(kind, tuple(int(n) for n in sizes), value.fractional_bits)
    raise UsageError(f"{op} makes nothing that a private array may be with these arguments.")


def words(leaf: Leaf) -> Shared:
    """The words of a leaf that are not there, for a party that counts."""
    return Private(leaf.shape, 0 if leaf.kind == DECIMAL else leaf.scale).made()


def as_bits(x: Shared) -> MaskedBits:
    """Words that are 0 or 1 as private bits.  Local."""
    low = replace(x.map(lambda a: local.low_bits(a, 1)), bits=1, fractional_bits=0)
    return replace(bits.masked_bits(low), shape=tuple(int(n) for n in x.shape.as_list()))


def opened(party: Party, leaf: Leaf, held: Shared) -> Value:
    """A leaf's words as the value that steps take."""
    if leaf.kind == BITS:
        return as_bits(held)
    return quotient.as_fixed(party, held, leaf.scale)


def call(
    party: Party, step: Step, values: Mapping[Ref, Any], several: list[bool] | None = None
) -> list[Value]:
    """What a step makes, one value or several.

    Args:
        several: takes whether it makes a list.

    Raises:
        UsageError: the operation does not take these arguments.
    """
    operation = operations.find(step.op)
    try:
        args, named = step.arguments(values)
    except KeyError:
        raise UsageError("A plan takes values that earlier steps make.") from None
    if step.op in ("unstack", "split"):
        _check_parts(step.op, operation.bound(args, named).arguments)
    if step.body is not None:
        named["body"] = step.body
    try:
        made = operation.function(*args, **named)
    except ProtocolError as error:
        if not isinstance(party, Counting):
            raise
        raise UsageError(f"{step.op} cannot be priced with these arguments.") from error
    except TfeBenchError:
        raise
    except _STUMBLED as error:
        if not isinstance(party, Counting):
            raise
        # (its text could quote anything)
        raise UsageError(
            f"{step.op} does not take these arguments ({type(error).__name__}). See "
            f"help(tfe_bench.{step.op})."
        ) from error
    found = list(made) if isinstance(made, (list, tuple)) else [made]
    if several is not None:
        several.append(isinstance(made, (list, tuple)))
    if len(found) > MOST_PARTS:
        raise UsageError(f"An operation makes at most {MOST_PARTS} arrays. Received: more.")
    return found


def placed(number: int, made: Sequence[Value]) -> dict[Ref, Any]:
    """What a step made, by the references to it."""
    found: dict[Ref, Any] = {Ref(number, place): each for place, each in enumerate(made)}
    if len(made) == 1:
        found[Ref(number)] = made[0]
    return found


def _even(stage: int) -> int:
    return stage + stage % 2


class Schedule:
    """Which graph each step belongs to: even stages are graphs, odd ones call graphs themselves."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        base = len(plan.leaves)
        self._at: list[int] = [0] * base
        for step in plan.steps:
            latest = max(self._at[ref.number] for ref in step.refs())
            if operations.find(step.op).between:
                # (private bits among leaves are made in the first graph)
                stage = latest + 1 if latest % 2 == 0 else latest + 2
            else:
                stage = _even(latest)
            self._at.append(stage)
        self.ends = [_even(self._at[output.ref.number]) for output in plan.outputs]
        self.last = max([*self._at, *self.ends], default=0)

    def steps(self, stage: int) -> list[int]:
        """The numbers of a stage's values."""
        base = len(self.plan.leaves)
        found = [n for n in range(base, len(self._at)) if self._at[n] == stage]
        if stage == 0:
            return [*(n for n, leaf in enumerate(self.plan.leaves) if leaf.kind in _RAW), *found]
        return found


def run(
    party: Party,
    plan: Plan,
    leaves: Sequence[Shared],
    name: Hashable | None = None,
    progress: Callable[[float, str], None] = lambda fraction, text: None,
    seen: Callable[[int, list[Value]], None] = lambda number, made: None,
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
    fresh = refreshed(plan)
    results: dict[int, Shared] = {}

    def step(number: int, known: Mapping[Ref, Any]) -> dict[Ref, Any]:
        made = call(party, plan.steps[number - base], known)
        seen(number, made)
        return placed(number, made)

    for stage in range(schedule.last + 1):
        numbers = schedule.steps(stage)
        ends = [i for i, end in enumerate(schedule.ends) if end == stage] if stage % 2 == 0 else []
        progress(stage / (schedule.last + 1), "compute")
        if stage % 2:
            for number in numbers:
                with party.active(), party.kept_graphs(name, number):
                    values.update(step(number, values))
            continue
        own = [i for i in ends if _touched(plan, i, fresh)]
        if numbers or own:
            wanted = _wanted(plan, schedule, numbers)
            given = [ref for ref in _needed(plan, numbers, own) if ref in values]
            raw = [n for n in numbers if n < base]
            stated = _Stage(plan, numbers, [(i, fresh[i]) for i in own], wanted, given, raw, step)
            with party.kept_graphs(name, stage):
                made, out = party.function(functools.partial(stated.graph, party))(
                    [values[ref] for ref in given], [leaves[n] for n in raw]
                )
            values.update(zip(wanted, made, strict=True))
            results.update(zip(own, out, strict=True))
        for i in ends:
            if i not in own:
                results[i] = values[plan.outputs[i].ref]
    return [results[i] for i in range(len(plan.outputs))]


def _check_parts(op: str, given: Mapping[str, Any]) -> None:
    """Refuses to take an array apart into too many, before it is done."""
    if op == "split":
        parts = given["num_or_size_splits"]
        if type(parts) is int and parts > MOST_PARTS:
            raise UsageError(f"split makes at most {MOST_PARTS} arrays. Received: {parts}.")
        return
    sizes, axis = getattr(given["x"], "shape", None), given.get("axis", 0)
    if sizes is None or type(axis) is not int:
        return
    if -len(sizes) <= axis < len(sizes) and int(sizes[axis]) > MOST_PARTS:
        raise UsageError(f"unstack makes at most {MOST_PARTS} arrays. Received: more.")


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
    wanted: Sequence[Ref]
    given: Sequence[Ref]
    raw: Sequence[int]
    step: Callable[[int, Mapping[Ref, Any]], dict[Ref, Any]]

    def graph(
        self, party: Party, given: Sequence[Any], raw: Sequence[Shared]
    ) -> tuple[list[Any], list[Shared]]:
        """What later stages want, and the words of outputs."""
        known: dict[Ref, Any] = dict(zip(self.given, given, strict=True))
        for number, held in zip(self.raw, raw, strict=True):
            known[Ref(number)] = opened(party, self.plan.leaves[number], held)
        for number in self.numbers:
            if number not in self.raw:
                known.update(self.step(number, known))
        out = []
        for i, fresh in self.outputs:
            out.append(_delivered(party, _value_of(known, self.plan.outputs[i].ref), fresh))
        return [_value_of(known, ref) for ref in self.wanted], out


def _value_of(known: Mapping[Ref, Any], ref: Ref) -> Any:
    if ref not in known:
        raise UsageError("A plan takes values that earlier steps make.")
    return known[ref]


def _delivered(party: Party, value: Value, fresh: bool) -> Shared:
    """The words of an output; under a mask of its own, where it comes of what others hold."""
    if isinstance(value, MaskedBits):
        from tfe_bench.protocols.api import predicates

        return predicates.cast(value)  # (exchanged under a fresh mask)
    return refresh.refresh(party, value) if fresh else value


def refreshed(plan: Plan) -> list[bool]:
    """Which outputs leave to a client that does not know the masks of what they come of."""
    of_others = [leaf.source != INPUT for leaf in plan.leaves]
    for step in plan.steps:
        of_others.append(any(of_others[ref.number] for ref in step.refs()))
    return [o.then == REVEAL and of_others[o.ref.number] for o in plan.outputs]


def traced(plan: Plan) -> str:
    """All that the graphs of a plan depend on: no names, and not where leaves come from."""
    fresh = refreshed(plan)
    ends = [[o.ref.number, o.ref.place, fresh[i]] for i, o in enumerate(plan.outputs)]
    return json.dumps(
        [
            [leaf.header()[1:4] for leaf in plan.leaves],
            [step.header() for step in plan.steps],
            [end for i, end in enumerate(ends) if _touched(plan, i, fresh)],
        ],
        sort_keys=True,
    )


def _touched(plan: Plan, i: int, fresh: Sequence[bool]) -> bool:
    """Whether an output is more than a leaf as it is."""
    number = plan.outputs[i].ref.number
    return number >= len(plan.leaves) or plan.leaves[number].kind in _RAW or fresh[i]


def _needed(plan: Plan, numbers: Sequence[int], own: Sequence[int]) -> list[Ref]:
    """Values that a stage takes, in one order at all parties."""
    base = len(plan.leaves)
    found = [ref for n in numbers if n >= base for ref in plan.steps[n - base].refs()]
    found += [plan.outputs[i].ref for i in own]
    return [ref for ref in dict.fromkeys(found) if ref.number not in numbers]


def _wanted(plan: Plan, schedule: Schedule, numbers: Sequence[int]) -> list[Ref]:
    """What later stages take of a stage's values."""
    here, base = set(numbers), len(plan.leaves)
    later = [
        ref
        for n, step in enumerate(plan.steps, base)
        if n not in here
        for ref in step.refs()
        if ref.number in here
    ]
    return list(dict.fromkeys(later))

"""Plans of expressions: leaves, steps and outputs as closed JSON data, never executed as code.

A value is known by its number: leaves first, then steps, each of which takes earlier ones.  What a
plan claims of its leaves is nothing: every worker compares it with what it holds.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tfe_bench.cluster.stored import check_clients, check_deployment, check_name
from tfe_bench.errors import UsageError
from tfe_bench.models.arrays import operations
from tfe_bench.models.arrays.arguments import (
    MAX_CONSTANTS,
    MAX_NESTED,
    MAX_PARTS,
    MAX_TEXT,
    Ref,
    check_argument,
    check_shape,
    decode_argument,
    encode_argument,
    has_ref,
    iter_refs,
    parse_reference,
)
from tfe_bench.models.queries.types import MAX_DIGITS

MAX_STEPS, MAX_LEAVES, MAX_OUTPUTS = 1000, 256, 256
MAX_ITERATIONS = 1 << 16
FIXED, INT, BITS = "fixed", "int", "bits"
KINDS = (FIXED, INT, BITS)
# A stored leaf of decimals, whose scale is their digits: the plan begins by making it fixed point.
DECIMAL = "decimal"
INPUT, HANDLE, STORED = "input", "handle", "stored"
LOOP_VARIABLE = "turn"  # what stands for a value of any turn, where a loop's body is written
REVEAL, KEEP = "reveal", "keep"


@dataclass(frozen=True)
class Leaf:
    """A private value that a plan begins with.

    Attributes:
        source: INPUT, HANDLE or STORED.
        kind: FIXED, INT or BITS; of what is stored also DECIMAL.
        shape, scale: its elements', and their fractional bits; of DECIMAL their decimal digits.
        about: of a handle its id; of what is stored its kind's infix, name, deployment and part.
    """

    source: str
    kind: str
    shape: tuple[int, ...]
    scale: int
    about: tuple[str, ...] = ()

    def header(self) -> list[Any]:
        """As JSON."""
        return [self.source, self.kind, list(self.shape), self.scale, *self.about]


@dataclass(frozen=True)
class Step:
    """An operation on earlier values.

    Attributes:
        op: its name.
        args, named: its arguments, as JSON.
        body: what a loop does in each turn.
    """

    op: str
    args: list[Any]
    named: Mapping[str, Any]
    body: LoopBody | None = None

    def header(self) -> list[Any]:
        """As JSON."""
        more = [] if self.body is None else [self.body.header()]
        return [self.op, self.args, dict(self.named), *more]

    def operand_refs(self) -> list[Ref]:
        """The values that it takes."""
        return [ref for each in (*self.args, *self.named.values()) for ref in iter_refs(each)]

    def decode_arguments(self, values: Mapping[Ref, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Its arguments with values in place."""
        args = tuple(decode_argument(each, values) for each in self.args)
        return args, {name: decode_argument(each, values) for name, each in self.named.items()}


@dataclass(frozen=True)
class LoopBody:
    """What a loop does in each turn.

    Attributes:
        leaves: how many values it takes.
        steps: which it does with them.
        outputs: those that the next turn takes.
    """

    leaves: int
    steps: tuple[Step, ...]
    outputs: tuple[Ref, ...]

    def header(self) -> list[Any]:
        """As JSON."""
        steps = [step.header() for step in self.steps]
        return [self.leaves, steps, [encode_argument(ref) for ref in self.outputs]]


@dataclass(frozen=True)
class Output:
    """What becomes of a value.

    Attributes:
        then: REVEAL, HANDLE or KEEP.
        about: of a handle its id; of what is kept: name, clients, replace.
    """

    ref: Ref
    then: str
    about: Mapping[str, Any]

    def header(self) -> list[Any]:
        """As JSON."""
        return [encode_argument(self.ref), self.then, dict(self.about)]


@dataclass(frozen=True)
class Plan:
    """A checked plan."""

    leaves: tuple[Leaf, ...]
    steps: tuple[Step, ...]
    outputs: tuple[Output, ...]

    def header(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "leaves": [leaf.header() for leaf in self.leaves],
            "steps": [step.header() for step in self.steps],
            "outputs": [output.header() for output in self.outputs],
        }

    def cost_key(self) -> str:
        """All that graphs and costs depend on: no names and no handles."""
        return json.dumps(
            [
                [leaf.header()[:4] for leaf in self.leaves],
                [step.header() for step in self.steps],
                [[encode_argument(o.ref), o.then] for o in self.outputs],
            ],
            sort_keys=True,
        )

    @classmethod
    def from_header(cls, value: object) -> Plan:
        """From JSON of anybody.

        Raises:
            UsageError: it is no plan.
        """
        if not isinstance(value, Mapping) or set(value) != {"leaves", "steps", "outputs"}:
            raise UsageError("A plan has leaves, steps and outputs, and nothing else.")
        leaves = tuple(
            _parse_leaf(each) for each in _check_list(value["leaves"], 0, MAX_LEAVES, "leaves")
        )
        steps = _parse_steps(value["steps"], len(leaves), [MAX_CONSTANTS, MAX_STEPS])
        known = len(leaves) + len(steps)
        rows = _check_list(value["outputs"], 0, MAX_OUTPUTS, "outputs")
        outputs = tuple(_parse_output(each, known) for each in rows)
        output_names = [
            str(o.about.get("handle") or o.about.get("name")) for o in outputs if o.about
        ]
        if len(set(output_names)) != len(output_names):
            raise UsageError("A plan's outputs have different names.")
        used = {o.ref.number for o in outputs} | {r.number for s in steps for r in s.operand_refs()}
        if used != set(range(known)):
            raise UsageError("Every leaf and every step of a plan is used.")
        return cls(leaves, steps, outputs)


def plan_size_error() -> UsageError:
    """Of an expression that does not fit into a plan."""
    return UsageError(
        f"An expression has at most {MAX_STEPS} operations, on {MAX_LEAVES} arrays. Received: "
        "more. Have a part computed by itself: y = y.compute()."
    )


def _check_list(value: object, min_length: int, max_length: int, entries_name: str) -> list[Any]:
    if not isinstance(value, list) or not min_length <= len(value) <= max_length:
        raise UsageError(f"A plan has a list of {min_length} to {max_length} {entries_name}.")
    return value


def check_handle(value: object) -> str:
    """A handle's id.

    Raises:
        UsageError: it is none.
    """
    if not isinstance(value, str):
        raise UsageError("A handle is 32 hexadecimal digits.")
    check_deployment(value)
    return value


def _parse_leaf(value: object) -> Leaf:
    if not isinstance(value, list) or len(value) < 4:
        raise UsageError("A leaf of a plan says where it comes from, its kind, shape and scale.")
    source, kind, shape, scale, *about = value
    known = (*KINDS, DECIMAL) if source == STORED else KINDS
    if not isinstance(kind, str) or kind not in known:
        raise UsageError(f"A leaf's kind is one of {', '.join(known)}.")
    max_scale = MAX_DIGITS if kind == DECIMAL else 61
    if (
        type(scale) is not int
        or not 0 <= scale <= max_scale
        or (kind in (FIXED, DECIMAL)) != (scale > 0)
    ):
        raise UsageError("A leaf has 1 to 61 fractional bits, integers and bits have none.")
    if source == LOOP_VARIABLE:
        raise UsageError("What foldl gives to its function is of use inside of foldl only.")
    if source == HANDLE and len(about) == 1:
        check_handle(about[0])
    elif source == STORED and len(about) == 4 and all(isinstance(a, str) for a in about):
        check_name(about[1], "A stored name")
        check_deployment(about[2])
        if len(about[0]) > MAX_TEXT or len(about[3]) > MAX_TEXT:
            raise UsageError(f"A name in a plan has at most {MAX_TEXT} characters.")
    elif source != INPUT or about:
        raise UsageError("A leaf is an input, a handle, or what is stored, and nothing else.")
    return Leaf(str(source), kind, check_shape(shape), scale, tuple(about))


def _parse_steps(value: object, known: int, budget: list[int]) -> tuple[Step, ...]:
    steps: list[Step] = []
    for each in _check_list(value, 0, MAX_STEPS, "steps"):
        steps.append(_parse_step(each, known + len(steps), budget))
    return tuple(steps)


def _parse_body(value: object, budget: list[int]) -> LoopBody:
    if not isinstance(value, list) or len(value) != 3 or type(value[0]) is not int:
        raise UsageError("A loop has a number of values, steps on them, and what they lead to.")
    leaves = value[0]
    if not 1 <= leaves <= MAX_LEAVES:
        raise UsageError(f"A loop takes 1 to {MAX_LEAVES} values.")
    steps = _parse_steps(value[1], leaves, budget)
    for step in steps:
        if operations.find_operation(step.op).between:
            raise UsageError(
                f"One turn of a loop is one graph. Received: {step.op}, which calls graphs by "
                "itself. Take it out of the loop."
            )
    budget[1] -= len(steps)
    if budget[1] < 0:
        raise plan_size_error()
    outputs = _check_list(value[2], 1, MAX_OUTPUTS, "values of the next turn")
    return LoopBody(
        leaves, steps, tuple(parse_reference(each, leaves + len(steps)) for each in outputs)
    )


def _parse_step(value: object, number: int, budget: list[int]) -> Step:
    if not isinstance(value, list) or len(value) < 3:
        raise UsageError("A step is an operation, a list of arguments, and named ones.")
    op, args, named, *more = value
    operation = operations.find_operation(op)
    if len(more) != operation.loops:
        raise UsageError("A loop is a step with one body, and no other step has one.")
    if not isinstance(args, list) or not isinstance(named, Mapping) or len(named) > 32:
        raise UsageError("A step is an operation, a list of arguments, and named ones.")
    parts = [MAX_PARTS]
    for each in [*args, *named.values()]:
        check_argument(each, number, MAX_NESTED, parts, budget)
    step = Step(op, args, dict(named), _parse_body(more[0], budget) if more else None)
    if not step.operand_refs():
        raise UsageError(f"A step takes a private value. Received: {op} of public ones.")
    bound = operation.bind_arguments(tuple(args), step.named)
    for name, max_product in operation.sizes.items():
        _check_sizes(op, name, bound.arguments.get(name), max_product)
    return step


def parse_step(value: object, known: int) -> Step:
    """A step by itself, on so many values.

    Raises:
        UsageError: it is none.
    """
    return _parse_step(value, known, [MAX_CONSTANTS, MAX_STEPS])


def parse_body(value: object) -> LoopBody:
    """A loop's body by itself.

    Raises:
        UsageError: it is none.
    """
    return _parse_body(value, [MAX_CONSTANTS, MAX_STEPS])


def _check_sizes(op: str, name: str, value: object, max_product: int) -> None:
    """Refuses parameters that would have more made than a worker takes, before any is."""
    product, pending = 1, [decode_argument(value, {}) if not has_ref(value) else 1]
    while pending:
        each = pending.pop()
        if isinstance(each, (list, tuple)):
            pending.extend(each)
        elif isinstance(each, np.ndarray):
            pending.extend(each.reshape(-1).tolist())
        elif isinstance(each, (int, float)):
            product *= max(1, int(abs(each)))
        if product > max_product:
            raise UsageError(
                f"{op} takes {name} of at most {max_product} together. Received: one that asks for more."
            )


def _parse_output(value: object, known: int) -> Output:
    if not isinstance(value, list) or len(value) != 3 or not isinstance(value[2], Mapping):
        raise UsageError("An output is a value, what becomes of it, and how.")
    ref, then, about = parse_reference(value[0], known), value[1], dict(value[2])
    if then == HANDLE and set(about) == {"handle"}:
        check_handle(about["handle"])
    elif then == KEEP and set(about) == {"name", "clients", "replace"}:
        check_name(about["name"], "An array's name")
        check_clients(about["clients"])
        if type(about["replace"]) is not bool:
            raise UsageError("replace is true or false.")
    elif then != REVEAL or about:
        raise UsageError("An output is revealed, kept under a name, or held under a handle.")
    return Output(ref, str(then), about)

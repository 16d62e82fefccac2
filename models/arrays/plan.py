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
    MOST_CONSTANTS,
    MOST_NESTED,
    MOST_PARTS,
    MOST_TEXT,
    Ref,
    check_argument,
    check_shape,
    decoded,
    encoded,
    holds_ref,
    reference,
    refs,
)
from tfe_bench.models.queries.types import MOST_DIGITS

MOST_STEPS, MOST_LEAVES, MOST_OUTPUTS = 1000, 256, 256
MOST_TURNS = 1 << 16
FIXED, INT, BITS = "fixed", "int", "bits"
KINDS = (FIXED, INT, BITS)
# A stored leaf of decimals, whose scale is their digits: the plan begins by making it fixed point.
DECIMAL = "decimal"
INPUT, HANDLE, STORED = "input", "handle", "stored"
TURN = "turn"  # what stands for a value of any turn, where a loop's body is written
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
    body: Body | None = None

    def header(self) -> list[Any]:
        """As JSON."""
        more = [] if self.body is None else [self.body.header()]
        return [self.op, self.args, dict(self.named), *more]

    def refs(self) -> list[Ref]:
        """The values that it takes."""
        return [ref for each in (*self.args, *self.named.values()) for ref in refs(each)]

    def arguments(self, values: Mapping[Ref, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Its arguments with values in place."""
        args = tuple(decoded(each, values) for each in self.args)
        return args, {name: decoded(each, values) for name, each in self.named.items()}


@dataclass(frozen=True)
class Body:
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
        return [self.leaves, steps, [encoded(ref) for ref in self.outputs]]


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
        return [encoded(self.ref), self.then, dict(self.about)]


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

    def shape(self) -> str:
        """All that graphs and costs depend on: no names and no handles."""
        return json.dumps(
            [
                [leaf.header()[:4] for leaf in self.leaves],
                [step.header() for step in self.steps],
                [[encoded(o.ref), o.then] for o in self.outputs],
            ],
            sort_keys=True,
        )

    @classmethod
    def of(cls, given: object) -> Plan:
        """From JSON of anybody.

        Raises:
            UsageError: it is no plan.
        """
        if not isinstance(given, Mapping) or set(given) != {"leaves", "steps", "outputs"}:
            raise UsageError("A plan has leaves, steps and outputs, and nothing else.")
        leaves = tuple(_leaf(each) for each in _list(given["leaves"], 0, MOST_LEAVES, "leaves"))
        steps = _steps(given["steps"], len(leaves), [MOST_CONSTANTS, MOST_STEPS])
        known = len(leaves) + len(steps)
        rows = _list(given["outputs"], 0, MOST_OUTPUTS, "outputs")
        outputs = tuple(_output(each, known) for each in rows)
        taken = [str(o.about.get("handle") or o.about.get("name")) for o in outputs if o.about]
        if len(set(taken)) != len(taken):
            raise UsageError("A plan's outputs have different names.")
        used = {o.ref.number for o in outputs} | {r.number for s in steps for r in s.refs()}
        if used != set(range(known)):
            raise UsageError("Every leaf and every step of a plan is used.")
        return cls(leaves, steps, outputs)


def too_many() -> UsageError:
    """Of an expression that does not fit into a plan."""
    return UsageError(
        f"An expression has at most {MOST_STEPS} operations, on {MOST_LEAVES} arrays. Received: "
        "more. Have a part computed by itself: y = y.compute()."
    )


def _list(value: object, least: int, most: int, what: str) -> list[Any]:
    if not isinstance(value, list) or not least <= len(value) <= most:
        raise UsageError(f"A plan has a list of {least} to {most} {what}.")
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


def _leaf(given: object) -> Leaf:
    if not isinstance(given, list) or len(given) < 4:
        raise UsageError("A leaf of a plan says where it comes from, its kind, shape and scale.")
    source, kind, shape, scale, *about = given
    known = (*KINDS, DECIMAL) if source == STORED else KINDS
    if not isinstance(kind, str) or kind not in known:
        raise UsageError(f"A leaf's kind is one of {', '.join(known)}.")
    most = MOST_DIGITS if kind == DECIMAL else 61
    if (
        type(scale) is not int
        or not 0 <= scale <= most
        or (kind in (FIXED, DECIMAL)) != (scale > 0)
    ):
        raise UsageError("A leaf has 1 to 61 fractional bits, integers and bits have none.")
    if source == TURN:
        raise UsageError("What foldl gives to its function is of use inside of foldl only.")
    if source == HANDLE and len(about) == 1:
        check_handle(about[0])
    elif source == STORED and len(about) == 4 and all(isinstance(a, str) for a in about):
        check_name(about[1], "A stored name")
        check_deployment(about[2])
        if len(about[0]) > MOST_TEXT or len(about[3]) > MOST_TEXT:
            raise UsageError(f"A name in a plan has at most {MOST_TEXT} characters.")
    elif source != INPUT or about:
        raise UsageError("A leaf is an input, a handle, or what is stored, and nothing else.")
    return Leaf(str(source), kind, check_shape(shape), scale, tuple(about))


def _steps(given: object, known: int, left: list[int]) -> tuple[Step, ...]:
    found: list[Step] = []
    for each in _list(given, 0, MOST_STEPS, "steps"):
        found.append(_step(each, known + len(found), left))
    return tuple(found)


def _body(given: object, left: list[int]) -> Body:
    if not isinstance(given, list) or len(given) != 3 or type(given[0]) is not int:
        raise UsageError("A loop has a number of values, steps on them, and what they lead to.")
    leaves = given[0]
    if not 1 <= leaves <= MOST_LEAVES:
        raise UsageError(f"A loop takes 1 to {MOST_LEAVES} values.")
    steps = _steps(given[1], leaves, left)
    for step in steps:
        if operations.find(step.op).between:
            raise UsageError(
                f"One turn of a loop is one graph. Received: {step.op}, which calls graphs by "
                "itself. Take it out of the loop."
            )
    left[1] -= len(steps)
    if left[1] < 0:
        raise too_many()
    outputs = _list(given[2], 1, MOST_OUTPUTS, "values of the next turn")
    return Body(leaves, steps, tuple(reference(each, leaves + len(steps)) for each in outputs))


def _step(given: object, number: int, left: list[int]) -> Step:
    if not isinstance(given, list) or len(given) < 3:
        raise UsageError("A step is an operation, a list of arguments, and named ones.")
    op, args, named, *more = given
    operation = operations.find(op)
    if len(more) != operation.loops:
        raise UsageError("A loop is a step with one body, and no other step has one.")
    if not isinstance(args, list) or not isinstance(named, Mapping) or len(named) > 32:
        raise UsageError("A step is an operation, a list of arguments, and named ones.")
    parts = [MOST_PARTS]
    for each in [*args, *named.values()]:
        check_argument(each, number, MOST_NESTED, parts, left)
    step = Step(op, args, dict(named), _body(more[0], left) if more else None)
    if not step.refs():
        raise UsageError(f"A step takes a private value. Received: {op} of public ones.")
    bound = operation.bound(tuple(args), step.named)
    for name, most in operation.sizes.items():
        _check_sizes(op, name, bound.arguments.get(name), most)
    return step


def checked_step(given: object, known: int) -> Step:
    """A step by itself, on so many values.

    Raises:
        UsageError: it is none.
    """
    return _step(given, known, [MOST_CONSTANTS, MOST_STEPS])


def checked_body(given: object) -> Body:
    """A loop's body by itself.

    Raises:
        UsageError: it is none.
    """
    return _body(given, [MOST_CONSTANTS, MOST_STEPS])


def _check_sizes(op: str, name: str, value: object, most: int) -> None:
    """Refuses parameters that would have more made than a worker takes, before any is."""
    product, pending = 1, [decoded(value, {}) if not holds_ref(value) else 1]
    while pending:
        each = pending.pop()
        if isinstance(each, (list, tuple)):
            pending.extend(each)
        elif isinstance(each, np.ndarray):
            pending.extend(each.reshape(-1).tolist())
        elif isinstance(each, (int, float)):
            product *= max(1, int(abs(each)))
        if product > most:
            raise UsageError(
                f"{op} takes {name} of at most {most} together. Received: one that asks for more."
            )


def _output(given: object, known: int) -> Output:
    if not isinstance(given, list) or len(given) != 3 or not isinstance(given[2], Mapping):
        raise UsageError("An output is a value, what becomes of it, and how.")
    ref, then, about = reference(given[0], known), given[1], dict(given[2])
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

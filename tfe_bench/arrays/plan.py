"""Plans of expressions: leaves, steps and outputs as closed JSON data, never executed as code.

A value is identified by its number: leaves first, then steps, each of which takes earlier values.
Workers do not trust a plan's description of its leaves: each compares it with its store.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tfe_bench.arrays import operations
from tfe_bench.arrays.arguments import (
    MAX_CONSTANTS,
    MAX_NESTED,
    MAX_PARTS,
    MAX_TEXT,
    ValueReference,
    check_array_shape,
    check_operation_argument,
    decode_operation_argument,
    encode_operation_argument,
    has_ref,
    iter_refs,
    parse_reference,
)
from tfe_bench.arrays.array_spec import DECIMAL, FIXED, KINDS
from tfe_bench.cluster.stored import check_client_names, check_deployment_identifier, check_name
from tfe_bench.errors import UsageError
from tfe_bench.queries.types import MAX_DIGITS

MAX_STEPS, MAX_LEAVES, MAX_OUTPUTS = 1000, 256, 256
MAX_ITERATIONS = 1 << 16
INPUT, HANDLE, STORED = "input", "handle", "stored"
LOOP_VARIABLE = "turn"  # a loop variable, while a loop's body is built
REVEAL, KEEP = "reveal", "keep"


@dataclass(frozen=True)
class ExpressionLeaf:
    """A private value at the beginning of a plan.

    Attributes:
        source: INPUT, HANDLE or STORED.
        kind: FIXED, INT or BITS; for stored items also DECIMAL.
        shape, scale: shape of the elements, and their fractional bits; for DECIMAL their decimal
            digits.
        about: for a handle its id; for a stored item its kind's infix, name, deployment and part.
    """

    source: str
    kind: str
    shape: tuple[int, ...]
    scale: int
    about: tuple[str, ...] = ()

    def to_header(self) -> list[Any]:
        """Return the leaf as JSON."""
        return [self.source, self.kind, list(self.shape), self.scale, *self.about]


@dataclass(frozen=True)
class ExpressionStep:
    """An operation on earlier values.

    Attributes:
        op: its name.
        args, named: its arguments, as JSON.
        body: body of a loop.
    """

    op: str
    args: list[Any]
    named: Mapping[str, Any]
    body: LoopBody | None = None

    def to_header(self) -> list[Any]:
        """Return the step as JSON."""
        more = [] if self.body is None else [self.body.to_header()]
        return [self.op, self.args, dict(self.named), *more]

    def operand_refs(self) -> list[ValueReference]:
        """Return the references to its operands."""
        return [ref for each in (*self.args, *self.named.values()) for ref in iter_refs(each)]

    def decode_arguments(
        self, values: Mapping[ValueReference, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return its arguments with values instead of references."""
        args = tuple(decode_operation_argument(each, values) for each in self.args)
        return args, {
            name: decode_operation_argument(each, values) for name, each in self.named.items()
        }


@dataclass(frozen=True)
class LoopBody:
    """Body of a loop: the steps of one iteration.

    Attributes:
        leaves: number of values that it takes.
        steps: steps on these.
        outputs: values that the next iteration takes.
    """

    leaves: int
    steps: tuple[ExpressionStep, ...]
    outputs: tuple[ValueReference, ...]

    def to_header(self) -> list[Any]:
        """Return the body as JSON."""
        steps = [step.to_header() for step in self.steps]
        return [self.leaves, steps, [encode_operation_argument(ref) for ref in self.outputs]]


@dataclass(frozen=True)
class ExpressionOutput:
    """An output of a plan.

    Attributes:
        then: REVEAL, HANDLE or KEEP.
        about: for a handle its id; for a stored array: name, clients, replace.
    """

    ref: ValueReference
    then: str
    about: Mapping[str, Any]

    def to_header(self) -> list[Any]:
        """Return the output as JSON."""
        return [encode_operation_argument(self.ref), self.then, dict(self.about)]


@dataclass(frozen=True)
class ExpressionPlan:
    """A checked plan."""

    leaves: tuple[ExpressionLeaf, ...]
    steps: tuple[ExpressionStep, ...]
    outputs: tuple[ExpressionOutput, ...]

    def to_header(self) -> dict[str, Any]:
        """Return the plan as JSON."""
        return {
            "leaves": [leaf.to_header() for leaf in self.leaves],
            "steps": [step.to_header() for step in self.steps],
            "outputs": [output.to_header() for output in self.outputs],
        }

    @functools.cached_property
    def outputs_to_refresh(self) -> list[bool]:
        """Flags of the outputs whose client does not know the masks of their sources."""
        from_others = [leaf.source != INPUT for leaf in self.leaves]
        for step in self.steps:
            from_others.append(any(from_others[ref.number] for ref in step.operand_refs()))
        return [o.then == REVEAL and from_others[o.ref.number] for o in self.outputs]

    @functools.cached_property
    def graph_digest(self) -> str:
        """Digest of everything that graphs and costs depend on.

        It has neither names nor the origin of leaves.
        """
        ends = zip(self.outputs, self.outputs_to_refresh, strict=True)
        structure = [
            [leaf.to_header()[1:4] for leaf in self.leaves],
            [step.to_header() for step in self.steps],
            [[output.ref.number, output.ref.place, fresh] for output, fresh in ends],
        ]
        return hashlib.sha256(json.dumps(structure, sort_keys=True).encode()).hexdigest()

    @classmethod
    def from_header(cls, value: object) -> ExpressionPlan:
        """Parse a plan from untrusted JSON.

        Raises:
            UsageError: the plan is invalid.
        """
        if not isinstance(value, Mapping) or set(value) != {"leaves", "steps", "outputs"}:
            raise UsageError(
                "A plan has the fields leaves, steps and outputs and no others.",
                code="invalid-plan",
            )
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
            raise UsageError(
                "A plan's outputs have different names.", code="duplicate-name", operation="outputs"
            )
        used = {o.ref.number for o in outputs} | {r.number for s in steps for r in s.operand_refs()}
        if used != set(range(known)):
            raise UsageError("A plan has a leaf or step that no output uses.", code="unused-step")
        return cls(leaves, steps, outputs)


def expression_size_error() -> UsageError:
    """Return the error for an expression that exceeds the size of a plan."""
    return UsageError(
        f"An expression has at most {MAX_STEPS} operations on {MAX_LEAVES} arrays. Received: "
        "more. Compute a part separately: y = y.compute().",
        code="plan-too-large",
    )


def _check_list(value: object, min_length: int, max_length: int, entries_name: str) -> list[Any]:
    if not isinstance(value, list) or not min_length <= len(value) <= max_length:
        raise UsageError(
            f"A plan has a list of {min_length} to {max_length} {entries_name}.",
            code="invalid-plan",
            operation=entries_name,
        )
    return value


def check_handle(value: object) -> str:
    """Return a handle's id if it is valid.

    Raises:
        UsageError: the id is invalid.
    """
    if not isinstance(value, str):
        raise UsageError("A handle has 32 hexadecimal digits.", code="invalid-handle")
    check_deployment_identifier(value)
    return value


def _parse_leaf(value: object) -> ExpressionLeaf:
    if not isinstance(value, list) or len(value) < 4:
        raise UsageError(
            "A leaf of a plan states its source, kind, shape and scale.", code="invalid-leaf"
        )
    source, kind, shape, scale, *about = value
    known = (*KINDS, DECIMAL) if source == STORED else KINDS
    if not isinstance(kind, str) or kind not in known:
        raise UsageError(
            f"A leaf's kind is one of {', '.join(known)}.", code="invalid-leaf", operation="kind"
        )
    max_scale = MAX_DIGITS if kind == DECIMAL else 61
    if (
        type(scale) is not int
        or not 0 <= scale <= max_scale
        or (kind in (FIXED, DECIMAL)) != (scale > 0)
    ):
        raise UsageError(
            "A leaf has 1 to 61 fractional bits; integers and bits have none.",
            code="invalid-leaf",
            operation="scale",
        )
    if source == LOOP_VARIABLE:
        raise UsageError(
            "Loop variables of foldl cannot be used outside its body.", code="loop-variable-outside"
        )
    if source == HANDLE and len(about) == 1:
        check_handle(about[0])
    elif source == STORED and len(about) == 4 and all(isinstance(a, str) for a in about):
        check_name(about[1], "A stored name")
        check_deployment_identifier(about[2])
        if len(about[0]) > MAX_TEXT or len(about[3]) > MAX_TEXT:
            raise UsageError(
                f"A name in a plan has at most {MAX_TEXT} characters.", code="invalid-name"
            )
    elif source != INPUT or about:
        raise UsageError(
            "A leaf is an input, a handle, or a stored item.",
            code="invalid-leaf",
            operation="source",
        )
    return ExpressionLeaf(str(source), kind, check_array_shape(shape), scale, tuple(about))


def _parse_steps(value: object, known: int, budget: list[int]) -> tuple[ExpressionStep, ...]:
    steps: list[ExpressionStep] = []
    for each in _check_list(value, 0, MAX_STEPS, "steps"):
        steps.append(_parse_expression_step(each, known + len(steps), budget))
    return tuple(steps)


def _parse_body(value: object, budget: list[int]) -> LoopBody:
    if not isinstance(value, list) or len(value) != 3 or type(value[0]) is not int:
        raise UsageError(
            "A loop body has a number of values, steps on them, and outputs.",
            code="invalid-loop-body",
        )
    leaves = value[0]
    if not 1 <= leaves <= MAX_LEAVES:
        raise UsageError(f"A loop takes 1 to {MAX_LEAVES} values.", code="loop-value-count")
    steps = _parse_steps(value[1], leaves, budget)
    for step in steps:
        if operations.find_operation(step.op).between:
            raise UsageError(
                f"An iteration of a loop is one graph. Received: {step.op}, which calls "
                "graphs itself. Move it out of the loop.",
                code="sort-in-loop",
                operation=step.op,
            )
    budget[1] -= len(steps)
    if budget[1] < 0:
        raise expression_size_error()
    outputs = _check_list(value[2], 1, MAX_OUTPUTS, "values of the next turn")
    return LoopBody(
        leaves, steps, tuple(parse_reference(each, leaves + len(steps)) for each in outputs)
    )


def _parse_expression_step(value: object, number: int, budget: list[int]) -> ExpressionStep:
    if not isinstance(value, list) or len(value) < 3:
        raise UsageError(
            "A step is an operation, a list of arguments, and named ones.",
            code="invalid-plan",
            operation="step",
        )
    op, args, named, *more = value
    operation = operations.find_operation(op)
    if len(more) != operation.loops:
        raise UsageError(
            "A loop step has one body; other steps have none.",
            code="loop-body-mismatch",
            operation=op,
        )
    if not isinstance(args, list) or not isinstance(named, Mapping) or len(named) > 32:
        raise UsageError(
            "A step is an operation, a list of arguments, and named ones.",
            code="invalid-plan",
            operation="step",
        )
    parts = [MAX_PARTS]
    for each in [*args, *named.values()]:
        check_operation_argument(each, number, MAX_NESTED, parts, budget)
    step = ExpressionStep(op, args, dict(named), _parse_body(more[0], budget) if more else None)
    if not step.operand_refs():
        raise UsageError(
            f"A step takes a private value. Received: {op} of public ones.",
            code="no-private-operand",
            operation=op,
        )
    bound = operation.bind_arguments(tuple(args), step.named)
    for name, max_product in operation.sizes.items():
        _check_result_sizes(op, name, bound.arguments.get(name), max_product)
    return step


def parse_expression_step(value: object, known: int) -> ExpressionStep:
    """Parse a single step on a number of values.

    Raises:
        UsageError: the step is invalid.
    """
    return _parse_expression_step(value, known, [MAX_CONSTANTS, MAX_STEPS])


def parse_body(value: object) -> LoopBody:
    """Parse a single loop body.

    Raises:
        UsageError: the body is invalid.
    """
    return _parse_body(value, [MAX_CONSTANTS, MAX_STEPS])


def _check_result_sizes(op: str, name: str, value: object, max_product: int) -> None:
    """Reject parameters of a result larger than a worker allows, before it is computed."""
    product, pending = 1, [decode_operation_argument(value, {}) if not has_ref(value) else 1]
    while pending:
        item = pending.pop()
        if isinstance(item, (list, tuple)):
            pending.extend(item)
        elif isinstance(item, np.ndarray):
            pending.extend(item.reshape(-1).tolist())
        elif isinstance(item, (int, float)):
            product *= max(1, int(abs(item)))
        if product > max_product:
            raise UsageError(
                f"{op} takes {name} with a product of at most {max_product}. Received: a "
                "larger one.",
                code="too-large",
                operation=op,
            )


def _parse_output(value: object, known: int) -> ExpressionOutput:
    if not isinstance(value, list) or len(value) != 3 or not isinstance(value[2], Mapping):
        raise UsageError(
            "An output is a value, its use, and the parameters of the use.",
            code="invalid-plan",
            operation="output",
        )
    ref, then, about = parse_reference(value[0], known), value[1], dict(value[2])
    if then == HANDLE and set(about) == {"handle"}:
        check_handle(about["handle"])
    elif then == KEEP and set(about) == {"name", "clients", "replace"}:
        check_name(about["name"], "An array's name")
        check_client_names(about["clients"])
        if type(about["replace"]) is not bool:
            raise UsageError("replace is true or false.", code="wrong-type", operation="replace")
    elif then != REVEAL or about:
        raise UsageError(
            "An output is revealed, stored under a name, or held under a handle.",
            code="invalid-plan",
            operation="output",
        )
    return ExpressionOutput(ref, str(then), about)

"""Construction of plans from expressions: every value once, in order, with equal values shared."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from tfe_bench.arrays import plan as plans
from tfe_bench.arrays.arguments import ValueReference, encode_operation_argument
from tfe_bench.arrays.bounds import Bounds
from tfe_bench.arrays.node import ExpressionNode
from tfe_bench.arrays.plan import INPUT, ExpressionOutput, ExpressionPlan
from tfe_bench.arrays.request import leaf_input_name
from tfe_bench.cluster.requests import PrivateInput


@dataclass(frozen=True)
class BuiltExpressionPlan:
    """A plan, and the inputs of this client for it.

    Attributes:
        nodes: nodes whose handles and arrays the plan names; they must live until it has run.
        bounds: bounds of values, by number in the plan.
    """

    plan: ExpressionPlan
    inputs: Mapping[str, PrivateInput]
    nodes: Sequence[ExpressionNode]
    bounds: Mapping[int, Bounds]


def build(
    nodes: Sequence[ExpressionNode],
    outputs: Sequence[tuple[str, Mapping[str, Any]]],
    replacements: Mapping[ExpressionNode, ExpressionNode] = MappingProxyType({}),
) -> BuiltExpressionPlan:
    """Build one plan for several expressions.

    Args:
        outputs: use of each expression's value.
        replacements: leaves that replace nodes.

    Raises:
        UsageError: too many operations.
    """
    nodes = [replacements.get(node, node) for node in nodes]
    order = topological_node_order(nodes, replacements)
    leaves = [node for node in order if node.leaf is not None]
    numbers: dict[int, ValueReference] = {}
    rows: list[list[Any]] = []
    inputs: dict[str, PrivateInput] = {}
    known: dict[str, ValueReference] = {}
    for node in leaves:
        leaf = node.leaf
        assert leaf is not None
        key = f"input {id(node.value)}" if leaf.source == INPUT else json.dumps(leaf.to_header())
        if key not in known:
            if node.value is not None:
                inputs[leaf_input_name(len(rows))] = node.value
            known[key] = ValueReference(len(rows))
            rows.append(leaf.to_header())
        numbers[id(node)] = known[key]
    if len(rows) > plans.MAX_LEAVES:
        raise plans.expression_size_error()
    for node, other in replacements.items():
        if id(other) in numbers:
            numbers[id(node)] = numbers[id(other)]
    steps = build_steps(order, numbers, len(rows))
    ends = [
        ExpressionOutput(numbers[id(node)], then, about).to_header()
        for node, (then, about) in zip(nodes, outputs, strict=True)
    ]
    plan = ExpressionPlan.from_header({"leaves": rows, "steps": steps, "outputs": ends})
    bounds = {numbers[id(node)].number: node.range for node in order if id(node) in numbers}
    return BuiltExpressionPlan(plan, inputs, leaves, bounds)


def build_steps(
    order: Sequence[ExpressionNode], numbers: dict[int, ValueReference], first: int
) -> list[list[Any]]:
    """Build the steps of a plan, or of a loop's body.

    Args:
        order: all nodes, each after its operands.
        numbers: references of leaves; receives those of the other nodes.
        first: number of the first step.

    Raises:
        UsageError: too many steps.
    """
    steps: list[list[Any]] = []
    known: dict[str, ValueReference] = {}
    for node in order:
        if id(node) in numbers:
            continue
        if node.step is not None:
            numbers[id(node)] = ValueReference(numbers[id(node.step)].number, node.place)
            continue
        named = {name: _encode_operand(argument, numbers) for name, argument in node.named.items()}
        step = [node.op, [_encode_operand(argument, numbers) for argument in node.args], named]
        if node.body is not None:
            step.append(node.body.to_header())
        key = json.dumps(step, sort_keys=True)
        if key not in known:
            known[key] = ValueReference(first + len(steps))
            steps.append(step)
            if len(steps) > plans.MAX_STEPS:
                raise plans.expression_size_error()
        numbers[id(node)] = known[key]
    return steps


def topological_node_order(
    nodes: Sequence[ExpressionNode],
    replacements: Mapping[ExpressionNode, ExpressionNode] = MappingProxyType({}),
) -> list[ExpressionNode]:
    """Return all nodes of some expressions, each after its operands; leaves replace some nodes."""
    visited: dict[int, ExpressionNode] = {}
    pending: list[tuple[ExpressionNode, bool]] = [(node, False) for node in reversed(nodes)]
    while pending:
        node, ready = pending.pop()
        if id(node) in visited:
            continue
        if ready:
            visited[id(node)] = node
            if len(visited) > 4 * plans.MAX_STEPS:
                raise plans.expression_size_error()
            continue
        pending.append((node, True))
        pending.extend((replacements.get(child, child), False) for child in node_operands(node))
    return list(visited.values())


def node_operands(node: ExpressionNode) -> list[ExpressionNode]:
    """Return the operands of a node."""
    step_node = [] if node.step is None else [node.step]
    return step_node + [
        child
        for each in (*node.args, *node.named.values())
        for child in _iterate_argument_nodes(each)
    ]


def _iterate_argument_nodes(value: Any) -> list[ExpressionNode]:
    if isinstance(value, ExpressionNode):
        return [value]
    if isinstance(value, (list, tuple)):
        return [child for each in value for child in _iterate_argument_nodes(each)]
    return []


def _encode_operand(value: Any, numbers: Mapping[int, ValueReference]) -> Any:
    """Encode an argument as JSON, with references instead of nodes."""
    if isinstance(value, ExpressionNode):
        return encode_operation_argument(numbers[id(value)])
    if isinstance(value, (list, tuple)):
        return [type(value).__name__, [_encode_operand(each, numbers) for each in value]]
    return encode_operation_argument(value)

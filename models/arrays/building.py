"""From expressions to a plan: every value once, in an order, and what equals another shared."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from tfe_bench.cluster.requests import PrivateInput
from tfe_bench.models.arrays import plan as plans
from tfe_bench.models.arrays.arguments import Ref, encoded
from tfe_bench.models.arrays.bounds import Bounds
from tfe_bench.models.arrays.node import Node
from tfe_bench.models.arrays.plan import INPUT, Output, Plan
from tfe_bench.models.programs.compute import input_name


@dataclass(frozen=True)
class Built:
    """A plan, and the inputs that it takes of this client.

    Attributes:
        nodes: whose handles and arrays the plan names, so that they live until it has run.
        bounds: of values, by their numbers in the plan.
    """

    plan: Plan
    inputs: Mapping[str, PrivateInput]
    nodes: Sequence[Node]
    bounds: Mapping[int, Bounds]


def build(
    nodes: Sequence[Node],
    outputs: Sequence[tuple[str, Mapping[str, Any]]],
    instead: Mapping[Node, Node] = MappingProxyType({}),
) -> Built:
    """One plan for several expressions.

    Args:
        outputs: what becomes of each.
        instead: leaves that are taken in place of nodes.

    Raises:
        UsageError: there are too many operations.
    """
    nodes = [instead.get(node, node) for node in nodes]
    order = ordered(nodes, instead)
    leaves = [node for node in order if node.leaf is not None]
    numbers: dict[int, Ref] = {}
    rows: list[list[Any]] = []
    inputs: dict[str, PrivateInput] = {}
    known: dict[str, Ref] = {}
    for node in leaves:
        leaf = node.leaf
        assert leaf is not None
        key = f"input {id(node.value)}" if leaf.source == INPUT else json.dumps(leaf.header())
        if key not in known:
            if node.value is not None:
                inputs[input_name(len(rows))] = node.value
            known[key] = Ref(len(rows))
            rows.append(leaf.header())
        numbers[id(node)] = known[key]
    if len(rows) > plans.MOST_LEAVES:
        raise plans.too_many()
    for node, other in instead.items():
        if id(other) in numbers:
            numbers[id(node)] = numbers[id(other)]
    steps = rows_of(order, numbers, len(rows))
    ends = [
        Output(numbers[id(node)], then, about).header()
        for node, (then, about) in zip(nodes, outputs, strict=True)
    ]
    plan = Plan.of({"leaves": rows, "steps": steps, "outputs": ends})
    bounds = {numbers[id(node)].number: node.range for node in order if id(node) in numbers}
    return Built(plan, inputs, leaves, bounds)


def rows_of(order: Sequence[Node], numbers: dict[int, Ref], first: int) -> list[list[Any]]:
    """The steps of a plan, or of a loop's body.

    Args:
        order: all nodes, each behind those that it takes.
        numbers: of leaves; takes those of the others.
        first: number of the first step.

    Raises:
        UsageError: there are too many.
    """
    steps: list[list[Any]] = []
    known: dict[str, Ref] = {}
    for node in order:
        if id(node) in numbers:
            continue
        if node.step is not None:
            numbers[id(node)] = Ref(numbers[id(node.step)].number, node.place)
            continue
        named = {name: _told(each, numbers) for name, each in node.named.items()}
        step = [node.op, [_told(each, numbers) for each in node.args], named]
        if node.body is not None:
            step.append(node.body.header())
        key = json.dumps(step, sort_keys=True)
        if key not in known:
            known[key] = Ref(first + len(steps))
            steps.append(step)
            if len(steps) > plans.MOST_STEPS:
                raise plans.too_many()
        numbers[id(node)] = known[key]
    return steps


def ordered(
    nodes: Sequence[Node], instead: Mapping[Node, Node] = MappingProxyType({})
) -> list[Node]:
    """All nodes that some are made of, each behind those that it takes; leaves instead of some."""
    found: dict[int, Node] = {}
    open_: list[tuple[Node, bool]] = [(node, False) for node in reversed(nodes)]
    while open_:
        node, ready = open_.pop()
        if id(node) in found:
            continue
        if ready:
            found[id(node)] = node
            if len(found) > 4 * plans.MOST_STEPS:
                raise plans.too_many()
            continue
        open_.append((node, True))
        open_.extend((instead.get(child, child), False) for child in taken(node))
    return list(found.values())


def taken(node: Node) -> list[Node]:
    """What a node is made of."""
    own = [] if node.step is None else [node.step]
    return own + [child for each in (*node.args, *node.named.values()) for child in _children(each)]


def _children(value: Any) -> list[Node]:
    if isinstance(value, Node):
        return [value]
    if isinstance(value, (list, tuple)):
        return [child for each in value for child in _children(each)]
    return []


def _told(value: Any, numbers: Mapping[int, Ref]) -> Any:
    """An argument as JSON, with references in place of nodes."""
    if isinstance(value, Node):
        return encoded(numbers[id(value)])
    if isinstance(value, (list, tuple)):
        return [type(value).__name__, [_told(each, numbers) for each in value]]
    return encoded(value)

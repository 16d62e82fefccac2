"""Planning of operations from bounds: parameters of an operation, and checks of its operands.

The client checks preconditions on its own arrays here, before anything is sent (see bounds.py).
The workers count violations of other values, and the client to which a result is revealed learns
the count.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tfe_bench.arrays import bounds as rules
from tfe_bench.arrays import building, operations
from tfe_bench.arrays.array_spec import ArraySpec
from tfe_bench.arrays.bounds import Bounds, OperandGuard, OperationCall, PrivateOperand
from tfe_bench.arrays.node import ExpressionNode
from tfe_bench.arrays.operations import Apply
from tfe_bench.arrays.plan import INPUT
from tfe_bench.errors import RangeError, UsageError

REMEDY = (
    "Scale the values, declare a bound that they satisfy (cluster.private(array, bound=...)), "
    "or compute a part separately."
)


# ---- this client's own elements


def own_elements(node: Any) -> np.ndarray[Any, Any] | None:
    """Return the ring elements of this client's array, or of a part of one; None:
    others' values.
    """
    if not isinstance(node, ExpressionNode):
        return None
    if node.leaf is not None:
        is_own = node.leaf.source == INPUT and node.value is not None
        return np.asarray(node.value.ring) if is_own and node.value is not None else None
    operation = None if node.step is not None else operations.find_operation(node.op)
    if operation is None or operation.view is None:
        return None
    first = own_elements(node.args[0])
    viewed = None if first is None else operation.view_elements([first, *node.args[1:]])
    return None if viewed is None else np.asarray(viewed)


def _elements_of_iterations(node: ExpressionNode) -> np.ndarray[Any, Any] | None:
    """Return the ring elements of a loop variable in all iterations, if they belong to this
    client.

    A part of an element (`getitem`) is excluded: elements outside of the part must not decide what
    the workers count.
    """
    if node.part_of is not None:
        return own_elements(node.part_of)
    whole = node.op not in ("", "getitem") and isinstance(node.args[0], ExpressionNode)
    if not whole or operations.find_operation(node.op).view is None:
        return None
    return _elements_of_iterations(node.args[0])


def _evaluate_guard(guard: OperandGuard) -> bool | None:
    """Return whether a guard holds on this client's own elements; None: unknown."""
    elements = [
        own_elements(node) if isinstance(node, ExpressionNode) else None for node in guard.nodes
    ]
    if guard.bits is None and elements[0] is None and isinstance(guard.nodes[0], ExpressionNode):
        elements = [_elements_of_iterations(guard.nodes[0])]
    if any(a is None for a in elements):
        return None
    if guard.bits is not None:
        x, y = elements
        assert x is not None and y is not None
        if guard.nodes[0] is guard.nodes[1]:
            return bool(np.all(x != 0))
        return bool(
            np.all((_unsigned_magnitude(x) >> np.uint64(guard.bits)) < _unsigned_magnitude(y))
        )
    ring = elements[0]
    assert ring is not None
    low = guard.low is None or bool(np.all(ring >= guard.low))
    return low and (guard.high is None or bool(np.all(ring <= guard.high)))


def _unsigned_magnitude(ring: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.asarray(np.abs(ring.astype(np.int64)).astype(np.uint64))


# ---- one operation


def as_private_operand(value: Any) -> Any:
    """Return an argument with the public facts about each node in its place."""
    if isinstance(value, ExpressionNode):
        return PrivateOperand(value.spec, value.range, value)
    if isinstance(value, (list, tuple)):
        return type(value)(as_private_operand(each) for each in value)
    return value


def plan_operation(
    op: str, arguments: Mapping[str, Any], result_specs: list[ArraySpec]
) -> tuple[list[Bounds], dict[str, Any], list[OperandGuard]]:
    """Return the bounds of results, further parameters of the operation, and guards for the
    workers.

    Args:
        arguments: arguments by name, with nodes among them.

    Raises:
        RangeError: an array of this client violates a precondition.
    """
    call = OperationCall(
        op, {name: as_private_operand(each) for name, each in arguments.items()}, result_specs
    )
    bounds = rules.apply_bounds_rule(operations.find_operation(op).bounds, call)
    open_guards: list[OperandGuard] = []
    for guard in call.guards:
        holds = _evaluate_guard(guard)
        if holds is None:
            open_guards.append(guard)
        elif not holds:
            raise RangeError(
                f"{guard.text}. Nothing was sent. {REMEDY}",
                code="own-values-out-of-range",
                operation=op,
            )
    return bounds, call.extra, open_guards


# ---- checks of results


def collect_guards(
    nodes: Sequence[ExpressionNode], replacements: Mapping[ExpressionNode, ExpressionNode]
) -> dict[str, list[ExpressionNode]]:
    """Return the violation counts of some values, by the text of the violation."""
    counts_by_text: dict[str, list[ExpressionNode]] = {}
    visited: set[int] = set()
    pending = list(nodes)
    while pending:
        more: list[ExpressionNode] = []
        for node in building.topological_node_order(
            [replacements.get(n, n) for n in pending], replacements
        ):
            if id(node) in visited:
                continue
            visited.add(id(node))
            for text, count in node.guards:
                listed = counts_by_text.setdefault(text, [])
                if all(count is not other for other in listed):
                    listed.append(count)
                    more.append(count)
        pending = more
    return counts_by_text


def check_violation_counts(texts: Sequence[str], counts: Sequence[int]) -> None:
    """Report the values that left the range of an operation, if any.

    Raises:
        RangeError: values did: the result is wrong.
    """
    violations = [
        f"{text} ({count} times)" for text, count in zip(texts, counts, strict=True) if count
    ]
    if violations:
        raise RangeError(
            "The result is wrong: values left the range of an operation. "
            f"{'; '.join(violations[:8])}. {REMEDY} reveal(check=False) returns it anyway.",
            code="values-left-range",
            operation=violations[0].partition(":")[0],
        )


_OR = " | "


def join_violation_texts(texts: Sequence[str]) -> str:
    """Return one text for a number that counts several violations."""
    return _OR.join(sorted({part for text in texts for part in text.split(_OR)}))


# ---- undefined results


def replace_undefined_results(
    apply: Apply, name: str, arguments: Mapping[str, Any], otherwise: Any
) -> Any:
    """Apply an operation, with a public number in place of undefined results.

    Raises:
        UsageError: the operation is defined everywhere.
    """
    rule = operations.find_operation(name).undefined
    if rule is None:
        taking = [each.name for each in operations.list_operations().values() if each.undefined]
        raise UsageError(
            f"{name} takes no otherwise. Received: one. It exists for {', '.join(sorted(taking))}.",
            code="unsupported-argument",
            operation=name,
        )
    operand, compare = rule
    x = arguments[operand]
    if not hasattr(x, "kind"):
        raise UsageError(
            f"{name} takes otherwise with a private {operand}. Received: a public one.",
            code="public-operand",
            operation=name,
        )
    bad = apply(compare, x, 0)
    safe = apply("where", bad, 1, x)
    return apply("where", bad, otherwise, apply(name, **{**arguments, operand: safe}))


def violation_count_step(guard: OperandGuard) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
    """Return the operation that counts the violations of a guard."""
    if guard.bits is None:
        # (count_outside takes limits below 2^62: those of 64-bit words are reduced)
        limit = 1 << rules.LIMIT
        low = None if guard.low is None else max(guard.low, -limit)
        limits = {"low": low, "high": None if guard.high is None else min(guard.high, limit - 1)}
        return "count_outside", guard.nodes, {k: v for k, v in limits.items() if v is not None}
    if guard.nodes[0] is guard.nodes[1]:
        return "count_zeros", guard.nodes[:1], {}
    drop = {"drop": guard.drop} if guard.drop else {}
    return "count_steep", guard.nodes, {"bits": guard.bits, **drop}

"""Inference of an operation's results from kind, shape and scale of its operands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tfe_bench.arrays import arguments, evaluate, operations
from tfe_bench.arrays import plan as plans
from tfe_bench.arrays.arguments import ValueReference
from tfe_bench.arrays.array_spec import BITS, ArraySpec
from tfe_bench.arrays.node import ExpressionNode
from tfe_bench.arrays.plan import LoopBody
from tfe_bench.protocols.session.counting import CostParty, PrivateBits
from tfe_bench.protocols.session.counting import Private as Counted


def infer_results(
    operation: operations.Operation,
    args: Sequence[Any],
    named: Mapping[str, Any],
    body: LoopBody | None,
) -> tuple[list[ArraySpec], bool]:
    """Infer the specifications of an operation's results, and whether it returns a list.

    Args:
        args, named: arguments, with nodes for private values.

    Raises:
        UsageError: the operation does not take them.
    """
    nodes: dict[int, ExpressionNode] = {}

    def replace_nodes(value: Any) -> Any:
        if isinstance(value, ExpressionNode):
            nodes.setdefault(id(value), value)
            return ValueReference(list(nodes).index(id(value)))
        if isinstance(value, (list, tuple)):
            return type(value)(replace_nodes(each) for each in value)
        return value

    step = [
        operation.name,
        [arguments.encode_operation_argument(replace_nodes(each)) for each in args],
        {
            key: arguments.encode_operation_argument(replace_nodes(each))
            for key, each in named.items()
        },
        *([] if body is None else [body.to_header()]),
    ]
    parsed_step = plans.parse_expression_step(step, len(nodes))
    party = CostParty(expected=True)
    returns_list: list[bool] = []

    def run_step(values: Sequence[Any]) -> list[Any]:
        known = {ValueReference(number): value for number, value in enumerate(values)}
        results = evaluate.run_step(party, parsed_step, known, returns_list)
        return results

    symbolic_values = [_symbolic_operand(node.spec) for node in nodes.values()]
    with party.active():
        results = (
            run_step(symbolic_values)
            if operation.between
            else party.function(run_step)(symbolic_values)
        )
    return [evaluate.infer_array_spec(operation.name, each) for each in results], returns_list[0]


def _symbolic_operand(spec: ArraySpec) -> Any:
    if spec.kind == BITS:
        return PrivateBits(spec.shape).to_symbolic()
    return Counted(spec.shape, spec.scale).to_symbolic()

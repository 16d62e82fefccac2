"""Requests of the program "compute", for clients and workers."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tfe_bench.arrays.plan import INPUT, ExpressionPlan, check_handle
from tfe_bench.arrays.price import ExpressionPrice, price_expression_plan
from tfe_bench.cluster.jobs import InputSpec
from tfe_bench.cluster.schema import Request, Rule, list_field, parsed_field
from tfe_bench.errors import UsageError

NAME = "compute"
# Largest number of handles that one job releases, and the name of all of them.
MAX_FREED, ALL_HANDLES = 1000, "*"


def leaf_input_name(i: int) -> str:
    """Return the input name of a leaf that the client sends, from its number."""
    return f"x{i}"


def revealed_output_name(i: int) -> str:
    """Return the output name of a revealed value, from the number of the plan's output."""
    return f"y{i}"


def _read_handle(value: object) -> str:
    return ALL_HANDLES if value == ALL_HANDLES else check_handle(value)


@dataclass(frozen=True)
class ComputeRequest(Request):
    """A request for the values of an expression.

    Attributes:
        plan: the expression; empty if a job only releases handles.
        free: handles that the client releases, or ALL_HANDLES.
    """

    plan: ExpressionPlan = parsed_field(
        ExpressionPlan.from_header, ExpressionPlan.to_header, default=ExpressionPlan((), (), ())
    )
    free: tuple[str, ...] = list_field(Rule(_read_handle), 0, MAX_FREED, default=())

    @functools.cached_property
    def plan_price(self) -> ExpressionPrice:
        """Types and costs of the plan."""
        return price_expression_plan(self.plan)


def parse_expression(parameters: Mapping[str, Any], inputs: Sequence[InputSpec]) -> ComputeRequest:
    """Parse a request, and check that the inputs match its plan.

    Raises:
        UsageError: a parameter or an input is invalid; the text names it.
    """
    request = ComputeRequest.from_parameters(parameters, NAME)
    check_expression(request, inputs)
    return request


def check_expression(request: ComputeRequest, inputs: Sequence[InputSpec]) -> None:
    """Check that the inputs match the plan of a request, and that the plan can run.

    Raises:
        UsageError: an input or the plan is invalid; the text names it.
    """
    expected = [
        InputSpec(leaf_input_name(i), leaf.shape, leaf.scale)
        for i, leaf in enumerate(request.plan.leaves)
        if leaf.source == INPUT
    ]
    if list(inputs) != expected:
        raise UsageError(
            "Expected the inputs of the plan: "
            f"{[(i.name, list(i.shape)) for i in expected][:4]}. Received: "
            f"{[(i.name, list(i.shape)) for i in inputs][:4]}.",
            code="unexpected-inputs",
            operation="compute",
            received=[i.name for i in inputs][:4],
        )
    _ = request.plan_price  # (rejects a plan that cannot run)

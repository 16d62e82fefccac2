"""The program "deploy": the workers store a model's weights under a name, for predictions.

Public are the model's layers, shapes and fixed-point formats, its owner, and its permitted clients.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tfe_bench.cluster import stored_shares
from tfe_bench.cluster.jobs import InputSpec
from tfe_bench.cluster.stored import MODEL, check_public_facts
from tfe_bench.errors import UsageError
from tfe_bench.models.convert.calibration import ModelPlan
from tfe_bench.models.convert.tables import Table
from tfe_bench.models.inference import execute, images, weights

NAME_SUBJECT = "A deployed model's name"


@dataclass(frozen=True, kw_only=True)
class DeployRequest(stored_shares.StorageRequest):
    """A request to store a model's weights."""

    name: str = stored_shares.stored_name_field(NAME_SUBJECT)


def parse_deployed_model(
    parameters: Mapping[str, Any], inputs: Sequence[InputSpec]
) -> DeployRequest:
    """Parse the request of a deployment, and check its inputs.

    Raises:
        UsageError, DataError: a parameter or an input is invalid; the text names it.
    """
    request = DeployRequest.from_parameters(parameters, "deploy")
    about = request.about
    if set(about) - {"table"} != {"plan", "bounds", "preprocessing"}:
        raise UsageError(
            'Expected a plan, bounds of its inputs and a preprocessing in "about".',
            code="invalid-parameters",
            operation="about",
        )
    check_public_facts(about)
    preprocessing = about["preprocessing"]
    if preprocessing is not None and preprocessing not in images.PREPROCESSINGS:
        raise UsageError(
            f"Unknown preprocessing. Known: {', '.join(images.PREPROCESSINGS)}.",
            code="unknown-name",
            operation="preprocessing",
            expected=", ".join(images.PREPROCESSINGS),
        )
    plan = ModelPlan.from_header(about["plan"])
    execute.check_executable_plan(plan)
    table = read_deployed_table(about)
    shapes = list(plan.graph.inputs.values())
    if table is not None and shapes != [(len(table.columns),)]:
        raise UsageError(
            f"The model takes inputs {shapes}, but its table has {len(table.columns)} columns.",
            code="shape-mismatch",
            operation="table",
            received=len(table.columns),
        )
    bounds = about["bounds"]
    if not isinstance(bounds, Mapping) or set(bounds) != set(plan.graph.inputs):
        raise UsageError(
            "Expected a bound for each input of the model.",
            code="invalid-parameters",
            operation="bounds",
        )
    if not all(type(v) is float and 0 < v < math.inf for v in bounds.values()):
        raise UsageError(
            "Expected positive numbers as bounds.", code="number-out-of-range", operation="bounds"
        )
    expected = weights.weight_specs(plan)
    if list(inputs) != expected:
        raise UsageError(
            f"Expected the {len(expected)} arrays of the plan's weights as inputs. Received: "
            f"{[(i.name, list(i.shape), i.fractional_bits) for i in inputs][:4]}, {len(inputs)} "
            "in all.",
            code="unexpected-inputs",
            operation="deploy",
            received=len(inputs),
            expected=len(expected),
        )
    return request


def read_deployed_table(about: Mapping[str, Any]) -> Table | None:
    """Return the table among a model's public facts, or None.

    Raises:
        DataError: the table is invalid.
    """
    return Table.from_header(about["table"]) if about.get("table") is not None else None


PROGRAM = stored_shares.storing_program(
    "deploy", MODEL, parse_deployed_model, "keeps a model", stored_shares.take_seeded_inputs
)

"""The program "deploy": the workers keep a model's weights under a name, for predictions.

What is public: the model's layers, shapes and fixed point, its owner, who may use it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from tfe_bench.cluster.jobs import InputSpec
from tfe_bench.cluster.stored import MODEL, check_about
from tfe_bench.errors import UsageError
from tfe_bench.models import execute, images, stored_shares, weights
from tfe_bench.models.calibration import Plan
from tfe_bench.models.tables import Table

NAME_SUBJECT = "A deployed model's name"


def check_deployed_model(parameters: Mapping[str, Any], inputs: Sequence[InputSpec]) -> None:
    """Refuses what is no deployment.

    Raises:
        UsageError, DataError: naming what does not fit.
    """
    about = stored_shares.check_storage_parameters("deploy", parameters, NAME_SUBJECT)
    if set(about) - {"table"} != {"plan", "bounds", "preprocessing"}:
        raise UsageError('"about" holds a plan, bounds of its inputs and a preprocessing.')
    check_about(about)
    preprocessing = about["preprocessing"]
    if preprocessing is not None and preprocessing not in images.PREPROCESSINGS:
        raise UsageError(
            f"There is no such preprocessing. Known: {', '.join(images.PREPROCESSINGS)}."
        )
    plan = Plan.from_header(about["plan"])
    execute.check_executable(plan)
    table = read_table(about)
    shapes = list(plan.graph.inputs.values())
    if table is not None and shapes != [(len(table.columns),)]:
        raise UsageError(
            f"The model takes {shapes} and its table has {len(table.columns)} columns."
        )
    bounds = about["bounds"]
    if not isinstance(bounds, Mapping) or set(bounds) != set(plan.graph.inputs):
        raise UsageError("bounds are those of the model's inputs.")
    if not all(type(v) is float and 0 < v < math.inf for v in bounds.values()):
        raise UsageError("bounds are positive numbers.")
    expected = weights.weight_specs(plan)
    if list(inputs) != expected:
        raise UsageError(
            f"The inputs of a deployment are the {len(expected)} arrays of the plan's weights. "
            f"Received: {[(i.name, list(i.shape), i.fractional_bits) for i in inputs][:4]}, "
            f"{len(inputs)} in all."
        )


def read_table(about: Mapping[str, Any]) -> Table | None:
    """Names of columns and classes among a model's public facts, None where there are none.

    Raises:
        DataError: what is there is no table.
    """
    return Table.from_header(about["table"]) if about.get("table") is not None else None


PROGRAM = stored_shares.storing_program(
    "deploy", MODEL, check_deployed_model, "keeps a model", stored_shares.take_seeded_inputs
)

"""Steps of plans: the registry of this package's modules, and the reader of untrusted steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields, replace

from tfe_bench import discovery
from tfe_bench.errors import UsageError
from tfe_bench.queries.plan_syntax import check_choice, check_object_fields
from tfe_bench.queries.steps.step import QueryStep

STEPS = discovery.find_package_classes(__name__, __path__, QueryStep, "op")


def parse_query_step(value: object, number: int) -> QueryStep:
    """Parse a step of a plan from untrusted JSON.

    Args:
        number: the step's number; its inputs have lower ones.

    Raises:
        UsageError: the step is invalid.
    """
    if not isinstance(value, Mapping) or not isinstance(value.get("op"), str):
        raise UsageError(
            "A step of a plan is an object with an op.", code="invalid-plan", operation="step"
        )
    op = check_choice(value["op"], tuple(STEPS), "An op")
    cls = STEPS[op]
    subject = f"A step {op}"
    required = {each.name for each in fields(cls) if each.default is MISSING}
    expected = {"op", "in", *required, *(name for name in cls.field_names() if name in value)}
    check_object_fields(value, expected, subject)
    inputs = value["in"]
    min_inputs, max_inputs = cls.arity
    if not isinstance(inputs, list) or not min_inputs <= len(inputs) <= max_inputs:
        raise UsageError(
            f"A step {op} takes {min_inputs} to {max_inputs} earlier steps.",
            code="invalid-plan",
            operation=op,
        )
    if not all(type(i) is int and 0 <= i < number for i in inputs):
        raise UsageError("A step takes earlier steps by number.", code="invalid-plan", operation=op)
    about = {name: value[name] for name in value if name not in ("op", "in")}
    step = replace(cls.from_parameters(about, subject), inputs=tuple(inputs))
    step.check_fields()
    return step

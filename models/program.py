"""What a job of the program "predict" (benchmarks/workloads/predict.py) gets and gives."""

from __future__ import annotations

import math

from tfe_bench.models.ranges import Plan

# Samples of one graph, unless the client says otherwise: no more than this, and no more than keep
# the largest value of all to so many ring elements (3 images of ResNet50).
MOST_SAMPLES = 128
MOST_ELEMENTS = 2_600_000


def default_batch(plan: Plan) -> int:
    """How many samples go through the model at once."""
    largest = max(math.prod(shape) for shape in plan.graph.shapes.values())
    return max(1, min(MOST_SAMPLES, MOST_ELEMENTS // largest))


def input_names(plan: Plan) -> list[str]:
    """Names of the job's inputs for those of the model."""
    return [f"input{i}" for i in range(len(plan.graph.inputs))]


def output_names(plan: Plan) -> list[str]:
    """Names of the job's outputs for those of the model."""
    return [f"output{i}" for i in range(len(plan.graph.outputs))]


# The output that says for each sample whether a value left its range: 0 where none did.
RANGE = "range"

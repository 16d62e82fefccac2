"""Every operation of the catalogue is correct at a small size, and its tolerance detects errors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from tests.refusals import raises
from tfe_bench.benchmarks import operations
from tfe_bench.benchmarks.operations import EncodedInputs, Operation
from tfe_bench.benchmarks.workloads import operation as program
from tfe_bench.cluster.jobs import InputSpec
from tfe_bench.cluster.simulate import Simulation, simulate
from tfe_bench.errors import RangeError, UsageError
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared

Array = np.ndarray[Any, Any]
NAMES = sorted(operations.OPERATIONS)
INT64 = np.iinfo(np.int64)


def shrink_operation(operation: Operation) -> tuple[int, ...]:
    """Return about a thousand elements, and an odd number of rows."""
    if len(operation.size) == 4:
        return (1, 5, 6, 8)
    sizes = {1: (999,), 2: (33, 5), 3: (5, 40, 7)}
    if operation.stepwise:
        return (2, 30)
    return (99, 16) if operation.name.startswith("reduce") else sizes[len(operation.size)]


def simulate_operation(
    operation: Operation, inputs: EncodedInputs, options: Mapping[str, Any]
) -> Simulation:
    names = list(inputs.rings)

    def of_party(p: Party, *shares: Shared) -> Any:
        def compute(*shares: Shared) -> Any:
            return operation.run(p, dict(zip(names, shares, strict=True)), options)

        return compute(*shares) if operation.stepwise else p.function(compute)(*shares)

    return simulate(of_party, *inputs.rings.values(), fractional_bits=inputs.fractional_bits)


@pytest.mark.parametrize("name", NAMES)
def test_an_operation_is_right_within_its_tolerance_and_nothing_worse_passes(
    name: str, seed: int
) -> None:
    operation = operations.find_operation(name)
    size, options = operations.settle_options(operation, shrink_operation(operation), {})
    inputs = operations.generate_inputs(operation, size, seed)
    assert {n: r.shape for n, r in inputs.rings.items()} == operation.shapes(size)
    operation.domain(inputs.rings, options)
    done = simulate_operation(operation, inputs, options)
    bits, result = done.outputs[0].fractional_bits, done.value()

    verdict = operations.judge_result(operation, inputs, options, result, bits)
    assert verdict.correct, verdict
    assert (verdict.max_error == 0) or operation.tolerance is not None
    if operation.tolerance is not None:  # reported in its unit, below the limits of the tolerances
        assert verdict.error is not None and verdict.error["unit"] == operation.tolerance.unit
        assert verdict.error["value"] <= (4 if operation.tolerance.unit == "ulp" else 2.0**-14)

    def wrong(other: Array) -> bool:
        actual = operations.judge_result(operation, inputs, options, other, bits)
        return not actual.correct and actual.max_error > 0 and actual.ulps > 0

    worst = result.copy().reshape(-1)
    place = int(np.argmin(np.abs(worst)))  # smallest relative tolerance
    worst[place] += 10 if operation.tolerance else 1  # (it may be off by 4 the other way)
    assert wrong(worst.reshape(result.shape))
    assert wrong(result.reshape(-1)[::-1].reshape(result.shape)) or result.size == 1
    assert wrong(result[..., :-1])


@pytest.mark.parametrize("name", list(operations.comparisons.COMPARISONS))
def test_integers_of_the_whole_range_compare_exactly(name: str, rng: np.random.Generator) -> None:
    operation = operations.find_operation(name)
    values = operations.comparisons.draw_compared_integers((2000,), rng)
    inputs = operations.encode_inputs(operation, values)
    assert inputs.fractional_bits == 0
    result = simulate_operation(operation, inputs, {}).value()
    assert operations.judge_result(operation, inputs, {}, result, 0).correct
    assert 0 < result.sum() < result.size


@pytest.mark.parametrize(("name", "values"), [("relu", [-7, 0, 9]), ("max", [[2**61, -(2**61)]])])
def test_integers_stay_integers(name: str, values: Any) -> None:
    operation = operations.find_operation(name)
    inputs = operations.encode_inputs(operation, {"x": np.array(values)})
    options = {**operation.options, **({"bits": 64} if name == "relu" else {})}
    done = simulate_operation(operation, inputs, options)
    assert done.outputs[0].fractional_bits == 0
    assert operations.judge_result(operation, inputs, options, done.value(), 0).correct


# ---- inputs that do not fit


@pytest.mark.parametrize(
    ("name", "size", "options", "code", "received", "part"),
    [
        ("relu", (0,), {}, "shape-too-small", "0", "1 or more"),
        ("relu", (), {}, "rank-mismatch", "none", "1 axes"),
        ("relu", (-4,), {}, "shape-too-small", "-4", "1 or more"),
        ("relu", (4,), {"bits": 65}, "number-out-of-range", 65, "2 to 64"),
        ("relu", (4,), {"bits": True}, "wrong-type", True, "int"),
        ("relu", (4,), {"bit": 31}, "unknown-option", "bit", 'Did you mean "bits"'),
        ("max", (4,), {}, "rank-mismatch", "4", "2 axes"),
        ("max", (4, 0), {}, "shape-too-small", "4x0", "1x1 or more"),
        ("max", (4, 4), {"method": "all-pair"}, "unknown-name", "all-pair", '"all-pairs"'),
        ("max", (4, 11), {"method": "all-pairs"}, "too-large", 11, "up to 10"),
        ("argmax", (4, 4), {"profile": "moon"}, "unknown-name", "moon", "wan"),
        ("matmul", (4, 4), {}, "rank-mismatch", "4x4", "3 axes"),
        ("max_pool", (1, 1, 4, 4), {}, "shape-too-small", "1x1x4x4", "1x2x2x1"),
        ("top_k", (1, 8), {"k": 9}, "number-out-of-range", 9, "1 to"),
        ("top_k", (1, 8), {"k": 0}, "number-out-of-range", 0, "1 to"),
        ("top_k", (1, 8), {"algorithm": "bubble"}, "unknown-name", "bubble", "all-pairs"),
        ("median", (1, 8), {"profile": "mars"}, "unknown-name", "mars", "wan"),
        ("softmax", (1, 65537), {}, "too-large", 65537, "65536"),
    ],
)
def test_a_size_or_option_that_does_not_fit_is_refused(
    name: str,
    size: tuple[int, ...],
    options: dict[str, Any],
    code: str,
    received: object,
    part: str,
) -> None:
    with raises(UsageError, code, received=received) as caught:
        operations.settle_options(operations.find_operation(name), size, options)
    assert part in str(caught.value)


def input_specs(*inputs: tuple[str, tuple[int, ...], int]) -> list[InputSpec]:
    return [InputSpec(*i) for i in inputs]


@pytest.mark.parametrize(
    ("parameters", "inputs", "code", "operation", "part"),
    [
        ({}, input_specs(), "unknown-name", "operation", "''"),
        (
            {"operation": "reluu"},
            input_specs(("x", (3,), 16)),
            "unknown-name",
            "operation",
            'Did you mean "relu"',
        ),
        ({"operation": "relu"}, input_specs(), "rank-mismatch", "relu", "Received: none"),
        ({"operation": "relu"}, input_specs(("y", (3,), 16)), "shape-mismatch", "relu", "x [3]"),
        (
            {"operation": "relu"},
            input_specs(("x", (3,), 15)),
            "scale-mismatch",
            "relu",
            "0 or all with 16",
        ),
        (
            {"operation": "relu", "repeat": 0},
            input_specs(("x", (3,), 16)),
            "number-out-of-range",
            "repeat",
            "Received: 0",
        ),
        (
            {"operation": "relu", "k": 0},
            input_specs(("x", (3,), 16)),
            "unknown-option",
            "relu",
            "'k'",
        ),
        (
            {"operation": "mul"},
            input_specs(("x", (3,), 16), ("y", (4,), 16)),
            "shape-mismatch",
            "mul",
            "y [3]",
        ),
        (
            {"operation": "less"},
            input_specs(("x", (3,), 0), ("y", (3,), 16)),
            "scale-mismatch",
            "less",
            "Received: 0, 16",
        ),
        ({"operation": "log"}, input_specs(("x", (3,), 0)), "scale-mismatch", "log", "16"),
        (
            {"operation": "matmul"},
            input_specs(("x", (3, 4), 16), ("y", (5, 6), 16)),
            "shape-mismatch",
            "matmul",
            "[k, n]",
        ),
        (
            {"operation": "conv2d"},
            input_specs(("x", (3, 4), 16), ("w", (5, 6), 16)),
            "rank-mismatch",
            "conv2d",
            "4 axes",
        ),
    ],
)
def test_a_worker_refuses_what_does_not_fit_before_it_runs(
    parameters: dict[str, Any], inputs: list[InputSpec], code: str, operation: str, part: str
) -> None:
    with raises(UsageError, code, operation=operation) as caught:
        program.parse_request(parameters, inputs)
    assert part in str(caught.value)


@pytest.mark.parametrize("name", NAMES)
def test_a_worker_takes_what_the_client_makes(name: str) -> None:
    operation = operations.find_operation(name)
    for size in (operation.size, operation.scaled_size(0.03)):
        shapes = operation.shapes(size)
        inputs = input_specs(*((n, s, operation.input_bits) for n, s in shapes.items()))
        arguments = {"k": min(16, size[-1])} if "k" in operation.options else {}
        program.parse_request({"operation": name, "repeat": 3, **arguments}, inputs)
    assert np.prod(operation.scaled_size(0.03)) < np.prod(operation.size)


@pytest.mark.parametrize(
    ("name", "ring"),
    [("relu", 2**30), ("relu", -(2**30)), ("max", INT64.min), ("sigmoid", 2**30)],
)
def test_a_value_that_an_operation_is_not_right_for_is_named_by_its_place(
    name: str, ring: int
) -> None:
    operation = operations.find_operation(name)
    rings = {"x": np.array([[1, 2], [ring, 3]], np.int64)}
    with raises(RangeError, "own-values-out-of-range", operation=name) as caught:
        operation.domain(rings, operation.options)
    assert "row 1, column 0" in str(caught.value) and str(abs(ring)) not in str(caught.value)


def test_the_same_seed_gives_the_same_inputs() -> None:
    operation = operations.find_operation("less")
    one, same, other = (
        operations.generate_inputs(operation, (50,), s).rings["x"] for s in (1, 1, 2)
    )
    assert np.array_equal(one, same) and not np.array_equal(one, other)
    with raises(UsageError, "number-out-of-range", operation="--seed", received=-1):
        operations.generate_inputs(operation, (50,), -1)

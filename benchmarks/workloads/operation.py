"""One operation of the catalogue, as a program that workers run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tfe_bench.benchmarks import operations
from tfe_bench.cluster.jobs import Context, InputSpec, Program, Size
from tfe_bench.cluster.timing import check_benchmark_parameters, measure_program_runs
from tfe_bench.errors import UsageError
from tfe_bench.protocols.session.openings import repeat_openings
from tfe_bench.protocols.session.sharing import Shared

if TYPE_CHECKING:
    from tfe_bench.cluster.store import ShareStore


@dataclass(frozen=True)
class OperationRequest:
    """A request for one operation of the catalogue.

    Attributes:
        operation: the operation.
        shape: its public size.
        options: its options.
        job_options: options for its largest array, with those that follow from the size.
        total_runs: the number of runs.
    """

    operation: operations.Operation
    shape: tuple[int, ...]
    options: Mapping[str, Any]
    job_options: Mapping[str, Any]
    total_runs: int = 1


def parse_request(parameters: Mapping[str, Any], inputs: Sequence[InputSpec]) -> OperationRequest:
    """Parse the request of a job; the operation states its parameters and inputs.

    Raises:
        UsageError: a parameter or an input is invalid (the text names it).
    """
    operation = operations.find_operation(str(parameters.get("operation", "")))
    timed = check_benchmark_parameters(
        operation.name, parameters, ("operation", *operation.options)
    )
    shape = operation.size_of([i.shape for i in inputs]) if inputs else ()
    requested_options = {k: v for k, v in parameters.items() if k in operation.options}
    shape, job_options = operations.settle_options(operation, shape, requested_options)
    _check_operation_inputs(operation, operation.shapes(shape), inputs)
    return OperationRequest(
        operation,
        shape,
        {**operation.options, **requested_options},
        job_options,
        timed.total_runs,
    )


def estimate_operation_size(
    client: str, store: ShareStore, request: OperationRequest, inputs: Sequence[InputSpec]
) -> Size:
    """Return the words of the operation's largest array, its memory and its openings."""
    size = request.operation.estimate_size(request.shape, request.job_options)
    return replace(size, openings=repeat_openings(size.openings or (), request.total_runs))


def _check_operation_inputs(
    operation: operations.Operation,
    expected_shapes: Mapping[str, tuple[int, ...]],
    inputs: Sequence[InputSpec],
) -> None:
    received_shapes = {i.name: i.shape for i in inputs}
    if list(received_shapes.items()) != list(expected_shapes.items()):
        raise UsageError(
            f"{operation.name} expects the inputs {_format_operand_shapes(expected_shapes)}. "
            "Received: "
            f"{_format_operand_shapes(received_shapes)}.",
            code="shape-mismatch",
            operation=operation.name,
            received=_format_operand_shapes(received_shapes),
        )
    scales = {i.fractional_bits for i in inputs}
    known = {operation.input_bits, 0} if operation.integers else {operation.input_bits}
    if len(scales) > 1 or not scales <= known:
        wanted_scales = " or all with ".join(map(str, sorted(known)))
        raise UsageError(
            f"{operation.name} expects all inputs with {wanted_scales} fractional bits. "
            f"Received: {', '.join(str(i.fractional_bits) for i in inputs)}.",
            code="scale-mismatch",
            operation=operation.name,
            received=sorted(scales),
        )


def _format_operand_shapes(shapes: Mapping[str, tuple[int, ...]]) -> str:
    return ", ".join(f"{name} {list(shape)}" for name, shape in shapes.items()) or "none"


def run_catalogue_operation(context: Context) -> dict[str, Shared]:
    """Run the operation `repeat` times; reveal the last result to the client."""
    party = context.party
    request: OperationRequest = context.request
    operation = request.operation
    names = list(context.inputs)
    shares = list(context.inputs.values())

    def apply_operation(*shares: Shared) -> Shared:
        return request.operation.run(party, dict(zip(names, shares, strict=True)), request.options)

    graph = apply_operation if operation.stepwise else party.function(apply_operation)
    return {"result": measure_program_runs(context, operation.variant, lambda _: graph(*shares))}


PROGRAM = Program(
    "operation",
    run_catalogue_operation,
    parse_request,
    "one operation of the catalogue",
    size=estimate_operation_size,
)

"""One operation of the catalogue, as a program that workers run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tfe_bench.benchmarks import operations
from tfe_bench.cluster.jobs import Context, InputSpec, Program
from tfe_bench.cluster.timing import check_parameters, measure_runs
from tfe_bench.errors import UsageError
from tfe_bench.protocols.session.sharing import Shared

if TYPE_CHECKING:
    from tfe_bench.cluster.store import Store


def check_request(parameters: Mapping[str, Any], inputs: Sequence[InputSpec]) -> None:
    """Reject unknown operations and parameters, and inputs that the operation does not have.

    Raises:
        UsageError: a parameter or an input is invalid (the text names it).
    """
    operation = operations.find_operation(str(parameters.get("operation", "")))
    check_parameters(operation.name, parameters, ("operation", *operation.options))
    shape, _ = _settle_job(operation, parameters, inputs)
    _check_inputs(operation, operation.shapes(shape), inputs)


def max_array_words(
    client: str, store: Store, parameters: Mapping[str, Any], inputs: Sequence[InputSpec]
) -> int:
    """Return the words of the operation's largest array."""
    operation = operations.find_operation(str(parameters["operation"]))
    return operation.max_array_words(*_settle_job(operation, parameters, inputs))


def _settle_job(
    operation: operations.Operation, parameters: Mapping[str, Any], inputs: Sequence[InputSpec]
) -> tuple[tuple[int, ...], Mapping[str, Any]]:
    """Return the size and the options of a job."""
    shape = operation.size_of([i.shape for i in inputs]) if inputs else ()
    requested_options = {k: v for k, v in parameters.items() if k in operation.options}
    return operations.settle_options(operation, shape, requested_options)


def _check_inputs(
    operation: operations.Operation,
    expected_shapes: Mapping[str, tuple[int, ...]],
    inputs: Sequence[InputSpec],
) -> None:
    received_shapes = {i.name: i.shape for i in inputs}
    if list(received_shapes.items()) != list(expected_shapes.items()):
        raise UsageError(
            f"{operation.name} expects the inputs {_format_shapes(expected_shapes)}. Received: "
            f"{_format_shapes(received_shapes)}.",
            code="shape-mismatch",
            operation=operation.name,
            received=_format_shapes(received_shapes),
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


def _format_shapes(shapes: Mapping[str, tuple[int, ...]]) -> str:
    return ", ".join(f"{name} {list(shape)}" for name, shape in shapes.items()) or "none"


def run_operation(context: Context) -> dict[str, Shared]:
    """Run the operation `repeat` times; reveal the last result to the client."""
    party, parameters = context.party, context.parameters
    operation = operations.find_operation(str(parameters["operation"]))
    options = {k: parameters.get(k, default) for k, default in operation.options.items()}
    names = list(context.inputs)
    shares = list(context.inputs.values())

    def apply_operation(*shares: Shared) -> Shared:
        return operation.run(party, dict(zip(names, shares, strict=True)), options)

    graph = apply_operation if operation.stepwise else party.function(apply_operation)
    return {"result": measure_runs(context, operation.variant, lambda _: graph(*shares))}


PROGRAM = Program(
    "operation",
    run_operation,
    check_request,
    "one operation of the catalogue",
    size=max_array_words,
)

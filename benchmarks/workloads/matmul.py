"""The matmul benchmark: private x private matrix product over Z_2^64."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tfe_bench.cluster.jobs import Context, InputSpec, Program, shape_extent
from tfe_bench.cluster.timing import TimedRequest, measure_program_runs
from tfe_bench.errors import UsageError
from tfe_bench.protocols.session.sharing import Shared

if TYPE_CHECKING:
    from tfe_bench.cluster.store import ShareStore


def parse_request(parameters: Mapping[str, Any], inputs: Sequence[InputSpec]) -> TimedRequest:
    """Parse the request of a job, and reject shapes that do not fit.

    Raises:
        UsageError: a parameter or an input is invalid (the text names it).
    """
    request = TimedRequest.from_parameters(parameters, "matmul")
    shapes = [i.shape for i in inputs]
    if len(shapes) != 2 or any(len(s) != 2 for s in shapes) or shapes[0][1] != shapes[1][0]:
        raise UsageError(
            f"matmul expects two matrices [m, k] and [k, n]. Received: {shapes}.",
            code="shape-mismatch",
            operation="matmul",
            received=shapes,
        )
    return request


def matmul_product_words(
    client: str, store: ShareStore, request: TimedRequest, inputs: Sequence[InputSpec]
) -> int:
    """Return the words of the product."""
    (rows, _), (_, columns) = (spec.shape for spec in inputs)
    return shape_extent((rows, columns))


def multiply_matrices(context: Context) -> dict[str, Shared]:
    """Multiply `repeat` times; reveal the last product to the client."""
    from tfe_bench.protocols.ring import arithmetic

    party = context.party
    x, y = (context.inputs[name] for name in ("x", "y"))
    graph = party.function(lambda a, b: arithmetic.matmul(party, a, b))

    return {"product": measure_program_runs(context, "dealer form", lambda _: graph(x, y))}


PROGRAM = Program(
    "matmul",
    multiply_matrices,
    parse_request,
    "multiplies two private matrices",
    size=matmul_product_words,
    is_sealed=True,
)

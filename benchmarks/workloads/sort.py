"""The program "sort": private keys in order, with payload columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tfe_bench.cluster.jobs import Context, InputSpec, Program, Size, shape_extent
from tfe_bench.cluster.schema import flag_field, parsed_field
from tfe_bench.cluster.timing import TimedRequest, measure_program_runs
from tfe_bench.errors import UsageError
from tfe_bench.protocols.session.counting import Private, count_cost
from tfe_bench.protocols.session.openings import repeat_openings
from tfe_bench.protocols.session.sharing import Shared

if TYPE_CHECKING:
    from tfe_bench.cluster.store import ShareStore


def _read_algorithm(name: object) -> str:
    from tfe_bench.protocols.order.sort import choose_algorithm

    name = str(name)[:80]  # (the error quotes it)
    choose_algorithm(name, 2, "local")
    return name


@dataclass(frozen=True, kw_only=True)
class SortRequest(TimedRequest):
    """A request for sorted keys.

    Attributes:
        algorithm: an algorithm of order.sort, or "auto".
        descending: whether the largest key comes first.
        indices: whether the client also receives the keys' former positions.
    """

    algorithm: str = parsed_field(_read_algorithm, str, default="auto")
    descending: bool = flag_field(default=False)
    indices: bool = flag_field(default=True)


def parse_sort(parameters: Mapping[str, Any], inputs: Sequence[InputSpec]) -> SortRequest:
    """Parse the request of a sort.

    Raises:
        UsageError: a parameter is unknown, or inputs do not fit each other.
    """
    from tfe_bench.protocols.order.sort import sort_round_cost

    request = SortRequest.from_parameters(parameters, "sort")
    sort_round_cost(request.profile)
    if not inputs or inputs[0].name != "keys":
        raise UsageError(
            'Expected "keys" as the first input of sort.',
            code="unexpected-inputs",
            operation="keys",
        )
    if len(inputs[0].shape) not in (1, 2):
        raise UsageError(
            f"Expected keys [n] or [rows, n]. Received: shape {list(inputs[0].shape)}.",
            code="rank-mismatch",
            operation="keys",
            received=list(inputs[0].shape),
        )
    for column in inputs[1:]:
        if column.shape != inputs[0].shape:
            raise UsageError(
                f"Expected the keys' shape {list(inputs[0].shape)} for payload {column.name!r}. "
                f"Received: {list(column.shape)}.",
                code="shape-mismatch",
                operation=column.name,
                received=list(column.shape),
                expected=list(inputs[0].shape),
            )
    return request


def estimate_sort_size(
    client: str, store: ShareStore, request: SortRequest, inputs: Sequence[InputSpec]
) -> Size:
    """Return the words of the largest array of the sort, and the comparisons that it opens."""
    from tfe_bench.protocols.order.sort import max_sort_array_words, sort

    *rows, n = inputs[0].shape
    words = max_sort_array_words(
        shape_extent(rows), n, len(inputs), request.algorithm, request.profile
    )
    counted = count_cost(
        sort,
        Private(inputs[0].shape, inputs[0].fractional_bits),
        graphs=True,
        expected=True,
        algorithm=request.algorithm,
        profile=request.profile,
    )
    return Size(words, openings=repeat_openings(counted.openings, request.total_runs))


def run_sort(context: Context) -> dict[str, Shared]:
    """Sort `repeat` times with fresh shuffles; the client receives the last result."""
    from tfe_bench.protocols.order.sort import SortResult, choose_algorithm, sort

    request: SortRequest = context.request
    keys = context.inputs["keys"]
    names = [name for name in context.inputs if name != "keys"]
    payload = [context.inputs[name] for name in names]
    *rows, n = keys.shape.as_list()
    chosen = choose_algorithm(request.algorithm, n, request.profile, *rows)

    def sort_keys(progress: Callable[[float], None]) -> SortResult:
        return sort(
            context.party,
            keys,
            payload,
            descending=request.descending,
            algorithm=chosen,
            profile=request.profile,
            progress=progress,
        )

    result = measure_program_runs(context, chosen, sort_keys)
    outputs = {"keys": result.keys, **dict(zip(names, result.payload, strict=True))}
    if request.indices:
        outputs["indices"] = result.indices
    return outputs


PROGRAM = Program(
    "sort", run_sort, parse_sort, "sorts private keys, with payload", size=estimate_sort_size
)

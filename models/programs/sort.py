"""The program "sort": private keys in order, with payload columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tfe_bench.cluster.jobs import Context, InputSpec, Program, shape_extent
from tfe_bench.cluster.timing import check_flags, check_parameters, measure_runs
from tfe_bench.errors import UsageError
from tfe_bench.protocols.session.sharing import Shared

if TYPE_CHECKING:
    from tfe_bench.cluster.store import Store

_OPTIONS = ("algorithm", "descending", "indices")


def check_sort(parameters: Mapping[str, Any], inputs: Sequence[InputSpec]) -> None:
    """Check the parameters and inputs of a sort.

    Raises:
        UsageError: a parameter is unknown, or inputs do not fit each other.
    """
    from tfe_bench.protocols.order.sort import choose_algorithm, round_cost

    check_parameters("sort", parameters, _OPTIONS)
    check_flags(parameters, "descending", "indices")
    choose_algorithm(str(parameters.get("algorithm", "auto")), 2, "local")
    round_cost(parameters.get("profile", "local"))
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


def estimate_sort_size(
    client: str, store: Store, parameters: Mapping[str, Any], inputs: Sequence[InputSpec]
) -> int:
    """Return the words of the largest array of the sort."""
    from tfe_bench.protocols.order.sort import max_array_words

    *rows, n = inputs[0].shape
    algorithm, profile = (
        str(parameters.get("algorithm", "auto")),
        parameters.get("profile", "local"),
    )
    return max_array_words(shape_extent(rows), n, len(inputs), algorithm, profile)


def run_sort(context: Context) -> dict[str, Shared]:
    """Sort `repeat` times with fresh shuffles; the client receives the last result."""
    from tfe_bench.protocols.order.sort import SortResult, choose_algorithm, sort

    parameters = context.parameters
    keys = context.inputs["keys"]
    names = [name for name in context.inputs if name != "keys"]
    payload = [context.inputs[name] for name in names]
    profile = str(parameters.get("profile", "local"))
    *rows, n = keys.shape.as_list()
    chosen = choose_algorithm(str(parameters.get("algorithm", "auto")), n, profile, *rows)

    def sort_keys(progress: Callable[[float], None]) -> SortResult:
        return sort(
            context.party,
            keys,
            payload,
            descending=parameters.get("descending", False),
            algorithm=chosen,
            profile=profile,
            progress=progress,
        )

    result = measure_runs(context, chosen, sort_keys)
    outputs = {"keys": result.keys, **dict(zip(names, result.payload, strict=True))}
    if parameters.get("indices", True):
        outputs["indices"] = result.indices
    return outputs


PROGRAM = Program(
    "sort", run_sort, check_sort, "sorts private keys, with payload", size=estimate_sort_size
)

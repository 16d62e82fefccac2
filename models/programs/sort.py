"""The program "sort": private keys in their order, with payload."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tfe_bench.cluster.jobs import Context, InputSpec, Program, extent
from tfe_bench.cluster.timing import check_flags, check_parameters, measure
from tfe_bench.errors import UsageError
from tfe_bench.protocols.session.sharing import Shared

if TYPE_CHECKING:
    from tfe_bench.cluster.store import Store

_OWN = ("algorithm", "descending", "indices")


def check(parameters: Mapping[str, Any], inputs: Sequence[InputSpec]) -> None:
    """Refuses unknown parameters and inputs that do not fit each other.

    Raises:
        UsageError: naming what does not fit.
    """
    from tfe_bench.protocols.order.sort import choose, round_cost

    check_parameters("sort", parameters, _OWN)
    check_flags(parameters, "descending", "indices")
    choose(str(parameters.get("algorithm", "auto")), 2, "local")
    round_cost(parameters.get("profile", "local"))
    if not inputs or inputs[0].name != "keys":
        raise UsageError('The first input of sort is "keys".')
    if len(inputs[0].shape) not in (1, 2):
        raise UsageError(f"Keys are [n] or [rows, n]. Received: shape {list(inputs[0].shape)}.")
    for column in inputs[1:]:
        if column.shape != inputs[0].shape:
            raise UsageError(
                f"Payload {column.name!r} wants the keys' shape {list(inputs[0].shape)}. "
                f"Received: {list(column.shape)}."
            )


def size(
    client: str, store: Store, parameters: Mapping[str, Any], inputs: Sequence[InputSpec]
) -> int:
    """Words of the largest array of the sort."""
    from tfe_bench.protocols.order.sort import largest

    *rows, n = inputs[0].shape
    algorithm, profile = (
        str(parameters.get("algorithm", "auto")),
        parameters.get("profile", "local"),
    )
    return largest(extent(rows), n, len(inputs), algorithm, profile)


def run(context: Context) -> dict[str, Shared]:
    """Sorts `repeat` times with fresh shuffles; the last result is revealed to the client."""
    from tfe_bench.protocols.order.sort import Sorted, choose, sort

    parameters = context.parameters
    keys = context.inputs["keys"]
    names = [name for name in context.inputs if name != "keys"]
    payload = [context.inputs[name] for name in names]
    profile = str(parameters.get("profile", "local"))
    *rows, n = keys.shape.as_list()
    chosen = choose(str(parameters.get("algorithm", "auto")), n, profile, *rows)

    def once(progress: Callable[[float], None]) -> Sorted:
        return sort(
            context.party,
            keys,
            payload,
            descending=parameters.get("descending", False),
            algorithm=chosen,
            profile=profile,
            progress=progress,
        )

    result = measure(context, chosen, once)
    outputs = {"keys": result.keys, **dict(zip(names, result.payload, strict=True))}
    if parameters.get("indices", True):
        outputs["indices"] = result.indices
    return outputs


PROGRAM = Program("sort", run, check, "sorts private keys, with payload", size=size)

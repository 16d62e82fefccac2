"""The sort benchmark: the program that each worker runs."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from tfe_bench.cluster.jobs import Context, InputSpec, Program
from tfe_bench.errors import UsageError, did_you_mean
from tfe_bench.protocols.sharing import Shared

_KNOWN = ("algorithm", "descending", "repeat", "warm_up", "profile", "indices")
_MAX_REPEAT = 1000


def check(parameters: Mapping[str, Any], inputs: Sequence[InputSpec]) -> None:
    """Refuses unknown parameters and inputs that do not fit each other.

    Raises:
        UsageError: naming what does not fit.
    """
    from tfe_bench.protocols.sort import ALGORITHMS

    for name in parameters:
        if name not in _KNOWN:
            raise UsageError(f"sort has no parameter {name!r}.{did_you_mean(name, _KNOWN)}")
    algorithm = parameters.get("algorithm", "auto")
    if algorithm not in ALGORITHMS:
        raise UsageError(
            f"Unknown sort algorithm {algorithm!r}.{did_you_mean(str(algorithm), ALGORITHMS)} "
            f"Known: {', '.join(ALGORITHMS)}."
        )
    repeat = parameters.get("repeat", 1)
    if not isinstance(repeat, int) or not 1 <= repeat <= _MAX_REPEAT:
        raise UsageError(f"repeat is 1 to {_MAX_REPEAT}. Received: {repeat!r}.")
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


def run(context: Context) -> dict[str, Shared]:
    """Sorts `repeat` times with fresh shuffles; the last result is revealed to the client."""
    from tfe_bench.protocols.sort import choose, sort

    party, parameters = context.party, context.parameters
    keys = context.inputs["keys"]
    names = [name for name in context.inputs if name != "keys"]
    payload = [context.inputs[name] for name in names]
    profile = str(parameters.get("profile", "local"))
    n = int(keys.shape[-1] or 0)
    chosen = choose(str(parameters.get("algorithm", "auto")), n, profile)
    repeat = int(parameters.get("repeat", 1))
    warm_up = int(parameters.get("warm_up", 1))
    seconds: list[float] = []
    result = None
    for turn in range(warm_up + repeat):
        party.reset_counters()
        label = "warming up" if turn < warm_up else f"run {turn - warm_up + 1} of {repeat}"

        def progress(fraction: float, turn: int = turn, label: str = label) -> None:
            context.progress((turn + fraction) / (warm_up + repeat), label)

        # all three begin together: the barrier is not part of the time
        party.exchange(b"begin")
        party.reset_counters()
        started = time.perf_counter()
        result = sort(
            party,
            keys,
            payload,
            descending=bool(parameters.get("descending", False)),
            algorithm=chosen,
            profile=profile,
            progress=progress,
        )
        if turn >= warm_up:
            seconds.append(time.perf_counter() - started)
    assert result is not None
    counters = party.counters()
    context.measurements.update(
        seconds=seconds,
        payload=counters["payload"],
        frames=counters["frames"],
        rounds=[[s.cold, s.ahead] for s in party.rounds()],
        variant=chosen,
    )
    outputs = {"keys": result.keys}
    outputs.update(dict(zip(names, result.payload, strict=True)))
    if parameters.get("indices", True):
        outputs["indices"] = result.indices
    return outputs


PROGRAM = Program("sort", run, check, "sorts private keys, with payload")

"""The matmul benchmark: private x private matrix product over Z_2^64."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from tfe_bench.cluster.jobs import Context, InputSpec, Program
from tfe_bench.errors import UsageError, did_you_mean
from tfe_bench.protocols.sharing import Shared

_KNOWN = ("repeat", "warm_up", "profile")


def check(parameters: Mapping[str, Any], inputs: Sequence[InputSpec]) -> None:
    """Refuses unknown parameters and shapes that do not fit.

    Raises:
        UsageError: naming what does not fit.
    """
    for name in parameters:
        if name not in _KNOWN:
            raise UsageError(f"matmul has no parameter {name!r}.{did_you_mean(name, _KNOWN)}")
    shapes = [i.shape for i in inputs]
    if len(shapes) != 2 or any(len(s) != 2 for s in shapes) or shapes[0][1] != shapes[1][0]:
        raise UsageError(f"matmul wants two matrices [m, k] and [k, n]. Received: {shapes}.")


def run(context: Context) -> dict[str, Shared]:
    """Multiplies `repeat` times; the last product is revealed to the client."""
    from tfe_bench.protocols import arithmetic

    party = context.party
    x, y = (context.inputs[name] for name in ("x", "y"))
    graph = party.function(lambda a, b: arithmetic.matmul(party, a, b))
    repeat = int(context.parameters.get("repeat", 1))
    warm_up = int(context.parameters.get("warm_up", 1))
    seconds: list[float] = []
    product = None
    for turn in range(warm_up + repeat):
        context.progress(turn / (warm_up + repeat), "multiplying")
        party.exchange(b"begin")
        party.reset_counters()
        started = time.perf_counter()
        product = graph(x, y)
        if turn >= warm_up:
            seconds.append(time.perf_counter() - started)
    assert product is not None
    counters = party.counters()
    context.measurements.update(
        seconds=seconds,
        payload=counters["payload"],
        frames=counters["frames"],
        rounds=[[s.cold, s.ahead] for s in party.rounds()],
        variant="dealer form",
    )
    return {"product": product}


PROGRAM = Program("matmul", run, check, "multiplies two private matrices")

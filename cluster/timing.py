"""The timing loop of every program: warm-up, barriers, repeats, counters."""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from tfe_bench.cluster import processor, profiles, tracing
from tfe_bench.cluster.barrier import begin_together
from tfe_bench.cluster.jobs import Context, check_known
from tfe_bench.errors import UsageError

if TYPE_CHECKING:
    from tfe_bench.protocols.session.party import Party

T = TypeVar("T")

PARAMETERS = ("repeat", "warm_up", "profile", "trace")
_MAX_REPEAT = 1000


def check_parameters(program: str, given: Mapping[str, Any], own: Iterable[str] = ()) -> None:
    """Refuses parameters that neither the timing loop nor the program has, and unfit ones.

    Raises:
        UsageError: naming the parameter, with "did you mean".
    """
    check_known(program, given, (*PARAMETERS, *own))
    check_timing(given)


def check_timing(given: Mapping[str, Any]) -> None:
    """Refuses what the timing loop does not take; the rest is the program's.

    Raises:
        UsageError: naming the parameter.
    """
    repeat = given.get("repeat", 1)
    if type(repeat) is not int or not 1 <= repeat <= _MAX_REPEAT:
        raise UsageError(f"repeat is 1 to {_MAX_REPEAT}. Received: {repeat!r}.")
    warm_up = given.get("warm_up", 1)
    if type(warm_up) is not int or not 0 <= warm_up <= _MAX_REPEAT:
        raise UsageError(f"warm_up is 0 to {_MAX_REPEAT}. Received: {str(warm_up)[:80]!r}.")
    check_flags(given, "trace")
    profile = given.get("profile", "local")
    if not isinstance(profile, str):
        raise UsageError(f"A profile is a name. Received: {str(profile)[:80]!r}.")
    profiles.get(profile)


def check_flags(given: Mapping[str, Any], *names: str) -> None:
    """Refuses parameters that are neither true nor false.

    Raises:
        UsageError: naming the parameter.
    """
    for name in names:
        value = given.get(name, False)
        if type(value) is not bool:
            raise UsageError(f"{name} is true or false. Received: {str(value)[:80]!r}.")


def measure(context: Context, variant: str, once: Callable[[Callable[[float], None]], T]) -> T:
    """Runs `once` for warm-up and then `repeat` times; fills in the context's measurements.

    All three workers begin each run together; the barrier is not part of the time.  Bytes, rounds
    and the breakdown are those of the last run.  With the parameter "trace" one more run follows,
    which is watched closely and not timed.

    Args:
        variant: of the protocol, for the record.
        once: one run; it may report progress as a fraction.

    Returns:
        What the last run returned.
    """
    from tfe_bench.protocols.session import timeline

    party, parameters = context.party, context.parameters
    repeat, warm_up = int(parameters.get("repeat", 1)), int(parameters.get("warm_up", 1))
    traced = parameters.get("trace") is True
    turns = warm_up + repeat + traced
    took: list[float] = []
    used: list[float] = []
    result: T | None = None
    before: processor.Usage | None = None
    built = party.build_seconds
    for turn in range(warm_up + repeat):
        label = "warming up" if turn < warm_up else f"run {turn - warm_up + 1} of {repeat}"

        def progress(fraction: float, turn: int = turn, label: str = label) -> None:
            context.progress((turn + fraction) / turns, label)

        progress(0.0)
        result = None  # the last run's result is not memory of this one
        last = turn == warm_up + repeat - 1
        if last:
            before = processor.usage()
        begin_together(party)
        party.reset_counters()
        if last:
            timeline.observe(party, timeline.TOTALS)
        built = party.build_seconds
        cpu, started = time.process_time(), time.perf_counter()
        result = once(progress)
        took.append(time.perf_counter() - started)
        used.append(time.process_time() - cpu)
    context.measurements.update(
        _seen(party, took[-1] - (party.build_seconds - built), before),
        **_sent(party),
        seconds=took[warm_up:],
        cpu_seconds=used[warm_up:],
        # tracing, and what the first run took longer than the others
        build_seconds=max(party.build_seconds, took[0] - statistics.median(took[warm_up:])),
        trace_seconds=party.build_seconds,
        variant=variant,
    )
    if traced:
        context.progress((turns - 1) / turns, "tracing")
        result = None
        result, context.measurements["trace"] = tracing.watched(
            party, lambda: once(lambda fraction: None)
        )
    assert result is not None
    return result


def metered(party: Party, once: Callable[[], T]) -> tuple[T, dict[str, Any]]:
    """Runs once, begun together; returns the result, and what was sent, in which rounds and when.

    For a program whose runs follow from each other, so that `measure` cannot repeat them.
    """
    begin_together(party)
    result, seen = _observed(party, once)
    return result, {**seen, **_sent(party)}


def recorded(context: Context, once: Callable[[], T]) -> T:
    """Runs once; what was sent, in which rounds and when is in the record when the job has ended.

    For a job that is there for its result: nobody waits until all have begun or ended, which takes
    the delay of a network four times.
    """
    result, seen = _observed(context.party, once)
    context.measurements.update(seen)
    context.at_end = functools.partial(_left, context.party)
    return result


def _observed(party: Party, once: Callable[[], T]) -> tuple[T, dict[str, Any]]:
    """Runs once; also in which rounds, and where its time went."""
    from tfe_bench.protocols.session import timeline

    before = processor.usage()
    party.reset_counters()
    timeline.observe(party, timeline.TOTALS)
    built, started = party.build_seconds, time.perf_counter()
    result = once()
    took = time.perf_counter() - started
    return result, _seen(party, took - (party.build_seconds - built), before)


def _seen(party: Party, seconds: float, before: processor.Usage | None) -> dict[str, Any]:
    """In which rounds a run was, and where its time went.

    Args:
        seconds: of the run, without the building of its graphs.
    """
    from tfe_bench.protocols.session import timeline

    breakdown = _breakdown(seconds, timeline.observed(party), before)
    timeline.observe(party, timeline.OFF)
    rounds = [[s.with_dealing, s.ahead] for s in party.rounds()]
    return {"rounds": rounds, "breakdown": breakdown}


def _sent(party: Party) -> dict[str, Any]:
    """What a run has sent, once it has left.

    A dealer is done long before that.  A peer's graph ends when all that was sent to it is there.
    """
    party.exchange(b"ended")
    return _left(party)


def _left(party: Party) -> dict[str, Any]:
    """What has been sent, of a run that has ended at all three."""
    counters = party.counters()
    return {name: counters[name] for name in ("payload", "frames", "messages")}


def _breakdown(run: float, seen: Any, before: processor.Usage | None) -> dict[str, Any]:
    """Where this worker's last run went, in seconds; None for what the system does not tell."""
    after = processor.usage() if before is not None else None
    used, queued = after.since(before) if after is not None and before is not None else (None, None)
    return {
        "run": run,
        "waiting": list(seen.waited),
        "packing": seen.packed,
        "unpacking": seen.unpacked,
        "processor": used,
        "queued": queued,
    }

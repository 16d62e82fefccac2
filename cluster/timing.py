"""The timing loop of every program: warm-up, barriers, repeats, counters."""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from tfe_bench.cluster import processor, profiles, tracing
from tfe_bench.cluster.barrier import wait_at_worker_barrier
from tfe_bench.cluster.jobs import Context, check_known
from tfe_bench.cluster.schema import Request, flag_field, integer_field, parsed_field
from tfe_bench.errors import UsageError
from tfe_bench.protocols.session.counting import CostParty

if TYPE_CHECKING:
    from tfe_bench.protocols.session.party import Party

T = TypeVar("T")


def _read_profile(name: object) -> str:
    if not isinstance(name, str):
        raise UsageError(
            f"A profile is a name. Received: {str(name)[:80]!r}.",
            code="wrong-type",
            operation="profile",
            received=str(name)[:80],
        )
    profiles.get_profile(name[:80])  # (which quotes it)
    return name


@dataclass(frozen=True, kw_only=True)
class ProfiledRequest(Request):
    """A request that is planned for a network profile.

    Attributes:
        profile: the profile's name.
    """

    profile: str = parsed_field(_read_profile, str, default="local")

    @property
    def plan_profile(self) -> str:
        """The name of the profile's costs, for plans."""
        return profiles.get_profile(self.profile).plan


@dataclass(frozen=True, kw_only=True)
class TimedRequest(ProfiledRequest):
    """A request for a timed run.

    Attributes:
        repeat, warm_up: numbers of timed runs and of runs before them.
        trace: whether one more run is traced.
    """

    repeat: int = integer_field(1, 1000, default=1)
    warm_up: int = integer_field(0, 1000, default=1)
    trace: bool = flag_field(default=False)

    @property
    def total_runs(self) -> int:
        """The number of runs of `measure_program_runs`."""
        return self.repeat + self.warm_up + self.trace


def check_benchmark_parameters(
    program: str, parameters: Mapping[str, Any], program_names: Iterable[str] = ()
) -> TimedRequest:
    """Return the parameters of the timing loop; reject invalid and unknown ones.

    Raises:
        UsageError: naming the parameter, with "did you mean".
    """
    names = TimedRequest.field_names()
    check_known(program, parameters, (*names, *program_names))
    return TimedRequest.from_parameters(
        {k: v for k, v in parameters.items() if k in names}, program
    )


def measure_program_runs(
    context: Context, variant: str, run_once: Callable[[Callable[[float], None]], T]
) -> T:
    """Run `run_once` for warm-up and then `repeat` times; set the context's measurements.

    All three workers start each run together; the barrier is not part of the time.  Bytes, rounds
    and the breakdown are those of the last run.  The parameter "trace" adds one more run, which is
    traced and not timed.

    A party that counts runs once.

    Args:
        variant: of the protocol, for the record.
        run_once: one run; it may report progress as a fraction.

    Returns:
        The result of the last run.
    """
    from tfe_bench.protocols.session import timeline

    party, parameters = context.party, context.parameters
    if isinstance(party, CostParty):
        return run_once(lambda fraction: None)
    repeat, warm_up = int(parameters.get("repeat", 1)), int(parameters.get("warm_up", 1))
    traced = parameters.get("trace") is True
    total_runs = warm_up + repeat + traced
    durations: list[float] = []
    cpu_durations: list[float] = []
    result: T | None = None
    usage_before: processor.CpuUsage | None = None
    built_before = party.build_seconds
    for run_index in range(warm_up + repeat):
        label = (
            "warming up" if run_index < warm_up else f"run {run_index - warm_up + 1} of {repeat}"
        )

        def report_progress(
            fraction: float, run_index: int = run_index, label: str = label
        ) -> None:
            context.progress((run_index + fraction) / total_runs, label)

        report_progress(0.0)
        result = None  # the previous result must not count as memory of this run
        is_last = run_index == warm_up + repeat - 1
        if is_last:
            usage_before = processor.read_cpu_usage()
        wait_at_worker_barrier(party)
        party.reset_counters()
        if is_last:
            timeline.set_session_recording(party, timeline.TOTALS)
        built_before = party.build_seconds
        cpu, started = time.process_time(), time.perf_counter()
        result = run_once(report_progress)
        durations.append(time.perf_counter() - started)
        cpu_durations.append(time.process_time() - cpu)
    context.measurements.update(
        _collect_run_statistics(
            party, durations[-1] - (party.build_seconds - built_before), usage_before
        ),
        **_count_sent_traffic(party),
        seconds=durations[warm_up:],
        cpu_seconds=cpu_durations[warm_up:],
        # tracing, and the additional time of the first run
        build_seconds=max(
            party.build_seconds, durations[0] - statistics.median(durations[warm_up:])
        ),
        trace_seconds=party.build_seconds,
        variant=variant,
    )
    if traced:
        context.progress((total_runs - 1) / total_runs, "tracing")
        result = None
        result, context.measurements["trace"] = tracing.trace_worker_run(
            party, lambda: run_once(lambda fraction: None)
        )
    assert result is not None
    return result


def run_metered(party: Party, run_once: Callable[[], T]) -> tuple[T, dict[str, Any]]:
    """Run once after a barrier; return the result, and traffic, rounds and times.

    For a program whose runs depend on each other, so that `measure_program_runs` cannot repeat
    them.
    """
    wait_at_worker_barrier(party)
    result, statistics_of_run = _observe_worker_run(party, run_once)
    return result, {**statistics_of_run, **_count_sent_traffic(party)}


def run_recorded(context: Context, run_once: Callable[[], T]) -> T:
    """Run once; the record contains traffic, rounds and times when the job has ended.

    For a job whose purpose is its result: no worker waits until all have started or ended, which
    takes four times the delay of a network. A party that counts runs once, too.
    """
    if isinstance(context.party, CostParty):
        return run_once()
    result, statistics_of_run = _observe_worker_run(context.party, run_once)
    context.measurements.update(statistics_of_run)
    context.at_end = functools.partial(_read_traffic_counters, context.party)
    return result


def _observe_worker_run(party: Party, run_once: Callable[[], T]) -> tuple[T, dict[str, Any]]:
    """Run once; also return its rounds and its time breakdown."""
    from tfe_bench.protocols.session import timeline

    usage_before = processor.read_cpu_usage()
    party.reset_counters()
    timeline.set_session_recording(party, timeline.TOTALS)
    built_before, started = party.build_seconds, time.perf_counter()
    result = run_once()
    duration = time.perf_counter() - started
    return result, _collect_run_statistics(
        party, duration - (party.build_seconds - built_before), usage_before
    )


def _collect_run_statistics(
    party: Party, seconds: float, usage_before: processor.CpuUsage | None
) -> dict[str, Any]:
    """Return the rounds and the time breakdown of a run.

    Args:
        seconds: of the run, without the building of its graphs.
    """
    from tfe_bench.protocols.session import timeline

    breakdown = _worker_time_breakdown(
        seconds, timeline.read_session_time_totals(party), usage_before
    )
    timeline.set_session_recording(party, timeline.OFF)
    rounds = [[s.with_dealing, s.ahead] for s in party.rounds()]
    return {"rounds": rounds, "breakdown": breakdown}


def _count_sent_traffic(party: Party) -> dict[str, Any]:
    """Return the traffic of a run, after it has left this worker.

    A dealer finishes long before.  A peer's graph ends when all messages to it have arrived.
    """
    party.exchange(b"ended")
    return _read_traffic_counters(party)


def _read_traffic_counters(party: Party) -> dict[str, Any]:
    """Return the traffic of a run that has ended at all three workers."""
    counters = party.counters()
    return {name: counters[name] for name in ("payload", "frames", "messages")}


def _worker_time_breakdown(
    run_seconds: float, totals: Any, usage_before: processor.CpuUsage | None
) -> dict[str, Any]:
    """Return the time breakdown of this worker's last run in seconds; None for unknown parts."""
    usage_after = processor.read_cpu_usage() if usage_before is not None else None
    used, queued = (
        usage_after.seconds_since(usage_before)
        if usage_after is not None and usage_before is not None
        else (None, None)
    )
    return {
        "run": run_seconds,
        "waiting": list(totals.waited),
        "packing": totals.packed,
        "unpacking": totals.unpacked,
        "processor": used,
        "queued": queued,
    }

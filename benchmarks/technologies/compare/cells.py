"""Cells of the table: the cost of a task by a technology, and the protection that it offers.

One function models times on a network for every technology: local computation, one delay for each
message on the critical path, and the bytes on that path divided by the rate.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tfe_bench.benchmarks import prediction
from tfe_bench.benchmarks.records import Seconds
from tfe_bench.benchmarks.technologies.compare.tasks import ComparedTask
from tfe_bench.benchmarks.technologies.measurement import Measurement
from tfe_bench.cluster import profiles

NETWORKS: Final = ("lan", "wan")
# Information that leaks to others than the client, from the least to the most.
NOTHING, RESULTS, INPUTS = "nothing", "the results", "the inputs"
LEAKAGES: Final[tuple[str, ...]] = (NOTHING, RESULTS, INPUTS)
TECHNOLOGIES: Final[tuple[str, ...]] = (
    "plaintext",
    "secret-sharing",
    "functional",
    "homomorphic",
    "storage",
)
# The least seconds of one timing; shorter runs are repeated within it.
_LEAST_SECONDS: Final = 2e-3
# On a processor with other load a median requires more runs.
_ENOUGH_SECONDS: Final = 0.1
_MOST_RUNS: Final = 25


@dataclass(frozen=True, kw_only=True)
class Protection:
    """The security promise of a technology.

    Attributes:
        parties: number of parties that compute or hold keys, without the client.
        adversary: the adversary that it protects against.
        learns: the parties that learn something, and what they learn.
        leakage: what others than the client learn, one of LEAKAGES.
        trust: the user's trust assumption, a key of advisor.TRUST; "" for a plaintext server.
        security_bits: the security level; None without a hardness assumption.
    """

    parties: int
    adversary: str
    learns: str
    leakage: str
    trust: str
    security_bits: int | None


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """The network traffic of one run of a task.

    Attributes:
        up, down: bytes that the client sends and receives.
        rounds: messages on the critical path, including the client's request and the response.
        between: bytes that the busiest party sends to other parties.
        total: bytes of all parties together.
    """

    up: int
    down: int
    rounds: int
    between: int = 0
    total: int = 0

    def model_seconds(self, network: str, compute: float) -> float:
        """Model the time on a network, in seconds.

        Args:
            network: the name of a network profile.
            compute: seconds of local computation.
        """
        path = self.up + self.between + self.down
        return prediction.modeled_seconds(
            profiles.get_profile(network), compute, self.rounds, [path]
        )


@dataclass(frozen=True, kw_only=True)
class Cost:
    """The measured cost of a task.

    Attributes:
        seconds: times of the runs, from the encrypted or shared input to the result; None if the
            task is modeled.
        traffic: the traffic of one run.
        latency: seconds of the whole task if `seconds` covers a part of it; else None.
        compute: seconds without waiting, for models of networks; None for the latency.
        correct: whether the result is correct.
        more: further figures by name.
        modeled: names of figures that were not measured.
        parameters: parameters of the technology.
    """

    seconds: Seconds | None
    traffic: Traffic
    latency: float | None = None
    compute: float | None = None
    correct: bool | None = None
    more: Mapping[str, Any]
    modeled: tuple[str, ...] = ()
    parameters: Mapping[str, Any]


def build_cell(
    technology: str, task: ComparedTask, protection: Protection, cost: Cost
) -> Measurement:
    """Build the measurement of a task by a technology."""
    latency = cost.latency
    if latency is None:
        assert cost.seconds is not None, "a time is measured or modeled"
        latency = cost.seconds.median
    compute = latency if cost.compute is None else cost.compute
    figures: dict[str, Any] = {
        "latency_seconds": latency,
        "samples_per_second": task.batch / latency if latency else None,
        **{f"{name}_seconds": cost.traffic.model_seconds(name, compute) for name in NETWORKS},
        "up_bytes": cost.traffic.up,
        "down_bytes": cost.traffic.down,
        "between_bytes": cost.traffic.between,
        "total_bytes": cost.traffic.total or cost.traffic.up + cost.traffic.down,
        "rounds": cost.traffic.rounds,
        "parties": protection.parties,
        "adversary": protection.adversary,
        "learns": protection.learns,
        "leakage": protection.leakage,
        "trust": protection.trust,
        "security_bits": protection.security_bits,
        **cost.more,
    }
    return Measurement(
        technology=technology,
        job=task.job,
        parameters={"variant": task.variant, "batch": task.batch, **cost.parameters},
        seconds=cost.seconds,
        figures={name: value for name, value in figures.items() if value is not None},
        modeled=(*(f"{name}_seconds" for name in NETWORKS), *cost.modeled),
        correct=cost.correct,
    )


def unsupported_technology_cell(technology: str, task: ComparedTask, reason: str) -> Measurement:
    """Build a cell that contains the reason why the technology does not support the task."""
    return Measurement(
        technology=technology,
        job=task.job,
        parameters={"variant": task.variant, "batch": task.batch},
        seconds=None,
        figures={"unsupported": reason},
    )


# Names of figures in the technologies' own benchmarks, and the table's names if they differ.
_NAMES: Final = {
    **dict.fromkeys(("setup_seconds", "encrypt_seconds", "evaluate_seconds", "decrypt_seconds")),
    "key_bytes": None,
    "peak_memory_bytes": "memory_bytes",
    "max_abs_error": "max_error",
    "accuracy": None,
    "accuracy_plaintext": "accuracy_plain",
    "accuracy_in_the_clear": "accuracy_plain",
}


def figures_of_technology_job(job: Measurement) -> dict[str, Any]:
    """Return the figures of another benchmark's measurement under the table's names."""
    known = ((name, ours) for name, ours in _NAMES.items() if name in job.figures)
    renamed = {ours or name: job.figures[name] for name, ours in known}
    if "accuracy" in renamed:
        renamed["accuracy_images"] = job.figures.get("tested", job.parameters["batch"])
    return renamed


def time_technology_task(once: Callable[[], Any], repeat: int) -> tuple[Seconds, Any]:
    """Time a function after one warm-up call.

    Args:
        once: the function.
        repeat: the least number of timed runs. Short runs are repeated more often, and the
            shortest ones consist of many calls each.

    Returns:
        The times, and the result of the last call.
    """
    started = time.perf_counter()
    result = once()
    took = time.perf_counter() - started
    calls = 1 if took > _LEAST_SECONDS else min(10_000, int(_LEAST_SECONDS / max(took, 1e-7)) + 1)
    times: list[float] = []
    while len(times) < repeat or (calls * sum(times) < _ENOUGH_SECONDS and len(times) < _MOST_RUNS):
        started = time.perf_counter()
        for _ in range(calls):
            result = once()
        times.append((time.perf_counter() - started) / calls)
    return Seconds.from_times(times), result

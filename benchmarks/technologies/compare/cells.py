"""Cells of the table: what a technology costs for a task, and against whom it protects.

Times on a network are modeled by one function, for every technology alike: computing, one delay
for each message on the critical path, and the bytes on it over the rate.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tfe_bench.benchmarks import prediction
from tfe_bench.benchmarks.records import Seconds
from tfe_bench.benchmarks.technologies.compare.tasks import Task
from tfe_bench.benchmarks.technologies.measurement import Measurement
from tfe_bench.cluster import profiles

NETWORKS: Final = ("lan", "wan")
# What is given away beyond the result to who asked for it, from the least.
NOTHING, RESULTS, INPUTS = "nothing", "the results", "the inputs"
LEAKAGES: Final[tuple[str, ...]] = (NOTHING, RESULTS, INPUTS)
TECHNOLOGIES: Final[tuple[str, ...]] = (
    "plaintext",
    "secret-sharing",
    "functional",
    "homomorphic",
    "storage",
)
# Shorter runs are repeated until one timing takes so long.
_LEAST_SECONDS: Final = 2e-3
# A processor that others use too wants more runs for a median.
_ENOUGH_SECONDS: Final = 0.1
_MOST_RUNS: Final = 25


@dataclass(frozen=True, kw_only=True)
class Protection:
    """What a technology promises.

    Attributes:
        parties: that compute or hold keys, without the client.
        adversary: against whom it protects.
        learns: who learns what.
        leakage: what somebody else than the client learns, of LEAKAGES.
        trust: whom a user has to trust, of advisor.TRUST; "" for a plaintext server.
        security_bits: None where no assumption of hardness is made.
    """

    parties: int
    adversary: str
    learns: str
    leakage: str
    trust: str
    security_bits: int | None


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """What goes over the network for one run of a task.

    Attributes:
        up, down: bytes that the client sends and gets.
        between: bytes that the busiest party sends to others.
        rounds: messages on the critical path, with the client's question and its answer.
        total: bytes of all together.
    """

    up: int
    down: int
    rounds: int
    between: int = 0
    total: int = 0

    def model_seconds(self, network: str, compute: float) -> float:
        """The time on a network, modeled.

        Args:
            compute: seconds that are computed.
        """
        path = self.up + self.between + self.down
        return prediction.modeled_seconds(
            profiles.get_profile(network), compute, self.rounds, [path]
        )


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What was measured of a task.

    Attributes:
        seconds: of its runs, from the encrypted or shared input to the result; None if modeled.
        latency: the time of the whole task, where `seconds` are of a part; else None.
        compute: seconds without waiting, for models of networks; None: the latency.
        traffic: of one run.
        correct: whether the result is right.
        more: further figures by name.
        modeled: names of figures that were not measured.
        parameters: of the technology.
    """

    seconds: Seconds | None
    traffic: Traffic
    latency: float | None = None
    compute: float | None = None
    correct: bool | None = None
    more: Mapping[str, Any]
    modeled: tuple[str, ...] = ()
    parameters: Mapping[str, Any]


def build_cell(technology: str, task: Task, protection: Protection, cost: Cost) -> Measurement:
    """The measurement of a task by a technology."""
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


def unsupported_cell(technology: str, task: Task, reason: str) -> Measurement:
    """A cell that says why there is none."""
    return Measurement(
        technology=technology,
        job=task.job,
        parameters={"variant": task.variant, "batch": task.batch},
        seconds=None,
        figures={"unsupported": reason},
    )


# What the technologies' own benchmarks call the table's figures.
_NAMES: Final = {
    **dict.fromkeys(("setup_seconds", "encrypt_seconds", "evaluate_seconds", "decrypt_seconds")),
    "key_bytes": None,
    "peak_memory_bytes": "memory_bytes",
    "max_abs_error": "max_error",
    "accuracy": None,
    "accuracy_plaintext": "accuracy_plain",
    "accuracy_in_the_clear": "accuracy_plain",
}


def figures_of(job: Measurement) -> dict[str, Any]:
    """Figures of another benchmark's measurement, under the table's names."""
    known = ((name, ours) for name, ours in _NAMES.items() if name in job.figures)
    told = {ours or name: job.figures[name] for name, ours in known}
    if "accuracy" in told:
        told["accuracy_images"] = job.figures.get("tested", job.parameters["batch"])
    return told


def time_function(once: Callable[[], Any], repeat: int) -> tuple[Seconds, Any]:
    """Times of a function after one warm-up, and what it returned last.

    Args:
        repeat: timed runs, at least; more where they are short, and of the shortest many calls in
            each.
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

"""Recommend a technology for a job, a network and a trust assumption, based on records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tfe_bench.benchmarks.table import human_bytes, human_seconds
from tfe_bench.benchmarks.technologies.compare import table
from tfe_bench.benchmarks.technologies.compare.cells import INPUTS, LEAKAGES, NETWORKS, NOTHING
from tfe_bench.benchmarks.technologies.compare.tasks import JOBS
from tfe_bench.benchmarks.technologies.measurement import Measurement
from tfe_bench.errors import DataError, check_known

# Trust assumptions of a user, and the technologies that require no more than each.
TRUST: Final = {
    "one-server": "one server, which may look at all that it gets",
    "three-servers": "three servers, of which no two look at it together",
    "key-authority": "one server, and an authority that gives it keys",
}
_ENOUGH: Final = {
    "one-server": ("homomorphic", "storage"),
    "three-servers": ("secret-sharing", "homomorphic", "storage"),
    "key-authority": ("functional", "homomorphic", "storage"),
}
WHERE: Final = ("local", *NETWORKS)


@dataclass(frozen=True)
class Advice:
    """The recommended technology for one row of a job.

    Attributes:
        variant: the row.
        best: the cell of the recommended technology; None if no technology is suitable.
        why: the reasons, in sentences.
    """

    variant: str
    best: Measurement | None
    why: tuple[str, ...]


def advise_technologies(
    measured: Sequence[Measurement], job: str, network: str, trust: str
) -> list[Advice]:
    """Return one recommendation for each row of the job.

    It is the fastest technology that leaks nothing; else the fastest one that leaks only the
    results. A technology that leaks the inputs is never recommended.

    Args:
        measured: the records.
        job: a key of JOBS.
        network: one of WHERE.
        trust: a key of TRUST.

    Raises:
        UsageError: the job, network or trust assumption is unknown.
        DataError: no record belongs to the job.
    """
    check_known("job", job, JOBS)
    check_known("network", network, WHERE)
    check_known("trust", trust, TRUST)
    cells = [
        m
        for m in table.select_technology_cells(measured)
        if m.job == job and m.technology != "plaintext"
    ]
    if not cells:
        raise DataError(
            f"Expected records of {job} ({JOBS[job]}). Received: none. Measure the job: "
            f"python -m tfe_bench technologies --job {job} --record FILE.",
            code="no-records",
            operation=job,
        )
    variants = dict.fromkeys(map(table.technology_cell_variant, cells))
    return [
        _advise_technology(
            variant,
            [m for m in cells if table.technology_cell_variant(m) == variant],
            network,
            trust,
        )
        for variant in variants
    ]


def _advise_technology(variant: str, cells: list[Measurement], network: str, trust: str) -> Advice:
    why: list[str] = []
    possible: list[tuple[int, int, float, Measurement]] = []
    for m in cells:
        seconds = table.technology_cell_seconds(m, network)
        leakage = str(m.figures.get("leakage", INPUTS))
        if m.technology not in _ENOUGH[trust]:
            needs = [name for name, enough in _ENOUGH.items() if m.technology in enough]
            why.append(f"Not {m.technology}: it takes {TRUST[needs[0]]}.")
        elif "unsupported" in m.figures or seconds is None:
            why.append(f"Not {m.technology}: {m.figures.get('unsupported', 'no time is known')}")
        elif m.correct is False:
            why.append(f"Not {m.technology}: its result was wrong.")
        elif leakage not in (NOTHING, LEAKAGES[1]):
            why.append(f"Not {m.technology}: {m.figures.get('learns', 'it leaks the inputs')}.")
        else:
            # a device that the user would have to buy ranks last
            rank = (LEAKAGES.index(leakage), int(m.technology == "storage"))
            possible.append((*rank, seconds, m))
    if not possible:
        return Advice(variant, None, tuple(why))
    possible.sort(key=lambda each: each[:3])
    *_, best = possible[0]
    reasons = [_state_reason(best, network)]
    for *_, seconds, m in possible[1:]:
        leaks = str(m.figures.get("leakage", INPUTS))
        but = "" if leaks == NOTHING else f", and others learn {leaks}"
        time_text = f"{human_seconds(seconds)}{_list_marks(m, network)}"
        reasons.append(f"{m.technology} would take {time_text}{but}.")
    return Advice(variant, best, (*reasons, *why))


def _state_reason(m: Measurement, network: str) -> str:
    seconds, total = (
        table.technology_cell_seconds(m, network) or 0.0,
        table.read_technology_figure(m, "total_bytes"),
    )
    rounds = table.read_technology_figure(m, "rounds")
    parts = [f"{human_seconds(seconds)} on {network}{_list_marks(m, network)}"]
    if total is not None:
        parts.append(f"{human_bytes(total)} sent")
    if rounds is not None:
        parts.append(f"{rounds:,.0f} rounds")
    if (error := table.read_technology_figure(m, "max_error")) is not None and error > 0:
        parts.append(f"largest error {error:.2g}")
    leaks = m.figures.get("leakage", INPUTS)
    return f"{', '.join(parts)}; others than the client learn {leaks}."


def _list_marks(m: Measurement, network: str) -> str:
    name = "latency_seconds" if network == "local" else f"{network}_seconds"
    if m.technology == "storage":
        return " (a projection for a device)"
    return " (modeled)" if name in m.modeled else ""

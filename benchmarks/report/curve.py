"""Run time by number of processor cores: measured, and a model for more cores.

The model is Amdahl's law with bounds that are counted:

    T(C) = max(F + S / C, W / C, serial, rounds * 0.12 ms, network)

F and S are the fixed and the scaling part that two measured runs give: T(1) = F + S and
T(2) = F + S / 2, with F from 0 to T(2).  W is the processor time of all three workers.  `serial`
is the largest processor time of a worker's transport and Python threads.  Assumptions:

- the three workers share the C cores of one machine, and memory bandwidth does not limit them;
- a worker's graph divides its large ops over any number of cores, as it does over two;
- a worker's transport and Python threads do not run in parallel to each other;
- a round takes at least one bare exchange over gRPC with TLS (docs/performance.md);
- on a shaped network, rounds and bytes take at least the record's network share.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from tfe_bench.benchmarks.fields import AMOUNT
from tfe_bench.benchmarks.records import Record
from tfe_bench.benchmarks.report import cells, network
from tfe_bench.benchmarks.report.parts import Cell, Columns, Part, build_report_table
from tfe_bench.cluster.schema import Mismatch

MEASURED: Final = (1, 2)
MODELED: Final = (4, 8, 16, 32)
ROUND_SECONDS: Final = 0.12e-3


@dataclass(frozen=True)
class ProcessorModel:
    """Run time of one workload by number of cores that the three workers share.

    Attributes:
        measured: run times by number of cores, in seconds; at least those of 1 and 2.
        work: processor time of all three workers, in seconds.
        bounds: times that more cores do not shorten, by name, in seconds.
    """

    measured: dict[int, float]
    work: float
    bounds: dict[str, float]

    @property
    def fixed_seconds(self) -> float:
        """The part of the run time that does not scale, from the two measured runs."""
        one, two = (self.measured[n] for n in MEASURED)
        return min(max(2 * two - one, 0.0), two)

    def predict_seconds(self, cores: int) -> float:
        """Return the modeled run time, which more cores never lengthen."""
        fixed = self.fixed_seconds
        amdahl = fixed + 2 * (self.measured[2] - fixed) / cores
        return max(amdahl, self.work / cores, *self.bounds.values())

    def name_limit(self, cores: int) -> str:
        """Return the part of the model that determines the time."""
        limits = {"fixed part": self.fixed_seconds, **self.bounds}
        name = max(limits, key=lambda key: limits[key])
        return name if 2 * limits[name] >= self.predict_seconds(cores) else "computing"


def build_models(records: Iterable[Record]) -> list[tuple[Record, ProcessorModel]]:
    """Return the model of each workload that was measured with 1 and with 2 cores.

    Args:
        records: any records; those without a number of cores, and wrong ones, are skipped.

    Returns:
        (newest record with 2 cores, model) by workload.
    """
    groups: dict[str, dict[int, Record]] = {}
    for record in sorted(records, key=lambda r: r.time):
        cores = record.parameters.get("cores")
        if type(cores) is not int or record.correct is False:
            continue
        options = {k: v for k, v in record.parameters.items() if k != "cores"}
        key = (record.workload, sorted(options.items()), record.profile, record.tls)
        groups.setdefault(f"{key!r} {record.machine!r} {record.versions!r}", {})[cores] = record
    return [(group[2], _build_model(group)) for group in groups.values() if {1, 2} <= group.keys()]


def _build_model(group: dict[int, Record]) -> ProcessorModel:
    record = group[2]
    work = min(sum(r.cpu_seconds or (0.0,)) for r in (group[n] for n in MEASURED))
    bounds = {
        "transport": max(map(_serial_seconds, record.breakdown or ({},))),
        "rounds": (record.rounds_ahead or 0) * ROUND_SECONDS,
    }
    if (share := network.network_share(record)) is not None:
        bounds["network"] = share.floor
    measured = {n: r.seconds.median for n, r in sorted(group.items())}
    return ProcessorModel(measured, work, bounds)


def _serial_seconds(breakdown: object) -> float:
    """Return the processor time of a worker's transport and Python threads; 0 if not measured."""
    try:
        used = breakdown["processor"]  # type: ignore[index]
        return float(AMOUNT.read(used["transport"]) + AMOUNT.read(used["other"]))
    except (KeyError, TypeError, Mismatch):
        return 0.0


def _modeled_column(cores: int) -> Callable[[Record, ProcessorModel], Cell]:
    return lambda _, model: cells.seconds(model.predict_seconds(cores))


def build_curve_parts(records: Sequence[Record]) -> list[Part]:
    """Return the section of run times by cores."""
    models = build_models(records)
    if not models:
        return [
            "No workload was measured with 1 and with 2 cores. `python -m tfe_bench suite cores` "
            "does so."
        ]

    columns: Columns[Record, ProcessorModel] = {
        "work": lambda r, _: f"{r.workload} {cells.readable_size(r)}",
        "network": lambda r, _: cells.network_cell(r),
        "1 core, s": lambda _, m: cells.seconds(m.measured[1]),
        "2 cores, s": lambda _, m: cells.seconds(m.measured[2]),
        **{f"{n}, model": _modeled_column(n) for n in MODELED},
        "fixed part, s": lambda _, m: cells.seconds(m.fixed_seconds),
        "processor time, s": lambda _, m: cells.seconds(m.work),
        "limit at 32": lambda _, m: m.name_limit(MODELED[-1]),
    }
    caption = (
        "Run time by number of cores that the three workers share. 1 and 2 cores are measured. "
        "4 to 32 cores are a model, not a measurement: Amdahl's law through the two measured "
        "times, not below the counted processor time over the cores, the transport's processor "
        f"time of one worker, {1000 * ROUND_SECONDS:g} ms for each online round, and the network. "
        "It assumes that large ops divide over all cores and that memory bandwidth suffices."
    )
    return [build_report_table(columns, models, caption)]

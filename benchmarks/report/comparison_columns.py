"""Published figures to list with a record: the same workload, at about the same size."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from tfe_bench.benchmarks import published
from tfe_bench.benchmarks.published import PublishedFigure
from tfe_bench.benchmarks.records import Record

# Published sizes are 1000 and 1,000,000 where ours are 2^10 and 2^20.
_NEAR: Final = 0.05
# A loopback is nearest to a LAN.
_COLUMN: Final = {
    "local": ("local", "lan", "puma-lan"),
    **{name: (name,) for name in ("lan", "wan", "orq-wan", "puma-lan")},
}
# in the order of the published table
_NETWORKS: Final = (
    *("resnet50", "resnet50v2", "vgg19", "densenet121", "mobilenetv2"),
    *("vgg16-cifar", "bert-base", "vit-b16"),
)
_PUBLISHED: Final = ("sort", "max", "infer", "train")


@dataclass(frozen=True)
class RecordPair:
    """A record and one figure of another system: of exactly the same size, or within 5 %."""

    record: Record
    figure: PublishedFigure
    exact: bool

    @property
    def ratio(self) -> float | None:
        """Their time as a multiple of ours; above 1 ours is faster."""
        ours = self.record.seconds.median
        return self.figure.seconds / ours if ours > 0 else None


def format_published_size(record: Record) -> str:
    """Return the size as published figures name it, "" if the record's parameters give none."""
    parameters = record.parameters
    if record.workload in _NETWORKS:
        batch = parameters.get("batch", 1)
        return record.workload if batch == 1 else f"{record.workload} x{batch}"
    if record.workload == "train":
        size = str(parameters.get("model", ""))
        return size if parameters.get("batch") == 128 else f"{size} batch {parameters.get('batch')}"
    if record.workload == "relational":
        scale, rows = parameters.get("scale"), parameters.get("rows")
        size = str(rows) if scale is None else f"scale {scale:g}"
        return f"{parameters.get('question', '')} {size}"
    if "rows" in parameters:
        return ""  # a sort of rows is other work
    for name in ("shape", "n", "model", "network"):
        value = parameters.get(name)
        if isinstance(value, str) and value:
            return re.sub(r"\s", "", value)
        if isinstance(value, int) and not isinstance(value, bool):
            return str(value)
    return ""


def published_workload(record: Record) -> str:
    """Return the name that published figures use: "infer" for a network that predicts."""
    return "infer" if record.workload in _NETWORKS else record.workload


def record_extents(record: Record) -> tuple[int, ...] | None:
    """Return the size as numbers."""
    return published.parse_size_extents(format_published_size(record))


def plain_profile(record: Record) -> str:
    """Return the profile's name without labels: "lan" for "lan (host-limited)"."""
    return record.profile.partition(" ")[0]


def find_nearby_figures(record: Record) -> list[PublishedFigure]:
    """Return published figures of a record's workload, within 5 % of its size, on any network."""
    extents, name = record_extents(record), format_published_size(record)
    work = (published_workload(record), str(record.parameters.get("optimizer", "")))

    def is_comparable(figure: PublishedFigure) -> bool:
        theirs = figure.elements
        if extents is None or theirs is None:
            return figure.size == name
        alike = len(extents) == len(theirs) and extents[1:] == theirs[1:]
        return alike and abs(extents[0] - theirs[0]) <= _NEAR * extents[0]

    every = published.load_figures()
    return [f for f in every if (f.workload, f.optimizer) == work and is_comparable(f)]


@dataclass(frozen=True)
class Throughput:
    """Predictions of a batch in a time.

    Attributes:
        batch: number of samples.
        per_second: samples per second.
        per_core_second: samples per core-second of all parties: ours by processor time, published
            ones by time and number of processes; None without those figures.
    """

    batch: int
    per_second: float
    per_core_second: float | None


def batch_throughput(record: Record) -> Throughput | None:
    """Return a prediction's throughput; None for one sample, other work or a wrong result."""
    batch = record.parameters.get("batch")
    predicts = "images" in record.parameters or "texts" in record.parameters
    if not predicts or type(batch) is not int or batch < 2 or record.correct is False:
        return None
    if not (seconds := record.seconds.median):
        return None
    used = sum(record.cpu_seconds) if record.cpu_seconds else 0.0
    return Throughput(batch, batch / seconds, batch / used if used else None)


def published_throughputs(network: str) -> list[tuple[PublishedFigure, Throughput]]:
    """Return the published batches of a network, of any size and on any profile."""
    every = []
    for figure in published.load_figures():
        name, _, batch = figure.size.partition(" x")
        if figure.workload == "infer" and name == network and batch:
            count = int(batch)
            used = figure.seconds * figure.cores if figure.cores else None
            per_core = count / used if used else None
            every.append((figure, Throughput(count, count / figure.seconds, per_core)))
    return every


def find_published_pairs(record: Record) -> list[RecordPair]:
    """Return a record with every published figure of its workload on a network of its kind.

    A record with wrong results gets none.
    """
    if record.correct is False:
        return []
    pairs = [
        RecordPair(record, figure, figure.size == format_published_size(record))
        for figure in find_nearby_figures(record)
        if figure.profile in _COLUMN.get(plain_profile(record), ())
    ]
    return sorted(pairs, key=lambda pair: (not pair.exact, pair.figure.system))


def best_published_pair(record: Record) -> RecordPair | None:
    """Return the pair for a headline: TF Encrypted's figure, of the same size if there is one."""
    pairs = [p for p in find_published_pairs(record) if p.figure.system.startswith("tf-encrypted")]
    return pairs[0] if pairs else None


def latest_records(records: Iterable[Record]) -> list[Record]:
    """Return the newest correct record of each workload at each profile, cluster and machine.

    Records with a limited number of cores are for the curve alone.
    """
    newest: dict[tuple[str, ...], Record] = {}
    for record in sorted(records, key=lambda r: r.time):
        if record.correct is False or "cores" in record.parameters:
            continue
        key = (
            *(record.workload, repr(sorted(record.parameters.items(), key=lambda kv: kv[0]))),
            *(record.profile, record.cluster, str(record.tls), repr(record.machine)),
        )
        newest[key] = record
    return sorted(newest.values(), key=record_sort_key)


def record_sort_key(record: Record) -> tuple[int, str, tuple[int, ...], str, str]:
    """Return the sort key of a record: published workloads first, then sizes, then networks."""
    work = published_workload(record)
    rank = _PUBLISHED.index(work) if work in _PUBLISHED else len(_PUBLISHED)
    return (rank, record.workload, record_extents(record) or (), record.profile, record.time)

"""The rows of suites: each is a command line and the record that it must produce.

A further row is one more entry of `paper_suite_rows`; its command needs no knowledge of suites.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import tfe_bench
from tfe_bench.benchmarks import provenance
from tfe_bench.benchmarks.records import Record
from tfe_bench.errors import UsageError, check_known, did_you_mean

# Of the published table; those that five epochs of are run, which take minutes each.
TRAINED: Final = ("logistic", "network-a", "network-b", "network-c", "network-d")
LEARNED: Final = ("logistic", "network-a", "network-d")
OPTIMIZERS: Final = ("sgd", "amsgrad", "adam")
_QUICK_OPS: Final = 0.02


@dataclass(frozen=True)
class SuiteRow:
    """One measurement of a suite.

    Attributes:
        name: for --only, "sort" or "max".
        size: readable, and distinguishes rows of one name.
        command: words of the command line, without repeats, profile and files.
        workload: workload of its record.
        parameters: parameters that its record must have; it may have others.
        only: its word in the --only of a command that runs many rows on one cluster.
        repeats: True if its command takes --repeat; a training's batches are its repeats.
        pictures: True if its command takes --data-dir, the folder of MNIST.
        profiles: profiles to run at, None for all.
    """

    name: str
    size: str
    command: tuple[str, ...]
    workload: str
    parameters: Mapping[str, Any] = field(hash=False)
    only: str | None = None
    repeats: bool = True
    pictures: bool = False
    profiles: tuple[str, ...] | None = None

    @property
    def label(self) -> str:
        """Readable label."""
        return f"{self.name} {self.size}"

    def matches_record(self, record: Record, profile: str, cluster: str) -> bool:
        """Return True if the record is of this row, profile and cluster, made by this code."""
        return (
            record.workload == self.workload
            and all(record.parameters.get(k) == v for k, v in self.parameters.items())
            and record.parameters.get("cores") == self.parameters.get("cores")
            and record.profile == profile
            and record.cluster == cluster
            and record.versions["tfe_bench"] == tfe_bench.__version__
            and record.commit == provenance.commit()
        )


def _sort_suite_row(n: int) -> SuiteRow:
    expected = {"n": n, "keys": "int64", "source": "int64, seed 1", "algorithm": "auto"}
    words = ("sort", "--n", str(n))
    return SuiteRow("sort", str(n), words, "sort", {**expected, "descending": False})


def _max_suite_row(n: int) -> SuiteRow:
    size = f"{n}x4"
    expected = {"shape": size, "source": "seed 1", "method": "auto"}
    return SuiteRow("max", size, ("max", "--shape", size), "max", expected)


def _resnet50_suite_row() -> SuiteRow:
    expected = {"model": "ResNet50", "batch": 1}
    return SuiteRow("resnet50", "1 image", ("resnet50",), "resnet50", expected)


def _text_suite_row(name: str, tokens: int) -> SuiteRow:
    words = ("infer", name, "--tokens", str(tokens))
    return SuiteRow(name, f"{tokens} tokens", words, name, {"tokens": tokens, "batch": 1})


def _generation_suite_row(name: str, tokens: int, new: int) -> SuiteRow:
    words = ("generate", name, "--tokens", str(tokens), "--new", str(new))
    expected = {"tokens": tokens, "new": new, "batch": 1}
    return SuiteRow(name, f"{tokens} tokens and {new}", words, f"generate {name}", expected)


def _training_suite_row(
    name: str,
    model: str,
    optimizer: str,
    words: Sequence[object],
    expected: Mapping[str, object],
    profiles: tuple[str, ...] | None = None,
) -> SuiteRow:
    return SuiteRow(
        name,
        f"{model} {optimizer}",
        ("train", model, "--discard", "--optimizer", optimizer, *map(str, words)),
        "train",
        {"model": model, "optimizer": optimizer, "batch": 128, **expected},
        repeats=False,
        pictures=True,
        profiles=profiles,
    )


def _training_batch_suite_row(model: str, optimizer: str, steps: int, rows: int) -> SuiteRow:
    """Return the row for the cost of a batch of 128."""
    words = ("--steps", steps, "--limit", rows)
    return _training_suite_row("train", model, optimizer, words, {"steps": steps, "rows": rows})


def _learning_suite_row(model: str, optimizer: str, epochs: int) -> SuiteRow:
    """Return the row for the accuracy of a model; on a WAN it is the same as here."""
    expected = {"epochs": epochs, "steps": None, "dataset": "mnist"}
    return _training_suite_row(
        "learn", model, optimizer, ("--epochs", epochs), expected, ("local", "lan")
    )


def paper_suite_rows(quick: bool = False) -> list[SuiteRow]:
    """Return the published table's rows that have commands; `quick`: small sizes."""
    sizes = (256, 1024) if quick else (1 << 10, 1 << 16, 1 << 20)
    rows = [*(_sort_suite_row(n) for n in sizes), *(_max_suite_row(n) for n in sizes)]
    models = ("logistic", "network-a") if quick else TRAINED
    optimizers = ("sgd",) if quick else OPTIMIZERS
    pairs = [(m, o) for m in models for o in optimizers]
    rows.append(_resnet50_suite_row())
    rows += [
        _training_batch_suite_row(m, o, *((4, 1024) if quick else (22, 4096))) for m, o in pairs
    ]
    whole = models[:1] if quick else LEARNED
    return [*rows, *(_learning_suite_row(m, o, 1 if quick else 5) for m, o in pairs if m in whole)]


def operation_suite_rows(quick: bool = False) -> list[SuiteRow]:
    """Return every operation of the catalogue's table; `quick`: a fiftieth of the elements."""
    from tfe_bench.benchmarks import operations

    scale = _QUICK_OPS if quick else 1.0
    rows = []
    for entry in operations.listed_operations():
        size = "x".join(map(str, entry.scaled_size(scale)))
        command = ("ops", "--scale", str(scale))
        expected = {"shape": size, "source": "seed 1"}
        rows.append(SuiteRow(entry.name, size, command, entry.name, expected, entry.name))
    return rows


def table_suite_rows(quick: bool = False) -> list[SuiteRow]:
    """Return queries on private tables; `quick`: on few rows."""
    from tfe_bench.benchmarks.relational import WORKLOADS

    rows = []
    for workload in WORKLOADS.values():
        size = workload.sizes[quick]
        kind = "scale" if workload.scaled else "rows"
        expected = {"question": workload.name, kind: size, "seed": 1}
        words = (
            "relational",
            workload.name,
            f"--{kind}",
            f"{size:g}" if workload.scaled else str(size),
        )
        rows.append(SuiteRow(workload.name, f"{kind} {size:g}", words, "relational", expected))
    return rows


def model_suite_rows(quick: bool = False) -> list[SuiteRow]:
    """Return predictions of well-known models, and a text; `quick`: the tiny ones."""
    if quick:
        return [_text_suite_row("bert-tiny", 16), _generation_suite_row("gpt2-tiny", 8, 2)]
    picture = SuiteRow("vit-b16", "1 image", ("infer", "vit-b16"), "vit-b16", {"batch": 1})
    return [
        _resnet50_suite_row(),
        picture,
        _text_suite_row("bert-base", 128),
        _generation_suite_row("gpt2", 64, 8),
    ]


def core_suite_rows(quick: bool = False) -> list[SuiteRow]:
    """Return a sort and two predictions with 1 and with 2 cores; `quick`: tiny ones."""
    rows = (
        [_sort_suite_row(1024), _text_suite_row("bert-tiny", 16)]
        if quick
        else [_sort_suite_row(1 << 20), _resnet50_suite_row(), _text_suite_row("bert-base", 128)]
    )
    return [
        dataclasses.replace(
            row,
            size=f"{row.size}, {cores} core{'s' if cores > 1 else ''}",
            command=(*row.command, "--cores", str(cores)),
            parameters={**row.parameters, "cores": cores},
        )
        for row in rows
        for cores in (1, 2)
    ]


SUITES: Final = {
    "paper": paper_suite_rows,
    "ops": operation_suite_rows,
    "tables": table_suite_rows,
    "models": model_suite_rows,
    "cores": core_suite_rows,
}


def suite_rows(suite: str, quick: bool = False, only: str | None = None) -> list[SuiteRow]:
    """Return the rows of a suite, or those of `only`: names separated by commas.

    Raises:
        UsageError: an unknown suite or name.
    """
    check_known("suite", suite, SUITES)
    every = SUITES[suite](quick)
    if only is None:
        return every
    known = list(dict.fromkeys(row.name for row in every))
    names = [name.strip() for name in only.split(",")]
    for name in names:
        if name not in known:
            raise UsageError(
                f"The suite {suite} has no rows {name!r}.{did_you_mean(name, known)} Known: "
                f"{', '.join(known)}.",
                code="unknown-name",
                operation="--only",
                received=name,
                expected=", ".join(known),
            )
    return [row for row in every if row.name in names]


class SuiteTask(NamedTuple):
    """A row at a profile."""

    row: SuiteRow
    profile: str

    @property
    def label(self) -> str:
        """Readable label."""
        return f"{self.row.label}, {self.profile}"


def find_record(task: SuiteTask, cluster: str, measured: Iterable[Record]) -> Record | None:
    """Return the last correct record of the task, None without one.

    A wrong result finishes nothing: the row runs again.
    """
    matching = [r for r in measured if task.row.matches_record(r, task.profile, cluster)]
    right = [r for r in matching if r.correct is not False]
    return right[-1] if right else None


def group_tasks(pending: Sequence[SuiteTask]) -> list[list[SuiteTask]]:
    """Group tasks that one command runs together: neighbors of one command with `only`."""

    def join_task(done: list[list[SuiteTask]], task: SuiteTask) -> list[list[SuiteTask]]:
        last = done[-1][-1] if done else None
        if (
            last is not None
            and task.row.only is not None
            and last.row.only is not None
            and (last.row.command, last.profile) == (task.row.command, task.profile)
        ):
            done[-1].append(task)
        else:
            done.append([task])
        return done

    return functools.reduce(join_task, pending, [])


def command_words(
    batch: Sequence[SuiteTask], repeat: int = 1, pictures: str | None = None
) -> list[str]:
    """Return the command line of a batch, without output files; the profile is added here alone.

    Args:
        pictures: the folder of MNIST.
    """
    first = batch[0]
    only = [task.row.only for task in batch if task.row.only is not None]
    return [
        *first.row.command,
        *(["--only", ",".join(only)] if only else []),
        *("--profile", first.profile),
        *(["--repeat", str(repeat)] if first.row.repeats else []),
        *(["--data-dir", pictures] if first.row.pictures and pictures is not None else []),
    ]

"""The jobs of the comparison, and their inputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tfe_bench.errors import check_known

LENGTH: Final = 784
OUTPUTS: Final = 128
TRAINED_BATCH: Final = 64
LOGISTIC_BATCH: Final = 128
SEED: Final = 1

JOBS: Final = {
    "J1": "inner product of 784",
    "J2": "dense layer 784 -> 128",
    "J3": "MNIST CNN, inference",
    "J4": "exp, sigmoid, softmax",
    "J5": "logistic regression, an epoch",
    "J6": "sort and max",
    "J7": "MNIST CNN, a training step",
}
_OF_MNIST: Final = ("J3", "J5", "J7")

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class ComparedTask:
    """One row of the table, for every technology.

    Attributes:
        job: a key of JOBS.
        variant: distinguishes the row from the job's other rows; "" for a single row.
        batch: number of samples, or of values in J4 and J6.
    """

    job: str
    variant: str
    batch: int

    @property
    def label(self) -> str:
        """The row's name for display."""
        return f"{self.job} {self.variant}".strip()

    @property
    def about(self) -> str:
        """The job in words."""
        return f"{JOBS[self.job]}{', ' if self.variant else ''}{self.variant}"


@dataclass(frozen=True)
class ComparisonEffort:
    """The extent of the measurements.

    Attributes:
        repeat: number of timed runs.
        values: number of values in J4 and J6.
        steps: number of batches that represent an epoch of training; None for all.
        images: number of images for the accuracy.
    """

    repeat: int
    values: int
    steps: int | None
    images: int


WHOLE: Final = ComparisonEffort(repeat=3, values=1024, steps=None, images=256)
QUICK: Final = ComparisonEffort(repeat=3, values=256, steps=6, images=64)


def with_repeat(effort: ComparisonEffort, repeat: int | None) -> ComparisonEffort:
    """Return the effort with another number of timed runs; None changes nothing."""
    return effort if repeat is None else replace(effort, repeat=repeat)


def list_tasks(effort: ComparisonEffort, jobs: Sequence[str] | None = None) -> list[ComparedTask]:
    """Return all rows, or the rows of some jobs.

    Raises:
        UsageError: a job is unknown.
    """
    for job in jobs or ():
        check_known("job", job, JOBS)
    n = effort.values
    every = [
        ComparedTask("J1", "", 1),
        *(ComparedTask(job, f"batch {n}", n) for job in ("J2", "J3") for n in (1, 64)),
        *(ComparedTask("J4", f"{name} of {n}", n) for name in ("exp", "sigmoid", "softmax")),
        ComparedTask("J5", f"batches of {LOGISTIC_BATCH}", LOGISTIC_BATCH),
        *(ComparedTask("J6", f"{name} of {n}", n) for name in ("sort", "max")),
        ComparedTask("J7", f"batch {TRAINED_BATCH}", TRAINED_BATCH),
    ]
    return [task for task in every if jobs is None or task.job in jobs]


def need_mnist_pictures(jobs: Sequence[str] | None) -> bool:
    """Return whether any of the jobs uses MNIST; None means all jobs."""
    return jobs is None or any(job in _OF_MNIST for job in jobs)


class ComparisonInputs:
    """The inputs of the jobs; the same for every technology.

    Args:
        folder: the folder of MNIST's four files; None for the default of `models.mnist.load`.
        seed: seed of the generated values.
    """

    def __init__(self, folder: Path | None = None, seed: int = SEED) -> None:
        self.folder, self._seed = folder, seed

    def draw_vectors(self, batch: int) -> Array:
        """Return int64 [batch, 784] with 8-bit values, as in pictures."""
        return self._create_generator(1).integers(0, 256, (batch, LENGTH))

    def draw_weights(self, outputs: int) -> Array:
        """Return int64 [784, outputs] with signed 8-bit weights."""
        return self._create_generator(2).integers(-127, 128, (LENGTH, outputs))

    def draw_reals(self, n: int) -> Array:
        """Return float64 [n] from -4 to 4."""
        return self._create_generator(3).uniform(-4, 4, n)

    def draw_keys(self, n: int) -> Array:
        """Return int64 [n] from the whole range."""
        info = np.iinfo(np.int64)
        return self._create_generator(4).integers(info.min, info.max, n, endpoint=True)

    @cached_property
    def pictures(self) -> Any:
        """MNIST (models.mnist.Mnist).

        Raises:
            DataError: the files do not exist.
        """
        from tfe_bench.models.datasets import mnist

        return mnist.load(self.folder)

    def _create_generator(self, stream: int) -> np.random.Generator:
        return np.random.default_rng([self._seed, stream])

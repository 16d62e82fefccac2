"""tf-encrypted's names on three workers in one process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tfe_bench.tf_encrypted as compatible
from tests.models.arrays.simulated import Client, Workers
from tfe_bench.tf_encrypted.config import LocalConfig, get_config

# Type checkers know none of the names that the current protocol has.
tfe: Any = compatible


class Simulated(LocalConfig):
    """A configuration of workers that are given."""

    def __init__(self, workers: Workers) -> None:
        super().__init__()
        self.workers = workers

    def _open_cluster(self) -> Any:
        return Client(self.workers, "ann")

    def close(self) -> None:
        self._cluster = None


@contextmanager
def simulated(folder: Path) -> Iterator[Simulated]:
    """The current configuration, within."""
    before, workers = get_config(), Workers(folder)
    config = Simulated(workers)
    compatible.set_config(config)
    try:
        yield config
    finally:
        compatible.set_config(before)
        workers.close()

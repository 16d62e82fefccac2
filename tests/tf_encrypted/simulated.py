"""tf-encrypted's names on three workers in one process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tfe_bench.tf_encrypted as compatible
from tests.arrays.simulated import Client, Workers
from tfe_bench.tf_encrypted.config import LocalConfig, get_config

# Type checkers cannot resolve the names of the current protocol.
tfe: Any = compatible


class Simulated(LocalConfig):
    """A configuration of existing workers."""

    def __init__(self, workers: Workers) -> None:
        super().__init__()
        self.workers = workers

    def _open_cluster(self) -> Any:
        return Client(self.workers, "ann")

    def close(self) -> None:
        self._cluster = None


@contextmanager
def simulated(folder: Path) -> Iterator[Simulated]:
    """Set the current configuration within the block."""
    before, workers = get_config(), Workers(folder)
    config = Simulated(workers)
    compatible.set_config(config)
    try:
        yield config
    finally:
        compatible.set_config(before)
        workers.close()

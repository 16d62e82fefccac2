"""Figures of the published benchmark of functional encryption with baby-step giant-step on a GPU.

bsgs.csv: discrete logarithms; energy.csv: sheet of energy and cost; training.csv: hours of LeNet-5
on 128 cores.  Retyped from the tables of the publication.
"""

from __future__ import annotations

import csv
import functools
from collections.abc import Mapping
from pathlib import Path


@functools.cache
def _read_published_table(name: str) -> tuple[dict[str, str], ...]:
    with (Path(__file__).parent / name).open(newline="", encoding="utf-8") as file:
        return tuple(csv.DictReader(file))


def read_quantities(name: str) -> Mapping[str, str]:
    """Read a table of quantities, "bsgs" or "energy"."""
    return {row["quantity"]: row["value"] for row in _read_published_table(f"{name}.csv")}


def read_training() -> tuple[dict[str, str], ...]:
    """Read the rows with the hours of encryption and training."""
    return _read_published_table("training.csv")


def published_gpu_speed_up() -> float:
    """Return the published speed-up of a table on a GPU over one on a CPU, 32 bits, length 100."""
    return float(read_quantities("bsgs")["speedup_vs_cpu"])

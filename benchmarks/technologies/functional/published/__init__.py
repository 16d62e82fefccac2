"""Figures of the published benchmark of functional encryption with a GPU's baby-step-giant-step.

bsgs.csv: what it says of the discrete logarithms; energy.csv: its sheet of energy and cost;
training.csv: hours of LeNet-5 on 128 cores.  Retyped from its tables.
"""

from __future__ import annotations

import csv
import functools
from collections.abc import Mapping
from pathlib import Path


@functools.cache
def _read_table(name: str) -> tuple[dict[str, str], ...]:
    with (Path(__file__).parent / name).open(newline="", encoding="utf-8") as file:
        return tuple(csv.DictReader(file))


def read_quantities(name: str) -> Mapping[str, str]:
    """A table of quantities, "bsgs" or "energy"."""
    return {row["quantity"]: row["value"] for row in _read_table(f"{name}.csv")}


def read_training() -> tuple[dict[str, str], ...]:
    """Rows with the hours of encryption and training."""
    return _read_table("training.csv")


def speed_up() -> float:
    """Of a table of baby steps on a GPU over the CPU's, at 32 bits and vectors of 100."""
    return float(read_quantities("bsgs")["speedup_vs_cpu"])

"""A published simulation of homomorphic inference on computational storage, as data.

The system: weights (3.3 GB of CKKS plaintexts) and evaluation keys (0.5 GB) are on the NAND of a
computational storage device (csd), on SSDs of the host (fpga-ssd) or in the host's memory (fpga).
An FPGA with 8 GB of memory computes an MNIST network at N = 2^14.  A device's own NAND gives
8 GB/s; the host has 32 lanes of 1 GB/s, at most 16 for a slot.  Rates are theoretical and latencies
hidden.  One thread of a Xeon Gold 5122 takes 11,359 ms.

latency_by_bandwidth.csv is the source's second table.  Its print lost digits: they follow from the
third table (latency_by_devices.csv) and from the ratios in the source's text.  One cell of the
third table is empty in the source.  The layers of cnn.toml are fitted to both tables.
"""

from __future__ import annotations

import csv
import importlib.resources
from dataclasses import dataclass
from typing import Final

NETWORK: Final = "cnn"
# Seconds on one thread of the source's reference processor.
PROCESSOR_SECONDS: Final = 11.359
CONFIGURATIONS: Final = ("fpga-ssd", "fpga", "csd")


@dataclass(frozen=True)
class PublishedCell:
    """One cell of a published table.

    Attributes:
        table: "bandwidth" or "devices".
        configuration: one of CONFIGURATIONS; "fpga" in the bandwidth table, which varies its link.
        gigabytes_per_second: rate of the link in the bandwidth table; None in the other one.
        devices: number of devices.
        seconds: time of one inference; None for the empty cell.
    """

    table: str
    configuration: str
    gigabytes_per_second: float | None
    devices: int
    seconds: float | None


def read_published_file(name: str) -> str:
    """Read a file of this folder."""
    return importlib.resources.files(__name__).joinpath(name).read_text("utf-8")


def read_published_cells() -> list[PublishedCell]:
    """Read both tables, row by row."""
    cells = [
        PublishedCell(
            "bandwidth", "fpga", float(row["gigabytes_per_second"]), 1, _parse_seconds(row, "")
        )
        for row in _read_published_rows("latency_by_bandwidth.csv")
    ]
    for row in _read_published_rows("latency_by_devices.csv"):
        cells += [
            PublishedCell("devices", name, None, int(row["devices"]), _parse_seconds(row, name))
            for name in CONFIGURATIONS
        ]
    return cells


def _read_published_rows(name: str) -> list[dict[str, str]]:
    return list(csv.DictReader(read_published_file(name).splitlines()))


def _parse_seconds(row: dict[str, str], name: str) -> float | None:
    value = row[name or "milliseconds"]
    return float(value) / 1000 if value else None

"""Published figures of other systems, as data: figures.csv, each with its source.

Most are from TF Encrypted's benchmark tables, in two editions ("(README)" is that of version 0.9),
with MP-SPDZ as measured there.  Those of transformers are from the papers' own tables.
"stated as" in a setting quotes a source that gives a rounded figure or a limit.
"""

from __future__ import annotations

import csv
import importlib.resources
import re
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

CAVEAT: Final = (
    "Published figures come from other hardware and other networks, and mostly from three hosts. "
    "A ratio to them compares two set-ups, not two protocols."
)
# Work of other systems that this benchmark does not run.
UNMATCHED: Final = ("gbdt", "forest-predict", "generate")
TF_ENCRYPTED: Final = (
    "TF Encrypted's benchmark tables: three hosts of 4 cores (Xeon 8369B, 2.7 GHz), 40 Gbit/s and "
    "0.02 ms round trip (LAN), 352 Mbit/s and 40 ms round trip (WAN). MP-SPDZ "
    "next to it as they measured it."
)


@dataclass(frozen=True)
class PublishedFigure:
    """One figure of another system.

    Attributes:
        workload: as ours is named.
        size: as ours is written, "1024" or "1024x4"; a network's name for inference and training.
        optimizer: of training, else "".
        profile: "local", "lan", "wan", another profile whose figures are the source's network, or
            "" where the source does not say.
        seconds: a run.
        build_seconds: building the graph, None where not given.
        setting: hardware, network and variant, as far as given.
        source: who says so.
        accuracy: of a training after 5 epochs, in percent; None where not given.
        cores: processes or threads of all parties that compute at once; None where not given.
    """

    system: str
    workload: str
    size: str
    optimizer: str
    profile: str
    seconds: float
    build_seconds: float | None
    setting: str
    source: str
    accuracy: float | None = None
    cores: int | None = None

    @property
    def elements(self) -> tuple[int, ...] | None:
        """Size as numbers, None for a network."""
        return parse_size_extents(self.size)


def parse_size_extents(size: str) -> tuple[int, ...] | None:
    """Return a size's extents, None for a name."""
    if re.fullmatch(r"[0-9]{1,18}(x[0-9]{1,18})*", size, re.ASCII):
        return tuple(int(n) for n in size.split("x"))
    return None


@cache
def load_figures() -> tuple[PublishedFigure, ...]:
    """Return all published figures."""
    text = importlib.resources.files(__name__).joinpath("figures.csv").read_text("utf-8")
    return tuple(_parse_published_figure(row) for row in csv.DictReader(text.splitlines()))


def _parse_published_figure(row: dict[str, str]) -> PublishedFigure:
    values: dict[str, Any] = {**row, "seconds": float(row["seconds"])}
    for name in ("build_seconds", "accuracy"):
        values[name] = float(row[name]) if row[name] else None
    values["cores"] = int(row["cores"]) if row["cores"] else None
    return PublishedFigure(**values)

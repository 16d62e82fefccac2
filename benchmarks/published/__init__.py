"""Figures that others published, as data.

tf_encrypted.csv
    TF Encrypted's benchmark tables in two editions ("readme-0.9" is the README's of version 0.9),
    with MP-SPDZ as they measured it beside it.
other.csv
    Further figures, each read in the source that its row names.
"""

from __future__ import annotations

import csv
import importlib.resources
import re
from dataclasses import dataclass
from functools import cache
from typing import Final

CAVEAT: Final = (
    "Published figures come from other hardware and other networks, and mostly from three hosts. "
    "A ratio beside them says how two set-ups compare, not two protocols."
)
TF_ENCRYPTED: Final = (
    "TF Encrypted's benchmark tables: three hosts of 4 cores (Xeon 8369B, 2.7 GHz), 40 Gbit/s and "
    "0.02 ms round trip (LAN), 352 Mbit/s and 40 ms round trip (WAN). MP-SPDZ "
    "beside it as they measured it."
)

_WORK = re.compile(
    r"sort n=(?P<n>\d+)|max (?P<max>\d+x\d+)|(?P<model>\w+) one image"
    r"|train (?P<train>[\w-]+) \(per batch of 128\)"
)


@dataclass(frozen=True)
class Figure:
    """One figure of another system.

    Attributes:
        workload: as ours is named.
        size: as ours is written, "1024" or "1024x4"; a network's name for inference and training.
        optimizer: of training, else "".
        profile: "local", "lan", "wan", or "" where the source does not say.
        seconds: a run.
        build_seconds: building the graph, None where not given.
        setting: hardware, network and variant, as far as given.
        source: who says so.
        accuracy: of a training after 5 epochs, in percent; None where not given.
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

    @property
    def elements(self) -> tuple[int, ...] | None:
        """The size as numbers, None for a network."""
        return numbers(self.size)


def numbers(size: str) -> tuple[int, ...] | None:
    """A size's extents, None if it is a name."""
    if re.fullmatch(r"[0-9]{1,18}(x[0-9]{1,18})*", size, re.ASCII):
        return tuple(int(n) for n in size.split("x"))
    return None


@cache
def published() -> tuple[Figure, ...]:
    """All published figures."""
    return tuple([*_tf_encrypted(), *(_figure(row, row["source"]) for row in _table("other"))])


def _table(name: str) -> list[dict[str, str]]:
    text = importlib.resources.files(__name__).joinpath(f"{name}.csv").read_text("utf-8")
    return list(csv.DictReader(text.splitlines()))


def _figure(row: dict[str, str], source: str) -> Figure:
    return Figure(
        row["system"],
        row["workload"],
        row["size"],
        row["optimizer"],
        row["profile"],
        float(row["seconds"]),
        None,
        row["setting"],
        source,
    )


def _tf_encrypted() -> list[Figure]:
    found = []
    for row in _table("tf_encrypted"):
        match = _WORK.fullmatch(row["work"])
        assert match, row
        workload, size = next(
            (name, match[group])
            for name, group in (
                *(("sort", "n"), ("max", "max")),
                *(("infer", "model"), ("train", "train")),
            )
            if match[group]
        )
        edition = " (README)" if row["edition"] == "readme-0.9" else ""
        for profile in ("lan", "wan"):
            if row[f"{profile}_s"]:
                found.append(
                    Figure(
                        row["system"] + edition,
                        workload,
                        size,
                        row["optimizer"],
                        profile,
                        float(row[f"{profile}_s"]),
                        float(row["build_graph_s"]) if row["build_graph_s"] else None,
                        "3 hosts of 4 cores, "
                        + (
                            "40 Gbit/s, 0.02 ms round trip"
                            if profile == "lan"
                            else "352 Mbit/s, 40 ms round trip"
                        ),
                        "TF Encrypted's README" if edition else "TF Encrypted's published table",
                        float(row["accuracy_percent"]) if row["accuracy_percent"] else None,
                    )
                )
    return found

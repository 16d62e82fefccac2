"""Records as measurements leave them, without measuring."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest

from tfe_bench.benchmarks.provenance import Machine
from tfe_bench.benchmarks.records import Record, Seconds
from tfe_bench.benchmarks.report import drawing

Maker = Callable[..., Record]
USUAL: dict[str, Any] = {
    "workload": "sort",
    "parameters": {"n": 1024},
    "repeats": 2,
    "build_seconds": 0.5,
    "start_seconds": 3.0,
    "share_seconds": 0.01,
    "protocol": "quick",
    "profile": "local",
    "bytes_sent": (1000, 2000, 3000),
    "frame_bytes": (1010, 2020, 3030),
    "rounds": 12,
    "rounds_ahead": 9,
    "peak_memory": (1 << 20, 2 << 20, 3 << 20),
    "idle_memory": (400 << 20, 400 << 20, 400 << 20),
    "correct": True,
    "max_error": 0.0,
    "ring": 64,
    "fractional_bits": 16,
    "profile_emulation": None,
    "tls": True,
    "cluster": "local",
    "machine": Machine("a CPU", 2, 25 * 10**9, "Linux 6"),
}


@pytest.fixture
def one_theme(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw pictures for a light page only, to save the time of the dark ones."""
    draw = drawing._render_png
    once = functools.cache(lambda make, narrow: draw(make, drawing.LIGHT, narrow))
    monkeypatch.setattr(drawing, "_render_png", lambda make, theme, narrow: once(make, narrow))


@pytest.fixture
def make_record() -> Maker:
    """Return a record of a workload; keyword arguments replace its fields."""

    def make(workload: str = "sort", seconds: float = 0.05, **fields: Any) -> Record:
        parameters = {"n": 1024} if workload == "sort" else {"shape": "1024x4"}
        times = Seconds.from_times([seconds, 1.1 * seconds])
        own = {"workload": workload, "parameters": parameters, "seconds": times}
        return Record(**{**USUAL, **own, **fields})

    return make

"""The stopwatch that tf-encrypted's example programs print."""

from __future__ import annotations

import time
from typing import ClassVar


class Performance:
    """Prints the time between two calls with one tag."""

    _began: ClassVar[list[tuple[str, float]]] = []

    @staticmethod
    def time_log(tag: str) -> None:
        """Start a measurement, or end it and print the seconds."""
        if Performance._began and Performance._began[-1][0] == tag:
            began = Performance._began.pop()[1]
            print(f"[Time] {tag}: {time.perf_counter() - began} s")
            return
        Performance._began.append((tag, time.perf_counter()))
        print(f"[Time] {tag} start: {time.strftime('%Y%m%d-%H:%M:%S')}")

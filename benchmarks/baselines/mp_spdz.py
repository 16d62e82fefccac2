"""MP-SPDZ from the user's build: replicated sharing over Z_2^64, three processes, its own TLS."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from tfe_bench.benchmarks.baselines.base import (
    BaselineRequest,
    BaselineResult,
    UnavailableBaseline,
    refuse_baseline_join,
    refuse_baseline_networks,
    run_baseline_process,
)

_PROGRAM: Final = "replicated-ring-party.x"
# The timer around the work alone; inputs are random bits that the parties make together.
_SOURCES: Final = {
    "sort": "a = sint.Array({n})\na.assign_vector(sint.get_random_int(62, size={n}))\n"
    "start_timer(1)\na.sort()\nstop_timer(1)\n",
    "max": "x = [sfix.get_random(-100, 100, size={n}) for _ in range(4)]\nstart_timer(1)\n"
    "a, b = x[0].max(x[1]), x[2].max(x[3])\ny = a.max(b)\nstop_timer(1)\n",
    "relu": "x = sfix.get_random(-100, 100, size={n})\nstart_timer(1)\n"
    "y = (x > 0).if_else(x, 0)\nstop_timer(1)\n",
}
_TIME: Final = re.compile(r"^Time1 = ([0-9.eE+-]+) seconds(?: \(([0-9.eE+-]+) MB)?", re.MULTILINE)
_SENT: Final = re.compile(r"^Global data sent = ([0-9.eE+-]+) MB", re.MULTILINE)


class MpSpdz:
    """MP-SPDZ's replicated-ring-party on this host.

    Args:
        folder: of the build, with compile.py, replicated-ring-party.x and Scripts/ring.sh.
    """

    name = "mp-spdz"

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def find_obstacle(self) -> UnavailableBaseline | None:
        """Return None if the folder has the required files."""
        if self._folder is None:
            return UnavailableBaseline("not found: no --mp-spdz DIR was given")
        for name in ("compile.py", _PROGRAM, "Scripts/ring.sh"):
            if not (self._folder / name).is_file():
                return UnavailableBaseline(f"not found: {self._folder} has no {name}")
        return None

    def run(self, request: BaselineRequest) -> BaselineResult | UnavailableBaseline:
        """Compile the workload with 64-bit shares, run it, and remove its program again."""
        missing = refuse_baseline_networks(self.name, request) or refuse_baseline_join(
            self.name, request
        )
        missing = missing or self.find_obstacle()
        if missing is not None or self._folder is None:
            return missing or UnavailableBaseline("not found")
        name = f"tfe_bench_{os.getpid()}"
        source = self._folder / "Programs" / "Source" / f"{name}.mpc"
        try:
            source.parent.mkdir(parents=True, exist_ok=True)
            source.write_text(_SOURCES[request.workload].format(n=request.n), encoding="ascii")
            return self._compile_and_run(self._folder, name, request)
        except OSError as error:
            return UnavailableBaseline(f"failed: {source} cannot be written ({error.strerror})")
        finally:
            for folder, pattern in (("Source", "mpc"), ("Bytecode", "bc"), ("Schedules", "sch")):
                for left in (self._folder / "Programs" / folder).glob(f"{name}*.{pattern}"):
                    left.unlink(missing_ok=True)

    def _compile_and_run(
        self, folder: Path, name: str, request: BaselineRequest
    ) -> BaselineResult | UnavailableBaseline:
        compiled = run_baseline_process(
            ["./compile.py", "-R", "64", name], request.timeout, folder=folder
        )
        if isinstance(compiled, UnavailableBaseline):
            return compiled
        seconds: list[float] = []
        sent: int | None = None
        for _ in range(request.repeat):
            out = run_baseline_process(["Scripts/ring.sh", name], request.timeout, folder=folder)
            if isinstance(out, UnavailableBaseline):
                return out
            timed = _TIME.search(out)
            if timed is None:
                return UnavailableBaseline("failed: it printed no Time1")
            seconds.append(float(timed[1]))
            total = _SENT.search(out)
            if total is not None:  # of the whole program, its inputs too
                sent = round(float(total[1]) * 1e6)
        setting = "replicated-ring-party, 64-bit ring, three processes, its TLS"
        return BaselineResult(tuple(seconds), sent, None, "as built", setting)

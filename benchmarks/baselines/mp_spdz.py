"""MP-SPDZ from the user's build: replicated sharing over Z_2^64, three processes, its own TLS."""

from __future__ import annotations

import math
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
# The timer around the work alone; inputs are random values that the parties make together.  After
# it, lines "CHECK NAME VALUE ..." reveal values from which `check_revealed` computes the result.
_ROWS: Final = 4
_SOURCES: Final = {
    "sort": "a = sint.Array({n})\na.assign_vector(sint.get_random_int(62, size={n}))\n"
    "start_timer(1)\na.sort()\nstop_timer(1)\n",
    "max": "x = [sfix.get_random(-100, 100, size={n}) for _ in range(4)]\nstart_timer(1)\n"
    "a, b = x[0].max(x[1]), x[2].max(x[3])\ny = a.max(b)\nstop_timer(1)\n",
    "relu": "x = sfix.get_random(-100, 100, size={n})\nstart_timer(1)\n"
    "y = (x > 0).if_else(x, 0)\nstop_timer(1)\n",
    "matmul": "a, b = sfix.Matrix({n}, {n}), sfix.Matrix({n}, {n})\n"
    "for m in a, b:\n    m.assign_vector(sfix.get_random(-10, 10, size={n} * {n}))\n"
    "start_timer(1)\nc = a.dot(b)\nstop_timer(1)\n"
    "for i in range(min({n}, 4)):\n"
    "    terms = a[i].get_vector().reveal() * b.get_column(i).reveal()\n"
    "    print_ln('CHECK c%s %s %s', i, c[i][i].reveal(), sum(terms))\n",
    "softmax": "from Compiler import ml, util\n"
    "x = [sfix.get_random(-8, 8, size={n}) for _ in range(10)]\nstart_timer(1)\n"
    "top = util.max(x)\ne = [ml.exp(v - top) for v in x]\ns = sum(e)\n"
    "y = [v / s for v in e]\nstop_timer(1)\n"
    "for i in range(min({n}, 4)):\n"
    "    for name, values in ('x', x), ('y', y):\n"
    "        shown = [v[i].reveal() for v in values]\n"
    "        print_ln('CHECK ' + name + str(i) + ' %s' * 10, *shown)\n",
    "train": "from Compiler import ml\n"
    "layers = [ml.Dense({n}, 784, 128, activation='relu'), "
    "ml.Dense({n}, 128, 128, activation='relu'), ml.Dense({n}, 128, 10), "
    "ml.MultiOutput({n}, 10)]\nml.Layer.back_batch_size = {n}\n"
    "layers[-1].compute_loss = False\n"
    "layers[0].X.assign_vector(sfix.get_random(0, 1, size={n} * 784))\n"
    "layers[-1].Y.assign_all(0)\n"
    "@for_range({n})\ndef _(i):\n    layers[-1].Y[i][i % 10] = sint(1)\n"
    "sgd = ml.SGD(layers)\nsgd.reset()\n"
    "batch = regint.Array({n})\nbatch.assign(regint.inc({n}))\n"
    "start_timer(1)\nsgd.forward(batch=batch, training=True)\n"
    "sgd.backward(batch=batch)\nsgd.update(0, 0, batch)\nstop_timer(1)\n"
    "for i in range(min({n}, 4)):\n"
    "    for name, values in ('x', layers[-1].X), ('y', layers[-1].nabla_X):\n"
    "        shown = [values[i][j].reveal() for j in range(10)]\n"
    "        print_ln('CHECK ' + name + str(i) + ' %s' * 10, *shown)\n",
}
# Absolute errors: of one product of a matrix product (16 fractional bits), and of softmax.
_PRODUCT_ERROR: Final = 20 * 2.0**-16
_SOFTMAX_ERROR: Final = 1e-2
_CLASSES: Final = 10
_TIME: Final = re.compile(r"^Time1 = ([0-9.eE+-]+) seconds(?: \(([0-9.eE+-]+) MB)?", re.MULTILINE)
_CHECK: Final = re.compile(r"^CHECK ([cxy])([0-9]) ([-+0-9.e ]+)$", re.MULTILINE)
_SENT: Final = re.compile(r"^Global data sent = ([0-9.eE+-]+) MB", re.MULTILINE)


def check_revealed(workload: str, n: int, output: str) -> bool | None:
    """Return True if the revealed values agree with the plaintext; None if none is revealed.

    For a product: diagonal elements.  For softmax: rows.  For a step: the gradient of the output
    layer's rows, from their logits.
    """
    revealed: dict[tuple[str, int], list[float]] = {}
    for name, row, values in _CHECK.findall(output):
        try:
            revealed[name, int(row)] = [float(v) for v in values.split()]
        except ValueError:
            return False
    if workload not in ("matmul", "softmax", "train"):
        return None
    rows = range(min(n, _ROWS))
    if workload == "matmul":
        pairs = [revealed.get(("c", i), []) for i in rows]
        error = _PRODUCT_ERROR * n
        return all(len(p) == 2 and abs(p[0] - p[1]) <= error for p in pairs)
    return all(
        _is_softmax(revealed.get(("x", i), []), revealed.get(("y", i), []), workload, i)
        for i in rows
    )


def _is_softmax(logits: list[float], values: list[float], workload: str, row: int) -> bool:
    if not len(logits) == len(values) == _CLASSES:
        return False
    powers = [math.exp(v - max(logits)) for v in logits]
    expected = [power / sum(powers) for power in powers]
    if workload == "train":
        expected[row % _CLASSES] -= 1
    return all(abs(v - e) <= _SOFTMAX_ERROR for v, e in zip(values, expected, strict=True))


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
        correct: bool | None = None
        for _ in range(request.repeat):
            out = run_baseline_process(["Scripts/ring.sh", name], request.timeout, folder=folder)
            if isinstance(out, UnavailableBaseline):
                return out
            timed = _TIME.search(out)
            if timed is None:
                return UnavailableBaseline("failed: it printed no Time1")
            seconds.append(float(timed[1]))
            correct = check_revealed(request.workload, request.n, out)
            total = _SENT.search(out)
            if total is not None:  # of the whole program, its inputs too
                sent = round(float(total[1]) * 1e6)
        setting = "replicated-ring-party, 64-bit ring, three processes, its TLS"
        return BaselineResult(tuple(seconds), sent, correct, "as built", setting)

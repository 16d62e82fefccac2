"""Runs one workload with SPU's simulator; see the package's docstring for what goes in and out."""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import sys
import time
from typing import Any


def main() -> None:
    """Reads the request, runs it, prints the answer."""
    request = json.load(sys.stdin)
    numpy: Any = importlib.import_module("numpy")
    jax: Any = importlib.import_module("jax")
    jax.config.update("jax_enable_x64", True)
    jnp: Any = importlib.import_module("jax.numpy")
    libspu: Any = importlib.import_module("spu.libspu")
    simulation: Any = importlib.import_module("spu.utils.simulation")

    class Timed(simulation.Simulator):  # type: ignore[misc]
        """Times a call without compiling: sharing the input, running and revealing."""

        took = 0.0

        def __call__(self, executable: Any, *given: Any) -> Any:
            started = time.perf_counter()
            result = super().__call__(executable, *given)
            self.took = time.perf_counter() - started
            return result

    n, workload = request["n"], request["workload"]
    rng = numpy.random.default_rng(1)
    if workload == "sort":
        # Its comparison subtracts, so that keys of the full range would overflow.
        x, work = rng.integers(-(2**62), 2**62, n), jnp.sort
        expected = numpy.sort(x)
    elif workload == "max":
        x, work = rng.uniform(-100, 100, (n, 4)), lambda v: jnp.max(v, axis=1)
        expected = x.max(axis=1)
    else:
        x, work = rng.uniform(-100, 100, n), lambda v: jnp.maximum(v, 0)
        expected = numpy.maximum(x, 0)
    sim = Timed.simple(3, libspu.ProtocolKind.ABY3, libspu.FieldType.FM64)
    call = simulation.sim_jax(sim, work)
    seconds = []
    result = call(x)  # warms up
    for _ in range(request["repeat"]):
        result = call(x)
        seconds.append(sim.took)
    answer = {
        "seconds": seconds,
        "bytes_sent": None,
        "correct": bool(numpy.allclose(result, expected, rtol=0, atol=1e-3)),
        "version": importlib.metadata.version("spu"),
        "setting": "ABY3, FM64, one process, no network; sharing and revealing counted",
    }
    print(json.dumps(answer))


if __name__ == "__main__":
    main()

"""Run one workload with TF Encrypted's ABY3; the package's docstring defines the JSON."""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import sys
import time
from typing import Any


def main() -> None:
    """Read the request, run it, print the answer."""
    request = json.load(sys.stdin)
    numpy: Any = importlib.import_module("numpy")
    tfe: Any = importlib.import_module("tf_encrypted")
    protocol: Any = importlib.import_module("tf_encrypted.protocol")
    tfe.set_protocol(protocol.ABY3())
    n, workload = request["n"], request["workload"]
    rng = numpy.random.default_rng(1)
    if workload == "sort":
        x = rng.integers(-(2**30), 2**30, n).astype(float)
        expected = numpy.sort(x)
    else:
        x = rng.uniform(-100, 100, (n, 4) if workload == "max" else n)
        expected = x.max(axis=1) if workload == "max" else numpy.maximum(x, 0)
    private = tfe.define_private_variable(x, apply_scaling=workload != "sort")

    @tfe.function  # type: ignore[untyped-decorator]
    def work(value: Any) -> Any:
        if workload == "sort":
            return tfe.sort(value, axis=0).reveal().to_native()
        if workload == "max":
            return tfe.reduce_max(value, axis=1).reveal().to_native()
        return tfe.relu(value).reveal().to_native()

    result = work(private)  # builds the graph
    seconds = []
    for _ in range(request["repeat"]):
        started = time.perf_counter()
        result = numpy.asarray(work(private))
        seconds.append(time.perf_counter() - started)
    answer = {
        "seconds": seconds,
        "bytes_sent": None,
        "correct": bool(numpy.allclose(result, expected, rtol=0, atol=1e-2)),
        "version": importlib.metadata.version("tf-encrypted"),
        "setting": "ABY3, one process, no network; revealing counted",
    }
    print(json.dumps(answer))


if __name__ == "__main__":
    main()

"""The same dense layer by TenSEAL's own product, if it is installed, for comparison."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from tfe_bench.benchmarks.records import Seconds
from tfe_bench.benchmarks.technologies.homomorphic import jobs, processes, timing
from tfe_bench.benchmarks.technologies.libraries import import_library
from tfe_bench.benchmarks.technologies.measurement import Measurement

JOB: Final = "dense (TenSEAL)"
_BITS: Final = (60, 40, 60)
_DEGREE: Final = 8192
_SCALE_BITS: Final = 40
_REPEAT: Final = 3


def run_tenseal_dense() -> Measurement:
    """Measure a dense layer 784 -> 128 on one encrypted vector by TenSEAL's `mm`.

    Raises:
        ConfigError: TenSEAL is not installed.
    """
    import_library("tenseal", "The comparison")
    seconds, error, peak = processes.run_in_separate_process(_run_layer, jobs.OUTPUTS)
    return Measurement(
        technology="homomorphic",
        job=JOB,
        parameters={
            "shape": [jobs.OUTPUTS, jobs.LENGTH],
            "batch": 1,
            "scheme": "CKKS",
            "degree": _DEGREE,
            "prime_bits": list(_BITS),
            "scale_bits": _SCALE_BITS,
        },
        seconds=seconds,
        figures={
            "evaluate_seconds": seconds.median,
            "max_abs_error": error,
            "peak_memory_bytes": peak,
        },
        correct=error <= jobs.LINEAR_ERROR,
    )


def _run_layer(outputs: int) -> tuple[Seconds, float, int]:
    tenseal: Any = import_library("tenseal", "The comparison")
    weights, vectors = jobs.homomorphic_linear_inputs(outputs, 1)
    context = tenseal.context(tenseal.SCHEME_TYPE.CKKS, _DEGREE, coeff_mod_bit_sizes=list(_BITS))
    context.global_scale = 2.0**_SCALE_BITS
    context.generate_galois_keys()
    encrypted = tenseal.ckks_vector(context, vectors[0].tolist())
    matrix = weights.T.tolist()
    last: list[Any] = [None]

    def multiply() -> None:
        last[0] = encrypted.mm(matrix)

    seconds = timing.time_ciphertext_operation(multiply, _REPEAT)
    decrypted = np.asarray(last[0].decrypt())[:outputs]
    return (
        seconds,
        float(np.abs(decrypted - weights @ vectors[0]).max()),
        processes.peak_process_memory(),
    )

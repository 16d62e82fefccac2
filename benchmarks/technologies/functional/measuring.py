"""Measurement of inner products by phase: set-up, encryption, keys, products, logarithms."""

from __future__ import annotations

import functools
import resource
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np

from tfe_bench.benchmarks.records import Seconds
from tfe_bench.benchmarks.technologies.functional import curve, scheme
from tfe_bench.benchmarks.technologies.functional.curve import Numbers, Table
from tfe_bench.benchmarks.technologies.functional.leakage import Leakage, compute_leakage_rank
from tfe_bench.benchmarks.technologies.functional.sweep import SweepCell
from tfe_bench.benchmarks.technologies.measurement import Measurement

SECURITY_BITS: Final = 128


def peak_process_memory() -> int:
    """Return the peak memory of this process in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def median_or_zero(times: list[float]) -> float:
    """Return the median, or 0 for an empty list."""
    return statistics.median(times) if times else 0.0


def draw_sweep_inputs(cell: SweepCell, seed: int) -> tuple[Numbers, Numbers]:
    """Draw messages, and weights whose results are spread over the whole range."""
    rng = np.random.default_rng(seed)
    messages = rng.integers(0, 1 << cell.input_bits, (cell.batch, cell.length))
    middle = rng.uniform(-1, 1, (cell.outputs, 1)) * cell.weight_most
    spread = rng.uniform(-0.5, 0.5, (cell.outputs, cell.length)) * cell.weight_most
    weights = np.clip(np.rint(middle + spread), -cell.weight_most, cell.weight_most)
    return messages, weights.astype(np.int64)


def time_call(work: Callable[[], Any]) -> tuple[float, Any]:
    """Call a function; return seconds and result."""
    start = time.perf_counter()
    result = work()
    return time.perf_counter() - start, result


PHASES: Final = ("encrypt", "derive", "decode", "evaluate", "logarithms")


@dataclass(frozen=True)
class EncryptionRun:
    """Seconds by phase, for all messages and outputs together, with results and sizes.

    Attributes:
        results: int64 [batch, outputs].
        sent_bytes, key_bytes: bytes of ciphertexts and keys.
    """

    encrypt: float
    derive: float
    decode: float
    evaluate: float
    logarithms: float
    results: Numbers
    sent_bytes: int
    key_bytes: int

    @property
    def decrypt(self) -> float:
        """Seconds of the last three phases."""
        return self.decode + self.evaluate + self.logarithms

    @property
    def total(self) -> float:
        """Seconds of all phases."""
        return self.encrypt + self.derive + self.decrypt


def run_encryption_phases(
    authority: scheme.MasterKey,
    encryptor: scheme.Encryptor,
    table: Table,
    inputs: tuple[Numbers, Numbers],
    bound: int,
    threads: int,
) -> EncryptionRun:
    """Encrypt, derive keys and decrypt once."""
    messages, weights = inputs
    encrypt, sent = time_call(lambda: encryptor.encrypt(messages, threads))
    derive, keys = time_call(lambda: authority.derive(weights))
    scheme.check_matching_keys(sent, keys)
    points: list[Any] = [None] * len(sent)

    def unpack(begin: int, end: int) -> None:
        inside = threads if len(sent) == 1 else 1
        for i in range(begin, end):
            points[i] = curve.decode_curve_elements(sent.elements[i], threads=inside)

    decode, _ = time_call(lambda: curve.run_parts_in_threads(len(sent), threads, unpack))
    evaluate, products = time_call(
        lambda: np.concatenate([scheme.evaluate_function_keys(p, keys, threads) for p in points])
    )
    search, logarithms = time_call(lambda: table.find_logarithms(products, bound, threads))
    results = logarithms.reshape(len(messages), len(weights))
    return EncryptionRun(
        encrypt, derive, decode, evaluate, search, results, sent.nbytes, keys.nbytes
    )


def measure_cell(
    cell: SweepCell, table: Table | None = None, repeat: int = 3, seed: int = 1
) -> Measurement:
    """Measure one cell of the sweep.

    Args:
        cell: the sizes.
        table: a table of 2^cell.table_bits steps, or None to build it.
        repeat: number of timed runs.
        seed: seed of messages and weights.
    """
    inputs = draw_sweep_inputs(cell, seed)
    return measure_inner_products(cell, inputs, cell.input_bits, "sweep", table, repeat)


def measure_inner_products(
    cell: SweepCell,
    inputs: tuple[Numbers, Numbers],
    input_bits: int,
    job: str,
    table: Table | None = None,
    repeat: int = 3,
) -> Measurement:
    """Measure all phases: encryption, derivation of keys and decryption."""
    messages, weights = inputs
    due = messages @ weights.T
    setup, authority = time_call(lambda: scheme.setup(cell.scheme, cell.length))
    prepare, encryptor = time_call(
        lambda: scheme.Encryptor(authority.public, input_bits, cell.threads)
    )
    build, used_table = time_call(lambda: table or Table(cell.table_bits))
    once = functools.partial(
        run_encryption_phases, authority, encryptor, used_table, inputs, cell.bound, cell.threads
    )
    first = once()  # warm-up; its times are discarded
    runs = [once() for _ in range(repeat)]
    outputs, batch = first.results.size, len(messages)
    totals = [each.total for each in runs]
    spent = {name: median_or_zero([getattr(each, name) for each in runs]) for name in PHASES}
    key_leakage = Leakage(compute_leakage_rank(scheme.as_weight_rows(weights)), cell.length)
    figures: dict[str, Any] = {
        "setup_seconds": setup,
        "prepare_seconds": prepare,
        "encrypt_seconds": spent["encrypt"] / batch,
        "derive_seconds": spent["derive"] / len(weights),
        "decode_seconds": spent["decode"] / batch,
        "evaluate_seconds": spent["evaluate"] / outputs,
        "logarithm_seconds": spent["logarithms"] / outputs,
        "decrypt_seconds": median_or_zero([each.decrypt for each in runs]) / outputs,
        "throughput_per_second": batch / median_or_zero(totals),
        "key_bytes": first.key_bytes,
        "public_key_bytes": authority.public.points.nbytes,
        "bytes_up": first.sent_bytes,
        "bytes_down": 0,
        "table_bytes": used_table.nbytes,
        "encryptor_bytes": encryptor.nbytes,
        "peak_memory_bytes": peak_process_memory(),
        "rounds": 1,
        "key_rank": key_leakage.rank,
        "leakage": f"the results, in the clear, to the server; {key_leakage}",
    }
    if table is None:
        figures["table_seconds"] = build
    return Measurement(
        technology="functional",
        job=job,
        parameters={
            **asdict(cell),
            **{"input_bits": input_bits, "group": "ristretto255", "security_bits": SECURITY_BITS},
        },
        seconds=Seconds.from_times(totals),
        figures=figures,
        correct=all((each.results == due).all() for each in (first, *runs)),
    )

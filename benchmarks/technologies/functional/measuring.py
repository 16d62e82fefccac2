"""Times inner products by phase: set-up, encryption, keys, products, logarithms."""

from __future__ import annotations

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
from tfe_bench.benchmarks.technologies.functional.leakage import Leakage, rank
from tfe_bench.benchmarks.technologies.measurement import Measurement
from tfe_bench.errors import UsageError, check_range

SECURITY_BITS: Final = 128


def peak_memory() -> int:
    """The most that this process has held, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def median(times: list[float]) -> float:
    """The median, and 0 of none."""
    return statistics.median(times) if times else 0.0


@dataclass(frozen=True, kw_only=True)
class Cell:
    """What is measured.

    Attributes:
        length: of a message.
        result_bits: results are from -2^(result_bits - 1) to 2^(result_bits - 1).
        batch: messages.
        outputs: keys, that is results of each message.
        scheme: "selective" or "adaptive".
        threads: at work.
        table_bits: of the table of logarithms.
    """

    length: int
    result_bits: int
    batch: int = 1
    outputs: int = 16
    scheme: str = "selective"
    threads: int = 1
    table_bits: int = 20

    def __post_init__(self) -> None:
        check_range("Result bits", self.result_bits, 4, 40)
        check_range("A batch", self.batch, 1, 1024)
        check_range("Outputs", self.outputs, 1, 4096)
        if self.free_bits < 2:
            raise UsageError(
                f"Results of {self.result_bits} bits hold no vectors of length {self.length}. "
                "Received: both. Take more bits or a shorter vector."
            )

    @property
    def free_bits(self) -> int:
        """What is left for a value and a weight together."""
        return self.result_bits - 1 - (self.length - 1).bit_length()

    @property
    def input_bits(self) -> int:
        """Of a message's values, which are 0 or more."""
        return min((self.free_bits + 1) // 2, 16)

    @property
    def weight_most(self) -> int:
        """The largest weight."""
        return (1 << min(self.free_bits // 2, 16)) - 1

    @property
    def bound(self) -> int:
        """Of results."""
        return 1 << (self.result_bits - 1)


def inputs(cell: Cell, seed: int) -> tuple[Numbers, Numbers]:
    """Messages, and weights whose results lie all over the range, not around 0 alone."""
    rng = np.random.default_rng(seed)
    messages = rng.integers(0, 1 << cell.input_bits, (cell.batch, cell.length))
    middle = rng.uniform(-1, 1, (cell.outputs, 1)) * cell.weight_most
    spread = rng.uniform(-0.5, 0.5, (cell.outputs, cell.length)) * cell.weight_most
    weights = np.clip(np.rint(middle + spread), -cell.weight_most, cell.weight_most)
    return messages, weights.astype(np.int64)


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds, and what came of it."""
    start = time.perf_counter()
    made = work()
    return time.perf_counter() - start, made


@dataclass
class Times:
    """Seconds of each run by phase; of all messages and outputs together."""

    encrypt: list[float]
    derive: list[float]
    decode: list[float]
    evaluate: list[float]
    logarithms: list[float]

    def totals(self) -> list[float]:
        """Of each run."""
        runs = zip(*asdict(self).values(), strict=True)
        return [sum(run) for run in runs]

    @property
    def decrypt(self) -> float:
        """The median of a run's last three phases."""
        runs = zip(self.decode, self.evaluate, self.logarithms, strict=True)
        return median([sum(run) for run in runs])


def run(
    authority: scheme.MasterKey,
    encryptor: scheme.Encryptor,
    table: Table,
    given: tuple[Numbers, Numbers],
    bound: int,
    repeat: int,
    threads: int,
) -> tuple[Times, Numbers, int, int]:
    """Times, results [batch, outputs], and bytes of ciphertexts and keys.

    The first run warms up and is not kept.
    """
    messages, weights = given
    times = Times([], [], [], [], [])
    results = np.empty((len(messages), len(weights)), np.int64)
    for turn in range(repeat + 1):
        encrypt, sent = timed(lambda: encryptor.encrypt(messages, threads))
        derive, keys = timed(lambda: authority.derive(weights))
        scheme.check_together(sent, keys)

        def unpack(sent: scheme.Ciphertexts = sent) -> list[Any]:
            points: list[Any] = [None] * len(sent)

            def part(begin: int, end: int) -> None:
                for i in range(begin, end):
                    points[i] = curve.decode(sent.elements[i])

            curve.in_parts(len(sent), threads, part)
            return points

        decode, points = timed(unpack)

        def products(points: Any = points, keys: scheme.FunctionKeys = keys) -> Any:
            return np.concatenate([scheme.evaluate(p, keys, threads) for p in points])

        evaluate, products_found = timed(products)
        search, found = timed(lambda p=products_found: table.find(p, bound, threads))  # type: ignore[misc]
        results[:] = found.reshape(results.shape)
        if turn:
            for phase, seconds in zip(
                ("encrypt", "derive", "decode", "evaluate", "logarithms"),
                (encrypt, derive, decode, evaluate, search),
                strict=True,
            ):
                getattr(times, phase).append(seconds)
    return times, results, sent.nbytes, keys.nbytes


def measure(cell: Cell, table: Table | None = None, repeat: int = 3, seed: int = 1) -> Measurement:
    """One cell of the sweep.

    Args:
        table: of cell.table_bits steps, or None to make it.
    """
    given = inputs(cell, seed)
    return inner_products(cell, given, cell.input_bits, "sweep", table, repeat)


def inner_products(
    cell: Cell,
    given: tuple[Numbers, Numbers],
    input_bits: int,
    job: str,
    table: Table | None = None,
    repeat: int = 3,
) -> Measurement:
    """All phases of encrypting, deriving keys and decrypting, as a measurement."""
    messages, weights = given
    setup, authority = timed(lambda: scheme.setup(cell.scheme, cell.length))
    prepare, encryptor = timed(lambda: scheme.Encryptor(authority.public, input_bits, cell.threads))
    build, made = timed(lambda: table or Table(cell.table_bits))
    times, results, sent, keys = run(
        *(authority, encryptor, made, given, cell.bound, repeat, cell.threads)
    )
    outputs, batch = results.size, len(messages)
    totals = times.totals()
    found = Leakage(rank(scheme.as_rows(weights)), cell.length)
    figures: dict[str, Any] = {
        "setup_seconds": setup,
        "prepare_seconds": prepare,
        "encrypt_seconds": median(times.encrypt) / batch,
        "derive_seconds": median(times.derive) / len(weights),
        "decode_seconds": median(times.decode) / batch,
        "evaluate_seconds": median(times.evaluate) / outputs,
        "logarithm_seconds": median(times.logarithms) / outputs,
        "decrypt_seconds": times.decrypt / outputs,
        "throughput_per_second": batch / median(totals),
        "key_bytes": keys,
        "public_key_bytes": authority.public.points.nbytes,
        "bytes_up": sent,
        "bytes_down": 0,
        "table_bytes": made.nbytes,
        "encryptor_bytes": encryptor.nbytes,
        "peak_memory_bytes": peak_memory(),
        "rounds": 1,
        "key_rank": found.rank,
        "leakage": f"the results, in the clear, to the server; {found}",
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
        seconds=Seconds.of(totals),
        figures=figures,
        correct=bool((results == messages @ weights.T).all()),
    )

"""Measurement of the library's operations: time, size, noise and correctness of each."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from tfe_bench.benchmarks.provenance import read_machine_facts
from tfe_bench.benchmarks.records import Seconds
from tfe_bench.benchmarks.technologies.homomorphic import processes, published, timing
from tfe_bench.benchmarks.technologies.homomorphic.parameters import Parameters, make_context
from tfe_bench.benchmarks.technologies.libraries import import_library
from tfe_bench.benchmarks.technologies.measurement import Measurement
from tfe_bench.errors import UsageError

# The names of the published table.
OPERATIONS: Final = (
    *("keygen_relin", "keygen_galois", "encode", "decode", "encrypt", "decrypt"),
    *("add_ct_ct", "multiply_plain", "multiply_ct_ct", "square", "relinearize"),
    *("rotate_rows_1", "rotate_rows_random", "rotate_columns", "rescale"),
)
BY_N: Final = "rotate_rows_11"
DEPTH: Final = "depth"
STEPS: Final = 11

_BUDGET: Final = 0.25  # seconds an operation
_LARGEST: Final = 500  # of the integers: products stay below half of the plaintext modulus
# Bound of CKKS' errors, relative to the scale: fresh noise, and the noise of a key switch.
_NOISE_BITS: Final = 22
_MOST_DEPTH: Final = 64
_PART: Final = 0.75  # of the memory


def measure_scheme_operations(parameters: Parameters, repeat: int, seed: int) -> list[Measurement]:
    """Measure all operations of a scheme at a degree, in a separate process.

    Args:
        parameters: the scheme's parameters.
        repeat: most runs of each operation; slow operations run three times.
        seed: seed of the values and of the rotations; keys use randomness of the operating system.

    Raises:
        ConfigError: the library is not installed.
        UsageError: the library rejects the parameters, or the keys do not fit the memory.
    """
    import_library("seal", "Homomorphic encryption")
    _check_rotation_key_memory(parameters)
    rows, shared = processes.run_in_separate_process(_measure_scheme, parameters, repeat, seed)
    measurements = []
    for row in rows:
        figures = {**row.figures, **shared}
        if row.seconds is not None:
            figures["p95_seconds"] = timing.percentile_95(row.seconds.all)
            figures["per_slot_seconds"] = row.seconds.median / parameters.slots
            figures |= _add_published(parameters, row.operation, row.seconds)
        measurements.append(
            Measurement(
                technology="homomorphic",
                job=row.operation,
                parameters={**parameters.as_json(), "seed": seed},
                seconds=row.seconds,
                figures=figures,
                correct=row.correct,
            )
        )
    return measurements


def _check_rotation_key_memory(parameters: Parameters) -> None:
    primes, degree = len(parameters.prime_bits), parameters.degree
    each = (primes - 1) * 2 * primes * degree * 8
    # of every power of two in both directions, and twice that while they are generated
    due = 2 * 2 * (degree.bit_length() - 2) * each
    there = read_machine_facts().memory_bytes
    if due > _PART * there:
        raise UsageError(
            f"All rotation keys of N = {degree} with {primes} primes take about "
            f"{due / 1e9:.1f} GB while they are made, and this machine has {there / 1e9:.1f} GB. "
            "Take a smaller degree or fewer primes.",
            code="out-of-memory",
            operation="rotation keys",
            received=due,
            expected=f"up to {int(_PART * there)}",
        )


def _add_published(parameters: Parameters, operation: str, seconds: Seconds) -> dict[str, Any]:
    key = (parameters.scheme, operation, parameters.degree)
    if (theirs := published.read_published_operations().get(key)) is None:
        return {}
    figures: dict[str, Any] = {
        "published_seconds": theirs.seconds,
        "published_ratio": theirs.seconds / seconds.median,
    }
    return figures | ({"published_suspect": theirs.suspect} if theirs.suspect else {})


@dataclass(frozen=True)
class OperationRow:
    """Times, further figures and correctness of one operation."""

    operation: str
    seconds: Seconds | None
    figures: Mapping[str, Any]
    correct: bool


def _measure_scheme(
    parameters: Parameters, repeat: int, seed: int
) -> tuple[list[OperationRow], dict[str, Any]]:
    bench = _Bench(parameters, repeat, seed)
    rows = list(bench.measure_rows())
    return rows, bench.measure_sizes() | {"peak_memory_bytes": processes.peak_process_memory()}


class _Bench:
    """Keys, values and ciphertexts for the measured operations."""

    def __init__(self, parameters: Parameters, repeat: int, seed: int) -> None:
        self.seal: Any = import_library("seal", "Homomorphic encryption")
        seal, self.parameters, self.repeat = self.seal, parameters, repeat
        self.ckks = parameters.scheme == "CKKS"
        self.context = make_context(seal, parameters)
        self.generator = seal.KeyGenerator(self.context)
        self.public = self.generator.create_public_key()
        self.encryptor = seal.Encryptor(self.context, self.public)
        self.decryptor = seal.Decryptor(self.context, self.generator.secret_key())
        self.evaluator = seal.Evaluator(self.context)
        self.encoder = (seal.CKKSEncoder if self.ckks else seal.BatchEncoder)(self.context)
        self.random = np.random.default_rng(seed)
        self.x, self.y = self.draw_values(), self.draw_values()
        self.px, self.py = self.encode_values(self.x), self.encode_values(self.y)
        self.cx, self.cy = self.encryptor.encrypt(self.px), self.encryptor.encrypt(self.py)
        self.relin: Any = None
        self.galois: Any = None

    def draw_values(self) -> Any:
        """Draw a value for each slot; integers are two rows, one after the other."""
        count = self.parameters.slots
        if self.ckks:
            return self.random.uniform(-1, 1, count)
        return self.random.integers(-_LARGEST, _LARGEST + 1, count)

    def encode_values(self, values: Any) -> Any:
        if self.ckks:
            return self.encoder.encode(values, 2.0**self.parameters.precision_bits)
        return self.encoder.encode(values)

    def decrypt_values(self, ciphertext: Any) -> Any:
        return self.encoder.decode(self.decryptor.decrypt(ciphertext))

    def rotate_values(self, values: Any, steps: int) -> Any:
        return np.roll(values.reshape(1 if self.ckks else 2, -1), -steps, axis=1).reshape(-1)

    def rotate_ciphertext(self, ciphertext: Any, steps: int, keys: Any = None) -> Any:
        turn = self.evaluator.rotate_vector if self.ckks else self.evaluator.rotate_rows
        return turn(ciphertext, steps, keys or self.galois)

    def is_correct(self, result: Any, expected: Any) -> tuple[bool, dict[str, Any]]:
        """Return True if decoded values are right, and figures of their error."""
        error = float(np.abs(np.asarray(result) - expected).max())
        if not self.ckks:
            return error == 0, {}
        most = 2.0 ** (_NOISE_BITS - self.parameters.precision_bits)
        return error <= most, {"max_abs_error": error}

    def measure_noise(self, ciphertext: Any) -> dict[str, Any]:
        """Return the noise budget that remains for further operations."""
        if self.ckks:
            return {}
        return {"noise_budget_bits": int(self.decryptor.invariant_noise_budget(ciphertext))}

    def measure_row(
        self,
        operation: str,
        run: Callable[[], Any],
        expected: Any,
        open_result: Callable[[Any], Any] | None = None,
    ) -> OperationRow:
        """Time an operation and compare the result of its last run.

        Args:
            operation: name of the operation.
            run: runs the operation once.
            expected: values of a correct result.
            open_result: returns the decoded values of the result; None to decrypt a ciphertext.
        """
        last: list[Any] = [None]

        def keep() -> None:
            last[0] = None  # never two sets of keys in memory
            last[0] = run()

        seconds = timing.time_ciphertext_operation(keep, self.repeat, _BUDGET)
        result = last[0]
        correct, figures = self.is_correct((open_result or self.decrypt_values)(result), expected)
        if isinstance(result, self.seal.Ciphertext):
            figures |= self.measure_noise(result) | {"ciphertext_bytes": int(result.save_size())}
        return OperationRow(operation, seconds, figures, correct)

    def measure_rows(self) -> Iterator[OperationRow]:
        """Measure all operations of the scheme."""
        yield from self._measure_keys()
        yield from self._measure_client()
        yield from self._measure_arithmetic()
        yield from self._measure_rotations()
        yield self._measure_depth()

    def _measure_keys(self) -> Iterator[OperationRow]:
        product = self.evaluator.multiply(self.cx, self.cy)

        def relinearized(keys: Any) -> Any:
            self.relin = keys
            return self.decrypt_values(self.evaluator.relinearize(product, keys))

        make = self.generator.create_relin_keys
        yield self.measure_row("keygen_relin", make, self.x * self.y, relinearized)

        def rotated(keys: Any) -> Any:
            self.galois = keys
            return self.decrypt_values(self.rotate_ciphertext(self.cx, 1))

        every = self.generator.create_galois_keys
        yield self.measure_row("keygen_galois", every, self.rotate_values(self.x, 1), rotated)

    def _measure_client(self) -> Iterator[OperationRow]:
        decode, encrypt = self.encoder.decode, self.encryptor.encrypt
        yield self.measure_row("encode", lambda: self.encode_values(self.x), self.x, decode)
        yield self.measure_row("decode", lambda: decode(self.px), self.x, np.asarray)
        yield self.measure_row("encrypt", lambda: encrypt(self.px), self.x)
        yield self.measure_row("decrypt", lambda: self.decryptor.decrypt(self.cx), self.x, decode)

    def _measure_arithmetic(self) -> Iterator[OperationRow]:
        evaluator, x, y, cx, cy = self.evaluator, self.x, self.y, self.cx, self.cy
        # the NTT of a BFV plaintext is part of the product, as in the published table
        yield self.measure_row("add_ct_ct", lambda: evaluator.add(cx, cy), x + y)
        yield self.measure_row(
            "multiply_plain", lambda: evaluator.multiply_plain(cx, self.py), x * y
        )
        product = evaluator.multiply(cx, cy)
        yield self.measure_row("multiply_ct_ct", lambda: evaluator.multiply(cx, cy), x * y)
        yield self.measure_row("square", lambda: evaluator.square(cx), x * x)
        yield self.measure_row(
            "relinearize", lambda: evaluator.relinearize(product, self.relin), x * y
        )
        if self.ckks:
            small = evaluator.relinearize(product, self.relin)
            yield self.measure_row("rescale", lambda: evaluator.rescale_to_next(small), x * y)

    def _measure_rotations(self) -> Iterator[OperationRow]:
        row_slots = self.parameters.degree // 2
        yield self.measure_row(
            "rotate_rows_1",
            lambda: self.rotate_ciphertext(self.cx, 1),
            self.rotate_values(self.x, 1),
        )
        steps = [int(s) for s in self.random.integers(1, row_slots, 16)]
        following = itertools.cycle(steps)
        last_step = [0]

        def at_random() -> Any:
            last_step[0] = next(following)
            return self.rotate_ciphertext(self.cx, last_step[0])

        def turned_back(ciphertext: Any) -> Any:
            return self.rotate_values(self.decrypt_values(ciphertext), -last_step[0])

        yield self.measure_row("rotate_rows_random", at_random, self.x, turned_back)
        if not self.ckks:
            columns = self.evaluator.rotate_columns
            swapped = np.roll(self.x, row_slots)
            yield self.measure_row("rotate_columns", lambda: columns(self.cx, self.galois), swapped)
        yield self._measure_rotation_by_n()

    def _measure_rotation_by_n(self) -> OperationRow:
        """Measure a rotation by n: keys for powers of two, n rotations by 1, a key of its own."""
        direct_keys = self.seal.GaloisKeys()
        self.generator.create_galois_keys([STEPS], direct_keys)

        def one_by_one() -> Any:
            ciphertext = self.cx
            for _ in range(STEPS):
                ciphertext = self.rotate_ciphertext(ciphertext, 1)
            return ciphertext

        expected = self.rotate_values(self.x, STEPS)
        stepwise = self.measure_row("", one_by_one, expected)
        direct = self.measure_row(
            "", lambda: self.rotate_ciphertext(self.cx, STEPS, direct_keys), expected
        )
        row = self.measure_row(BY_N, lambda: self.rotate_ciphertext(self.cx, STEPS), expected)
        assert stepwise.seconds is not None and direct.seconds is not None
        figures = {
            **row.figures,
            "rotations_by_1_seconds": stepwise.seconds.median,
            "own_key_seconds": direct.seconds.median,
        }
        return OperationRow(
            BY_N, row.seconds, figures, row.correct and stepwise.correct and direct.correct
        )

    def _measure_depth(self) -> OperationRow:
        """Count the consecutive squarings with a correct result."""
        values = np.where(self.draw_values() > 0, 1, -1).astype(self.x.dtype)
        now, depth = self.encryptor.encrypt(self.encode_values(values)), 0
        while depth < _MOST_DEPTH:
            try:
                now = self.evaluator.square(now)
                self.evaluator.relinearize_inplace(now, self.relin)
                if self.ckks:
                    self.evaluator.rescale_to_next_inplace(now)
                elif self.parameters.scheme == "BGV" and self._lower_levels(now):
                    self.evaluator.mod_switch_to_next_inplace(now)
            except (RuntimeError, ValueError):  # no prime remains, or no room for the scale
                break
            right, _ = self.is_correct(self.decrypt_values(now), np.ones(len(values)))
            if not right or (not self.ckks and not self.measure_noise(now)["noise_budget_bits"]):
                break
            depth += 1
        return OperationRow(DEPTH, None, {"depth": depth}, True)

    def _lower_levels(self, ciphertext: Any) -> int:
        return int(self.context.get_context_data(ciphertext.parms_id()).chain_index())

    def measure_sizes(self) -> dict[str, Any]:
        """Measure the bytes of keys and of a fresh ciphertext."""
        relinearization = len(self.relin.to_string())
        return {
            "fresh_ciphertext_bytes": int(self.cx.save_size()),
            "public_key_bytes": len(self.public.to_string()),
            "relinearization_key_bytes": relinearization,
            # each rotation key has this size; serializing all of them would double the memory
            "rotation_keys_bytes": relinearization * int(self.galois.size()),
        }

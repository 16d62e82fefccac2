"""Client and server: the client holds the secret key, the server computes with evaluation keys.

Decryption with a wrong key returns noise that looks like a result, as a ciphertext does not
identify its key.  So every ciphertext carries the fingerprint of its key here and is refused under
another key.  CKKS also overflows silently: every ciphertext carries a bound of its values, too.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tfe_bench.benchmarks.technologies.homomorphic.parameters import Parameters, make_context
from tfe_bench.benchmarks.technologies.libraries import import_library
from tfe_bench.errors import DataError, RangeError, SecurityError, UsageError

Values = npt.NDArray[np.float64]

_GUARD_BITS: Final = 1.0  # bits of the modulus that are reserved for noise


@dataclass(frozen=True)
class Encrypted:
    """Values encrypted under a key.

    Attributes:
        handle: the library's ciphertext.
        bound: largest magnitude of a slot.
        key: fingerprint of the key.
    """

    handle: Any
    bound: float
    key: str

    def __repr__(self) -> str:
        return f"Encrypted(bound={self.bound:g}, key={self.key})"


@dataclass(frozen=True)
class EvaluationKeys:
    """Evaluation keys that a client sends to the server.

    Attributes:
        relinearization: key for squares and products, or None.
        rotation: keys for `steps` only, or None.
        steps: rotations that have keys.
        key: fingerprint of the client's key.
        size: bytes of all keys.
    """

    relinearization: Any
    rotation: Any
    steps: tuple[int, ...]
    key: str
    size: int


class Setting:
    """The library with CKKS parameters, public to both sides.

    Raises:
        ConfigError: the library is not installed.
        UsageError: the library rejects the parameters.
    """

    def __init__(self, parameters: Parameters) -> None:
        self.seal = import_library("seal", "Homomorphic encryption")
        self.parameters = parameters
        self.context = make_context(self.seal, parameters)
        self._by_level: dict[int, Any] = {}
        data = self.context.first_context_data()
        while data is not None:
            # the library counts from 0; here a level is the number of remaining primes
            self._by_level[data.chain_index() + 1] = data
            data = data.next_context_data() if data.chain_index() else None
        self._levels: dict[tuple[int, ...], int] = {
            tuple(d.parms_id()): n for n, d in self._by_level.items()
        }
        if parameters.scheme == "CKKS":
            self.encoder = self.seal.CKKSEncoder(self.context)

    @property
    def scale(self) -> float:
        """Scale of fresh ciphertexts."""
        return float(2**self.parameters.precision_bits)

    def count_levels(self, handle: Any) -> int:
        """Count the remaining primes of a ciphertext or plaintext."""
        return self._levels[tuple(handle.parms_id())]

    def parms_id(self, level: int) -> Any:
        """Return the library's identifier of a level."""
        return self._by_level[level].parms_id()

    def prime_at(self, level: int) -> int:
        """Return the divisor of rescaling at a level, a prime."""
        return int(self._by_level[level].parms().coeff_modulus()[-1].value())

    def check_room(self, bound: float, scale: float, level: int, subject: str) -> None:
        """Reject values that could overflow a level's modulus, which would stay unnoticed.

        Raises:
            RangeError: the bound exceeds the largest magnitude that fits.
        """
        modulus = self._by_level[level].total_coeff_modulus_bit_count() - 1
        bits = modulus - 1 - _GUARD_BITS - math.log2(scale)
        if not (bound <= 2.0**bits and bits > -1 - _GUARD_BITS):
            raise RangeError(
                f"{subject} may have a magnitude of {bound:.4g}, and at a scale of "
                f"2^{math.log2(scale):.1f} the modulus of level {level} holds {2.0**bits:.4g}. "
                "Take smaller values, a smaller scale or larger primes.",
                code="modulus-overflow",
                operation=subject,
                received=f"{bound:.4g}",
                expected=f"at most {2.0**bits:.4g}",
            )

    def encode_values(self, values: Values | float, scale: float, level: int) -> Any:
        """Encode values as a CKKS plaintext at a level.

        Args:
            values: one value for each slot, or one for all.
            scale: scale of the plaintext.
            level: number of its primes.

        Raises:
            UsageError: the number of values is not the number of slots.
            RangeError: a value is NaN, infinite or too large for the scale.
        """
        array = check_finite(values, "A plaintext")
        if array.ndim and array.shape != (self.parameters.slots,):
            raise UsageError(
                f"A plaintext has {self.parameters.slots} values. Received: {list(array.shape)}.",
                code="shape-mismatch",
                operation="plaintext",
                received=list(array.shape),
                expected=self.parameters.slots,
            )
        self.check_room(float(np.abs(array).max(initial=0.0)), scale, level, "A plaintext")
        plain = self.encoder.encode(array if array.ndim else float(array), scale)
        if level < self.parameters.levels:
            plain = self.seal.Evaluator(self.context).mod_switch_to(plain, self.parms_id(level))
        return plain

    def load_plaintext(self, chunk: bytes) -> Any:
        """Load a plaintext from its bytes.

        Raises:
            DataError: the bytes are not a plaintext of these parameters.
        """
        plain = self.seal.Plaintext()
        try:
            plain.load_bytes(self.context, chunk)
            self.count_levels(plain)
        except (RuntimeError, ValueError, KeyError) as error:
            raise DataError(
                "A plaintext's bytes do not fit the parameters; encode it again.",
                code="malformed-encoding",
                operation="plaintext",
            ) from error
        return plain


def check_finite(values: Any, subject: str) -> Values:
    """Convert numbers to an array and check that they are finite.

    Raises:
        RangeError: a number is NaN or infinite.
        UsageError: the values are not numbers.
    """
    try:
        array = np.asarray(values, np.float64)
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"{subject} consists of numbers. Received: other values.",
            code="not-a-number",
            operation=subject,
        ) from error
    if not np.isfinite(array).all():
        raise RangeError(
            f"{subject} is finite. Received: NaN or infinite values. Replace them.",
            code="not-finite",
            operation=subject,
        )
    return array


class Client:
    """Client with the secret key, generated from randomness of the operating system."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        seal, context = setting.seal, setting.context
        self._generator = seal.KeyGenerator(context)
        public = self._generator.create_public_key().to_string()
        self.key = hashlib.sha256(public).hexdigest()[:16]
        secret = self._generator.secret_key()
        # encryption with the secret key has less noise and takes half the time
        self._encryptor = seal.Encryptor(context, secret)
        self._decryptor = seal.Decryptor(context, secret)

    def __repr__(self) -> str:
        return f"Client(key={self.key})"

    def evaluation_keys(
        self, steps: Iterable[int] = (), relinearization: bool = False
    ) -> EvaluationKeys:
        """Generate keys for the server: for these rotations, and no others.

        Args:
            steps: the rotations.
            relinearization: also a key for products.

        Raises:
            UsageError: a rotation is by 0, or by the number of slots or more.
        """
        seal, slots = self.setting.seal, self.setting.parameters.slots
        key_steps = tuple(dict.fromkeys(steps))
        for step in key_steps:
            if step == 0 or abs(step) >= slots:
                raise UsageError(
                    f"A rotation is by 1 to {slots - 1}, or by as many backwards. Received: "
                    f"{step}.",
                    code="number-out-of-range",
                    operation="rotation",
                    received=step,
                )
        relinearize = self._generator.create_relin_keys() if relinearization else None
        rotate = None
        size = 0 if relinearize is None else len(relinearize.to_string())
        if key_steps:
            rotate = seal.GaloisKeys()
            self._generator.create_galois_keys(list(key_steps), rotate)
            size += len(rotate.to_string())
        return EvaluationKeys(relinearize, rotate, key_steps, self.key, size)

    def encrypt(self, values: Values, bound: float = 1.0) -> Encrypted:
        """Encrypt values at the first level.

        Args:
            values: one for each slot, magnitudes up to `bound`.
            bound: largest magnitude.

        Raises:
            RangeError: a value is NaN, infinite, beyond the bound, or too large for the scale.
            UsageError: the number of values is not the number of slots.
        """
        array = check_finite(values, "An input")
        if (largest := float(np.abs(array).max(initial=0.0))) > bound:
            raise RangeError(
                f"An input's magnitude is at most {bound:g} here. Received: {largest:.4g}. Scale "
                "the inputs, or declare a larger bound.",
                code="outside-bound",
                operation="input",
                expected=f"at most {bound:g}",
            )
        setting = self.setting
        level = setting.parameters.levels
        setting.check_room(bound, setting.scale, level, "An input")
        plain = setting.encode_values(array, setting.scale, level)
        return Encrypted(self._encryptor.encrypt_symmetric(plain), bound, self.key)

    def decrypt(self, encrypted: Encrypted) -> Values:
        """Decrypt the values of all slots.

        Raises:
            SecurityError: the ciphertext is under another key.
        """
        if encrypted.key != self.key:
            raise SecurityError(
                f"This ciphertext is under the key {encrypted.key}, and this client has "
                f"{self.key}: it would decrypt to noise. Take the client that encrypted the "
                "inputs.",
                code="encryption-key-mismatch",
                operation="decrypt",
                received=encrypted.key,
                expected=self.key,
            )
        plain = self._decryptor.decrypt(encrypted.handle)
        return np.asarray(self.setting.encoder.decode(plain), np.float64)


class Server:
    """Server that computes with a client's evaluation keys.

    All its operations raise these errors.

    Raises:
        SecurityError: a ciphertext is under another key.
        UsageError: the parameters are not deep enough, or a key is missing.
        RangeError: a result could overflow.
    """

    def __init__(self, setting: Setting, keys: EvaluationKeys) -> None:
        self.setting = setting
        self.keys = keys
        self._evaluator = setting.seal.Evaluator(setting.context)

    def accept_ciphertext(self, encrypted: Encrypted) -> Encrypted:
        """Check that a client's ciphertext has the key of the evaluation keys, and return it."""
        if encrypted.key != self.keys.key:
            raise SecurityError(
                f"A ciphertext under the key {encrypted.key} came with evaluation keys of "
                f"{self.keys.key}. Send the evaluation keys of the key that encrypted it.",
                code="encryption-key-mismatch",
                operation="evaluation keys",
                received=encrypted.key,
                expected=self.keys.key,
            )
        return encrypted

    def _wrap_result(self, handle: Any, bound: float, like: Encrypted, subject: str) -> Encrypted:
        setting = self.setting
        setting.check_room(bound, handle.scale(), setting.count_levels(handle), subject)
        return Encrypted(handle, bound, like.key)

    def add(self, x: Encrypted, y: Encrypted, bound: float | None = None) -> Encrypted:
        """Compute x + y of equal scales; `bound` if it is known to be less than the bounds' sum."""
        self.accept_ciphertext(x)
        self.accept_ciphertext(y)
        x, y = self._match_levels(x, y)
        ours, theirs = float(x.handle.scale()), float(y.handle.scale())
        if not math.isclose(ours, theirs, rel_tol=1e-12):
            raise UsageError(
                f"A sum is of one scale. Received: 2^{math.log2(ours):.6f} and "
                f"2^{math.log2(theirs):.6f}. Encode factors so that they agree.",
                code="scale-mismatch",
                operation="add",
                received=theirs,
                expected=ours,
            )
        y.handle.scale(ours)  # the library requires equality to the last bit
        total = x.bound + y.bound if bound is None else bound
        return self._wrap_result(self._evaluator.add(x.handle, y.handle), total, x, "A sum")

    def add_plain(self, x: Encrypted, plain: Any, bound: float) -> Encrypted:
        """Add a plaintext of the same scale and level, with magnitudes up to `bound`."""
        self.accept_ciphertext(x)
        self._check_level(x, plain)
        if not math.isclose(float(plain.scale()), float(x.handle.scale()), rel_tol=1e-12):
            raise DataError(
                "Expected a plaintext of the ciphertext's scale. Received: another scale. Encode "
                "it again.",
                code="scale-mismatch",
                operation="add_plain",
            )
        return self._wrap_result(
            self._evaluator.add_plain(x.handle, plain), x.bound + bound, x, "A sum"
        )

    def _check_level(self, x: Encrypted, plain: Any) -> None:
        ours, theirs = self.setting.count_levels(x.handle), self.setting.count_levels(plain)
        if ours != theirs:
            raise DataError(
                f"Expected a plaintext of level {ours}. Received: level {theirs}. The weights are "
                "out of order, or of another network. Encode them again.",
                code="level-mismatch",
                received=theirs,
                expected=ours,
            )

    def multiply(self, x: Encrypted, y: Encrypted) -> Encrypted:
        """Compute x * y, relinearized and rescaled."""
        return self.rescale(self.multiply_unscaled(x, y))

    def multiply_unscaled(self, x: Encrypted, y: Encrypted) -> Encrypted:
        """Compute x * y at the lower of their levels, relinearized and not rescaled."""
        self.accept_ciphertext(x)
        self.accept_ciphertext(y)
        x, y = self._match_levels(x, y)
        setting, bound = self.setting, x.bound * y.bound
        level = setting.count_levels(x.handle)
        setting.check_room(bound, x.handle.scale() * y.handle.scale(), level, "A product")
        if self.keys.relinearization is None:
            raise UsageError(
                "Products take a relinearization key. Received: none.",
                code="evaluation-key-missing",
                operation="multiply",
            )
        if x is y:
            handle = self._evaluator.square(x.handle)
        else:
            handle = self._evaluator.multiply(x.handle, y.handle)
        self._evaluator.relinearize_inplace(handle, self.keys.relinearization)
        return Encrypted(handle, bound, x.key)

    def _match_levels(self, x: Encrypted, y: Encrypted) -> tuple[Encrypted, Encrypted]:
        level = min(self.setting.count_levels(x.handle), self.setting.count_levels(y.handle))
        if x is y:
            return x, x
        return self.lower_level(x, level), self.lower_level(y, level)

    def inner_product(
        self,
        xs: Iterable[Encrypted],
        plains: Iterable[Any],
        bound: float,
        total: Encrypted | None = None,
    ) -> Encrypted | None:
        """Compute the sum of products with plaintexts, not rescaled; None if all are zeros.

        Args:
            xs: ciphertexts.
            plains: one for each of xs; None stands for zeros.
            bound: largest magnitude of the sum and of every partial sum.
            total: ciphertext that the sum is added to in place, or None.
        """
        evaluator = self._evaluator
        handle = None if total is None else total.handle
        for x, plain in zip(xs, plains, strict=True):
            if plain is None:
                continue
            self.accept_ciphertext(x)
            self._check_level(x, plain)
            if handle is None:
                level = self.setting.count_levels(x.handle)
                scale = x.handle.scale() * plain.scale()
                self.setting.check_room(bound, scale, level, "A sum of products")
                handle = evaluator.multiply_plain(x.handle, plain)
            else:
                evaluator.add_inplace(handle, evaluator.multiply_plain(x.handle, plain))
        return None if handle is None else Encrypted(handle, bound, self.keys.key)

    def rotate(self, x: Encrypted, step: int) -> Encrypted:
        """Move the value of slot i + step to slot i, cyclically; step may be negative."""
        self.accept_ciphertext(x)
        if step == 0:
            return x
        if step not in self.keys.steps:
            raise UsageError(
                f"A rotation by {step} takes a key of its own. Received: keys for "
                f"{', '.join(map(str, self.keys.steps)) or 'none'}.",
                code="evaluation-key-missing",
                operation="rotate",
                received=step,
            )
        rotated = self._evaluator.rotate_vector(x.handle, step, self.keys.rotation)
        return Encrypted(rotated, x.bound, x.key)

    def rescale(self, x: Encrypted) -> Encrypted:
        """Divide scale and modulus by the level's last prime."""
        level = self.setting.count_levels(x.handle)
        if level == 1:
            raise UsageError(
                "The circuit is deeper than the parameters: no prime remains to rescale by. Take "
                "more primes (and with them a larger degree).",
                code="levels-exhausted",
                operation="rescale",
            )
        if x.handle.scale() / self.setting.prime_at(level) < 2.0:
            raise UsageError(
                "The scale is exhausted: rescaling would leave less than one bit. Take a larger "
                "scale or smaller primes.",
                code="scale-exhausted",
                operation="rescale",
            )
        return self._wrap_result(self._evaluator.rescale_to_next(x.handle), x.bound, x, "A value")

    def lower_level(self, x: Encrypted, level: int) -> Encrypted:
        """Return x at a lower level, with unchanged values."""
        if self.setting.count_levels(x.handle) == level:
            return x
        lowered = self._evaluator.mod_switch_to(x.handle, self.setting.parms_id(level))
        return self._wrap_result(lowered, x.bound, x, "A value")

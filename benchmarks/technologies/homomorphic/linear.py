"""A matrix times an encrypted vector, by diagonals in baby steps and giant steps.

Halevi and Shoup (CRYPTO 2014) multiply by diagonals: W x = sum over d of diag_d * rot_d(x), the
diagonals extended as in Juvekar, Vaikuntanathan and Chandrakasan (USENIX Security 2018, section 4)
so that a matrix has no more diagonals than rows; folds sum the remaining parts.  d = g B + b takes
B - 1 baby steps and, by Horner's rule, G - 1 giant steps, all of them rotations by one of two
amounts: so the server needs only two keys and one for every fold.

Slots that one vector leaves free hold other vectors of the batch, or copies of this vector.  The
copies are rotated in advance by parts of the diagonals, which divides the work by their number.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tfe_bench.benchmarks.technologies.homomorphic.parties import (
    Encrypted,
    Server,
    Setting,
    Values,
    check_finite,
)
from tfe_bench.errors import UsageError

_MOST_BYTES: Final = 2**31  # limit of the encoded weights


def power_of_two(least: int) -> int:
    """Return the smallest power of two that is at least `least`."""
    return 1 << (least - 1).bit_length()


@dataclass(frozen=True)
class SlotLayout:
    """Layout of vectors in a ciphertext: slot (position * copies + copy) * images + image.

    The vectors repeat until all slots are filled, so that rotations are cyclic in `period`.

    Args:
        slots: number of slots of a ciphertext.
        period: positions of a vector, a power of two.
        images: vectors side by side, a power of two.
        copies: copies of each vector, a power of two; the c-th is rotated by c parts of the
            diagonals.

    Raises:
        UsageError: the vectors do not fit the slots, or a number is not a power of two.
    """

    slots: int
    period: int
    images: int
    copies: int = 1

    def __post_init__(self) -> None:
        for n in (self.slots, self.period, self.images, self.copies):
            if n < 1 or n & (n - 1):
                raise UsageError(
                    f"A layout consists of powers of two. Received: {self}.",
                    code="invalid-layout",
                    received=self,
                )
        if self.repeats < 1:
            raise UsageError(
                f"{self.images * self.copies} vectors of {self.period} values do not fit "
                f"{self.slots} slots. Take a larger degree.",
                code="layout-too-small",
                operation="slots",
                received=self.slots,
            )

    @classmethod
    def fit_layout(cls, slots: int, length: int, batch: int, most_copies: int) -> SlotLayout:
        """Fit vectors of a length: as many of the batch as possible, then copies.

        Args:
            slots: number of slots of a ciphertext.
            length: values in a vector.
            batch: number of vectors.
            most_copies: limit of the copies.

        Raises:
            UsageError: not even one vector fits.
        """
        period = power_of_two(length)
        room = slots // period
        images = max(1, min(power_of_two(batch), room))
        return cls(slots, period, images, max(1, min(room // images, most_copies)))

    @property
    def stride(self) -> int:
        """Slots from one position to the next."""
        return self.images * self.copies

    @property
    def repeats(self) -> int:
        """Number of repetitions of all vectors."""
        return self.slots // (self.period * self.stride)

    def pack_vectors(self, vectors: Values, shift: int = 0) -> Values:
        """Arrange vectors [k, n] in slots, k up to `images`; copy c is rotated by c * shift.

        Raises:
            UsageError: the vectors do not fit.
        """
        k, n = vectors.shape
        if k > self.images or n > self.period:
            raise UsageError(
                f"{self} does not hold {k} vectors of {n} values. Split the vectors.",
                code="layout-too-small",
                operation="vectors",
                received=(k, n),
            )
        padded = np.zeros((self.images, self.period))
        padded[:k, :n] = vectors
        copied = np.stack([np.roll(padded, -c * shift, axis=1) for c in range(self.copies)])
        # [copy, image, position] to [position, copy, image]
        return np.tile(copied.transpose(2, 0, 1).reshape(-1), self.repeats)

    def unpack_slots(self, slots: Values, count: int, rows: int) -> Values:
        """Return the first values [count, rows] of the first copies."""
        first = slots[: self.period * self.stride]
        return first.reshape(self.period, self.copies, self.images)[:rows, 0, :count].T.copy()


@dataclass(frozen=True)
class DiagonalProduct:
    """Public plan of the product with a matrix, without the matrix itself.

    Args:
        m, n: the matrix is [m, n].
        layout: layout of the input.

    Raises:
        UsageError: the matrix does not fit the layout.
    """

    m: int
    n: int
    layout: SlotLayout

    def __post_init__(self) -> None:
        period, copies = self.layout.period, self.layout.copies
        if not (1 <= self.m <= period and 1 <= self.n <= period and copies <= self.rows):
            raise UsageError(
                f"A matrix [{self.m}, {self.n}] does not fit vectors of {period} values in "
                f"{copies} copies. Take a larger degree or fewer copies.",
                code="layout-too-small",
                operation="matrix",
                received=(self.m, self.n),
            )

    @property
    def rows(self) -> int:
        """Number of diagonals: m rounded up to a power of two."""
        return power_of_two(self.m)

    @property
    def shift(self) -> int:
        """Diagonals of each copy; also the rotation between consecutive copies."""
        return self.rows // self.layout.copies

    @property
    def baby(self) -> int:
        """B: the diagonals that share a giant step."""
        return 1 << ((self.shift.bit_length()) // 2)

    @property
    def giant(self) -> int:
        """G: the number of giant steps and one."""
        return self.shift // self.baby

    @property
    def folds(self) -> tuple[int, ...]:
        """Rotations that sum the parts of one row, and then the copies."""
        steps, layout = [], self.layout
        step = layout.period // 2
        while step >= self.rows:
            steps.append(step * layout.stride)
            step //= 2
        copies = layout.copies // 2
        while copies:
            steps.append(copies * layout.images)
            copies //= 2
        return tuple(steps)

    @property
    def steps(self) -> tuple[int, ...]:
        """All rotations that require keys."""
        stride = self.layout.stride
        babies = (stride,) if self.baby > 1 else ()
        giants = (self.baby * stride,) if self.giant > 1 else ()
        return tuple(dict.fromkeys((*babies, *giants, *self.folds)))

    @property
    def rotations(self) -> int:
        """Number of baby and giant steps; folds are counted separately."""
        return self.baby - 1 + self.giant - 1

    def list_diagonals(self, weights: npt.ArrayLike) -> Iterator[Values]:
        """Yield the slots of the diagonals in the order of `multiply_diagonals`.

        Args:
            weights: [m, n].

        Raises:
            UsageError: the matrix has another shape.
            RangeError: a value is NaN or infinite.
        """
        matrix = check_finite(weights, "A matrix")
        if matrix.shape != (self.m, self.n):
            raise UsageError(
                f"The matrix is [{self.m}, {self.n}]. Received: {list(matrix.shape)}.",
                code="shape-mismatch",
                operation="matrix",
                received=list(matrix.shape),
            )
        period, rows, copies = self.layout.period, self.rows, self.layout.copies
        padded = np.zeros((rows, period))
        padded[: self.m, : self.n] = matrix
        q = np.arange(period)[:, None, None]
        c = np.arange(copies)[None, :, None]
        filled = np.zeros((1, 1, self.layout.images), np.intp)
        repeats = self.layout.repeats
        for g in reversed(range(self.giant)):
            for b in range(self.baby):
                row = (q - g * self.baby) % rows
                column = (q + c * self.shift + b) % period
                yield np.tile(padded[row + filled, column + filled].reshape(-1), repeats)

    def bound_result(self, weights: npt.ArrayLike) -> float:
        """Bound the magnitude of the result's slots, for inputs of magnitude 1.

        The bound is the largest sum of a row's absolute weights; slots between copies mix two rows.
        """
        each = np.abs(np.asarray(weights, np.float64)).sum(axis=1)
        return float(each.max(initial=0.0)) * (1 if self.layout.copies == 1 else 2)

    def multiply_diagonals(
        self, server: Server, x: Encrypted, diagonals: Iterator[Any], bound: float
    ) -> Encrypted:
        """Compute the product before the folds, not rescaled.

        Args:
            server: the server.
            x: the encrypted vectors.
            diagonals: encoded plaintexts of `list_diagonals`; None stands for zeros.
            bound: largest magnitude of the result.

        Raises:
            UsageError: all diagonals are zero, or the plaintexts end early.
        """
        stride = self.layout.stride
        turned = [x]
        while len(turned) < self.baby:
            turned.append(server.rotate(turned[-1], stride))
        total: Encrypted | None = None
        for _ in range(self.giant):
            if total is not None:
                total = server.rotate(total, self.baby * stride)
            total = server.inner_product(
                turned, take_layer_plaintexts(diagonals, self.baby), bound, total
            )
        if total is None:
            raise UsageError(
                "Expected a weight that is not 0. Received: zeros alone, whose product is known.",
                code="product-of-zeros",
                operation="matrix",
            )
        return total

    def fold_rows(self, server: Server, x: Encrypted, bound: float) -> Encrypted:
        """Sum the parts of each row; the rows of the product repeat over the slots.

        Args:
            server: the server.
            x: the rescaled result of `multiply_diagonals`.
            bound: largest magnitude of the result.
        """
        for step in self.folds:
            x = server.add(x, server.rotate(x, step), bound)
        return x


def take_layer_plaintexts(plaintexts: Iterator[Any], count: int) -> Iterator[Any]:
    """Yield the next `count` plaintexts of a layer.

    Raises:
        UsageError: the plaintexts end early.
    """
    for _ in range(count):
        try:
            yield next(plaintexts)
        except StopIteration:
            raise UsageError(
                "The plaintexts end early: a layer is not whole. Encode the weights again.",
                code="too-few-plaintexts",
            ) from None


def encode_plaintexts(
    setting: Setting, plaintexts: Iterable[Values], scale: float, level: int
) -> Iterator[Any]:
    """Encode plaintexts for the server; None for values that are zero at that scale."""
    for values in plaintexts:
        yield encode_slot_plaintext(setting, values, scale, level)


def encode_slot_plaintext(setting: Setting, values: Values, scale: float, level: int) -> Any:
    """Encode a plaintext; None if it is zero at that scale, as the library rejects zero factors."""
    plain = setting.encode_values(values, scale, level)
    return None if plain.is_zero() else plain


class Dense:
    """A dense layer y = W x on a batch of encrypted vectors; the weights are public to the server.

    Args:
        setting: library with parameters of two levels or more.
        weights: [m, n].
        batch: expected number of vectors at a time.

    Raises:
        UsageError: the weights have a wrong shape or are too large, or the levels are too few.
        RangeError: a weight is NaN or infinite.
    """

    def __init__(self, setting: Setting, weights: npt.ArrayLike, batch: int = 1) -> None:
        matrix = check_finite(weights, "A matrix")
        if matrix.ndim != 2 or 0 in matrix.shape:
            raise UsageError(
                f"A matrix is [m, n]. Received: {list(matrix.shape)}.",
                code="rank-mismatch",
                operation="matrix",
                received=list(matrix.shape),
            )
        m, n = matrix.shape
        slots, level = setting.parameters.slots, setting.parameters.levels
        layout = SlotLayout.fit_layout(slots, max(m, n), batch, power_of_two(m))
        self.setting = setting
        self.product = DiagonalProduct(m, n, layout)
        self._bound = self.product.bound_result(matrix)
        if level < 2:
            raise UsageError(
                "A dense layer takes two levels. Received: one. Take more primes.",
                code="too-few-levels",
                operation="dense",
                received=level,
            )
        due = setting.parameters.degree * 8 * level * self.product.shift
        if due > _MOST_BYTES:
            raise UsageError(
                f"The encoded matrix [{m}, {n}] would have {due / 1e9:.1f} GB, and "
                f"{_MOST_BYTES / 1e9:.1f} GB is the most. Split it, or take fewer primes.",
                code="too-large",
                operation="matrix",
                received=due,
                expected=f"up to {_MOST_BYTES}",
            )
        # the result has the scale of the input
        self._plaintexts = list(
            encode_plaintexts(
                setting, self.product.list_diagonals(matrix), setting.prime_at(level), level
            )
        )

    def pack(self, vectors: Values) -> list[Values]:
        """Arrange vectors [k, n] in the slots of each ciphertext."""
        images = self.product.layout.images
        return [
            self.product.layout.pack_vectors(vectors[i : i + images], self.product.shift)
            for i in range(0, len(vectors), images)
        ]

    def unpack(self, results: Sequence[Values], count: int) -> Values:
        """Extract the results [count, m] from the slots of each ciphertext."""
        each, layout = self.product.layout.images, self.product.layout
        parts = [layout.unpack_slots(slots, each, self.product.m) for slots in results]
        return np.concatenate(parts)[:count]

    def run(self, server: Server, x: Encrypted) -> Encrypted:
        """Compute W x for the vectors of one ciphertext."""
        server.accept_ciphertext(x)
        bound = self._bound * x.bound
        product = self.product.multiply_diagonals(server, x, iter(self._plaintexts), bound)
        return self.product.fold_rows(server, server.rescale(product), bound)

    @property
    def plaintext_bytes(self) -> int:
        """Bytes of the encoded weights in memory: 8 for each coefficient and prime."""
        parameters = self.setting.parameters
        return parameters.degree * 8 * parameters.levels * len(self._plaintexts)

"""A matrix times an encrypted vector, by diagonals in baby steps and giant steps.

Halevi and Shoup (CRYPTO 2014) multiply by diagonals: W x = sum over d of diag_d * rot_d(x), the
diagonals extended as in Juvekar, Vaikuntanathan and Chandrakasan (USENIX Security 2018, section 4)
so that a matrix of few rows has as few of them; what is left is folded.  d = g B + b takes B - 1
baby steps and, by Horner's rule, G - 1 giant steps, all of them rotations by one of two amounts:
so two keys and one for every fold are all that the server needs.

Slots that one vector leaves free hold other vectors of the batch, or copies of this one that are
rotated already by parts of the diagonals, which divides the work by their number.
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

_MOST_BYTES: Final = 2**31  # of encoded weights


def power_of_two(least: int) -> int:
    """The smallest power of two from `least`."""
    return 1 << (least - 1).bit_length()


@dataclass(frozen=True)
class Layout:
    """Where vectors lie in a ciphertext: slot (position * copies + copy) * images + image.

    Positions go on from the start where slots are left, so that rotations are cyclic in `period`.

    Args:
        slots: of a ciphertext.
        period: positions of a vector, a power of two.
        images: vectors side by side, a power of two.
        copies: of each, a power of two, the c-th rotated by c parts of the diagonals.

    Raises:
        UsageError: they do not fit the slots, or are no powers of two.
    """

    slots: int
    period: int
    images: int
    copies: int = 1

    def __post_init__(self) -> None:
        for n in (self.slots, self.period, self.images, self.copies):
            if n < 1 or n & (n - 1):
                raise UsageError(f"A layout consists of powers of two. Received: {self}.")
        if self.repeats < 1:
            raise UsageError(
                f"{self.images * self.copies} vectors of {self.period} values do not fit "
                f"{self.slots} slots. Take a larger degree."
            )

    @classmethod
    def fit_layout(cls, slots: int, length: int, batch: int, most_copies: int) -> Layout:
        """For vectors of a length: as many of the batch as fit, then copies in what is left.

        Raises:
            UsageError: not one vector fits.
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
        """How often everything is there."""
        return self.slots // (self.period * self.stride)

    def pack_vectors(self, vectors: Values, shift: int = 0) -> Values:
        """The slots of vectors [k, n], k up to `images`; copy c is rotated by c * shift."""
        k, n = vectors.shape
        if k > self.images or n > self.period:
            raise UsageError(f"{self} does not hold {k} vectors of {n} values.")
        padded = np.zeros((self.images, self.period))
        padded[:k, :n] = vectors
        copied = np.stack([np.roll(padded, -c * shift, axis=1) for c in range(self.copies)])
        # [copy, image, position] to [position, copy, image]
        return np.tile(copied.transpose(2, 0, 1).reshape(-1), self.repeats)

    def unpack_slots(self, slots: Values, count: int, rows: int) -> Values:
        """The first values [count, rows] of the first copies."""
        first = slots[: self.period * self.stride]
        return first.reshape(self.period, self.copies, self.images)[:rows, 0, :count].T.copy()


@dataclass(frozen=True)
class Product:
    """How the product with a matrix is computed: public, without the matrix itself.

    Args:
        m, n: the matrix is [m, n].
        layout: of its input.

    Raises:
        UsageError: the matrix does not fit the layout.
    """

    m: int
    n: int
    layout: Layout

    def __post_init__(self) -> None:
        period, copies = self.layout.period, self.layout.copies
        if not (1 <= self.m <= period and 1 <= self.n <= period and copies <= self.rows):
            raise UsageError(
                f"A matrix [{self.m}, {self.n}] does not fit vectors of {period} values in "
                f"{copies} copies."
            )

    @property
    def rows(self) -> int:
        """m as a power of two: so many diagonals."""
        return power_of_two(self.m)

    @property
    def shift(self) -> int:
        """Diagonals of each copy, and how far copies are rotated against each other."""
        return self.rows // self.layout.copies

    @property
    def baby(self) -> int:
        """B, diagonals that share a giant step."""
        return 1 << ((self.shift.bit_length()) // 2)

    @property
    def giant(self) -> int:
        """G."""
        return self.shift // self.baby

    @property
    def folds(self) -> tuple[int, ...]:
        """Rotations that sum what belongs to one row, and then the copies."""
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
        """All rotations that there must be keys for."""
        stride = self.layout.stride
        babies = (stride,) if self.baby > 1 else ()
        giants = (self.baby * stride,) if self.giant > 1 else ()
        return tuple(dict.fromkeys((*babies, *giants, *self.folds)))

    @property
    def rotations(self) -> int:
        """Of baby and giant steps; folds are counted apart."""
        return self.baby - 1 + self.giant - 1

    def list_diagonals(self, weights: npt.ArrayLike) -> Iterator[Values]:
        """The slots of the diagonals, in the order in which `multiply` takes them.

        Args:
            weights: [m, n].

        Raises:
            UsageError, RangeError: another shape; NaN or infinite values.
        """
        matrix = check_finite(weights, "A matrix")
        if matrix.shape != (self.m, self.n):
            raise UsageError(f"The matrix is [{self.m}, {self.n}]. Received: {list(matrix.shape)}.")
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
        """What a slot of the result is at most, for inputs of magnitude 1.

        A row's weights sum to it; slots between the copies mix two rows.
        """
        each = np.abs(np.asarray(weights, np.float64)).sum(axis=1)
        return float(each.max(initial=0.0)) * (1 if self.layout.copies == 1 else 2)

    def multiply_diagonals(
        self, server: Server, x: Encrypted, diagonals: Iterator[Any], bound: float
    ) -> Encrypted:
        """The product before the folds, not rescaled.

        Args:
            diagonals: encoded plaintexts, of those of `plaintexts`; None for one of zeros.
            bound: of the result.
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
                turned, take_plaintexts(diagonals, self.baby), bound, total
            )
        if total is None:
            raise UsageError("A product with zeros alone hides nothing: the result is known.")
        return total

    def fold_rows(self, server: Server, x: Encrypted, bound: float) -> Encrypted:
        """The sums of what belongs to one row: the rows of the product, over and over.

        Args:
            bound: of the result.
        """
        for step in self.folds:
            x = server.add(x, server.rotate(x, step), bound)
        return x


def take_plaintexts(plaintexts: Iterator[Any], count: int) -> Iterator[Any]:
    """The next so many of a layer's plaintexts.

    Raises:
        UsageError: there are fewer.
    """
    for _ in range(count):
        try:
            yield next(plaintexts)
        except StopIteration:
            raise UsageError("The plaintexts end early: a layer is not whole.") from None


def encode_plaintexts(
    setting: Setting, plaintexts: Iterable[Values], scale: float, level: int
) -> Iterator[Any]:
    """Plaintexts as the server takes them; None for what is zero at that scale."""
    for values in plaintexts:
        yield encode_values(setting, values, scale, level)


def encode_values(setting: Setting, values: Values, scale: float, level: int) -> Any:
    """A plaintext; None where it is zero at that scale, which the library would not multiply by."""
    plain = setting.encode_values(values, scale, level)
    return None if plain.is_zero() else plain


class Dense:
    """A dense layer y = W x on a batch of encrypted vectors, weights known to the server.

    Args:
        setting: whose parameters have two levels or more.
        weights: [m, n].
        batch: vectors that are expected at a time.

    Raises:
        UsageError, RangeError: weights that do not fit.
    """

    def __init__(self, setting: Setting, weights: npt.ArrayLike, batch: int = 1) -> None:
        matrix = check_finite(weights, "A matrix")
        if matrix.ndim != 2 or 0 in matrix.shape:
            raise UsageError(f"A matrix is [m, n]. Received: {list(matrix.shape)}.")
        m, n = matrix.shape
        slots, level = setting.parameters.slots, setting.parameters.levels
        layout = Layout.fit_layout(slots, max(m, n), batch, power_of_two(m))
        self.setting = setting
        self.product = Product(m, n, layout)
        self._bound = self.product.bound_result(matrix)
        if level < 2:
            raise UsageError("A dense layer takes two levels. Received: one.")
        due = setting.parameters.degree * 8 * level * self.product.shift
        if due > _MOST_BYTES:
            raise UsageError(
                f"The encoded matrix [{m}, {n}] would have {due / 1e9:.1f} GB, and "
                f"{_MOST_BYTES / 1e9:.1f} GB is the most. Split it, or take fewer primes."
            )
        # the result has the scale of the input
        self._plaintexts = list(
            encode_plaintexts(
                setting, self.product.list_diagonals(matrix), setting.prime_at(level), level
            )
        )

    def pack_vectors(self, vectors: Values) -> list[Values]:
        """The slots of each ciphertext for vectors [k, n]."""
        each = self.product.layout.images
        return [
            self.product.layout.pack_vectors(vectors[i : i + each], self.product.shift)
            for i in range(0, len(vectors), each)
        ]

    def unpack_results(self, results: Sequence[Values], count: int) -> Values:
        """The results [count, m] from the slots of each ciphertext."""
        each, layout = self.product.layout.images, self.product.layout
        parts = [layout.unpack_slots(slots, each, self.product.m) for slots in results]
        return np.concatenate(parts)[:count]

    def run_layer(self, server: Server, x: Encrypted) -> Encrypted:
        """W x for the vectors of one ciphertext."""
        server.accept_ciphertext(x)
        bound = self._bound * x.bound
        product = self.product.multiply_diagonals(server, x, iter(self._plaintexts), bound)
        return self.product.fold_rows(server, server.rescale(product), bound)

    @property
    def plaintext_bytes(self) -> int:
        """Of the encoded weights in memory, 8 a coefficient and prime."""
        parameters = self.setting.parameters
        return parameters.degree * 8 * parameters.levels * len(self._plaintexts)

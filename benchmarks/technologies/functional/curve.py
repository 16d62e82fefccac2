"""The group ristretto255 (RFC 9496) and its products, computed by the compiled library.

Arrays of unsigned bytes are encodings (32 bytes each) and may be sent.  Arrays of 64-bit words are
the library's internal forms of checked elements and are not sent.  This module checks type and
shape of every array, as the library does not.  The library does not use TensorFlow and releases
Python's lock: functions with an argument `threads` split their work among that many threads.

Operations on secret numbers (`random_scalars`, `multiply_base`, `encrypt_messages`,
`scalar_inner_products`) take constant time; all values of decryption are public.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tfe_bench.benchmarks.technologies.functional.curve_library import (
    count_point_words,
    curve_array_address,
    load_curve_library,
)
from tfe_bench.errors import DataError, RangeError, UsageError, check_range

Bytes = npt.NDArray[np.uint8]
Words = npt.NDArray[np.uint64]
Numbers = npt.NDArray[np.int64]

ELEMENT: Final = 32
"""Bytes of an encoded element, and of a number modulo the group's order."""
ORDER: Final = 2**252 + 27742317777372353535851937790883648493
LEAST_LOG2, MOST_LOG2 = 4, 28
"""Limits of a table's baby steps, as powers of two: up to 4.3 GB."""
MOST_BOUND: Final = 1 << 48
MOST_GIANT_STEPS: Final = 1 << 24
"""Most pairs of steps in one search: about two seconds for one target."""
MOST_INPUT_BITS: Final = 31

# Unpacking fewer elements takes less time than starting another thread.
_SHARED: Final = 2048


def run_parts_in_threads(count: int, threads: int, work: Callable[[int, int], object]) -> None:
    """Run work(begin, end) on parts of range(count), each in its own thread."""
    check_range("threads", threads, 1, 1024)
    parts = max(1, min(threads, count))
    edges = [count * i // parts for i in range(parts + 1)]
    if parts == 1:
        work(0, count)
        return
    with ThreadPoolExecutor(parts) as pool:
        list(pool.map(work, edges[:-1], edges[1:]))


@dataclass(frozen=True, eq=False, repr=False)
class Rows:
    """A sparse matrix of public numbers, row after row.

    Attributes:
        start: int64 [rows + 1], the position of each row's first entry in `index` and `value`.
        index: int32 [entries], the column of each entry.
        value: int64 [entries], below 2^31 in size.
        columns: number of columns.

    Raises:
        UsageError: the arrays do not fit each other.
        RangeError: a value is too large.
    """

    start: Numbers
    index: npt.NDArray[np.int32]
    value: Numbers
    columns: int

    def __post_init__(self) -> None:
        curve_array_address("start", self.start, np.int64, None)
        entries = len(self.index) if isinstance(self.index, np.ndarray) else 0
        curve_array_address("index", self.index, np.int32, entries)
        curve_array_address("value", self.value, np.int64, entries)
        if not (
            len(self.start) > 0
            and self.start[0] == 0
            and self.start[-1] == entries
            and (np.diff(self.start) >= 0).all()
        ):
            raise UsageError(
                f"Rows start at 0, in order, up to {entries}. Received: other ones.",
                code="invalid-rows",
            )
        if entries and not (self.index.min() >= 0 and self.index.max() < self.columns):
            raise UsageError(
                f"Columns are 0 to {self.columns - 1}. Received: one beyond.",
                code="index-out-of-range",
                operation="columns",
            )
        if entries and np.abs(self.value.astype(np.float64)).max() >= 2.0**MOST_INPUT_BITS:
            raise RangeError(
                f"Values of rows are below 2^{MOST_INPUT_BITS} in size. Received: a larger one.",
                code="number-out-of-range",
                operation="values of rows",
            )

    def __len__(self) -> int:
        return len(self.start) - 1

    def __repr__(self) -> str:
        return f"Rows({len(self)} x {self.columns}, {len(self.index)} entries)"

    @classmethod
    def from_dense(cls, dense: Numbers) -> Rows:
        """Convert a matrix int64 [rows, columns]; zeros take no time in products."""
        curve_array_address("a matrix", dense, np.int64, None, None)
        row, column = np.nonzero(dense)
        start = np.searchsorted(row, np.arange(len(dense) + 1)).astype(np.int64)
        return cls(start, column.astype(np.int32), dense[row, column], dense.shape[1])

    def to_dense(self) -> Numbers:
        """Return the matrix, int64 [rows, columns]."""
        out = np.zeros((len(self), self.columns), np.int64)
        np.add.at(
            out, (np.repeat(np.arange(len(self)), np.diff(self.start)), self.index), self.value
        )
        return out

    def to_addresses(self) -> tuple[Any, Any, Any]:
        """Return the addresses of the three arrays for the library."""
        return self.start.ctypes.data, self.index.ctypes.data, self.value.ctypes.data


def random_scalars(count: int) -> Bytes:
    """Draw secret numbers modulo ORDER from the operating system: uint8 [count, 32]."""
    wide = np.frombuffer(secrets.token_bytes(64 * count), np.uint8).reshape(count, 64)
    return reduce_scalars(wide)


def reduce_scalars(wide: Bytes) -> Bytes:
    """Reduce uint8 [n, 64], little endian, modulo ORDER: uint8 [n, 32]."""
    address = curve_array_address("wide", wide, np.uint8, None, 64)
    out = np.empty((len(wide), ELEMENT), np.uint8)
    load_curve_library().tfe_curve_reduce(address, len(wide), out.ctypes.data)
    return out


def multiply_add(a: Bytes, b: Bytes, c: Bytes) -> Bytes:
    """Compute a b + c modulo ORDER, element by element: uint8 [n, 32]."""
    n = len(a)
    operands = [
        curve_array_address(name, x, np.uint8, n, ELEMENT)
        for name, x in zip("abc", (a, b, c), strict=True)
    ]
    out = np.empty_like(a)
    load_curve_library().tfe_curve_muladd(*operands, n, out.ctypes.data)
    return out


def are_reduced(scalars: Bytes) -> bool:
    """Return True if all scalars uint8 [n, 32] are below ORDER."""
    address = curve_array_address("scalars", scalars, np.uint8, None, ELEMENT)
    return bool(load_curve_library().tfe_curve_reduced(address, len(scalars)))


def scalar_inner_products(secret: Bytes, rows: Rows) -> Bytes:
    """Compute the inner product of secret numbers with each row modulo ORDER: uint8 [rows, 32]."""
    address = curve_array_address("secret", secret, np.uint8, rows.columns, ELEMENT)
    if not are_reduced(secret):
        raise UsageError(
            f"Secret numbers are below {ORDER}. Received: a larger one.",
            code="scalar-not-reduced",
        )
    out = np.empty((len(rows), ELEMENT), np.uint8)
    load_curve_library().tfe_curve_inner_products(
        address, *rows.to_addresses(), len(rows), out.ctypes.data
    )
    return out


def multiply_base(scalars: Bytes) -> Bytes:
    """Encode secret multiples of the base point: uint8 [n, 32]."""
    address = curve_array_address("scalars", scalars, np.uint8, None, ELEMENT)
    out = np.empty_like(scalars)
    load_curve_library().tfe_curve_multiply_base(address, len(scalars), out.ctypes.data)
    return out


def encode_edwards(scalar: Bytes) -> bytes:
    """Encode a multiple of the base point as in RFC 8032."""
    address = curve_array_address("scalar", scalar, np.uint8, ELEMENT)
    out = np.empty(ELEMENT, np.uint8)
    load_curve_library().tfe_curve_edwards(address, out.ctypes.data)
    return out.tobytes()


def _refuse_malformed(subject: str, at: int) -> None:
    if at >= 0:
        raise DataError(
            f"{subject} holds bytes that encode no element of ristretto255 (RFC 9496): not "
            f"canonical, or no such point. Received: element {at} (counted from 0). It is "
            "damaged or forged: get it again.",
            code="invalid-group-element",
            operation=subject,
            received=f"element {at}",
        )


def build_combs(encoded: Bytes, subject: str = "A public key", threads: int = 1) -> Words:
    """Build tables to multiply elements by secret numbers: uint64 [n, words], 8,192 bytes each.

    Args:
        encoded: uint8 [n, 32].
        subject: name of the object that holds the elements, for errors.
        threads: threads at work.

    Raises:
        DataError: `subject` holds bytes that encode no element.
    """
    return _check_elements("combs", encoded, count_point_words("comb"), subject, threads)


def _check_elements(name: str, encoded: Bytes, words: int, subject: str, threads: int) -> Words:
    """Apply a function of the library to each element; the function checks the element."""
    curve_array_address("encoded", encoded, np.uint8, None, ELEMENT)
    out = np.empty((len(encoded), words), np.uint64)
    function, wrong = getattr(load_curve_library(), f"tfe_curve_{name}"), list[int]()

    def part(begin: int, end: int) -> None:
        chunk, out_chunk = encoded[begin:end], out[begin:end]
        at = function(chunk.ctypes.data, len(chunk), out_chunk.ctypes.data)
        if at >= 0:
            wrong.append(begin + int(at))

    run_parts_in_threads(len(encoded), threads, part)
    _refuse_malformed(subject, min(wrong, default=-1))
    return out


def encrypt_messages(
    table: Words, half_scalars: Bytes, m: Numbers, bits: int, threads: int = 1
) -> Bytes:
    """Encode 2 half_scalars[b] points[i] + m[b, i] base: uint8 [batch, n, 32].

    Args:
        table: result of `build_combs` for n points.
        half_scalars: secret, uint8 [batch, 32].
        m: secret, int64 [batch, n], each below 2^bits in size.
        bits: public, 1 to 31.
        threads: threads at work.

    Raises:
        UsageError: an array has an unsuitable type or shape.
        RangeError: an input has more bits.
    """
    n, batch = len(table), len(half_scalars)
    check_range("bits", bits, 1, MOST_INPUT_BITS)
    combs_at = curve_array_address("table", table, np.uint64, None, count_point_words("comb"))
    scalars_at = curve_array_address("half_scalars", half_scalars, np.uint8, None, ELEMENT)
    m_at = curve_array_address("m", m, np.int64, batch, n)
    if m.size and max(int(m.max()), -int(m.min())) >> bits:
        raise RangeError(
            f"Inputs are below 2^{bits} in size. Received: a larger one.",
            code="number-out-of-range",
            operation="inputs",
            expected=f"below 2^{bits}",
        )
    out = np.empty((batch, n, ELEMENT), np.uint8)
    windows = bits // 4 + 1

    def part(begin: int, end: int) -> None:
        load_curve_library().tfe_curve_encrypt(
            combs_at, begin, end, n, scalars_at, m_at, windows, batch, out.ctypes.data
        )

    run_parts_in_threads(n, threads, part)
    return out


def decode_curve_elements(encoded: Bytes, subject: str = "A ciphertext", threads: int = 1) -> Words:
    """Check and unpack elements: uint64 [n, words], 128 bytes each.

    Args:
        encoded: uint8 [n, 32].
        subject: name of the object that holds the elements, for errors.
        threads: threads at work.

    Raises:
        DataError: `subject` holds bytes that encode no element.
    """
    several = threads if len(encoded) >= _SHARED else 1
    return _check_elements("decode", encoded, count_point_words("affine"), subject, several)


def evaluate_key_rows(points: Words, keys: Bytes, rows: Rows, threads: int = 1) -> Words:
    """Sum a row's values times points, minus keys times the first points: uint64 [rows, words].

    Args:
        points: result of `decode_curve_elements`: first one for each head, then one for each
        column.
        keys: uint8 [heads, rows, 32].
        rows: rows over the columns.
        threads: threads at work.

    Raises:
        DataError: a number of a key is not below the group's order.
    """
    heads = keys.shape[0] if isinstance(keys, np.ndarray) and keys.ndim == 3 else 0
    points_at = curve_array_address(
        "points", points, np.uint64, heads + rows.columns, count_point_words("affine")
    )
    keys_at = curve_array_address("keys", keys, np.uint8, heads, len(rows), ELEMENT)
    if not are_reduced(keys.reshape(-1, ELEMENT)):
        raise DataError(
            "Numbers of a key are below the group's order. Received: a larger one.",
            code="scalar-not-reduced",
        )
    out = np.empty((len(rows), count_point_words("point")), np.uint64)

    def part(begin: int, end: int) -> None:
        load_curve_library().tfe_curve_evaluate(
            *(points_at, heads, rows.columns, *rows.to_addresses()),
            *(keys_at, len(rows), begin, end, out.ctypes.data),
        )

    run_parts_in_threads(len(rows), threads, part)
    return out


def encode_curve_elements(points: Words) -> Bytes:
    """Encode the results of `evaluate_key_rows`: uint8 [n, 32]."""
    address = curve_array_address("points", points, np.uint64, None, count_point_words("point"))
    out = np.empty((len(points), ELEMENT), np.uint8)
    load_curve_library().tfe_curve_encode(address, len(points), out.ctypes.data)
    return out


def walk_logarithm(point: Words, bound: int) -> int:
    """Find the logarithm of one point, uint64 [words], by walking; a table is compared with it.

    Raises:
        RangeError: the point has no logarithm within the bound.
    """
    check_range("The bound of a walk", bound, 0, 1 << 32)
    address, out = (
        curve_array_address("point", point, np.uint64, count_point_words("point")),
        np.zeros(1, np.int64),
    )
    if not load_curve_library().tfe_curve_walk(address, bound, out.ctypes.data):
        raise RangeError(
            f"A walk from {-bound:,} to {bound:,} has not found the result. Declare a larger "
            "bound.",
            code="logarithm-not-found",
            operation="walk",
            expected=f"{-bound} to {bound}",
        )
    return int(out[0])


class Table:
    """Baby steps for discrete logarithms: one table for all outputs.

    Args:
        log2: base-2 logarithm of the number of steps, 4 to 28; a step takes 16 bytes.

    Raises:
        UsageError: log2 is outside these limits, or the table does not fit the free memory.
    """

    def __init__(self, log2: int) -> None:
        check_range("--table-bits", log2, LEAST_LOG2, MOST_LOG2)
        self.log2 = log2
        need = 16 << log2
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        if need > free:
            raise UsageError(
                f"A table of 2^{log2} steps takes {need:,} bytes. Received: {free:,} that are "
                "free. Take a smaller table.",
                code="out-of-memory",
                operation="--table-bits",
                received=free,
                expected=need,
            )
        self._places = np.zeros(int(load_curve_library().tfe_curve_places(log2)), np.uint64)
        load_curve_library().tfe_curve_fill_table(self._places.ctypes.data, log2)

    @property
    def nbytes(self) -> int:
        """Bytes of the table in memory."""
        return int(self._places.nbytes)

    def check_bound(self, bound: int) -> None:
        """Reject a bound that is negative or would take a search of hours.

        Raises:
            UsageError: the bound is not from 0 to the table's largest bound.
        """
        check_range("The bound of a logarithm", bound, 0, MOST_BOUND)
        largest = min(MOST_BOUND, MOST_GIANT_STEPS << (self.log2 + 1))
        if bound > largest:
            raise UsageError(
                f"A table of 2^{self.log2} steps finds logarithms up to {largest:,}. Received: "
                f"{bound:,}. Take a larger table.",
                code="too-large",
                operation="bound",
                received=bound,
                expected=f"up to {largest}",
            )

    def find_logarithms(self, points: Words, bound: int, threads: int = 1) -> Numbers:
        """Find the logarithms of points, each from -bound to bound: int64 [n].

        Each logarithm found is multiplied out and compared with the point: no value is wrong.

        Raises:
            RangeError: a point has no logarithm within the bound.
            UsageError: the bound is negative or too large for this table.
        """
        self.check_bound(bound)
        points_at = curve_array_address(
            "points", points, np.uint64, None, count_point_words("point")
        )
        out, is_found = np.zeros(len(points), np.int64), np.zeros(len(points), np.uint8)

        def part(begin: int, end: int) -> None:
            load_curve_library().tfe_curve_find(
                *(self._places.ctypes.data, self.log2, points_at + begin * points.strides[0]),
                *(end - begin, bound, out[begin:].ctypes.data, is_found[begin:].ctypes.data),
            )

        run_parts_in_threads(len(points), threads, part)
        if missing := int((is_found == 0).sum()):
            at = int(np.argmin(is_found))
            raise RangeError(
                f"No result from {-bound:,} to {bound:,} fits {missing} of {len(points)} outputs, "
                f"the first at {at} (counted from 0): an input or weight is larger than declared, "
                "or key and ciphertext do not belong together. Declare a larger bound.",
                code="logarithm-not-found",
                received=f"output {at}",
                expected=f"{-bound} to {bound}",
            )
        return out

"""Words of bits: XOR shares, and conversions from and to numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from tfe_bench.errors import UsageError
from tfe_bench.tf_encrypted.protocol.aby3.arithmetic import Arithmetic, is_private, tfb
from tfe_bench.tf_encrypted.protocol.aby3.definitions import to_numpy
from tfe_bench.tf_encrypted.protocol.aby3.tensors import (
    ABY3PrivateTensor,
    ABY3PublicTensor,
    ShareType,
    unpack_words,
)
from tfe_bench.tf_encrypted.tensor import Factory, factories, int1factory


class Bits(Arithmetic):
    """Operations on bits."""

    def _require_boolean(self, x: Any) -> ABY3PrivateTensor:
        if not isinstance(x, ABY3PrivateTensor) or not x.is_boolean():
            raise UsageError(
                f"Expected Boolean shares. Received: {x!r}. Use a2b.", code="wrong-share-type"
            )
        return x

    def _get_bits(self, x: Any, like: ABY3PrivateTensor) -> Any:
        """Return bits of another operand in the ring of `like`; the operand may be public."""
        if isinstance(x, ABY3PrivateTensor):
            tensor = self._require_boolean(x)
            if tensor.backing_dtype != like.backing_dtype:
                raise UsageError(
                    f"Expected words of one width. Received: {x!r} and {like!r}.",
                    code="width-mismatch",
                )
            return tensor.array
        value = to_numpy(x)
        if not like.is_word:
            return value != 0
        scaled = x.is_scaled if isinstance(x, ABY3PublicTensor) else False
        words = self._encode_words(value, scaled)
        return unpack_words(words, like.backing_dtype.nbits)

    def _apply_logical(self, name: str, public: Any, x: Any, y: Any) -> Any:
        if not is_private(x, y):
            scaled = isinstance(x, ABY3PublicTensor) and x.is_scaled
            a, b = (self._encode_words(to_numpy(v), scaled) for v in (x, y))
            return self._wrap_public(
                public(a, b) / (2.0**self._fractional_bits if scaled else 1), scaled
            )
        like = self._require_boolean(x if isinstance(x, ABY3PrivateTensor) else y)
        return like.like(getattr(tfb, name)(self._get_bits(x, like), self._get_bits(y, like)))

    def xor(self, x: Any, y: Any) -> Any:
        """Return x XOR y of every bit."""
        return self._apply_logical("logical_xor", np.bitwise_xor, x, y)

    def and_(self, x: Any, y: Any) -> Any:
        """Return x AND y of every bit."""
        return self._apply_logical("logical_and", np.bitwise_and, x, y)

    def or_(self, x: Any, y: Any) -> Any:
        """Return x OR y of every bit."""
        return self._apply_logical("logical_or", np.bitwise_or, x, y)

    def not_(self, x: Any) -> Any:
        """Return NOT x of every bit."""
        if not is_private(x):
            return self._wrap_public(np.invert(to_numpy(x)), False)
        tensor = self._require_boolean(x)
        return tensor.like(tfb.logical_not(tensor.array))

    # ---- conversions between numbers and bits

    def a2b(self, x: Any, nbits: int | None = None) -> Any:
        """Return the bits of numbers, only the lowest `nbits` if given."""
        if x.is_boolean():
            return x
        n = self.default_nbits if nbits is None else nbits
        operand = self._to_operand(x)
        operand = tfb.bitcast(operand, 0) if operand.kind == "fixed" else operand
        word = x.like(
            self._pad_bits(tfb.unpack_bits(operand, n), self.default_nbits),
            share_type=ShareType.BOOLEAN,
            factory=self.default_factory,
        )
        return word

    def b2a(self, x: Any, nbits: int | None = None, method: str = "ppa") -> Any:
        """Return the numbers of bits, only of the lowest `nbits` if given."""
        tensor = self._require_boolean(x)
        if not tensor.is_word:
            return self.b2a_single(tensor)
        numbers = tfb.pack_bits(tensor.array[..., :nbits])
        numbers = tfb.bitcast(numbers, self._fractional_bits) if tensor.is_scaled else numbers
        return tensor.like(numbers, share_type=ShareType.ARITHMETIC)

    def b2a_single(self, x: Any) -> Any:
        """Return single bits as the integers 0 and 1."""
        tensor = self._require_boolean(x)
        if tensor.is_word:
            raise UsageError(
                f"b2a_single takes single bits. Received: {x!r}. Use b2a.",
                code="wrong-share-type",
                operation="b2a_single",
            )
        return self._wrap_private(tensor.array.cast())

    def mul_ab(self, x: Any, y: Any) -> Any:
        """Return x where the bit y is 1, else 0."""
        if not is_private(y):
            x, y = y, x
        bit_tensor = self._require_boolean(y)
        if not is_private(x):
            return self.mul(self.b2a_single(bit_tensor), x)
        return self._wrap_private(tfb.where(bit_tensor.array, self._to_operand(x), 0), x)

    def bit_extract(self, x: Any, i: int) -> Any:
        """Return bit i of every element."""
        if x.is_boolean():
            return self._wrap_private(self._require_boolean(x).array[..., i])
        operand = self._to_operand(x)
        operand = tfb.bitcast(operand, 0) if operand.kind == "fixed" else operand
        return self._wrap_private(tfb.bit_extract(operand, i))

    def msb(self, x: Any) -> Any:
        """Return the sign bit of every element."""
        return self.bit_extract(x, x.backing_dtype.nbits - 1 if x.is_boolean() else 63)

    def bits(self, x: Any, bitsize: int | None = None) -> Any:
        """Return every bit separately, along a new last axis."""
        return self._wrap_private(self._require_boolean(x).array[..., :bitsize])

    def cast(self, x: Any, factory: Factory) -> Any:
        """Convert to another ring: drop high bits or add zeros; numbers are unchanged."""
        ring = factory if isinstance(factory, Factory) else factories[factory]
        if isinstance(x, ABY3PublicTensor):
            return ABY3PublicTensor(self, x.value, x.is_scaled, ring)
        if not x.is_boolean():
            if ring == int1factory:
                raise UsageError(
                    "Numbers have no ring of one bit. Use bit_extract(x, 0).",
                    code="unsupported-ring",
                )
            return x.like(x.array, factory=ring)
        bits = x.array if x.is_word else tfb.expand_dims(x.array, x.array.ndim)
        resized = self._pad_bits(bits[..., : ring.nbits], ring.nbits)
        return x.like(resized[..., 0] if ring == int1factory else resized, factory=ring)

    @staticmethod
    def _pad_bits(array: Any, nbits: int) -> Any:
        """Append zero bits up to a width."""
        missing = nbits - array.shape[-1]
        edges = [[0, 0]] * (array.ndim - 1) + [[0, missing]]
        return tfb.pad(array, edges) if missing > 0 else array

    # ---- places of bits

    def lshift(self, x: Any, steps: int) -> Any:
        """Return x 2^steps in its ring."""
        if not is_private(x):
            return self._wrap_public(to_numpy(x) * 2**steps, getattr(x, "is_scaled", None))
        if not x.is_boolean():
            return self._wrap_private(self._to_operand(x) * 2**steps, x)
        tensor, n = self._require_boolean(x), x.backing_dtype.nbits
        return tensor.like(
            tfb.pad(tensor.array[..., : n - steps], self._shift_paddings(tensor, steps))
        )

    @staticmethod
    def _shift_paddings(x: ABY3PrivateTensor, steps: int) -> list[list[int]]:
        return [[0, 0]] * (x.array.ndim - 1) + [[steps, 0]]

    def rshift(self, x: Any, steps: int) -> Any:
        """Return floor(x / 2^steps); for reals in units of their ring."""
        if not is_private(x):
            return self._wrap_public(
                np.floor(to_numpy(x) / 2**steps), getattr(x, "is_scaled", None)
            )
        if not x.is_boolean():
            return self.truncate(x, amount=steps)
        tensor = self._require_boolean(x)
        sign = tfb.broadcast_to(tensor.array[..., -1:], [*tensor.shape.as_list(), steps])
        return tensor.like(tfb.concat([tensor.array[..., steps:], sign], tensor.array.ndim - 1))

    def logical_rshift(self, x: Any, steps: int) -> Any:
        """Return rshift of words without a sign."""
        tensor = self._require_boolean(x)
        return tensor.like(self._pad_bits(tensor.array[..., steps:], tensor.backing_dtype.nbits))

    def bit_reverse(self, x: Any) -> Any:
        """Reverse the bits of each word."""
        tensor = self._require_boolean(x)
        return tensor.like(tfb.reverse(tensor.array, [tensor.array.ndim - 1]))

    def bit_gather(self, x: Any, start: int, stride: int) -> Any:
        """Move every stride-th bit from `start` on to the lowest bits of a word."""
        if not is_private(x):
            words = self._encode_words(to_numpy(x), False)
            every = unpack_words(words, 64)[..., start::stride]
            return self._wrap_public((every << np.arange(every.shape[-1])).sum(-1), False)
        tensor = self._require_boolean(x)
        return tensor.like(
            self._pad_bits(tensor.array[..., start::stride], tensor.backing_dtype.nbits)
        )

    def gather_bit(self, x: Any, even: bool) -> Any:
        """Return the bits of even places, or those of odd ones."""
        return self.bit_gather(x, 0 if even else 1, 2)

    def bit_split_and_gather(self, x: Any, stride: int) -> Any:
        """Return bit_gather from 0, 1, .. on, along a new first axis."""
        parts = [self.bit_gather(x, start, stride) for start in range(stride)]
        if not is_private(x):
            return self._wrap_public(np.stack([p.value for p in parts]), False)
        return x.like(tfb.stack([p.array for p in parts]))

    def xor_indices(self, x: Any) -> Any:
        """Return the XOR of the indices of a word's ones."""
        tensor, n = self._require_boolean(x), x.backing_dtype.nbits
        index_bits = []
        for j in range(n.bit_length() - 1):
            places = [k for k in range(n) if k >> j & 1]
            selected = tfb.gather(tensor.array, places, axis=tensor.array.ndim - 1)
            while selected.shape[-1] > 1:
                selected = tfb.logical_xor(selected[..., ::2], selected[..., 1::2])
            index_bits.append(selected)
        return tensor.like(self._pad_bits(tfb.concat(index_bits, tensor.array.ndim - 1), n))

    # ---- sums of words

    def _pack_numbers(self, x: Any, like: ABY3PrivateTensor) -> Any:
        bits = self._get_bits(x, like)
        if isinstance(x, ABY3PrivateTensor):
            return tfb.pack_bits(bits)
        return (bits * np.left_shift(np.int64(1), np.arange(bits.shape[-1]))).sum(-1)

    def _add_words(self, x: Any, y: Any, sign: int) -> Any:
        like = self._require_boolean(x if isinstance(x, ABY3PrivateTensor) else y)
        n = like.backing_dtype.nbits
        total = self._pack_numbers(x, like) + self._pack_numbers(y, like) * sign
        return like.like(tfb.unpack_bits(total, n))

    def ppa(self, x: Any, y: Any, n_bits: int | None = None, topology: str = "kogge_stone") -> Any:
        """Return x + y of words of bits; `topology` has no effect."""
        return self._add_words(x, y, 1)

    def b_add(self, x: Any, y: Any) -> Any:
        """Return x + y of words of bits."""
        return self._add_words(x, y, 1)

    def b_sub(self, x: Any, y: Any) -> Any:
        """Return x - y of words of bits."""
        return self._add_words(x, y, -1)

    def carry(self, x: Any, y: Any, pos: int | None = None) -> Any:
        """Return the carry of x + y out of bit `pos`, the highest unless given."""
        like = self._require_boolean(x if isinstance(x, ABY3PrivateTensor) else y)
        n = like.backing_dtype.nbits if pos is None else pos + 1
        operands = [self._get_bits(v, like) for v in (x, y)]
        low = self._partial_sum(operands, 0, min(n, 32), None)
        if n <= 32:
            return self._wrap_private(tfb.bit_extract(low, n))
        over = tfb.bit_extract(low, 32).cast()
        return self._wrap_private(tfb.bit_extract(self._partial_sum(operands, 32, n, over), n - 32))

    @staticmethod
    def _partial_sum(operands: list[Any], start: int, end: int, over: Any) -> Any:
        """Add some bits of words, and the carry of lower bits."""
        total = over
        for bits in operands:
            part = bits[..., start:end]
            if isinstance(part, np.ndarray):
                number = (part * np.left_shift(np.int64(1), np.arange(end - start))).sum(-1)
            else:
                number = tfb.pack_bits(part)
            total = number if total is None else total + number
        return total

    def pow2_from_bits(self, bits: Any) -> Any:
        """Return 2^n of the number n whose bits are along the last axis, the lowest first."""
        tensor = self._require_boolean(bits)
        factors = np.array([2 ** (2**i) - 1 for i in range(tensor.shape[-1])], np.int64)
        return self._wrap_private(tfb.reduce_prod(tensor.array.cast() * factors + 1, -1))

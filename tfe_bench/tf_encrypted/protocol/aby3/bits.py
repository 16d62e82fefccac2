"""Words of bits: XOR shares, and ways to numbers and back."""

from __future__ import annotations

from typing import Any

import numpy as np

from tfe_bench.errors import UsageError
from tfe_bench.tf_encrypted.protocol.aby3.arithmetic import Arithmetic, is_private, tfb
from tfe_bench.tf_encrypted.protocol.aby3.definitions import native
from tfe_bench.tf_encrypted.protocol.aby3.tensors import (
    ABY3PrivateTensor,
    ABY3PublicTensor,
    ShareType,
    unpacked,
)
from tfe_bench.tf_encrypted.tensor import Factory, factories, int1factory


class Bits(Arithmetic):
    """What computes on bits."""

    def _word(self, x: Any) -> ABY3PrivateTensor:
        if not isinstance(x, ABY3PrivateTensor) or not x.is_boolean():
            raise UsageError(f"Boolean shares are due here. Received: {x!r}. Use a2b.")
        return x

    def _bits(self, x: Any, like: ABY3PrivateTensor) -> Any:
        """Bits beside those of another tensor, of which they have the ring; public ones too."""
        if isinstance(x, ABY3PrivateTensor):
            own = self._word(x)
            if own.backing_dtype != like.backing_dtype:
                raise UsageError(f"Words of one width are due here. Received: {x!r} and {like!r}.")
            return own.array
        value = native(x)
        if not like.is_word:
            return value != 0
        scaled = x.is_scaled if isinstance(x, ABY3PublicTensor) else False
        words = self._words(value, scaled)
        return unpacked(words, like.backing_dtype.nbits)

    def _logical(self, name: str, public: Any, x: Any, y: Any) -> Any:
        if not is_private(x, y):
            scaled = isinstance(x, ABY3PublicTensor) and x.is_scaled
            a, b = (self._words(native(v), scaled) for v in (x, y))
            return self._public(public(a, b) / (2.0**self._fraction if scaled else 1), scaled)
        like = self._word(x if isinstance(x, ABY3PrivateTensor) else y)
        return like.like(getattr(tfb, name)(self._bits(x, like), self._bits(y, like)))

    def xor(self, x: Any, y: Any) -> Any:
        """x XOR y of every bit."""
        return self._logical("logical_xor", np.bitwise_xor, x, y)

    def and_(self, x: Any, y: Any) -> Any:
        """x AND y of every bit."""
        return self._logical("logical_and", np.bitwise_and, x, y)

    def or_(self, x: Any, y: Any) -> Any:
        """x OR y of every bit."""
        return self._logical("logical_or", np.bitwise_or, x, y)

    def not_(self, x: Any) -> Any:
        """NOT of every bit."""
        if not is_private(x):
            return self._public(np.invert(native(x)), False)
        own = self._word(x)
        return own.like(tfb.logical_not(own.array))

    # ---- between numbers and bits

    def a2b(self, x: Any, nbits: int | None = None) -> Any:
        """The bits of numbers, of the lowest `nbits` only."""
        if x.is_boolean():
            return x
        n = self.default_nbits if nbits is None else nbits
        own = self._operand(x)
        own = tfb.bitcast(own, 0) if own.kind == "fixed" else own
        word = x.like(
            self._filled(tfb.unpack_bits(own, n), self.default_nbits),
            share_type=ShareType.BOOLEAN,
            factory=self.default_factory,
        )
        return word

    def b2a(self, x: Any, nbits: int | None = None, method: str = "ppa") -> Any:
        """The numbers of bits, of the lowest `nbits` only."""
        own = self._word(x)
        if not own.is_word:
            return self.b2a_single(own)
        found = tfb.pack_bits(own.array[..., :nbits])
        found = tfb.bitcast(found, self._fraction) if own.is_scaled else found
        return own.like(found, share_type=ShareType.ARITHMETIC)

    def b2a_single(self, x: Any) -> Any:
        """Single bits as the integers 0 and 1."""
        own = self._word(x)
        if own.is_word:
            raise UsageError(f"b2a_single takes single bits. Received: {x!r}. Use b2a.")
        return self._private(own.array.cast())

    def mul_ab(self, x: Any, y: Any) -> Any:
        """x where the bit y is 1, else 0."""
        if not is_private(y):
            x, y = y, x
        own = self._word(y)
        if not is_private(x):
            return self.mul(self.b2a_single(own), x)
        return self._private(tfb.where(own.array, self._operand(x), 0), x)

    def bit_extract(self, x: Any, i: int) -> Any:
        """Bit i of every element."""
        if x.is_boolean():
            return self._private(self._word(x).array[..., i])
        own = self._operand(x)
        own = tfb.bitcast(own, 0) if own.kind == "fixed" else own
        return self._private(tfb.bit_extract(own, i))

    def msb(self, x: Any) -> Any:
        """The sign of every element."""
        return self.bit_extract(x, x.backing_dtype.nbits - 1 if x.is_boolean() else 63)

    def bits(self, x: Any, bitsize: int | None = None) -> Any:
        """Every bit by itself, along a new last axis."""
        return self._private(self._word(x).array[..., :bitsize])

    def cast(self, x: Any, factory: Factory) -> Any:
        """In another ring: the lowest bits of words, or zeros above; numbers stay as they are."""
        ring = factory if isinstance(factory, Factory) else factories[factory]
        if isinstance(x, ABY3PublicTensor):
            return ABY3PublicTensor(self, x.value, x.is_scaled, ring)
        if not x.is_boolean():
            if ring == int1factory:
                raise UsageError("Numbers have no ring of one bit. Use bit_extract(x, 0).")
            return x.like(x.array, factory=ring)
        own = x.array if x.is_word else tfb.expand_dims(x.array, x.array.ndim)
        cut = self._filled(own[..., : ring.nbits], ring.nbits)
        return x.like(cut[..., 0] if ring == int1factory else cut, factory=ring)

    @staticmethod
    def _filled(array: Any, nbits: int) -> Any:
        """Bits with zeros above."""
        missing = nbits - array.shape[-1]
        edges = [[0, 0]] * (array.ndim - 1) + [[0, missing]]
        return tfb.pad(array, edges) if missing > 0 else array

    # ---- places of bits

    def lshift(self, x: Any, steps: int) -> Any:
        """x 2^steps in its ring."""
        if not is_private(x):
            return self._public(native(x) * 2**steps, getattr(x, "is_scaled", None))
        if not x.is_boolean():
            return self._private(self._operand(x) * 2**steps, x)
        own, n = self._word(x), x.backing_dtype.nbits
        return own.like(tfb.pad(own.array[..., : n - steps], self._before(own, steps)))

    @staticmethod
    def _before(x: ABY3PrivateTensor, steps: int) -> list[list[int]]:
        return [[0, 0]] * (x.array.ndim - 1) + [[steps, 0]]

    def rshift(self, x: Any, steps: int) -> Any:
        """floor(x / 2^steps); of reals in units of their ring."""
        if not is_private(x):
            return self._public(np.floor(native(x) / 2**steps), getattr(x, "is_scaled", None))
        if not x.is_boolean():
            return self.truncate(x, amount=steps)
        own = self._word(x)
        sign = tfb.broadcast_to(own.array[..., -1:], [*own.shape.as_list(), steps])
        return own.like(tfb.concat([own.array[..., steps:], sign], own.array.ndim - 1))

    def logical_rshift(self, x: Any, steps: int) -> Any:
        """As rshift of words without a sign."""
        own = self._word(x)
        return own.like(self._filled(own.array[..., steps:], own.backing_dtype.nbits))

    def bit_reverse(self, x: Any) -> Any:
        """The bits of each word in the other order."""
        own = self._word(x)
        return own.like(tfb.reverse(own.array, [own.array.ndim - 1]))

    def bit_gather(self, x: Any, start: int, stride: int) -> Any:
        """Every stride-th bit from `start` on, as the lowest of a word."""
        if not is_private(x):
            words = self._words(native(x), False)
            every = unpacked(words, 64)[..., start::stride]
            return self._public((every << np.arange(every.shape[-1])).sum(-1), False)
        own = self._word(x)
        return own.like(self._filled(own.array[..., start::stride], own.backing_dtype.nbits))

    def gather_bit(self, x: Any, even: bool) -> Any:
        """The bits of even places, or those of odd ones."""
        return self.bit_gather(x, 0 if even else 1, 2)

    def bit_split_and_gather(self, x: Any, stride: int) -> Any:
        """bit_gather from 0, 1, .. on, along a new first axis."""
        parts = [self.bit_gather(x, start, stride) for start in range(stride)]
        if not is_private(x):
            return self._public(np.stack([p.value for p in parts]), False)
        return x.like(tfb.stack([p.array for p in parts]))

    def xor_indices(self, x: Any) -> Any:
        """The XOR of the numbers of the places at which a word has ones."""
        own, n = self._word(x), x.backing_dtype.nbits
        found = []
        for j in range(n.bit_length() - 1):
            places = [k for k in range(n) if k >> j & 1]
            some = tfb.gather(own.array, places, axis=own.array.ndim - 1)
            while some.shape[-1] > 1:
                some = tfb.logical_xor(some[..., ::2], some[..., 1::2])
            found.append(some)
        return own.like(self._filled(tfb.concat(found, own.array.ndim - 1), n))

    # ---- sums of words

    def _numbers(self, x: Any, like: ABY3PrivateTensor) -> Any:
        bits = self._bits(x, like)
        if isinstance(x, ABY3PrivateTensor):
            return tfb.pack_bits(bits)
        return (bits * np.left_shift(np.int64(1), np.arange(bits.shape[-1]))).sum(-1)

    def _summed(self, x: Any, y: Any, sign: int) -> Any:
        like = self._word(x if isinstance(x, ABY3PrivateTensor) else y)
        n = like.backing_dtype.nbits
        total = self._numbers(x, like) + self._numbers(y, like) * sign
        return like.like(tfb.unpack_bits(total, n))

    def ppa(self, x: Any, y: Any, n_bits: int | None = None, topology: str = "kogge_stone") -> Any:
        """x + y of words of bits; there is one way, whichever topology is named."""
        return self._summed(x, y, 1)

    def b_add(self, x: Any, y: Any) -> Any:
        """x + y of words of bits."""
        return self._summed(x, y, 1)

    def b_sub(self, x: Any, y: Any) -> Any:
        """x - y of words of bits."""
        return self._summed(x, y, -1)

    def carry(self, x: Any, y: Any, pos: int | None = None) -> Any:
        """What x + y carries out of bit `pos`, the highest unless given."""
        like = self._word(x if isinstance(x, ABY3PrivateTensor) else y)
        n = like.backing_dtype.nbits if pos is None else pos + 1
        given = [self._bits(v, like) for v in (x, y)]
        low = self._partial(given, 0, min(n, 32), None)
        if n <= 32:
            return self._private(tfb.bit_extract(low, n))
        over = tfb.bit_extract(low, 32).cast()
        return self._private(tfb.bit_extract(self._partial(given, 32, n, over), n - 32))

    @staticmethod
    def _partial(given: list[Any], start: int, end: int, over: Any) -> Any:
        """The sum of some bits of words, and of what was carried."""
        total = over
        for bits in given:
            part = bits[..., start:end]
            if isinstance(part, np.ndarray):
                number = (part * np.left_shift(np.int64(1), np.arange(end - start))).sum(-1)
            else:
                number = tfb.pack_bits(part)
            total = number if total is None else total + number
        return total

    def pow2_from_bits(self, bits: Any) -> Any:
        """2^n of the number n whose bits are along the last axis, the lowest first."""
        own = self._word(bits)
        factors = np.array([2 ** (2**i) - 1 for i in range(own.shape[-1])], np.int64)
        return self._private(tfb.reduce_prod(own.array.cast() * factors + 1, -1))

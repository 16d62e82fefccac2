"""Shares: who holds which part of a private value.

The storage format is replicated secret sharing (Araki et al., CCS 2016) in the
masked view.  For a dealer D = P_d with evaluators E1 = P_{d+1} and E2 = P_{d+2}:

    x = m - (l1 + l2) mod 2^64,   m at E1, E2;   l1 at D, E1;   l2 at D, E2

which is RSS with x_{d+2} = m, x_{d+1} = -l1, x_d = -l2 (party i holds x_i, x_{i+1}).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NoReturn


def _operators() -> Any:
    from tfe_bench.protocols.api import functional

    return functional


class _Private:
    """Refuses every way in which a private value would silently become public."""

    # numpy leaves `array + private` to the private side
    __array_ufunc__ = None
    # comparisons make private bits, so equality is not identity; hashing stays by identity
    __hash__ = object.__hash__

    def _refuse(self, what: str) -> NoReturn:
        raise TypeError(
            f"A private value cannot become {what} by itself. "
            f"Received: {self!r}. Use reveal(x, to=...) where publishing it is what you mean."
        )

    def __bool__(self) -> bool:
        self._refuse("a truth value")

    def __float__(self) -> float:
        self._refuse("a float")

    def __int__(self) -> int:
        self._refuse("an int")

    def __index__(self) -> int:
        self._refuse("an index")

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        self._refuse("an array")

    def __iter__(self) -> Any:
        self._refuse("a sequence")


@dataclass(frozen=True, repr=False, eq=False)
class Shared(_Private):
    """A private tensor; each party has the two fields that its role holds, the third is None.

    Attributes:
        m: the masked value, at both evaluators.
        l1: mask part at the dealer and E1.
        l2: mask part at the dealer and E2.
        dealer: the party that deals for this value.
        fractional_bits: the real value is the signed ring element / 2^fractional_bits.
        limbs: 64-bit words per element; with 2, a last axis of size 2 holds them, low word first.
        bits: the ring is Z_{2^bits}; higher bits of the words mean nothing (0: all 64 * limbs).
    """

    # Tensors or None by role; Any, so that code for one role need not assert what it holds.
    m: Any
    l1: Any
    l2: Any
    dealer: int = 0
    fractional_bits: int = 0
    limbs: int = 1
    bits: int = 0

    __hash__ = _Private.__hash__  # which a class with __eq__ does not inherit

    @property
    def ring_bits(self) -> int:
        """The ring is Z_{2^ring_bits}."""
        return self.bits or 64 * self.limbs

    @property
    def any(self) -> Any:
        """One of the fields held here, for its shape and dtype."""
        found = next((t for t in (self.m, self.l1, self.l2) if t is not None), None)
        assert found is not None
        return found

    @property
    def shape(self) -> Any:
        """Static shape of the tensor of elements."""
        shape = self.any.shape
        return shape if self.limbs == 1 else shape[:-1]

    def map(self, function: Any) -> Shared:
        """Applies a linear map of ring elements (a reshape, a gather, ...) to every field held."""
        m, l1, l2 = (None if t is None else function(t) for t in (self.m, self.l1, self.l2))
        return replace(self, m=m, l1=l1, l2=l2)

    def __add__(self, other: Any) -> Shared:
        return _operators().add(self, other)  # type: ignore[no-any-return]

    def __radd__(self, other: Any) -> Shared:
        return _operators().add(other, self)  # type: ignore[no-any-return]

    def __sub__(self, other: Any) -> Shared:
        return _operators().subtract(self, other)  # type: ignore[no-any-return]

    def __rsub__(self, other: Any) -> Shared:
        return _operators().subtract(other, self)  # type: ignore[no-any-return]

    def __mul__(self, other: Any) -> Shared:
        return _operators().multiply(self, other)  # type: ignore[no-any-return]

    def __rmul__(self, other: Any) -> Shared:
        return _operators().multiply(other, self)  # type: ignore[no-any-return]

    def __matmul__(self, other: Any) -> Shared:
        return _operators().matmul(self, other)  # type: ignore[no-any-return]

    def __rmatmul__(self, other: Any) -> Shared:
        return _operators().matmul(other, self)  # type: ignore[no-any-return]

    def __truediv__(self, other: Any) -> Shared:
        return _operators().divide(self, other)  # type: ignore[no-any-return]

    def __rtruediv__(self, other: Any) -> Shared:
        return _operators().divide(other, self)  # type: ignore[no-any-return]

    def __neg__(self) -> Shared:
        return _operators().negative(self)  # type: ignore[no-any-return]

    def __abs__(self) -> Shared:
        return _operators().abs(self)  # type: ignore[no-any-return]

    def __pow__(self, exponent: int) -> Shared:
        return _operators().pow(self, exponent)  # type: ignore[no-any-return]

    def __getitem__(self, key: Any) -> Shared:
        from tfe_bench.protocols.ring import shapes

        return shapes.getitem(self, key)

    def __lt__(self, other: Any) -> MaskedBits:
        return _operators().less(self, other)  # type: ignore[no-any-return]

    def __le__(self, other: Any) -> MaskedBits:
        return _operators().less_equal(self, other)  # type: ignore[no-any-return]

    def __gt__(self, other: Any) -> MaskedBits:
        return _operators().greater(self, other)  # type: ignore[no-any-return]

    def __ge__(self, other: Any) -> MaskedBits:
        return _operators().greater_equal(self, other)  # type: ignore[no-any-return]

    def __eq__(self, other: Any) -> MaskedBits:  # type: ignore[override]
        return _operators().equal(self, other)  # type: ignore[no-any-return]

    def __ne__(self, other: Any) -> MaskedBits:  # type: ignore[override]
        return _operators().not_equal(self, other)  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        held = "".join(k for k in ("m", "l1", "l2") if getattr(self, k) is not None)
        return (
            f"Shared(shape={self.shape}, fractional_bits={self.fractional_bits}, "
            f"ring=2^{self.ring_bits}, dealer={self.dealer}, held={held})"
        )


@dataclass(frozen=True, repr=False, eq=False)
class EvaluatorBits(_Private):
    """n private bits as s = s1 ^ s2, s1 at E1, s2 at E2; the dealer holds `top`, or nothing.

    Attributes:
        share: packed words [ceil(n/64)] of s1 or s2; None at the dealer.
        top: at the dealer, bits to add to s (None: they are already in it).
        n: int64 scalar tensor, the number of bits.
    """

    share: Any
    top: Any
    n: Any
    dealer: int = 0

    def __repr__(self) -> str:
        return f"EvaluatorBits(dealer={self.dealer})"


@dataclass(frozen=True, repr=False, eq=False)
class MaskedBits(_Private):
    """n private bits b = opened ^ beta, opened at both evaluators, beta at the dealer.

    Attributes:
        opened: packed words at the evaluators, None at the dealer.
        beta: packed words at the dealer, None at the evaluators.
        n: int64 scalar tensor, the number of bits.
        shape: of the tensor of bits in row-major order, where it is known.
    """

    opened: Any
    beta: Any
    n: Any
    dealer: int = 0
    shape: tuple[int, ...] | None = None

    __hash__ = _Private.__hash__

    def __and__(self, other: Any) -> MaskedBits:
        return _operators().logical_and(self, other)  # type: ignore[no-any-return]

    def __or__(self, other: Any) -> MaskedBits:
        return _operators().logical_or(self, other)  # type: ignore[no-any-return]

    def __xor__(self, other: Any) -> MaskedBits:
        return _operators().logical_xor(self, other)  # type: ignore[no-any-return]

    def __rand__(self, other: Any) -> MaskedBits:
        return _operators().logical_and(other, self)  # type: ignore[no-any-return]

    def __ror__(self, other: Any) -> MaskedBits:
        return _operators().logical_or(other, self)  # type: ignore[no-any-return]

    def __rxor__(self, other: Any) -> MaskedBits:
        return _operators().logical_xor(other, self)  # type: ignore[no-any-return]

    def __eq__(self, other: Any) -> MaskedBits:  # type: ignore[override]
        operators = _operators()
        return operators.logical_not(operators.logical_xor(self, other))  # type: ignore[no-any-return]

    def __ne__(self, other: Any) -> MaskedBits:  # type: ignore[override]
        return _operators().logical_xor(self, other)  # type: ignore[no-any-return]

    def __invert__(self) -> MaskedBits:
        return _operators().logical_not(self)  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        return f"MaskedBits(shape={self.shape}, dealer={self.dealer})"

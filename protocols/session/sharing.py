"""Shares: which party holds which part of a private value.

The storage format is replicated secret sharing (Araki et al., CCS 2016) in the
masked view. For a dealer D = P_d with evaluators E1 = P_{d+1} and E2 = P_{d+2}:

    x = m - (l1 + l2) mod 2^64,   m at E1, E2;   l1 at D, E1;   l2 at D, E2

which is RSS with x_{d+2} = m, x_{d+1} = -l1, x_d = -l2 (party i holds x_i, x_{i+1}).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias, TypeGuard

from tfe_bench.errors import ProtocolError
from tfe_bench.lazy_tensorflow import tf

if TYPE_CHECKING:
    from types import EllipsisType

    import numpy as np
    import numpy.typing as npt

Key: TypeAlias = "int | np.integer[Any] | slice | EllipsisType | None"  # key of an axis, in x[key]
Public: TypeAlias = "npt.ArrayLike | tf.Tensor"
Operand: TypeAlias = "Shared | MaskedBits | Public"
_NumberOperator: TypeAlias = "Callable[[Shared, Operand], Shared]"
_BitOperator: TypeAlias = "Callable[[_PrivateValue, Operand], MaskedBits]"

# Functions of Python's operators by name: see `bind_operators`.
_operations: dict[str, Callable[..., Any]] = {}


def bind_operators(*operations: Callable[..., Any]) -> None:
    """Set the functions of Python's operators by name; protocols/api/__init__.py calls this."""
    _operations.update({function.__name__: function for function in operations})


def _get_share_operation(name: str) -> Callable[..., Any]:
    """Return the function of an operator.

    Raises:
        ProtocolError: operators are not registered.
    """
    if name not in _operations:
        raise ProtocolError(
            f"Operators for private values are not registered. Received: {name}. "
            "Import tfe_bench.protocols.api.",
            code="operators-not-registered",
            operation=name,
        )
    return _operations[name]


def _make_operators(name: str) -> tuple[Any, Any]:
    """Return a binary operator, and the same with the private value on the right."""

    def apply_operator(x: Any, y: Any) -> Any:
        return _get_share_operation(name)(x, y)

    def apply_mirrored_operator(x: Any, y: Any) -> Any:
        return _get_share_operation(name)(y, x)

    return apply_operator, apply_mirrored_operator


_make_number_operators: Callable[[str], tuple[_NumberOperator, _NumberOperator]] = _make_operators
_make_bit_operators: Callable[[str], tuple[_BitOperator, _BitOperator]] = _make_operators


class Unconvertible:
    """Base class that refuses every implicit conversion of a private value to a public one."""

    _reveal_advice = "Use reveal(x, to=...) where publishing it is what you mean."
    # Comparisons return private bits, so equality is not identity; hashing stays by identity.
    __hash__ = object.__hash__

    def _refuse_conversion(self, target: str, instead: str = "") -> NoReturn:
        raise TypeError(
            f"A private value cannot become {target} by itself. "
            f"Received: {self!r}. {instead}{self._reveal_advice}"
        )

    def __bool__(self) -> bool:
        self._refuse_conversion(
            "a truth value", "Choose between two values by tfe_bench.where(x, a, b). "
        )

    def __float__(self) -> float:
        self._refuse_conversion("a float")

    def __int__(self) -> int:
        self._refuse_conversion("an int")

    def __index__(self) -> int:
        self._refuse_conversion("an index", "Look up elements by tfe_bench.gather(array, x). ")

    def __array__(self, dtype: object = None, copy: object = None) -> NoReturn:
        self._refuse_conversion("an array")

    def __iter__(self) -> NoReturn:
        self._refuse_conversion("a sequence", "Take parts by x[0] or tfe_bench.unstack(x). ")


class _PrivateValue(Unconvertible):
    # NumPy leaves `array + private` to the private side.
    __array_ufunc__ = None


@dataclass(frozen=True, repr=False, eq=False)
class Shared(_PrivateValue):
    """A private tensor; each party has the two fields that its role holds, the third is None.

    Attributes:
        m: the masked value, at both evaluators.
        l1: mask part at the dealer and E1.
        l2: mask part at the dealer and E2.
        dealer: the party that deals for this value.
        fractional_bits: the real value is the signed ring element / 2^fractional_bits.
        limbs: 64-bit words per element; with 2, a last axis of size 2 holds them, low word first.
        bits: the ring is Z_{2^bits}; higher bits of the words are ignored (0: all 64 * limbs).
    """

    # Any instead of a tensor or None: code for one role need not assert which fields it holds.
    m: Any
    l1: Any
    l2: Any
    dealer: int = 0
    fractional_bits: int = 0
    limbs: int = 1
    bits: int = 0

    __hash__ = _PrivateValue.__hash__  # a class with __eq__ does not inherit it

    @property
    def ring_bits(self) -> int:
        """Bits of the ring Z_{2^ring_bits}."""
        return self.bits or 64 * self.limbs

    @property
    def any(self) -> tf.Tensor:
        """One of the fields held here, for its shape and dtype."""
        held_field = next((t for t in (self.m, self.l1, self.l2) if t is not None), None)
        assert held_field is not None
        return held_field

    @property
    def shape(self) -> tf.TensorShape:
        """Static shape of the tensor of elements."""
        shape = self.any.shape
        return shape if self.limbs == 1 else shape[:-1]

    def map(self, function: Callable[..., tf.Tensor]) -> Shared:
        """Apply a linear map of ring elements (a reshape, a gather, ...) to every field held."""
        m, l1, l2 = (None if t is None else function(t) for t in (self.m, self.l1, self.l2))
        return replace(self, m=m, l1=l1, l2=l2)

    __add__, __radd__ = _make_number_operators("add")
    __sub__, __rsub__ = _make_number_operators("subtract")
    __mul__, __rmul__ = _make_number_operators("multiply")
    __matmul__, __rmatmul__ = _make_number_operators("matmul")
    __truediv__, __rtruediv__ = _make_number_operators("divide")
    __pow__, __rpow__ = _make_number_operators("pow")
    __floordiv__, __rfloordiv__ = _make_number_operators("floordiv")
    __mod__, __rmod__ = _make_number_operators("floormod")
    __lt__, __gt__ = _make_bit_operators("less")[0], _make_bit_operators("greater")[0]
    __le__, __ge__ = _make_bit_operators("less_equal")[0], _make_bit_operators("greater_equal")[0]
    __eq__, __ne__ = _make_bit_operators("equal")[0], _make_bit_operators("not_equal")[0]  # type: ignore[assignment]

    def __neg__(self) -> Shared:
        return _get_share_operation("negative")(self)  # type: ignore[no-any-return]

    def __abs__(self) -> Shared:
        return _get_share_operation("abs")(self)  # type: ignore[no-any-return]

    def __getitem__(self, key: Key | tuple[Key, ...]) -> Shared:
        return _get_share_operation("getitem")(self, key)  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        held_fields = "".join(k for k in ("m", "l1", "l2") if getattr(self, k) is not None)
        return (
            f"Shared(shape={self.shape}, fractional_bits={self.fractional_bits}, "
            f"ring=2^{self.ring_bits}, dealer={self.dealer}, held={held_fields})"
        )


@dataclass(frozen=True, repr=False, eq=False)
class EvaluatorBits(_PrivateValue):
    """n private bits as s = s1 ^ s2, s1 at E1, s2 at E2; the dealer holds `top`, or nothing.

    Attributes:
        share: packed words [ceil(n/64)] of s1 or s2; None at the dealer.
        top: at the dealer, bits to add to s (None: they are already in it).
        n: int64 scalar tensor, the number of bits.
    """

    share: tf.Tensor | None
    top: tf.Tensor | None
    n: tf.Tensor
    dealer: int = 0

    def __repr__(self) -> str:
        return f"EvaluatorBits(dealer={self.dealer})"


@dataclass(frozen=True, repr=False, eq=False)
class MaskedBits(_PrivateValue):
    """n private bits b = masked ^ beta, masked at both evaluators, beta at the dealer.

    Attributes:
        masked: packed words at the evaluators, None at the dealer.
        beta: packed words at the dealer, None at the evaluators.
        n: int64 scalar tensor, the number of bits.
        shape: shape of the tensor of bits in row-major order, if it is known.
    """

    masked: tf.Tensor | None
    beta: tf.Tensor | None
    n: tf.Tensor
    dealer: int = 0
    shape: tuple[int, ...] | None = None

    __hash__ = _PrivateValue.__hash__

    __and__, __rand__ = _make_bit_operators("logical_and")
    __or__, __ror__ = _make_bit_operators("logical_or")
    __xor__, __rxor__ = _make_bit_operators("logical_xor")
    __ne__ = _make_bit_operators("logical_xor")[0]  # type: ignore[assignment]

    def __eq__(self, other: Operand) -> MaskedBits:  # type: ignore[override]
        return ~(self ^ other)

    def __getitem__(self, key: Key | tuple[Key, ...]) -> MaskedBits:
        return _get_share_operation("getitem")(self, key)  # type: ignore[no-any-return]

    def __invert__(self) -> MaskedBits:
        return _get_share_operation("logical_not")(self)  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        return f"MaskedBits(shape={self.shape}, dealer={self.dealer})"


def is_private(value: object) -> TypeGuard[Shared | MaskedBits]:
    """Return whether a value is a private tensor or private bits."""
    return isinstance(value, (Shared, MaskedBits))


def describe_type(value: object) -> str:
    """Return the type of a value, without its content."""
    dtype = getattr(value, "dtype", None)
    if dtype is None or is_private(value):
        return type(value).__name__
    return f"a public {type(value).__name__} of {getattr(dtype, 'name', dtype)}"

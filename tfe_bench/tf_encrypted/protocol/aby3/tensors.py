"""Tensors of the protocol: private arrays with a kind of shares and a scale, and public values."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tfe_bench.errors import UsageError
from tfe_bench.models.arrays.array import PrivateArray
from tfe_bench.tf_encrypted.config import Held
from tfe_bench.tf_encrypted.protocol.protocol import (
    TFEPrivateTensor,
    TFEPrivateVariable,
    TFEPublicTensor,
    TFEPublicVariable,
    TFETensor,
)
from tfe_bench.tf_encrypted.tensor import Factory, int1factory


class ShareType:
    """How a value is shared."""

    PUBLIC = "PUBLIC"
    ARITHMETIC = "ARITHMETIC"
    BOOLEAN = "BOOLEAN"


def _operation(name: str, mirrored: bool = False) -> Any:
    def operate(x: ABY3Tensor, *others: Any, **named: Any) -> Any:
        operands = (*others, x) if mirrored else (x, *others)
        return getattr(x.prot, name)(*operands, **named)

    operate.__name__ = name
    operate.__doc__ = f"The protocol's {name} of this tensor."
    return operate


class ABY3Tensor(TFETensor):
    """A tensor.

    Attributes:
        prot: its protocol.
        is_scaled: it holds reals in fixed point.
        share_type: of ShareType.
        backing_dtype: its ring.
    """

    # NumPy leaves `array + tensor` to the tensor
    __array_ufunc__ = None

    def __init__(self, prot: Any, is_scaled: bool, share_type: str, factory: Factory) -> None:
        self.prot, self.is_scaled, self.share_type = prot, is_scaled, share_type
        self.backing_dtype = factory

    def __repr__(self) -> str:
        return f"{type(self).__name__}(shape={self.shape}, share_type={self.share_type})"

    @property
    def shape(self) -> tf.TensorShape:
        """Its sizes."""
        raise NotImplementedError

    def is_arithmetic(self) -> bool:
        """Whether its shares add up."""
        return self.share_type == ShareType.ARITHMETIC

    def is_boolean(self) -> bool:
        """Whether its shares are bits."""
        return self.share_type == ShareType.BOOLEAN

    def is_public(self) -> bool:
        """Whether everybody knows it."""
        return self.share_type == ShareType.PUBLIC

    @property
    def unwrapped(self) -> Any:
        """Refused: shares are at the workers, none of which is this process."""
        raise UsageError("Shares are with the three workers. Received: a read of `unwrapped`.")

    add = __add__ = _operation("add")
    __radd__ = _operation("add", True)
    sub = __sub__ = _operation("sub")
    __rsub__ = _operation("sub", True)
    mul = __mul__ = _operation("mul")
    __rmul__ = _operation("mul", True)
    div = __truediv__ = _operation("div")
    __rtruediv__ = _operation("div", True)
    __pow__ = _operation("pow")
    matmul = __matmul__ = dot = _operation("matmul")
    negative = __neg__ = _operation("negative")
    __lt__, __le__ = _operation("less_than"), _operation("less_equal")
    __gt__, __ge__ = _operation("greater_than"), _operation("greater_equal")
    bitwise_xor = __xor__ = _operation("xor")
    __rxor__ = _operation("xor", True)
    bitwise_and = __and__ = _operation("and_")
    __rand__ = _operation("and_", True)
    bitwise_or = __or__ = _operation("or_")
    __ror__ = _operation("or_", True)
    invert = __invert__ = _operation("not_")
    lshift = __lshift__ = _operation("lshift")
    rshift = arith_rshift = __rshift__ = _operation("rshift")
    logical_rshift = _operation("logical_rshift")
    __getitem__ = _operation("indexer")
    reduce_sum = sum = _operation("reduce_sum")
    reduce_max = _operation("reduce_max")
    square, truncate = _operation("square"), _operation("truncate")
    transpose, reshape = _operation("transpose"), _operation("reshape")
    expand_dims, cast = _operation("expand_dims"), _operation("cast")
    reciprocal, write = _operation("reciprocal"), _operation("write")

    def __mod__(self, other: Any) -> Any:
        raise UsageError("ABY3 has no remainder. On private arrays there is tfe_bench.floormod.")


class ABY3PublicTensor(ABY3Tensor, TFEPublicTensor):
    """What everybody knows.

    Attributes:
        value: float64 where it is scaled, else int64 or bool.
    """

    def __init__(
        self, prot: Any, value: npt.NDArray[Any], is_scaled: bool, factory: Factory
    ) -> None:
        super().__init__(prot, is_scaled, ShareType.PUBLIC, factory)
        self.value = value

    @property
    def shape(self) -> tf.TensorShape:
        """Its sizes."""
        return tf.TensorShape(self.value.shape)

    def to_native(self) -> tf.Tensor:
        """As TensorFlow's: float64, or integers of its ring."""
        if self.is_scaled:
            return tf.constant(self.value, tf.float64)
        return tf.constant(self.value.astype(self.backing_dtype.native_type.as_numpy_dtype))

    def decode(self) -> tf.Tensor:
        """As to_native."""
        return self.to_native()

    def to_private(self, share_type: str) -> Any:
        """The same value as shares."""
        value = tf.constant(self.value)
        return self.prot.define_private_variable(
            value, self.is_scaled, share_type, factory=self.backing_dtype
        )


class ABY3Constant(ABY3PublicTensor):
    """A public value of the program."""


class ABY3PublicVariable(ABY3PublicTensor, TFEPublicVariable):
    """A public value that is assigned to."""

    def read_value(self) -> ABY3PublicTensor:
        """What it is now."""
        return ABY3PublicTensor(self.prot, self.value, self.is_scaled, self.backing_dtype)


class ABY3PrivateTensor(ABY3Tensor, Held, TFEPrivateTensor):
    """What nobody knows.

    Attributes:
        array: the private array: numbers, or bits; of a word of bits one more axis, the lowest
            first.
        known: an array that this process has revealed, and what it was.
        own: of a private input of this process, what it gave.
    """

    def __init__(
        self, prot: Any, array: PrivateArray, is_scaled: bool, share_type: str, factory: Factory
    ) -> None:
        super().__init__(prot, is_scaled, share_type, factory)
        self.array = array
        self.known: tuple[PrivateArray, ABY3PublicTensor] | None = None
        self.own: npt.NDArray[Any] | None = None

    @property
    def is_word(self) -> bool:
        """Whether an element is several bits."""
        return self.is_boolean() and self.backing_dtype != int1factory

    @property
    def shape(self) -> tf.TensorShape:
        """Its sizes."""
        sizes = self.array.shape
        return tf.TensorShape(sizes[:-1] if self.is_word else sizes)

    def like(self, array: PrivateArray, **changed: Any) -> ABY3PrivateTensor:
        """Another array of this kind."""
        about = {
            "is_scaled": self.is_scaled,
            "share_type": self.share_type,
            "factory": self.backing_dtype,
            **changed,
        }
        return ABY3PrivateTensor(self.prot, array, **about)

    def reveal(self) -> ABY3PublicTensor:
        """What it is, which this process learns."""
        found: ABY3PublicTensor = self.prot.reveal(self)
        return found

    def __bool__(self) -> bool:
        raise TypeError(f"{self!r} has no public truth value. Reveal it where it may be known.")


class ABY3PrivateVariable(ABY3PrivateTensor, TFEPrivateVariable):
    """A private value that is assigned to."""

    def read_value(self) -> ABY3PrivateTensor:
        """What it is now."""
        return self.like(self.array)


def packed(bits: npt.NDArray[np.bool_], nbits: int) -> npt.NDArray[np.int64]:
    """Words of bits [..., nbits], two's complement."""
    weights = np.left_shift(np.uint64(1), np.arange(nbits, dtype=np.uint64))
    word = (bits.astype(np.uint64) * weights).sum(-1, dtype=np.uint64)
    unused = np.uint64(64 - nbits)
    found: npt.NDArray[np.int64] = np.left_shift(word, unused).astype(np.int64)
    return np.right_shift(found, np.int64(64 - nbits))


def unpacked(words: npt.NDArray[np.int64], nbits: int) -> npt.NDArray[np.bool_]:
    """The lowest bits of words, along a new last axis."""
    found: npt.NDArray[np.bool_] = (words[..., None] >> np.arange(nbits, dtype=np.int64)) & 1 == 1
    return found

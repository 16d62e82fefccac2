"""Tensors of the protocol: private arrays with a kind of shares and a scale, and public values."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tfe_bench.arrays.array import PrivateArray
from tfe_bench.errors import UsageError
from tfe_bench.lazy_tensorflow import tf
from tfe_bench.tf_encrypted.config import HeldTensor
from tfe_bench.tf_encrypted.protocol.protocol import (
    TFEPrivateTensor,
    TFEPrivateVariable,
    TFEPublicTensor,
    TFEPublicVariable,
    TFETensor,
)
from tfe_bench.tf_encrypted.tensor import Factory, int1factory


class ShareType:
    """Kinds of shares."""

    PUBLIC = "PUBLIC"
    ARITHMETIC = "ARITHMETIC"
    BOOLEAN = "BOOLEAN"


def _define_protocol_method(name: str, mirrored: bool = False) -> Any:
    def call_protocol(x: ABY3Tensor, *others: Any, **named: Any) -> Any:
        operands = (*others, x) if mirrored else (x, *others)
        return getattr(x.prot, name)(*operands, **named)

    call_protocol.__name__ = name
    call_protocol.__doc__ = f"The protocol's {name} of this tensor."
    return call_protocol


class ABY3Tensor(TFETensor):
    """A tensor.

    Attributes:
        prot: its protocol.
        is_scaled: whether it holds reals in fixed point.
        share_type: of ShareType.
        backing_dtype: its ring.
    """

    # NumPy delegates `array + tensor` to the tensor
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
        """Return whether it has arithmetic shares."""
        return self.share_type == ShareType.ARITHMETIC

    def is_boolean(self) -> bool:
        """Return whether it has Boolean shares."""
        return self.share_type == ShareType.BOOLEAN

    def is_public(self) -> bool:
        """Return whether it is public."""
        return self.share_type == ShareType.PUBLIC

    @property
    def unwrapped(self) -> Any:
        """Not available: the workers hold the shares, and this process none."""
        raise UsageError(
            "Shares are with the three workers. Received: a read of `unwrapped`.",
            code="unsupported-operation",
            operation="unwrapped",
        )

    add = __add__ = _define_protocol_method("add")
    __radd__ = _define_protocol_method("add", True)
    sub = __sub__ = _define_protocol_method("sub")
    __rsub__ = _define_protocol_method("sub", True)
    mul = __mul__ = _define_protocol_method("mul")
    __rmul__ = _define_protocol_method("mul", True)
    div = __truediv__ = _define_protocol_method("div")
    __rtruediv__ = _define_protocol_method("div", True)
    __pow__ = _define_protocol_method("pow")
    matmul = __matmul__ = dot = _define_protocol_method("matmul")
    negative = __neg__ = _define_protocol_method("negative")
    __lt__, __le__ = _define_protocol_method("less_than"), _define_protocol_method("less_equal")
    __gt__ = _define_protocol_method("greater_than")
    __ge__ = _define_protocol_method("greater_equal")
    bitwise_xor = __xor__ = _define_protocol_method("xor")
    __rxor__ = _define_protocol_method("xor", True)
    bitwise_and = __and__ = _define_protocol_method("and_")
    __rand__ = _define_protocol_method("and_", True)
    bitwise_or = __or__ = _define_protocol_method("or_")
    __ror__ = _define_protocol_method("or_", True)
    invert = __invert__ = _define_protocol_method("not_")
    lshift = __lshift__ = _define_protocol_method("lshift")
    rshift = arith_rshift = __rshift__ = _define_protocol_method("rshift")
    logical_rshift = _define_protocol_method("logical_rshift")
    __getitem__ = _define_protocol_method("indexer")
    reduce_sum = sum = _define_protocol_method("reduce_sum")
    reduce_max = _define_protocol_method("reduce_max")
    square, truncate = _define_protocol_method("square"), _define_protocol_method("truncate")
    transpose, reshape = _define_protocol_method("transpose"), _define_protocol_method("reshape")
    expand_dims, cast = _define_protocol_method("expand_dims"), _define_protocol_method("cast")
    reciprocal, write = _define_protocol_method("reciprocal"), _define_protocol_method("write")

    def __mod__(self, other: Any) -> Any:
        raise UsageError(
            "ABY3 has no remainder. On private arrays there is tfe_bench.floormod.",
            code="unsupported-operation",
            operation="mod",
        )


class ABY3PublicTensor(ABY3Tensor, TFEPublicTensor):
    """A public tensor.

    Attributes:
        value: float64 if it is scaled, else int64 or bool.
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
        """Return TensorFlow's tensor: float64, or integers of its ring."""
        if self.is_scaled:
            return tf.constant(self.value, tf.float64)
        return tf.constant(self.value.astype(self.backing_dtype.native_type.as_numpy_dtype))

    def decode(self) -> tf.Tensor:
        """Return TensorFlow's tensor, as to_native."""
        return self.to_native()

    def to_private(self, share_type: str) -> Any:
        """Share the value."""
        value = tf.constant(self.value)
        return self.prot.define_private_variable(
            value, self.is_scaled, share_type, factory=self.backing_dtype
        )


class ABY3Constant(ABY3PublicTensor):
    """A public value of the program."""


class ABY3PublicVariable(ABY3PublicTensor, TFEPublicVariable):
    """A public value that can be assigned."""

    def read_value(self) -> ABY3PublicTensor:
        """Return the present value."""
        return ABY3PublicTensor(self.prot, self.value, self.is_scaled, self.backing_dtype)


class ABY3PrivateTensor(ABY3Tensor, HeldTensor, TFEPrivateTensor):
    """A private tensor.

    Attributes:
        array: the private array: numbers, or bits; words of bits have one more axis, the lowest
            bit first.
        known: an array that this process has revealed, and its value.
        own: the value of a private input of this process.
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
        """True if an element is several bits."""
        return self.is_boolean() and self.backing_dtype != int1factory

    @property
    def shape(self) -> tf.TensorShape:
        """Its sizes."""
        sizes = self.array.shape
        return tf.TensorShape(sizes[:-1] if self.is_word else sizes)

    def like(self, array: PrivateArray, **changed: Any) -> ABY3PrivateTensor:
        """Return a tensor of another array with the same kind."""
        about = {
            "is_scaled": self.is_scaled,
            "share_type": self.share_type,
            "factory": self.backing_dtype,
            **changed,
        }
        return ABY3PrivateTensor(self.prot, array, **about)

    def reveal(self) -> ABY3PublicTensor:
        """Reveal the value to this process."""
        revealed: ABY3PublicTensor = self.prot.reveal(self)
        return revealed

    def __bool__(self) -> bool:
        raise TypeError(f"{self!r} has no public truth value. Reveal it where it may be known.")


class ABY3PrivateVariable(ABY3PrivateTensor, TFEPrivateVariable):
    """A private value that can be assigned."""

    def read_value(self) -> ABY3PrivateTensor:
        """Return the present value."""
        return self.like(self.array)


def pack_words(bits: npt.NDArray[np.bool_], nbits: int) -> npt.NDArray[np.int64]:
    """Pack bits [..., nbits] into words, two's complement."""
    weights = np.left_shift(np.uint64(1), np.arange(nbits, dtype=np.uint64))
    word = (bits.astype(np.uint64) * weights).sum(-1, dtype=np.uint64)
    unused = np.uint64(64 - nbits)
    shifted: npt.NDArray[np.int64] = np.left_shift(word, unused).astype(np.int64)
    return np.right_shift(shifted, np.int64(64 - nbits))


def unpack_words(words: npt.NDArray[np.int64], nbits: int) -> npt.NDArray[np.bool_]:
    """Return the lowest bits of words, along a new last axis."""
    bits: npt.NDArray[np.bool_] = (words[..., None] >> np.arange(nbits, dtype=np.int64)) & 1 == 1
    return bits

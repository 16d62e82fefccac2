"""What the operations for users take: private values, public ones beside them, and their scales.

A public number is rounded to the scale of the private value that it meets, as an input is.
Private integers (scale 0) meet whole numbers only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tfe_bench.errors import ProtocolError, RangeError, UsageError
from tfe_bench.protocols.ring import arithmetic, checks
from tfe_bench.protocols.ring.checks import broadcast_shapes
from tfe_bench.protocols.ring.checks import check_known_shape as sizes
from tfe_bench.protocols.session import tensor_ops
from tfe_bench.protocols.session.fixedpoint import FixedPoint
from tfe_bench.protocols.session.party import Party, current_party
from tfe_bench.protocols.session.sharing import (
    MaskedBits,
    Shared,
    describe_type,
    is_private,
)
from tfe_bench.protocols.session.types import Operand, Public

if TYPE_CHECKING:
    import tensorflow as tf

__all__ = ["broadcast_shapes", "describe_type", "is_private", "sizes"]

# Fractional bits of public reals that are only known when the graph runs, at least of all others.
WEIGHT_BITS = 16
# Public reals that are known while tracing keep as many significant bits as float32 has.
SIGNIFICANT_BITS = 24
MAX_WEIGHT_BITS = 48


def in_graph(operation: str) -> Party:
    """The running party, where it traces a graph.

    Raises:
        ProtocolError: there is no party, or the call is outside of party.function.
    """
    party = current_party()
    if not party.tracing:
        raise ProtocolError(
            f"{operation} runs inside party.function. Received: a call outside of it. "
            "Wrap the computation: f = party.function(lambda x: ...)."
        )
    return party


def between_graphs(operation: str) -> Party:
    """The running party, where it traces no graph.

    Raises:
        ProtocolError: there is no party, or the call is inside of party.function.
    """
    party = current_party()
    if party.tracing:
        raise ProtocolError(
            f"{operation} runs between graphs. Received: a call inside of party.function. "
            "Return the private tensor from the graph and call it with that."
        )
    return party


def check_private(operation: str, x: object, any_ring: bool = False) -> Shared:
    """x, if it is a private tensor over Z_2^64 (with any_ring: over any).

    Raises:
        UsageError: it is not.
    """
    return (checks.check_private if any_ring else checks.check_ring)(operation, x)


def check_integers(operation: str, x: object, expected: str, advice: str) -> Shared:
    """x, if it is a private tensor of integers and of known sizes.

    Args:
        what, advice: what the operation wants, and what to do, in words.

    Raises:
        UsageError: it is not.
    """
    private_value = check_private(operation, x)
    if private_value.fractional_bits:
        raise UsageError(f"{operation} wants {expected}. Received: {private_value!r}. {advice}")
    sizes(operation, private_value)
    return private_value


def check_bits(operation: str, bits: int, max_bits: int = 64) -> int:
    """The width of a comparison.

    Raises:
        UsageError: no integer from 2 to `most`.
    """
    if not checks.is_integer_between(bits, 2, max_bits):
        raise UsageError(
            f"{operation} wants bits as an integer from 2 to {max_bits}: values are below "
            f"2^(bits-1) ring units. Received: {bits!r}."
        )
    return int(bits)


# ---- public values


def static_value(operation: str, value: Operand) -> np.ndarray[Any, Any] | None:
    """A public value as an array; None if it is a tensor that is only known when the graph runs.

    Raises:
        UsageError: private, or no real numbers.
    """
    if is_private(value):
        raise UsageError(f"{operation} wants a public value here. Received: {value!r}.")
    if tensor_ops.is_tensor(value):
        import tensorflow as tf

        if not hasattr(value, "shape") or isinstance(value, (tf.RaggedTensor, tf.SparseTensor)):
            raise UsageError(
                f"{operation} wants dense tensors. Received: {type(value).__name__}. Convert it."
            )
        tensor: tf.Tensor = value
        kind = tensor.dtype
        if not (kind.is_floating or kind.is_integer or kind.is_bool):
            raise UsageError(f"{operation} wants real numbers. Received: {describe_type(value)}.")
        tensor = tf.convert_to_tensor(tensor)
        static_tensor = tf.get_static_value(
            tf.cast(tensor, tf.float64) if kind.is_floating else tensor
        )
        return None if static_tensor is None else np.asarray(static_tensor)
    if isinstance(value, np.ma.MaskedArray):
        raise UsageError(f"{operation} wants plain arrays. Received: a masked array. Fill it.")
    try:
        array = np.asarray(value)
    except (TypeError, ValueError, OverflowError, NotImplementedError):
        raise UsageError(
            f"{operation} wants an array of real numbers. Received: {type(value).__name__} that is "
            "ragged or holds private values. Use stack for a list of private tensors."
        ) from None
    if array.dtype.kind not in "biuf":
        raise UsageError(f"{operation} wants real numbers. Received: {describe_type(array)}.")
    return array


def public_shape(operation: str, value: Operand) -> tf.TensorShape:
    """The static shape of a public value.

    Raises:
        UsageError: as `static`.
    """
    array = static_value(operation, value)
    tensor: tf.Tensor = value
    return tensor.shape if array is None else tensor_ops.Shape(array.shape)


def encode_public(
    operation: str, value: Operand, fractional_bits: int
) -> tf.Tensor | npt.NDArray[np.int64]:
    """A public number, array or tensor as ring elements, int64: an array where it is known.

    Raises:
        RangeError: NaN, infinite or too large (where it is known while tracing).
        UsageError: no real numbers, or fractions for a private integer.
    """
    array = static_value(operation, value)
    if array is None:
        import tensorflow as tf

        tensor: tf.Tensor = value
        if not tensor.dtype.is_floating:
            return tf.cast(tensor, tf.int64) * (1 << fractional_bits)
        if fractional_bits == 0:
            raise _not_whole(operation, tensor)
        scaled = tf.round(tf.cast(tensor, tf.float64) * 2.0**fractional_bits)
        return tf.cast(scaled, tf.int64)
    if fractional_bits == 0 and array.dtype.kind == "f" and not _are_whole(array):
        raise _not_whole(operation, array)
    try:
        return FixedPoint(fractional_bits).encode(array)
    except (RangeError, UsageError) as error:
        raise type(error)(f"{operation} of a public value: {error}") from None


def _are_whole(array: np.ndarray[Any, Any]) -> bool:
    with np.errstate(invalid="ignore"):
        return bool(np.all((array == np.rint(array)) | ~np.isfinite(array)))


def _not_whole(operation: str, value: Public) -> UsageError:
    return UsageError(
        f"{operation} wants whole public numbers beside a private tensor without fractional bits. "
        f"Received: fractions ({describe_type(value)}). Give the private one a scale first: "
        f"cast(x, {WEIGHT_BITS})."
    )


def encode_weight(operation: str, value: Operand, lowest: int = 0) -> tuple[tf.Tensor, int]:
    """A public factor as ring elements, and their fractional bits.

    As few bits as make it exact; else SIGNIFICANT_BITS of the largest magnitude, WEIGHT_BITS after
    the point at least.  A factor that is only known when the graph runs: WEIGHT_BITS.

    Args:
        lowest: fractional bits that a factor has unless it is whole.
    """
    array = static_value(operation, value)
    if array is None:
        tensor: tf.Tensor = value
        bits = WEIGHT_BITS if tensor.dtype.is_floating else 0
        return encode_public(operation, value, bits), bits
    if array.dtype.kind != "f" or not np.isfinite(array).all():
        return encode_public(operation, array, 0), 0  # which refuses what is not finite
    magnitudes = np.abs(array.astype(np.float64))
    largest = float(magnitudes.max(initial=0.0))
    max_bits = SIGNIFICANT_BITS - int(np.frexp(largest)[1])
    max_bits = min(max(max_bits, WEIGHT_BITS), MAX_WEIGHT_BITS)
    bits = next((b for b in range(max_bits) if _are_whole(np.ldexp(magnitudes, b))), max_bits)
    if bits:
        bits = max(bits, lowest)
    return encode_public(operation, array, bits), bits


def as_shared(operation: str, value: Operand, like: Shared) -> Shared:
    """A private value as it is; a public one as shares with masks of zero, at the scale of `like`.

    Raises:
        UsageError, RangeError: as `private` and `encode`.
    """
    if is_private(value):
        return check_private(operation, value, any_ring=True)
    if like.limbs != 1:
        raise UsageError(
            f"{operation} takes a public operand beside 64-bit words only. Received: {like!r} and "
            f"{describe_type(value)}."
        )
    ring = encode_public(operation, value, like.fractional_bits)
    return replace(
        arithmetic.share_public(like, ring), fractional_bits=like.fractional_bits, bits=like.bits
    )


def as_shared_list(operation: str, values: Sequence[Operand]) -> list[Shared]:
    """The values of a list, at least one of them private, the others as `shared`."""
    if isinstance(values, (list, tuple)):
        first = next((v for v in values if is_private(v)), None)
        if first is not None:
            like = check_private(operation, first, any_ring=True)
            return [as_shared(operation, v, like) for v in values]
    received = (
        f"{len(values)} public" if isinstance(values, (list, tuple)) else type(values).__name__
    )
    raise UsageError(
        f"{operation} wants a list with a private tensor at least. Received: {received}. "
        "Put the tensors in a list; use TensorFlow's own operation for public ones."
    )


# ---- two operands


def share_pair(operation: str, x: Operand, y: Operand) -> tuple[Shared, Shared]:
    """Two operands as shares that fit together; one of them may be public.

    Raises:
        UsageError: no private one, or other dealers, rings, scales, or shapes that do not
            broadcast.
        RangeError: a public one that the scale does not admit.
    """
    like = either_private(operation, x, y)
    x, y = as_shared(operation, x, like), as_shared(operation, y, like)
    check_fit(operation, x, y)
    return x, y


def either_private(operation: str, x: Operand, y: Operand) -> Shared:
    """The first private one of two operands.

    Raises:
        UsageError: there is none, or private bits.
    """
    if not is_private(x) and not is_private(y):
        raise UsageError(
            f"{operation} wants a private tensor on one side. Received: {describe_type(x)} and "
            f"{describe_type(y)}. Use TensorFlow's own operation for public values."
        )
    for value in (x, y):
        if isinstance(value, MaskedBits):
            check_private(operation, value)
    return check_private(operation, x if is_private(x) else y, any_ring=True)


def check_fit(operation: str, x: Shared, y: Shared, same_scale: bool = True) -> None:
    """Raises UsageError unless two private operands have one dealer, ring and scale, and shapes
    that broadcast."""
    checks.check_pair(operation, x, y, same_scale)
    broadcast_shapes(operation, x.shape, y.shape)


def check_integer(operation: str, argument: str, value: int) -> int:
    """A public Python or numpy integer.

    Raises:
        UsageError: anything else.
    """
    if not checks.is_integer(value):
        raise UsageError(f"{operation} wants {argument} as an integer. Received: {value!r}.")
    return int(value)


def count_elements(shape: Sequence[int]) -> int:
    """How many elements a shape has."""
    return int(np.prod(shape, dtype=np.int64))

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
from tfe_bench.protocols.ring.checks import broadcast
from tfe_bench.protocols.ring.checks import known_shape as sizes
from tfe_bench.protocols.session import local
from tfe_bench.protocols.session.fixedpoint import FixedPoint
from tfe_bench.protocols.session.party import Party, current
from tfe_bench.protocols.session.sharing import (
    MaskedBits,
    Shared,
    is_private,
    kind_of,
)
from tfe_bench.protocols.session.types import Operand, Public

if TYPE_CHECKING:
    import tensorflow as tf

__all__ = ["broadcast", "is_private", "kind_of", "sizes"]

# Fractional bits of public reals that are only known when the graph runs, at least of all others.
WEIGHT_BITS = 16
# Public reals that are known while tracing keep as many significant bits as float32 has.
SIGNIFICANT_BITS = 24
MOST_WEIGHT_BITS = 48


def in_graph(operation: str) -> Party:
    """The running party, where it traces a graph.

    Raises:
        ProtocolError: there is no party, or the call is outside of party.function.
    """
    party = current()
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
    party = current()
    if party.tracing:
        raise ProtocolError(
            f"{operation} runs between graphs. Received: a call inside of party.function. "
            "Return the private tensor from the graph and call it with that."
        )
    return party


def private(operation: str, x: object, any_ring: bool = False) -> Shared:
    """x, if it is a private tensor over Z_2^64 (with any_ring: over any).

    Raises:
        UsageError: it is not.
    """
    return (checks.check_private if any_ring else checks.check_ring)(operation, x)


def integers(operation: str, x: object, what: str, advice: str) -> Shared:
    """x, if it is a private tensor of integers and of known sizes.

    Args:
        what, advice: what the operation wants, and what to do, in words.

    Raises:
        UsageError: it is not.
    """
    found = private(operation, x)
    if found.fractional_bits:
        raise UsageError(f"{operation} wants {what}. Received: {found!r}. {advice}")
    sizes(operation, found)
    return found


def bits_of(operation: str, bits: int, most: int = 64) -> int:
    """The width of a comparison.

    Raises:
        UsageError: no integer from 2 to `most`.
    """
    if not checks.is_from(bits, 2, most):
        raise UsageError(
            f"{operation} wants bits as an integer from 2 to {most}: values are below "
            f"2^(bits-1) ring units. Received: {bits!r}."
        )
    return int(bits)


# ---- public values


def static(operation: str, value: Operand) -> np.ndarray[Any, Any] | None:
    """A public value as an array; None if it is a tensor that is only known when the graph runs.

    Raises:
        UsageError: private, or no real numbers.
    """
    if is_private(value):
        raise UsageError(f"{operation} wants a public value here. Received: {value!r}.")
    if local.is_tensor(value):
        import tensorflow as tf

        if not hasattr(value, "shape") or isinstance(value, (tf.RaggedTensor, tf.SparseTensor)):
            raise UsageError(
                f"{operation} wants dense tensors. Received: {type(value).__name__}. Convert it."
            )
        tensor: tf.Tensor = value
        kind = tensor.dtype
        if not (kind.is_floating or kind.is_integer or kind.is_bool):
            raise UsageError(f"{operation} wants real numbers. Received: {kind_of(value)}.")
        tensor = tf.convert_to_tensor(tensor)
        found = tf.get_static_value(tf.cast(tensor, tf.float64) if kind.is_floating else tensor)
        return None if found is None else np.asarray(found)
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
        raise UsageError(f"{operation} wants real numbers. Received: {kind_of(array)}.")
    return array


def shape_of(operation: str, value: Operand) -> tf.TensorShape:
    """The static shape of a public value.

    Raises:
        UsageError: as `static`.
    """
    known = static(operation, value)
    tensor: tf.Tensor = value
    return tensor.shape if known is None else local.Shape(known.shape)


def encode(
    operation: str, value: Operand, fractional_bits: int
) -> tf.Tensor | npt.NDArray[np.int64]:
    """A public number, array or tensor as ring elements, int64: an array where it is known.

    Raises:
        RangeError: NaN, infinite or too large (where it is known while tracing).
        UsageError: no real numbers, or fractions for a private integer.
    """
    known = static(operation, value)
    if known is None:
        import tensorflow as tf

        tensor: tf.Tensor = value
        if not tensor.dtype.is_floating:
            return tf.cast(tensor, tf.int64) * (1 << fractional_bits)
        if fractional_bits == 0:
            raise _not_whole(operation, tensor)
        scaled = tf.round(tf.cast(tensor, tf.float64) * 2.0**fractional_bits)
        return tf.cast(scaled, tf.int64)
    if fractional_bits == 0 and known.dtype.kind == "f" and not _are_whole(known):
        raise _not_whole(operation, known)
    try:
        return FixedPoint(fractional_bits).encode(known)
    except (RangeError, UsageError) as error:
        raise type(error)(f"{operation} of a public value: {error}") from None


def _are_whole(known: np.ndarray[Any, Any]) -> bool:
    with np.errstate(invalid="ignore"):
        return bool(np.all((known == np.rint(known)) | ~np.isfinite(known)))


def _not_whole(operation: str, value: Public) -> UsageError:
    return UsageError(
        f"{operation} wants whole public numbers beside a private tensor without fractional bits. "
        f"Received: fractions ({kind_of(value)}). Give the private one a scale first: "
        f"cast(x, {WEIGHT_BITS})."
    )


def encode_weight(operation: str, value: Operand, lowest: int = 0) -> tuple[tf.Tensor, int]:
    """A public factor as ring elements, and their fractional bits.

    As few bits as make it exact; else SIGNIFICANT_BITS of the largest magnitude, WEIGHT_BITS after
    the point at least.  A factor that is only known when the graph runs: WEIGHT_BITS.

    Args:
        lowest: fractional bits that a factor has unless it is whole.
    """
    known = static(operation, value)
    if known is None:
        tensor: tf.Tensor = value
        bits = WEIGHT_BITS if tensor.dtype.is_floating else 0
        return encode(operation, value, bits), bits
    if known.dtype.kind != "f" or not np.isfinite(known).all():
        return encode(operation, known, 0), 0  # which refuses what is not finite
    magnitudes = np.abs(known.astype(np.float64))
    largest = float(magnitudes.max(initial=0.0))
    most = SIGNIFICANT_BITS - int(np.frexp(largest)[1])
    most = min(max(most, WEIGHT_BITS), MOST_WEIGHT_BITS)
    bits = next((b for b in range(most) if _are_whole(np.ldexp(magnitudes, b))), most)
    if bits:
        bits = max(bits, lowest)
    return encode(operation, known, bits), bits


def shared(operation: str, value: Operand, like: Shared) -> Shared:
    """A private value as it is; a public one as shares with masks of zero, at the scale of `like`.

    Raises:
        UsageError, RangeError: as `private` and `encode`.
    """
    if is_private(value):
        return private(operation, value, any_ring=True)
    if like.limbs != 1:
        raise UsageError(
            f"{operation} takes a public operand beside 64-bit words only. Received: {like!r} and "
            f"{kind_of(value)}."
        )
    ring = encode(operation, value, like.fractional_bits)
    return replace(
        arithmetic.public(like, ring), fractional_bits=like.fractional_bits, bits=like.bits
    )


def all_shared(operation: str, values: Sequence[Operand]) -> list[Shared]:
    """The values of a list, at least one of them private, the others as `shared`."""
    if isinstance(values, (list, tuple)):
        first = next((v for v in values if is_private(v)), None)
        if first is not None:
            like = private(operation, first, any_ring=True)
            return [shared(operation, v, like) for v in values]
    what = f"{len(values)} public" if isinstance(values, (list, tuple)) else type(values).__name__
    raise UsageError(
        f"{operation} wants a list with a private tensor at least. Received: {what}. "
        "Put the tensors in a list; use TensorFlow's own operation for public ones."
    )


# ---- two operands


def pair(operation: str, x: Operand, y: Operand) -> tuple[Shared, Shared]:
    """Two operands as shares that fit together; one of them may be public.

    Raises:
        UsageError: no private one, or other dealers, rings, scales, or shapes that do not
            broadcast.
        RangeError: a public one that the scale does not admit.
    """
    like = either_private(operation, x, y)
    x, y = shared(operation, x, like), shared(operation, y, like)
    check_fit(operation, x, y)
    return x, y


def either_private(operation: str, x: Operand, y: Operand) -> Shared:
    """The first private one of two operands.

    Raises:
        UsageError: there is none, or private bits.
    """
    if not is_private(x) and not is_private(y):
        raise UsageError(
            f"{operation} wants a private tensor on one side. Received: {kind_of(x)} and "
            f"{kind_of(y)}. Use TensorFlow's own operation for public values."
        )
    for value in (x, y):
        if isinstance(value, MaskedBits):
            private(operation, value)
    return private(operation, x if is_private(x) else y, any_ring=True)


def check_fit(operation: str, x: Shared, y: Shared, same_scale: bool = True) -> None:
    """Raises UsageError unless two private operands have one dealer, ring and scale, and shapes
    that broadcast."""
    checks.check_pair(operation, x, y, same_scale)
    broadcast(operation, x.shape, y.shape)


def integer(operation: str, what: str, value: int) -> int:
    """A public Python or numpy integer.

    Raises:
        UsageError: anything else.
    """
    if not checks.is_integer(value):
        raise UsageError(f"{operation} wants {what} as an integer. Received: {value!r}.")
    return int(value)


def elements(shape: Sequence[int]) -> int:
    """How many elements a shape has."""
    return int(np.prod(shape, dtype=np.int64))

"""Operands of the public operations: private values, public values with them, and their scales.

A public number is rounded to the scale of the private operand, as an input is. Private integers
(scale 0) combine with whole numbers only.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ParamSpec, TypeVar

import numpy as np
import numpy.typing as npt

from tfe_bench.errors import ProtocolError, RangeError, UsageError
from tfe_bench.lazy_tensorflow import tf
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

__all__ = ["broadcast_shapes", "describe_type", "is_private", "sizes"]

# Fractional bits of public reals that are known only when the graph runs; others have at least as
# many unless fewer are exact.
WEIGHT_BITS = 16
# Significant bits of public reals known while tracing: those of float32.
SIGNIFICANT_BITS = 24
MAX_WEIGHT_BITS = 48

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")


def require_party_in_graph(operation: str) -> Party:
    """Return the running party, which must be tracing a graph.

    Raises:
        ProtocolError: there is no party, or the call is outside party.function.
    """
    party = current_party()
    if not party.tracing:
        raise ProtocolError(
            f"{operation} runs inside party.function. Received: a call outside of it. "
            "Wrap the computation: f = party.function(lambda x: ...).",
            code="outside-party-function",
            operation=operation,
        )
    return party


def require_party_between_graphs(operation: str) -> Party:
    """Return the running party, which must not be tracing a graph.

    Raises:
        ProtocolError: there is no party, or the call is inside party.function.
    """
    party = current_party()
    if party.tracing:
        raise ProtocolError(
            f"{operation} runs between graphs. Received: a call inside party.function. "
            f"Return the private tensor from the graph and call {operation} with it.",
            code="inside-party-function",
            operation=operation,
        )
    return party


def check_private_operand(operation: str, x: object, any_ring: bool = False) -> Shared:
    """Return x, which must be a private tensor over Z_2^64 (with any_ring: over any).

    Raises:
        UsageError: it is not.
    """
    return (checks.check_private if any_ring else checks.check_private_64bit_tensor)(operation, x)


def check_arguments(
    *private_operands: str,
    check: Callable[[str, Any], Shared] = check_private_operand,
    scale: tuple[int, int] | None = None,
    max_bits: int | None = None,
    known: bool = False,
    in_graph: bool = True,
) -> Callable[[Callable[_Parameters, _Result]], Callable[_Parameters, _Result]]:
    """Check the arguments of a public operation before it runs.

    Args:
        private_operands: names of the parameters that are private; `x` if there is no name.
        check: check of each of them, which returns it.
        scale: fewest and most fractional bits of each.
        max_bits: the largest width `bits` of a comparison; None for an operation without one.
        known: True: sizes are known while tracing.
        in_graph: True: the operation runs inside party.function only.
    """

    def wrap_operation(function: Callable[_Parameters, _Result]) -> Callable[_Parameters, _Result]:
        call: Any = function
        name, signature = function.__name__, inspect.signature(function)

        @functools.wraps(function)
        def check_and_call(*args: _Parameters.args, **named: _Parameters.kwargs) -> _Result:
            try:
                bound = signature.bind(*args, **named)
            except TypeError:
                return function(*args, **named)  # Python's error names the function.
            bound.apply_defaults()
            arguments = bound.arguments
            for operand in private_operands or ("x",):
                x = arguments[operand] = check(name, arguments[operand])
                if scale is not None:
                    checks.check_fractional_bits_range(name, x, *scale)
                if known:
                    sizes(name, x)
            if max_bits is not None:
                arguments["bits"] = check_comparison_width(name, arguments["bits"], max_bits)
            if in_graph:
                require_party_in_graph(name)
            result: _Result = call(*bound.args, **bound.kwargs)
            return result

        return check_and_call

    return wrap_operation


def check_integer_operand(operation: str, x: object, expected: str, advice: str) -> Shared:
    """Return x, which must be a private tensor of integers with known sizes.

    Args:
        expected, advice: the expected operand, and what to do, for the error.

    Raises:
        UsageError: it is not.
    """
    private_value = check_private_operand(operation, x)
    if private_value.fractional_bits:
        raise UsageError(
            f"{operation} expects {expected}. Received: {private_value!r}. {advice}",
            code="unsupported-scale",
            operation=operation,
            received=repr(private_value),
            expected=expected,
        )
    sizes(operation, private_value)
    return private_value


def check_comparison_width(operation: str, bits: int, max_bits: int = 64) -> int:
    """Return the width of a comparison.

    Raises:
        UsageError: it is not an integer from 2 to `max_bits`.
    """
    description = f"bits as an integer from 2 to {max_bits}: values are below 2^(bits-1) ring units"
    return check_integer_range(operation, bits, 2, max_bits, description)


def check_integer_range(
    operation: str,
    value: int | None,
    lowest: int,
    highest: int,
    description: str,
    expected: str = "",
    advice: str = "",
) -> int:
    """Return a public integer.

    Args:
        description, expected, advice: the expected number in words and (by default the range) as
            a field of the error, and what to do, with a space before it.

    Raises:
        UsageError: the value is not an integer within the range.
    """
    if not checks.is_integer_between(value, lowest, highest):
        raise UsageError(
            f"{operation} expects {description}. Received: {value!r}.{advice}",
            code="number-out-of-range",
            operation=operation,
            received=value,
            expected=expected or f"{lowest} to {highest}",
        )
    return int(value)


def check_same_dealer(operation: str, x: Any, y: Any, description: str = "one dealer") -> None:
    """Raise UsageError unless two private values, or bits, have one dealer."""
    if x.dealer != y.dealer:
        raise UsageError(
            f"{operation} expects {description}. Received: {x!r} and {y!r}.",
            code="dealer-mismatch",
            operation=operation,
            received=f"{x!r} and {y!r}",
        )


# ---- public values


def static_public_operand(operation: str, value: Operand) -> np.ndarray[Any, Any] | None:
    """Return a public value as an array; None for a tensor that is known only when the graph runs.

    Raises:
        UsageError: the value is private, or not of real numbers.
    """
    if is_private(value):
        raise UsageError(
            f"{operation} expects a public value here. Received: {value!r}.",
            code="not-public",
            operation=operation,
            received=repr(value),
        )
    if tensor_ops.is_tensor(value):
        if not hasattr(value, "shape") or isinstance(value, (tf.RaggedTensor, tf.SparseTensor)):
            raise UsageError(
                f"{operation} expects dense tensors. Received: {type(value).__name__}. Convert it.",
                code="unsupported-type",
                operation=operation,
                received=type(value).__name__,
            )
        tensor: tf.Tensor = value
        kind = tensor.dtype
        if not (kind.is_floating or kind.is_integer or kind.is_bool):
            raise UsageError(
                f"{operation} expects real numbers. Received: {describe_type(value)}.",
                code="not-a-number",
                operation=operation,
                received=describe_type(value),
            )
        tensor = tf.convert_to_tensor(tensor)
        static_tensor = tf.get_static_value(
            tf.cast(tensor, tf.float64) if kind.is_floating else tensor
        )
        return None if static_tensor is None else np.asarray(static_tensor)
    if isinstance(value, np.ma.MaskedArray):
        raise UsageError(
            f"{operation} expects plain arrays. Received: a masked array. Fill it.",
            code="masked-array",
            operation=operation,
            received="a masked array",
        )
    try:
        array = np.asarray(value)
    except (TypeError, ValueError, OverflowError, NotImplementedError):
        raise UsageError(
            f"{operation} expects an array of real numbers. Received: "
            f"{type(value).__name__} that is ragged or holds private values. Use stack "
            "for a list of private tensors.",
            code="ragged-array",
            operation=operation,
            received=type(value).__name__,
        ) from None
    if array.dtype.kind not in "biuf":
        raise UsageError(
            f"{operation} expects real numbers. Received: {describe_type(array)}.",
            code="not-a-number",
            operation=operation,
            received=describe_type(array),
        )
    return array


def static_number(operation: str, value: Operand, noun: str) -> np.ndarray[Any, Any]:
    """Return one public number that is known while tracing.

    Raises:
        UsageError: as `static_public_operand`, or the value is an array or not known.
    """
    number = static_public_operand(operation, value)
    if number is None or number.ndim:
        raise UsageError(
            f"{operation} expects one public number {noun}. Received: {describe_type(value)}.",
            code="not-static" if number is None else "rank-mismatch",
            operation=operation,
            received=describe_type(value),
        )
    return number


def public_shape(operation: str, value: Operand) -> tf.TensorShape:
    """Return the static shape of a public value.

    Raises:
        UsageError: as `static_value`.
    """
    array = static_public_operand(operation, value)
    tensor: tf.Tensor = value
    return tensor.shape if array is None else tensor_ops.Shape(array.shape)


def encode_public(
    operation: str, value: Operand, fractional_bits: int
) -> tf.Tensor | npt.NDArray[np.int64]:
    """Encode a public number, array or tensor as ring elements, int64; an array if it is known.

    Raises:
        RangeError: the value is NaN, infinite or too large (if it is known while tracing).
        UsageError: it has no real numbers, or fractions for a private integer.
    """
    array = static_public_operand(operation, value)
    if array is None:
        tensor: tf.Tensor = value
        if not tensor.dtype.is_floating:
            return tf.cast(tensor, tf.int64) * (1 << fractional_bits)
        if fractional_bits == 0:
            raise _public_fractions_error(operation, tensor)
        scaled = tf.round(tf.cast(tensor, tf.float64) * 2.0**fractional_bits)
        return tf.cast(scaled, tf.int64)
    if fractional_bits == 0 and array.dtype.kind == "f" and not _are_whole(array):
        raise _public_fractions_error(operation, array)
    try:
        return FixedPoint(fractional_bits).encode(array)
    except (RangeError, UsageError) as error:
        raise error.with_text(f"{operation} of a public value: {error}", operation) from None


def _are_whole(array: np.ndarray[Any, Any]) -> bool:
    with np.errstate(invalid="ignore"):
        return bool(np.all((array == np.rint(array)) | ~np.isfinite(array)))


def _public_fractions_error(operation: str, value: Public) -> UsageError:
    return UsageError(
        f"{operation} expects whole public numbers with a private tensor without "
        f"fractional bits. Received: fractions ({describe_type(value)}). Give the "
        f"private tensor a scale first: cast(x, {WEIGHT_BITS}).",
        code="not-whole",
        operation=operation,
        received=describe_type(value),
    )


def encode_public_weight(operation: str, value: Operand, lowest: int = 0) -> tuple[tf.Tensor, int]:
    """Encode a public factor as ring elements, and return them with their fractional bits.

    The factor has as few bits as make it exact; otherwise SIGNIFICANT_BITS of the largest
    magnitude, and at least WEIGHT_BITS fractional bits. A factor that is known only when the graph
    runs has WEIGHT_BITS.

    Args:
        lowest: fewest fractional bits of a factor that is not whole.
    """
    array = static_public_operand(operation, value)
    if array is None:
        tensor: tf.Tensor = value
        bits = WEIGHT_BITS if tensor.dtype.is_floating else 0
        return encode_public(operation, value, bits), bits
    if array.dtype.kind != "f" or not np.isfinite(array).all():
        return encode_public(operation, array, 0), 0  # rejects numbers that are not finite
    magnitudes = np.abs(array.astype(np.float64))
    largest = float(magnitudes.max(initial=0.0))
    max_bits = SIGNIFICANT_BITS - int(np.frexp(largest)[1])
    max_bits = min(max(max_bits, WEIGHT_BITS), MAX_WEIGHT_BITS)
    bits = next((b for b in range(max_bits) if _are_whole(np.ldexp(magnitudes, b))), max_bits)
    if bits:
        bits = max(bits, lowest)
    return encode_public(operation, array, bits), bits


def share_operand(operation: str, value: Operand, like: Shared) -> Shared:
    """Return a private value as it is; share a public one with masks of zero, at like's scale.

    Raises:
        UsageError, RangeError: as `check_private` and `encode_public`.
    """
    if is_private(value):
        return check_private_operand(operation, value, any_ring=True)
    if like.limbs != 1:
        raise UsageError(
            f"{operation} accepts a public operand with 64-bit words only. Received: "
            f"{like!r} and {describe_type(value)}.",
            code="unsupported-ring",
            operation=operation,
            received=f"{like!r} and {describe_type(value)}",
        )
    ring = encode_public(operation, value, like.fractional_bits)
    return replace(
        arithmetic.share_public(like, ring), fractional_bits=like.fractional_bits, bits=like.bits
    )


def share_operand_list(operation: str, values: Sequence[Operand]) -> list[Shared]:
    """Return the values of a list as by `as_shared`; at least one of them must be private."""
    if isinstance(values, (list, tuple)):
        first = next((v for v in values if is_private(v)), None)
        if first is not None:
            like = check_private_operand(operation, first, any_ring=True)
            return [share_operand(operation, v, like) for v in values]
    received = (
        f"{len(values)} public" if isinstance(values, (list, tuple)) else type(values).__name__
    )
    raise UsageError(
        f"{operation} expects a list with at least one private tensor. Received: "
        f"{received}. Put the tensors in a list; use TensorFlow's own operation for "
        "public ones.",
        code="not-private",
        operation=operation,
        received=received,
    )


# ---- two operands


def share_operand_pair(operation: str, x: Operand, y: Operand) -> tuple[Shared, Shared]:
    """Return two operands as shares with matching scales and shapes; one of them may be public.

    Raises:
        UsageError: neither is private, or dealers, rings, scales or shapes do not fit.
        RangeError: a public operand does not fit the scale.
    """
    like = either_private(operation, x, y)
    x, y = share_operand(operation, x, like), share_operand(operation, y, like)
    check_fit(operation, x, y)
    return x, y


def either_private(operation: str, x: Operand, y: Operand) -> Shared:
    """Return the first private one of two operands.

    Raises:
        UsageError: neither is private, or one has private bits.
    """
    if not is_private(x) and not is_private(y):
        raise UsageError(
            f"{operation} expects at least one private tensor. Received: "
            f"{describe_type(x)} and {describe_type(y)}. Use TensorFlow's own operation "
            "for public values.",
            code="not-private",
            operation=operation,
            received=f"{describe_type(x)} and {describe_type(y)}",
        )
    for value in (x, y):
        if isinstance(value, MaskedBits):
            check_private_operand(operation, value)
    return check_private_operand(operation, x if is_private(x) else y, any_ring=True)


def check_fit(operation: str, x: Shared, y: Shared, same_scale: bool = True) -> None:
    """Raise UsageError unless dealers, rings, scales and shapes of two private operands fit."""
    checks.check_private_pair(operation, x, y, same_scale)
    broadcast_shapes(operation, x.shape, y.shape)


def check_integer_argument(operation: str, argument: str, value: int) -> int:
    """Return a public Python or numpy integer.

    Raises:
        UsageError: the value is not an integer.
    """
    if not checks.is_integer(value):
        raise UsageError(
            f"{operation} expects {argument} as an integer. Received: {value!r}.",
            code="not-an-integer",
            operation=operation,
            received=value,
            expected="an integer",
        )
    return int(value)


def count_elements(shape: Sequence[int]) -> int:
    """Return the number of elements of a shape."""
    return int(np.prod(shape, dtype=np.int64))

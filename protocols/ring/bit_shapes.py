"""Private bits in functions that move elements: a public map of positions moves both halves alike.

b = masked ^ beta element by element, so that a reshape, a slice or a gather of masked at the
evaluators and of beta at the dealer is one of b. Padding zeros are zeros in both.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar, cast

from tfe_bench.errors import UsageError
from tfe_bench.protocols.ring import logic
from tfe_bench.protocols.session import tensor_ops
from tfe_bench.protocols.session.sharing import MaskedBits, Shared

_Function = TypeVar("_Function", bound=Callable[..., Any])


def accept_private_bits(function: _Function) -> _Function:
    """Extend a function that moves elements of a tensor, or of a list of them, to private bits."""

    @functools.wraps(function)
    def apply_to_bits(x: Any, *args: Any, **named: Any) -> Any:
        operands = x if isinstance(x, (list, tuple)) else [x]
        if not any(isinstance(operand, MaskedBits) for operand in operands):
            return function(x, *args, **named)
        views = [_view_bits_as_sharing(function.__name__, operand) for operand in operands]
        like = operands[0]
        result = function(views if operands is x else views[0], *args, **named)
        return (
            [_pack_sharing_into_bits(like, v) for v in result]
            if isinstance(result, list)
            else _pack_sharing_into_bits(like, result)
        )

    return cast(_Function, apply_to_bits)


def _view_bits_as_sharing(operation: str, bits: object) -> Shared:
    """Return the half that this party holds, as the field of a sharing of 0 and 1."""
    if not isinstance(bits, MaskedBits):
        raise UsageError(
            f"{operation} expects either numbers or private bits, not both. "
            f"Received: {type(bits).__name__}.",
            code="mixed-operands",
            operation=operation,
            received=type(bits).__name__,
        )
    if bits.shape is None or None in bits.shape:
        raise UsageError(
            f"{operation} expects bits of a known shape. Received: {bits!r}.",
            code="unknown-shape",
            operation=operation,
            received=repr(bits),
        )
    held_bits = tensor_ops.reshape(logic.unpack_bits(bits), list(bits.shape))
    m, l1 = (None, held_bits) if bits.masked is None else (held_bits, None)
    return Shared(m, l1, None, dealer=bits.dealer)


def _pack_sharing_into_bits(like: MaskedBits, view: Shared) -> MaskedBits:
    shape = tuple(int(n) for n in view.shape.as_list())
    held_bits = view.l1 if view.m is None else view.m
    n = tensor_ops.Shape(shape).num_elements()
    words = logic.pack_bits(tensor_ops.reshape(held_bits, [1, n]))[0]
    return replace(logic.replace_packed_bit_words(like, words, n), shape=shape)

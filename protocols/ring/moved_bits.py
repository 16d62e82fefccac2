"""Private bits through what moves elements about: a public map of places moves either half alike.

b = masked ^ beta element by element, so that a reshape, a slice or a gather of masked at the
evaluators and of beta at the dealer is one of b.  Zeros that come in are zeros in both.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar, cast

from tfe_bench.errors import UsageError
from tfe_bench.protocols.ring import logic
from tfe_bench.protocols.session import local
from tfe_bench.protocols.session.sharing import MaskedBits, Shared

_Function = TypeVar("_Function", bound=Callable[..., Any])


def bits_too(function: _Function) -> _Function:
    """A function that moves elements of a tensor, or of a list of them, for bits as well."""

    @functools.wraps(function)
    def moved(x: Any, *args: Any, **named: Any) -> Any:
        several = x if isinstance(x, (list, tuple)) else [x]
        if not any(isinstance(each, MaskedBits) for each in several):
            return function(x, *args, **named)
        views = [_view(function.__name__, each) for each in several]
        like = several[0]
        made = function(views if several is x else views[0], *args, **named)
        return [_bits(like, v) for v in made] if isinstance(made, list) else _bits(like, made)

    return cast(_Function, moved)


def _view(operation: str, bits: object) -> Shared:
    """The half that this party holds, as the field of a sharing of 0 and 1."""
    if not isinstance(bits, MaskedBits):
        raise UsageError(
            f"{operation} wants numbers or private bits, not both. Received: {type(bits).__name__}."
        )
    if bits.shape is None or None in bits.shape:
        raise UsageError(f"{operation} wants bits of a known shape. Received: {bits!r}.")
    held = local.reshape(logic.unpacked(bits), list(bits.shape))
    m, l1 = (None, held) if bits.masked is None else (held, None)
    return Shared(m, l1, None, dealer=bits.dealer)


def _bits(like: MaskedBits, view: Shared) -> MaskedBits:
    shape = tuple(int(n) for n in view.shape.as_list())
    held = view.l1 if view.m is None else view.m
    n = local.Shape(shape).num_elements()
    words = logic.packed(local.reshape(held, [1, n]))[0]
    return replace(logic.held_as(like, words, n), shape=shape)

"""What all protocols have in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

from tfe_bench.errors import UsageError


class Protocol:
    """A protocol; as a context, the current one within it."""

    def __enter__(self) -> Self:
        self._last = get_protocol()
        set_protocol(self)
        return self

    def __exit__(self, *_: object) -> None:
        set_protocol(self._last)

    def reset(self) -> None:
        """Nothing is kept."""


class TFETensor:
    """A tensor of a protocol."""


class TFEVariable(TFETensor):
    """One that is assigned to."""


class TFEPrivateTensor(TFETensor):
    """A private one."""


class TFEPrivateVariable(TFEPrivateTensor, TFEVariable):
    """A private one that is assigned to."""


class TFEPublicTensor(TFETensor):
    """A public one."""


class TFEPublicVariable(TFEPublicTensor, TFEVariable):
    """A public one that is assigned to."""


def function(func: Callable[..., Any]) -> Callable[..., Any]:
    """The function itself: what it computes is gathered up to the next reveal, and traced there."""
    return func


def memoize(func: Callable[..., Any]) -> Callable[..., Any]:
    """The function itself: equal parts of an expression are computed once anyway."""
    return func


_current: list[Protocol | None] = [None]


def get_protocol() -> Protocol | None:
    """The current protocol."""
    return _current[0]


def require_protocol() -> Any:
    """The current protocol.

    Raises:
        UsageError: there is none.
    """
    if _current[0] is None:
        raise UsageError("There is no current protocol. Call set_protocol(ABY3()) first.")
    return _current[0]


def set_protocol(prot: Protocol | None = None) -> None:
    """Another current protocol, whose methods are functions of tfe_bench.tf_encrypted.

    Raises:
        UsageError: no protocol.
    """
    if prot is not None and not isinstance(prot, Protocol):
        raise UsageError(f"set_protocol takes a protocol. Received: {type(prot).__name__}.")
    _current[0] = prot

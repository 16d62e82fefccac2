"""The common base of all protocols."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

from tfe_bench.errors import UsageError


class Protocol:
    """A protocol; as a context manager, the current one within the block."""

    def __enter__(self) -> Self:
        self._last = get_protocol()
        set_protocol(self)
        return self

    def __exit__(self, *_: object) -> None:
        set_protocol(self._last)

    def reset(self) -> None:
        """Do nothing: a protocol has no state."""


class TFETensor:
    """A tensor of a protocol."""


class TFEVariable(TFETensor):
    """A tensor that can be assigned."""


class TFEPrivateTensor(TFETensor):
    """A private tensor."""


class TFEPrivateVariable(TFEPrivateTensor, TFEVariable):
    """A private tensor that can be assigned."""


class TFEPublicTensor(TFETensor):
    """A public tensor."""


class TFEPublicVariable(TFEPublicTensor, TFEVariable):
    """A public tensor that can be assigned."""


def function(func: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function: its operations are collected up to the next reveal, and traced there."""
    return func


def memoize(func: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function: equal parts of an expression are computed once anyway."""
    return func


_current: list[Protocol | None] = [None]


def get_protocol() -> Protocol | None:
    """Return the current protocol."""
    return _current[0]


def require_protocol() -> Any:
    """Return the current protocol.

    Raises:
        UsageError: no protocol is set.
    """
    if _current[0] is None:
        raise UsageError(
            "There is no current protocol. Call set_protocol(ABY3()) first.",
            code="no-current-protocol",
        )
    return _current[0]


def set_protocol(prot: Protocol | None = None) -> None:
    """Set the current protocol, whose methods are functions of tfe_bench.tf_encrypted.

    Raises:
        UsageError: the argument is no protocol.
    """
    if prot is not None and not isinstance(prot, Protocol):
        raise UsageError(
            f"set_protocol takes a protocol. Received: {type(prot).__name__}.",
            code="wrong-type",
            operation="prot",
            received=type(prot).__name__,
        )
    _current[0] = prot

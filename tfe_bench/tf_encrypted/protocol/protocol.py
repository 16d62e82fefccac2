"""What all protocols have in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self


class Protocol:
    """A protocol; as a context, the current one within it."""

    def __enter__(self) -> Self:
        from tfe_bench.tf_encrypted.protocol.current import get_protocol, set_protocol

        self._last = get_protocol()
        set_protocol(self)
        return self

    def __exit__(self, *_: object) -> None:
        from tfe_bench.tf_encrypted.protocol.current import set_protocol

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

"""The protocol that is current: what the module's functions are methods of."""

from __future__ import annotations

from typing import Any

from tfe_bench.errors import UsageError
from tfe_bench.tf_encrypted.protocol.protocol import Protocol

_current: list[Protocol | None] = [None]


def get_protocol() -> Protocol | None:
    """The current protocol."""
    return _current[0]


def current() -> Any:
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

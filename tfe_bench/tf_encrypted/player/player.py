"""A player's name; here every player is the process that writes the program."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Player:
    """A name in a program.

    Attributes:
        index: in order of their names' appearance.
        device_name: kept for programs that print it.
        host: of a remote configuration.
    """

    name: str
    index: int
    device_name: str
    host: str | None = None

"""Slots: the messages of a protocol, declared where its site starts.

    s = party.site("b2a", slots={0: slots.declare_dealt(13), 1: slots.declare_exchanged(13)})

A slot has a number, the roles that send and receive it, and the bits of an element. A message of
another slot, or between other roles, is refused while the graph is traced. The primitives of
ring/masked.py and `Site.receive_dealt` derive the sizes of messages from the declaration.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from tfe_bench.errors import ProtocolError

# Roles: party (dealer + role) mod 3.
D, E1, E2 = 0, 1, 2
ROLE_NAMES: Final = ("the dealer", "E1", "E2")
WORD: Final = 64


@dataclass(frozen=True)
class Slot:
    """A message of a site.

    Attributes:
        routes: pairs of the roles that send and receive it.
        fields: bits of the fields of an element. Fields of one kind are packed together.
        times: number of times that an element has these fields.
        unit: bits to which a field of all elements is padded: 8, or 64 for a message of words.
    """

    routes: tuple[tuple[int, int], ...]
    fields: tuple[int, ...]
    times: int = 1
    unit: int = 8

    @property
    def element_bits(self) -> int:
        """Bits of an element."""
        return self.times * sum(self.fields)

    def count_units(self, n: Any) -> Any:
        """Return the bytes, or words, of a message of n elements; n may be a tensor."""
        total = 0
        for width in dict.fromkeys(self.fields):
            whole, rest = divmod(width, self.unit)
            units = (n * width + self.unit - 1) // self.unit if rest else n * whole
            total = units * (self.times * self.fields.count(width)) + total
        return total

    def count_bits(self, n: int) -> int:
        """Return the bits of a message of n elements."""
        return self.unit * int(self.count_units(n))


Slots = Mapping[int, Slot]
NO_SLOTS: Final[Slots] = {}


def declare_dealt(*fields: int, times: int = 1, unit: int = 8) -> Slot:
    """Return a message of D to E2; by default one word per element."""
    return Slot(((D, E2),), fields or (WORD,), times, unit)


def declare_exchanged(width: int = WORD, *, times: int = 1, unit: int = 8) -> Slot:
    """Return messages of E1 and E2 to each other; by default one word per element."""
    return Slot(((E1, E2), (E2, E1)), (width,), times, unit)


def declare_sent(*routes: tuple[int, int], width: int = WORD, unit: int = 8) -> Slot:
    """Return a message on other routes, pairs of sender and receiver."""
    return Slot(routes, (width,), 1, unit)


def find_slot(slots: Slots, number: int, site: str, route: tuple[int, int] | None = None) -> Slot:
    """Return a declared slot.

    Args:
        route: the roles that send and receive the message; None: any.

    Raises:
        ProtocolError: the site declares no such message.
    """
    slot = slots.get(number)
    if slot is None or (route is not None and route not in slot.routes):
        between = "" if route is None else " from {} to {}".format(*(ROLE_NAMES[r] for r in route))
        raise ProtocolError(
            f"Expected a message that its site declares. Received: slot {number} of {site}"
            f"{between}. Declare it: `party.site({site!r}, ..., slots={{{number}: ...}})`.",
            code="undeclared-slot",
            operation=site,
            received=number,
        )
    return slot

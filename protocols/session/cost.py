"""The cost of a protocol, as data that tests compare with the wire.

Payload only: the channel adds a header of 48 bytes to each piece of a message.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Cost:
    """Bits that each role sends, and messages on the critical path.

    Attributes:
        dealer, e1, e2: payload bits that the role sends.
        rounds: online rounds: the correlated randomness has arrived.
        with_dealing: total rounds (offline + online): the dealer starts together with the
            evaluators.
    """

    dealer: int
    e1: int
    e2: int
    rounds: int
    with_dealing: int

    @property
    def total(self) -> int:
        """Bits sent by all three parties."""
        return self.dealer + self.e1 + self.e2

    def by_party(self, dealer: int) -> tuple[int, int, int]:
        """Return the bits sent by parties 0, 1 and 2 when `dealer` deals."""
        roles = (self.dealer, self.e1, self.e2)
        return tuple(roles[(party - dealer) % 3] for party in range(3))  # type: ignore[return-value]


def words_for_bits(n: int) -> int:
    """Return the number of 64-bit words that hold n packed bits."""
    return -(-n // 64)


def packed_bits(n: int, width: int) -> int:
    """Return the bits on the wire for n values of `width` bits, packed into whole bytes."""
    return -(-n * width // 8) * 8

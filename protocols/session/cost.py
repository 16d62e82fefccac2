"""What a protocol costs, as data that tests compare with the wire.

Payload only: the channel adds a header of 48 bytes to each piece of a message.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Cost:
    """Bits that each role sends, and messages on the critical path.

    Attributes:
        dealer, e1, e2: payload bits sent by the role.
        rounds: online, with the dealer's material already there.
        with_dealing: when the dealer starts together with the evaluators.
    """

    dealer: int
    e1: int
    e2: int
    rounds: int
    with_dealing: int

    @property
    def total(self) -> int:
        """Bits sent by all three."""
        return self.dealer + self.e1 + self.e2

    def by_party(self, dealer: int) -> tuple[int, int, int]:
        """Bits sent by party 0, 1, 2 when `dealer` deals."""
        roles = (self.dealer, self.e1, self.e2)
        return tuple(roles[(party - dealer) % 3] for party in range(3))  # type: ignore[return-value]


def words_for_bits(n: int) -> int:
    """64-bit words that n packed bits take."""
    return -(-n // 64)


def packed_bits(n: int, width: int) -> int:
    """Bits on the wire for n values of `width` bits, back to back, in whole bytes."""
    return -(-n * width // 8) * 8

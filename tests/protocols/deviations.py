"""A party that departs from its protocol: it alters the messages that it sends (joint_views.py)."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from tfe_bench.protocols.session.slots import Slot

Words = np.ndarray[Any, Any]


class Message(NamedTuple):
    """A message of a run; steps count from its beginning, slot -1 is an opened result."""

    step: int
    iteration: int
    site: int
    slot: int
    source: int


class Deviation(NamedTuple):
    """An alteration of messages that one party sends.

    Attributes:
        how: one of `ALTERATIONS`.
        slot: name of the site and number of the only slot that is altered; None: all.
    """

    party: int
    how: str
    slot: tuple[str, int] | None = None

    def alter_words(
        self,
        message: Message,
        site: str,
        slot: Slot,
        words: Words,
        honest: Mapping[Message, Words],
    ) -> Words:
        """Return the words that the party sends in place of a message.

        Args:
            honest: messages of a run without alterations.
        """
        if words.size == 0 or (self.slot is not None and self.slot != (site, message.slot)):
            return words
        flat = words.reshape(-1).copy()
        if self.how == "add one":
            flat += flat.dtype.type(1)
        elif self.how == "add half":
            flat ^= mark_top_bits(slot, flat.nbytes).view(flat.dtype)
        elif self.how == "swap two":
            flat[[0, -1]] = flat[[-1, 0]]
        elif self.how == "zeros":
            flat[:] = 0
        elif self.how == "another slot":
            flat = find_other_words(message, flat, honest)
        else:
            random = np.random.default_rng(zlib.crc32(repr(message).encode()))
            flat = np.frombuffer(random.bytes(flat.nbytes), flat.dtype)
        return flat.reshape(words.shape)


ALTERATIONS = ("add one", "add half", "swap two", "zeros", "another slot", "random")


def list_deviations() -> list[Deviation]:
    """Return each alteration of all messages of each party."""
    return [Deviation(party, how) for party in range(3) for how in ALTERATIONS]


def list_single_deviations(sent: Iterable[tuple[int, str, int]]) -> list[Deviation]:
    """Return one alteration of each single slot, given as party, name of the site, and number."""
    return [
        Deviation(party, ALTERATIONS[i % len(ALTERATIONS)], (site, slot))
        for i, (party, site, slot) in enumerate(sorted(sent))
    ]


def sample_deviations(seed: int, name: str) -> list[Deviation]:
    """Return one alteration of all messages of each party, drawn for an entry of the catalogue."""
    ways = np.random.default_rng([seed, zlib.crc32(name.encode())]).choice(ALTERATIONS, 3)
    return [Deviation(party, str(how)) for party, how in enumerate(ways)]


def count_elements(slot: Slot, bits: int) -> int | None:
    """Return a number of elements of a slot's message of these bits; None: it has no such size."""
    n = bits // slot.element_bits
    while slot.count_bits(n) > bits:
        n -= 1
    return n if slot.count_bits(n) == bits else None


def mark_top_bits(slot: Slot, size: int) -> Words:
    """Return `size` bytes whose ones are the highest bits of a message's elements."""
    n = count_elements(slot, 8 * size)
    assert n is not None
    bits, begin = np.zeros(8 * size, np.uint8), 0
    for _ in range(slot.times):
        for width in slot.fields:
            bits[begin + width - 1 + width * np.arange(n)] = 1
            begin += -(-n * width // slot.unit) * slot.unit
    return np.packbits(bits, bitorder="little")


def find_other_words(message: Message, words: Words, honest: Mapping[Message, Words]) -> Words:
    """Return another message of the same size; the same words in another order if there is none."""

    def list_others() -> Iterator[Message]:
        for other, sent in sorted(honest.items()):
            if other != message and sent.dtype == words.dtype and sent.size == words.size:
                yield other

    others = list(list_others())
    following = [other for other in others if other > message] or others
    return honest[following[0]].reshape(-1) if following else np.roll(words, 1)

"""The row of a protocol in the catalogue, and functions that its programs share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.protocols.seeded import Fault
from tfe_bench.protocols.ring import compare, convert, truncation
from tfe_bench.protocols.session import tensor_ops
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import MaskedBits, Shared

SIDE = 128
WORDS = SIDE * SIDE  # elements of an input where statistics examine messages
K = 5  # bits of comparisons that only feed other protocols
SMALL = 19  # bits of small rings in joint views
LOOSE = 24  # bits of small rings in statistics: whole bytes


@dataclass(frozen=True)
class Entry:
    """A protocol whose messages are examined.

    Attributes:
        run: function of two private tensors, run as one graph, for joint views, the log of pads
            and the cost; None for a protocol of which only statistics are made.
        sites: names of the sites that it tests.
        n: elements of each input of `run`.
        publishes: results of reveal may be left unexplained.
        whole: the protocol makes and runs its own graphs.
        slow: it takes too long for daily runs; other entries test its sites too.
        scalable: `run` takes any number of elements.
        counted: False if no cost party can run it: the test of the protocol checks its cost.
        many: function of the party, two private tensors of WORDS elements, and a public tensor of
            the first one's values, for statistics of each message; None for no statistics.
        compared: number of comparisons at a time in `many`.
        faults: by description, errors that leave the result of `run` as it is.
    """

    run: Callable[[Party, Shared, Shared], Any] | None
    sites: tuple[str, ...] = ()
    n: int = 3
    limbs: int = 1
    fractional_bits: int = 0
    publishes: bool = False
    whole: bool = False
    slow: bool = False
    scalable: bool = False
    counted: bool = True
    many: Callable[..., Any] | None = None
    compared: int = WORDS
    faults: Mapping[str, Fault] = field(default_factory=dict)


def reshape_shares(x: Shared, *shape: int) -> Shared:
    return x.map(lambda a: tensor_ops.reshape(a, shape))


def sign_bits(party: Party, x: Shared, bits: int = K, exchanges: int | None = 1) -> MaskedBits:
    return convert.mask_bits(party, compare.msb(party, x, bits, exchanges))


def shrink_ring(party: Party, x: Shared, bits: int = SMALL) -> Shared:
    return truncation.truncate_reduce(party, x, 16, bits)

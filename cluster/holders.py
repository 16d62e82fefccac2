"""Comparison of the copies that the two holders of each field of a shared value have."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from tfe_bench.protocols.session.party import Party


def find_differing_peer(party: Party, own_fields: Mapping[str, bytes | memoryview]) -> int | None:
    """Return the first peer with another copy of a field than this party, or None.

    Only the two holders of a field compare it: the third could find a small value by its digest.

    Args:
        own_fields: this party's two fields of "m", "l1" and "l2", or seeds in place of them.

    Bits sent: 256 to each peer.
    """
    d, e1, e2 = ((party.dealer + i) % 3 for i in range(3))
    fields = {d: {e1: "l1", e2: "l2"}, e1: {d: "l1", e2: "m"}, e2: {d: "l2", e1: "m"}}
    our_digests = {
        peer: hashlib.sha256(own_fields.get(name, b"")).digest()
        for peer, name in fields[party.index].items()
    }
    their_digests = party.exchange_each(our_digests)
    return next(
        (peer for peer, digest in our_digests.items() if their_digests[peer] != digest), None
    )

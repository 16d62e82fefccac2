"""The log of pads, parsed."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from tfe_bench.cluster.simulate import Simulation

Array = np.ndarray[Any, Any]
KEY_OF_ROLE = {1: 1, 2: 0, 3: 2}  # as seen from the dealer: K1 = (D, E1), K2 = (D, E2), K3


def fields_of(pads: Array) -> dict[str, Array]:
    """Return the numbers in a counter."""
    hi, lo = pads["hi"].astype(object), pads["lo"].astype(object)
    return {
        "site": hi >> 40,
        "step": hi & (2**40 - 1),
        "iteration": lo >> 44,
        "dealer": lo >> 42 & 3,
        "role": lo >> 40 & 3,
        "tensor": lo >> 32 & 255,
        "block": lo & (2**32 - 1),
    }


def assert_one_message_each(sim: Simulation) -> Array:
    """Check that each mask of a recorded simulation hides one message; return the sent pads."""
    sent: Array = sim.pads[sim.pads["sent"] == 1]
    names = set(zip(sent["key"], sent["hi"], sent["lo"], strict=True))
    words = set(zip(sent["key"], sent["hi"], sent["lo"], sent["digest"], strict=True))
    assert len(names) == len(words) == len(sent)
    return sent


def words_under_one_pad(pads: Array) -> int:
    """Return counters under which more than one word, or more than one party's word, was sent."""
    sent = pads[pads["sent"] == 1]
    words: dict[Any, set[Any]] = {}
    for key, hi, lo, digest, party in sent[["key", "hi", "lo", "digest", "party"]].tolist():
        words.setdefault((key, hi, lo), set()).add((digest, party))
    return sum(len(w) > 1 for w in words.values())


def repeated_words(pads: Array) -> list[Any]:
    """Return sites at which two steps or iterations sent equal words, or made equal pads."""
    visited: dict[Any, Any] = {}
    repeated = []
    for i, record in enumerate(pads):
        site = int(record["hi"]) >> 40
        word = (int(record["digest"]), int(record["party"]))
        counter = (int(record["hi"]), int(record["lo"]), int(record["key"]), int(record["sent"]))
        # one pad may become a share in several places; other counters must give other words
        if visited.setdefault((site, word), (i, counter))[1] != counter:
            repeated.append((site, counter))
    return repeated


def assert_counters(pads: Array, *dealers: int) -> None:
    """Check that counters are the documented fields, and that no two streams overlap."""
    f = fields_of(pads)
    assert set(f["dealer"]) <= set(dealers) and set(f["role"]) <= {1, 2, 3}
    assert set(f["block"]) <= {0}
    assert min(f["site"]) >= 1 and min(f["step"]) >= 1
    for key, role, party, dealer in zip(
        pads["key"], f["role"], pads["party"], f["dealer"], strict=True
    ):
        assert key == (dealer + KEY_OF_ROLE[role]) % 3
        assert key in (party, (party + 1) % 3)  # the maker of the pad holds its key
    reach: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for key, hi, lo, size in pads[["key", "hi", "lo", "bytes"]].tolist():
        reach.setdefault((key, hi), []).append((lo, lo + -(-size // 16)))
    for ranges in reach.values():
        ordered = sorted({(start, max(e for s, e in ranges if s == start)) for start, _ in ranges})
        assert all(a[1] <= b[0] for a, b in pairwise(ordered))

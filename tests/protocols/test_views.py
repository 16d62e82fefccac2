"""The parties' views do not depend on private values: a walk over the catalogue's `many`."""

from __future__ import annotations

import functools
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from tests.protocols.catalogue import VIEWED
from tests.protocols.entry import Entry
from tests.protocols.views import (
    ALPHA,
    CAUGHT_BY,
    SECRETS,
    all_checks,
    failing_checks,
    frozen_checks,
    plane_checks,
    run_views,
)
from tfe_bench.protocols.ring import compare
from tfe_bench.protocols.session import io
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared


@dataclass(frozen=True)
class Findings:
    """What the checks of two traced runs found: one without faults, one with each of them.

    Attributes:
        received: the messages that the parties received in one call.
        failing: names of the checks that fail.
        faulty: the same of frozen shares, by seeded fault.
    """

    received: int
    failing: set[str]
    faulty: dict[str | None, set[str]]


@functools.cache
def examine_views(name: str, seed: int) -> Findings:
    rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
    run = run_views(VIEWED[name], rng, dealer=int(rng.integers(3)))
    faulty = run_views(VIEWED[name], rng, SECRETS[-1:], list(CAUGHT_BY)).faulty
    return Findings(
        sum(len(view.received) for view in run.frozen[0]),
        failing_checks(all_checks(run)),
        {fault: failing_checks(frozen_checks(views)) for fault, views in faulty.items()},
    )


@pytest.mark.parametrize("name", VIEWED)
def test_received_messages_are_uniform_and_independent_of_secret_and_own_shares(
    name: str, process_seed: int
) -> None:
    findings = examine_views(name, process_seed)
    assert findings.received > 0
    assert findings.failing == set()


@pytest.mark.parametrize("name", VIEWED)
@pytest.mark.parametrize(("fault", "caught_by"), CAUGHT_BY.items())
def test_frozen_shares_show_a_seeded_mask_fault(
    name: str, fault: str, caught_by: str, process_seed: int
) -> None:
    assert caught_by in examine_views(name, process_seed).faulty[fault]


@pytest.mark.parametrize("fault", ["drop_mask", "reuse_block"])
def test_statistics_of_fresh_shares_show_a_seeded_mask_fault(
    fault: str, rng: np.random.Generator
) -> None:
    run = run_views(VIEWED["truncate_safe"], rng, fault=fault)
    assert failing_checks(all_checks(run)) & {"uniform", "neighbors", "own share", "secret"}


# ---- the opening of bits, where the receivers may learn exactly the result


def open_signs(party: Party, x: Shared, y: Shared, plain: Any) -> Any:
    return io.reveal_bits(party, compare.msb(party, x))


OPEN_SIGNS = Entry(None, many=open_signs)


def test_revealed_bits_give_away_nothing_but_themselves(rng: np.random.Generator) -> None:
    """Check that every single message is uniform.

    The dealer's two messages, and an evaluator's message with its own share, determine the bits.
    (The masks of the comparison generate the evaluators' shares of them.)
    """
    run = run_views(OPEN_SIGNS, rng)
    p_values = []
    for secret, views in run.fresh.items():
        for party, view in enumerate(views):
            messages = [m for m in view.received if m.name == "reveal_bits"]
            assert len(messages) == (2 if party == 0 else 1)
            for message in messages:
                p_values += [p for _, p in plane_checks(message, view)]
            if party == 0:
                sums = messages[0].data ^ messages[1].data
                assert (sums == (-1 if secret >= 2**63 else 0)).all()
    assert min(p_values) * len(p_values) > ALPHA


def test_dropped_masks_show_in_revealed_bits(rng: np.random.Generator) -> None:
    run = run_views(OPEN_SIGNS, rng, SECRETS[-1:], fault="drop_mask")
    assert "frozen" in failing_checks(frozen_checks(run.frozen))

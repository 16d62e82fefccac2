"""The parties' views do not depend on private values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.protocols.viewed import ALPHA, PROTOCOLS, SECRETS
from tests.protocols.views import (
    Tap,
    failing_checks,
    frozen_checks,
    plane_checks,
    received_messages,
    run_views,
)
from tfe_bench.protocols.ring import (
    compare,
)
from tfe_bench.protocols.session import io
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared


@pytest.mark.parametrize("name", PROTOCOLS)
def test_received_messages_are_uniform_and_independent_of_secret_and_own_shares(
    name: str, tap: Tap, rng: np.random.Generator
) -> None:
    run = run_views(tap, PROTOCOLS[name], rng, dealer=int(rng.integers(3)))
    assert received_messages(run) > 0
    assert failing_checks(run) == set()


@pytest.mark.parametrize("name", PROTOCOLS)
@pytest.mark.parametrize(
    ("fault", "caught_by"),
    [("drop_mask", "frozen"), ("reuse_block", "frozen"), ("reuse_counter", "frozen again")],
)
def test_frozen_shares_show_a_seeded_mask_fault(
    name: str, fault: str, caught_by: str, tap: Tap, rng: np.random.Generator
) -> None:
    run = run_views(tap, PROTOCOLS[name], rng, SECRETS[-1:], fault=fault)
    assert caught_by in failing_checks(run, frozen_checks)


@pytest.mark.parametrize("fault", ["drop_mask", "reuse_block"])
def test_statistics_of_fresh_shares_show_a_seeded_mask_fault(
    fault: str, tap: Tap, rng: np.random.Generator
) -> None:
    run = run_views(tap, PROTOCOLS["truncate_safe"], rng, fault=fault)
    assert failing_checks(run) & {"uniform", "neighbors", "own share", "secret"}


# ---- the opening of bits, where the receivers may learn exactly the result


def open_signs(party: Party, x: Shared, y: Shared, plain: Any) -> Any:
    return io.reveal_bits(party, compare.msb(party, x))


def test_revealed_bits_give_away_nothing_but_themselves(tap: Tap, rng: np.random.Generator) -> None:
    """Check that every single message is uniform.

    The dealer's two messages, and an evaluator's message with its own share, determine the bits.
    (The masks of the comparison generate the evaluators' shares of them.)
    """
    run = run_views(tap, open_signs, rng)
    p_values = []
    for secret, views in run.fresh.items():
        for party, view in enumerate(views):
            messages = [m for m in view.received if m.name == "reveal_bits"]
            assert len(messages) == (2 if party == 0 else 1)
            for message in messages:
                p_values += [p for _, p in plane_checks(message, view.own)]
            if party == 0:
                sums = messages[0].data ^ messages[1].data
                assert (sums == (-1 if secret >= 2**63 else 0)).all()
    assert min(p_values) * len(p_values) > ALPHA


def test_dropped_masks_show_in_revealed_bits(tap: Tap, rng: np.random.Generator) -> None:
    run = run_views(tap, open_signs, rng, SECRETS[-1:], fault="drop_mask")
    assert "frozen" in failing_checks(run, frozen_checks)

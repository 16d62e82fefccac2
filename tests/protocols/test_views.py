"""The parties' views do not depend on private values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.protocols.viewed import ALPHA, PROTOCOLS, SECRETS
from tests.protocols.views import Tap, failing, frozen_checks, plane_checks, received, watch
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
    run = watch(tap, PROTOCOLS[name], rng, dealer=int(rng.integers(3)))
    assert received(run) > 0
    assert failing(run) == set()


@pytest.mark.parametrize("name", PROTOCOLS)
@pytest.mark.parametrize(
    ("fault", "caught_by"),
    [("drop_mask", "frozen"), ("reuse_block", "frozen"), ("reuse_counter", "frozen again")],
)
def test_frozen_shares_show_a_seeded_mask_fault(
    name: str, fault: str, caught_by: str, tap: Tap, rng: np.random.Generator
) -> None:
    run = watch(tap, PROTOCOLS[name], rng, SECRETS[-1:], fault=fault)
    assert caught_by in failing(run, frozen_checks)


@pytest.mark.parametrize("fault", ["drop_mask", "reuse_block"])
def test_statistics_of_fresh_shares_show_a_seeded_mask_fault(
    fault: str, tap: Tap, rng: np.random.Generator
) -> None:
    run = watch(tap, PROTOCOLS["truncate_safe"], rng, fault=fault)
    assert failing(run) & {"uniform", "neighbors", "own share", "secret"}


# ---- the opening of bits, where the receivers may learn exactly the result


def published(party: Party, x: Shared, y: Shared, plain: Any) -> Any:
    return io.reveal_bits(party, compare.msb(party, x))


def test_revealed_bits_give_away_nothing_but_themselves(tap: Tap, rng: np.random.Generator) -> None:
    """Check that every single message is uniform.

    The dealer's two messages, and an evaluator's message with its own share, determine the bits.
    (The masks of the comparison generate the evaluators' shares of them.)
    """
    run = watch(tap, published, rng)
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
    run = watch(tap, published, rng, SECRETS[-1:], fault="drop_mask")
    assert "frozen" in failing(run, frozen_checks)

"""The known attack of a worker that deviates: opened targets of rows tell private targets.

The targets of `arrange.permute_by_target` are opened in a shuffled order, and their errors with
them.  Party 2 adds a number to its own masked values before the shuffle, so that the opened values
name the rows they belong to.  The others find afterwards that the values are no permutation.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.refusals import raises
from tfe_bench.cluster.simulate import simulate
from tfe_bench.errors import PolicyError, ProtocolError
from tfe_bench.protocols.order import sort
from tfe_bench.protocols.ring import small_ring
from tfe_bench.protocols.session.openings import SHUFFLED_POSITIONS, OpeningLog
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared
from tfe_bench.protocols.tables import arrange

N = 64
DEVIATING = 2
Array = np.ndarray[Any, Any]


class _DeviatingWorker:
    """Party 2, which adds errors to its masked values and keeps what is opened to it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, errors: Array) -> None:
        self.opened = np.zeros(0, np.int64)
        self._errors = errors
        open_column = arrange.SecretShuffle.open_column

        def keep_opened(secret_shuffle: arrange.SecretShuffle, column: Shared) -> Any:
            opened = open_column(secret_shuffle, column)
            if secret_shuffle._party.index == DEVIATING:
                self.opened = opened.numpy()
            return opened

        monkeypatch.setattr(arrange.SecretShuffle, "open_column", keep_opened)

    def permute(self, party: Party, target: Shared) -> None:
        """Run the protocol, with the errors at party 2."""
        if party.index == DEVIATING:
            target = replace(target, m=target.m + self._errors)
        arrange.permute_by_target(party, target)


def test_a_deviating_evaluator_learns_all_opened_targets_of_64_bits(
    monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator
) -> None:
    targets = rng.permutation(N)
    worker = _DeviatingWorker(monkeypatch, np.arange(N) << 20)
    with raises(ProtocolError, "invalid-row-targets"):
        simulate(worker.permute, targets)
    learned = dict(zip(worker.opened >> 20, worker.opened & (1 << 20) - 1, strict=True))
    assert [learned[row] for row in range(N)] == targets.tolist()


@pytest.mark.parametrize("width", [sort.sort_index_bits(N), sort.sort_index_bits(N) + 1])
def test_a_deviating_evaluator_learns_a_chosen_target_in_the_rings_of_joins(
    monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator, width: int
) -> None:
    """Check rings of log2 n and log2 n + 1 bits: the target that is missing is the chosen row's."""
    targets, row = rng.permutation(N), int(rng.integers(N))
    worker = _DeviatingWorker(monkeypatch, np.eye(N, dtype=np.int64)[row] << (width - 1))

    def program(party: Party, target: Shared) -> None:
        worker.permute(party, party.function(lambda x: small_ring.reduce_ring(x, width))(target))

    with raises(ProtocolError, "invalid-row-targets"):
        simulate(program, targets)
    [learned] = set(range(N)) - set((worker.opened & (1 << width) - 1).tolist())
    assert learned == targets[row]


@pytest.mark.parametrize("refuses", [True, False])
def test_sealed_the_honest_workers_open_no_targets(
    monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator, refuses: bool
) -> None:
    """Check a job that is sealed, also if the deviating worker does not refuse."""
    worker = _DeviatingWorker(monkeypatch, np.arange(N) << 20)
    sent: dict[int, int] = {}

    def program(party: Party, target: Shared) -> None:
        if party.index == DEVIATING and not refuses:
            party.openings = OpeningLog()
        try:
            worker.permute(party, target)
        finally:
            sent[party.index] = party.sent_bytes

    with raises(PolicyError, "opening-not-permitted", operation=SHUFFLED_POSITIONS):
        simulate(program, rng.permutation(N), permitted=())
    assert sent[0] == sent[1] == 0 and not len(worker.opened)

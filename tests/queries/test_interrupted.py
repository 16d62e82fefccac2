"""Workers that are killed while privacy is spent: every answer is charged."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.paths import ROOT
from tests.queries.test_noise import make_budgeted, rows_of
from tests.queries.test_spending import Workers
from tests.refusals import raises
from tfe_bench.cluster import ledger
from tfe_bench.errors import PolicyError
from tfe_bench.queries.programs import query

ROWS = make_budgeted(rows_of(12, 1), budget=ledger.parse_privacy_loss("0.3"))


def _kill_process(*_: Any, **__: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def main(at: str, moment: str) -> None:
    """Send a query in a process that ends at a given moment, as by a loss of power."""
    folder = Path(at)
    write, place, charge = ledger.PrivacyLedger._write, os.replace, query.charge

    def written(self: Any, name: str, loss: int) -> None:
        write(self, name, loss)
        if self._party == 1:
            _kill_process()

    def placed(source: Any, target: Any) -> None:
        if str(target).endswith(ledger.SUFFIX):
            _kill_process()
        place(source, target)

    def charged(*about: Any) -> None:
        charge(*about)
        _kill_process()

    with pytest.MonkeyPatch.context() as patch:
        match moment:
            case "before a record is in place":
                patch.setattr(os, "replace", placed)
            case "after one has written":
                patch.setattr(ledger.PrivacyLedger, "_write", written)
            case "before the answer":
                patch.setattr(query, "charge", charged)
        Workers(folder).ask_query("0.1")
    (folder / "answered").touch()


# Smallest charge at each worker, by the moment; none exceeds the requested loss.
MOMENTS = {
    "before a record is in place": ("0", "0", "0"),
    "after one has written": ("0", "0.1", "0"),
    "before the answer": ("0.1", "0.1", "0.1"),
    "after the answer": ("0.1", "0.1", "0.1"),
}


@pytest.mark.parametrize(
    "moment",
    [m if m == "before the answer" else pytest.param(m, marks=pytest.mark.slow) for m in MOMENTS],
)
def test_a_process_that_is_killed_has_spent_what_it_answered(tmp_path: Path, moment: str) -> None:
    before = Workers(tmp_path)
    before.put_table(ROWS)
    before.close()
    asking = f"import sys; from {main.__module__} import main; main(*sys.argv[1:])"
    command = [sys.executable, "-c", asking, str(tmp_path), moment]
    status = subprocess.run(command, cwd=ROOT, timeout=240).returncode
    answered = moment == "after the answer"
    assert status == (0 if answered else -signal.SIGKILL)
    assert (tmp_path / "answered").exists() == answered
    again = Workers(tmp_path)
    try:
        spent = [ledger.parse_privacy_loss(s) if s != "0" else 0 for s in again.list_spent]
        least = [ledger.parse_privacy_loss(s) if s != "0" else 0 for s in MOMENTS[moment]]
        assert all(
            a <= s <= ledger.parse_privacy_loss("0.1") for a, s in zip(least, spent, strict=True)
        ), spent
        most = max(spent)
        # the next query continues with the largest charge of any worker
        assert again.ask_query("0.15").value(lambda out: out["rows"]).shape == (2, 1)
        assert (
            again.list_spent
            == [ledger.format_privacy_loss(most + ledger.parse_privacy_loss("0.15"))] * 3
        )
        if most:
            # (the first worker, which checks a plan before admission, may have a smaller charge)
            with raises(PolicyError, "budget-exhausted", expected="0.05"):
                again.ask_query("0.1")
            assert again.list_spent == ["0.25"] * 3
        again.put_table(ROWS, anew=True)
        assert (
            again.list_spent
            == [ledger.format_privacy_loss(most + ledger.parse_privacy_loss("0.15"))] * 3
        )
    finally:
        again.close()

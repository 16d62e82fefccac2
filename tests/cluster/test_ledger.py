"""Spent privacy stays spent, to the last billionth, however a worker stops."""

from __future__ import annotations

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.paths import ROOT
from tests.refusals import raises
from tfe_bench.cluster.ledger import (
    SUFFIX,
    UNIT,
    PrivacyLedger,
    PrivacyLossCharge,
    format_privacy_loss,
    parse_privacy_loss,
)
from tfe_bench.errors import DataError, PolicyError, SecurityError, UsageError


def make_charge(loss: str, budget: str = "0.3") -> PrivacyLossCharge:
    return PrivacyLossCharge("bank", parse_privacy_loss(budget), parse_privacy_loss(loss))


def test_a_budget_is_spent_to_its_exact_edge_and_no_further(tmp_path: Path) -> None:
    PrivacyLedger(tmp_path, 0).charge_tables({"t": make_charge("0.1")})
    PrivacyLedger(tmp_path, 0).charge_tables({"t": make_charge("0.2")})  # as after a restart
    with raises(
        PolicyError, "budget-exhausted", operation="t", received="0.000000001", expected="0"
    ):
        PrivacyLedger(tmp_path, 0).charge_tables({"t": make_charge("0.000000001")})
    assert PrivacyLedger(tmp_path, 0).get_spent("t") == parse_privacy_loss("0.3")
    (file,) = tmp_path.iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    with raises(
        PolicyError, "budget-exhausted", operation="t", expected="0"
    ):  # its owner allows less than before
        PrivacyLedger(tmp_path, 0).charge_tables({"t": make_charge("0.1", "0.2")})


def test_a_query_spends_of_all_its_tables_or_of_none(tmp_path: Path) -> None:
    ledger = PrivacyLedger(tmp_path, 1)
    with raises(PolicyError, "budget-exhausted", operation="u"):
        ledger.charge_tables({"t": make_charge("0.1"), "u": make_charge("0.4")})
    assert not list(tmp_path.iterdir())
    ledger.charge_tables({"t": make_charge("0.1"), "u": make_charge("0.3")})
    ledger.delete_record("u")
    ledger.delete_record("u")
    assert (ledger.get_spent("t"), ledger.get_spent("u")) == (UNIT // 10, 0)


def test_the_most_that_a_worker_knows_of_counts(tmp_path: Path) -> None:
    ledger = PrivacyLedger(tmp_path, 2)
    ledger.charge_tables({"t": make_charge("0.1")}, [{"t": 0}, {"t": parse_privacy_loss("0.2")}])
    assert ledger.get_spent("t") == parse_privacy_loss("0.3")
    for other in ({}, {"t": -1}, {"t": True}, {"t": "1"}):
        with pytest.raises(SecurityError):
            ledger.charge_tables({"t": make_charge("0.1", "9")}, [other])  # type: ignore[list-item]
    assert ledger.get_spent("t") == parse_privacy_loss("0.3")


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"{", b"[]", b"[" * 5000),
        b'{"format": 1, "name": "u", "party": 0, "spent": 0}',
        b'{"format": 1, "name": "t", "party": 1, "spent": 0}',
        b'{"format": 2, "name": "t", "party": 0, "spent": 0}',
        b'{"format": 1, "name": "t", "party": 0, "spent": -1}',
        b'{"format": 1, "name": "t", "party": 0, "spent": 0.5}',
    ],
)
def test_a_record_that_cannot_be_read_allows_nothing(tmp_path: Path, content: bytes) -> None:
    (tmp_path / f"t{SUFFIX}").write_bytes(content)
    with pytest.raises(SecurityError):
        PrivacyLedger(tmp_path, 0).charge_tables({"t": make_charge("0.1")})


def test_what_cannot_be_written_is_not_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with raises(DataError, "ledger-not-writable", received="No space left on device") as refused:
        PrivacyLedger(tmp_path, 0).charge_tables({"t": make_charge("0.1")})
    assert not list(tmp_path.iterdir())
    assert str(tmp_path) not in str(refused.value)  # a client reads it


def test_nothing_that_a_worker_runs_writes_files_by_what_names_their_path() -> None:
    """Errors of `atomic.write_atomically` contain the file's path: it is for commands alone."""
    users = {
        str(file.relative_to(ROOT))
        for folder in (
            *("cluster", "models", "protocols", "benchmarks/workloads"),
            *("tfe_bench/queries", "tfe_bench/arrays"),
        )
        for file in (ROOT / folder).rglob("*.py")
        if "atomic.write_atomically(" in file.read_text(encoding="utf-8")
    }
    assert users == set()


def test_queries_at_once_spend_no_more_than_there_is(tmp_path: Path) -> None:
    ledger = PrivacyLedger(tmp_path, 0)

    def spends(_: int) -> bool:
        try:
            ledger.charge_tables({"t": make_charge("0.03")})
        except PolicyError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(spends, range(24))) == 10
    assert ledger.get_spent("t") == parse_privacy_loss("0.3")


@pytest.mark.parametrize("text", ["0.000000001", "1000000", "0.5", "12"])
def test_a_loss_is_read_as_it_is_shown(text: str) -> None:
    assert format_privacy_loss(parse_privacy_loss(text)) == text


@pytest.mark.parametrize(
    "text", ["0", "-1", "1e3", "nan", "", "1000000.000000001", "0.0000000001", "٣", "1.", " 1"]
)
def test_what_is_no_loss_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_privacy_loss(text)

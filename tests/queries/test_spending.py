"""Privacy is spent at all three workers, on disk before a result is sent, and never in excess."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.queries.asked import ANALYST, OWNER, StoredTable
from tests.queries.test_noise import make_budgeted, rows_of
from tests.refusals import raises
from tfe_bench.cli import table
from tfe_bench.cluster import ledger
from tfe_bench.cluster.jobs import Context, InputSpec
from tfe_bench.cluster.simulate import Simulation, simulate
from tfe_bench.cluster.store import ShareStore
from tfe_bench.cluster.stored import TABLE
from tfe_bench.cluster.stored_shares import StorageRequest, StoredEntry
from tfe_bench.errors import PolicyError, TfeBenchError, UsageError
from tfe_bench.protocols.session.party import Party
from tfe_bench.queries import sql
from tfe_bench.queries.programs import query, table_put, table_remove
from tfe_bench.queries.rights import TableAccess
from tfe_bench.queries.schema import TableSchema

TEXT = "select count(*) n from t"


class Workers:
    """Folders of three workers, and the programs of tables on them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.stores = [ShareStore(folder / str(p), p, 64, 16, 9) for p in range(3)]

    def close(self) -> None:
        for store in self.stores:
            store.close()

    def run(self, program: Any, client: str, parameters: Any, *inputs: Any) -> Simulation:
        specs = [InputSpec("words", tuple(words.shape), 0) for words in inputs]

        def carried_out(party: Party, *arguments: Any) -> Any:
            store = self.stores[party.index]
            request = program.admit(parameters, specs)
            if program.permit is not None:
                program.permit(client, store, request, specs)
            held = {"words": arguments[0]} if arguments else {}
            context = Context(
                *(party, parameters, held, lambda f, t: None, {}, client, store), request=request
            )
            return program.run(context)

        return simulate(carried_out, *inputs)

    def put_table(self, inputs: StoredTable, anew: bool = False) -> None:
        order = StorageRequest("t", [ANALYST], anew, inputs.schema.to_header()).to_parameters()
        self.run(table_put.PROGRAM, OWNER, order, inputs.words)

    def remove_table(self) -> None:
        self.run(table_remove.PROGRAM, OWNER, {"name": "t"})

    def read_table(self) -> TableAccess:
        [row] = self.stores[0].for_kind(TABLE).list_visible(ANALYST)
        schema = TableSchema.from_header(row["about"])
        facts = ("t", row["owner"], row["deployment"], schema, ANALYST, row["spent"])
        return TableAccess(*facts)

    def ask_query(self, rho: str, program: Any = query.PROGRAM) -> Simulation:
        plan = sql.compile_sql(TEXT, {"t": self.read_table()}, loss=ledger.parse_privacy_loss(rho))
        return self.run(program, ANALYST, {"plan": plan})

    @property
    def list_spent(self) -> list[str]:
        return [ledger.format_privacy_loss(store.ledger.get_spent("t")) for store in self.stores]


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[Workers]:
    stores = Workers(tmp_path)
    stores.put_table(make_budgeted(rows_of(12, 1), budget=ledger.parse_privacy_loss("0.3")))
    yield stores
    stores.close()


def test_what_is_spent_stays_spent_until_the_table_is_removed(
    workers: Workers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = workers.ask_query("0.1").value(lambda out: out["rows"])
    assert result.shape == (2, 1) and workers.list_spent == ["0.1"] * 3
    workers.put_table(
        make_budgeted(rows_of(5, 2), budget=ledger.parse_privacy_loss("0.3")), anew=True
    )
    workers.close()
    again = Workers(tmp_path)  # as after a restart
    assert again.list_spent == [
        "0.1"
    ] * 3 and again.read_table().spent == ledger.parse_privacy_loss("0.1")
    again.ask_query("0.1")
    with raises(PolicyError, "budget-exhausted", operation="t", received="0.2", expected="0.1"):
        again.ask_query("0.2")
    # one worker has a larger charge: all use it
    again.stores[1].ledger.charge_tables(
        {"t": ledger.PrivacyLossCharge(OWNER, 10**9, ledger.parse_privacy_loss("0.05"))}
    )
    with raises(PolicyError, "budget-exhausted", expected="0.05"):
        again.ask_query("0.1")
    again.ask_query("0.04")
    assert again.list_spent == ["0.29"] * 3
    # a worker that cannot write releases nothing; the others have charged, unless it failed
    # earlier
    monkeypatch.setattr(ledger.PrivacyLedger, "_write", _fail_write(ledger.PrivacyLedger._write))
    with pytest.raises(TfeBenchError, match="full"):
        again.ask_query("0.001")
    assert {*again.list_spent[:2]} <= {"0.29", "0.291"} and again.list_spent[2] == "0.29"
    monkeypatch.undo()
    again.remove_table()
    again.put_table(make_budgeted(rows_of(5, 2), budget=ledger.parse_privacy_loss("0.3")))
    assert again.list_spent == ["0"] * 3
    again.stores[2].ledger._record_path("t").write_text("{}")
    with raises(TfeBenchError, "ledger-not-readable"):
        again.ask_query("0.1")
    assert again.stores[2].for_kind(TABLE).list_visible(ANALYST)[0]["spent"] == ledger.MOST
    again.close()


def _fail_write(write: Any) -> Any:
    def write_or_fail(self: Any, name: str, loss: int) -> None:
        if self._party == 2:
            raise UsageError("full")
        write(self, name, loss)

    return write_or_fail


def check_charged_before(workers: Workers, due: str) -> None:
    """Check the three disks at the moment when a worker sends its part of a result."""
    charges = []

    def watched(context: Context) -> Any:
        outputs = query.run_query(context)
        charges.append(workers.list_spent)
        return outputs

    workers.ask_query("0.1", replace(query.PROGRAM, run=watched))
    assert charges == [[due] * 3] * 3


def test_it_is_charged_before_anything_leaves(
    workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_charged_before(workers, "0.1")
    # as workers that charge after they have sent their results
    monkeypatch.setattr(query, "charge", lambda *_: None)
    with pytest.raises(AssertionError):
        check_charged_before(workers, "0.2")


def test_queries_at_once_cannot_both_have_the_last(workers: Workers) -> None:
    def asks(_: int) -> bool:
        try:
            workers.ask_query("0.2")
        except TfeBenchError:
            return False
        return True

    with ThreadPoolExecutor(2) as pool:
        released = sum(pool.map(asks, range(2)))
    assert released <= 1 and max(workers.list_spent) == "0.2"


def test_a_list_of_tables_says_what_is_left(capsys: pytest.CaptureFixture[str]) -> None:
    inputs = make_budgeted(rows_of(3, 1), budget=ledger.parse_privacy_loss("0.3"))
    facts = {"owner": OWNER, "clients": None, "deployment": "0" * 32, "complete": True}
    about = {"about": inputs.schema.to_header(), "spent": ledger.parse_privacy_loss("0.1")}
    kept = StoredEntry.from_row({"name": "t", **facts, **about})
    for json in (True, False):
        assert table._print_tables(argparse.Namespace(json=json), {"t": kept}, OWNER) == 0
    first, *rest = capsys.readouterr().out.split("\n")
    assert '"privacy": "rho 0.2 of 0.3 left"' in first and "0.2 of" in "".join(rest)

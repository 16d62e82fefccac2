"""Sources of stored items: reusing a name opens nothing."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tfe_bench
from tests.arrays.simulated import Client, Workers
from tests.cluster.stored_files import with_header
from tests.queries.asked import StoredTable
from tests.refusals import raises
from tfe_bench.arrays import loading
from tfe_bench.cluster.store import SUFFIX, ShareStore
from tfe_bench.cluster.stored import ARRAY, DATA, TABLE, Source, client_input_source
from tfe_bench.cluster.stored_shares import StorageRequest
from tfe_bench.errors import PolicyError, UsageError
from tfe_bench.models.datasets import alignment, sources
from tfe_bench.models.datasets.sources import DatasetRef as Asked
from tfe_bench.queries import permits, rights
from tfe_bench.queries.rights import ColumnUse, TableAccess
from tfe_bench.queries.schema import TableSchema

ENDS: list[Callable[[Any], Any]] = [lambda x: x.reveal(), lambda x: (x * 1).compute()]
INCOME = [100 + 7 * i for i in range(12)]
_PEOPLE = {"id": "int[0,99]", "income": "int[0,1000]", "y": "bool"}
_MINE = {"id": "int[0,99]", "id2": "int[0,99]"}


def people_table(*opened: str, owner: str = "alice") -> StoredTable:
    rights = {"id": ("match",), "income": ("train",), "y": ("train",)}
    rights |= dict.fromkeys(opened, ("open",))
    rows = [(i, v, bool(i % 2)) for i, v in enumerate(INCOME)]
    more = {"unique": ("id",), "open_count": True, "min_group": 2, "owner": owner}
    return StoredTable(_PEOPLE, rows, rights={"mallory": rights}, **more)


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    stores = Workers(tmp_path_factory.mktemp("sources"))
    mine = StoredTable(_MINE, [(i, i) for i in range(12)], unique=("id",), owner="mallory")
    stores.put_table("mine", mine, ())
    yield stores
    stores.close()


def align_tables(workers: Workers, name: str, table: str = "people") -> None:
    """Store an aligned set of Mallory's table and another client's table for training."""
    store = workers.stores[0].for_kind(TABLE)
    tables = [
        TableAccess(n, f.owner, f.deployment, TableSchema.from_header(f.about), "mallory")
        for n, f in ((n, store.get_facts(n, "mallory")) for n in (table, "mine"))
    ]
    columns = [f"{table}.income", "mine.id2"]
    order = alignment.parse_linkage_request(tables, ["id"], f"{table}.y", columns).to_header()
    Client(workers, "mallory").run(
        "align", StorageRequest(name, [], True, order).to_parameters(), {}
    )


def may_train(store: ShareStore, client: str, name: str) -> Any:
    """Return whether a client may train on a data set."""
    word = store.for_kind(DATA).get_facts(name, client).deployment
    return sources.check_permitted_datasets(Asked((name,), name, {name: word}), store, client)


# Programs that disclose something about an aligned set's rows.
SHOWN: dict[str, Callable[[Client, Any], Any]] = {
    "features": lambda c, x: x["x"],
    "one": lambda c, x: x["mine.id2"] if "mine.id2" in x.columns else x["id2"],
    "label": lambda c, x: x["y"],
    "sum": lambda c, x: x["x"].sum(axis=0),
    "handle": lambda c, x: x["x"].compute() * 1,
    "kept": lambda c, x: _derive_stored(c, x["y"]),
}


def _derive_stored(client: Client, array: Any) -> Any:
    array.keep("of-common", replace=True)
    return client.load("of-common")


def test_aligned_rows_are_revealed_where_all_their_columns_are(workers: Workers) -> None:
    mallory = Client(workers, "mallory")
    workers.put_table("people", people_table())
    align_tables(workers, "common")
    facts = workers.stores[0].for_kind(DATA).get_facts("common", "mallory")
    assert {(s.name, s.part, s.owner) for s in facts.sources} == {
        *(("people", each, "alice") for each in ("id", "income", "y")),
        *(("mine", each, "mallory") for each in ("id", "id2")),
    }
    for name, shown in SHOWN.items():
        with raises(PolicyError, "missing-right", expected="open"):
            shown(mallory, mallory.load("common")).reveal()
        assert name
    with raises(PolicyError, "missing-right", expected="open"):
        mallory.load("of-common").reveal()
    with raises(PolicyError, "violations-not-permitted", operation="twice"):
        (mallory.load("common")["y"] * 2).keep("twice")
    for store in workers.stores:
        assert may_train(store, "mallory", "common").rows == 12
    # it uses all columns, including the key
    for opened in (("income", "y"), ("id", "income"), ("id", "income", "y")):
        workers.put_table("people", people_table(*opened))
        with raises(UsageError, "source-changed", received="table 'people'"):
            may_train(workers.stores[1], "mallory", "common")
        with raises(UsageError, "source-changed", received="table 'people'"):
            mallory.load("common")["x"].compute()
        word = workers.stores[0].for_kind(TABLE).get_facts("people", "mallory").deployment
        of = {replace(s, deployment=word) if s.name == "people" else s for s in facts.sources}
        if len(opened) < 3:
            with raises(PolicyError, "missing-right", expected="open"):
                permits.check_permission(
                    workers.stores[0], "mallory", ColumnUse.SHOW, [frozenset(of)], "it"
                )
    align_tables(workers, "common")
    assert len(set(mallory.load("common")["x"].reveal()[:, 0].tolist())) == 12
    # removed with its table
    Client(workers, "alice").run("table_remove", {"name": "people"}, {})
    for shown in SHOWN.values():
        with raises(UsageError, "source-changed", received="a table"):
            shown(mallory, mallory.load("common")).reveal()
    with raises(UsageError, "source-changed", received="a table"):
        may_train(workers.stores[2], "mallory", "common")


def test_who_takes_a_removed_name_opens_nothing(workers: Workers) -> None:
    """Check handles, stored arrays and aligned sets of a table whose name is reused."""
    alice, mallory = Client(workers, "alice"), Client(workers, "mallory")
    workers.put_table("salaries", people_table())
    old = [store.for_kind(TABLE).get_facts("salaries", "alice") for store in workers.stores]
    held = (mallory.load("salaries")["income"] * 1).compute()
    (held + 0).keep("stolen", replace=True)
    align_tables(workers, "taken", "salaries")
    alice.run("table_remove", {"name": "salaries"}, {})
    with raises(UsageError, "source-changed"):
        held.reveal()
    table = people_table(owner="mallory")
    order = StorageRequest("salaries", [], True, table.schema.to_header()).to_parameters()
    with raises(UsageError, "unknown-option", received="deployment"):
        mallory.run("table_put", {**order, "deployment": old[0].deployment}, {})
    workers.put_table("salaries", table, (), run=True)
    _check_nothing_is_open(workers, held)
    for store, before in zip(workers.stores, old, strict=True):
        of = store.for_kind(TABLE)
        now, tensors = of.load("salaries", "mallory")
        assert now.deployment not in (before.deployment, "") and len(now.deployment) == 32
        # even with the same deployment, the owner differs
        of.prepare_file(replace(now, deployment=before.deployment), tensors).commit()
    _check_nothing_is_open(workers, held)
    mallory.run("table_remove", {"name": "salaries"}, {})


def _check_nothing_is_open(workers: Workers, held: Any) -> None:
    mallory = Client(workers, "mallory")
    for shown in (held, mallory.load("stolen"), mallory.load("taken")["x"]):
        for end in ENDS:
            with raises(UsageError, "source-changed", received="table 'salaries'"):
                end(shown)
    for store in workers.stores:
        with raises(UsageError, "source-changed", received="table 'salaries'"):
            may_train(store, "mallory", "taken")


def test_a_kept_array_that_its_owner_took_back_opens_nothing(workers: Workers) -> None:
    alice, mallory = Client(workers, "alice"), Client(workers, "mallory")
    secret = alice.private(np.array([3, 1, 4]))
    secret.keep("given", clients=["mallory"])
    held = (mallory.load("given") * 1).compute()
    assert held.reveal().tolist() == [3, 1, 4]
    secret.keep("given", clients=[], replace=True)
    loading.remove_array(alice, "given")  # type: ignore[arg-type]
    mallory.private(np.array([0, 0, 0])).keep("given")
    with raises(UsageError, "source-changed", received="private array 'given'"):
        held.reveal()
    loading.remove_array(mallory, "given")  # type: ignore[arg-type]


def test_what_no_right_reaches_is_not_held(workers: Workers) -> None:
    table = StoredTable(
        {"v": "int[0,9]", "w": "int[0,9]"}, [(i, 9 - i) for i in range(9)], owner="alice"
    )
    more = replace(table.schema, rights={"mallory": {"w": ("filter",)}})
    table.schema = more
    workers.put_table("closed", table)
    for client, column, fits in (
        ("mallory", "v", False),
        ("mallory", "w", True),
        ("guest", "w", False),
        ("alice", "v", True),
    ):
        array = Client(workers, client).load("closed")[column] + 1
        ends: list[Callable[[], Any]] = [array.compute, lambda a=array: a.keep("copy")]  # type: ignore[misc]
        for end in ends:
            if fits:
                end()
                continue
            with raises(PolicyError, "missing-right", operation=column, names=("'closed'",)):
                end()
        if fits:
            loading.remove_array(Client(workers, client), "copy")  # type: ignore[arg-type]


def test_lists_name_no_sources(workers: Workers) -> None:
    workers.put_table("secretname", people_table())
    bob, mallory = Client(workers, "bob"), Client(workers, "mallory")
    (mallory.load("secretname")["income"] * 1).keep("gift", clients=["bob"])
    for client in (bob, mallory):
        listing = json.dumps(client.stored(ARRAY.infix))
        assert "gift" in listing and "secretname" not in listing and "income" not in listing
    with pytest.raises((UsageError, PolicyError)) as raised:
        bob.workers.put_table("other", people_table(owner="bob"), ())
        (bob.load("gift") * 1).compute()
    # the table permits all clients, so that its name is not secret here
    assert "secretname" in str(raised.value)
    workers.put_table("secretname", people_table(), ("mallory",))
    (mallory.load("secretname")["income"] * 1).keep("gift", clients=["bob"], replace=True)
    for end in ENDS:
        with raises(UsageError, "source-changed", received="a table") as raised:
            end(bob.load("gift"))
        assert "secretname" not in str(raised.value)


def test_what_an_older_version_kept_is_refused_where_nothing_says_what_it_is_made_of(
    workers: Workers,
) -> None:
    workers.put_table("people", people_table("id", "income", "y"))
    align_tables(workers, "old-common")
    mallory = Client(workers, "mallory")
    mallory.private(np.ones(3)).keep("old-array")
    files = [
        store.folder / f"{name}{kind.infix}{SUFFIX}"
        for store in workers.stores
        for name, kind in (("people", TABLE), ("old-common", DATA), ("old-array", ARRAY))
    ]

    def older(_: dict[str, Any], ours: dict[str, Any]) -> None:
        ours["format"] = 2
        del ours["sources"]

    for path in files:
        path.write_bytes(with_header(path.read_bytes(), older))
    assert Client(workers, "alice").load("people")["income"].reveal().tolist() == INCOME
    for name, part, again in (
        ("old-common", "x", "provide it again"),
        ("old-array", None, "keep it again"),
    ):
        array = mallory.load(name) if part is None else mallory.load(name)[part]
        for end in ENDS:
            with raises(UsageError, "unknown-sources", operation=name) as caught:
                end(array)
            assert again in str(caught.value)
    with raises(UsageError, "unknown-sources", operation="old-common"):
        may_train(workers.stores[0], "mallory", "old-common")
    align_tables(workers, "old-common")  # its owner replaces it
    loading.remove_array(mallory, "old-array")  # type: ignore[arg-type]
    assert may_train(workers.stores[0], "mallory", "old-common").rows == 12


def test_no_source_and_a_foreign_input_permit_nothing(workers: Workers) -> None:
    store = workers.stores[0]
    permits.check_permission(store, "bob", ColumnUse.SHOW, [client_input_source("bob")], "it")
    for refused, error in (
        (frozenset[Source](), UsageError),
        (client_input_source("alice"), PolicyError),
        (frozenset([Source("", "net", "0" * 32, "bob")]), UsageError),
        (frozenset([Source(ARRAY.infix, "no-such", "0" * 32, "bob")]), UsageError),
        (client_input_source("bob") | client_input_source("alice"), PolicyError),
    ):
        for use in (ColumnUse.SHOW, ColumnUse.HOLD, ColumnUse.ALIGNED):
            with pytest.raises(error):
                permits.check_permission(
                    store, "bob", use, [client_input_source("bob"), refused], "it"
                )


def test_one_table_says_which_right_is_enough() -> None:
    """No other module may check a client's rights."""
    root = Path(tfe_bench.__file__).parent
    asking = {
        str(p.relative_to(root))
        for folder in ("queries", "arrays", "models/.")
        for p in (root / folder).rglob("*.py")
        if ".allows(" in p.read_text()
    }
    assert asking == {"queries/rights.py"}
    assert set(rights._SUFFICIENT) == set(ColumnUse)

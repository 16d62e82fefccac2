"""Each worker refuses uses without rights on its own, even if the other two would accept them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from tests.arrays.simulated import Client, Workers
from tests.queries.asked import ANALYST, StoredTable
from tests.refusals import raises
from tfe_bench.arrays.programs import compute
from tfe_bench.cluster.store import ShareStore
from tfe_bench.cluster.stored import TABLE
from tfe_bench.cluster.stored_shares import StorageRequest
from tfe_bench.errors import PolicyError
from tfe_bench.models.datasets import alignment
from tfe_bench.models.datasets.programs import align
from tfe_bench.queries import sql
from tfe_bench.queries.programs import query
from tfe_bench.queries.rights import TableAccess
from tfe_bench.queries.schema import TableSchema

_TYPES = {"k": "int[0,99]", "v": "int[0,99]"}
_ROWS = [(i, i % 7) for i in range(12)]


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    stores = Workers(tmp_path_factory.mktemp("each"))
    for name, owner in (("one", "bank"), ("two", "telco")):
        rights = {ANALYST: {"k": ("match",), "v": ("aggregate",)}}
        more = {"unique": ("k",), "owner": owner, "open_count": True, "min_group": 2}
        stores.put_table(name, StoredTable(_TYPES, _ROWS, rights=rights, **more))
    yield stores
    stores.close()


def list_tables(store: ShareStore) -> dict[str, TableAccess]:
    """Return the tables in a worker's list for the analyst."""
    return {
        row["name"]: TableAccess(
            *(
                row["name"],
                row["owner"],
                row["deployment"],
                TableSchema.from_header(row["about"]),
                ANALYST,
            )
        )
        for row in store.for_kind(TABLE).list_visible(ANALYST)
    }


def open_rights(store: ShareStore, name: str) -> Any:
    """Give the analyst all rights to a table in one worker's file; return how to revoke them."""
    of = store.for_kind(TABLE)
    facts, tensors = of.load(name, ANALYST)
    about = {**facts.about, "rights": {ANALYST: {"*": ["open"]}}}
    of.prepare_file(replace(facts, about=about), tensors).commit()
    return lambda: of.prepare_file(facts, tensors).commit()


def _rights_jobs(store: ShareStore) -> dict[str, tuple[Any, dict[str, Any]]]:
    """Return jobs of a client with all rights, one of each program that checks rights."""
    known = {
        name: replace(t, schema=replace(t.schema, rights={ANALYST: {"*": ("open",)}}))
        for name, t in list_tables(store).items()
    }
    word = known["one"].deployment
    leaf = ["stored", "int", [12], 0, TABLE.infix, "one", word, "v"]
    plan = {"leaves": [leaf], "steps": [], "outputs": [[["ref", 0], "reveal", {}]]}
    order = alignment.parse_linkage_request(
        list(known.values()), ["k"], "one.v", ["two.v"]
    ).to_header()
    return {
        "query": (query.PROGRAM, {"plan": sql.compile_sql("select v from one", known)}),
        "compute": (compute.PROGRAM, {"plan": plan, "free": []}),
        "align": (align.PROGRAM, StorageRequest("common", [], False, order).to_parameters()),
    }


@pytest.mark.parametrize("changed", [None, 0, 1, 2])
@pytest.mark.parametrize("name", ["query", "compute", "align"])
def test_each_worker_refuses_by_its_own_header(
    name: str, changed: int | None, workers: Workers
) -> None:
    program, parameters = _rights_jobs(workers.stores[0])[name]
    back = []
    if changed is not None:
        back = [open_rights(workers.stores[changed], table) for table in ("one", "two")]
    try:
        for store in workers.stores:
            if store.party == changed:  # one worker's header gives its client all requested rights
                program.permit(ANALYST, store, program.admit(parameters, []), [])
                continue
            with raises(PolicyError, "missing-right"):
                program.permit(ANALYST, store, program.admit(parameters, []), [])
        with raises(PolicyError, "missing-right"):
            Client(workers, ANALYST).run(name, parameters, {})
    finally:
        for each in back:
            each()

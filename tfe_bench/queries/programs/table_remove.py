"""The program "table_remove": an owner removes its table from the workers."""

from __future__ import annotations

from tfe_bench.cluster import stored_shares
from tfe_bench.cluster.store import ShareStore
from tfe_bench.cluster.stored import TABLE
from tfe_bench.queries.request import NAME_SUBJECT


def _clear_privacy_ledger(store: ShareStore, name: str) -> None:
    """Delete the record of spent privacy last; otherwise a query in between would start from 0."""
    store.ledger.delete_record(name)


PROGRAM = stored_shares.removing_program(
    "table_remove", TABLE, NAME_SUBJECT, "removes an owner's table", _clear_privacy_ledger
)

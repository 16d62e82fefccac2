"""The program "table_remove": an owner has the workers remove its table."""

from __future__ import annotations

from tfe_bench.cluster.store import Store
from tfe_bench.cluster.stored import TABLE
from tfe_bench.models import stored_shares
from tfe_bench.models.programs.table_put import NAME_SUBJECT


def _clear_ledger(store: Store, name: str) -> None:
    """What was spent of its privacy: last, or it could be asked once more in between."""
    store.ledger.delete_record(name)


PROGRAM = stored_shares.removing_program(
    "table_remove", TABLE, NAME_SUBJECT, "removes an owner's table", _clear_ledger
)

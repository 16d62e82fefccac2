"""The program "table_remove": an owner has the workers remove its table."""

from __future__ import annotations

from tfe_bench.cluster.store import Store
from tfe_bench.cluster.stored import TABLE
from tfe_bench.models import kept
from tfe_bench.models.programs.table_put import NAME_IS


def _forget(store: Store, name: str) -> None:
    """What was spent of its privacy: last, or it could be asked once more in between."""
    store.ledger.forget(name)


PROGRAM = kept.removing("table_remove", TABLE, NAME_IS, "removes an owner's table", _forget)

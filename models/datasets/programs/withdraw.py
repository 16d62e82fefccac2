"""The program "withdraw": an owner removes its rows from the workers."""

from __future__ import annotations

from tfe_bench.cluster import stored_shares
from tfe_bench.cluster.stored import DATA
from tfe_bench.models.datasets.request import NAME_SUBJECT

PROGRAM = stored_shares.removing_program("withdraw", DATA, NAME_SUBJECT, "removes an owner's rows")

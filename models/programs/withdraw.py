"""The program "withdraw": an owner has the workers remove its rows."""

from __future__ import annotations

from tfe_bench.cluster.stored import DATA
from tfe_bench.models import kept
from tfe_bench.models.programs.provide import NAME_IS

PROGRAM = kept.removing("withdraw", DATA, NAME_IS, "removes an owner's rows")

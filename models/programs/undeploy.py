"""The program "undeploy": a model's owner has the workers remove it."""

from __future__ import annotations

from tfe_bench.cluster.stored import MODEL
from tfe_bench.models import kept
from tfe_bench.models.programs.deploy import NAME_IS

PROGRAM = kept.removing("undeploy", MODEL, NAME_IS, "removes a kept model")

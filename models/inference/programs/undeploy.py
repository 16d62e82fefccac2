"""The program "undeploy": a model's owner removes it from the workers."""

from __future__ import annotations

from tfe_bench.cluster import stored_shares
from tfe_bench.cluster.stored import MODEL
from tfe_bench.models.inference.request import NAME_SUBJECT

PROGRAM = stored_shares.removing_program("undeploy", MODEL, NAME_SUBJECT, "removes a kept model")

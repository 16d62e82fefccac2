"""The program "deploy": the workers store a model's weights under a name, for predictions.

Public are the model's layers, shapes and fixed-point formats, its owner, and its permitted clients.
"""

from __future__ import annotations

from tfe_bench.cluster import stored_shares
from tfe_bench.cluster.stored import MODEL
from tfe_bench.models.inference.request import parse_deployed_model

PROGRAM = stored_shares.storing_program(
    "deploy", MODEL, parse_deployed_model, "keeps a model", stored_shares.take_seeded_inputs
)

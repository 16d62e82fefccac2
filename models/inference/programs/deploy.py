"""The program "deploy": the workers store a model's weights under a name, for predictions.

Public are the model's layers, shapes and fixed-point formats, its owner, and its permitted clients.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from tfe_bench.cluster import stored_shares
from tfe_bench.cluster.jobs import Context, InputSpec
from tfe_bench.cluster.store import ShareStore
from tfe_bench.cluster.stored import MODEL
from tfe_bench.models.inference import ahead, ahead_setting
from tfe_bench.models.inference.request import DeployRequest, parse_deployed_model
from tfe_bench.protocols.session.sharing import Shared

_STORING = stored_shares.storing_program(
    "deploy", MODEL, parse_deployed_model, "keeps a model", stored_shares.take_seeded_inputs
)


def permit_deployment(
    client: str, store: ShareStore, request: DeployRequest, inputs: Sequence[InputSpec]
) -> None:
    """Reject a name that the client may not use, and material that this worker does not keep.

    Raises:
        UsageError, PolicyError, ConfigError, SecurityError: as ShareStore.permit_writing, or the
            operator keeps no material.
    """
    assert _STORING.permit is not None
    _STORING.permit(client, store, request, inputs)
    if request.about.get(ahead_setting.KEY) is not None:
        store.spool.check_allowed()


def run_deployment(context: Context) -> dict[str, Shared]:
    """Store the weights; the first material is made when the client has its answer."""
    outputs = dict(_STORING.run(context))
    if context.request.about.get(ahead_setting.KEY) is not None:
        context.afterwards = ahead.make_filler(context, context.request.name)
    return outputs


PROGRAM = dataclasses.replace(_STORING, run=run_deployment, permit=permit_deployment)

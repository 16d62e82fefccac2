"""The program "provide": the workers store an owner's rows for other clients' trainings.

With a private model, they store its outputs in place of the rows: features for another model.
Public are the number of rows, their shape, names of columns, the owner, and the permitted clients.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from tfe_bench.cluster import stored_shares
from tfe_bench.cluster.jobs import Context, InputSpec, Size
from tfe_bench.cluster.store import ShareStore
from tfe_bench.cluster.stored import DATA
from tfe_bench.models.datasets.request import FEATURE_BITS, DatasetRequest, parse_dataset
from tfe_bench.models.inference.programs import predict
from tfe_bench.models.inference.request import prediction_output_names
from tfe_bench.models.layers.base.operations import Operations, ProtocolSetting
from tfe_bench.models.layers.base.passes import convert_scale
from tfe_bench.protocols.session.sharing import Shared


def _prepare_dataset_rows(context: Context) -> tuple[Mapping[str, Shared], Mapping[str, Shared]]:
    """Return the values to store: the inputs, or a model's features in place of its inputs."""
    request: DatasetRequest = context.request
    prediction = request.prediction
    if prediction is None:
        return context.inputs, {}
    labels = {name: context.inputs.pop(name) for name in ("y",) if name in context.inputs}
    outputs = predict.run_prediction(
        dataclasses.replace(context, parameters=request.through, request=prediction)
    )
    party, (name,) = context.party, prediction_output_names(prediction.plan)[:1]

    def set_feature_scale(x: Shared) -> Shared:
        return convert_scale(Operations(party, ProtocolSetting()), x, FEATURE_BITS)

    features = {"x": party.function(set_feature_scale)(outputs.pop(name))}
    # stored values and outputs get fresh masks, whatever the model computes
    leaving = stored_shares.refresh_stored_shares(party, outputs) if outputs else {}
    return {**stored_shares.refresh_stored_shares(party, features), **labels}, leaving


def _estimate_dataset_size(
    client: str, store: ShareStore, request: DatasetRequest, inputs: Sequence[InputSpec]
) -> Size | int:
    """Estimate the size as the program "predict" does, if a model computes the features."""
    if request.prediction is None:
        return 0
    return predict.estimate_predict_size(
        client, store, request.prediction, [i for i in inputs if i.name != "y"]
    )


PROGRAM = stored_shares.storing_program(
    "provide",
    DATA,
    parse_dataset,
    "keeps an owner's rows",
    _prepare_dataset_rows,
    size=_estimate_dataset_size,
)

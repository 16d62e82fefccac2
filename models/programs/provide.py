"""The program "provide": the workers keep an owner's rows, for others to train on.

Or what a private model makes of them, which nobody sees: features for a model that is trained.

What is public: how many rows, which shape, names of columns, the owner, and who may use them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from tfe_bench.cluster.jobs import Context, InputSpec, Size
from tfe_bench.cluster.store import Store
from tfe_bench.cluster.stored import DATA, check_about
from tfe_bench.errors import UsageError
from tfe_bench.models import stored_shares
from tfe_bench.models.calibration import Plan
from tfe_bench.models.csv_file import MAX_TEXT
from tfe_bench.models.kinds.operations import Operations, Setting
from tfe_bench.models.kinds.passes import Precision, convert_scale
from tfe_bench.models.programs import predict
from tfe_bench.models.rows import LABEL_BITS
from tfe_bench.models.tables import TARGETS, Table
from tfe_bench.protocols.session.sharing import Shared

NAME_SUBJECT = "A data set's name"
# The parameter that is a model: parameters of the program "predict".
THROUGH = "through"
FEATURE_BITS = Precision().activation
_FACTS = ("rows", "x", "y", "target", "classes", "columns")
# Of a Table, besides: there for tables that were read from files.
UNITS = ("label", "classes", "scale", "unit")


def check_dataset(parameters: Mapping[str, Any], inputs: Sequence[InputSpec]) -> None:
    """Refuses what is no data set.

    Raises:
        UsageError: naming what does not fit.
    """
    about = stored_shares.check_storage_parameters("provide", parameters, NAME_SUBJECT, (THROUGH,))
    if set(about) - {"units"} != set(_FACTS):
        raise UsageError(f'"about" holds {", ".join(_FACTS)}.')
    rows, classes = about["rows"], about["classes"]
    if type(rows) is not int or rows < 1 or type(classes) is not int or classes < 1:
        raise UsageError("A data set has 1 row or more, and 1 class or more.")
    check_about(about)
    if about["target"] not in TARGETS:
        raise UsageError(f"A target is {', '.join(TARGETS)}.")
    columns = about["columns"]
    if not isinstance(columns, list) or not all(
        isinstance(c, str) and len(c) <= MAX_TEXT for c in columns
    ):
        raise UsageError(f"Names of columns are texts of at most {MAX_TEXT} characters.")
    if columns and about["x"] != [len(columns)]:
        raise UsageError(
            f"Every feature has a name, or none has. Received: {len(columns)} names of columns for "
            f"features {about['x']}."
        )
    read_table(about)
    if parameters.get(THROUGH) is not None:
        inputs = _check_through(parameters[THROUGH], about, inputs)
    # Features have the scale that their owner says; a training refuses another than its own.
    bits = {"x": next((i.fractional_bits for i in inputs if i.name == "x"), 0), "y": LABEL_BITS}
    expected = [
        InputSpec(part, (rows, *about[part]), bits[part])
        for part in ("x", "y")
        if _is_shape(about[part])
    ]
    if not expected or list(inputs) != expected:
        raise UsageError(
            f"The inputs of a data set are its rows as it says: x {about['x']}, y {about['y']}. "
            f"Received: {[(i.name, list(i.shape), i.fractional_bits) for i in inputs][:4]}."
        )


def _check_through(
    through: Mapping[str, Any], about: Mapping[str, Any], inputs: Sequence[InputSpec]
) -> list[InputSpec]:
    """The inputs of a data set whose features a model makes, as if these came from its owner.

    Raises:
        UsageError, DataError: the model is none, or makes other features.
    """
    if not isinstance(through, Mapping):
        raise UsageError('"through" is what the program "predict" takes.')
    model_specs = [i for i in inputs if i.name != "y"]
    predict.check_prediction(through, model_specs)
    graph = Plan.from_header(through["plan"]).graph
    if len(graph.inputs) != 1 or len(graph.outputs) != 1 or graph.results:
        raise UsageError(
            "Features come from a model of one input and one output, which is not scaled behind it."
        )
    feature_shape = list(graph.shapes[graph.outputs[0]])
    if model_specs[-1].shape[0] != about["rows"] or feature_shape != about["x"] or "units" in about:
        raise UsageError(
            f"The model makes features {feature_shape} of {model_specs[-1].shape[0]} rows, which are no columns of "
            f"a table. Received: {about['rows']} rows of {about['x']}."
        )
    features = InputSpec("x", (about["rows"], *feature_shape), FEATURE_BITS)
    return [features, *(i for i in inputs if i.name == "y")]


def _prepare_rows(context: Context) -> tuple[Mapping[str, Shared], Mapping[str, Shared]]:
    """What is kept: the inputs, or a model's features in place of what it made them from."""
    through = context.parameters.get(THROUGH)
    if through is None:
        return context.inputs, {}
    labels = {name: context.inputs.pop(name) for name in ("y",) if name in context.inputs}
    outputs = predict.run_prediction(dataclasses.replace(context, parameters=through))
    party, (name,) = context.party, predict.output_names(Plan.from_header(through["plan"]))[:1]

    def set_feature_scale(x: Shared) -> Shared:
        return convert_scale(Operations(party, Setting()), x, FEATURE_BITS)

    features = {"x": party.function(set_feature_scale)(outputs.pop(name))}
    # (whatever the model does, what stays or leaves has masks of its own)
    leaving = stored_shares.refresh_values(party, outputs) if outputs else {}
    return {**stored_shares.refresh_values(party, features), **labels}, leaving


def _estimate_dataset_size(
    client: str, store: Store, parameters: Mapping[str, Any], inputs: Sequence[InputSpec]
) -> Size | int:
    """As of the program "predict", where a model makes the features."""
    through = parameters.get(THROUGH)
    if through is None:
        return 0
    return predict.estimate_predict_size(
        client, store, through, [i for i in inputs if i.name != "y"]
    )


def read_table(about: Mapping[str, Any]) -> Table | None:
    """What a data set's rows are to a model; None where its owner did not say.

    Raises:
        UsageError, DataError: it is no table, or another than the rows.
    """
    units = about.get("units")
    if units is None:
        return None
    if not isinstance(units, Mapping) or set(units) != set(UNITS):
        raise UsageError(f'"units" holds {", ".join(UNITS)}.')
    shared_facts = {"columns": about["columns"], "target": about["target"], "logits": True}
    return Table.from_header({**units, **shared_facts})


def _is_shape(value: object) -> bool:
    if value is None:
        return False
    if not isinstance(value, list) or not all(type(n) is int and n > 0 for n in value):
        raise UsageError("A shape is a list of positive integers, or null.")
    return True


PROGRAM = stored_shares.storing_program(
    "provide",
    DATA,
    check_dataset,
    "keeps an owner's rows",
    _prepare_rows,
    size=_estimate_dataset_size,
)

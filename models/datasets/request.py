"""Requests for data sets, as a client sends them and the workers read them."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tfe_bench.cluster.jobs import InputSpec, reject_inputs
from tfe_bench.cluster.schema import DerivingRequest, parsed_field
from tfe_bench.cluster.stored import LABEL_BITS, check_public_facts
from tfe_bench.cluster.stored_shares import StorageRequest, stored_name_field
from tfe_bench.cluster.timing import ProfiledRequest
from tfe_bench.csv_file import MAX_TEXT
from tfe_bench.errors import UsageError
from tfe_bench.models.convert.tables import TARGETS, Table
from tfe_bench.models.datasets import record_linkage
from tfe_bench.models.datasets.record_linkage import LinkageRequest, LinkageSchema
from tfe_bench.models.inference.request import PredictRequest, parse_prediction
from tfe_bench.models.layers.base.passes import TrainingPrecision
from tfe_bench.queries.rights import TableAccess

if TYPE_CHECKING:
    from tfe_bench.cluster.store import ShareStore


NAME_SUBJECT = "A data set's name"
# Parameter with a model: the parameters of the program "predict".
THROUGH = "through"
FEATURE_BITS = TrainingPrecision().activation
_FACTS = ("rows", "x", "y", "target", "classes", "columns")
# Further facts of a Table, for tables that were read from files.
UNITS = ("label", "classes", "scale", "unit")


@dataclass(frozen=True, kw_only=True)
class DatasetRequest(StorageRequest):
    """A request to store an owner's rows.

    Attributes:
        through: parameters of the program "predict" for a model that computes the stored features;
            None to store the rows.
        prediction: the request of these parameters.
    """

    name: str = stored_name_field(NAME_SUBJECT)
    through: Any = parsed_field(lambda value: value, default=None)
    prediction: PredictRequest | None = None


def parse_dataset(parameters: Mapping[str, Any], inputs: Sequence[InputSpec]) -> DatasetRequest:
    """Parse the request of a data set, and check its inputs.

    Raises:
        UsageError: a parameter or an input is invalid; the text names it.
    """
    request = DatasetRequest.from_parameters(parameters, "provide")
    about = request.about
    if set(about) - {"units"} != set(_FACTS):
        raise UsageError(
            f'Expected {", ".join(_FACTS)} in "about".',
            code="invalid-parameters",
            operation="about",
        )
    rows, classes = about["rows"], about["classes"]
    if type(rows) is not int or rows < 1 or type(classes) is not int or classes < 1:
        raise UsageError(
            "Expected 1 row or more and 1 class or more in a data set.",
            code="number-out-of-range",
            operation="about",
            received=[rows, classes],
        )
    check_public_facts(about)
    if about["target"] not in TARGETS:
        raise UsageError(
            f"Expected one of {', '.join(TARGETS)} as target.",
            code="unknown-name",
            operation="target",
            expected=", ".join(TARGETS),
        )
    columns = about["columns"]
    if not isinstance(columns, list) or not all(
        isinstance(c, str) and len(c) <= MAX_TEXT for c in columns
    ):
        raise UsageError(
            f"Expected texts of at most {MAX_TEXT} characters as names of columns.",
            code="invalid-name",
            operation="columns",
            expected=MAX_TEXT,
        )
    if columns and about["x"] != [len(columns)]:
        raise UsageError(
            f"Expected a name for every feature, or for none. Received: {len(columns)} names of "
            f"columns for features {about['x']}.",
            code="shape-mismatch",
            operation="columns",
            received=len(columns),
        )
    read_dataset_table(about)
    if request.through is not None:
        prediction, inputs = _parse_dataset_model(request.through, about, inputs)
        request = dataclasses.replace(request, prediction=prediction)
    # Features have the scale that their owner states; a training rejects any other than its own.
    bits = {"x": next((i.fractional_bits for i in inputs if i.name == "x"), 0), "y": LABEL_BITS}
    expected = [
        InputSpec(part, (rows, *about[part]), bits[part])
        for part in ("x", "y")
        if _is_feature_shape(about[part])
    ]
    if not expected or list(inputs) != expected:
        raise UsageError(
            f"Expected the stated rows as inputs of a data set: x {about['x']}, y {about['y']}. "
            f"Received: {[(i.name, list(i.shape), i.fractional_bits) for i in inputs][:4]}.",
            code="unexpected-inputs",
            operation="provide",
            received=[i.name for i in inputs][:4],
        )
    return request


def _parse_dataset_model(
    through: Mapping[str, Any], about: Mapping[str, Any], inputs: Sequence[InputSpec]
) -> tuple[PredictRequest, list[InputSpec]]:
    """Return the prediction of a data set's features, and the inputs as if its owner had sent them.

    Raises:
        UsageError, DataError: the model is invalid, or returns other features.
    """
    if not isinstance(through, Mapping):
        raise UsageError(
            'Expected the parameters of the program "predict" as "through".',
            code="invalid-parameters",
            operation=THROUGH,
        )
    model_specs = [i for i in inputs if i.name != "y"]
    prediction = parse_prediction(through, model_specs)
    graph = prediction.plan.graph
    if len(graph.inputs) != 1 or len(graph.outputs) != 1 or graph.results:
        raise UsageError(
            "Expected a model of one input and one unscaled output for features.",
            code="unsupported-model",
            operation=THROUGH,
        )
    feature_shape = list(graph.shapes[graph.outputs[0]])
    if model_specs[-1].shape[0] != about["rows"] or feature_shape != about["x"] or "units" in about:
        raise UsageError(
            f"The model returns features {feature_shape} of {model_specs[-1].shape[0]} rows, "
            f"without columns of a table. Received: {about['rows']} rows of {about['x']}.",
            code="shape-mismatch",
            operation=THROUGH,
            received=about["x"],
            expected=feature_shape,
        )
    features = InputSpec("x", (about["rows"], *feature_shape), FEATURE_BITS)
    return prediction, [features, *(i for i in inputs if i.name == "y")]


def read_dataset_table(about: Mapping[str, Any]) -> Table | None:
    """Return the table facts of a data set; None if its owner stated none.

    Raises:
        UsageError, DataError: the facts are invalid, or do not fit the rows.
    """
    units = about.get("units")
    if units is None:
        return None
    if not isinstance(units, Mapping) or set(units) != set(UNITS):
        raise UsageError(
            f'Expected {", ".join(UNITS)} in "units".', code="invalid-parameters", operation="units"
        )
    shared_facts = {"columns": about["columns"], "target": about["target"], "logits": True}
    return Table.from_header({**units, **shared_facts})


def _is_feature_shape(value: object) -> bool:
    if value is None:
        return False
    if not isinstance(value, list) or not all(type(n) is int and n > 0 for n in value):
        raise UsageError(
            "Expected a list of positive integers, or null, as shape.",
            code="invalid-parameters",
            operation="shape",
        )
    return True


@dataclass(frozen=True, kw_only=True)
class AlignRequest(StorageRequest, ProfiledRequest, DerivingRequest):
    """A request to store the common rows of tables."""

    name: str = stored_name_field(NAME_SUBJECT)

    @functools.cached_property
    def linkage_request(self) -> LinkageRequest:
        """The tables, their keys and columns."""
        return LinkageRequest.from_header(self.about)

    def derive_alignment(
        self, client: str, store: ShareStore
    ) -> tuple[list[TableAccess], LinkageSchema]:
        """Return the tables as this worker stores them, and the schema of the result.

        Raises:
            UsageError, PolicyError: as record_linkage.derive_linkage and ShareStore.get_facts.
        """
        tables = record_linkage.find_linkage_tables(
            self.linkage_request, store, client, self.clients
        )
        return self.derive_once(
            tables,
            lambda t: record_linkage.derive_linkage(self.linkage_request, t, self.clients),
        )


def parse_alignment(parameters: Mapping[str, Any], inputs: Sequence[InputSpec]) -> AlignRequest:
    """Parse a request for an alignment.

    Raises:
        UsageError: a parameter is invalid; the text names it.
    """
    request = AlignRequest.from_parameters(parameters, "align")
    _ = request.linkage_request
    reject_inputs("align", inputs)
    return request

"""Requests of the programs "query" and "table_put", for clients and workers."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tfe_bench.cluster import stored_shares
from tfe_bench.cluster.jobs import InputSpec, reject_inputs
from tfe_bench.cluster.schema import DerivingRequest, integer_field, parsed_field
from tfe_bench.cluster.store import ShareStore
from tfe_bench.cluster.stored import check_public_facts
from tfe_bench.cluster.timing import TimedRequest
from tfe_bench.errors import UsageError
from tfe_bench.queries import relations, stored
from tfe_bench.queries.plan import QueryPlan
from tfe_bench.queries.relation_facts import Relation as Facts
from tfe_bench.queries.rights import TableAccess
from tfe_bench.queries.schema import TableSchema
from tfe_bench.queries.upload import WORDS

NAME_SUBJECT = "A table's name"


@dataclass(frozen=True, kw_only=True)
class TableRequest(stored_shares.StorageRequest):
    """A request to store a table."""

    name: str = stored_shares.stored_name_field(NAME_SUBJECT)

    @functools.cached_property
    def table_schema(self) -> TableSchema:
        """The table's header."""
        return TableSchema.from_header(self.about)


def parse_table(parameters: Mapping[str, Any], inputs: Sequence[InputSpec]) -> TableRequest:
    """Parse a request with the header of a table, and check its inputs.

    Raises:
        UsageError: a parameter or an input is invalid; the text names it.
    """
    request = TableRequest.from_parameters(parameters, "table_put")
    schema = request.table_schema
    check_public_facts(request.about)
    expected = [InputSpec(WORDS, (len(stored.stored_row_word_names(schema)), schema.rows), 0)]
    expected += [InputSpec(name, (n,), 0) for name, n in stored.link_sizes(schema).items()]
    if sorted(inputs, key=str) != sorted(expected, key=str):
        raise UsageError(
            f"Expected the words of the table, {list(expected[0].shape)}, and its links as "
            "inputs. Received: "
            f"{[(i.name, list(i.shape), i.fractional_bits) for i in inputs][:4]}.",
            code="unexpected-inputs",
            operation="table_put",
            received=[i.name for i in inputs][:4],
        )
    return request


@dataclass(frozen=True, kw_only=True)
class QueryRequest(TimedRequest, DerivingRequest):
    """A request for the result of a plan.

    Attributes:
        plan: the plan.
        repeat: the number of timed runs; 0 for a single run that is not timed.
    """

    plan: QueryPlan = parsed_field(QueryPlan.from_header)
    repeat: int = integer_field(1, 1000, default=0)

    @property
    def total_runs(self) -> int:
        """The number of runs."""
        return super().total_runs if self.repeat else 1

    def derive_relations(
        self, client: str, store: ShareStore
    ) -> tuple[dict[str, TableAccess], Sequence[Facts]]:
        """Return the plan's tables as this worker stores them, and the relations of its steps.

        Raises:
            UsageError: a table does not exist, or was replaced in the meantime; or as
                relations.derive_relations.
            PolicyError: as relations.derive_relations.
        """
        tables = {
            alias: stored.find_table(store, name, deployment, client)[0]
            for alias, (name, deployment) in self.plan.tables.items()
        }
        return self.derive_once(tables, lambda t: relations.derive_relations(self.plan, t))


def parse_query(parameters: Mapping[str, Any], inputs: Sequence[InputSpec]) -> QueryRequest:
    """Parse a request for a query.

    Raises:
        UsageError: a parameter is invalid; the text names it.
    """
    request = QueryRequest.from_parameters(parameters, "query")
    reject_inputs("query", inputs)
    return request

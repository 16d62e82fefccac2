"""The program "table_put": the workers store an owner's table for queries (docs/tables.md).

Its header is public; `models.queries.schema.TableSchema` lists its contents.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tfe_bench.cluster import stored_shares
from tfe_bench.cluster.jobs import GROWTH, Context, InputSpec
from tfe_bench.cluster.store import ShareStore
from tfe_bench.cluster.stored import TABLE, check_public_facts
from tfe_bench.errors import UsageError
from tfe_bench.protocols.session.sharing import Shared
from tfe_bench.queries import checks, stored
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


def _prepare_table(context: Context) -> tuple[Mapping[str, Shared], Mapping[str, Shared]]:
    """Return the values to store, after the workers verified that they match the header."""
    schema = context.request.table_schema
    all_words = context.inputs.pop(WORDS)
    words = {
        name: all_words.map(lambda a, i=i: a[i])
        for i, name in enumerate(stored.stored_row_word_names(schema))
    }
    words.update({name: context.inputs.pop(name) for name in stored.link_sizes(schema)})
    context.progress(0.0, "checking")
    checks.check_table(context.party, schema, words)
    return words, {}


def _estimate_table_size(
    client: str, store: ShareStore, request: TableRequest, inputs: Sequence[InputSpec]
) -> int:
    """Estimate the size of comparisons of a slice, or of the sort of a unique column."""
    schema = request.table_schema
    compared = GROWTH * min(schema.rows, 1 << 20)
    largest_input = max(spec.elements for spec in inputs)
    return max(compared, GROWTH * schema.rows if schema.unique else 0, largest_input)


PROGRAM = stored_shares.storing_program(
    "table_put",
    TABLE,
    parse_table,
    "keeps an owner's table",
    _prepare_table,
    size=_estimate_table_size,
)

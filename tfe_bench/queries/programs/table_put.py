"""The program "table_put": the workers store an owner's table for queries (docs/tables.md).

Its header is public; `queries.schema.TableSchema` lists its contents.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tfe_bench.cluster import stored_shares
from tfe_bench.cluster.jobs import GROWTH, Context, InputSpec, Size
from tfe_bench.cluster.store import ShareStore
from tfe_bench.cluster.stored import TABLE
from tfe_bench.protocols.session.sharing import Shared
from tfe_bench.queries import checks, stored
from tfe_bench.queries.request import TableRequest, parse_table
from tfe_bench.queries.upload import WORDS


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
) -> Size:
    """Estimate the size of comparisons of a slice, or of the sort of a unique column."""
    schema = request.table_schema
    compared = GROWTH * min(schema.rows, 1 << 20)
    largest_input = max(spec.elements for spec in inputs)
    words = max(compared, GROWTH * schema.rows if schema.unique else 0, largest_input)
    return Size(words, openings=checks.count_check_openings(schema))


PROGRAM = stored_shares.storing_program(
    "table_put",
    TABLE,
    parse_table,
    "keeps an owner's table",
    _prepare_table,
    size=_estimate_table_size,
    is_sealed=False,
)

"""The program "align": private record linkage of several owners' tables.

The workers store the rows that the tables have in common as features and labels of a data set
(sources.py), in an order that no party knows.  The number of rows becomes public, if it is at least
the minimum group size of each owner.
"""

from __future__ import annotations

from collections.abc import Sequence

from tfe_bench.cluster import stored_shares
from tfe_bench.cluster.jobs import Context, InputSpec, Program, Size
from tfe_bench.cluster.store import ShareStore
from tfe_bench.cluster.stored import DATA, TABLE, check_public_facts
from tfe_bench.cluster.timing import run_recorded
from tfe_bench.models.datasets import record_linkage
from tfe_bench.models.datasets.request import AlignRequest, parse_alignment
from tfe_bench.models.datasets.row_alignment import align_rows, price_alignment
from tfe_bench.protocols.session.sharing import Shared


def permit_alignment(
    client: str, store: ShareStore, request: AlignRequest, _: Sequence[InputSpec]
) -> None:
    """Reject a client that may not train on these columns, or may not store under the name.

    Raises:
        UsageError, PolicyError: as `AlignRequest.derive_alignment` and ShareStore.permit_writing.
    """
    store.for_kind(DATA).permit_writing(request.name, client, request.replace)
    schema = request.derive_alignment(client, store)[1]
    check_public_facts({**schema.about, "rows": record_linkage.MAX_FEATURES})


def estimate_alignment_size(
    client: str, store: ShareStore, request: AlignRequest, inputs: Sequence[InputSpec]
) -> Size:
    """Estimate the size of a run by counting, from the headers that this worker stores."""
    tables, schema = request.derive_alignment(client, store)
    price = price_alignment(request.linkage_request, schema, tables, request.profile)
    seconds = price.least_seconds
    return Size(price.largest, price.sent_bytes, seconds=seconds, openings=price.openings)


def run_alignment(context: Context) -> dict[str, Shared]:
    """Align the tables, and store the common rows."""
    store = stored_shares.require_share_store(context)
    request: AlignRequest = context.request
    permit_alignment(context.client, store, request, ())
    tables, alignment = request.derive_alignment(context.client, store)
    order, table_store, party = request.linkage_request, store.for_kind(TABLE), context.party

    def load_columns(number: int, names: Sequence[str]) -> dict[str, Shared]:
        table = tables[number]
        return stored_shares.load_stored_shares(
            party, table_store, table.name, context.client, table.deployment, names
        )

    profile = request.plan_profile
    count, x, y = run_recorded(
        context,
        lambda: align_rows(
            party, order, alignment, tables, load_columns, profile, context.progress
        ),
    )
    context.progress(0.9, "writing")
    facts = stored_shares.build_stored_facts(
        {**context.parameters, "about": {"rows": count, **alignment.about}},
        context.client,
        record_linkage.collect_linkage_sources(order, tables),
    )
    stored_shares.store_share_values(party, store.for_kind(DATA), facts, {"x": x, "y": y})
    return {}


def kept_names(request: AlignRequest) -> Sequence[str]:
    """Return the name of the result, and the names of the tables that it derives from."""
    return [request.name, *(part.name for part in request.linkage_request.tables)]


PROGRAM = Program(
    *("align", run_alignment, parse_alignment, "keeps what tables have in common"),
    permit=permit_alignment,
    size=estimate_alignment_size,
    kept_names=kept_names,
)

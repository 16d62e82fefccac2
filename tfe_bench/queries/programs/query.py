"""The program "query": the result of a plan on stored private tables.

The client sends the plan, which is public data.  From its stored headers, every worker derives the
steps of the plan on its own, and checks whether the client may learn the result.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tfe_bench.cluster import stored_shares
from tfe_bench.cluster.jobs import Context, InputSpec, Program, Size
from tfe_bench.cluster.ledger import PrivacyLedger, PrivacyLossCharge, format_privacy_loss
from tfe_bench.cluster.store import ShareStore
from tfe_bench.cluster.stored import TABLE
from tfe_bench.cluster.timing import measure_program_runs, run_recorded
from tfe_bench.protocols.session.openings import repeat_openings
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared
from tfe_bench.protocols.tables.relation import Relation
from tfe_bench.queries import dp_noise, execute, privacy, stored
from tfe_bench.queries.execution_context import QueryExecutionContext
from tfe_bench.queries.price import price_query_plan
from tfe_bench.queries.relation_facts import Relation as Facts
from tfe_bench.queries.request import QueryRequest, parse_query
from tfe_bench.queries.rights import TableAccess


def permit_query(
    client: str, store: ShareStore, request: QueryRequest, inputs: Sequence[InputSpec]
) -> None:
    """Reject a client that may not learn the result, or a plan that does not fit its tables.

    Raises:
        UsageError, PolicyError: as `QueryRequest.derive_relations`, or ShareStore.get_facts.
    """
    tables, facts = request.derive_relations(client, store)
    if charges := _compute_privacy_charges(facts, tables):
        store.ledger.check_budgets(charges)


def _compute_privacy_charges(
    facts: Sequence[Facts], tables: Mapping[str, TableAccess]
) -> dict[str, PrivacyLossCharge]:
    """Return the privacy loss of a plan by table name; empty for most plans."""
    lost = privacy.total_privacy_losses((fact.release for fact in facts), tables)
    table_by_name = {table.name: table for table in tables.values()}
    return {
        name: PrivacyLossCharge(
            table_by_name[name].owner, table_by_name[name].schema.budget, lost[name]
        )
        for name in lost
    }


def charge(party: Party, ledger: PrivacyLedger, charges: Mapping[str, PrivacyLossCharge]) -> None:
    """Charge privacy loss at all three workers, on disk before any of them continues.

    Each worker starts from the largest spent amount that one of them has recorded.

    Raises:
        PolicyError: the remaining budget is too small.
        SecurityError, DataError: as PrivacyLedger.charge_tables.
    """
    names = sorted(charges)
    own_spending = b"".join(ledger.get_spent(name).to_bytes(8, "little") for name in names)
    peer_spending = [
        {
            name: int.from_bytes(message[8 * i : 8 * i + 8], "little", signed=True)
            for i, name in enumerate(names)
        }
        for p, message in enumerate(party.exchange_facts("spent privacy loss", own_spending))
        if p != party.index
    ]
    ledger.charge_tables(charges, peer_spending)
    party.exchange(b"charged")


def estimate_query_size(
    client: str, store: ShareStore, request: QueryRequest, inputs: Sequence[InputSpec]
) -> Size:
    """Estimate the size of a run by counting, from the headers that this worker stores."""
    tables, facts = request.derive_relations(client, store)
    price = price_query_plan(request.plan, facts, tables, request.profile)
    seconds = price.least_seconds
    openings = repeat_openings(price.openings, request.total_runs)
    return Size(price.largest, price.sent_bytes, price.memory_bytes, seconds, openings)


def query_graph_key(plan_header: Mapping[str, Any], tables: Mapping[str, TableAccess]) -> str:
    """Return everything that a plan's graphs depend on: the plan and the headers of its tables."""
    headers = {alias: [t.owner, t.schema.to_header()] for alias, t in tables.items()}
    return json.dumps([plan_header, headers], sort_keys=True)


def run_query(context: Context) -> dict[str, Shared]:
    """Execute the plan; all words of the result's rows go to the client."""
    party, store = context.party, stored_shares.require_share_store(context)
    request: QueryRequest = context.request
    tables, facts = request.derive_relations(context.client, store)
    plan, table_store = request.plan, store.for_kind(TABLE)
    charges = _compute_privacy_charges(facts, tables)
    for table in tables.values():
        context.use.rights.setdefault((TABLE.noun, table.name), set()).update(table.used)
    # drawn before the first message, as the duration of the draw depends on the result
    drawn = {
        number: dp_noise.draw_dp_noise(fact.release, fact.rows)
        for number, fact in enumerate(facts)
        if fact.release is not None
    }

    def load_words(alias: str, names: Sequence[str]) -> dict[str, Shared]:
        table = tables[alias]
        return stored_shares.load_stored_shares(
            party, table_store, table.name, context.client, table.deployment, names
        )

    def load_relation(alias: str, columns: Sequence[str]) -> Relation:
        schema = tables[alias].schema
        return stored.build_stored_relation(
            schema, columns, load_words(alias, stored.column_word_names(schema, columns))
        )

    def load_link(alias: str, number: int) -> Shared:
        name = stored.link_name(number)
        return load_words(alias, [name])[name]

    profile = request.plan_profile
    units = {alias: table.schema.unit for alias, table in tables.items()}
    name = ("query", query_graph_key(context.parameters["plan"], tables), profile)

    def execute_plan(progress: Callable[[float, str], None]) -> dict[str, Shared]:
        setting = QueryExecutionContext(
            load_relation, load_link, name, profile, progress, units.__getitem__, drawn
        )
        return execute.run_query_plan(party, plan, facts, setting)

    if request.repeat:
        result = measure_program_runs(
            context, f"planned for {profile}", lambda p: execute_plan(lambda f, _: p(f))
        )
    else:
        result = run_recorded(context, lambda: execute_plan(context.progress))
    if charges:  # nothing has been sent to the client yet
        charge(party, store.ledger, charges)
        context.use.charged.update(
            {name: format_privacy_loss(each.loss) for name, each in charges.items()}
        )
    return {name: replace(x, fractional_bits=0) for name, x in result.items()}


def kept_names(request: QueryRequest) -> Sequence[str]:
    """Return the names of the tables that a plan reads."""
    return sorted({name for name, _ in request.plan.tables.values()})


PROGRAM = Program(
    *("query", run_query, parse_query, "queries private tables"),
    permit=permit_query,
    size=estimate_query_size,
    kept_names=kept_names,
)

"""The program "query": the rows that a plan makes of tables which the workers keep.

The client sends the plan, which is data and public.  Every worker derives by itself, from the
headers that it keeps, what the plan's steps are and whether the client may learn their result.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tfe_bench.cluster import profiles
from tfe_bench.cluster.jobs import Context, InputSpec, Program, Size
from tfe_bench.cluster.ledger import Charge, Ledger
from tfe_bench.cluster.store import Store
from tfe_bench.cluster.stored import TABLE
from tfe_bench.cluster.timing import check_parameters, measure, recorded
from tfe_bench.errors import UsageError
from tfe_bench.models import kept
from tfe_bench.models.queries import execute, noising, privacy, relations, stored
from tfe_bench.models.queries.plan import Plan
from tfe_bench.models.queries.price import price
from tfe_bench.models.queries.rights import Table
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared
from tfe_bench.protocols.tables.relation import Relation


def check(parameters: Mapping[str, Any], inputs: Sequence[InputSpec]) -> None:
    """Refuses what is no plan.

    Raises:
        UsageError: naming what does not fit.
    """
    check_parameters("query", parameters, ("plan",))
    Plan.of(parameters.get("plan"))
    if inputs:
        raise UsageError(f"query has no inputs. Received: {[i.name for i in inputs][:4]}.")


def _tables(client: str, store: Store, plan: Plan) -> dict[str, Table]:
    """The tables of a plan as this worker keeps them.

    Raises:
        UsageError: one is not there, or was replaced meanwhile.
    """
    return {
        alias: stored.kept_table(store, name, deployment, client)[0]
        for alias, (name, deployment) in plan.tables.items()
    }


def permit(
    client: str, store: Store, parameters: Mapping[str, Any], inputs: Sequence[InputSpec]
) -> None:
    """Refuses a client that may not learn the result, or a plan that does not fit its tables.

    Raises:
        UsageError, PolicyError: as `relations.derive`, or Store.facts.
    """
    plan = Plan.of(parameters["plan"])
    tables = _tables(client, store, plan)
    if charges := _charges(relations.derive(plan, tables), tables):
        store.ledger.check(charges)


def _charges(facts: Sequence[relations.Relation], tables: Mapping[str, Table]) -> dict[str, Charge]:
    """What a plan spends of the tables' privacy, by name; of most tables nothing."""
    lost = privacy.losses((fact.release for fact in facts), tables)
    of = {table.name: table for table in tables.values()}
    return {name: Charge(of[name].owner, of[name].schema.budget, lost[name]) for name in lost}


def charge(party: Party, ledger: Ledger, charges: Mapping[str, Charge]) -> None:
    """Spends privacy at all three workers, on disk before any of them goes on.

    Each goes by the most that one of them knows to be spent.

    Raises:
        PolicyError: there is less left.
        SecurityError, DataError: as Ledger.charge.
    """
    names = sorted(charges)
    own = b"".join(ledger.spent(name).to_bytes(8, "little") for name in names)
    heard = [
        {
            name: int.from_bytes(told[8 * i : 8 * i + 8], "little", signed=True)
            for i, name in enumerate(names)
        }
        for p, told in enumerate(party.exchange(own))
        if p != party.index
    ]
    ledger.charge(charges, heard)
    party.exchange(b"charged")


def size(
    client: str, store: Store, parameters: Mapping[str, Any], inputs: Sequence[InputSpec]
) -> Size:
    """Of a run that is counted, by the headers that this worker keeps."""
    plan = Plan.of(parameters["plan"])
    tables = _tables(client, store, plan)
    profile = str(parameters.get("profile", "local"))
    found = price(plan, relations.derive(plan, tables), tables, profile)
    return Size(found.largest, found.sent, seconds=found.least_seconds)


def graph_name(given: Mapping[str, Any], tables: Mapping[str, Table]) -> str:
    """All that the graphs of a plan depend on: itself, and what its steps are derived from."""
    headers = {alias: [t.owner, t.schema.header()] for alias, t in tables.items()}
    return json.dumps([given, headers], sort_keys=True)


def run(context: Context) -> dict[str, Shared]:
    """Carries the plan out; all words of the result's rows go to the client."""
    party, store, parameters = context.party, kept.store_of(context), context.parameters
    plan = Plan.of(parameters["plan"])
    tables = _tables(context.client, store, plan)
    found = relations.derive(plan, tables)
    own, charges = store.of(TABLE), _charges(found, tables)
    # before the first message, as how long it takes tells of what was drawn
    drawn = {
        number: noising.drawn(fact.release, fact.rows)
        for number, fact in enumerate(found)
        if fact.release is not None
    }

    def words(alias: str, names: Sequence[str]) -> dict[str, Shared]:
        table = tables[alias]
        return kept.loaded(party, own, table.name, context.client, table.deployment, names)

    def load(alias: str, columns: Sequence[str]) -> Relation:
        schema = tables[alias].schema
        return stored.relation(schema, columns, words(alias, stored.names_of(schema, columns)))

    def link(alias: str, number: int) -> Shared:
        name = stored.link_name(number)
        return words(alias, [name])[name]

    profile = profiles.get(parameters.get("profile", "local")).plan

    units = {alias: table.schema.unit for alias, table in tables.items()}
    name = ("query", graph_name(parameters["plan"], tables), profile)

    def once(progress: Callable[[float, str], None]) -> dict[str, Shared]:
        setting = execute.Setting(load, link, name, profile, progress, units.__getitem__, drawn)
        return execute.run(party, plan, found, setting)

    if "repeat" in parameters:
        result = measure(context, f"planned for {profile}", lambda p: once(lambda f, _: p(f)))
    else:
        result = recorded(context, lambda: once(context.progress))
    if charges:  # nothing has left yet
        charge(party, store.ledger, charges)
    return {name: replace(x, fractional_bits=0) for name, x in result.items()}


def kept_names(parameters: Mapping[str, Any]) -> Sequence[str]:
    """The tables that a plan reads."""
    return sorted({name for name, _ in Plan.of(parameters["plan"]).tables.values()})


PROGRAM = Program(
    *("query", run, check, "queries private tables"),
    permit=permit,
    size=size,
    kept_names=kept_names,
)

"""Plans carried out by the three workers: each step with the protocols of protocols/tables.

Relations keep the columns of their public facts (relations.py), in their order; elements are kept
as distances from the lowest that their type allows, so that keys are short.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tfe_bench.models.queries import grouping
from tfe_bench.models.queries.arranged import gathered
from tfe_bench.models.queries.evaluate import (
    Evaluator,
    Value,
    column_of,
    constant_bit,
    value_of,
)
from tfe_bench.models.queries.expressions import Fact, factor
from tfe_bench.models.queries.plan import Plan, Step
from tfe_bench.models.queries.relations import Relation as Facts
from tfe_bench.models.queries.types import BOOL
from tfe_bench.protocols.ring import arithmetic, shapes
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared
from tfe_bench.protocols.tables import bits, joins, relation, results
from tfe_bench.protocols.tables.keys import Key
from tfe_bench.protocols.tables.relation import Column, Relation

# The output that holds all words of a result, a row for each; columns.py lists what they are.
ROWS = "rows"
Load = Callable[[str, Sequence[str]], Relation]


@dataclass(frozen=True)
class Setting:
    """What all steps are carried out with.

    Attributes:
        load: the columns of a table that this worker keeps, by the plan's alias.
        profile: of the network, to plan sorts for.
        progress: hears a fraction and a word.
    """

    load: Load
    profile: str = "local"
    progress: Callable[[float, str], None] = lambda fraction, text: None


def run(party: Party, plan: Plan, facts: Sequence[Facts], setting: Setting) -> dict[str, Shared]:
    """All steps of a checked plan; what leaves is cleared where there is no row or no value."""
    made: dict[int, Relation] = {}
    last = {i: number for number, step in enumerate(plan.steps) for i in step.inputs}
    for number, step in enumerate(plan.steps):
        setting.progress(number / (len(plan.steps) + 1), step.op)
        given = [made[i] for i in step.inputs]
        about = [facts[i] for i in step.inputs]
        made[number] = _STEPS[step.op](party, step, given, about, facts[number], setting)
        for i in step.inputs:
            if last[i] == number and i != plan.output:
                made.pop(i, None)
    return {ROWS: delivered(party, made[plan.output], facts[plan.output])}


def words_of(facts: Facts) -> list[tuple[str, bool]]:
    """What the words of a result's row are: columns, and with True their NULL bits.

    The first, named "", says whether the row is one.
    """
    found = [("", False)]
    for name, fact in facts.columns.items():
        if "?" in name:
            continue
        found.append((name, False))
        if fact.nullable:
            found.append((name, True))
    return found


def delivered(party: Party, rows: Relation, facts: Facts) -> Shared:
    """The words of all rows, [words, rows]: of invalid rows 0, of NULLs 0, each newly masked.

    Rows that are in no order are shuffled first: where a row was says which it was.
    """
    named = dict(zip(facts.columns, rows.columns, strict=True))
    kept = [named[name] for name, null in words_of(facts)[1:] if not null]
    wanted = Relation(tuple(kept), rows.valid)
    left = results.deliver(party, wanted, ordered=facts.ordered)

    def words(left: Relation) -> Shared:
        parts = [left.valid, *(part for c in left.columns for part in c.parts)]
        whole = [bits.number(party, p) if p.ring_bits == 1 else p for p in parts]
        return shapes.stack([replace(w, fractional_bits=0) for w in whole], 0)

    found: Shared = party.function(words)(left)
    return found


def _named(given: Relation, facts: Facts) -> dict[str, Column]:
    return dict(zip(facts.columns, given.columns, strict=True))


def _scan(
    party: Party,
    step: Step,
    given: Sequence[Relation],
    about: Sequence[Facts],
    facts: Facts,
    setting: Setting,
) -> Relation:
    return setting.load(step["table"], step["columns"])


def _filter(
    party: Party,
    step: Step,
    given: Sequence[Relation],
    about: Sequence[Facts],
    facts: Facts,
    setting: Setting,
) -> Relation:
    def kept(rows: Relation) -> Shared:
        own = Evaluator(party, _named(rows, about[0]), about[0].columns, rows.valid)
        return own.shared(own.both(rows.valid, own.truth(step["where"])))

    return replace(given[0], valid=party.function(kept)(given[0]))


def _project(
    party: Party,
    step: Step,
    given: Sequence[Relation],
    about: Sequence[Facts],
    facts: Facts,
    setting: Setting,
) -> Relation:
    def made(rows: Relation) -> list[Column]:
        named = _named(rows, about[0])
        own = Evaluator(party, named, about[0].columns, rows.valid)
        found = {name: column_of(own.value(e)) for name, e in step["columns"]}
        # (columns that say whose records there are stay)
        return [found[name] if "?" not in name else named[name] for name in facts.columns]

    return Relation(tuple(party.function(made)(given[0])), given[0].valid)


def _group(
    party: Party,
    step: Step,
    given: Sequence[Relation],
    about: Sequence[Facts],
    facts: Facts,
    setting: Setting,
) -> Relation:
    named = _named(given[0], about[0])
    return grouping.group(party, step, given[0].valid, named, about[0], facts, setting.profile)


def _distinct(
    party: Party,
    step: Step,
    given: Sequence[Relation],
    about: Sequence[Facts],
    facts: Facts,
    setting: Setting,
) -> Relation:
    fields = {"keys": list(about[0].columns), "aggregates": []}
    own = Step("group", step.inputs, fields)
    return _group(party, own, given, about, facts, setting)


def _order(
    party: Party,
    step: Step,
    given: Sequence[Relation],
    about: Sequence[Facts],
    facts: Facts,
    setting: Setting,
) -> Relation:
    names = list(facts.columns)
    by = [Key(names.index(name), way == "desc") for name, way in step["by"]]
    # equal rows stay as they are, and where they were in their table is nobody's business
    mixed = results.deliver(party, given[0])
    return results.order_by(party, mixed, by, profile=setting.profile)


def _limit(
    party: Party,
    step: Step,
    given: Sequence[Relation],
    about: Sequence[Facts],
    facts: Facts,
    setting: Setting,
) -> Relation:
    rows = given[0]
    if not facts.ordered:  # any rows will do, and which they are tells nothing
        rows = gathered(party, rows)
    found = relation.limit(rows, facts.rows)
    if step["count"] == 0:
        return replace(found, valid=party.function(lambda v: constant_bit(v, False))(found.valid))
    return found


def recast(party: Party, column: Column, fact: Fact, wanted: Fact) -> Column:
    """A column in the type that it has in common with others.  Local."""
    value = value_of(column, fact)
    data = value.data
    if wanted.known.kind != BOOL:
        data = arithmetic.mul_public(data, np.int64(factor(fact.known, wanted.known)))
    return column_of(Value(data, value.null, wanted))


def _union(
    party: Party,
    step: Step,
    given: Sequence[Relation],
    about: Sequence[Facts],
    facts: Facts,
    setting: Setting,
) -> Relation:
    wanted = list(facts.columns.values())

    def joined(several: list[Relation]) -> Relation:
        alike = []
        for rows, own in zip(several, about, strict=True):
            columns = [
                recast(party, c, f, w)
                for c, f, w in zip(rows.columns, own.columns.values(), wanted, strict=True)
            ]
            alike.append(Relation(tuple(columns), rows.valid))
        return relation.union(alike)

    made: Relation = party.function(joined)(list(given))
    return made


def _join(
    party: Party,
    step: Step,
    given: Sequence[Relation],
    about: Sequence[Facts],
    facts: Facts,
    setting: Setting,
) -> Relation:
    names = [list(each.columns) for each in about]
    on = [(names[0].index(a), names[1].index(b)) for a, b in step["on"]]
    kind, right = step["kind"], given[1]
    if kind == "left":  # a column that is NULL where no row matched
        ones = party.function(lambda v: constant_bit(v, True))(right.valid)
        right = Relation((*right.columns, Column(ones, 1)), right.valid)
    found = joins.lookup(party, given[0], right, on, kind, profile=setting.profile)
    if kind in ("semi", "anti"):
        return found
    own = dict(zip([*names[0], *names[1]], found.columns, strict=False))
    if kind == "left":
        null = found.columns[-1].null
        assert null is not None
        there = Column(party.function(bits.invert)(null), 1)
        own.update({name: there for name in facts.columns if name not in own})
    return Relation(tuple(own[name] for name in facts.columns), found.valid)


_STEPS: Mapping[str, Callable[..., Relation]] = {
    "scan": _scan,
    "filter": _filter,
    "project": _project,
    "group": _group,
    "distinct": _distinct,
    "order": _order,
    "limit": _limit,
    "union": _union,
    "join": _join,
}

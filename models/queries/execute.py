"""Plans carried out by the three workers: each step with the protocols of protocols/tables.

Relations keep the columns of their public facts (relations.py), in their order; elements are kept
as distances from the lowest that their type allows, so that keys are short.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from tfe_bench.models.queries import grouping, windowing
from tfe_bench.models.queries.arranged import gathered
from tfe_bench.models.queries.evaluate import (
    Evaluator,
    Value,
    column_of,
    constant_bit,
    value_of,
)
from tfe_bench.models.queries.expressions import Fact, factor
from tfe_bench.models.queries.noising import Drawn
from tfe_bench.models.queries.plan import Plan, Step
from tfe_bench.models.queries.relations import Relation as Facts
from tfe_bench.models.queries.relations import shown_of
from tfe_bench.models.queries.types import BOOL
from tfe_bench.protocols.ring import arithmetic, shapes
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared
from tfe_bench.protocols.tables import bits, joins, linked, many, relation, results
from tfe_bench.protocols.tables.keys import Key
from tfe_bench.protocols.tables.relation import Column, Relation

# The output that holds all words of a result, a row for each; columns.py lists what they are.
ROWS = "rows"
# The output that says, for each step of a public bound, whether it has more rows.
OVER = "over"
Load = Callable[[str, Sequence[str]], Relation]
LoadLink = Callable[[str, int], Shared]


@dataclass(frozen=True)
class Setting:
    """What all steps are carried out with.

    Attributes:
        load: the columns of a table that this worker keeps, by the plan's alias.
        link: one of its links, by its number.
        name: of all that is public (the plan, which names deployments, and the profile), if graphs
            are to be kept for the next time.
        profile: of the network, to plan sorts for.
        progress: hears a fraction and a word before each step, and before the delivery.
        unit_of: the column that says whose records a table's are, by the plan's alias.
        drawn: what this worker drew as noise, by the step's number (`noising.drawn`).
    """

    load: Load
    link: LoadLink
    name: Hashable | None
    profile: str = "local"
    progress: Callable[[float, str], None] = lambda fraction, text: None
    unit_of: Callable[[str], str] = lambda alias: ""
    drawn: Mapping[int, Drawn] = field(default_factory=dict)


def run(party: Party, plan: Plan, facts: Sequence[Facts], setting: Setting) -> dict[str, Shared]:
    """All steps of a checked plan; what leaves is cleared where there is no row or no value."""
    made: dict[int, Relation] = {}
    over: list[Shared] = []
    last = {i: number for number, step in enumerate(plan.steps) for i in step.inputs}
    for number, step in enumerate(plan.steps):
        setting.progress(number / (len(plan.steps) + 1), step.op)
        given = [made[i] for i in step.inputs]
        about = [facts[i] for i in step.inputs]
        own = setting.drawn.get(number)
        at = _At(party, step, given, about, facts[number], setting, over, own)
        with party.kept_graphs(setting.name, number):
            made[number] = _STEPS[step.op](at)
        for i in step.inputs:
            if last[i] == number and i != plan.output:
                made.pop(i, None)
    setting.progress(len(plan.steps) / (len(plan.steps) + 1), "deliver")
    with party.kept_graphs(setting.name):
        rows = delivered(party, made[plan.output], facts[plan.output])
        if not over:
            return {ROWS: rows}
        found = party.function(lambda given: bits.number(party, shapes.concat(given, 0)))(over)
    return {ROWS: rows, OVER: found}


def words_of(facts: Facts) -> list[tuple[str, bool]]:
    """What the words of a result's row are: columns, and with True their NULL bits.

    The first, named "", says whether the row is one.
    """
    found = [("", False)]
    for name in shown_of(facts.columns):
        fact = facts.columns[name]
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


@dataclass(frozen=True)
class _At:
    """A step where it stands.

    Attributes:
        given, about: its relations, and what is public of them.
        facts: of what it makes.
        over: bits of bounded steps, to which these add theirs.
        own: noise that this worker drew for the step.
    """

    party: Party
    step: Step
    given: Sequence[Relation]
    about: Sequence[Facts]
    facts: Facts
    setting: Setting
    over: list[Shared]
    own: Drawn | None = None


def _named(given: Relation, facts: Facts) -> dict[str, Column]:
    return dict(zip(facts.columns, given.columns, strict=True))


def _scan(at: _At) -> Relation:
    alias, listed = at.step["table"], at.step["columns"]
    if not at.facts.records[alias].unit:
        return at.setting.load(alias, listed)
    unit = at.setting.unit_of(alias)
    every = [*listed, *({unit} - set(listed))]
    rows = at.setting.load(alias, every)
    return Relation((*rows.columns[: len(listed)], rows.columns[every.index(unit)]), rows.valid)


def _filter(at: _At) -> Relation:
    def kept(rows: Relation) -> Shared:
        own = Evaluator(at.party, _named(rows, at.about[0]), at.about[0].columns, rows.valid)
        return own.shared(own.both(rows.valid, own.truth(at.step["where"])))

    return replace(at.given[0], valid=at.party.function(kept)(at.given[0]))


def _project(at: _At) -> Relation:
    def made(rows: Relation) -> list[Column]:
        named = _named(rows, at.about[0])
        own = Evaluator(at.party, named, at.about[0].columns, rows.valid)
        found = {name: column_of(own.value(e)) for name, e in at.step["columns"]}
        # (columns that say whose records there are stay)
        return [found[name] if "?" not in name else named[name] for name in at.facts.columns]

    return Relation(tuple(at.party.function(made)(at.given[0])), at.given[0].valid)


def _group(at: _At) -> Relation:
    named = _named(at.given[0], at.about[0])
    return grouping.group(
        *(at.party, at.step, at.given[0].valid, named, at.about[0], at.facts),
        *(at.setting.profile, at.own),
    )


def _distinct(at: _At) -> Relation:
    fields = {"keys": shown_of(at.about[0].columns), "aggregates": []}
    own = Step("group", at.step.inputs, fields)
    return _group(replace(at, step=own))


def _order(at: _At) -> Relation:
    return results.order_by(*_by(at), profile=at.setting.profile)


def _top(at: _At) -> Relation:
    return results.top(*_by(at), at.step["count"], profile=at.setting.profile)


def _by(at: _At) -> tuple[Party, Relation, list[Key]]:
    """What is put in order, and by what."""
    names = list(at.facts.columns)
    by = [Key(names.index(name), way == "desc") for name, way in at.step["by"]]
    # equal rows stay as they are, and where they were in their table is nobody's business
    return at.party, results.deliver(at.party, at.given[0]), by


def _window(at: _At) -> Relation:
    [rows], [about] = at.given, at.about
    return windowing.window(at.party, at.step, rows, about, at.facts, at.setting.profile)


def _limit(at: _At) -> Relation:
    rows = at.given[0]
    if not at.facts.ordered:  # any rows will do, and which they are tells nothing
        rows = gathered(at.party, rows)
    found = relation.limit(rows, at.facts.rows)
    if at.step["count"] == 0:
        return replace(
            found, valid=at.party.function(lambda v: constant_bit(v, False))(found.valid)
        )
    return found


def recast(party: Party, column: Column, fact: Fact, wanted: Fact) -> Column:
    """A column in the type that it has in common with others.  Local."""
    value = value_of(column, fact)
    data = value.data
    if wanted.known.kind != BOOL:
        data = arithmetic.mul_public(data, np.int64(factor(fact.known, wanted.known)))
    return column_of(Value(data, value.null, wanted))


def _union(at: _At) -> Relation:
    wanted = list(at.facts.columns.values())

    def joined(several: list[Relation]) -> Relation:
        alike = []
        for rows, own in zip(several, at.about, strict=True):
            named = _named(rows, own)
            columns = [
                recast(at.party, named[name], own.columns[name], w)
                for name, w in zip(shown_of(own.columns), wanted, strict=True)
            ]
            alike.append(Relation(tuple(columns), rows.valid))
        return relation.union(alike)

    made: Relation = at.party.function(joined)(list(at.given))
    return made


def _join(at: _At) -> Relation:
    names, on = _on(at)
    kind, right = at.step["kind"], _looked_up(at)
    if at.facts.link is not None:
        target = at.setting.link(*at.facts.link)
        found = linked.lookup(at.party, at.given[0], right, on[0], target, kind)
    else:
        unique = any(a in at.about[0].unique for a, _ in at.step["on"])
        found = joins.lookup(
            at.party, at.given[0], right, on, kind, unique=unique, profile=at.setting.profile
        )
    if kind in ("semi", "anti"):
        return found
    return _found(at, names, found)


def _looked_up(at: _At) -> Relation:
    """The right side of a join; of a left one with a column that is NULL where no row matched."""
    right = at.given[1]
    if at.step["kind"] != "left":
        return right
    ones = at.party.function(lambda v: constant_bit(v, True))(right.valid)
    return Relation((*right.columns, Column(ones, 1)), right.valid)


def _found(at: _At, names: Sequence[Sequence[str]], found: Relation) -> Relation:
    """What a join of `_looked_up` has found, with columns that say which records are there."""
    own = dict(zip([*names[0], *names[1]], found.columns, strict=False))
    if at.step["kind"] == "left":
        null = found.columns[-1].null
        assert null is not None
        there = Column(at.party.function(bits.invert)(null), 1)
        own.update({name: there for name in at.facts.columns if name not in own})
    return Relation(tuple(own[name] for name in at.facts.columns), found.valid)


def _on(at: _At) -> tuple[list[list[str]], list[tuple[int, int]]]:
    """The columns of both sides, and which of them are compared."""
    names = [list(each.columns) for each in at.about]
    return names, [(names[0].index(a), names[1].index(b)) for a, b in at.step["on"]]


def _many_join(at: _At) -> Relation:
    profile, bound = at.setting.profile, at.step["bound"]
    names, on = _on(at)
    found, over = many.many_join(
        *(at.party, at.given[0], _looked_up(at), on, bound, at.step["kind"]), profile=profile
    )
    at.over.append(over)
    return _found(at, names, found)


def _trim(at: _At) -> Relation:
    found, over = many.trim(at.party, at.given[0], at.step["bound"])
    at.over.append(over)
    return found


_STEPS: Mapping[str, Callable[[_At], Relation]] = {
    "scan": _scan,
    "filter": _filter,
    "project": _project,
    "group": _group,
    "distinct": _distinct,
    "order": _order,
    "limit": _limit,
    "top": _top,
    "window": _window,
    "union": _union,
    "join": _join,
    "many_join": _many_join,
    "trim": _trim,
}

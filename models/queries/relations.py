"""What is public about the relation of each step of a plan, and whether the client may ask for it.

Client and workers derive it from a plan and the headers of its tables, each by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tfe_bench.cluster.stored import Source
from tfe_bench.errors import UsageError, did_you_mean
from tfe_bench.models.queries import privacy, rights
from tfe_bench.models.queries.expressions import Fact, common, typed
from tfe_bench.models.queries.links import link_of
from tfe_bench.models.queries.plan import (
    MOST_RANKS,
    NEIGHBORS,
    PLACES,
    Plan,
    Step,
    checked_step,
    quantile_of,
)
from tfe_bench.models.queries.privacy import Release
from tfe_bench.models.queries.rights import Control, Records, Tables, Use
from tfe_bench.models.queries.summaries import (
    aggregate,
    check_running,
    is_dense,
    most_groups,
    public_groups,
)
from tfe_bench.models.queries.types import BITS, CATEGORY, NUMBER, whole

# Of one relation, with all its columns.
MOST_CELLS = 1 << 31


@dataclass(frozen=True)
class Relation:
    """Public facts about the rows of a step.

    Attributes:
        rows: how many there are, valid or not.
        columns: in their order.
        valid: whether all of them are.
        control: the columns that the rows depend on, and for what.
        records: the tables whose records they are, by alias; none once they are released.
        unique: columns of which no value is in two valid rows.
        ordered: whether their order says something.
        least: of a group: the tables whose records are counted, and how many there must be.
        home: the table in whose order the rows are, one for each of its own, its columns under
            their names; "" for none.
        link: of a join, the table that has a link (Schema.links) for it, and which.
        release: of a group of tables with a privacy budget: how it is noised.
    """

    rows: int
    columns: Mapping[str, Fact]
    valid: bool = True
    control: Control = frozenset()
    records: Mapping[str, Records] = field(default_factory=dict)
    unique: frozenset[str] = frozenset()
    ordered: bool = False
    least: Mapping[str, int] = field(default_factory=dict)
    home: str = ""
    link: tuple[str, int] | None = None
    release: Release | None = None

    def column(self, name: str) -> Fact:
        """A column's fact.

        Raises:
            UsageError: there is none.
        """
        return typed(["col", name], self.columns)

    def take(self, names: Sequence[str]) -> dict[str, Fact]:
        """Facts of some columns."""
        return {name: self.column(name) for name in names}


def derive(plan: Plan, tables: Tables) -> list[Relation]:
    """The relations of a plan's steps.

    Args:
        tables: what the client may use, by the plan's aliases.

    Raises:
        UsageError: a step that does not fit its relations.
        PolicyError: the client lacks a right; column, right and owner are named.
    """
    found: list[Relation] = []
    for number, step in enumerate(plan.steps):
        try:
            made = _made(step, [found[i] for i in step.inputs], tables)
        except UsageError as error:
            raise UsageError(f"Step {number} ({step.op}): {error}") from None
        if made.rows * max(1, len(made.columns)) > MOST_CELLS:
            raise UsageError(
                f"Step {number} ({step.op}) has {made.rows} rows of {len(made.columns)} columns; "
                f"at most {MOST_CELLS} values are offered."
            )
        found.append(made)
    ranks = [
        function
        for step, made in zip(plan.steps, found, strict=True)
        if step.op == "group" and made.least
        for _, function, _ in step["aggregates"]
        if quantile_of(function)
    ]
    if len(ranks) > MOST_RANKS:
        raise UsageError(
            f"A query tells at most {MOST_RANKS} quantiles of values that may not be shown. "
            f"Received: {len(ranks)}."
        )
    last = found[plan.output]
    shown = last.take(shown_of(last.columns))
    rights.check_shown(tables, shown, last.control, last.records)
    return found


def derive_step(given: Mapping[str, Any], inputs: Sequence[Relation], tables: Tables) -> Relation:
    """The relation of one more step, of whoever makes a plan.

    Raises:
        UsageError, PolicyError: as `derive`.
    """
    return _made(checked_step(given), inputs, tables)


# Steps whose rows are those of their first input, in their places and under their names.
_IN_PLACE = ("scan", "filter", "join")


def _made(step: Step, inputs: Sequence[Relation], tables: Tables) -> Relation:
    guarded = [privacy.guarded(tables, r.columns, r.control, r.records) for r in inputs]
    left = guarded[0] if guarded else []
    right = [alias for each in guarded[1:] for alias in each]
    privacy.check_step(tables, step.op, step.about.get("kind", ""), left, right)
    made = _STEPS[step.op](step, inputs, tables)
    home, release = (made.home, None) if step.op in _IN_PLACE else ("", made.release)
    return replace(made, home=home, release=release if step.op == "group" else None)


def _used(relation: Relation, sources: frozenset[Source], use: Use) -> Control:
    return relation.control | {(source, use) for source in sources}


def _scan(step: Step, _: Sequence[Relation], tables: Tables) -> Relation:
    alias = step["table"]
    schema = tables[alias].schema
    columns = {}
    for name in step["columns"]:
        own = schema.column(name, f"table {tables[alias].name!r}")
        sources = frozenset([tables[alias].source(name, alias)])
        columns[f"{alias}.{name}"] = Fact(own.type, own.nullable, sources, affine=True)
    unit, carried = schema.unit, ""
    if unit and not all(tables[alias].permits(Use.SHOW, name) for name in schema.columns):
        # (counted, and never shown)
        carried = unit_of(alias)
        own = schema.column(unit)
        sources = frozenset([tables[alias].source(unit, alias)])
        columns[carried] = Fact(own.type, own.nullable, sources)
    records = {alias: Records(not unit or unit in schema.unique, unit=carried)}
    unique = frozenset(f"{alias}.{name}" for name in schema.unique)
    unique &= set(columns)
    return Relation(
        schema.rows, columns, not schema.padded, records=records, unique=unique, home=alias
    )


def _filter(step: Step, given: Sequence[Relation], _: Tables) -> Relation:
    [relation] = given
    fact = typed(step["where"], relation.columns)
    if fact.type not in (BITS, None):
        raise UsageError(f"WHERE and HAVING take a condition. Received: a {fact.type}.")
    control = _used(relation, fact.sources, Use.CONDITION)
    # (between rows in order those that are left out would show)
    return replace(relation, valid=False, control=control, ordered=False, least={})


def _project(step: Step, given: Sequence[Relation], _: Tables) -> Relation:
    [relation] = given
    columns, unique = {}, set()
    for name, expression in step["columns"]:
        columns[name] = fact = typed(expression, relation.columns)
        if fact.type is None:
            raise UsageError("A column of nothing but NULL has no type.")
        if expression[0] == "col" and expression[1] in relation.unique:
            unique.add(name)
    kept = {name for r in relation.records.values() for name in (r.present, r.unit) if name}
    columns.update({name: relation.columns[name] for name in sorted(kept)})
    return replace(relation, columns=columns, unique=frozenset(unique), least={})


def _group(step: Step, given: Sequence[Relation], tables: Tables) -> Relation:
    [relation] = given
    keys = relation.take(step["keys"])
    aggregates = [
        (name, function, None if argument is None else relation.column(argument))
        for name, function, argument in step["aggregates"]
    ]
    columns = dict(keys)
    for name, function, fact in aggregates:
        columns[name] = aggregate(function, fact, relation.rows, bool(keys))
    dense = is_dense(list(keys.values()), [f for _, f, _ in aggregates])
    rows = (dense or most_groups(list(keys.values()), relation.rows)) if keys else 1
    own = frozenset[Source]().union(*(f.sources for f in columns.values()))
    sources = own | {source for source, _ in relation.control}
    unique = frozenset(keys) if len(keys) == 1 else frozenset[str]()
    closed = rights.restricted(tables, sources, relation.records)
    # (of a table with a budget all are told of)
    count = public_groups(list(keys.values())) if keys else 1
    release = privacy.release(
        *(tables, closed, step["aggregates"], relation.columns, relation.records),
        *(step.about.get("loss", 0), count, relation.rows),
    )
    if release is not None:
        rights.check_released(tables, keys, aggregates, relation.control, noised=True)
        return _released(step, relation, release, count)
    if not closed:
        everything = {name: replace(fact, affine=False) for name, fact in columns.items()}
        several = {alias: Records(False) for alias in relation.records}
        return Relation(rows, everything, not keys, relation.control, several, unique)
    rights.check_released(tables, keys, aggregates, relation.control)
    functions = [function for _, function, _ in aggregates]
    least = {
        alias: rights.check_units(tables, alias, relation.records.get(alias), functions)
        for alias in closed
    }
    released = {
        name: replace(fact, sources=frozenset[Source](), affine=False)
        for name, fact in columns.items()
    }
    return Relation(rows, released, False, unique=unique, least=least)


def _released(step: Step, relation: Relation, release: Release, rows: int) -> Relation:
    """Groups with noise: all that there could be."""
    columns = {name: privacy.released(f) for name, f in relation.take(step["keys"]).items()}
    for name, function, argument in step["aggregates"]:
        columns[name] = privacy.noised(function, argument, relation.columns, release, relation.rows)
    unique = frozenset(step["keys"]) if len(step["keys"]) == 1 else frozenset[str]()
    return Relation(rows, columns, unique=unique, release=release)


def _distinct(step: Step, given: Sequence[Relation], tables: Tables) -> Relation:
    about = {"keys": shown_of(given[0].columns), "aggregates": []}
    return _group(Step("group", step.inputs, about), given, tables)


def _window(step: Step, given: Sequence[Relation], _: Tables) -> Relation:
    [relation] = given
    by = relation.take([name for name, _ in step["order"]])
    for name, fact in by.items():
        if not fact.known.ordered:
            raise UsageError(f"A window by {name[:80]!r}: a text has no order here.")
    keys = frozenset[Source]().union(
        *(fact.sources for fact in [*by.values(), *relation.take(step["partition"]).values()])
    )
    # what a row is told depends on which others there are
    sources = keys | {source for source, _ in relation.control}
    columns = dict(relation.columns)
    for name, function, argument, detail in step["functions"]:
        if name in columns:
            raise UsageError(f"There is a column {name[:80]!r} already.")
        if detail != "whole" and all(fact.constant is not None for fact in by.values()):
            raise UsageError(
                f"{function.upper()} takes OVER (... ORDER BY columns): rows have no order of "
                "their own."
            )
        of = None if argument is None else relation.column(argument)
        if of is not None and function in ("min", "max"):
            check_running(of.known, relation.rows)
        if function in PLACES:
            made = Fact(whole(1, relation.rows))
        elif of is not None and function in NEIGHBORS:
            made = Fact(of.known, True)
        else:
            made = aggregate(function, of, relation.rows, True)
        columns[name] = replace(made, sources=sources | (of.sources if of else frozenset()))
    control = _used(relation, keys, Use.CONDITION)
    return replace(relation, columns=columns, control=control, ordered=False, least={})


def _order(step: Step, given: Sequence[Relation], _: Tables) -> Relation:
    [relation] = given
    sources = frozenset[Source]()
    for name, _direction in step["by"]:
        fact = relation.column(name)
        if not fact.known.ordered:
            raise UsageError(f"ORDER BY {name[:80]!r}: a text has no order here.")
        sources |= fact.sources
    control = _used(relation, sources, Use.CONDITION)
    return replace(relation, control=control, ordered=True, least={})


def _limit(step: Step, given: Sequence[Relation], _: Tables) -> Relation:
    [relation] = given
    rows = max(1, min(step["count"], relation.rows))
    valid = relation.valid and step["count"] > 0
    return replace(relation, rows=rows, valid=valid, least={})


def _top(step: Step, given: Sequence[Relation], tables: Tables) -> Relation:
    return _limit(step, [_order(step, given, tables)], tables)


def _union(step: Step, given: Sequence[Relation], _: Tables) -> Relation:
    first, *others = given
    names = shown_of(first.columns)
    columns = first.take(names)
    for other in others:
        listed = shown_of(other.columns)
        if len(listed) != len(names):
            raise UsageError("UNION takes equally many columns of each.")
        for name, fact in zip(names, other.take(listed).values(), strict=True):
            one = columns[name]
            if fact.constant is not None and fact.known.kind == CATEGORY:
                raise UsageError("UNION of a lone word: use a column of a category.")
            columns[name] = Fact(
                common(replace(one, constant=None), fact),
                one.nullable or fact.nullable,
                one.sources | fact.sources,
            )
    # (whose record a row is cannot be told any more)
    records = {alias: Records(False) for relation in given for alias in relation.records}
    control = frozenset[tuple[Source, Use]]().union(*(relation.control for relation in given))
    rows, valid = sum(r.rows for r in given), all(r.valid for r in given)
    return Relation(rows, columns, valid, control, records)


def _join(step: Step, given: Sequence[Relation], tables: Tables) -> Relation:
    left, right = given
    kind, pairs = step["kind"], step["on"]
    _check_sides(left, right, pairs)
    unique = {name for _, name in pairs} & right.unique
    if not unique:
        known = ", ".join(sorted(right.unique)) or "none"
        raise UsageError(
            "A join looks up rows of a table whose column is unique. Received: ON "
            f"{', '.join(name[:40] for _, name in pairs)}; unique are {known}. Swap the sides, "
            "group by the key first, have the owner declare it (table put --unique), or bound the "
            "rows of an inner or a left join (--max-rows)."
        )
    both = bool({name for name, _ in pairs} & left.unique)
    made = _joined(kind, pairs, left, right, both, tables)
    link = link_of(pairs, left.home, right.home, right.rows, tables)
    return replace(made, link=link)


def _many_join(step: Step, given: Sequence[Relation], tables: Tables) -> Relation:
    left, right = given
    _check_sides(left, right, step["on"])
    made = _joined(step["kind"], step["on"], left, right, False, tables)
    # (a record may be in as many rows as the other side has; left's is in one at least)
    copies = {
        **{alias: (own, max(1, right.rows)) for alias, own in left.records.items()},
        **{alias: (own, left.rows) for alias, own in right.records.items()},
    }
    rights.check_bound(tables, step["bound"], made.control, copies)
    records = {alias: replace(own, single=False) for alias, own in made.records.items()}
    rows = step["bound"]
    return replace(made, rows=rows, valid=False, records=records, unique=frozenset())


def _trim(step: Step, given: Sequence[Relation], tables: Tables) -> Relation:
    [relation] = given
    copies = {alias: (own, 1) for alias, own in relation.records.items()}
    rights.check_bound(tables, step["bound"], relation.control, copies)
    rows = min(step["bound"], relation.rows)
    return replace(relation, rows=rows, valid=False, ordered=False, least={})


def _check_sides(left: Relation, right: Relation, pairs: Sequence[Sequence[str]]) -> None:
    if shared := set(left.columns) & set(right.columns):
        raise UsageError(f"Two sides of a join name a column {min(shared)[:80]!r}.")
    if shared := set(left.records) & set(right.records):
        raise UsageError(f"A table is joined with itself under one alias, {min(shared)[:80]!r}.")
    for one, other in pairs:
        a, b = left.column(one), right.column(other)
        if common(a, b) != a.type or a.type != b.type:
            raise UsageError(
                f"A join takes columns of one type and range. Received: {one[:80]!r} is a {a.type} "
                f"from {a.known.low} to {a.known.high}, {other[:80]!r} a {b.type} from "
                f"{b.known.low} to {b.known.high}. Have the owners declare the same."
                if a.known.kind == b.known.kind == NUMBER
                else f"A join takes columns of one type. Received: {one[:80]!r} is a {a.type}, "
                f"{other[:80]!r} another {b.type}."
            )


def _joined(
    kind: str,
    pairs: Sequence[Sequence[str]],
    left: Relation,
    right: Relation,
    both: bool,
    tables: Tables,
) -> Relation:
    control = left.control | right.control
    for relation, others, index in ((left, right, 0), (right, left, 1)):
        guessed = any(tables[alias].owner == tables[alias].client for alias in others.records)
        for pair in pairs:
            fact = relation.column(pair[index])
            use = Use.GUESSED if guessed or not others.records else Use.MATCHED
            if kind == "anti":
                use = Use.LEFT_OUT
            elif kind == "left" or not fact.affine:
                use = Use.CONDITION
            control |= {(source, use) for source in fact.sources}
    records = dict(left.records)
    columns = dict(left.columns)
    # (what whether a partner was found depends on)
    matched = frozenset(source for source, _ in control)
    if kind != "anti":
        for alias, own in right.records.items():
            present = own.present or (present_of(alias) if kind == "left" else "")
            unit = own.unit if kind in ("inner", "left") else ""
            records[alias] = Records(own.single and both, present, unit)
            if kind == "left":
                columns[present] = Fact(BITS, sources=matched)
    if kind in ("inner", "left"):
        for name, fact in right.columns.items():
            columns[name] = replace(fact, nullable=fact.nullable or kind == "left")
    unique = left.unique | (right.unique if both and kind in ("inner", "left") else frozenset())
    valid = left.valid and kind == "left"
    return Relation(left.rows, columns, valid, control, records, unique, home=left.home)


def unit_of(alias: str) -> str:
    """The column that says whose record of a table a row is: no query can name it."""
    return f"{alias}?unit"


def shown_of(columns: Iterable[str]) -> list[str]:
    """The columns that a query can name."""
    return [name for name in columns if "?" not in name]


def present_of(alias: str) -> str:
    """The column that says in which rows a table's records are: no query can name it."""
    return f"{alias}?"


_STEPS: Mapping[str, Callable[[Step, Sequence[Relation], Tables], Relation]] = {
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


def missing_table(name: str, known: Sequence[str]) -> UsageError:
    """What is told of a table that is not there."""
    return UsageError(
        f"There is no table {name[:80]!r} that this client may use.{did_you_mean(name, known)} "
        "See `python -m tfe_bench table list`."
    )

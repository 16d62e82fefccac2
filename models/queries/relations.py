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
from tfe_bench.models.queries.aggregate_types import (
    aggregate_fact,
    check_window_extreme,
    dense_group_count,
    max_group_count,
    public_group_count,
)
from tfe_bench.models.queries.expressions import Fact, common_type, infer_fact
from tfe_bench.models.queries.plan import (
    MAX_RANKS,
    NEIGHBORS,
    PLACES,
    Plan,
    Step,
    parse_quantile,
    parse_step,
)
from tfe_bench.models.queries.prepared_joins import find_link
from tfe_bench.models.queries.privacy import Release
from tfe_bench.models.queries.rights import Control, Records, Tables, Use
from tfe_bench.models.queries.types import BITS, CATEGORY, NUMBER, int_type

# Of one relation, with all its columns.
MAX_CELLS = 1 << 31


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

    def column_fact(self, name: str) -> Fact:
        """A column's fact.

        Raises:
            UsageError: there is none.
        """
        return infer_fact(["col", name], self.columns)

    def column_facts(self, names: Sequence[str]) -> dict[str, Fact]:
        """Facts of some columns."""
        return {name: self.column_fact(name) for name in names}


def derive_relations(plan: Plan, tables: Tables) -> list[Relation]:
    """The relations of a plan's steps.

    Args:
        tables: what the client may use, by the plan's aliases.

    Raises:
        UsageError: a step that does not fit its relations.
        PolicyError: the client lacks a right; column, right and owner are named.
    """
    relations: list[Relation] = []
    for number, step in enumerate(plan.steps):
        try:
            relation = _derive_relation(step, [relations[i] for i in step.inputs], tables)
        except UsageError as error:
            raise UsageError(f"Step {number} ({step.op}): {error}") from None
        if relation.rows * max(1, len(relation.columns)) > MAX_CELLS:
            raise UsageError(
                f"Step {number} ({step.op}) has {relation.rows} rows of {len(relation.columns)} columns; "
                f"at most {MAX_CELLS} values are offered."
            )
        relations.append(relation)
    ranks = [
        function
        for step, relation in zip(plan.steps, relations, strict=True)
        if step.op == "group" and relation.least
        for _, function, _ in step["aggregates"]
        if parse_quantile(function)
    ]
    if len(ranks) > MAX_RANKS:
        raise UsageError(
            f"A query tells at most {MAX_RANKS} quantiles of values that may not be shown. "
            f"Received: {len(ranks)}."
        )
    last = relations[plan.output]
    shown = last.column_facts(visible_columns(last.columns))
    rights.check_shown(tables, shown, last.control, last.records)
    return relations


def derive_step(step: Mapping[str, Any], inputs: Sequence[Relation], tables: Tables) -> Relation:
    """The relation of one more step, of whoever makes a plan.

    Raises:
        UsageError, PolicyError: as `derive`.
    """
    return _derive_relation(parse_step(step), inputs, tables)


# Steps whose rows are those of their first input, in their places and under their names.
_IN_PLACE = ("scan", "filter", "join")


def _derive_relation(step: Step, inputs: Sequence[Relation], tables: Tables) -> Relation:
    guarded = [privacy.budgeted_aliases(tables, r.columns, r.control, r.records) for r in inputs]
    first_aliases = guarded[0] if guarded else []
    other_aliases = [alias for aliases in guarded[1:] for alias in aliases]
    privacy.check_step(tables, step.op, step.about.get("kind", ""), first_aliases, other_aliases)
    relation = _STEPS[step.op](step, inputs, tables)
    home, release = (relation.home, None) if step.op in _IN_PLACE else ("", relation.release)
    return replace(relation, home=home, release=release if step.op == "group" else None)


def _add_control(relation: Relation, sources: frozenset[Source], use: Use) -> Control:
    return relation.control | {(source, use) for source in sources}


def _derive_scan(step: Step, _: Sequence[Relation], tables: Tables) -> Relation:
    alias = step["table"]
    schema = tables[alias].schema
    columns = {}
    for name in step["columns"]:
        schema_column = schema.column(name, f"table {tables[alias].name!r}")
        sources = frozenset([tables[alias].source(name, alias)])
        columns[f"{alias}.{name}"] = Fact(
            schema_column.type, schema_column.nullable, sources, affine=True
        )
    unit, carried = schema.unit, ""
    if unit and not all(tables[alias].permits(Use.SHOW, name) for name in schema.columns):
        # (counted, and never shown)
        carried = unit_column(alias)
        schema_column = schema.column(unit)
        sources = frozenset([tables[alias].source(unit, alias)])
        columns[carried] = Fact(schema_column.type, schema_column.nullable, sources)
    records = {alias: Records(not unit or unit in schema.unique, unit=carried)}
    unique = frozenset(f"{alias}.{name}" for name in schema.unique)
    unique &= set(columns)
    return Relation(
        schema.rows, columns, not schema.padded, records=records, unique=unique, home=alias
    )


def _derive_filter(step: Step, inputs: Sequence[Relation], _: Tables) -> Relation:
    [relation] = inputs
    fact = infer_fact(step["where"], relation.columns)
    if fact.type not in (BITS, None):
        raise UsageError(f"WHERE and HAVING take a condition. Received: a {fact.type}.")
    control = _add_control(relation, fact.sources, Use.CONDITION)
    # (between rows in order those that are left out would show)
    return replace(relation, valid=False, control=control, ordered=False, least={})


def _derive_project(step: Step, inputs: Sequence[Relation], _: Tables) -> Relation:
    [relation] = inputs
    columns, unique = {}, set()
    for name, expression in step["columns"]:
        columns[name] = fact = infer_fact(expression, relation.columns)
        if fact.type is None:
            raise UsageError("A column of nothing but NULL has no type.")
        if expression[0] == "col" and expression[1] in relation.unique:
            unique.add(name)
    carried = {name for r in relation.records.values() for name in (r.present, r.unit) if name}
    columns.update({name: relation.columns[name] for name in sorted(carried)})
    return replace(relation, columns=columns, unique=frozenset(unique), least={})


def _derive_group(step: Step, inputs: Sequence[Relation], tables: Tables) -> Relation:
    [relation] = inputs
    keys = relation.column_facts(step["keys"])
    aggregates = [
        (name, function, None if argument is None else relation.column_fact(argument))
        for name, function, argument in step["aggregates"]
    ]
    columns = dict(keys)
    for name, function, fact in aggregates:
        columns[name] = aggregate_fact(function, fact, relation.rows, bool(keys))
    dense = dense_group_count(list(keys.values()), [f for _, f, _ in aggregates])
    rows = (dense or max_group_count(list(keys.values()), relation.rows)) if keys else 1
    value_sources = frozenset[Source]().union(*(f.sources for f in columns.values()))
    sources = value_sources | {source for source, _ in relation.control}
    unique = frozenset(keys) if len(keys) == 1 else frozenset[str]()
    closed_aliases = rights.closed_aliases(tables, sources, relation.records)
    # (of a table with a budget all are told of)
    count = public_group_count(list(keys.values())) if keys else 1
    release = privacy.plan_release(
        *(tables, closed_aliases, step["aggregates"], relation.columns, relation.records),
        *(step.about.get("loss", 0), count, relation.rows),
    )
    if release is not None:
        rights.check_released(tables, keys, aggregates, relation.control, noised=True)
        return _noised_groups(step, relation, release, count)
    if not closed_aliases:
        open_columns = {name: replace(fact, affine=False) for name, fact in columns.items()}
        repeated_records = {alias: Records(False) for alias in relation.records}
        return Relation(rows, open_columns, not keys, relation.control, repeated_records, unique)
    rights.check_released(tables, keys, aggregates, relation.control)
    functions = [function for _, function, _ in aggregates]
    least = {
        alias: rights.check_units(tables, alias, relation.records.get(alias), functions)
        for alias in closed_aliases
    }
    released = {
        name: replace(fact, sources=frozenset[Source](), affine=False)
        for name, fact in columns.items()
    }
    return Relation(rows, released, False, unique=unique, least=least)


def _noised_groups(step: Step, relation: Relation, release: Release, rows: int) -> Relation:
    """Groups with noise: all that there could be."""
    columns = {
        name: privacy.released_fact(f) for name, f in relation.column_facts(step["keys"]).items()
    }
    for name, function, argument in step["aggregates"]:
        columns[name] = privacy.noised_fact(
            function, argument, relation.columns, release, relation.rows
        )
    unique = frozenset(step["keys"]) if len(step["keys"]) == 1 else frozenset[str]()
    return Relation(rows, columns, unique=unique, release=release)


def _derive_distinct(step: Step, inputs: Sequence[Relation], tables: Tables) -> Relation:
    about = {"keys": visible_columns(inputs[0].columns), "aggregates": []}
    return _derive_group(Step("group", step.inputs, about), inputs, tables)


def _derive_window(step: Step, inputs: Sequence[Relation], _: Tables) -> Relation:
    [relation] = inputs
    by = relation.column_facts([name for name, _ in step["order"]])
    for name, fact in by.items():
        if not fact.value_type.ordered:
            raise UsageError(f"A window by {name[:80]!r}: a text has no order here.")
    keys = frozenset[Source]().union(
        *(
            fact.sources
            for fact in [*by.values(), *relation.column_facts(step["partition"]).values()]
        )
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
        argument_fact = None if argument is None else relation.column_fact(argument)
        if argument_fact is not None and function in ("min", "max"):
            check_window_extreme(argument_fact.value_type, relation.rows)
        if function in PLACES:
            result_fact = Fact(int_type(1, relation.rows))
        elif argument_fact is not None and function in NEIGHBORS:
            result_fact = Fact(argument_fact.value_type, True)
        else:
            result_fact = aggregate_fact(function, argument_fact, relation.rows, True)
        columns[name] = replace(
            result_fact, sources=sources | (argument_fact.sources if argument_fact else frozenset())
        )
    control = _add_control(relation, keys, Use.CONDITION)
    return replace(relation, columns=columns, control=control, ordered=False, least={})


def _derive_order(step: Step, inputs: Sequence[Relation], _: Tables) -> Relation:
    [relation] = inputs
    sources = frozenset[Source]()
    for name, _direction in step["by"]:
        fact = relation.column_fact(name)
        if not fact.value_type.ordered:
            raise UsageError(f"ORDER BY {name[:80]!r}: a text has no order here.")
        sources |= fact.sources
    control = _add_control(relation, sources, Use.CONDITION)
    return replace(relation, control=control, ordered=True, least={})


def _derive_limit(step: Step, inputs: Sequence[Relation], _: Tables) -> Relation:
    [relation] = inputs
    rows = max(1, min(step["count"], relation.rows))
    valid = relation.valid and step["count"] > 0
    return replace(relation, rows=rows, valid=valid, least={})


def _derive_top(step: Step, inputs: Sequence[Relation], tables: Tables) -> Relation:
    return _derive_limit(step, [_derive_order(step, inputs, tables)], tables)


def _derive_union(step: Step, inputs: Sequence[Relation], _: Tables) -> Relation:
    first, *others = inputs
    names = visible_columns(first.columns)
    columns = first.column_facts(names)
    for other in others:
        listed = visible_columns(other.columns)
        if len(listed) != len(names):
            raise UsageError("UNION takes equally many columns of each.")
        for name, fact in zip(names, other.column_facts(listed).values(), strict=True):
            one = columns[name]
            if fact.constant is not None and fact.value_type.kind == CATEGORY:
                raise UsageError("UNION of a lone word: use a column of a category.")
            columns[name] = Fact(
                common_type(replace(one, constant=None), fact),
                one.nullable or fact.nullable,
                one.sources | fact.sources,
            )
    # (whose record a row is cannot be told any more)
    records = {alias: Records(False) for relation in inputs for alias in relation.records}
    control = frozenset[tuple[Source, Use]]().union(*(relation.control for relation in inputs))
    rows, valid = sum(r.rows for r in inputs), all(r.valid for r in inputs)
    return Relation(rows, columns, valid, control, records)


def _derive_join(step: Step, inputs: Sequence[Relation], tables: Tables) -> Relation:
    left, right = inputs
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
    joined = _join_relations(kind, pairs, left, right, both, tables)
    link = find_link(pairs, left.home, right.home, right.rows, tables)
    return replace(joined, link=link)


def _derive_many_join(step: Step, inputs: Sequence[Relation], tables: Tables) -> Relation:
    left, right = inputs
    _check_sides(left, right, step["on"])
    joined = _join_relations(step["kind"], step["on"], left, right, False, tables)
    # (a record may be in as many rows as the other side has; left's is in one at least)
    copies = {
        **{
            alias: (alias_records, max(1, right.rows))
            for alias, alias_records in left.records.items()
        },
        **{alias: (alias_records, left.rows) for alias, alias_records in right.records.items()},
    }
    rights.check_bound(tables, step["bound"], joined.control, copies)
    records = {
        alias: replace(alias_records, single=False)
        for alias, alias_records in joined.records.items()
    }
    rows = step["bound"]
    return replace(joined, rows=rows, valid=False, records=records, unique=frozenset())


def _derive_trim(step: Step, inputs: Sequence[Relation], tables: Tables) -> Relation:
    [relation] = inputs
    copies = {alias: (alias_records, 1) for alias, alias_records in relation.records.items()}
    rights.check_bound(tables, step["bound"], relation.control, copies)
    rows = min(step["bound"], relation.rows)
    return replace(relation, rows=rows, valid=False, ordered=False, least={})


def _check_sides(left: Relation, right: Relation, pairs: Sequence[Sequence[str]]) -> None:
    if shared := set(left.columns) & set(right.columns):
        raise UsageError(f"Two sides of a join name a column {min(shared)[:80]!r}.")
    if shared := set(left.records) & set(right.records):
        raise UsageError(f"A table is joined with itself under one alias, {min(shared)[:80]!r}.")
    for one, other in pairs:
        a, b = left.column_fact(one), right.column_fact(other)
        if common_type(a, b) != a.type or a.type != b.type:
            raise UsageError(
                f"A join takes columns of one type and range. Received: {one[:80]!r} is a {a.type} "
                f"from {a.value_type.low} to {a.value_type.high}, {other[:80]!r} a {b.type} from "
                f"{b.value_type.low} to {b.value_type.high}. Have the owners declare the same."
                if a.value_type.kind == b.value_type.kind == NUMBER
                else f"A join takes columns of one type. Received: {one[:80]!r} is a {a.type}, "
                f"{other[:80]!r} another {b.type}."
            )


def _join_relations(
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
            fact = relation.column_fact(pair[index])
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
        for alias, alias_records in right.records.items():
            present = alias_records.present or (presence_column(alias) if kind == "left" else "")
            unit = alias_records.unit if kind in ("inner", "left") else ""
            records[alias] = Records(alias_records.single and both, present, unit)
            if kind == "left":
                columns[present] = Fact(BITS, sources=matched)
    if kind in ("inner", "left"):
        for name, fact in right.columns.items():
            columns[name] = replace(fact, nullable=fact.nullable or kind == "left")
    unique = left.unique | (right.unique if both and kind in ("inner", "left") else frozenset())
    valid = left.valid and kind == "left"
    return Relation(left.rows, columns, valid, control, records, unique, home=left.home)


def unit_column(alias: str) -> str:
    """The column that says whose record of a table a row is: no query can name it."""
    return f"{alias}?unit"


def visible_columns(columns: Iterable[str]) -> list[str]:
    """The columns that a query can name."""
    return [name for name in columns if "?" not in name]


def presence_column(alias: str) -> str:
    """The column that says in which rows a table's records are: no query can name it."""
    return f"{alias}?"


_STEPS: Mapping[str, Callable[[Step, Sequence[Relation], Tables], Relation]] = {
    "scan": _derive_scan,
    "filter": _derive_filter,
    "project": _derive_project,
    "group": _derive_group,
    "distinct": _derive_distinct,
    "order": _derive_order,
    "limit": _derive_limit,
    "top": _derive_top,
    "window": _derive_window,
    "union": _derive_union,
    "join": _derive_join,
    "many_join": _derive_many_join,
    "trim": _derive_trim,
}


def missing_table_error(name: str, known: Sequence[str]) -> UsageError:
    """What is told of a table that is not there."""
    return UsageError(
        f"There is no table {name[:80]!r} that this client may use.{did_you_mean(name, known)} "
        "See `python -m tfe_bench table list`."
    )

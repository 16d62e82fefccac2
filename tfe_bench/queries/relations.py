"""Public facts about the relation of each step of a plan, and the right of the client to it.

Client and workers each derive them independently from a plan and the headers of its tables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tfe_bench.cluster.stored import Source
from tfe_bench.errors import UsageError, did_you_mean
from tfe_bench.queries import privacy, rights
from tfe_bench.queries.aggregate_types import (
    aggregate_fact,
    check_window_extreme,
    max_group_count,
    public_code_group_count,
    public_key_combination_count,
)
from tfe_bench.queries.expressions import ColumnFact, common_column_type, infer_expression_fact
from tfe_bench.queries.plan import (
    MAX_RANKS,
    NEIGHBORS,
    PLACES,
    QueryPlan,
    QueryStep,
    parse_quantile,
    parse_query_step,
)
from tfe_bench.queries.prepared_joins import find_prepared_join
from tfe_bench.queries.privacy import NoisyRelease
from tfe_bench.queries.rights import ColumnUse, Control, TableRecords, Tables
from tfe_bench.queries.types import BITS, CATEGORY, NUMBER, int_column_type

# Values of one relation in all its columns.
MAX_CELLS = 1 << 31


@dataclass(frozen=True)
class Relation:
    """Public facts about the rows of a step.

    Attributes:
        rows: number of rows, valid or not.
        columns: columns in order.
        valid: whether all rows are valid.
        control: columns that the validity or order of rows depends on, and the use of each.
        records: tables whose records the rows contain, by alias; none after a release.
        unique: columns without a repeated value among valid rows.
        ordered: whether the order of rows carries meaning.
        least: for a group, the tables whose records are counted, and the smallest number of
            records.
        home: alias of the table in whose order the rows are, one for each of its rows, with its
            columns under their names; "" for none.
        link: for a join, the table with a link (TableSchema.links) for it, and the link's number.
        release: for a group of tables with a privacy budget, the noise.
    """

    rows: int
    columns: Mapping[str, ColumnFact]
    valid: bool = True
    control: Control = frozenset()
    records: Mapping[str, TableRecords] = field(default_factory=dict)
    unique: frozenset[str] = frozenset()
    ordered: bool = False
    least: Mapping[str, int] = field(default_factory=dict)
    home: str = ""
    link: tuple[str, int] | None = None
    release: NoisyRelease | None = None

    def column_fact(self, name: str) -> ColumnFact:
        """Return a column's fact.

        Raises:
            UsageError: the column does not exist.
        """
        return infer_expression_fact(["col", name], self.columns)

    def column_facts(self, names: Sequence[str]) -> dict[str, ColumnFact]:
        """Return the facts of some columns."""
        return {name: self.column_fact(name) for name in names}


def derive_relations(plan: QueryPlan, tables: Tables) -> list[Relation]:
    """Derive the relations of a plan's steps.

    Args:
        tables: tables that the client may use, by the plan's aliases.

    Raises:
        UsageError: a step does not fit its inputs.
        PolicyError: the client lacks a right; the text names column, right and owner.
    """
    relations: list[Relation] = []
    for number, step in enumerate(plan.steps):
        try:
            relation = _derive_relation(step, [relations[i] for i in step.inputs], tables)
        except UsageError as error:
            raise error.with_text(f"Step {number} ({step.op}): {error}") from None
        if relation.rows * max(1, len(relation.columns)) > MAX_CELLS:
            raise UsageError(
                f"Step {number} ({step.op}) has {relation.rows} rows of "
                f"{len(relation.columns)} columns; at most {MAX_CELLS} values are supported.",
                code="too-large",
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
            f"Expected at most {MAX_RANKS} quantiles of values that are not open. Received: "
            f"{len(ranks)}.",
            code="too-many-quantiles",
        )
    last = relations[plan.output]
    shown = last.column_facts(visible_columns(last.columns))
    rights.check_rows_may_be_shown(tables, shown, last.control, last.records)
    return relations


def derive_step_relation(
    step: Mapping[str, Any], inputs: Sequence[Relation], tables: Tables
) -> Relation:
    """Derive the relation of one further step while a plan is built.

    Raises:
        UsageError, PolicyError: as `derive_relations`.
    """
    return _derive_relation(parse_query_step(step), inputs, tables)


# Steps whose rows are those of their first input, in the same places and under the same names.
_IN_PLACE = ("scan", "filter", "join")


def _derive_relation(step: QueryStep, inputs: Sequence[Relation], tables: Tables) -> Relation:
    guarded = [privacy.budgeted_aliases(tables, r.columns, r.control, r.records) for r in inputs]
    first_aliases = guarded[0] if guarded else []
    other_aliases = [alias for aliases in guarded[1:] for alias in aliases]
    privacy.check_step_keeps_units(
        tables, step.op, step.about.get("kind", ""), first_aliases, other_aliases
    )
    relation = _STEPS[step.op](step, inputs, tables)
    home, release = (relation.home, None) if step.op in _IN_PLACE else ("", relation.release)
    return replace(relation, home=home, release=release if step.op == "group" else None)


def _add_control_sources(relation: Relation, sources: frozenset[Source], use: ColumnUse) -> Control:
    return relation.control | {(source, use) for source in sources}


def _derive_scan(step: QueryStep, _: Sequence[Relation], tables: Tables) -> Relation:
    alias = step["table"]
    schema = tables[alias].schema
    columns = {}
    for name in step["columns"]:
        schema_column = schema.column(name, f"table {tables[alias].name!r}")
        sources = frozenset([tables[alias].source(name, alias)])
        columns[f"{alias}.{name}"] = ColumnFact(
            schema_column.type, schema_column.nullable, sources, affine=True
        )
    unit, carried = schema.unit, ""
    if unit and not all(tables[alias].permits(ColumnUse.SHOW, name) for name in schema.columns):
        # (counted, but never revealed)
        carried = privacy_unit_column(alias)
        schema_column = schema.column(unit)
        sources = frozenset([tables[alias].source(unit, alias)])
        columns[carried] = ColumnFact(schema_column.type, schema_column.nullable, sources)
    records = {alias: TableRecords(not unit or unit in schema.unique, unit=carried)}
    unique = frozenset(f"{alias}.{name}" for name in schema.unique)
    unique &= set(columns)
    return Relation(
        schema.rows, columns, not schema.padded, records=records, unique=unique, home=alias
    )


def _derive_filter(step: QueryStep, inputs: Sequence[Relation], _: Tables) -> Relation:
    [relation] = inputs
    fact = infer_expression_fact(step["where"], relation.columns)
    if fact.type not in (BITS, None):
        raise UsageError(f"Expected a condition. Received: a {fact.type}.", code="type-mismatch")
    control = _add_control_sources(relation, fact.sources, ColumnUse.CONDITION)
    # (in ordered rows the gaps of dropped rows would be visible)
    return replace(relation, valid=False, control=control, ordered=False, least={})


def _derive_project(step: QueryStep, inputs: Sequence[Relation], _: Tables) -> Relation:
    [relation] = inputs
    columns, unique = {}, set()
    for name, expression in step["columns"]:
        columns[name] = fact = infer_expression_fact(expression, relation.columns)
        if fact.type is None:
            raise UsageError("A column that contains only NULL has no type.", code="untyped-null")
        if expression[0] == "col" and expression[1] in relation.unique:
            unique.add(name)
    carried = {name for r in relation.records.values() for name in (r.present, r.unit) if name}
    columns.update({name: relation.columns[name] for name in sorted(carried)})
    return replace(relation, columns=columns, unique=frozenset(unique), least={})


def _derive_group(step: QueryStep, inputs: Sequence[Relation], tables: Tables) -> Relation:
    [relation] = inputs
    keys = relation.column_facts(step["keys"])
    aggregates = [
        (name, function, None if argument is None else relation.column_fact(argument))
        for name, function, argument in step["aggregates"]
    ]
    columns = dict(keys)
    for name, function, fact in aggregates:
        columns[name] = aggregate_fact(function, fact, relation.rows, bool(keys))
    dense = public_code_group_count(list(keys.values()), [f for _, f, _ in aggregates])
    rows = (dense or max_group_count(list(keys.values()), relation.rows)) if keys else 1
    value_sources = frozenset[Source]().union(*(f.sources for f in columns.values()))
    sources = value_sources | {source for source, _ in relation.control}
    unique = frozenset(keys) if len(keys) == 1 else frozenset[str]()
    closed_aliases = rights.closed_aliases(tables, sources, relation.records)
    # (all groups of a table with a budget are released)
    count = public_key_combination_count(list(keys.values())) if keys else 1
    release = privacy.plan_release(
        *(tables, closed_aliases, step["aggregates"], relation.columns, relation.records),
        *(step.about.get("loss", 0), count, relation.rows),
    )
    if release is not None:
        rights.check_released_aggregates(tables, keys, aggregates, relation.control, noised=True)
        return _noised_groups(step, relation, release, count)
    if not closed_aliases:
        open_columns = {name: replace(fact, affine=False) for name, fact in columns.items()}
        repeated_records = {alias: TableRecords(False) for alias in relation.records}
        return Relation(rows, open_columns, not keys, relation.control, repeated_records, unique)
    rights.check_released_aggregates(tables, keys, aggregates, relation.control)
    functions = [function for _, function, _ in aggregates]
    least = {
        alias: rights.check_group_privacy_units(
            tables, alias, relation.records.get(alias), functions
        )
        for alias in closed_aliases
    }
    released = {
        name: replace(fact, sources=frozenset[Source](), affine=False)
        for name, fact in columns.items()
    }
    return Relation(rows, released, False, unique=unique, least=least)


def _noised_groups(
    step: QueryStep, relation: Relation, release: NoisyRelease, rows: int
) -> Relation:
    """Return the relation of groups with noise: all possible groups."""
    columns = {
        name: privacy.released_column_fact(f)
        for name, f in relation.column_facts(step["keys"]).items()
    }
    for name, function, argument in step["aggregates"]:
        columns[name] = privacy.noised_fact(
            function, argument, relation.columns, release, relation.rows
        )
    unique = frozenset(step["keys"]) if len(step["keys"]) == 1 else frozenset[str]()
    return Relation(rows, columns, unique=unique, release=release)


def _derive_distinct(step: QueryStep, inputs: Sequence[Relation], tables: Tables) -> Relation:
    about = {"keys": visible_columns(inputs[0].columns), "aggregates": []}
    return _derive_group(QueryStep("group", step.inputs, about), inputs, tables)


def _derive_window(step: QueryStep, inputs: Sequence[Relation], _: Tables) -> Relation:
    [relation] = inputs
    by = relation.column_facts([name for name, _ in step["order"]])
    for name, fact in by.items():
        if not fact.value_type.ordered:
            raise UsageError(
                f"A window by {name[:80]!r}: texts have no order.", code="unordered-type"
            )
    key_facts = [*by.values(), *relation.column_facts(step["partition"]).values()]
    keys = frozenset[Source]().union(*(fact.sources for fact in key_facts))
    # a row's values depend on the presence of other rows
    sources = keys | {source for source, _ in relation.control}
    columns = dict(relation.columns)
    for name, function, argument, detail in step["functions"]:
        if name in columns:
            raise UsageError(f"There is already a column {name[:80]!r}.", code="duplicate-name")
        if detail != "whole" and all(fact.constant is not None for fact in by.values()):
            raise UsageError(
                f"{function.upper()} takes OVER (... ORDER BY columns): rows have no inherent "
                "order.",
                code="missing-order",
            )
        argument_fact = None if argument is None else relation.column_fact(argument)
        if argument_fact is not None and function in ("min", "max"):
            check_window_extreme(argument_fact.value_type, relation.rows)
        if function in PLACES:
            result_fact = ColumnFact(int_column_type(1, relation.rows))
        elif argument_fact is not None and function in NEIGHBORS:
            result_fact = ColumnFact(argument_fact.value_type, True)
        else:
            result_fact = aggregate_fact(function, argument_fact, relation.rows, True)
        columns[name] = replace(
            result_fact, sources=sources | (argument_fact.sources if argument_fact else frozenset())
        )
    control = _add_control_sources(relation, keys, ColumnUse.CONDITION)
    return replace(relation, columns=columns, control=control, ordered=False, least={})


def _derive_order(step: QueryStep, inputs: Sequence[Relation], _: Tables) -> Relation:
    [relation] = inputs
    sources = frozenset[Source]()
    for name, _direction in step["by"]:
        fact = relation.column_fact(name)
        if not fact.value_type.ordered:
            raise UsageError(f"ORDER BY {name[:80]!r}: texts have no order.", code="unordered-type")
        sources |= fact.sources
    control = _add_control_sources(relation, sources, ColumnUse.CONDITION)
    return replace(relation, control=control, ordered=True, least={})


def _derive_limit(step: QueryStep, inputs: Sequence[Relation], _: Tables) -> Relation:
    [relation] = inputs
    rows = max(1, min(step["count"], relation.rows))
    valid = relation.valid and step["count"] > 0
    return replace(relation, rows=rows, valid=valid, least={})


def _derive_top(step: QueryStep, inputs: Sequence[Relation], tables: Tables) -> Relation:
    return _derive_limit(step, [_derive_order(step, inputs, tables)], tables)


def _derive_union(step: QueryStep, inputs: Sequence[Relation], _: Tables) -> Relation:
    first, *others = inputs
    names = visible_columns(first.columns)
    columns = first.column_facts(names)
    for other in others:
        listed = visible_columns(other.columns)
        if len(listed) != len(names):
            raise UsageError(
                "Expected equally many columns of each side.", code="column-count-mismatch"
            )
        for name, fact in zip(names, other.column_facts(listed).values(), strict=True):
            one = columns[name]
            if fact.constant is not None and fact.value_type.kind == CATEGORY:
                raise UsageError(
                    "UNION takes a category, not a lone word.", code="unsupported-type"
                )
            columns[name] = ColumnFact(
                common_column_type(replace(one, constant=None), fact),
                one.nullable or fact.nullable,
                one.sources | fact.sources,
            )
    # (the origin of a row's record is unknown from here on)
    records = {alias: TableRecords(False) for relation in inputs for alias in relation.records}
    control = frozenset[tuple[Source, ColumnUse]]().union(
        *(relation.control for relation in inputs)
    )
    rows, valid = sum(r.rows for r in inputs), all(r.valid for r in inputs)
    return Relation(rows, columns, valid, control, records)


def _derive_join(step: QueryStep, inputs: Sequence[Relation], tables: Tables) -> Relation:
    left, right = inputs
    kind, pairs = step["kind"], step["on"]
    _check_join_sides(left, right, pairs)
    unique = {name for _, name in pairs} & right.unique
    if not unique:
        known = ", ".join(sorted(right.unique)) or "none"
        raise UsageError(
            "A join takes a unique column of its right side. Received: ON "
            f"{', '.join(name[:40] for _, name in pairs)}; unique are {known}. Swap the "
            "sides, group by the key first, ask the owner to declare it (table put "
            "--unique), or bound the rows of an inner or a left join (--max-rows).",
            code="key-not-unique",
        )
    both = bool({name for name, _ in pairs} & left.unique)
    joined = _join_relations(kind, pairs, left, right, both, tables)
    link = find_prepared_join(pairs, left.home, right.home, right.rows, tables)
    return replace(joined, link=link)


def _derive_many_join(step: QueryStep, inputs: Sequence[Relation], tables: Tables) -> Relation:
    left, right = inputs
    _check_join_sides(left, right, step["on"])
    joined = _join_relations(step["kind"], step["on"], left, right, False, tables)
    # (a record may be in as many rows as the other side has, at least in one on the left)
    copies = {alias: (r, max(1, right.rows)) for alias, r in left.records.items()}
    copies |= {alias: (r, left.rows) for alias, r in right.records.items()}
    rights.check_row_bound_disclosure(tables, step["bound"], joined.control, copies)
    records = {alias: replace(r, single=False) for alias, r in joined.records.items()}
    rows = step["bound"]
    return replace(joined, rows=rows, valid=False, records=records, unique=frozenset())


def _derive_trim(step: QueryStep, inputs: Sequence[Relation], tables: Tables) -> Relation:
    [relation] = inputs
    copies = {alias: (alias_records, 1) for alias, alias_records in relation.records.items()}
    rights.check_row_bound_disclosure(tables, step["bound"], relation.control, copies)
    rows = min(step["bound"], relation.rows)
    return replace(relation, rows=rows, valid=False, ordered=False, least={})


def _check_join_sides(left: Relation, right: Relation, pairs: Sequence[Sequence[str]]) -> None:
    if shared := set(left.columns) & set(right.columns):
        raise UsageError(
            f"Both sides of a join have a column {min(shared)[:80]!r}.", code="duplicate-name"
        )
    if shared := set(left.records) & set(right.records):
        raise UsageError(
            f"Both sides of a join have the alias {min(shared)[:80]!r}.", code="duplicate-alias"
        )
    for one, other in pairs:
        a, b = left.column_fact(one), right.column_fact(other)
        if common_column_type(a, b) != a.type or a.type != b.type:
            raise UsageError(
                f"A join takes columns of one type and range. Received: {one[:80]!r} is a "
                f"{a.type} from {a.value_type.low} to {a.value_type.high}, {other[:80]!r} a "
                f"{b.type} from {b.value_type.low} to {b.value_type.high}. Ask the owners to "
                "declare the same."
                if a.value_type.kind == b.value_type.kind == NUMBER
                else f"A join takes columns of one type. Received: {one[:80]!r} is a {a.type}, "
                f"{other[:80]!r} another {b.type}.",
                code="type-mismatch",
                operation="join",
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
            use = ColumnUse.GUESSED if guessed or not others.records else ColumnUse.MATCHED
            if kind == "anti":
                use = ColumnUse.LEFT_OUT
            elif kind == "left" or not fact.affine:
                use = ColumnUse.CONDITION
            control |= {(source, use) for source in fact.sources}
    records = dict(left.records)
    columns = dict(left.columns)
    # (columns that decide whether a partner exists)
    matched = frozenset(source for source, _ in control)
    if kind != "anti":
        for alias, alias_records in right.records.items():
            present = alias_records.present or (
                record_presence_column(alias) if kind == "left" else ""
            )
            unit = alias_records.unit if kind in ("inner", "left") else ""
            records[alias] = TableRecords(alias_records.single and both, present, unit)
            if kind == "left":
                columns[present] = ColumnFact(BITS, sources=matched)
    if kind in ("inner", "left"):
        for name, fact in right.columns.items():
            columns[name] = replace(fact, nullable=fact.nullable or kind == "left")
    unique = left.unique | (right.unique if both and kind in ("inner", "left") else frozenset())
    valid = left.valid and kind == "left"
    return Relation(left.rows, columns, valid, control, records, unique, home=left.home)


def privacy_unit_column(alias: str) -> str:
    """Return the name of the column that identifies the unit of a row; queries cannot name it."""
    return f"{alias}?unit"


def visible_columns(columns: Iterable[str]) -> list[str]:
    """Return the columns that a query can name."""
    return [name for name in columns if "?" not in name]


def record_presence_column(alias: str) -> str:
    """Return the column that marks the rows with a table's records; queries cannot name it."""
    return f"{alias}?"


_STEPS: Mapping[str, Callable[[QueryStep, Sequence[Relation], Tables], Relation]] = {
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
    """Return the error for a table that does not exist for this client."""
    return UsageError(
        f"There is no table {name[:80]!r} that this client may "
        f"use.{did_you_mean(name, known)} See `python -m tfe_bench table list`.",
        code="table-not-found",
        received=name[:80],
    )

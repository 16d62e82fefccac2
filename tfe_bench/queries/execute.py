"""Execution of plans by the three workers: each step runs protocols of protocols/tables.

Relations have the columns of their public facts (relations.py), in the same order. Elements are
stored as distances from the lowest one that their type allows, so that keys are short.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from tfe_bench.protocols.ring import arithmetic, shapes
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared
from tfe_bench.protocols.tables import bits, hashed_lookup, joins, many_to_many, relation, results
from tfe_bench.protocols.tables.keys import OrderKey
from tfe_bench.protocols.tables.relation import Column, Relation
from tfe_bench.queries import grouping, window_execution
from tfe_bench.queries.dense_groups import gather_valid_rows
from tfe_bench.queries.dp_noise import NoiseDraw
from tfe_bench.queries.evaluate import (
    ColumnValue,
    ExpressionEvaluator,
    column_to_value,
    constant_truth_column,
    value_to_column,
)
from tfe_bench.queries.expressions import ColumnFact, column_scale_factor
from tfe_bench.queries.plan import QueryPlan, QueryStep
from tfe_bench.queries.relations import Relation as Facts
from tfe_bench.queries.relations import visible_columns
from tfe_bench.queries.types import BOOL

# Output with all words of a result, one row for each; `result_words` names them.
ROWS = "rows"
# Output with one bit for each bounded step: whether it has more rows than its bound.
OVER = "over"
Load = Callable[[str, Sequence[str]], Relation]
LoadLink = Callable[[str, int], Shared]


@dataclass(frozen=True)
class QueryExecutionContext:
    """Inputs and options of the execution of all steps.

    Attributes:
        load_columns: loads columns of a stored table, by the plan's alias.
        load_link: loads one of its links, by number.
        cache_key: key of everything public (the plan, which names deployments, and the profile),
            if graphs are cached for later runs.
        profile: network profile for which sorts are planned.
        progress: callback with a fraction and a word before each step and before the delivery.
        unit_of: returns the unit column of a table, by the plan's alias.
        noise_draws: noise that this worker drew, by number of the step (`dp_noise.draw_noise`).
    """

    load_columns: Load
    load_link: LoadLink
    cache_key: Hashable | None
    profile: str = "local"
    progress: Callable[[float, str], None] = lambda fraction, text: None
    unit_of: Callable[[str], str] = lambda alias: ""
    noise_draws: Mapping[int, NoiseDraw] = field(default_factory=dict)


def run_query_plan(
    party: Party, plan: QueryPlan, facts: Sequence[Facts], setting: QueryExecutionContext
) -> dict[str, Shared]:
    """Run all steps of a checked plan; return the words of the result, cleared where no row or
    value exists.
    """
    relations_by_step: dict[int, Relation] = {}
    over: list[Shared] = []
    last_uses = {i: number for number, step in enumerate(plan.steps) for i in step.inputs}
    for number, step in enumerate(plan.steps):
        setting.progress(number / (len(plan.steps) + 1), step.op)
        inputs = [relations_by_step[i] for i in step.inputs]
        input_facts = [facts[i] for i in step.inputs]
        noise = setting.noise_draws.get(number)
        at = _QueryStepContext(
            party, step, inputs, input_facts, facts[number], setting, over, noise
        )
        with party.kept_graphs(setting.cache_key, number):
            relations_by_step[number] = _STEPS[step.op](at)
        for i in step.inputs:
            if last_uses[i] == number and i != plan.output:
                relations_by_step.pop(i, None)
    setting.progress(len(plan.steps) / (len(plan.steps) + 1), "deliver")
    with party.kept_graphs(setting.cache_key):
        rows = deliver_rows(party, relations_by_step[plan.output], facts[plan.output])
        if not over:
            return {ROWS: rows}
        exceeded = party.function(lambda inputs: bits.to_number(party, shapes.concat(inputs, 0)))(
            over
        )
    return {ROWS: rows, OVER: exceeded}


def query_result_words(facts: Facts) -> list[tuple[str, bool]]:
    """Return the meaning of the words of a result row: column names, and True for their NULL bits.

    The first one, named "", is the validity bit of the row.
    """
    words = [("", False)]
    for name in visible_columns(facts.columns):
        fact = facts.columns[name]
        words.append((name, False))
        if fact.nullable:
            words.append((name, True))
    return words


def deliver_rows(party: Party, rows: Relation, facts: Facts) -> Shared:
    """Return the words of all rows, [words, rows], freshly masked: 0 for invalid rows and for
    NULLs.

    Unordered rows are shuffled first: the place of a row would disclose which row it is.
    """
    named = dict(zip(facts.columns, rows.columns, strict=True))
    visible = [named[name] for name, null in query_result_words(facts)[1:] if not null]
    visible_rows = Relation(tuple(visible), rows.valid)
    delivered_rows = results.deliver_rows(party, visible_rows, is_ordered=facts.ordered)

    def stack_words(rows: Relation) -> Shared:
        parts = [rows.valid, *(part for c in rows.columns for part in c.parts)]
        whole = [bits.to_number(party, p) if p.ring_bits == 1 else p for p in parts]
        return shapes.stack([replace(w, fractional_bits=0) for w in whole], 0)

    result: Shared = party.function(stack_words)(delivered_rows)
    return result


@dataclass(frozen=True)
class _QueryStepContext:
    """A step with its inputs and options.

    Attributes:
        inputs, input_facts: relations of its inputs, and their public facts.
        output_facts: public facts of its output.
        over: bits of bounded steps; the step appends its own.
        noise: noise that this worker drew for the step.
    """

    party: Party
    step: QueryStep
    inputs: Sequence[Relation]
    input_facts: Sequence[Facts]
    output_facts: Facts
    setting: QueryExecutionContext
    over: list[Shared]
    noise: NoiseDraw | None = None


def _columns_by_name(rows: Relation, facts: Facts) -> dict[str, Column]:
    return dict(zip(facts.columns, rows.columns, strict=True))


def _run_scan(at: _QueryStepContext) -> Relation:
    alias, listed = at.step["table"], at.step["columns"]
    if not at.output_facts.records[alias].unit:
        return at.setting.load_columns(alias, listed)
    unit = at.setting.unit_of(alias)
    all_columns = [*listed, *({unit} - set(listed))]
    rows = at.setting.load_columns(alias, all_columns)
    return Relation(
        (*rows.columns[: len(listed)], rows.columns[all_columns.index(unit)]), rows.valid
    )


def _run_filter(at: _QueryStepContext) -> Relation:
    def filter_rows(rows: Relation) -> Shared:
        evaluator = ExpressionEvaluator(
            at.party,
            _columns_by_name(rows, at.input_facts[0]),
            at.input_facts[0].columns,
            rows.valid,
        )
        return evaluator.as_shared(
            evaluator.and_bits(rows.valid, evaluator.compute_truth(at.step["where"]))
        )

    return replace(at.inputs[0], valid=at.party.function(filter_rows)(at.inputs[0]))


def _run_project(at: _QueryStepContext) -> Relation:
    def compute_columns(rows: Relation) -> list[Column]:
        named = _columns_by_name(rows, at.input_facts[0])
        evaluator = ExpressionEvaluator(at.party, named, at.input_facts[0].columns, rows.valid)
        computed = {
            name: value_to_column(evaluator.compute_value(e)) for name, e in at.step["columns"]
        }
        # (columns that identify units stay)
        return [
            computed[name] if "?" not in name else named[name] for name in at.output_facts.columns
        ]

    return Relation(tuple(at.party.function(compute_columns)(at.inputs[0])), at.inputs[0].valid)


def _run_group(at: _QueryStepContext) -> Relation:
    named = _columns_by_name(at.inputs[0], at.input_facts[0])
    return grouping.group_rows(
        *(at.party, at.step, at.inputs[0].valid, named, at.input_facts[0], at.output_facts),
        *(at.setting.profile, at.noise),
    )


def _run_distinct(at: _QueryStepContext) -> Relation:
    fields = {"keys": visible_columns(at.input_facts[0].columns), "aggregates": []}
    group_step = QueryStep("group", at.step.inputs, fields)
    return _run_group(replace(at, step=group_step))


def _run_order(at: _QueryStepContext) -> Relation:
    return results.order_by(*_order_by_input(at), profile=at.setting.profile)


def _run_top(at: _QueryStepContext) -> Relation:
    return results.top_rows(*_order_by_input(at), at.step["count"], profile=at.setting.profile)


def _order_by_input(at: _QueryStepContext) -> tuple[Party, Relation, list[OrderKey]]:
    """Return the rows to sort and the keys of the sort."""
    names = list(at.output_facts.columns)
    by = [OrderKey(names.index(name), way == "desc") for name, way in at.step["by"]]
    # equal rows keep their order, so a shuffle first hides their places in the table
    return at.party, results.deliver_rows(at.party, at.inputs[0]), by


def _run_window(at: _QueryStepContext) -> Relation:
    [rows], [about] = at.inputs, at.input_facts
    return window_execution.run_window(
        at.party, at.step, rows, about, at.output_facts, at.setting.profile
    )


def _run_limit(at: _QueryStepContext) -> Relation:
    rows = at.inputs[0]
    if (
        not at.output_facts.ordered
    ):  # the choice of rows is arbitrary, and the shuffle makes it independent of the data
        rows = gather_valid_rows(at.party, rows)
    limited = relation.limit_rows(rows, at.output_facts.rows)
    if at.step["count"] == 0:
        return replace(
            limited,
            valid=at.party.function(lambda v: constant_truth_column(v, False))(limited.valid),
        )
    return limited


def cast_column(party: Party, column: Column, fact: ColumnFact, target: ColumnFact) -> Column:
    """Cast a column to the type that it has in common with others. Local."""
    value = column_to_value(column, fact)
    data = value.data
    if target.value_type.kind != BOOL:
        data = arithmetic.mul_public(
            data, np.int64(column_scale_factor(fact.value_type, target.value_type))
        )
    return value_to_column(ColumnValue(data, value.null, target))


def _run_union(at: _QueryStepContext) -> Relation:
    targets = list(at.output_facts.columns.values())

    def concat_rows(relations: list[Relation]) -> Relation:
        casts = []
        for rows, facts in zip(relations, at.input_facts, strict=True):
            named = _columns_by_name(rows, facts)
            columns = [
                cast_column(at.party, named[name], facts.columns[name], w)
                for name, w in zip(visible_columns(facts.columns), targets, strict=True)
            ]
            casts.append(Relation(tuple(columns), rows.valid))
        return relation.union_rows(casts)

    result: Relation = at.party.function(concat_rows)(list(at.inputs))
    return result


def _run_join(at: _QueryStepContext) -> Relation:
    names, on = _join_keys(at)
    kind, right = at.step["kind"], _right_side_of_join(at)
    if at.output_facts.link is not None:
        target = at.setting.load_link(*at.output_facts.link)
        joined = hashed_lookup.lookup_hashed(at.party, at.inputs[0], right, on[0], target, kind)
    else:
        unique = any(a in at.input_facts[0].unique for a, _ in at.step["on"])
        joined = joins.lookup_join(
            at.party, at.inputs[0], right, on, kind, is_unique=unique, profile=at.setting.profile
        )
    if kind in ("semi", "anti"):
        return joined
    return _order_columns(at, names, joined)


def _right_side_of_join(at: _QueryStepContext) -> Relation:
    """Return the right side of a join; a left join appends a column that is NULL if
    no row matched.
    """
    right = at.inputs[1]
    if at.step["kind"] != "left":
        return right
    ones = at.party.function(lambda v: constant_truth_column(v, True))(right.valid)
    return Relation((*right.columns, Column(ones, 1)), right.valid)


def _order_columns(
    at: _QueryStepContext, names: Sequence[Sequence[str]], joined: Relation
) -> Relation:
    """Order the columns of a join, and add the presence bits of records."""
    columns = dict(zip([*names[0], *names[1]], joined.columns, strict=False))
    if at.step["kind"] == "left":
        null = joined.columns[-1].null
        assert null is not None
        is_matched = Column(at.party.function(bits.invert)(null), 1)
        columns.update(
            {name: is_matched for name in at.output_facts.columns if name not in columns}
        )
    return Relation(tuple(columns[name] for name in at.output_facts.columns), joined.valid)


def _join_keys(at: _QueryStepContext) -> tuple[list[list[str]], list[tuple[int, int]]]:
    """Return the columns of both sides, and the pairs of positions that are compared."""
    names = [list(each.columns) for each in at.input_facts]
    return names, [(names[0].index(a), names[1].index(b)) for a, b in at.step["on"]]


def _run_many_join(at: _QueryStepContext) -> Relation:
    profile, bound = at.setting.profile, at.step["bound"]
    names, on = _join_keys(at)
    joined, over = many_to_many.many_to_many_join(
        *(at.party, at.inputs[0], _right_side_of_join(at), on, bound, at.step["kind"]),
        profile=profile,
    )
    at.over.append(over)
    return _order_columns(at, names, joined)


def _run_trim(at: _QueryStepContext) -> Relation:
    trimmed, over = many_to_many.trim_rows(at.party, at.inputs[0], at.step["bound"])
    at.over.append(over)
    return trimmed


_STEPS: Mapping[str, Callable[[_QueryStepContext], Relation]] = {
    "scan": _run_scan,
    "filter": _run_filter,
    "project": _run_project,
    "group": _run_group,
    "distinct": _run_distinct,
    "order": _run_order,
    "limit": _run_limit,
    "top": _run_top,
    "window": _run_window,
    "union": _run_union,
    "join": _run_join,
    "many_join": _run_many_join,
    "trim": _run_trim,
}

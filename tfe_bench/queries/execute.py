"""Execution of plans by the three workers: each step runs protocols of protocols/tables.

Relations have the columns of their public facts (relations.py), in the same order. Elements are
stored as distances from the lowest one that their type allows, so that keys are short.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tfe_bench.protocols.ring import shapes
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared
from tfe_bench.protocols.tables import bits, results
from tfe_bench.protocols.tables.relation import Relation
from tfe_bench.queries.execution_context import QueryExecutionContext
from tfe_bench.queries.plan import QueryPlan
from tfe_bench.queries.relation_facts import Relation as Facts
from tfe_bench.queries.relation_facts import visible_columns
from tfe_bench.queries.steps.step import StepContext

# Output with all words of a result, one row for each; `result_words` names them.
ROWS = "rows"
# Output with one bit for each bounded step: whether it has more rows than its bound.
OVER = "over"


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
        context = StepContext(party, inputs, input_facts, facts[number], setting, over, noise)
        with party.kept_graphs(setting.cache_key, number):
            relations_by_step[number] = step.run_protocol(context)
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

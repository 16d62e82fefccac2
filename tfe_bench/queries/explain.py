"""Description of a plan before it runs: steps, sizes, costs and disclosures."""

from __future__ import annotations

from collections.abc import Sequence

from tfe_bench.cluster.ledger import format_privacy_loss
from tfe_bench.protocols.session.openings import describe_openings
from tfe_bench.queries import privacy
from tfe_bench.queries.notes import query_result_notes
from tfe_bench.queries.plan import QueryPlan
from tfe_bench.queries.price import Price
from tfe_bench.queries.relation_facts import Relation
from tfe_bench.queries.rights import Tables
from tfe_bench.queries.types import TEXT


def explain_query_plan(
    plan: QueryPlan, facts: Sequence[Relation], tables: Tables, prices: Sequence[Price]
) -> str:
    """Return a readable description of a plan.

    Args:
        prices: its price for each requested network.
    """
    step_texts = []
    for number, (step, output) in enumerate(zip(plan.steps, facts, strict=True)):
        inputs = [facts[i] for i in step.inputs]
        step_texts.append(
            f"{number:2d} {step.explain_step(inputs, output)} -> {output.rows:,} rows"
        )
    lines = format_query_price_table([*step_texts, "   deliver the rows to the client"], prices)
    read = ", ".join(
        f"{tables[alias].name} ({tables[alias].schema.rows:,} rows)" for alias in plan.tables
    )
    last = facts[plan.output]
    lines += [
        f"The workers learn this plan and the public facts about its tables: {read}. They learn "
        "neither rows nor the result.",
        f"The client learns {', '.join(n for n in last.columns if '?' not in n)} of the rows "
        f"of the result, {last.rows:,} at most.",
    ]
    lines += describe_plan_openings(prices)
    lines += query_result_notes(plan, facts, tables)
    lines += _privacy_lines(facts, tables)
    hashed = [
        f for output in facts for f in output.columns.values() if f.type and f.type.kind == TEXT
    ]
    if hashed:
        bits = 2 * max(output.rows for output in facts).bit_length() - 65
        lines.append(f"Two different texts have the same hash with a probability below 2^{bits}.")
    return "\n".join(lines)


# Delta of the displayed (epsilon, delta).
_DELTA = 1e-6


def _privacy_lines(facts: Sequence[Relation], tables: Tables) -> list[str]:
    """Describe the privacy loss of a plan and its contribution bounds."""
    lines = []
    losses = privacy.total_privacy_losses((relation.release for relation in facts), tables)
    of = {table.name: table for table in tables.values()}
    for name, loss in losses.items():
        table = of[name]
        remaining = max(0, table.schema.budget - table.spent)
        lines.append(
            f"It spends rho {format_privacy_loss(loss)} of the privacy budget of table {name!r} "
            "(a rule of "
            f"{table.owner!r}): epsilon {privacy.privacy_epsilon(loss, _DELTA):.3g} at delta "
            f"{_DELTA:g}. "
            f"Left before: {format_privacy_loss(remaining)} of "
            f"{format_privacy_loss(table.schema.budget)}."
        )
    for relation in facts:
        if (release := relation.release) is None:
            continue
        if release.bounded_alias:
            rows = f"{release.max_unit_rows} rows" if release.max_unit_rows > 1 else "1 row"
            lines.append(
                f"At most {rows} of each {tables[release.bounded_alias].schema.unit} of "
                f"{tables[release.bounded_alias].name!r} count."
            )
        lines.append("Every group is released, including groups without rows.")
    return lines


def describe_plan_openings(prices: Sequence[Price]) -> list[str]:
    """Describe what a run opens to the workers, for each network whose plan opens other values."""
    texts = {price.profile: describe_openings(price.openings) for price in prices}
    if len(set(texts.values())) == 1:
        texts = {"": texts[prices[0].profile]}
    average = ", as on average" if any(price.openings for price in prices) else ""
    return [
        f"A run{f' planned for {profile}' if profile else ''} {text}{average}."
        for profile, text in texts.items()
    ]


def format_query_price_table(step_texts: Sequence[str], prices: Sequence[Price]) -> list[str]:
    """Format a table: megabytes, rounds and seconds of each step and in total."""
    first = prices[0]
    rows = [("MB sent", "rounds", *(f"s {p.profile}" for p in prices))]
    for i in range(len(step_texts) + 1):
        step = None if i == len(step_texts) else i
        cost = first.cost if step is None else first.steps[step]
        seconds = (f"{p.seconds(step):,.2f}" for p in prices)
        rows.append((f"{cost.total / 8e6:,.2f}", f"{cost.rounds:,}", *seconds))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    texts = [
        "step",
        *step_texts,
        f"   all; bytes as on average for {first.profile}, seconds estimated",
    ]
    return [
        f"{'  '.join(cell.rjust(w) for cell, w in zip(row, widths, strict=True))}  {text}"
        for row, text in zip(rows, texts, strict=True)
    ]

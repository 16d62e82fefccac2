"""Description of a plan before it runs: steps, sizes, costs and disclosures."""

from __future__ import annotations

from collections.abc import Sequence

from tfe_bench.cluster.ledger import format_privacy_loss
from tfe_bench.queries import privacy
from tfe_bench.queries.aggregate_types import public_code_group_count
from tfe_bench.queries.notes import query_result_notes
from tfe_bench.queries.plan import Expression, QueryPlan, QueryStep
from tfe_bench.queries.price import Price
from tfe_bench.queries.relations import Relation
from tfe_bench.queries.rights import Tables
from tfe_bench.queries.types import TEXT, days_to_date


def explain_query_plan(
    plan: QueryPlan, facts: Sequence[Relation], tables: Tables, prices: Sequence[Price]
) -> str:
    """Return a readable description of a plan.

    Args:
        prices: its price for each requested network.
    """
    step_texts = []
    steps = zip(plan.steps, _step_inputs(plan, facts), facts, strict=True)
    for number, (step, inputs, output) in enumerate(steps):
        step_texts.append(
            f"{number:2d} {_query_step_text(step, inputs, output)} -> {output.rows:,} rows"
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


def _step_inputs(plan: QueryPlan, facts: Sequence[Relation]) -> list[list[Relation]]:
    return [[facts[i] for i in step.inputs] for step in plan.steps]


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


def _query_step_text(step: QueryStep, input_facts: Sequence[Relation], output: Relation) -> str:
    inputs = ", ".join(map(str, step.inputs))
    match step.op:
        case "scan":
            return f"scan {step['table']} [{', '.join(step['columns'])}]"
        case "filter":
            return f"filter {inputs}: {format_sql_expression(step['where'])}"
        case "project":
            columns = ", ".join(f"{n} = {format_sql_expression(e)}" for n, e in step["columns"])
            return f"project {inputs}: {columns}"
        case "group":
            functions = [function for _, function, _ in step["aggregates"]]
            listed = ", ".join(f"{n} = {f}({a or '*'})" for n, f, a in step["aggregates"])
            keys = [input_facts[0].columns[name] for name in step["keys"]]
            if not keys:
                return f"aggregate {inputs}: {listed}"
            how = "public codes" if public_code_group_count(keys, functions) else "sorted"
            return f"group {inputs} by {', '.join(step['keys'])} ({how}): {listed or 'distinct'}"
        case "order" | "top":
            verb = "order" if step.op == "order" else f"first {step['count']} of"
            return f"{verb} {inputs} by {', '.join(f'{n} {w}' for n, w in step['by'])}"
        case "window":
            function_texts = ", ".join(
                f"{n} = {f}({a or ''})" + ("" if d is None else f" [{d}]")
                for n, f, a, d in step["functions"]
            )
            parted = f" of each {', '.join(step['partition'])}" if step["partition"] else ""
            by = ", ".join(f"{n} {w}" for n, w in step["order"])
            return f"window {inputs}{parted}{f' by {by}' if by else ''}: {function_texts}"
        case "limit":
            return f"limit {inputs} to {step['count']}"
        case "join" | "many_join":
            pairs = " and ".join(f"{a} = {b}" for a, b in step["on"])
            if step.op == "join":
                how = "" if output.link is None else " (linked: no sort)"
                return f"{step['kind']} join {inputs} on {pairs}{how}"
            verb = "pairs" if step["kind"] == "inner" else "rows"
            return f"{step['kind']} join {inputs} on {pairs}, {step['bound']} {verb} at most"
        case "trim":
            return f"rows {inputs}, {step['bound']} at most"
        case _:
            return f"{step.op} {inputs}"


def format_sql_expression(e: Expression) -> str:
    """Format an expression for display."""
    name, *rest = e
    match name:
        case "col":
            return str(rest[0])
        case "decimal":
            return f"{rest[0] / 10 ** rest[1]:g}"
        case "fixed":
            return f"{rest[0] / 2 ** rest[1]:g}"
        case "date":
            return days_to_date(rest[0]).isoformat()
        case "word":
            return repr(rest[0])
        case "text":
            return "a text"
        case "null":
            return "NULL"
        case "int" | "bool" | "timestamp":
            return str(rest[0])
        case "+" | "-" | "*" | "/" | "=" | "<>" | "<" | "<=" | ">" | ">=" | "and" | "or":
            return f"({f' {name} '.join(map(format_sql_expression, rest))})"
    return f"{name}({', '.join(map(format_sql_expression, rest))})"

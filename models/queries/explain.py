"""What a plan does, how large it is, and what it tells to whom: said before anything runs."""

from __future__ import annotations

from collections.abc import Sequence

from tfe_bench.cluster.ledger import shown
from tfe_bench.models.queries import privacy
from tfe_bench.models.queries.notes import notes_of
from tfe_bench.models.queries.plan import Expression, Plan, Step
from tfe_bench.models.queries.price import Price
from tfe_bench.models.queries.relations import Relation
from tfe_bench.models.queries.rights import Tables
from tfe_bench.models.queries.summaries import is_dense
from tfe_bench.models.queries.types import TEXT, date_of


def text(plan: Plan, facts: Sequence[Relation], tables: Tables, prices: Sequence[Price]) -> str:
    """Lines for people.

    Args:
        prices: of the plan, one for each network that they ask about.
    """
    told = []
    every = zip(plan.steps, _inputs(plan, facts), facts, strict=True)
    for number, (step, given, made) in enumerate(every):
        told.append(f"{number:2d} {_said(step, given, made)} -> {made.rows:,} rows")
    lines = priced([*told, "   deliver the rows to the client"], prices)
    read = ", ".join(
        f"{tables[alias].name} ({tables[alias].schema.rows:,} rows)" for alias in plan.tables
    )
    last = facts[plan.output]
    lines += [
        f"The workers learn this plan, and of its tables what is public: {read}. They learn no "
        "row, and nothing of the result.",
        f"The client learns {', '.join(n for n in last.columns if '?' not in n)} of the rows that "
        f"the query has, {last.rows:,} at most.",
    ]
    lines += notes_of(plan, facts, tables)
    lines += _spends(facts, tables)
    hashed = [f for made in facts for f in made.columns.values() if f.type and f.type.kind == TEXT]
    if hashed:
        bits = 2 * max(made.rows for made in facts).bit_length() - 65
        lines.append(f"Two different texts are taken for one with a probability below 2^{bits}.")
    return "\n".join(lines)


# Of the (epsilon, delta) that is said of a loss.
_DELTA = 1e-6


def _spends(facts: Sequence[Relation], tables: Tables) -> list[str]:
    """What a plan spends of privacy, and whose rows count."""
    lines = []
    lost = privacy.losses((made.release for made in facts), tables)
    of = {table.name: table for table in tables.values()}
    for name, loss in lost.items():
        table = of[name]
        left = max(0, table.schema.budget - table.spent)
        lines.append(
            f"It spends rho {shown(loss)} of the privacy of table {name!r} (a rule of "
            f"{table.owner!r}): epsilon {privacy.epsilon(loss, _DELTA):.3g} at delta {_DELTA:g}. "
            f"Left before: {shown(left)} of {shown(table.schema.budget)}."
        )
    for made in facts:
        if (release := made.release) is None:
            continue
        if release.bounded:
            rows = f"{release.most} rows" if release.most > 1 else "1 row"
            lines.append(
                f"Of a {tables[release.bounded].schema.unit} of {tables[release.bounded].name!r} "
                f"{rows} at most count."
            )
        lines.append("Every group is told of, also one of no row.")
    return lines


def _inputs(plan: Plan, facts: Sequence[Relation]) -> list[list[Relation]]:
    return [[facts[i] for i in step.inputs] for step in plan.steps]


def priced(told: Sequence[str], prices: Sequence[Price]) -> list[str]:
    """A table: megabytes, rounds and seconds of each step and of all."""
    first = prices[0]
    rows = [("MB sent", "rounds", *(f"s {p.profile}" for p in prices))]
    for i in range(len(told) + 1):
        step = None if i == len(told) else i
        cost = first.cost if step is None else first.steps[step]
        seconds = (f"{p.seconds(step):,.2f}" for p in prices)
        rows.append((f"{cost.total / 8e6:,.2f}", f"{cost.rounds:,}", *seconds))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    said = ["step", *told, f"   all; bytes as on average for {first.profile}, seconds estimated"]
    return [
        f"{'  '.join(cell.rjust(w) for cell, w in zip(row, widths, strict=True))}  {text}"
        for row, text in zip(rows, said, strict=True)
    ]


def _said(step: Step, given: Sequence[Relation], made: Relation) -> str:
    inputs = ", ".join(map(str, step.inputs))
    match step.op:
        case "scan":
            return f"scan {step['table']} [{', '.join(step['columns'])}]"
        case "filter":
            return f"filter {inputs}: {written(step['where'])}"
        case "project":
            columns = ", ".join(f"{n} = {written(e)}" for n, e in step["columns"])
            return f"project {inputs}: {columns}"
        case "group":
            functions = [function for _, function, _ in step["aggregates"]]
            listed = ", ".join(f"{n} = {f}({a or '*'})" for n, f, a in step["aggregates"])
            keys = [given[0].columns[name] for name in step["keys"]]
            if not keys:
                return f"aggregate {inputs}: {listed}"
            how = "public codes" if is_dense(keys, functions) else "sorted"
            return f"group {inputs} by {', '.join(step['keys'])} ({how}): {listed or 'distinct'}"
        case "order" | "top":
            what = "order" if step.op == "order" else f"first {step['count']} of"
            return f"{what} {inputs} by {', '.join(f'{n} {w}' for n, w in step['by'])}"
        case "window":
            found = ", ".join(
                f"{n} = {f}({a or ''})" + ("" if d is None else f" [{d}]")
                for n, f, a, d in step["functions"]
            )
            parted = f" of each {', '.join(step['partition'])}" if step["partition"] else ""
            by = ", ".join(f"{n} {w}" for n, w in step["order"])
            return f"window {inputs}{parted}{f' by {by}' if by else ''}: {found}"
        case "limit":
            return f"limit {inputs} to {step['count']}"
        case "join" | "many_join":
            pairs = " and ".join(f"{a} = {b}" for a, b in step["on"])
            if step.op == "join":
                how = "" if made.link is None else " (linked: no sort)"
                return f"{step['kind']} join {inputs} on {pairs}{how}"
            what = "pairs" if step["kind"] == "inner" else "rows"
            return f"{step['kind']} join {inputs} on {pairs}, {step['bound']} {what} at most"
        case "trim":
            return f"rows {inputs}, {step['bound']} at most"
        case _:
            return f"{step.op} {inputs}"


def written(e: Expression) -> str:
    """An expression as people write it."""
    name, *rest = e
    match name:
        case "col":
            return str(rest[0])
        case "decimal":
            return f"{rest[0] / 10 ** rest[1]:g}"
        case "fixed":
            return f"{rest[0] / 2 ** rest[1]:g}"
        case "date":
            return date_of(rest[0]).isoformat()
        case "word":
            return repr(rest[0])
        case "text":
            return "a text"
        case "null":
            return "NULL"
        case "int" | "bool" | "timestamp":
            return str(rest[0])
        case "+" | "-" | "*" | "/" | "=" | "<>" | "<" | "<=" | ">" | ">=" | "and" | "or":
            return f"({f' {name} '.join(map(written, rest))})"
    return f"{name}({', '.join(map(written, rest))})"

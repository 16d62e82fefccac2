"""Windows of a query: what each row is told of the others, computed by the three workers."""

from __future__ import annotations

from tfe_bench.models.queries.evaluate import Value, column_of, value_of
from tfe_bench.models.queries.plan import NEIGHBORS, PLACES, Step
from tfe_bench.models.queries.quotient import mean
from tfe_bench.models.queries.relations import Relation as Facts
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.tables import results
from tfe_bench.protocols.tables.keys import Key
from tfe_bench.protocols.tables.relation import ANY, Column, Relation
from tfe_bench.protocols.tables.windows import EXTREMES, Window, windows


def window(
    party: Party, step: Step, rows: Relation, about: Facts, facts: Facts, profile: str = "local"
) -> Relation:
    """The relation of a step `window`: the columns of its rows, and one for each function.

    Args:
        about: of the rows.
        facts: of what is made.
    """
    names = list(about.columns)
    of_sums = [a for _, f, a, _ in step["functions"] if f in ("sum", "avg")]
    # rows that the order does not tell apart are in none, and where they stood is nobody's business
    mixed = results.deliver(party, rows)

    def with_elements(mixed: Relation) -> Relation:
        more = []
        for name in of_sums:
            own = mixed.columns[names.index(name)]
            more.append(Column(value_of(own, about.columns[name]).data, ANY, own.null))
        return Relation((*mixed.columns, *more), mixed.valid)

    wanted: list[Window] = []
    at = len(names)
    for _, function, argument, detail in step["functions"]:
        column = None if argument is None else names.index(argument)
        if function in PLACES:
            wanted.append(Window(function))
        elif function in NEIGHBORS:
            wanted.append(Window(function, column, detail))
        elif function in ("count", *EXTREMES):
            wanted.append(Window(function, column, frame=detail))
        else:
            wanted.append(Window("sum", at, frame=detail))
            at += 1
            if function == "avg":
                wanted.append(Window("count", column, frame=detail))
    partition = [names.index(name) for name in step["partition"]]
    order = [Key(names.index(name), way == "desc") for name, way in step["order"]]
    whole = party.function(with_elements)(mixed)
    told = windows(party, whole, partition, order, wanted, profile=profile)

    def made(told: Relation) -> list[Column]:
        found = iter(told.columns[at:])
        columns = []
        for name, function, argument, _ in step["functions"]:
            own, fact = next(found), facts.columns[name]
            if function in (*NEIGHBORS, *EXTREMES):  # (kept as the column is)
                columns.append(own)
                continue
            data = own.values
            if function == "avg":
                kind = about.columns[argument].known
                data = mean(party, data, next(found).values, kind, about.rows)
            columns.append(column_of(Value(data, False if own.null is None else own.null, fact)))
        return columns

    return Relation((*told.columns[: len(names)], *party.function(made)(told)), told.valid)

"""Execution of window functions by the three workers."""

from __future__ import annotations

from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.tables import results
from tfe_bench.protocols.tables.keys import OrderKey
from tfe_bench.protocols.tables.relation import ANY_BITS, Column, Relation
from tfe_bench.protocols.tables.windows import EXTREMES, WindowFunction, compute_windows
from tfe_bench.queries.division import compute_group_mean
from tfe_bench.queries.evaluate import ColumnValue, column_to_value, value_to_column
from tfe_bench.queries.plan import NEIGHBORS, PLACES, QueryStep
from tfe_bench.queries.relations import Relation as Facts


def run_window(
    party: Party,
    step: QueryStep,
    rows: Relation,
    input_facts: Facts,
    output_facts: Facts,
    profile: str = "local",
) -> Relation:
    """Run a step `window`: the columns of its input, and one for each function.

    Args:
        input_facts: facts about the input rows.
        output_facts: facts about the output.
    """
    names = list(input_facts.columns)
    of_sums = [a for _, f, a, _ in step["functions"] if f in ("sum", "avg")]
    # rows that are equal in the order get a random one, which hides their places in the table
    shuffled = results.deliver_rows(party, rows)

    def with_elements(mixed: Relation) -> Relation:
        more = []
        for name in of_sums:
            column = mixed.columns[names.index(name)]
            more.append(
                Column(
                    column_to_value(column, input_facts.columns[name]).data, ANY_BITS, column.null
                )
            )
        return Relation((*mixed.columns, *more), mixed.valid)

    windows_to_run: list[WindowFunction] = []
    at = len(names)
    for _, function, argument, detail in step["functions"]:
        column = None if argument is None else names.index(argument)
        if function in PLACES:
            windows_to_run.append(WindowFunction(function))
        elif function in NEIGHBORS:
            windows_to_run.append(WindowFunction(function, column, detail))
        elif function in ("count", *EXTREMES):
            windows_to_run.append(WindowFunction(function, column, frame=detail))
        else:
            windows_to_run.append(WindowFunction("sum", at, frame=detail))
            at += 1
            if function == "avg":
                windows_to_run.append(WindowFunction("count", column, frame=detail))
    partition = [names.index(name) for name in step["partition"]]
    order = [OrderKey(names.index(name), way == "desc") for name, way in step["order"]]
    whole = party.function(with_elements)(shuffled)
    result_rows = compute_windows(party, whole, partition, order, windows_to_run, profile=profile)

    def build_columns(rows: Relation) -> list[Column]:
        results = iter(rows.columns[at:])
        columns = []
        for name, function, argument, _ in step["functions"]:
            column, fact = next(results), output_facts.columns[name]
            if function in (*NEIGHBORS, *EXTREMES):  # (stored in the column's encoding)
                columns.append(column)
                continue
            data = column.values
            if function == "avg":
                kind = input_facts.columns[argument].value_type
                data = compute_group_mean(party, data, next(results).values, kind, input_facts.rows)
            columns.append(
                value_to_column(
                    ColumnValue(data, False if column.null is None else column.null, fact)
                )
            )
        return columns

    return Relation(
        (*result_rows.columns[: len(names)], *party.function(build_columns)(result_rows)),
        result_rows.valid,
    )

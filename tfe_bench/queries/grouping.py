"""Execution of `group` steps, composed of private permutations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tfe_bench.protocols.functions.exp_one_round import to_signed_word
from tfe_bench.protocols.order import extremes
from tfe_bench.protocols.ring import arithmetic, relational
from tfe_bench.protocols.session import tensor_ops
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared
from tfe_bench.protocols.tables import bits, groups
from tfe_bench.protocols.tables.relation import Column, Relation, limit_rows
from tfe_bench.queries import dp_noise, group_quantiles, privacy_units
from tfe_bench.queries.aggregate_types import public_code_group_count
from tfe_bench.queries.column_facts import ColumnFact
from tfe_bench.queries.dense_groups import GroupColumns, and_bits, group_by_codes
from tfe_bench.queries.division import compute_group_mean
from tfe_bench.queries.dp_noise import NoiseDraw
from tfe_bench.queries.evaluate import (
    ColumnValue,
    column_to_value,
    constant_truth_column,
    value_to_column,
)
from tfe_bench.queries.privacy import COUNT, VALUES, Label
from tfe_bench.queries.relation_facts import Relation as Facts
from tfe_bench.queries.rights import min_records_for_aggregate
from tfe_bench.queries.types import BOOL


def group_rows(
    party: Party,
    key_names: Sequence[str],
    aggregates: Sequence[Sequence[Any]],
    valid: Shared,
    named: Mapping[str, Column],
    input_facts: Facts,
    output_facts: Facts,
    profile: str = "local",
    noise: NoiseDraw | None = None,
) -> Relation:
    """Run a step `group`: its keys, then its aggregates.

    A group is dropped if it has fewer records of a table than its owner's rule requires: of its
    rows, and of the rows that an aggregate counts; of its units if these repeat.

    Args:
        key_names: columns whose values define the groups.
        aggregates: name, function and column of each aggregate.
        valid, named, input_facts: validity, columns and facts of the input rows.
        output_facts: facts about the output.
        noise: noise that this worker drew, for a release with noise (`dp_noise.draw_noise`).
    """
    repeated = [alias for alias in output_facts.least if not input_facts.records[alias].single]
    marks = privacy_units.Marks()
    if repeated:
        valid, named, marks = privacy_units.mark_privacy_units(
            party, key_names, aggregates, valid, named, input_facts, repeated, profile
        )
    if output_facts.release is not None:
        valid, named = dp_noise.bound_contributions(
            party, valid, named, input_facts, output_facts.release, profile
        )
    labels = _needed_totals(aggregates, input_facts, output_facts, marks)
    keys = [named[name] for name in key_names]
    extremes_of = [
        (function, named[argument], input_facts.columns[argument])
        for _, function, argument in aggregates
        if function in ("min", "max")
    ]
    key_facts = [input_facts.columns[name] for name in key_names]
    functions = [function for _, function, _ in aggregates]
    if not keys:
        sums = _aggregate_values_to_sum(party, labels, valid, named, input_facts)
        group_columns = _aggregate_all(party, valid, sums, extremes_of)
    else:
        rows, sums_to_group = _group_by_input(party, valid, keys, labels, named)
        dense = public_code_group_count(key_facts, functions)
        if dense or output_facts.release is not None:
            count = dense or output_facts.rows
            group_columns = group_by_codes(
                party, rows, sums_to_group, count, key_facts, profile, by_sort=not dense
            )
        else:
            group_columns = _group_sorted(
                party, rows, len(keys), sums_to_group, extremes_of, output_facts.rows, profile
            )

    ranked = group_quantiles.compute_group_quantiles(
        party,
        aggregates,
        Relation(tuple(keys), valid),
        named,
        input_facts,
        output_facts.rows,
        profile,
    )

    def finish_groups(
        group_columns: GroupColumns, ranked: dict[str, Shared], noise: NoiseDraw | None
    ) -> Relation:
        totals = dict(zip(labels, group_columns.sums, strict=True))
        if keys:  # the totals are sums of distances
            for name, total_kind in labels:
                if name is not None and total_kind == VALUES:
                    count = totals.get((name, COUNT), totals[(None, COUNT)])
                    by = np.int64(input_facts.columns[name].value_type.offset)
                    total = totals[name, total_kind]
                    totals[name, total_kind] = arithmetic.add(
                        total, arithmetic.mul_public(count, by)
                    )
        if output_facts.release is not None:
            columns = dp_noise.noised_aggregates(
                party, aggregates, input_facts, output_facts, output_facts.release, totals, noise
            )
            columns = dict(zip(key_names, group_columns.keys, strict=True)) | columns
            # (whether a group has rows is also secret)
            there = constant_truth_column(group_columns.valid, True)
            return Relation(tuple(columns[name] for name in output_facts.columns), there)
        return _finish_columns(
            *(party, key_names, aggregates, input_facts, output_facts),
            *(group_columns, totals, ranked, marks),
        )

    result: Relation = party.function(finish_groups)(group_columns, ranked, noise)
    return result


def _needed_totals(
    aggregates: Sequence[Sequence[Any]], about: Facts, facts: Facts, marks: privacy_units.Marks
) -> list[Label]:
    """Return the totals that aggregates require: the number of rows, then sums and counts
    of values.
    """
    labels: list[Label] = [(None, COUNT)]
    for _, function, argument in aggregates:
        if argument is None:
            continue
        if function in ("sum", "avg") and (argument, VALUES) not in labels:
            labels.append((argument, VALUES))
        if about.columns[argument].nullable and (argument, COUNT) not in labels:
            labels.append((argument, COUNT))
    present = [about.records[alias].present for alias in facts.least if alias not in marks]
    present += [name for unit_marks in marks.values() for name in unit_marks.values()]
    return labels + [(name, COUNT) for name in dict.fromkeys(present) if name]


def _group_by_input(
    party: Party,
    valid: Shared,
    keys: Sequence[Column],
    labels: Sequence[Label],
    named: Mapping[str, Column],
) -> tuple[Relation, list[groups.GroupAggregate]]:
    """Return keys and columns unchanged, and the aggregates of these."""
    columns, aggregates = list(keys), []
    at: dict[str, int] = {}
    for name, total_kind in labels:
        if name is None:
            aggregates.append(groups.GroupAggregate("count"))
            continue
        if name not in at:
            at[name] = len(columns)
            column = named[name]
            if "?" in name:  # where the bit is 0 no record is present
                absent = party.function(bits.invert)(column.values)
                column = replace(column, null=absent)
            columns.append(column)
        aggregates.append(
            groups.GroupAggregate("sum" if total_kind == VALUES else "count", at[name])
        )
    return Relation(tuple(columns), valid), aggregates


def _aggregate_values_to_sum(
    party: Party,
    labels: Sequence[Label],
    valid: Shared,
    named: Mapping[str, Column],
    about: Facts,
) -> list[Shared]:
    """Return the numbers [n] to sum, 0 in rows that do not count."""

    def select_values(valid: Shared, named: dict[str, Column]) -> list[Shared]:
        counted: dict[str | None, Shared] = {None: valid}
        for name, _ in labels:
            if name is None or name in counted:
                continue
            column = named[name]
            if "?" in name:
                counted[name] = bits.all_of(party, [valid, column.values])
            elif column.null is not None:
                counted[name] = bits.all_of(party, [valid, bits.invert(column.null)])
            else:
                counted[name] = valid
        values = []
        for name, total_kind in labels:
            if total_kind == COUNT:
                values.append(bits.to_number(party, counted[name]))
            else:
                assert name is not None
                value = column_to_value(named[name], about.columns[name])
                values.append(bits.multiply_by_bit(party, counted[name], value.data))
        return values

    sums: list[Shared] = party.function(select_values)(valid, dict(named))
    return sums


def _aggregate_all(
    party: Party,
    valid: Shared,
    sums: Sequence[Shared],
    extremes_of: Sequence[tuple[str, Column, ColumnFact]],
) -> GroupColumns:
    """Aggregate all rows as one group."""

    def aggregate_rows(
        valid: Shared, sums: list[Shared], columns: list[Column]
    ) -> tuple[list[Shared], list[Shared], Shared]:
        totals = [
            s.map(lambda a: tensor_ops.reduce_sum(tensor_ops.reshape(a, [1, -1]), [1], False))
            for s in sums
        ]
        extreme_values = []
        for (function, _, fact), column in zip(extremes_of, columns, strict=True):
            there = [valid] if column.null is None else [valid, bits.invert(column.null)]
            counted = bits.all_of(party, there)
            value = column_to_value(column, fact)
            data = value.data
            if fact.value_type.kind == BOOL:
                data = bits.to_number(party, data)
            # rows that do not count take the value that loses every comparison
            neutral = fact.value_type.high if function == "min" else fact.value_type.low
            from_there = arithmetic.add_constant(data, to_signed_word(-neutral))
            selected = arithmetic.add_constant(
                bits.multiply_by_bit(party, counted, from_there), to_signed_word(neutral)
            )
            if fact.value_type.bits == 64:  # differences may take 65 bits
                best = extremes.find_full_range_extreme(party, selected, function == "max")
            else:
                of_all = extremes.reduce_min if function == "min" else extremes.reduce_max
                best = of_all(party, selected, 0, True, bits=min(64, fact.value_type.bits + 2))
            extreme_values.append(best)
        one = constant_truth_column(totals[0], True)
        return totals, extreme_values, one

    totals, extreme_values, one = party.function(aggregate_rows)(
        valid, list(sums), [c for _, c, _ in extremes_of]
    )
    return GroupColumns((), tuple(totals), tuple(extreme_values), one)


def _group_sorted(
    party: Party,
    rows: Relation,
    keys: int,
    aggregates: Sequence[groups.GroupAggregate],
    extremes_of: Sequence[tuple[str, Column, ColumnFact]],
    max_groups: int,
    profile: str,
) -> GroupColumns:
    """Sort rows by their keys; the first `most` rows are the groups."""

    def to_numbers(columns: list[Column]) -> list[Column]:
        return [
            replace(c, values=bits.to_number(party, c.values)) if c.values.ring_bits == 1 else c
            for c in columns
        ]

    best: list[Column] = party.function(to_numbers)([column for _, column, _ in extremes_of])
    at = len(rows.columns)
    extreme_aggregates = [
        groups.GroupAggregate(how, at + i) for i, (how, _, _) in enumerate(extremes_of)
    ]
    extended = replace(rows, columns=(*rows.columns, *best))
    grouped = groups.group_rows(
        party, extended, range(keys), [*aggregates, *extreme_aggregates], profile=profile
    )
    grouped = limit_rows(grouped, max_groups)
    values = [column.values for column in grouped.columns[keys:]]
    count = len(aggregates)
    return GroupColumns(
        grouped.columns[:keys], tuple(values[:count]), tuple(values[count:]), grouped.valid
    )


def _finish_columns(
    party: Party,
    key_names: Sequence[str],
    aggregates: Sequence[Sequence[Any]],
    about: Facts,
    facts: Facts,
    group_columns: GroupColumns,
    totals: Mapping[Label, Shared],
    ranked: Mapping[str, Shared],
    marks: privacy_units.Marks,
) -> Relation:
    """Build the columns of the output from the totals."""
    rows = totals[(None, COUNT)]

    def count_for(argument: str | None) -> Shared:
        return totals.get((argument, COUNT), rows)

    columns: dict[str, Column] = dict(zip(key_names, group_columns.keys, strict=True))
    extreme_values, keys_given = iter(group_columns.extremes), bool(key_names)
    for name, function, argument in aggregates:
        fact, count = facts.columns[name], count_for(argument)
        null: Shared | bool = False
        if fact.nullable:
            null = _is_zero_row_count(party, count, facts.columns[name], about.rows)
        if name in ranked:
            data = ranked[name]
        elif function == "count":
            data = count
        elif function in ("min", "max"):
            data = next(extreme_values)
            if keys_given and fact.value_type.kind != BOOL:  # (of a stored column)
                data = arithmetic.add_constant(data, np.int64(fact.value_type.offset))
            if fact.value_type.kind == BOOL:
                data = replace(data, bits=1)
        elif function == "sum":
            data = totals[(argument, VALUES)]
        else:
            assert argument is not None
            kind = about.columns[argument].value_type
            data = compute_group_mean(party, totals[(argument, VALUES)], count, kind, about.rows)
        columns[name] = value_to_column(ColumnValue(data, null, fact))
    valid = [group_columns.valid]
    for alias, least in facts.least.items():
        presence = about.records[alias].present or None
        counts: dict[str | None, int] = {presence: least}
        if alias in marks:
            counts = dict.fromkeys(marks[alias].values(), least)
        for _, function, argument in aggregates if alias not in marks else ():
            if argument is None or alias not in {s.alias for s in about.columns[argument].sources}:
                continue
            counted = argument if (argument, COUNT) in totals else None
            min_records = min_records_for_aggregate(function, least)
            if counted is not None or min_records > least:
                counts[counted] = max(counts.get(counted, 0), min_records)
        for name, min_records in sorted(counts.items(), key=str):
            enough = arithmetic.add_constant(count_for(name), np.int64(-min_records))
            width = max(about.rows, min_records).bit_length() + 1
            below = bits.from_masked(party, relational.is_negative(party, enough, width))
            valid.append(bits.invert(below))
    return Relation(tuple(columns[name] for name in facts.columns), and_bits(party, valid))


def _is_zero_row_count(party: Party, count: Shared, fact: ColumnFact, rows: int) -> Shared:
    count_minus_one = arithmetic.add_constant(count, np.int64(-1))
    return bits.from_masked(
        party, relational.is_negative(party, count_minus_one, rows.bit_length() + 1)
    )

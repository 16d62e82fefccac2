"""Groups, orders and results of relations, composed of private arrangements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from tfe_bench.models.queries import noising, ranking, units
from tfe_bench.models.queries.arranged import Grouped, coded_groups, every
from tfe_bench.models.queries.evaluate import Value, column_of, constant_bit, value_of
from tfe_bench.models.queries.expressions import Fact
from tfe_bench.models.queries.noising import Drawn
from tfe_bench.models.queries.plan import Step
from tfe_bench.models.queries.privacy import COUNT, VALUES, Label
from tfe_bench.models.queries.quotient import mean
from tfe_bench.models.queries.relations import Relation as Facts
from tfe_bench.models.queries.rights import least_for
from tfe_bench.models.queries.summaries import is_dense
from tfe_bench.models.queries.types import BOOL
from tfe_bench.protocols.functions.exp_one_round import word
from tfe_bench.protocols.order import extremes
from tfe_bench.protocols.ring import arithmetic, relational
from tfe_bench.protocols.session import local
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared
from tfe_bench.protocols.tables import bits, groups
from tfe_bench.protocols.tables.relation import Column, Relation, limit


def group(
    party: Party,
    step: Step,
    valid: Shared,
    named: Mapping[str, Column],
    about: Facts,
    facts: Facts,
    profile: str = "local",
    own: Drawn | None = None,
) -> Relation:
    """The relation of a step `group`: keys, then aggregates.

    Args:
        valid, named, about: the rows that are grouped.
        facts: of what is made.
        own: what this worker drew as noise, where it is released with noise (`noising.drawn`).

    A group is left out where it has fewer records of a table than its owner's rule says: of its
    rows, and of those that an aggregate counts; of its units where these repeat.
    """
    repeated = [alias for alias in facts.least if not about.records[alias].single]
    marks = units.Marks()
    if repeated:
        valid, named, marks = units.marked(party, step, valid, named, about, repeated, profile)
    if facts.release is not None:
        valid, named = noising.bounded(party, valid, named, about, facts.release, profile)
    labels = _labels(step, about, facts, marks)
    keys = [named[name] for name in step["keys"]]
    extremes_of = [
        (function, named[argument], about.columns[argument])
        for _, function, argument in step["aggregates"]
        if function in ("min", "max")
    ]
    key_facts = [about.columns[name] for name in step["keys"]]
    functions = [function for _, function, _ in step["aggregates"]]
    if not keys:
        sums = _summed(party, labels, valid, named, about)
        found = _whole(party, valid, sums, extremes_of)
    else:
        rows, wanted = _rows(party, valid, keys, labels, named)
        dense = is_dense(key_facts, functions)
        if dense or facts.release is not None:
            count = dense or facts.rows
            found = coded_groups(party, rows, wanted, count, key_facts, profile, by_sort=not dense)
        else:
            found = _sorted(party, rows, len(keys), wanted, extremes_of, facts.rows, profile)

    ranked = ranking.quantiles_of(
        party, step["aggregates"], Relation(tuple(keys), valid), named, about, facts.rows, profile
    )

    def finished(made: Grouped, ranked: dict[str, Shared], own: Drawn | None) -> Relation:
        totals = dict(zip(labels, made.sums, strict=True))
        if keys:  # distances were added up
            for name, what in labels:
                if name is not None and what == VALUES:
                    count = totals.get((name, COUNT), totals[(None, COUNT)])
                    by = np.int64(about.columns[name].known.offset)
                    total = totals[name, what]
                    totals[name, what] = arithmetic.add(total, arithmetic.mul_public(count, by))
        if facts.release is not None:
            columns = noising.aggregates(party, step, about, facts, facts.release, totals, own)
            columns = dict(zip(step["keys"], made.keys, strict=True)) | columns
            # (whether a group has a row is a secret, too)
            there = constant_bit(made.valid, True)
            return Relation(tuple(columns[name] for name in facts.columns), there)
        return _finished(party, step, about, facts, made, totals, ranked, marks)

    result: Relation = party.function(finished)(found, ranked, own)
    return result


def _labels(step: Step, about: Facts, facts: Facts, marks: units.Marks) -> list[Label]:
    """What a step's aggregates take: the number of rows, then sums and numbers of values."""
    wanted: list[Label] = [(None, COUNT)]
    for _, function, argument in step["aggregates"]:
        if argument is None:
            continue
        if function in ("sum", "avg") and (argument, VALUES) not in wanted:
            wanted.append((argument, VALUES))
        if about.columns[argument].nullable and (argument, COUNT) not in wanted:
            wanted.append((argument, COUNT))
    present = [about.records[alias].present for alias in facts.least if alias not in marks]
    present += [name for own in marks.values() for name in own.values()]
    return wanted + [(name, COUNT) for name in dict.fromkeys(present) if name]


def _rows(
    party: Party,
    valid: Shared,
    keys: Sequence[Column],
    labels: Sequence[Label],
    named: Mapping[str, Column],
) -> tuple[Relation, list[groups.Aggregate]]:
    """Keys and columns, as they are, and what is wanted of these."""
    columns, wanted = list(keys), []
    at: dict[str, int] = {}
    for name, what in labels:
        if name is None:
            wanted.append(groups.Aggregate("count"))
            continue
        if name not in at:
            at[name] = len(columns)
            column = named[name]
            if "?" in name:  # where it is 0 there is no record
                absent = party.function(bits.invert)(column.values)
                column = replace(column, null=absent)
            columns.append(column)
        wanted.append(groups.Aggregate("sum" if what == VALUES else "count", at[name]))
    return Relation(tuple(columns), valid), wanted


def _summed(
    party: Party,
    labels: Sequence[Label],
    valid: Shared,
    named: Mapping[str, Column],
    about: Facts,
) -> list[Shared]:
    """Numbers [n] to add up, 0 in rows that do not count."""

    def made(valid: Shared, named: dict[str, Column]) -> list[Shared]:
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
        found = []
        for name, what in labels:
            if what == COUNT:
                found.append(bits.number(party, counted[name]))
            else:
                assert name is not None
                value = value_of(named[name], about.columns[name])
                found.append(bits.times(party, counted[name], value.data))
        return found

    sums: list[Shared] = party.function(made)(valid, dict(named))
    return sums


def _whole(
    party: Party,
    valid: Shared,
    sums: Sequence[Shared],
    extremes_of: Sequence[tuple[str, Column, Fact]],
) -> Grouped:
    """One group of all rows."""

    def made(
        valid: Shared, sums: list[Shared], columns: list[Column]
    ) -> tuple[list[Shared], list[Shared], Shared]:
        totals = [
            s.map(lambda a: local.reduce_sum(local.reshape(a, [1, -1]), [1], False)) for s in sums
        ]
        found = []
        for (function, _, fact), column in zip(extremes_of, columns, strict=True):
            there = [valid] if column.null is None else [valid, bits.invert(column.null)]
            counted = bits.all_of(party, there)
            value = value_of(column, fact)
            data = value.data
            if fact.known.kind == BOOL:
                data = bits.number(party, data)
            # what does not count is as far away as it can be
            away = fact.known.high if function == "min" else fact.known.low
            from_there = arithmetic.moved(data, word(-away))
            kept = arithmetic.moved(bits.times(party, counted, from_there), word(away))
            if fact.known.bits == 64:  # differences may take 65
                best = extremes.of_full_range(party, kept, function == "max")
            else:
                of_all = extremes.reduce_min if function == "min" else extremes.reduce_max
                best = of_all(party, kept, 0, True, bits=min(64, fact.known.bits + 2))
            found.append(best)
        one = constant_bit(totals[0], True)
        return totals, found, one

    totals, found, one = party.function(made)(valid, list(sums), [c for _, c, _ in extremes_of])
    return Grouped((), tuple(totals), tuple(found), one)


def _sorted(
    party: Party,
    rows: Relation,
    keys: int,
    wanted: Sequence[groups.Aggregate],
    extremes_of: Sequence[tuple[str, Column, Fact]],
    most: int,
    profile: str,
) -> Grouped:
    """Rows of equal keys together: the first ones are groups, `most` of them at most."""

    def numbers(columns: list[Column]) -> list[Column]:
        return [
            replace(c, values=bits.number(party, c.values)) if c.values.ring_bits == 1 else c
            for c in columns
        ]

    best: list[Column] = party.function(numbers)([column for _, column, _ in extremes_of])
    at = len(rows.columns)
    more = [groups.Aggregate(how, at + i) for i, (how, _, _) in enumerate(extremes_of)]
    given = replace(rows, columns=(*rows.columns, *best))
    made = groups.group(party, given, range(keys), [*wanted, *more], profile=profile)
    made = limit(made, most)
    values = [column.values for column in made.columns[keys:]]
    count = len(wanted)
    return Grouped(made.columns[:keys], tuple(values[:count]), tuple(values[count:]), made.valid)


def _finished(
    party: Party,
    step: Step,
    about: Facts,
    facts: Facts,
    made: Grouped,
    totals: Mapping[Label, Shared],
    ranked: Mapping[str, Shared],
    marks: units.Marks,
) -> Relation:
    """The columns of a group's relation, of what was added up."""
    rows = totals[(None, COUNT)]

    def count_of(argument: str | None) -> Shared:
        return totals.get((argument, COUNT), rows)

    columns: dict[str, Column] = dict(zip(step["keys"], made.keys, strict=True))
    best, keys_given = iter(made.extremes), bool(step["keys"])
    for name, function, argument in step["aggregates"]:
        fact, count = facts.columns[name], count_of(argument)
        null: Shared | bool = False
        if fact.nullable:
            null = _is_zero(party, count, facts.columns[name], about.rows)
        if name in ranked:
            data = ranked[name]
        elif function == "count":
            data = count
        elif function in ("min", "max"):
            data = next(best)
            if keys_given and fact.known.kind != BOOL:  # (of a column that is kept)
                data = arithmetic.moved(data, np.int64(fact.known.offset))
            if fact.known.kind == BOOL:
                data = replace(data, bits=1)
        elif function == "sum":
            data = totals[(argument, VALUES)]
        else:
            assert argument is not None
            kind = about.columns[argument].known
            data = mean(party, totals[(argument, VALUES)], count, kind, about.rows)
        columns[name] = column_of(Value(data, null, fact))
    valid = [made.valid]
    for alias, least in facts.least.items():
        own = about.records[alias].present or None
        counts: dict[str | None, int] = {own: least}
        if alias in marks:
            counts = dict.fromkeys(marks[alias].values(), least)
        for _, function, argument in step["aggregates"] if alias not in marks else ():
            if argument is None or alias not in {s.alias for s in about.columns[argument].sources}:
                continue
            counted = argument if (argument, COUNT) in totals else None
            due = least_for(function, least)
            if counted is not None or due > least:
                counts[counted] = max(counts.get(counted, 0), due)
        for name, due in sorted(counts.items(), key=str):
            enough = arithmetic.moved(count_of(name), np.int64(-due))
            width = max(about.rows, due).bit_length() + 1
            below = bits.of(party, relational.negative(party, enough, width))
            valid.append(bits.invert(below))
    return Relation(tuple(columns[name] for name in facts.columns), every(party, valid))


def _is_zero(party: Party, count: Shared, fact: Fact, rows: int) -> Shared:
    nothing = arithmetic.moved(count, np.int64(-1))
    return bits.of(party, relational.negative(party, nothing, rows.bit_length() + 1))

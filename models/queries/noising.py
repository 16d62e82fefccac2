"""Releases with noise, carried out by the three workers: rows of a unit counted off, totals noised.

What a worker draws goes into a graph as an argument: a graph that is kept holds no noise.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np

from tfe_bench.errors import ProtocolError
from tfe_bench.models.queries.evaluate import Value, column_of, constant_bit
from tfe_bench.models.queries.plan import Step
from tfe_bench.models.queries.privacy import VALUES, Label, Release, counted, most_counted
from tfe_bench.models.queries.quotient import mean
from tfe_bench.models.queries.relations import Relation as Facts
from tfe_bench.protocols.ring import arithmetic, relational, shapes, truncation
from tfe_bench.protocols.session.counting import Counting
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared
from tfe_bench.protocols.tables import bits, noise
from tfe_bench.protocols.tables.keys import Key
from tfe_bench.protocols.tables.relation import Column, Relation
from tfe_bench.protocols.tables.windows import Window, windows

# int64 [totals, groups]: what one worker adds.
Drawn = Any
# Seconds for each number, far more than a draw takes.
_EACH, _LEAST = 5e-4, 0.02
# Bits by which a computed real may be further away than its type says.
_SPARE = 20


def drawn(release: Release, groups: int, below: noise.Below = secrets.randbelow) -> Drawn:
    """What this worker adds to the totals of a release, each a draw of its own.

    It takes a public time, as how long a draw takes tells of it.

    Raises:
        UsageError: as noise.draw.
    """
    due = time.monotonic() + _LEAST + _EACH * groups * len(release.totals)
    found = [noise.draw(Fraction(s.variance), groups, below) for s in release.totals.values()]
    time.sleep(max(0.0, due - time.monotonic()))
    return np.array(found, np.int64).reshape(len(found), groups)


def bounded(
    party: Party,
    valid: Shared,
    named: Mapping[str, Column],
    about: Facts,
    release: Release,
    profile: str,
) -> tuple[Shared, dict[str, Column]]:
    """Rows of which no unit has more than its table's owner says, and values in their ranges.

    The first rows of a unit stay, so that those of others make no difference to which.
    """
    columns = dict(named)
    if release.bounded and release.most < about.rows:
        names = list(columns)
        unit = names.index(about.records[release.bounded].unit)
        # any order will do: rows that it does not tell apart stay as they were
        same = Column(party.function(lambda v: constant_bit(v, False))(valid), 1)
        rows = Relation((*columns.values(), same), valid)
        place = [Window("row_number")]
        told = windows(party, rows, [unit], [Key(len(names))], place, profile=profile)

        def first(valid: Shared, place: Shared) -> Shared:
            left = arithmetic.moved(arithmetic.neg(place), np.int64(release.most))
            width = about.rows.bit_length() + 2
            over = bits.of(party, relational.negative(party, left, width))
            return bits.all_of(party, [valid, bits.invert(over)])

        valid = party.function(first)(told.valid, told.columns[-1].values)
        columns = dict(zip(names, told.columns, strict=False))
    for argument, what in release.totals:
        # reals that were computed are off by some last places; whole numbers and decimals are exact
        if what == VALUES and argument is not None and about.columns[argument].known.fraction:
            kind = about.columns[argument].known

            def within(column: Column, most: int = kind.high - kind.low) -> Column:
                return replace(column, values=_clipped(party, column.values, 0, most))

            columns[argument] = party.function(within)(columns[argument])
    return valid, columns


def _clipped(party: Party, x: Shared, low: int, high: int, width: int = 0) -> Shared:
    """Values moved into [low, high]; they are less than 2^(width - 1) from both ends."""
    own = width or min(64, (high - low).bit_length() + _SPARE)
    ends = (np.full(x.shape.as_list(), end, np.int64) for end in (low, high))
    least, most = (arithmetic.public(x, end) for end in ends)
    found = relational.maximum(party, x, least, own)
    return relational.minimum(party, found, most, own)


def aggregates(
    party: Party,
    step: Step,
    about: Facts,
    facts: Facts,
    release: Release,
    totals: Mapping[Label, Shared],
    own: Drawn | None,
) -> dict[str, Column]:
    """The aggregates of a step, of totals with noise; nothing else of these leaves.

    Args:
        about, facts: of the rows that are grouped, and of what is made.
        own: what this worker drew.

    Raises:
        ProtocolError: it drew nothing.
    """
    told = _noised(party, release, totals, own)
    found = {}
    for name, function, argument in step["aggregates"]:
        label = counted(argument, about.columns)
        if function == "count":
            data = told[label]
        elif function == "sum":
            data = told[argument, VALUES]
        else:
            kind = about.columns[argument].known
            most = most_counted(release.totals[label], about.rows)
            count = _clipped(party, told[label], 1, most, most.bit_length() + 2)
            # a mean lies between the column's bounds
            total, width = told[argument, VALUES], _width(release, label, argument, about)
            ends = [arithmetic.mul_public(count, np.int64(end)) for end in (kind.low, kind.high)]
            total = relational.maximum(party, total, ends[0], width)
            total = relational.minimum(party, total, ends[1], width)
            data = mean(party, total, count, kind, most)
        found[name] = column_of(Value(data, False, facts.columns[name]))
    return found


def _width(release: Release, label: Label, argument: str, about: Facts) -> int:
    """Bits in which a total with noise and the column's bounds times a number are compared."""
    kind, scale = about.columns[argument].known, release.totals[argument, VALUES]
    furthest = kind.magnitude * (2 * about.rows + release.totals[label].tail) + scale.tail
    return min(64, furthest.bit_length() + 1)


def _noised(
    party: Party, release: Release, totals: Mapping[Label, Shared], own: Drawn | None
) -> dict[Label, Shared]:
    """Totals with the noise of all three workers, in one message of each."""
    if own is None and not isinstance(party, Counting):
        raise ProtocolError("A release with noise wants what each worker drew. Received: nothing.")
    wanted = release.totals.items()
    exact = [arithmetic.mul_public(totals[each], np.int64(1 << s.more)) for each, s in wanted]
    told = noise.added(party, replace(shapes.stack(exact, 0), fractional_bits=0), own)
    found = {}
    for i, (each, scale) in enumerate(wanted):
        found[each] = told.map(lambda a, i=i: a[i])
        if scale.more:
            short = replace(found[each], fractional_bits=scale.more)
            short = truncation.truncate(party, short, scale.more, "exact")
            found[each] = replace(short, fractional_bits=0)
    return found

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
from tfe_bench.models.queries.division import compute_mean
from tfe_bench.models.queries.evaluate import Value, constant_bit, value_to_column
from tfe_bench.models.queries.plan import Step
from tfe_bench.models.queries.privacy import VALUES, Label, Release, count_label, max_noised_count
from tfe_bench.models.queries.relations import Relation as Facts
from tfe_bench.protocols.ring import arithmetic, relational, shapes, truncation
from tfe_bench.protocols.session.counting import CostParty
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared
from tfe_bench.protocols.tables import bits, noise
from tfe_bench.protocols.tables.keys import Key
from tfe_bench.protocols.tables.relation import Column, Relation
from tfe_bench.protocols.tables.windows import Window, compute_windows

# int64 [totals, groups]: what one worker adds.
NoiseDraw = Any
# Seconds for each number, far more than a draw takes.
_SECONDS_PER_DRAW, _MIN_SECONDS = 5e-4, 0.02
# Bits by which a computed real may be further away than its type says.
_SPARE = 20


def draw_noise(
    release: Release, groups: int, below: noise.RandomBelow = secrets.randbelow
) -> NoiseDraw:
    """What this worker adds to the totals of a release, each a draw of its own.

    It takes a public time, as how long a draw takes tells of it.

    Raises:
        UsageError: as noise.draw.
    """
    deadline = time.monotonic() + _MIN_SECONDS + _SECONDS_PER_DRAW * groups * len(release.totals)
    draws = [noise.draw_noise(Fraction(s.variance), groups, below) for s in release.totals.values()]
    time.sleep(max(0.0, deadline - time.monotonic()))
    return np.array(draws, np.int64).reshape(len(draws), groups)


def bound_contributions(
    party: Party,
    valid: Shared,
    named: Mapping[str, Column],
    input_facts: Facts,
    release: Release,
    profile: str,
) -> tuple[Shared, dict[str, Column]]:
    """Rows of which no unit has more than its table's owner says, and values in their ranges.

    The first rows of a unit stay, so that those of others make no difference to which.
    """
    columns = dict(named)
    if release.bounded_alias and release.max_unit_rows < input_facts.rows:
        names = list(columns)
        unit = names.index(input_facts.records[release.bounded_alias].unit)
        # any order will do: rows that it does not tell apart stay as they were
        same = Column(party.function(lambda v: constant_bit(v, False))(valid), 1)
        rows = Relation((*columns.values(), same), valid)
        place = [Window("row_number")]
        numbered = compute_windows(party, rows, [unit], [Key(len(names))], place, profile=profile)

        def keep_first(valid: Shared, place: Shared) -> Shared:
            slack = arithmetic.add_constant(arithmetic.neg(place), np.int64(release.max_unit_rows))
            width = input_facts.rows.bit_length() + 2
            over = bits.from_masked(party, relational.is_negative(party, slack, width))
            return bits.all_of(party, [valid, bits.invert(over)])

        valid = party.function(keep_first)(numbered.valid, numbered.columns[-1].values)
        columns = dict(zip(names, numbered.columns, strict=False))
    for argument, total_kind in release.totals:
        # reals that were computed are off by some last places; whole numbers and decimals are exact
        if (
            total_kind == VALUES
            and argument is not None
            and input_facts.columns[argument].value_type.fraction
        ):
            kind = input_facts.columns[argument].value_type

            def clip_column(column: Column, highest: int = kind.high - kind.low) -> Column:
                return replace(column, values=_clip_values(party, column.values, 0, highest))

            columns[argument] = party.function(clip_column)(columns[argument])
    return valid, columns


def _clip_values(party: Party, x: Shared, low: int, high: int, width: int = 0) -> Shared:
    """Values moved into [low, high]; they are less than 2^(width - 1) from both ends."""
    compared_bits = width or min(64, (high - low).bit_length() + _SPARE)
    ends = (np.full(x.shape.as_list(), end, np.int64) for end in (low, high))
    lower, upper = (arithmetic.share_public(x, end) for end in ends)
    clipped = relational.maximum(party, x, lower, compared_bits)
    return relational.minimum(party, clipped, upper, compared_bits)


def noised_aggregates(
    party: Party,
    step: Step,
    input_facts: Facts,
    output_facts: Facts,
    release: Release,
    totals: Mapping[Label, Shared],
    noise: NoiseDraw | None,
) -> dict[str, Column]:
    """The aggregates of a step, of totals with noise; nothing else of these leaves.

    Args:
        about, facts: of the rows that are grouped, and of what is made.
        own: what this worker drew.

    Raises:
        ProtocolError: it drew nothing.
    """
    noised_totals = _add_noise(party, release, totals, noise)
    columns = {}
    for name, function, argument in step["aggregates"]:
        label = count_label(argument, input_facts.columns)
        if function == "count":
            data = noised_totals[label]
        elif function == "sum":
            data = noised_totals[argument, VALUES]
        else:
            kind = input_facts.columns[argument].value_type
            max_count = max_noised_count(release.totals[label], input_facts.rows)
            count = _clip_values(
                party, noised_totals[label], 1, max_count, max_count.bit_length() + 2
            )
            # a mean lies between the column's bounds
            total, width = (
                noised_totals[argument, VALUES],
                _comparison_width(release, label, argument, input_facts),
            )
            ends = [arithmetic.mul_public(count, np.int64(end)) for end in (kind.low, kind.high)]
            total = relational.maximum(party, total, ends[0], width)
            total = relational.minimum(party, total, ends[1], width)
            data = compute_mean(party, total, count, kind, max_count)
        columns[name] = value_to_column(Value(data, False, output_facts.columns[name]))
    return columns


def _comparison_width(release: Release, label: Label, argument: str, about: Facts) -> int:
    """Bits in which a total with noise and the column's bounds times a number are compared."""
    kind, scale = about.columns[argument].value_type, release.totals[argument, VALUES]
    furthest = kind.magnitude * (2 * about.rows + release.totals[label].tail) + scale.tail
    return min(64, furthest.bit_length() + 1)


def _add_noise(
    party: Party, release: Release, totals: Mapping[Label, Shared], noise_draw: NoiseDraw | None
) -> dict[Label, Shared]:
    """Totals with the noise of all three workers, in one message of each."""
    if noise_draw is None and not isinstance(party, CostParty):
        raise ProtocolError("A release with noise wants what each worker drew. Received: nothing.")
    scales = release.totals.items()
    exact = [
        arithmetic.mul_public(totals[label], np.int64(1 << s.extra_bits)) for label, s in scales
    ]
    noised_words = noise.add_noise(
        party, replace(shapes.stack(exact, 0), fractional_bits=0), noise_draw
    )
    noised_totals = {}
    for i, (label, scale) in enumerate(scales):
        noised_totals[label] = noised_words.map(lambda a, i=i: a[i])
        if scale.extra_bits:
            short = replace(noised_totals[label], fractional_bits=scale.extra_bits)
            short = truncation.truncate(party, short, scale.extra_bits, "exact")
            noised_totals[label] = replace(short, fractional_bits=0)
    return noised_totals

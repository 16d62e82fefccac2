"""Releases with noise by the three workers: rows beyond a unit's contribution bound are dropped,
totals get noise.

A worker passes its draws to a graph as arguments: a cached graph contains no noise.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np

from tfe_bench.errors import ProtocolError
from tfe_bench.protocols.ring import arithmetic, relational, shapes, truncation
from tfe_bench.protocols.session.counting import CostParty
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared
from tfe_bench.protocols.tables import bits, noise
from tfe_bench.protocols.tables.keys import OrderKey
from tfe_bench.protocols.tables.relation import Column, Relation
from tfe_bench.protocols.tables.windows import WindowFunction, compute_windows
from tfe_bench.queries.division import compute_group_mean
from tfe_bench.queries.evaluate import ColumnValue, constant_truth_column, value_to_column
from tfe_bench.queries.privacy import (
    VALUES,
    Label,
    NoisyRelease,
    column_count_label,
    max_noised_count,
)
from tfe_bench.queries.relation_facts import Relation as Facts

# Noise of one worker: int64 [totals, groups].
NoiseDraw = Any
# Seconds per number, far more than a draw takes.
_SECONDS_PER_DRAW, _MIN_SECONDS = 5e-4, 0.02
# Bits by which a computed real may exceed the range of its type.
_SPARE = 20


def draw_dp_noise(
    release: NoisyRelease, groups: int, below: noise.RandomBelow = secrets.randbelow
) -> NoiseDraw:
    """Draw this worker's noise for the totals of a release, independently for each.

    The call takes a public time, as the duration of a draw would leak information about it.

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
    release: NoisyRelease,
    profile: str,
) -> tuple[Shared, dict[str, Column]]:
    """Enforce the contribution bound: drop further rows of a unit, and clip values to their
    ranges.

    A unit's first rows stay, so that rows of other units do not affect the choice.
    """
    columns = dict(named)
    if release.bounded_alias and release.max_unit_rows < input_facts.rows:
        names = list(columns)
        unit = names.index(input_facts.records[release.bounded_alias].unit)
        # any order is suitable: rows with equal keys keep their order
        same = Column(party.function(lambda v: constant_truth_column(v, False))(valid), 1)
        rows = Relation((*columns.values(), same), valid)
        place = [WindowFunction("row_number")]
        numbered = compute_windows(
            party, rows, [unit], [OrderKey(len(names))], place, profile=profile
        )

        def keep_first(valid: Shared, place: Shared) -> Shared:
            slack = arithmetic.add_constant(arithmetic.neg(place), np.int64(release.max_unit_rows))
            width = input_facts.rows.bit_length() + 2
            over = bits.from_masked(party, relational.is_negative(party, slack, width))
            return bits.all_of(party, [valid, bits.invert(over)])

        valid = party.function(keep_first)(numbered.valid, numbered.columns[-1].values)
        columns = dict(zip(names, numbered.columns, strict=False))
    for argument, total_kind in release.totals:
        # computed reals have an error of some ulp; whole numbers and decimals are exact
        if (
            total_kind == VALUES
            and argument is not None
            and input_facts.columns[argument].value_type.fraction
        ):
            kind = input_facts.columns[argument].value_type

            def clip_column(column: Column, highest: int = kind.high - kind.low) -> Column:
                return replace(column, values=_clip_contributions(party, column.values, 0, highest))

            columns[argument] = party.function(clip_column)(columns[argument])
    return valid, columns


def _clip_contributions(party: Party, x: Shared, low: int, high: int, width: int = 0) -> Shared:
    """Clip values to [low, high]; they are within 2^(width - 1) of both ends."""
    compared_bits = width or min(64, (high - low).bit_length() + _SPARE)
    ends = (np.full(x.shape.as_list(), end, np.int64) for end in (low, high))
    lower, upper = (arithmetic.share_public(x, end) for end in ends)
    clipped = relational.maximum(party, x, lower, compared_bits)
    return relational.minimum(party, clipped, upper, compared_bits)


def noised_aggregates(
    party: Party,
    aggregates: Sequence[Sequence[Any]],
    input_facts: Facts,
    output_facts: Facts,
    release: NoisyRelease,
    totals: Mapping[Label, Shared],
    noise: NoiseDraw | None,
) -> dict[str, Column]:
    """Compute aggregates from totals with noise; nothing else is released.

    Args:
        aggregates: name, function and column of each.
        input_facts, output_facts: facts about the input rows and the output.
        noise: noise that this worker drew.

    Raises:
        ProtocolError: this worker drew no noise.
    """
    noised_totals = _add_dp_noise(party, release, totals, noise)
    columns = {}
    for name, function, argument in aggregates:
        label = column_count_label(argument, input_facts.columns)
        if function == "count":
            data = noised_totals[label]
        elif function == "sum":
            data = noised_totals[argument, VALUES]
        else:
            kind = input_facts.columns[argument].value_type
            max_count = max_noised_count(release.totals[label], input_facts.rows)
            count = _clip_contributions(
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
            data = compute_group_mean(party, total, count, kind, max_count)
        columns[name] = value_to_column(ColumnValue(data, False, output_facts.columns[name]))
    return columns


def _comparison_width(release: NoisyRelease, label: Label, argument: str, about: Facts) -> int:
    """Return the bits of a comparison of a total with noise and the column's bounds
    times a count.
    """
    kind, scale = about.columns[argument].value_type, release.totals[argument, VALUES]
    furthest = kind.magnitude * (2 * about.rows + release.totals[label].tail) + scale.tail
    return min(64, furthest.bit_length() + 1)


def _add_dp_noise(
    party: Party,
    release: NoisyRelease,
    totals: Mapping[Label, Shared],
    noise_draw: NoiseDraw | None,
) -> dict[Label, Shared]:
    """Add the noise of all three workers to totals, in one message of each worker."""
    if noise_draw is None and not isinstance(party, CostParty):
        raise ProtocolError(
            "A release with noise requires each worker's draws. Received: nothing.",
            code="noise-missing",
        )
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

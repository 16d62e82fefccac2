"""Dates of private timestamps are exact on both sides of midnight, for every unit and range."""

from __future__ import annotations

import numpy as np
import pytest

from tfe_bench.cluster.simulate import simulate
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared
from tfe_bench.queries.days import timestamps_to_days
from tfe_bench.queries.types import TIMESTAMP, UNITS, ColumnType, units_per_day


@pytest.mark.parametrize(
    ("unit", "years"),
    [("us", 60), *(pytest.param(u, y, marks=pytest.mark.slow) for u in UNITS for y in (0, 1, 900))],
)
def test_dates_are_exact_around_midnight(unit: str, years: int, rng: np.random.Generator) -> None:
    day = units_per_day(unit)
    low = int(rng.integers(-years * 365 - 1, years * 365 + 1)) * day + int(rng.integers(day))
    high = low + years * 365 * day + day // 2
    days = rng.integers(low // day + 1, high // day + 1, 200) if years else np.array([high // day])
    edges = np.concatenate([days * day + step for step in (-1, 0, 1, day - 1)])
    inside = rng.integers(low, high, 200, endpoint=True)
    x = np.clip(np.concatenate([edges, inside, [low, high]]), low, high)
    kind = ColumnType(TIMESTAMP, low, high, unit=unit)

    def program(party: Party, x: Shared) -> Shared:
        result: Shared = party.function(
            lambda timestamps: timestamps_to_days(party, timestamps, kind)
        )(x)
        return result

    done = simulate(program, x)
    np.testing.assert_array_equal(done.value(lambda out: out), x // day)

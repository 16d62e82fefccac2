"""Every decision about random programs on stored items equals that of a simple oracle."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.edges import parametrize_daily
from tests.models.random_programs import PROGRAMS, skip_computation
from tests.models.random_rights import World
from tfe_bench.arrays.programs import compute

# Programs of one world, and of all: a few hundred daily, 20,000 with -m slow.
_EACH, _WORLDS, _DAILY = 400, 50, 1


@parametrize_daily("number", range(_WORLDS), range(_DAILY))
def test_decisions_are_those_of_the_documented_rules(
    number: int, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compute, "run_recorded", skip_computation)
    drawn = 1000 * seed + number
    world = World(tmp_path, drawn)
    wrong: list[str] = []
    for _ in range(_EACH):
        wrong += filter(None, [world.run_step(PROGRAMS), world.check_listing()])
    world.store.close()
    assert not wrong, f"world {drawn}: {len(wrong)} of {_EACH}, the first: {wrong[0]}"
    # a generator whose programs are always refused, or never, would test nothing
    for name in ("compute", "query"):
        assert min(world.said[name, fits] for fits in (True, False)) > 10, world.said

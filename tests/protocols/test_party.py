"""A graph call always ends: no party waits forever, whatever the others do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tfe_bench.cluster.simulate import Simulation, simulate
from tfe_bench.errors import TfeBenchError
from tfe_bench.protocols.order import sort
from tfe_bench.protocols.ring import arithmetic, compare
from tfe_bench.protocols.session.party import Party

PATIENCE = 10.0  # seconds; the tested simulations take less than one


def in_time(program: Callable[..., Any], *inputs: Any, **options: Any) -> Simulation:
    """Simulate; raise TimeoutError if it does not end."""
    return simulate(program, *inputs, timeout=PATIENCE, **options)


def test_a_party_that_retraces_alone_is_refused_and_nobody_hangs() -> None:
    def program(party: Party, x: Any) -> Any:
        square = party.function(lambda x: arithmetic.mul(party, x, x))
        square(x)
        return square(x.map(lambda a: a[:3]) if party.index == 0 else x)

    with pytest.raises(TfeBenchError):
        in_time(program, np.arange(5))


def test_a_kernel_that_fails_ends_the_call_though_messages_are_awaited() -> None:
    def program(party: Party, x: Any) -> Any:
        beyond, recipe = np.array([7], np.int32), compare.plan_comparison(64, 2)
        graph = party.function(lambda x, a, b: sort.compare_pairs(party, [x], a, b, recipe, [0], 1))
        return graph(compare.masked_value_or_mask_words(party, x), beyond, beyond)

    with pytest.raises(TfeBenchError):
        in_time(program, np.arange(5))


def test_keys_outside_the_promised_range_end_in_a_result_or_an_error(
    rng: np.random.Generator,
) -> None:
    info = np.iinfo(np.int64)
    keys = rng.integers(info.min, info.max, 1002, np.int64, endpoint=True)
    try:
        sim = in_time(lambda p, x: sort.sort(p, x, algorithm="quick", full_range=False), keys)
    except TfeBenchError:
        return
    assert np.array_equal(np.sort(sim.value(lambda out: out.keys)), np.sort(keys))

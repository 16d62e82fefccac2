"""Generated keys: a seed and a kind determine them."""

from __future__ import annotations

import numpy as np
import pytest

from tests.refusals import raises
from tfe_bench.benchmarks import keys
from tfe_bench.benchmarks.keys import generate_sort_keys
from tfe_bench.errors import UsageError


@pytest.mark.parametrize("kind", keys.KINDS)
def test_generated_keys_follow_their_seed(kind: str) -> None:
    assert np.array_equal(generate_sort_keys(100, 5, kind), generate_sort_keys(100, 5, kind))
    assert not np.array_equal(generate_sort_keys(100, 5, kind), generate_sort_keys(100, 6, kind))
    assert generate_sort_keys(0, 5, kind).shape == (0,)


def test_generated_kinds_are_what_they_say() -> None:
    seed = 11
    print("seed", seed)
    keys = generate_sort_keys(4096, seed)
    assert keys.dtype == np.int64
    assert keys.min() < -(2**62) and keys.max() > 2**62
    few = generate_sort_keys(4096, seed, "few")
    assert few.dtype == np.int64 and set(few.tolist()) == set(range(10))
    reals = generate_sort_keys(4096, seed, "float")
    assert reals.dtype == np.float64 and -1000 <= reals.min() < -900 < 900 < reals.max() <= 1000
    assert np.array_equal(generate_sort_keys(4096, seed, "sorted"), np.sort(keys))
    assert np.array_equal(generate_sort_keys(4096, seed, "reversed"), np.sort(keys)[::-1])


def test_other_kinds_and_negative_counts_are_usage_errors() -> None:
    with raises(UsageError, "unknown-name", received="reverse") as caught:
        generate_sort_keys(1, 0, "reverse")
    assert '"reversed"' in str(caught.value)
    for n, seed in ((-1, 0), (1, -1)):
        with pytest.raises(UsageError):
            generate_sort_keys(n, seed)

"""What all tests share: a seed that is printed and can be replayed."""

from __future__ import annotations

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import pytest


@pytest.fixture
def seed() -> int:
    """Fresh, or TFE_BENCH_TEST_SEED to replay a failure."""
    given = os.environ.get("TFE_BENCH_TEST_SEED")
    value = int(given) if given else int.from_bytes(os.urandom(4), "little")
    print(f"seed={value}")
    return value


@pytest.fixture
def rng(seed: int) -> np.random.Generator:
    """A generator from `seed`."""
    return np.random.default_rng(seed)

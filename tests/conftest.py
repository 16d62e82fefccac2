"""What all tests share: a seed that is printed and can be replayed."""

from __future__ import annotations

import os
import signal

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import pytest

# A shell's background job ignores Ctrl-C, and so would every process that tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


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

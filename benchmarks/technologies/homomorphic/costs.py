"""Costs of each CKKS operation at each level, measured on this machine."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from tfe_bench.benchmarks.technologies.homomorphic import timing
from tfe_bench.benchmarks.technologies.homomorphic.parameters import Parameters
from tfe_bench.benchmarks.technologies.homomorphic.parties import Client, Server, Setting
from tfe_bench.errors import check_range

OPERATIONS: Final = (
    *("add", "add_plain", "multiply", "multiply_plain", "square"),
    *("relinearize", "rotate", "rescale"),
)
_BUDGET: Final = 0.06  # seconds an operation and level
_REPEAT: Final = 9
_SCALE_BITS: Final = 12  # so small that a product fits one prime


def cost_table(degree: int = 16384, levels: int = 8) -> Mapping[str, Sequence[float]]:
    """Measure seconds of each operation of `OPERATIONS`: entry l - 1 at a level of l primes.

    Medians on one thread.  Rescaling removes a prime: its first entry is NaN.

    Args:
        degree: N.
        levels: primes of a fresh ciphertext, with one more for key switching.

    Raises:
        ConfigError: the library is not installed.
        UsageError, SecurityError: no such parameters have 128 bits of security.
    """
    check_range("The levels", levels, 1, 32)
    bits = min(40, 438 * degree // 16384 // (levels + 1))
    setting = Setting(Parameters("CKKS", degree, (bits,) * (levels + 1), _SCALE_BITS))
    client = Client(setting)
    server = Server(setting, client.evaluation_keys((1,), relinearization=True))
    values = np.random.default_rng(0).uniform(-1, 1, setting.parameters.slots)
    times: dict[str, list[float]] = {name: [] for name in OPERATIONS}
    fresh = client.encrypt(values)
    for level in range(1, levels + 1):
        x = server.lower_level(fresh, level)
        plain = setting.encode_values(values, setting.scale, level)
        for name, operation in _list_operations(setting, server, x.handle, plain).items():
            if name == "rescale" and level == 1:
                times[name].append(math.nan)
                continue
            times[name].append(timing.time_ciphertext_operation(operation, _REPEAT, _BUDGET).median)
    return times


def _list_operations(
    setting: Setting, server: Server, x: Any, plain: Any
) -> Mapping[str, Callable[[], Any]]:
    """List the library's operations on a ciphertext, without the checks of `Server`."""
    evaluator = setting.seal.Evaluator(setting.context)
    keys = server.keys
    squared = evaluator.square(x)
    # a scale that is large enough for the division
    scaled = evaluator.add(x, x)
    scaled.scale(2.0**50)
    return {
        "add": lambda: evaluator.add(x, x),
        "add_plain": lambda: evaluator.add_plain(x, plain),
        "multiply": lambda: evaluator.multiply(x, x),
        "multiply_plain": lambda: evaluator.multiply_plain(x, plain),
        "square": lambda: evaluator.square(x),
        "relinearize": lambda: evaluator.relinearize(squared, keys.relinearization),
        "rotate": lambda: evaluator.rotate_vector(x, 1, keys.rotation),
        "rescale": lambda: evaluator.rescale_to_next(scaled),
    }

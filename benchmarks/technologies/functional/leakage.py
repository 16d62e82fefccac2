"""Leakage from function keys: inner products are linear, so enough of them determine the input.

A key for y reveals <x, y>.  In any scheme, keys of rank r determine x up to a space of dimension
length - r; at r = length they reveal x.  The attack solves a least-squares problem and breaks no
key.  (The least-norm solution is the guess of an observer without other knowledge; pictures leak
more than it shows.)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tfe_bench.benchmarks.technologies.functional.convolution import Reals
from tfe_bench.benchmarks.technologies.functional.curve import Numbers, Rows
from tfe_bench.errors import PolicyError


@dataclass(frozen=True)
class Leakage:
    """Leakage of a set of keys applied to one ciphertext.

    Attributes:
        rank: the rank of the keys' weights.
        length: the number of values in a message.
        exact: the fraction of values that least squares recovers exactly after rounding; None if
            no message was attacked.
    """

    rank: int
    length: int
    exact: float | None = None

    @property
    def part(self) -> float:
        """The ratio rank / length; 1 means that nothing is private."""
        return self.rank / self.length

    def __str__(self) -> str:
        text = f"key rank {self.rank} of {self.length}"
        return f"{text}: the inputs themselves" if self.rank >= self.length else text


def compute_leakage_rank(rows: Rows) -> int:
    """Return the dimension that keys for `rows` reveal of messages of `rows.columns` numbers."""
    return int(np.linalg.matrix_rank(rows.to_dense().astype(np.float64)))


def reconstruct_messages(rows: Rows, results: Numbers) -> Reals:
    """Return the least-norm messages for results [batch, rows]: float64 [batch, columns]."""
    matrix = rows.to_dense().astype(np.float64)
    solution = np.linalg.lstsq(matrix, results.T.astype(np.float64), rcond=None)[0]
    return np.asarray(solution.T, np.float64)


def recovered_value_fraction(reconstructed: Reals, messages: Numbers) -> float:
    """Return the fraction of values that are right after rounding."""
    return float((np.rint(reconstructed) == messages).mean())


def check_leakage(key_leakage: Leakage, allowed: bool) -> None:
    """Reject keys that reveal the whole message, unless `allowed` is set.

    Raises:
        PolicyError: the keys have full rank.
    """
    if key_leakage.rank >= key_leakage.length and not allowed:
        raise PolicyError(
            f"These keys reveal the inputs: expected a rank below {key_leakage.length}, as an "
            f"input has {key_leakage.length} numbers. Received: keys of rank {key_leakage.rank}. "
            "Their holder recovers the inputs by solving linear equations. Derive fewer keys, or "
            "measure them nevertheless with --allow-leakage.",
            code="keys-reveal-inputs",
            received=key_leakage.rank,
            expected=f"below {key_leakage.length}",
        )

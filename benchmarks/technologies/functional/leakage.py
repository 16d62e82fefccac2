"""What a server learns that holds keys: the inner products are linear, so enough of them are all.

A key for y shows <x, y>.  Keys of rank r show x but for a space of dimension length - r, whatever
the scheme; at r = length they show x.  The attack is least squares, nothing else: no key is
broken.  (The least-norm solution stands for what an observer without other knowledge would guess;
pictures give away more than it shows.)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tfe_bench.benchmarks.technologies.functional.convolution import Reals
from tfe_bench.benchmarks.technologies.functional.curve import Numbers, Rows
from tfe_bench.errors import PolicyError


@dataclass(frozen=True)
class Leakage:
    """Of keys on a ciphertext.

    Attributes:
        rank: of the keys.
        length: of the message.
        exact: part of the values that least squares gives exactly, after rounding; None where no
            message was attacked.
    """

    rank: int
    length: int
    exact: float | None = None

    @property
    def part(self) -> float:
        """rank / length, 1 where nothing is private."""
        return self.rank / self.length

    def __str__(self) -> str:
        said = f"key rank {self.rank} of {self.length}"
        return f"{said}: the inputs themselves" if self.rank >= self.length else said


def compute_rank(rows: Rows) -> int:
    """The dimension of what keys for these rows show, of messages of `rows.columns` numbers."""
    return int(np.linalg.matrix_rank(rows.to_dense().astype(np.float64)))


def reconstruct_messages(rows: Rows, results: Numbers) -> Reals:
    """The least-norm messages that explain results [batch, rows]: float64 [batch, columns]."""
    matrix = rows.to_dense().astype(np.float64)
    found = np.linalg.lstsq(matrix, results.T.astype(np.float64), rcond=None)[0]
    return np.asarray(found.T, np.float64)


def count_exact(found: Reals, messages: Numbers) -> float:
    """The part of the values that are right after rounding."""
    return float((np.rint(found) == messages).mean())


def check_leakage(found: Leakage, allowed: bool) -> None:
    """Refuses keys that show the whole message, unless that is wanted.

    Raises:
        PolicyError: naming the rank.
    """
    if found.rank >= found.length and not allowed:
        raise PolicyError(
            f"These keys show the inputs themselves: their rank is {found.rank}, and an input has "
            f"{found.length} numbers. Whoever holds them solves linear equations and needs no "
            "decryption of anything else. Derive fewer keys, or measure it all the same with "
            "--allow-leakage."
        )

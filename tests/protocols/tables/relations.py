"""Plain tables, shared and revealed again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tfe_bench.cluster.simulate import Simulation
from tfe_bench.protocols.session.sharing import Shared
from tfe_bench.protocols.tables.relation import ANY_BITS, Column, Relation

Array = np.ndarray[Any, Any]
INT64 = np.iinfo(np.int64)


def as_bit(x: Shared) -> Shared:
    """Return 0 and 1 as a value of Z_2."""
    return replace(x, bits=1)


@dataclass(frozen=True)
class Table:
    """A table with a key of 3 bits, a number, a nullable number, and a unique key of 5 bits.

    Invalid rows and NULL values contain arbitrary words.
    """

    key: Array
    value: Array
    maybe: Array
    null: Array
    unique: Array
    valid: Array

    @property
    def arrays(self) -> tuple[Array, ...]:
        return (self.key, self.value, self.maybe, self.null, self.unique, self.valid)

    @property
    def rows(self) -> list[tuple[Any, ...]]:
        """Valid rows (key, value, maybe, unique)."""
        maybe = [None if n else int(m) for m, n in zip(self.maybe, self.null, strict=True)]
        every = zip(self.key, self.value, maybe, self.unique, self.valid, strict=True)
        return [(int(k), int(v), m, int(u)) for k, v, m, u, ok in every if ok]


def relation_of(parts: Sequence[Shared]) -> Relation:
    """Return the relation with columns key, value, maybe, unique."""
    key, value, maybe, null, unique, valid = parts
    columns = (
        Column(key, 3),
        Column(value),
        Column(maybe, ANY_BITS, as_bit(null)),
        Column(unique, 5),
    )
    return Relation(columns, as_bit(valid))


def draw_tables(n: int, rng: np.random.Generator) -> Iterator[Table]:
    """Yield tables: random, equal and distinct keys; extreme numbers; no valid row."""
    for kind in ("random", "equal", "distinct", "extreme", "none", "all"):
        key = {"equal": np.full(n, 5), "distinct": rng.permutation(8)[np.arange(n) % 8]}.get(
            kind, rng.integers(0, 4, n)
        )
        value, maybe = rng.integers(-20, 20, (2, n))
        if kind == "extreme":
            value = rng.choice([INT64.min, INT64.max, 0, -1], n)
            maybe = rng.choice([INT64.min, INT64.max], n)
        valid = {"none": np.zeros(n, np.int64), "all": np.ones(n, np.int64)}.get(
            kind, rng.integers(0, 4, n) > 0
        )
        null = rng.integers(0, 2, n)
        unique = rng.permutation(32)[:n]
        anything = rng.integers(INT64.min, INT64.max, (4, n), endpoint=True)
        key, value, unique = (
            np.where(valid, x, a) for x, a in zip((key, value, unique), anything, strict=False)
        )
        maybe = np.where((valid == 1) & (null == 0), maybe, anything[3])
        yield Table(key, value, maybe, null, unique, valid.astype(np.int64))


def parts_of(relation: Relation) -> list[list[Shared]]:
    """Return a relation as outputs of a program: the parts of each column, the validity last."""
    return [[*(list(c.parts) for c in relation.columns)], [relation.valid]]  # type: ignore[list-item]


def delivered_rows(sim: Simulation, pick: Any, kept: bool = True) -> list[tuple[Any, ...]]:
    """Return the valid rows of `parts_of`, None for NULL.

    Args:
        kept: whether invalid rows must be 0 throughout.
    """
    columns, _ = pick(sim.outputs[0])
    column_values = []
    for i, parts in enumerate(columns):
        values = [
            sim.value(lambda out, i=i, j=j: pick(out)[0][i][j])  # type: ignore[misc]
            for j in range(len(parts))
        ]
        column_values.append(values)
    valid = sim.value(lambda out: pick(out)[1][0]).astype(int)
    rows = []
    for row in range(len(valid)):
        if not valid[row]:
            assert not kept or not any(int(v[row]) for values in column_values for v in values)
            continue
        rows.append(
            tuple(None if len(v) == 2 and int(v[1][row]) else int(v[0][row]) for v in column_values)
        )
        for v in column_values:  # NULL values must be 0
            assert len(v) == 1 or not int(v[1][row]) or int(v[0][row]) == 0
    return rows


def wrap_sum(total: int) -> int:
    """Return a sum modulo 2^64, signed."""
    return (total + 2**63) % 2**64 - 2**63


def rank_rows(rows: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Return rows in ascending order, None last."""
    return sorted(rows, key=lambda row: tuple((v is None, v or 0) for v in row))

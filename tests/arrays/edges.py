"""Operands at the edges of operations' ranges, and their expected results.

A case runs on rows: each row is one combination of operands. Violations are counted for each row
separately here, so that one job shows for every row whether it would be refused.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.arrays.simulated import Client, tfb
from tfe_bench.arrays import planning
from tfe_bench.arrays.array import PrivateArray
from tfe_bench.arrays.array_spec import BITS, FIXED
from tfe_bench.arrays.bounds import MAX_MAGNITUDE
from tfe_bench.errors import RangeError

F = 16
ULP = 2.0**-F
Real = np.longdouble
Rng = np.random.Generator
MOST_PAIRS = 160


@dataclass(frozen=True)
class Case:
    """An operation on private operands, each of shape [rows, ...].

    Attributes:
        private: computes the result, of shape [rows, ...].
        plain: the same for NumPy arrays of long doubles or int64.
        kinds: "f", "i" or "b" for each operand.
        off: largest error, by the plain result and operands, in real numbers.
        shape: shape of an operand of one row.
    """

    private: Callable[..., Any]
    plain: Callable[..., Any]
    kinds: str = "f"
    off: Callable[..., Any] = lambda p, *x: 0
    shape: tuple[int, ...] = ()


def relative_error(relative: float, ulps: float) -> Callable[..., Any]:
    """Return a bound of a relative error and ulps."""
    return lambda p, *x: np.abs(p) * relative + ulps * ULP


@dataclass(frozen=True)
class Report:
    """Outcomes of the rows of a case."""

    right: int
    refused: int
    wrong: list[str]


def edge_values(bounds: tuple[int, int], kind: str, more: Sequence[int]) -> list[int]:
    """Return ring elements at the edges of bounds and guards, and at magnitudes from
    1e-3 to 1e9.
    """
    low, high = bounds
    unit = 1 if kind == "i" else 1 << F
    sizes = [0, 1, round(unit / 1000), unit, 1000 * unit, 10**6 * unit, 10**9 * unit, unit + 1]
    values = {low, low + 1, high, high - 1}
    values |= {sign * size for size in sizes for sign in (1, -1)}
    values |= {each + step for each in more for step in (-1, 0, 1)}
    return sorted(v for v in values if low <= v <= high)


def make_operand(client: Client, ring: Any, kind: str, bounds: tuple[int, int]) -> PrivateArray:
    """Make a private array of exactly these ring elements, of which only the bounds are known."""
    if kind == "b":
        return ~~client.private(ring != 0)
    x = client.private(ring, bound=(int(bounds[0]), int(bounds[1])))
    return tfb.bitcast(x, F if kind == "f" else 0)  # type: ignore[no-any-return]


def plain_of(ring: Any, kind: str) -> Any:
    if kind == "b":
        return ring != 0
    return ring.astype(Real) / (1 << F) if kind == "f" else ring


def counts_of(result: PrivateArray) -> list[PrivateArray]:
    """Return the violation counts of a value."""
    several = planning.collect_guards([result._node], {})
    return [PrivateArray(result.cluster, n) for nodes in several.values() for n in nodes]


def _clear_words(x: Any) -> Any:
    return tfb.bitcast(x, 0) if x.kind == FIXED else x


def _count_violations(count: PrivateArray, words: Sequence[Any]) -> Any:
    """Count the violations at each place from the operands' words, modulo 2^64 as
    the workers do.
    """
    named, op = count._node.named, count._node.op
    with np.errstate(over="ignore"):
        if op == "count_outside":
            x, low, high = words[0], named.get("low"), named.get("high")
            counts = np.zeros(x.shape, np.int64) if low is None else (x - np.int64(low) < 0) * 1
            return counts if high is None else counts + (np.int64(high) - x < 0)
        if op == "count_zeros":
            return (words[0] == 0) * 1
        assert op == "count_steep"
        x, y = (np.abs(w) for w in words)
        drop = named.get("drop", 0)
        return ((y << np.int64(named["bits"] - drop)) - (x >> np.int64(drop)) - 1 < 0) * 1


def _is_inside(count: PrivateArray, words: Sequence[Any]) -> Any:
    """Return where a count's operands are in its own range; elsewhere another count
    must report.
    """
    if count._node.op != "count_steep":
        return np.True_
    named, (x, y) = count._node.named, (np.abs(w.astype(Real)) for w in words)
    rest = named["bits"] - named.get("drop", 0)
    return (x < 2**61) & (y * Real(2) ** rest < Real(2) ** 61)


def _guard_limits(counts: Sequence[PrivateArray]) -> tuple[list[int], list[int]]:
    """Return the limits of guards, and the bits of quotients."""
    ends, bits = [], []
    for count in counts:
        named = count._node.named
        ends += [v for k, v in named.items() if k in ("low", "high") and v is not None]
        bits += [named["bits"]] if "bits" in named else []
    return ends, bits


def _combine_choices(
    choices: Sequence[list[int]], quotients: Sequence[int], low: int, high: int, rng: Rng
) -> list[tuple[int, ...]]:
    """Combine elements of all operands, and numerators at the edge of a quotient's bits."""
    pairs = list(itertools.product(*choices))
    if len(pairs) > MOST_PAIRS:
        pairs = [pairs[i] for i in rng.choice(len(pairs), MOST_PAIRS, replace=False)]
    for y, bits in itertools.product(choices[-1] if len(choices) == 2 else (), quotients):
        at = [sign * ((abs(y) << bits) + step) for sign in (1, -1) for step in (-1, 0, 1)]
        pairs += [(x, y) for x in at if low <= x <= high]
    return pairs


def _choice_patterns(
    case: Case, choices: Sequence[list[int]], bounds: Sequence[tuple[int, int]], rng: Rng
) -> list[list[Any]]:
    """Return rows of edges: equal ones, both signs, one among zeros, mixed, one magnitude."""
    size, patterns = math.prod(case.shape), []
    units = [0 if kind == "i" else F for kind in case.kinds]
    largest = [max(c, key=abs) for c in choices]
    usual = [min(c, key=lambda v: abs(abs(v) - (1 << F))) for c in choices]
    for i, several in enumerate(choices):
        for fillers in (largest, usual):
            other = [np.full(size, v, object) for v in fillers]
            patterns += [[*other[:i], np.full(size, v, object), *other[i + 1 :]] for v in several]
    for v in {v for several in choices for v in several}:
        for row in (np.where(np.arange(size) % 2, 1, -1), np.arange(size) == size // 2):
            patterns.append([np.clip(v * row.astype(object), *b) for b in bounds])
    for _ in range(12):
        patterns.append([rng.choice(np.array(c, object), size) for c in choices])
    for _ in range(4):
        size_of = 10 ** rng.uniform(-3, 9)
        reals = [np.rint(rng.uniform(-1, 1, size) * size_of * 2.0**unit) for unit in units]
        rings = [v.astype(np.int64).astype(object) for v in reals]
        patterns.append([np.clip(v, *b) for v, b in zip(rings, bounds, strict=True)])
    return patterns


def rows_of(
    case: Case, client: Client, bounds: Sequence[tuple[int, int]], rng: Rng
) -> list[np.ndarray[Any, Any]]:
    """Return operands' ring elements, one combination in each row."""
    both = list(zip(case.kinds, bounds, strict=True))
    probe = [make_operand(client, np.full((2, *case.shape), b[0]), k, b) for k, b in both]
    ends, quotients = _guard_limits(counts_of(case.private(*probe)))
    choices = [[0, 1] if k == "b" else edge_values(b, k, ends) for k, b in both]
    if case.shape:
        rows: list[Any] = _choice_patterns(case, choices, bounds, rng)
    else:
        rows = _combine_choices(choices, quotients, *bounds[0], rng)
    return [
        np.array([row[i] for row in rows]).astype(np.int64).reshape(-1, *case.shape)
        for i in range(len(choices))
    ]


def walk_case(case: Case, client: Client, bounds: Sequence[tuple[int, int]], rng: Rng) -> Report:
    """Run a case at all combinations of edges of operands with these bounds."""
    try:
        rings = rows_of(case, client, bounds, rng)
        operands = [
            make_operand(client, r, k, b) for r, k, b in zip(rings, case.kinds, bounds, strict=True)
        ]
        result = case.private(*operands)
    except RangeError:
        return Report(0, 1, [])  # (a public operand, or bounds only)
    counts = counts_of(result)
    looked = [
        [
            _clear_words(PrivateArray(result.cluster, n)) if hasattr(n, "spec") else n
            for n in c._node.args
        ]
        for c in counts
    ]
    private_counts = [w for several in looked for w in several if isinstance(w, PrivateArray)]
    main = result if result.kind == BITS else _clear_words(result)
    revealed, *rest = client.reveal(main, *counts, *private_counts, check=False)
    numbers, words = rest[: len(counts)], iter(rest[len(counts) :])
    rows = rings[0].shape[0]
    refused = np.zeros(rows, bool)
    for count, number, several in zip(counts, numbers, looked, strict=True):
        scale = next(n.spec.scale for n in count._node.args if hasattr(n, "spec"))
        own = [
            next(words)
            if isinstance(w, PrivateArray)
            else np.asarray(np.rint(np.multiply(w, 1 << scale)), np.int64)
            for w in several
        ]
        violated, inside = np.broadcast_arrays(
            _count_violations(count, own), _is_inside(count, own)
        )
        bad = violated > 0
        least, most = (bad & inside).sum(), violated[inside].sum() + (~inside).sum()
        about = (count._node.op, dict(count._node.named), int(number), int(least), int(most))
        assert least <= int(number) <= most, about
        assert int(number) == most or not inside.all(), about
        bad = bad & inside
        if bad.ndim and bad.shape[0] == rows:
            refused |= bad.reshape(rows, -1).any(1)
        else:
            refused |= bool(bad.any())
    operands_ = [plain_of(r, k) for r, k in zip(rings, case.kinds, strict=True)]
    with np.errstate(all="ignore"):
        plain = case.plain(*operands_)
        if result.kind == FIXED:
            actual = np.asarray(revealed).astype(Real) / (1 << result.fractional_bits)
            plain = np.asarray(plain, Real)
            extra = [x.astype(Real) for x in operands_]
            off = case.off(plain, *extra) + np.abs(plain) * Real(2.0) ** -61
            good = (np.abs(actual - plain) <= off) & np.isfinite(plain)
        else:
            actual, plain = np.asarray(revealed), np.asarray(plain)
            if plain.dtype.kind == "f":
                good = (actual.astype(Real) == plain) & np.isfinite(plain)
            else:
                good = actual == plain
    good = np.broadcast_to(good, actual.shape)
    right = good.reshape(rows, -1).all(1)
    expected, wrong = np.broadcast_to(plain, actual.shape), []
    for i in np.nonzero(~right & ~refused)[0]:
        given_, got, due = (
            [np.asarray(v[i]).reshape(-1)[:4].astype(float) for v in several]
            for several in (operands_, [actual], [expected])
        )
        wrong.append(f"{given_}: {got}, not {due}")
    return Report(int((right & ~refused).sum()), int(refused.sum()), wrong)


# Public bounds of operands in ring units: default ones, declared ones, and the widest.
RANGES: Mapping[str, list[tuple[int, int]]] = {
    "b": [(0, 1)],
    "i": [
        *((-(1 << 40), 1 << 40), (-1000, 1000), (0, 10**9)),
        *((-(1 << 62), 1 << 62), (-(1 << 63), (1 << 63) - 1)),
    ],
    "f": [
        *((-(1 << 36), 1 << 36), (-(1 << F), 1 << F), (1, 1000 << F)),
        *(
            (-(10**6 << F), 10**6 << F),
            (-(10**9 << F), 10**9 << F),
            (-MAX_MAGNITUDE, MAX_MAGNITUDE),
        ),
    ],
}


def bounds_of(kinds: str) -> list[list[tuple[int, int]]]:
    """Return combinations of bounds of operands: equal ones, and near ones with far ones."""
    each = [RANGES[kind] for kind in kinds]
    if len(each) == 1:
        return [[bounds] for bounds in each[0]]
    x, y = each
    places = [(i, min(i, len(y) - 1)) for i in range(len(x))]
    places += [(0, len(y) - 1), (len(x) - 1, 0), (len(x) - 1, min(1, len(y) - 1))]
    return [[x[i], y[j]] for i, j in dict.fromkeys(places)]

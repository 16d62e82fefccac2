"""Random expressions at random magnitudes: within the stated error of NumPy, or refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from tests.arrays.simulated import Client, Workers, tfb
from tfe_bench.errors import RangeError

ULP, N = 2.0**-16, 6


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    workers = Workers(tmp_path_factory.mktemp("amounts"))
    yield Client(workers, "ann")
    workers.close()


@dataclass
class Value:
    """An expression, its plaintext value, and its largest error."""

    private: Any
    plain: Any
    error: Any


def _draw_leaf(client: Client, rng: np.random.Generator) -> Value:
    size = 10 ** rng.uniform(-3, 7)
    x = rng.uniform(-size, size, N)
    if rng.random() < 0.5:
        x = np.abs(x) + size / 10
    bound = None if size < 2**19 and rng.random() < 0.7 else 2.0 * size
    plain = np.rint(x / ULP) * ULP
    return Value(client.private(x, bound=bound), plain, np.zeros(N))


def _change_within(f: Callable[[Any], Any], x: Value, low: float) -> Any:
    """Return the change of an increasing function within the error of its operand."""
    return f(x.plain + x.error) - f(np.maximum(x.plain - x.error, low))


def _add(x: Value, y: Value) -> Value:
    return Value(x.private + y.private, x.plain + y.plain, x.error + y.error)


def _sub(x: Value, y: Value) -> Value:
    return Value(x.private - y.private, x.plain - y.plain, x.error + y.error)


def _mul(x: Value, y: Value) -> Value:
    error = np.abs(x.plain) * y.error + np.abs(y.plain) * x.error + x.error * y.error + 3 * ULP
    return Value(x.private * y.private, x.plain * y.plain, error)


def _div(x: Value, y: Value) -> Value:
    with np.errstate(all="ignore"):
        q = x.plain / y.plain
        room = np.abs(y.plain) - y.error
        error = (x.error + np.abs(q) * y.error) / room + np.abs(q) * 2.0**-19 + 3 * ULP
        return Value(x.private / y.private, q, np.where(room > 0, error, np.inf))


def _scale(x: Value, factor: float) -> Value:
    error = np.abs(x.error * factor) + np.abs(x.plain * factor) * 2.0**-23 + 3 * ULP
    error = error + np.abs(x.plain) * 2.0**-41
    return Value(x.private * factor, x.plain * factor, error)


def _square(x: Value) -> Value:
    product = _mul(x, x)
    return Value(x.private**2, product.plain, product.error)


def _mean(x: Value) -> Value:
    return Value(x.private.mean(), x.plain.mean(), x.error.mean() + 4 * ULP)


def _std(x: Value) -> Value:
    s = x.plain.std()
    return Value(x.private.std(), s, 2 * x.error.max() + s * 2.0**-18 + 8 * ULP)


def _var(x: Value) -> Value:
    s, e = x.plain.std(), 2 * x.error.max() + 4 * ULP
    return Value(x.private.var(), s**2, 2 * s * e + e * e + s**2 * 2.0**-19 + 4 * ULP)


def _norm(x: Value) -> Value:
    n = np.linalg.norm(x.plain)
    return Value(np.linalg.norm(x.private), n, np.linalg.norm(x.error) + n * 2.0**-18 + 4 * ULP)


def _dot(x: Value, y: Value) -> Value:
    terms = np.abs(x.plain) * y.error + np.abs(y.plain) * x.error + x.error * y.error
    return Value(x.private @ y.private, x.plain @ y.plain, terms.sum() + 3 * ULP)


def _sqrt(x: Value) -> Value:
    p = np.abs(x.plain)
    of = Value(abs(x.private), p, x.error)
    error = _change_within(np.sqrt, of, 0.0) + np.sqrt(p) * 2.0**-19 + 3 * ULP
    return Value(np.sqrt(of.private), np.sqrt(p), error)


def _log(x: Value) -> Value:
    p = np.abs(x.plain) + 1
    of = Value(abs(x.private) + 1.0, p, x.error)
    return Value(
        np.log(of.private), np.log(p), _change_within(np.log, of, 0.5) + 2.0**-17 + 4 * ULP
    )


def _relu(x: Value) -> Value:
    return Value(tfb.relu(x.private), np.maximum(x.plain, 0), x.error)


def _sum(x: Value) -> Value:
    return Value(x.private.sum(), x.plain.sum(), x.error.sum())


PAIRS = (_add, _sub, _mul, _div)
ONES = (_square, _sqrt, _log, _relu)
ENDS = (_mean, _std, _var, _norm, _sum)


def _draw_expression(client: Client, rng: np.random.Generator) -> Value:
    leaves = [_draw_leaf(client, rng) for _ in range(2)]
    now = leaves[0]
    for _ in range(int(rng.integers(1, 4))):
        kind = rng.random()
        other = leaves[int(rng.integers(2))]
        if kind < 0.5:
            now = PAIRS[rng.integers(len(PAIRS))](now, other)
        elif kind < 0.7:
            now = ONES[rng.integers(len(ONES))](now)
        elif kind < 0.8:
            now = _scale(now, 10 ** rng.uniform(-3, 4))
        elif kind < 0.9:
            now = PAIRS[rng.integers(len(PAIRS))](other, ENDS[rng.integers(3)](now))
        else:
            now = _dot(now, other) if rng.random() < 0.5 else ENDS[rng.integers(5)](now)
            break
    return now


def _try_expression(client: Client, seed: int) -> bool:
    """Return whether an expression was correct; False: it was refused."""
    rng = np.random.default_rng(seed)
    try:
        expression = _draw_expression(client, rng)
        result = expression.private.reveal()
    except RangeError as error:
        assert "bound" in str(error)
        return False
    off = np.abs(result - expression.plain) - expression.error
    assert np.all(off <= np.abs(expression.plain) * 2.0**-40), (
        seed,
        result,
        expression.plain,
        expression.error,
    )
    return True


def _try_several(client: Client, seed: int, count: int) -> int:
    print(f"seed={seed}")
    return sum(_try_expression(client, seed + i) for i in range(count))


def test_random_expressions_are_right_or_refused(client: Client, seed: int) -> None:
    assert _try_several(client, seed, 2) >= 0


@pytest.mark.slow
def test_many_random_expressions_are_right_or_refused(client: Client, seed: int) -> None:
    assert _try_several(client, seed, 80) > 30

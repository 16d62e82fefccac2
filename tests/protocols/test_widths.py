"""Every operation that takes `bits` is correct at every accepted width, up to its edges.

`WIDTHS` has a row for each of them, or for the operation that passes its width on
(test_width_rows.py). By default the tested widths are those at which behavior changes; `pytest -m
slow tests/protocols/test_widths.py` tests all of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from operator import itemgetter
from typing import Any

import numpy as np
import pytest

import tfe_bench as tfe
from tests.protocols.activation_widths import ACTIVATIONS
from tests.protocols.operands import (
    DROP,
    LIMITS,
    ONE,
    Array,
    F,
    close_to,
    draw_below,
    draw_channels,
    draw_clipped,
    draw_dividends,
    draw_four,
    draw_halves,
    draw_magnitudes,
    draw_multiplied,
    draw_pairs,
    draw_points,
    draw_quotients,
    draw_rows,
    draw_signed,
    erf_edges,
    flatten_shares,
    normalize_columns,
    of_positive,
    plain_inverse,
    plain_maximum,
    plain_quotient,
    pool_windows,
    window_images,
    within_relative,
    within_ulp,
)
from tests.protocols.widths import Row
from tfe_bench.cluster.simulate import simulate
from tfe_bench.errors import UsageError
from tfe_bench.protocols.nn import (
    linear,
)
from tfe_bench.protocols.nn import relu as rectifier
from tfe_bench.protocols.order import row_maximum
from tfe_bench.protocols.ring import products
from tfe_bench.protocols.session.counting import CostReport, Private, count_cost
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import MaskedBits, Shared

POLYNOMIAL = [0.5, -1.25]
MOST_INT = 2**63 - 1
CLOSE = within_relative(2.0**-20, 1.2)


# ---- the rows


def magnitude_row(
    run: Callable[..., Any],
    right: Callable[..., Array],
    off: Callable[[Array], Any] = CLOSE,
    inputs: Callable[[int, np.random.Generator], list[Array]] = draw_magnitudes,
) -> Row:
    """Return magnitudes |x| < 2^bits."""
    return Row(2, 62, inputs, run, right, off, some=(2,), refused=(1, 63))


LESS: dict[str, tuple[Callable[..., Any], Callable[[Array, Array], Array]]] = {
    "predicates.less": (tfe.less, np.less),
    "predicates.less_equal": (tfe.less_equal, np.less_equal),
    "predicates.greater": (tfe.greater, np.greater),
    "predicates.greater_equal": (tfe.greater_equal, np.greater_equal),
    "predicates.equal": (tfe.equal, np.equal),
    "predicates.not_equal": (tfe.not_equal, np.not_equal),
    "ranking.maximum": (tfe.maximum, np.maximum),
    "ranking.minimum": (tfe.minimum, np.minimum),
}


def attention_row(x: Shared, bits: int) -> Shared:
    """Compute attention with one key per query: the result is x."""
    zero = x.map(lambda a: 0 * a)
    return tfe.scaled_dot_product_attention(zero, zero, x, bits=bits)


WIDTHS: dict[str, Row] = {
    **{
        name: Row(
            2, 64, draw_pairs, lambda p, b, x, y, g=g: g(x, y, b), lambda b, x, y, h=h: h(x, y)
        )
        for name, (g, h) in LESS.items()
    },
    "ranking.clip_by_value": Row(
        4,  # the narrowest width whose values reach both limits
        64,
        draw_clipped,
        lambda p, b, x: tfe.clip_by_value(x, LIMITS[0] / ONE, LIMITS[1] / ONE, b),
        lambda b, x: np.clip(x, *LIMITS),
    ),
    "ranking.sign": Row(
        2, 64, draw_signed, lambda p, b, x: tfe.sign(x, b), lambda b, x: np.sign(x) * ONE
    ),
    "operators.abs": Row(2, 64, draw_halves, lambda p, b, x: tfe.abs(x, b), lambda b, x: np.abs(x)),
    "ranking.reduce_max": Row(
        2, 64, draw_rows(3), lambda p, b, x: tfe.reduce_max(x, 1, bits=b), plain_maximum
    ),
    "ranking.reduce_min": Row(
        2, 64, draw_rows(11), lambda p, b, x: tfe.reduce_min(x, 1, bits=b), lambda b, x: x.min(-1)
    ),
    "ranking.argmax": Row(
        2, 64, draw_rows(3), lambda p, b, x: tfe.argmax(x, 1, b), lambda b, x: x.argmax(-1)
    ),
    "ranking.argmin": Row(
        2, 64, draw_rows(11), lambda p, b, x: tfe.argmin(x, 1, b), lambda b, x: x.argmin(-1)
    ),
    "neural.relu": Row(
        2, 64, draw_signed, lambda p, b, x: tfe.relu(x, b), lambda b, x: np.maximum(x, 0)
    ),
    "neural.relu_derivative": Row(
        2, 64, draw_signed, lambda p, b, x: tfe.relu_derivative(x, b), lambda b, x: x >= 0
    ),
    "neural.leaky_relu": Row(
        2,
        39,
        draw_signed,
        lambda p, b, x: tfe.leaky_relu(x, bits=b),
        lambda b, x: np.where(x >= 0, x, 0.2 * x),
        lambda right: 1 + np.maximum(-right, 0) * 2.0**-24,
        refused=(1, 40),
    ),
    "neural.max_pool2d": Row(
        2,
        64,
        draw_rows(4),
        lambda p, b, x: flatten_shares(tfe.max_pool2d(window_images(x), 2, bits=b)),
        plain_maximum,
    ),
    "elementary.log": magnitude_row(
        lambda p, b, x: tfe.log(x, b),
        of_positive(np.log, np.log(2.0**-F) * ONE),
        within_ulp(1.1 + 2.0**-18 * ONE),
    ),
    "elementary.reciprocal": magnitude_row(
        lambda p, b, x: tfe.reciprocal(x, bits=b), lambda b, x: plain_inverse(x)
    ),
    "elementary.reciprocal, positive": magnitude_row(
        lambda p, b, x: tfe.reciprocal(x, False, b), lambda b, x: np.maximum(plain_inverse(x), 0)
    ),
    "elementary.sqrt": magnitude_row(lambda p, b, x: tfe.sqrt(x, b), of_positive(np.sqrt)),
    "elementary.rsqrt": magnitude_row(
        lambda p, b, x: tfe.rsqrt(x, b), of_positive(lambda v: 1 / np.sqrt(v))
    ),
    "operators.divide": magnitude_row(
        lambda p, b, x, y: tfe.divide(x, y, bits=b),
        plain_quotient,
        within_relative(2.0**-20, 1.25),
        draw_quotients,
    ),
    "elementary.polyval": Row(
        2,
        61,
        draw_signed,
        lambda p, b, x: tfe.polyval(POLYNOMIAL, x, b),
        lambda b, x: np.polyval(POLYNOMIAL, x / ONE) * ONE,
        within_ulp(1.2),
        refused=(1, 62),
    ),
    **{
        f"elementary.erf, {f} fractional bits": Row(
            2,
            62,
            erf_edges(f),
            lambda p, b, x: tfe.erf(x, b),
            lambda b, x, f=f: np.vectorize(math.erf)(x * 2.0**-f) * 2.0**f,
            within_ulp(3),
            (2, F + 3, F + 4, 62) if f == F else (f + 4,),
            f,
            (1, 63),
        )
        for f in (8, F)
    },
    "elementary.atan2": Row(
        2,
        31,
        draw_points,
        lambda p, b, y, x: tfe.atan2(y, x, b),
        lambda b, y, x: np.arctan2(y, x) * ONE,
        within_ulp(4),
        refused=(1, 32),
    ),
    "scans.cummax": Row(
        2,
        64,
        draw_rows(5),
        lambda p, b, x: tfe.cummax(x, 1, bits=b),
        lambda b, x: np.maximum.accumulate(x, 1),
    ),
    "pooling.max_pool_with_argmax": Row(
        2,
        64,
        draw_rows(4),
        lambda p, b, x: flatten_shares(tfe.max_pool_with_argmax(window_images(x), 2, bits=b)[0]),
        plain_maximum,
    ),
    "pooling.adaptive_max_pool2d": Row(
        2,
        64,
        draw_rows(4),
        lambda p, b, x: flatten_shares(tfe.adaptive_max_pool2d(window_images(x), 1, b)),
        plain_maximum,
    ),
    "indexing.one_hot": Row(
        2,
        64,
        draw_signed,
        lambda p, b, x: tfe.one_hot(x, 3, bits=b),
        lambda b, x: (x[:, None] == np.arange(3)).astype(np.int64),
        fraction=0,
    ),
    "indexing.gather": Row(
        2,
        64,
        draw_signed,
        lambda p, b, x: tfe.gather(x[:3], x, bits=b),
        lambda b, x: np.where((x >= 0) & (x < 3), x[np.clip(x, 0, 2)], 0),
        fraction=0,
    ),
    "statistics.bincount": Row(
        3,
        64,
        close_to(0, 1, 2),
        lambda p, b, x: tfe.bincount(x, maxlength=2, bits=b),
        lambda b, x: np.array([(x == 0).sum(), (x == 1).sum()]),
        fraction=0,
    ),
    "statistics.histogram_fixed_width": Row(
        3,
        64,
        close_to(-2, 0, 2),
        lambda p, b, x: tfe.histogram_fixed_width(x, [-4 / ONE, 4 / ONE], 4, bits=b),
        lambda b, x: np.histogram(x, [-MOST_INT, -2, 0, 2, MOST_INT])[0],
    ),
    "bitwise.unpack_bits": Row(
        1,
        64,
        draw_magnitudes,
        lambda p, b, x: tfe.pack_bits(tfe.unpack_bits(x, b)),
        lambda b, x: np.array([int(v) % (1 << b) for v in x], np.uint64).view(np.int64),
        some=(1, 9),
        fraction=0,
        refused=(0, 65),
    ),
    "bitwise.popcount": Row(
        2,
        64,
        draw_signed,
        lambda p, b, x: tfe.popcount(x, b),
        lambda b, x: np.array([(int(v) % (1 << b)).bit_count() for v in x]),
        some=(2, 9),
        fraction=0,
    ),
    **{
        f"rounding.{name}, by {what}": Row(
            2,
            most,
            inputs,
            lambda p, b, *xs, g=g: g(xs[0], xs[-1] if len(xs) > 1 else 3, bits=b),
            lambda b, *xs, h=h: h(xs[0], xs[-1] if len(xs) > 1 else 3),
            fraction=0,
            refused=(1, most + 1),
        )
        for name, g, h in (
            ("floordiv", tfe.floordiv, np.floor_divide),
            ("floormod", tfe.floormod, np.mod),
        )
        for what, most, inputs in (("3", 31, draw_signed), ("a private one", 60, draw_dividends))
    },
    **ACTIVATIONS,
    "neural.scaled_dot_product_attention": Row(
        2,
        47,
        draw_signed,
        lambda p, b, x: flatten_shares(attention_row(tfe.reshape(x, [-1, 1, 1]), b)),
        lambda b, x: x * 1.0,
        within_relative(2.0**-11, 3),
        refused=(1, 48),
    ),
    # operations without a public name
    "row_maximum.row_maximum": Row(
        2,
        64,
        draw_rows(5),
        lambda p, b, x: row_maximum.row_maximum(p, flatten_shares(x), np.full(x.shape[0], 5), b),
        plain_maximum,
        refused=(1, 65),
    ),
    "batch_norm.normalize": Row(
        F + 1,
        40,
        draw_channels,
        lambda p, b, x: normalize_columns(p, b, x),
        lambda b, x: x - x.mean(0),
        within_ulp(2),
        some=(40,),
        refused=(F, 41),
    ),
    "pool_gradient.max_pool2d_with_choice": Row(
        4,
        64,
        draw_four,
        lambda p, b, x: pool_windows(p, b, x, False),
        plain_maximum,
        refused=(3, 65),
    ),
    "pool_gradient.max_pool2d_with_choice, with relu": Row(
        4,
        64,
        draw_four,
        lambda p, b, x: pool_windows(p, b, x, True),
        lambda b, x: np.maximum(x.max(-1), 0),
        refused=(3, 65),
    ),
    "relu.truncated_product": Row(
        2,
        64 - DROP,
        draw_multiplied,
        lambda p, b, x, y: rectifier.truncated_product(
            p, x, y, DROP, b, products.sum_elementwise_products
        ),
        lambda b, x, y: x * 2.0**-DROP,
        within_ulp(1),
        refused=(1, 58),
    ),
    "products.exchange_truncated_sum": Row(
        2,
        64 - DROP,
        draw_multiplied,
        lambda p, b, x, y: products.exchange_truncated_sum(
            p,
            "truncated_sum",
            [products.BilinearShareProduct(x, y, products.sum_elementwise_products)],
            None,
            DROP,
            b,
        )[0],
        lambda b, x, y: x * 2.0**-DROP,
        within_ulp(1),
        refused=(1, 58),
    ),
    "predicates.in_range": Row(
        2,
        63,
        lambda b, rng: [draw_below(1 << 62, rng, [1 << (b - 1), (1 << (b - 1)) + 1])],
        lambda p, b, x: tfe.in_range(x, b),
        lambda b, x: ((-1 << (b - 1) <= x) & (x < 1 << (b - 1))).astype(np.int64),
        refused=(1, 64),
    ),
    "linear.capped_relu": Row(
        4,  # the narrowest width that the limit fits
        64,
        lambda b, rng: [draw_below((1 << (b - 1)) - LIMITS[1], rng, LIMITS)],
        lambda p, b, x: linear.capped_relu(p, x, LIMITS[1], b, None),
        lambda b, x: np.clip(x, 0, LIMITS[1]),
        refused=(3, 65),
    ),
}


def as_signed(x: Array, ring_bits: int) -> Array:
    """Return elements of a small ring as signed integers."""
    if ring_bits == 64:
        return x
    half = 1 << (ring_bits - 1)
    return (x.astype(np.int64) + half) % (1 << ring_bits) - half


Cases = list[tuple[int, list[Array]]]


def cases_of(name: str, widths: Iterable[int], seed: int) -> Cases:
    """Return the operands of an operation at some widths."""
    inputs = WIDTHS[name].inputs
    return [(b, inputs(b, np.random.default_rng([seed, b]))) for b in sorted(set(widths))]


def run_row(name: str, p: Party, cases: Any) -> list[Shared]:
    """Run the operation at each width, inside one graph."""
    results = [WIDTHS[name].run(p, b, *xs) for b, xs in cases]
    return [tfe.cast(y) if isinstance(y, MaskedBits) else y for y in results]


def count_row(name: str, cases: Cases) -> CostReport:
    """Return the cost of `run_row`."""
    f = WIDTHS[name].fraction
    private_cases = tuple((b, tuple(Private(x.shape, f) for x in xs)) for b, xs in cases)
    return count_cost(lambda p, private_cases: run_row(name, p, private_cases), private_cases)


def check_widths(name: str, widths: Iterable[int], seed: int) -> None:
    """Run an operation at some widths, in one graph, and compare every element, and the cost."""
    row = WIDTHS[name]
    cases = cases_of(name, widths, seed)

    def program(p: Party, *flat: Shared) -> Any:
        left = iter(flat)
        shared_cases = [(b, [next(left) for _ in xs]) for b, xs in cases]
        results = p.function(lambda shared_cases: run_row(name, p, shared_cases))(shared_cases)
        for b in row.refused:
            with pytest.raises(UsageError):
                p.function(lambda xs, b=b: row.run(p, b, *xs))(shared_cases[0][1])
        return results

    flat = [x for _, xs in cases for x in xs]
    sim = simulate(program, *flat, fractional_bits=row.fraction, dealer=seed % 3)
    cost = count_row(name, cases).cost
    assert (sim.sent, sim.rounds, sim.with_dealing) == (
        cost.by_party(seed % 3),
        cost.rounds,
        cost.with_dealing,
    )
    for i, (b, xs) in enumerate(cases):
        got = as_signed(sim.value(itemgetter(i)), sim.outputs[0][i].ring_bits)
        right = np.asarray(row.right(b, *xs))
        assert got.shape == right.shape, (name, b)
        if right.dtype.kind != "f":
            wrong = got != right
        else:
            wrong = np.abs(got - right) > row.off(right) + np.abs(right) * 2.0**-51
        assert not wrong.any(), (
            name,
            b,
            [x[wrong][:4] for x in xs],
            got[wrong][:4],
            right[wrong][:4],
        )


@pytest.mark.parametrize("name", WIDTHS)
def test_an_operation_is_right_where_something_changes(name: str, seed: int) -> None:
    row = WIDTHS[name]
    check_widths(name, row.some or (row.least, row.most), seed)


@pytest.mark.slow
@pytest.mark.parametrize("name", WIDTHS)
def test_an_operation_is_right_at_every_width(name: str, seed: int) -> None:
    row = WIDTHS[name]
    check_widths(name, range(row.least, row.most + 1), seed)

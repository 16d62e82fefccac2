"""Attention and its parts: maxima of rows, powers of two and their sums, the layer."""

from __future__ import annotations

import math
from dataclasses import replace
from operator import itemgetter
from typing import Any

import numpy as np
import pytest

import tfe_bench as tfe
from tests.protocols.operands import Array
from tests.refusals import raises
from tfe_bench.cluster.simulate import simulate
from tfe_bench.errors import UsageError
from tfe_bench.protocols.functions import exp2
from tfe_bench.protocols.nn import attention as att
from tfe_bench.protocols.order import row_maximum
from tfe_bench.protocols.ring import small_ring
from tfe_bench.protocols.ring.range_check import RangeMonitor
from tfe_bench.protocols.session.cost import packed_bits
from tfe_bench.protocols.session.counting import Private, cost_of, count_cost
from tfe_bench.protocols.session.fixedpoint import FixedPoint
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared

MOST = att.MAX_UNITS * math.log(2)


def read_signed(values: Array, bits: int) -> Array:
    """Return words of Z_2^bits, read as signed."""
    return (values.astype(np.int64) << (64 - bits)) >> (64 - bits)


# ---- the largest of a row


@pytest.mark.parametrize("dealer", [0, 1, 2])
def test_a_coarse_maximum_is_near_whatever_the_level_of_a_row(
    dealer: int, rng: np.random.Generator
) -> None:
    """Check rows of 1 to 40 values, as far apart as the bits allow, anywhere in the ring."""
    cut, ring, bits = 10, 21, 11
    lengths = np.concatenate([rng.integers(1, 41, 20), [1, 2, 40]])
    furthest = (1 << (bits - 1 + cut)) - (3 << cut)
    rows = [
        rng.integers(0, 1 << ring)
        + rng.choice(np.array([0, furthest, int(rng.integers(furthest))]), n)
        for n in lengths
    ]

    def program(p: Party, x: Shared) -> Any:
        def graph(x: Shared) -> Shared:
            small = row_maximum.coarsen_for_maximum(small_ring.reduce_ring(x, ring), cut)
            return row_maximum.row_maximum(p, small, lengths, bits)

        return p.function(graph)(x)

    done = simulate(program, np.concatenate(rows), dealer=dealer)
    maxima = done.value() << cut
    off = read_signed(maxima - np.array([row.max() for row in rows]), ring)
    assert np.all(off > -(1 << cut)) and np.all(off < 2 << cut)
    cost = cost_of(_row_maxima, Private((int(lengths.sum()),), 0, ring - cut), tuple(lengths), bits)
    assert done.sent == cost.by_party(dealer)
    assert (done.rounds, done.with_dealing) == (cost.rounds, cost.with_dealing)


def _row_maxima(party: Party, x: Shared, lengths: tuple[int, ...], bits: int) -> Shared:
    return row_maximum.row_maximum(party, x, np.array(lengths), bits)


def test_groups_are_as_a_network_wants_them() -> None:
    assert row_maximum.plan_maximum_radices(5, 1, 11, 11, "local") == ()
    for profile in ("local", "wan"):
        for longest in (2, 9, 10, 128, 1024):
            chosen = row_maximum.plan_maximum_radices(10**6, longest, 11, 11, profile)
            assert math.prod(chosen) >= longest and max(chosen) <= 10
    assert len(row_maximum.plan_maximum_radices(100, 100, 11, 11, "wan")) == 2


# ---- powers of two


@pytest.mark.parametrize(
    ("f", "scale", "width"), [(12, 14, 54), (1, 1, 3), (1, 24, 64), (10, 12, 38), (30, 24, 26)]
)
def test_powers_of_two_are_right_in_the_whole_window(
    f: int, scale: int, width: int, rng: np.random.Generator
) -> None:
    """Check both ends and every period of the ring, with the sums of the opened values."""
    low, high = math.ceil(exp2.LOW * 2**f), math.floor(exp2.HIGH * 2**f)
    t = np.concatenate([[low, low + 1, 0, high], rng.integers(low, high + 1, 30), [-(2**f)] * 6])
    words = t + (rng.integers(-3, 4, t.size) << exp2.exponent_ring_bits(f))

    def program(p: Party, x: Shared) -> Any:
        def graph(x: Shared) -> Any:
            small = replace(
                small_ring.reduce_ring(x, exp2.exponent_ring_bits(f)), fractional_bits=f
            )
            return exp2.exp2(p, small, scale, width, tile_by_fours)

        return p.function(graph)(x)

    sim = simulate(program, words)
    e, total = (sim.value(itemgetter(i)) for i in range(2))
    e = read_signed(e, width)
    right = 2.0 ** (t / 2**f + scale)
    assert np.all(np.abs(e - right) < 1.001 + right * 2.0**-19)
    assert np.array_equal(total, e.reshape(4, -1).sum(1))
    cost = cost_of(powers_of_two, Private((t.size,), f, exp2.exponent_ring_bits(f)), scale, width)
    assert sim.sent == cost.by_party(0) and sim.rounds == cost.rounds == 1


def tile_by_fours(a: Any) -> Any:
    from tfe_bench.protocols.session import tensor_ops

    return tensor_ops.reshape(a, [4, -1])


def powers_of_two(party: Party, t: Shared, scale: int, width: int) -> Any:
    return exp2.exp2(party, t, scale, width, tile_by_fours)


@pytest.mark.parametrize(
    ("f", "ring", "scale", "width"),
    [
        *((12, 20, 14, 54), (0, 9, 14, 54), (31, 40, 14, 54), (12, 21, 0, 54), (12, 21, 25, 54)),
        *((12, 21, 14, 15), (12, 21, 14, 65)),
    ],
)
def test_powers_of_two_refuse_what_does_not_fit(f: int, ring: int, scale: int, width: int) -> None:
    with raises(UsageError, "unsupported-scale", operation="exp2"):
        count_cost(powers_of_two, Private((4,), f, ring), scale, width)


# ---- a value of one small ring in another


@pytest.mark.parametrize(("k", "to"), [(2, 3), (2, 64), (19, 38), (38, 39), (62, 63), (63, 64)])
def test_a_lift_ends_in_any_larger_ring(k: int, to: int, rng: np.random.Generator) -> None:
    most = (1 << (k - 2)) - 1
    x = np.array([0, most, -most, *rng.integers(-most, most + 1, 20)])

    def program(p: Party, x: Shared) -> Any:
        return p.function(lambda x: small_ring.lift_signed(p, small_ring.reduce_ring(x, k), to))(x)

    done = simulate(program, x)
    assert np.array_equal(read_signed(done.value(), to), x)
    cost = cost_of(small_ring.lift_signed, Private((x.size,), 0, k), to)
    assert done.sent == cost.by_party(0) and done.rounds == cost.rounds == 1


@pytest.mark.parametrize(("k", "to"), [(19, 19), (19, 18), (19, 65), (0, 64)])
def test_a_lift_refuses_other_rings(k: int, to: int) -> None:
    with raises(UsageError, "unsupported-ring"):
        count_cost(small_ring.lift_signed, Private((4,), 0, k), to)


@pytest.mark.parametrize(
    ("k", "to", "width"),
    [(2, 2, 3), (19, 19, 64), (19, 20, 64), (19, 64, 20), (19, 40, 40), (38, 45, 39), (63, 64, 64)],
)
def test_shares_of_a_lift_are_of_all_that_is_dealt(
    k: int, to: int, width: int, rng: np.random.Generator
) -> None:
    most = (1 << (k - 2)) - 1
    x = np.array([0, most, -most, *rng.integers(-most, most + 1, 20)])

    def program(p: Party, x: Shared) -> Any:
        small = small_ring.reduce_ring(x, k)
        return p.function(lambda x: small_ring.lift_with_shares(p, x, to, width))(small)

    dealer = int(rng.integers(3))
    done = simulate(program, x, dealer=dealer)
    assert np.array_equal(read_signed(done.value(itemgetter(0)), to), x)
    (_, left), (_, right) = (done.outputs[(dealer + i) % 3] for i in (1, 2))
    assert done.outputs[dealer][1] is None
    total = np.asarray(left) + np.asarray(right)
    assert not np.any((total - x) << (64 - width))
    cost = cost_of(small_ring.lift_with_shares, Private((x.size,), 0, k), to, width)
    assert done.sent == cost.by_party(dealer) and done.rounds == cost.rounds == int(to > k)
    assert (cost.with_dealing, cost.e1) == (cost.rounds + 1, packed_bits(x.size, to - k))
    assert cost.dealer == 2 * packed_bits(x.size, max(to, width) - k)


@pytest.mark.parametrize(
    ("k", "to", "width"), [(19, 18, 30), (19, 65, 30), (19, 30, 19), (19, 30, 65), (0, 64, 64)]
)
def test_shares_of_a_lift_refuse_other_rings(k: int, to: int, width: int) -> None:
    with raises(UsageError, "unsupported-ring", operation="lift_with_shares"):
        count_cost(small_ring.lift_with_shares, Private((4,), 0, k), to, width)


# ---- attention


def plain_weights(q: Array, k: Array, keep: Any = True, scale: float | None = None) -> Array:
    """Return powers of e, relative to the largest of a row."""
    s = q @ np.swapaxes(k, -1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)
    s = np.where(np.broadcast_to(keep, s.shape), s, -np.inf)
    return np.asarray(np.exp(s - s.max(-1, keepdims=True)))


def is_near(outputs: Array, e: Array, v: Array, f: int) -> bool:
    """Return whether results are within the documented error of a weight and of a rounded value."""
    total = e.sum(-1, keepdims=True)
    share = e / total
    off = share * 2.0**-11 + 2.0**-14 / (total / 2**0.5)
    bound = off @ np.abs(v) + np.abs(share @ v) * 2.0**-12 + 3 * 2.0**-f
    return bool(np.all(np.abs(outputs / 2**f - share @ v) <= bound))


def as_column(*values: float) -> Array:
    return np.array(values)[:, None]


# Queries, keys and values; options, and the keys that count.
KEYS = 7
PRIVATE = np.array([[1, 0, 1, 1, 0, 1, 0.0]])
ONE = np.eye(1, KEYS, 3, dtype=int)
FURTHEST = as_column(0, *[-MOST] * (KEYS - 1))
# A masked key exceeds the others by the largest spread of a private mask.
ABOVE = as_column(0, 54, -0.5, 0.5, 53.5, -1, 0)
CASES: dict[str, tuple[Array, Array, dict[str, Any], Any]] = {
    "all scores alike": (np.zeros((3, 4)), np.ones((KEYS, 4)), {}, True),
    "one far above": (np.ones((2, 1)), as_column(*[-60] * 6, 40), {"scale": 1.0}, True),
    "as far apart as may be": (np.ones((1, 1)), FURTHEST, {"scale": 1.0, "spread": MOST}, True),
    # Scores are far outside the period; their differences are not.
    "far from zero": (as_column(1, 1), FURTHEST / 2 + 5000, {"scale": 1, "spread": 60}, True),
    "causal": (np.eye(KEYS, 5) * 3, np.eye(KEYS, 5) - 1, {"causal": True}, np.tri(KEYS)),
    # Keys after the last one are arbitrary, and the others are far below 0.
    "up to the last": (
        *(np.ones((2, 1)), as_column(-60, -61, -60.5, 9000, -9000, 0, 60)),
        {"scale": 1.0, "last": 2},
        np.arange(KEYS) <= 2,
    ),
    "up to a last that is known later": (
        *(np.ones((1, 1)), as_column(-60, 9000, -9000, 9000, 9000, 0, 60)),
        {"scale": 1.0, "last": np.int64(0)},
        np.arange(KEYS) == 0,
    ),
    "up to the very last": (as_column(3), as_column(*range(KEYS)), {"last": KEYS - 1}, True),
    "one key each": (np.eye(4), np.eye(KEYS, 4), {"mask": ONE}, ONE),
    "private": (as_column(1, 1), ABOVE, {"scale": 1.0, "mask": PRIVATE}, PRIVATE),
    "private and causal": (
        *(np.ones((KEYS, 1)), ABOVE, {"scale": 1.0, "mask": PRIVATE, "causal": True}),
        PRIVATE * np.tri(KEYS),
    ),
}


def as_tensor(value: Any) -> Any:
    """Return a value as a tensor."""
    import tensorflow as tf

    return tf.constant(value, tf.int64)


def value_of(q: Array, k: Array) -> Array:
    rows = np.arange(k.shape[-2] * 3.0).reshape(k.shape[-2], 3)
    return np.cos(rows) * 100 * np.ones((*k.shape[:-2], 1, 1))


@pytest.mark.parametrize("dealer", [0, 1, 2])
def test_attention_at_the_edges_of_what_it_takes(dealer: int) -> None:
    """Check all edges at once: rows of every kind, private masks as numbers of two scales."""
    fixed = FixedPoint(16)
    attention_inputs = [(q, k, value_of(q, k), options) for q, k, options, _ in CASES.values()]
    arrays = [fixed.encode(a) for q, k, v, _ in attention_inputs for a in (q, k, v)]

    def program(p: Party, *x: Shared) -> Any:
        def graph(whole: Shared, real: Shared, *x: Shared) -> Any:
            results = []
            for i, (_, _, _, options) in enumerate(attention_inputs):
                if options.get("mask") is PRIVATE:
                    own = replace(whole, fractional_bits=0) if "causal" in options else real
                    options = {**options, "mask": own}
                if isinstance(options.get("last"), np.int64):
                    options = {**options, "last": as_tensor(options["last"])}
                results.append(att.attention(p, *x[3 * i : 3 * i + 3], **options))
            return results

        return p.function(graph)(*x)

    masks = PRIVATE.astype(np.int64), fixed.encode(PRIVATE)
    sim = simulate(program, *masks, *arrays, dealer=dealer, fractional_bits=16)
    for i, (name, (q, k, options, keep)) in enumerate(CASES.items()):
        e, v = plain_weights(q, k, keep, options.get("scale")), attention_inputs[i][2]
        counted = ~np.isnan(e).any(-1)  # Rows whose private mask is 0 throughout are excluded.
        result = sim.value(itemgetter(i))
        assert is_near(result[counted], e[counted], v, 16), name


@pytest.mark.parametrize(
    ("lead", "queries", "keys", "depth", "channels", "f", "bits"),
    [
        ((), 1, 1, 1, 1, 16, 31),
        ((2, 3), 5, 12, 8, 2, 12, 18),
        ((1,), 3, 100, 4, 1, 20, 24),
        ((2,), 3, 4, 4, 0, 16, 31),
        ((2,), 0, 4, 4, 3, 16, 31),
    ],
)
def test_attention_of_any_shape_and_scale_costs_what_it_says(
    lead: tuple[int, ...],
    queries: int,
    keys: int,
    depth: int,
    channels: int,
    f: int,
    bits: int,
    rng: np.random.Generator,
) -> None:
    shapes = ((*lead, queries, depth), (*lead, keys, depth), (*lead, keys, channels))
    q, k, v = (rng.normal(size=shape) for shape in shapes)
    dealer, fixed = int(rng.integers(3)), FixedPoint(f)
    options: dict[str, Any] = {"bits": bits, "spread": 40.0}

    def program(p: Party, *shares: Shared) -> Any:
        return p.function(lambda *x: att.attention(p, *x, **options))(*shares)

    words = [fixed.encode(a) for a in (q, k, v)]
    done = simulate(program, *words, dealer=dealer, fractional_bits=f)
    cost = cost_of(att.attention, *(Private(shape, f) for shape in shapes), **options)
    assert done.sent == cost.by_party(dealer)
    assert (done.rounds, done.with_dealing) == (cost.rounds, cost.with_dealing)
    assert is_near(done.value(), plain_weights(q, k), v, f)


def test_a_spread_that_is_exceeded_is_flagged_for_its_sample() -> None:
    """Use differences of scores below, slightly above and far above the declared spread."""
    fixed, differences = FixedPoint(16), np.array([0, 100, MOST, 140, 165, 200, 221])
    k = np.zeros((len(differences), 5, 1))
    k[:, 2, 0] = -differences
    q = np.ones((len(differences), 1, 1))

    def program(p: Party, q: Shared, k: Shared) -> Any:
        def graph(q: Shared, k: Shared) -> Shared:
            watch = RangeMonitor(p, len(differences), q.dealer)
            att.attention(p, q, k, k, scale=1.0, monitor=watch)
            return watch.compute_flag()

        return p.function(graph)(q, k)

    flags = simulate(program, fixed.encode(q), fixed.encode(k), fractional_bits=16).value()
    assert (flags != 0).tolist() == [False] * 3 + [True] * 4


def test_a_watch_knows_both_ends_of_a_range(rng: np.random.Generator) -> None:
    low, high = 5, (1 << 62) - 1
    x = np.array([low, high, low - 1, high + 1, 0, -1, -(1 << 63), (1 << 63) - 1, 1 << 62])
    both = np.stack([x, np.full(x.size, 7)], 1)

    def program(p: Party, x: Shared) -> Any:
        def graph(x: Shared) -> Shared:
            watch = RangeMonitor(p, x.shape[0], x.dealer)
            watch.record_range(x, low, high)
            return watch.compute_flag()

        return p.function(graph)(x)

    flags = simulate(program, both, dealer=int(rng.integers(3))).value()
    assert (flags == 0).tolist() == [low <= v <= high for v in x.tolist()]


def test_the_public_function_takes_private_bits_and_names_itself(rng: np.random.Generator) -> None:
    q, k, v = (rng.normal(size=(2, 3, 4)) for _ in range(3))
    hidden = np.array([[[0, 1, 0]], [[1, 0, 0]]])
    fixed, name = FixedPoint(16), "scaled_dot_product_attention"
    public: Any = np.zeros((2, 3, 4))

    def program(p: Party, q: Shared, k: Shared, v: Shared, hidden: Shared) -> Any:
        def graph(q: Shared, k: Shared, v: Shared, hidden: Shared) -> Any:
            with raises(UsageError, "number-out-of-range", operation="spread") as caught:
                tfe.scaled_dot_product_attention(q, k, v, spread=120)
            assert str(caught.value).startswith(f"{name} ") and caught.value.received == 120
            with raises(UsageError, "not-private", operation=name) as caught:
                tfe.scaled_dot_product_attention(q, public, v)
            assert str(caught.value).startswith(f"{name} ")
            return tfe.scaled_dot_product_attention(q, k, v, mask=hidden < 0.5)

        return p.function(graph)(q, k, v, hidden)

    inputs = [fixed.encode(a) for a in (q, k, v, hidden)]
    result = simulate(program, *inputs, fractional_bits=16).value()
    assert is_near(result, plain_weights(q, k, hidden == 0), v, 16)


A = Private((2, 3, 4))
NARROW = np.ones((2, 3))
REFUSED: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("leading axes", (A, Private((3, 4)), A), {}),
    ("leading axes", (A, Private((2, 3, 5)), A), {}),
    ("leading axes", (A, A, Private((2, 4, 4))), {}),
    ("leading axes", (Private((4,)), Private((4,)), Private((4,))), {}),
    ("leading axes", (Private((2, 3, 0)), Private((2, 3, 0)), A), {}),
    ("1 to 1024 keys", (A, Private((2, 1025, 4)), Private((2, 1025, 4))), {}),
    ("1 to 1024 keys", (A, Private((2, 0, 4)), Private((2, 0, 4))), {}),
    ("a key", (A, A, A), {"mask": np.eye(3, k=1)}),
    ("truth values", (A, A, A), {"mask": np.full((3, 3), 0.5)}),
    ("broadcasts", (A, A, A), {"mask": np.ones((3, 4))}),
    ("positive scale", (A, A, A), {"scale": 0.0}),
    ("positive scale", (A, A, A), {"scale": math.nan}),
    ("positive scale", (A, A, A), {"scale": True}),
    ("spread", (A, A, A), {"spread": MOST + 0.01}),
    ("spread", (A, A, A), {"spread": 0}),
    ("mask, causal or last", (A, A, A), {"last": 1, "causal": True}),
    ("mask, causal or last", (A, A, A), {"last": 1, "mask": np.ones((3, 3))}),
    ("last from 0 to 2", (A, A, A), {"last": 3}),
    ("last from 0 to 2", (A, A, A), {"last": -1}),
    ("last from 0 to 2", (A, A, A), {"last": 1.5}),
    ("values of 2 to", (A, A, A), {"bits": 50}),
    ("values of 2 to", (A, A, A), {"bits": 1}),
    ("fractional bits", (Private((2, 3, 4), 26), Private((2, 3, 4), 26), A), {}),
    ("fractional bits", (Private((2, 3, 4), 3), Private((2, 3, 4), 3), A), {"scale": math.log(2)}),
]

CODES = {
    "leading axes": ("shape-mismatch", "attention"),
    "1 to 1024 keys": ("number-out-of-range", "keys"),
    "a key": ("empty-mask-row", "mask"),
    "truth values": ("unsupported-type", "mask"),
    "broadcasts": ("shape-mismatch", "mask"),
    "positive scale": ("number-out-of-range", "scale"),
    "spread": ("number-out-of-range", "spread"),
    "mask, causal or last": ("conflicting-options", "attention"),
    "last from 0 to 2": ("index-out-of-range", "last"),
    "values of 2 to": ("number-out-of-range", "bits"),
    "fractional bits": ("unsupported-scale", "attention"),
}


@pytest.mark.parametrize(("words", "given", "options"), REFUSED)
def test_attention_refuses_what_does_not_fit(
    words: str, given: tuple[Any, ...], options: dict[str, Any]
) -> None:
    code, operation = CODES[words]
    with raises(UsageError, code, operation=operation):
        count_cost(att.attention, *given, **options)


def test_attention_refuses_private_masks_that_do_not_fit() -> None:
    def masked(party: Party, x: Shared, mask: Shared, **options: Any) -> Shared:
        return att.attention(party, x, x, x, mask=mask, **options)

    most = att.max_attention_score_spread(3, True) * math.log(2)
    count_cost(masked, A, Private((2, 1, 3), 0), spread=most)
    wrong: tuple[tuple[str, str, Private, dict[str, Any]], ...] = (
        ("number-out-of-range", "spread", Private((3,), 0), {"spread": most + 0.01}),
        ("shape-mismatch", "mask", Private((2,), 0), {}),
        ("unsupported-scale", "mask", Private((3,), 60), {}),
    )
    for code, operation, mask, options in wrong:
        with raises(UsageError, code, operation=operation):
            count_cost(masked, A, mask, **options)


# ---- attention of BERT


@pytest.mark.parametrize(
    ("given", "fractional", "most", "rounds"),
    [
        ({}, 16, 21.2, 21),
        ({"scale": math.log(2), "bits": 20}, 12, 19.8, 21),
        ({"scale": math.log(2), "bits": 20, "causal": True}, 12, 13.0, 21),
    ],
)
def test_attention_of_a_large_model_costs_what_is_said_of_it(
    given: dict[str, Any], fractional: int, most: float, rounds: int
) -> None:
    """Count 12 heads of 128 queries and keys of 64: megabytes of all three parties."""
    x = Private((1, 12, 128, 64), fractional)
    cost = cost_of(att.attention, x, x, x, **given)
    assert 0.95 * most < cost.total / 8e6 <= most
    assert cost.rounds == rounds

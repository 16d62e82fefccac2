"""Exponentials keep their documented error, range and cost, and leak nothing."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from operator import itemgetter
from typing import Any

import numpy as np
import pytest
from scipy import stats

from tests.edges import parametrize_daily
from tests.protocols.dealers import by_a_dealer
from tests.protocols.shares import parts_held
from tests.refusals import raises
from tfe_bench.cluster.simulate import assert_costs, measure_graph_call, share_for_party, simulate
from tfe_bench.errors import UsageError
from tfe_bench.protocols.functions import exp_one_round
from tfe_bench.protocols.functions.exponential import (
    CLAMPS,
    METHODS,
    choose_exp_form,
    exp,
)
from tfe_bench.protocols.session.counting import Private, cost_of
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared

Array = np.ndarray[Any, Any]
RINGS = ((64, 16), (128, 40))
SOFTMAX = ("one-round", "prime")  # the methods that shift their range for softmax
ALPHA = 1e-6
LN2 = float(np.log(2))
MANY = 10_000


def share_ring(values: Array, party: int, ring_bits: int, f: int, dealer: int, seed: int) -> Shared:
    """Return one party's share of int64 ring elements in either ring."""
    import tensorflow as tf

    if ring_bits == 64:
        return share_for_party(values, party, seed.to_bytes(4, "little"), f, dealer)
    rng = np.random.default_rng(seed)
    l1, l2 = rng.integers(0, 2**64, (2, len(values), 2), np.uint64)
    low = values.view(np.uint64)
    m = add_wide(add_wide(np.stack([low, -(low >> np.uint64(63))], axis=-1), l1), l2)

    def words(pairs: Array) -> Any:
        return tf.constant(pairs.view(np.int64))

    return parts_held(party, dealer, [words(part) for part in (m, l1, l2)], f, ring_bits // 64)


def add_wide(a: Array, b: Array) -> Array:
    """Return a + b modulo 2^128 on pairs of words, low word first."""
    low = a[:, 0] + b[:, 0]
    return np.stack([low, a[:, 1] + b[:, 1] + (low < b[:, 0])], axis=-1)


def decode_ring(ring: Array, ring_bits: int, f: int) -> Array:
    """Return signed ring elements as reals."""
    signed = [(int(v) + 2 ** (ring_bits - 1)) % 2**ring_bits - 2 ** (ring_bits - 1) for v in ring]
    return np.array([float(v) for v in signed]) / 2.0**f


def clip_inside(xs: Array, low: float, high: float, f: int) -> Array:
    """Return the multiples of 2^-f next to xs that lie in a range, as ring elements."""
    clipped = np.clip(np.rint(xs * 2.0**f), np.ceil(low * 2.0**f), np.floor(high * 2.0**f))
    return np.unique(clipped).astype(np.int64)


def draw_inputs(low: float, high: float, f: int, rng: np.random.Generator) -> Array:
    """Return both ends, the steps of the exponent and its neighbors, and many more."""
    low = max(low, -100.0)
    steps = np.arange(np.ceil(low / LN2), np.floor(high / LN2)) * LN2
    edges = [low, high, 0, 1, -1, *steps, *(steps + 2.0**-f), *(steps - 2.0**-f)]
    near = rng.uniform(-12, min(high, 12), MANY // 2)
    return clip_inside(np.concatenate([edges, near, rng.uniform(low, high, MANY)]), low, high, f)


def output_at(first: int, second: int) -> Callable[[Any], Any]:
    """Return out[first][second]."""
    return lambda out: out[first][second]


def run_cases(
    cases: list[tuple[Array, str, str, dict[str, Any]]],
    ring_bits: int,
    f: int,
    seed: int,
    dealer: int = 0,
) -> list[Array]:
    """Compute exp of each case's ring elements as reals; check costs on the way."""

    def program(p: Party) -> list[Any]:
        results = []
        for i, (values, method, clamp, options) in enumerate(cases):
            x = share_ring(values, p.index, ring_bits, f, dealer, seed + i)
            graph = p.function(
                lambda x, method=method, clamp=clamp, options=options: exp(
                    p, x, method, clamp, **options
                )
            )
            kept: list[Any] = []

            def call(x: Shared, graph: Any = graph, kept: list[Any] = kept) -> None:
                kept.append(graph(x))

            cost = measure_graph_call(p, call, x)
            results.append((cost, kept[0]))
        return results

    sim = simulate(program, dealer=dealer)
    for i, (values, method, clamp, options) in enumerate(cases):
        operand = Private((len(values),), f, limbs=ring_bits // 64)
        cost = cost_of(exp, operand, method, clamp, **options)
        assert_costs([out[i][0] for out in sim.outputs], cost, dealer)
        result = sim.outputs[0][i][1]
        assert (result.fractional_bits, result.limbs) == (f, ring_bits // 64)
    return [decode_ring(sim.value(output_at(i, 1)), ring_bits, f) for i in range(len(cases))]


def error_bound(method: str, ring_bits: int, f: int, x: Array, softmax: bool = False) -> Array:
    """Return the declared bound of |result - e^x| (of the power, for Taylor)."""
    exact, ulp = np.exp(x), 2.0**-f
    wide = ring_bits == 128
    if method == "one-round":
        return np.asarray(1.001 * ulp + exact * 2.0 ** (-44 if wide else -29))
    if method == "prime":
        mantissa, extra = (23, 24) if wide else (16 if softmax else 12, 13)
        relative = 2.0**-mantissa + np.abs(x) * 2.0 ** -(extra + 1)
        return np.asarray(1.001 * ulp + exact * relative)
    if method == "pade":
        return np.asarray(2 * ulp + exact * (2**-13.4 + (np.abs(x) / 2 + 6) * ulp))
    return np.asarray(3 * 2**8 * ulp * np.maximum(exact, 1))


def valid_range(*how: Any, **options: Any) -> tuple[float, float]:
    own = choose_exp_form(*how, **options)
    return own.lowest_input, own.highest_input


@by_a_dealer
@pytest.mark.parametrize(("ring_bits", "f"), RINGS)
def test_every_form_keeps_its_error_bound_all_over_its_range_and_costs_what_it_says(
    ring_bits: int, f: int, dealer: int, seed: int, rng: np.random.Generator
) -> None:
    modes = [(m, False) for m in METHODS] + [(m, True) for m in SOFTMAX]
    cases: list[tuple[Array, str, str, dict[str, Any]]] = []
    for method, softmax in modes:
        low, high = valid_range(method, ring_bits, f, softmax=softmax)
        assert low < -13 and (high == 0 if softmax else high > 10)
        cases.append((draw_inputs(low, high, f, rng), method, "none", {"softmax": softmax}))
    results = run_cases(cases, ring_bits, f, seed, dealer)
    for (method, softmax), (values, *_), got in zip(modes, cases, results, strict=True):
        x = values / 2.0**f
        exact = np.exp(x)
        if method == "taylor":
            exact = np.exp(256 * np.log1p(x / 256))
            small = np.abs(x) < 8
            gap = np.abs(exact - np.exp(x)) - np.exp(x) * x**2 / 256
            assert np.all(gap[small] < 1e-12)
        error = np.abs(got - exact)
        assert np.all(error <= error_bound(method, ring_bits, f, x, softmax)), (
            method,
            softmax,
            x[np.argmax(error - error_bound(method, ring_bits, f, x, softmax))],
        )


@parametrize_daily(
    ("ring", "clamp"), itertools.product(RINGS, CLAMPS[1:]), [(RINGS[0], "low"), (RINGS[1], "both")]
)
def test_clamped_inputs_outside_the_range_give_the_value_at_its_end(
    ring: tuple[int, int], clamp: str, seed: int, rng: np.random.Generator
) -> None:
    ring_bits, f = ring
    cases: list[tuple[Array, str, str, dict[str, Any]]] = []
    for method in ("one-round", "pade") if clamp == "both" else ("prime", "taylor"):
        low, high = valid_range(method, ring_bits, f, clamp)
        ends = [round(end * 2**f) for end in (low, high)]
        far = 2**61
        chosen = [ends[0] - 1, ends[0] - 2**f, -far, 1 - far, ends[0] + 2**f, 0, ends[1] - 2**f]
        chosen += [*rng.integers(-far, ends[0], 100), *rng.integers(ends[0], ends[1], 100)]
        if clamp == "both":
            chosen += [ends[1] + 1, ends[1] + 2**f, far, *rng.integers(ends[1] + 1, far, 100)]
        cases.append((np.array(chosen, np.int64), method, clamp, {}))
    for (values, method, *_), got in zip(cases, run_cases(cases, ring_bits, f, seed), strict=True):
        low, high = valid_range(method, ring_bits, f, clamp)
        x = np.clip(values / 2.0**f, low, high)
        exact = np.exp(x)
        if method == "taylor":  # its own power within range, e^high above it
            above = values / 2.0**f > high
            exact = np.where(above, exact, np.exp(256 * np.log1p(np.maximum(x, -255.999) / 256)))
        bound = error_bound(method, ring_bits, f, x, False) + exact * 2.0**-f
        assert np.all(np.abs(got - exact) <= bound), method
        below = values / 2.0**f < low
        assert np.all(np.abs(got[below] - np.exp(low)) <= 2.0 ** -(f + 1)), method
        if clamp == "low" or method != "pade":
            assert np.all(got[below] == 0), method


@pytest.mark.parametrize(("ring_bits", "bytes_each"), [(64, 48), (128, 64)])
def test_the_default_form_takes_one_round_and_48_or_64_bytes(
    ring_bits: int, bytes_each: int
) -> None:
    cost = cost_of(exp, Private((1000,), limbs=ring_bits // 64))
    assert (cost.rounds, cost.with_dealing, cost.total) == (1, 2, 8000 * bytes_each)


def test_costs_hold_for_any_number_of_elements_and_any_shape(seed: int) -> None:
    sizes = (1, 7, 65)
    forms = [("one-round", "none"), ("prime", "none"), ("prime", "both")]

    def program(p: Party) -> list[Any]:
        graphs = [p.function(lambda x, m=m, c=c: exp(p, x, m, c), dynamic=True) for m, c in forms]
        calls = [
            measure_graph_call(p, graph, share_for_party(np.zeros(n, np.int64), p.index, b"x", 16))
            for graph in graphs
            for n in sizes
        ]
        shaped = [
            share_for_party(np.full(s, 1 << 16), p.index, b"x", 16) for s in ((), (2, 0), (2, 3, 1))
        ]
        return [calls, p.function(lambda *x: [exp(p, v, "prime", "low") for v in x])(*shaped)]

    sim = simulate(program)
    expected = [cost_of(exp, Private((n,)), m, c) for m, c in forms for n in sizes]
    for cost, *calls in zip(expected, *map(itemgetter(0), sim.outputs), strict=True):
        assert_costs(calls, cost)
    for i, s in enumerate(((), (2, 0), (2, 3, 1))):
        got = np.asarray(sim.value(output_at(1, i)))
        assert got.shape == s and np.all(np.abs(got / 2.0**16 - np.e) < 2**-8)


def test_iterations_of_the_taylor_form_sharpen_it(seed: int) -> None:
    x = clip_inside(np.linspace(-4, 4, 101), -4, 4, 16)
    counts = (1, 4, 12)
    cases: list[tuple[Array, str, str, dict[str, Any]]] = [
        (x, "taylor", "none", {"iterations": k}) for k in counts
    ]
    # (1 + x / 2)^2 does not approximate e^-4, but it is the form of k = 1
    for k, got in zip(counts, run_cases(cases, 64, 16, seed), strict=True):
        power = (1 + x / 2.0**16 / 2**k) ** (2**k)
        bound = 3 * 2**k * 2.0**-16 * np.maximum(np.maximum(power, np.exp(x / 2.0**16)), 1)
        assert np.all(np.abs(got - power) <= bound), k


def test_one_round_fails_as_often_as_it_says() -> None:
    # 37 bits above the softmax range's end failures have a probability of 2^-3.
    form = exp_one_round.plan_one_round_exp(64, 16, softmax=True)
    assert form.failure_probability == 2.0**-40
    x = np.full(MANY, round(37 * LN2 * 2**16))
    sim = simulate(
        lambda p, x: p.function(lambda x: form.evaluate_exp(p, x))(x), x, fractional_bits=16
    )
    exact = np.exp(x[0] / 2.0**16)
    wrong = int(np.sum(np.abs(decode_ring(sim.value(), 64, 16) / exact - 1) > 2.0**-20))
    expected = exact * 2.0 ** (-37 - 3)
    assert stats.binomtest(wrong, MANY, expected).pvalue > ALPHA


def test_failure_probabilities_are_those_that_the_modules_declare() -> None:
    for ring_bits, f in RINGS:
        for softmax in (False, True):
            assert (
                choose_exp_form("one-round", ring_bits, f, softmax=softmax).failure_probability
                <= 2.0**-40
            )
        for method in ("taylor", "pade"):
            assert choose_exp_form(method, ring_bits, f).failure_probability <= (
                0 if ring_bits == 64 else 2**-40
            )
    assert choose_exp_form("prime", 128, 40).failure_probability < 2.0**-56
    assert 2.0**-30 < choose_exp_form("prime", 64, 16).failure_probability < 2.0**-29


# ---- seed 000: SecretFlow's measurement of its three forms in FM128 with 40 fractional bits

PUBLISHED = {  # shares of points with APE < 5, 1, 0.05 % and AE < 5, 1, 0.05; MAPE
    "prime": ((0.6177, 0.5981, 0.5607, 0.7074, 0.6925, 0.6561), 3.898e-6),
    "taylor": ((0.1285, 0.0568, 0.0126, 0.5595, 0.5458, 0.5242), 0.209),
    "pade": ((0.5557, 0.5548, 0.5439, 0.6811, 0.6624, 0.6260), 1.605e-5),
}
# MSE and MAE: the prime form's published ones (1075 and 6.12) contain a float32 input; without it
# its model gives 201 and 3.06.
ERRORS = {"prime": (201, 3.06), "taylor": (7.6e14, 5.94e6), "pade": (1.32e6, 153.8)}


def test_effective_ranges_and_errors_are_the_published_ones(seed: int) -> None:
    wide, narrow = np.linspace(-40, 40, 3000), np.linspace(-20, 20, 3000)
    values = np.rint(np.concatenate([wide, narrow]) * 2.0**40).astype(np.int64)
    clamps = {"prime": "low", "taylor": "none", "pade": "both", "one-round": "none"}
    cases: list[tuple[Array, str, str, dict[str, Any]]] = [
        (values, method, clamp, {}) for method, clamp in clamps.items()
    ]
    for method, got in zip(clamps, run_cases(cases, 128, 40, seed), strict=True):
        error = np.abs(got - np.exp(np.concatenate([wide, narrow])))
        relative = error / np.exp(np.concatenate([wide, narrow]))
        absolute, share_of = error[:3000], relative[:3000]
        portions = [float(np.mean(share_of < t)) for t in (0.05, 0.01, 0.0005)]
        portions += [float(np.mean(absolute < t)) for t in (5, 1, 0.05)]
        mape = relative[3000:].mean()
        mse, mae = (error[3000:] ** 2).mean(), error[3000:].mean()
        if method == "one-round":  # better than all of them; at -20 its last bit dominates the MAPE
            assert all(a > b for a, b in zip(portions, PUBLISHED["prime"][0], strict=True))
            assert mape < 5e-6 and mae < 1e-3
            continue
        expected, expected_mape = PUBLISHED[method]
        assert np.allclose(portions, expected, atol=0.01), (method, portions)
        assert mape == pytest.approx(expected_mape, rel=0.25), method
        assert (mse, mae) == pytest.approx(ERRORS[method], rel=0.4), method


# ---- the parties' views

ELEMENTS = 4096


@pytest.mark.parametrize(("ring_bits", "f"), RINGS)
@pytest.mark.parametrize("clamp", ["none", "both"])
def test_received_words_are_uniform_and_never_repeat_under_frozen_shares(
    ring_bits: int, f: int, clamp: str, heard: list[list[Any]], rng: np.random.Generator
) -> None:
    value = int(rng.choice([0, -3 << f, 2**f + 12345]))
    methods = METHODS if clamp == "none" else ("one-round",)

    def program(p: Party) -> list[list[Any]]:
        import tensorflow as tf

        one = share_ring(np.array([value]), p.index, ring_bits, f, 0, 5)
        x = one.map(lambda a: tf.repeat(a, ELEMENTS, axis=0))
        calls = []
        for method in methods:

            def compute(x: Shared, method: str = method) -> Any:
                heard[p.index].clear()
                return exp(p, x, method, clamp), list(heard[p.index])

            graph = p.function(compute)
            calls.append([graph(x)[1], graph(x)[1]])
        return calls

    sim = simulate(program, keys=[rng.bytes(16) for _ in range(3)], dealer=0)
    p_values = []
    for party, calls in enumerate(sim.outputs):
        for method, both in zip(methods, calls, strict=True):
            assert bool(both[0]) == (party != 0)  # the dealer receives nothing
            words = []
            for message in (m for call in both for m in call):
                raw = np.ascontiguousarray(message).reshape(-1)
                if raw.dtype == np.uint8:  # packed short words: uniform, but equal ones are common
                    p_values.append(uniform_p(raw))
                    continue
                words.append(raw.view(np.uint64))
                # the highest byte that is full in residues of 61 and 127 bits too
                lanes = raw.view(np.uint64).reshape(-1, ring_bits // 64)
                prime = method == "prime"
                for lane in lanes.T:
                    p_values.append(uniform_p((lane >> np.uint64(48 if prime else 56)) & 255))
            if words:
                stream = np.concatenate(words)
                assert len(np.unique(stream)) == len(stream), (method, party)
    assert min(p_values) * len(p_values) > ALPHA


def uniform_p(symbols: Array) -> float:
    """Return the chi-square p-value of bytes against uniformity."""
    counts = np.bincount(symbols.astype(np.int64), minlength=256)
    return float(stats.chisquare(counts).pvalue)


def test_each_mask_hides_one_message_only() -> None:
    def program(p: Party, x: Shared) -> Any:
        f = p.function(lambda x: [exp(p, x), exp(p, x, "prime")])
        return f(x), f(x)

    def masks(**options: Any) -> tuple[int, int]:
        pads = simulate(
            program, np.arange(300) << 8, fractional_bits=16, record=True, **options
        ).pads
        sent = pads[pads["sent"] == 1]
        names = set(zip(sent["key"], sent["hi"], sent["lo"], strict=True))
        return len(sent), len(names)

    # one-round: A2, y1, y2; prime: u2, a b, two bits, y1, y2; each in two calls
    assert masks() == (18, 18)
    sent, names = masks(fault="reuse_counter")
    assert names < sent


# ---- refusals

REFUSED: dict[str, Callable[[Party, Shared], Any]] = {
    "an unknown method": lambda p, x: exp(p, x, "tailor"),
    "an unknown clamp": lambda p, x: exp(p, x, clamp="high"),
    "a ring of 65 bits": lambda p, x: exp(p, Shared(x.m, x.l1, x.l2, 0, 16, 2, 65)),
    "a ring of 40 bits": lambda p, x: exp(p, Shared(x.m, x.l1, x.l2, 0, 16, 1, 40)),
    "a public tensor": lambda p, x: exp(p, x.any),
    "no fractional bits": lambda p, x: exp(p, Shared(x.m, x.l1, x.l2, 0, 0)),
    "too many for one round": lambda p, x: exp(p, Shared(x.m, x.l1, x.l2, 0, 31)),
    "too many for a prime": lambda p, x: exp(p, Shared(x.m, x.l1, x.l2, 0, 21), "prime"),
    "too many for pade": lambda p, x: exp(p, Shared(x.m, x.l1, x.l2, 0, 25), "pade"),
    "too many for taylor": lambda p, x: exp(p, Shared(x.m, x.l1, x.l2, 0, 31), "taylor"),
    "too many iterations": lambda p, x: exp(p, x, "taylor", iterations=15),
    "no iterations": lambda p, x: exp(p, x, "taylor", iterations=0),
}


CODES = {
    "an unknown method": "unknown-name",
    "an unknown clamp": "unknown-name",
    "a ring of 65 bits": "unsupported-ring",
    "a ring of 40 bits": "unsupported-ring",
    "a public tensor": "not-private",
    "no iterations": "number-out-of-range",
}


def test_exp_refuses_what_does_not_fit_and_says_why() -> None:
    def program(p: Party, x: Shared) -> Any:
        for what, call in REFUSED.items():
            with raises(UsageError, CODES.get(what, "unsupported-scale"), operation="exp"):
                call(p, x)
                pytest.fail(what)

    simulate(program, np.zeros(1, np.int64), fractional_bits=16)
    with raises(UsageError, "unknown-name", operation="exp") as caught:
        cost_of(exp, Private((1,)), "tailor")
    assert 'Did you mean "taylor"' in str(caught.value)
    with raises(UsageError, "unsupported-ring"):
        choose_exp_form("one-round", 96, 16)

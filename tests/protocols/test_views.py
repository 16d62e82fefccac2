"""What the parties see does not depend on private values.

Three tools, each of which catches what the others miss (the seeded faults below prove it):
statistics of every received word against uniformity, the secret and the receiver's own shares;
frozen shares under fresh masks, where all received words must differ; and stripping, where the
receiver subtracts every pad that its own keys can make.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from scipy import stats

from tfe_bench.cluster.simulate import Simulation, simulate
from tfe_bench.errors import TfeBenchError
from tfe_bench.protocols.functions import exp_select
from tfe_bench.protocols.nn import adaptive, linear, relu
from tfe_bench.protocols.order import extremes, shuffle, sort
from tfe_bench.protocols.order.sort_plan import SortPlan
from tfe_bench.protocols.ring import (
    arithmetic,
    backward,
    compare,
    convert,
    logic,
    products,
    range_check,
    relational,
    rotation,
    rss,
    truncation,
)
from tfe_bench.protocols.session import io
from tfe_bench.protocols.session.party import Party, Site
from tfe_bench.protocols.session.sharing import Shared

ALPHA = 1e-6
SIDE = 128
WORDS = SIDE * SIDE  # elements per message
SOME = 2048  # of them, for correlations of every plane with every other
PAIRS = ((0, 1), (1, 2**63), (3, 2**64 - 1))
SECRETS = tuple(dict.fromkeys(s for pair in PAIRS for s in pair))
LOOSE = 24  # bits that truncate_reduce leaves: whole bytes
WIDTH = 4  # values per row where rows are compared
Words = np.ndarray[Any, Any]


# ---- the protocols under test


def matrix(x: Shared) -> Shared:
    """[SIDE, SIDE] of the elements of a vector."""
    import tensorflow as tf

    return x.map(lambda a: tf.reshape(a, [SIDE, -1]))


def matmul(party: Party, x: Shared, y: Shared, plain: Any) -> Any:
    left, right = matrix(x).map(lambda a: a[:, :2]), matrix(y).map(lambda a: a[:2])
    return arithmetic.matmul(party, left, right)


def from_bits(party: Party, x: Shared, y: Shared, plain: Any) -> Any:
    bits = convert.open_bits(party, compare.msb(party, x))
    return convert.b2a(party, bits), convert.inject(party, bits, y)


def secretly_shuffled(party: Party, x: Shared, y: Shared, plain: Any) -> Any:
    import tensorflow as tf

    rows = [c.map(lambda a: tf.reshape(a, [-1, 4])) for c in (x, y)]
    return shuffle.shuffle(party, rows)


def extended(party: Party, x: Shared, y: Shared, plain: Any) -> Any:
    """A small ring's value times a bit, in the whole ring: three packed wraps besides."""
    bits = convert.open_bits(party, compare.msb(party, x))
    small = truncation.truncate_reduce(party, y, 16, LOOSE)
    return convert.inject(party, bits, small, extend_ring=True), convert.inject(
        party, bits, small, negated=True, extend_ring=True
    )


def reduced(party: Party, x: Shared, y: Shared, plain: Any) -> Any:
    """A value times a bit, less what leaves LOOSE bits: the same message as above."""
    bits = convert.open_bits(party, compare.msb(party, x))
    return backward.inject_truncated(party, bits, y, 64 - LOOSE)


def selected(party: Party, x: Shared, y: Shared, plain: Any) -> Any:
    """Exponentials times bits, inside and outside of the range."""
    bits = convert.open_bits(party, compare.msb(party, x))
    return exp_select.select_exp(party, bits, replace(y, fractional_bits=16))


def lifted(party: Party, x: Shared, y: Shared, plain: Any) -> Any:
    """A product with a factor of LOOSE bits: three packed fields besides."""
    small = truncation.truncate_reduce(party, y, 16, LOOSE)
    return adaptive.lifted_product(party, x, small)


def stepped(party: Party, x: Shared, y: Shared, plain: Any) -> Any:
    """A direction of an adaptive optimizer; what it computes of such values is arbitrary."""
    return adaptive.direction(party, x, replace(y, fractional_bits=40))


def conjunction(party: Party, x: Shared, y: Shared, plain: Any) -> Any:
    signs = [convert.open_bits(party, compare.msb(party, c, 31, 2)) for c in (x, y)]
    return convert.open_bits(party, logic.all_of(party, [*signs, logic.invert(signs[0])]))


def truncated(party: Party, x: Shared, y: Shared, plain: Any) -> Any:
    """A product with its bias, truncated to a small ring of 24 bits from messages of 40."""
    bias = arithmetic.add(x, y)
    return relu.truncated_product(party, x, y, 16, LOOSE, products.elementwise, bias)


def summed(party: Party, x: Shared, y: Shared, plain: Any) -> Any:
    """Two products and an addend, opened as one: in the ring, and truncated to 24 bits."""
    terms = [
        products.Product(x, y, products.elementwise),
        products.Product(y, y, products.elementwise),
    ]
    addend = arithmetic.add(x, y)
    z = products.opened(party, "product_sum", terms)
    return arithmetic.add(z, addend), products.truncated(
        party, "truncated_sum", terms, addend, 16, LOOSE
    )[0]


def watched(party: Party, x: Shared, y: Shared, plain: Any) -> Any:
    """A ReLU of a sum and, for each element, whether it left its range."""
    watch = range_check.Watch(party, WORDS, x.dealer)
    product = products.Product(x, y, products.elementwise)
    small, u = products.truncated(party, "truncated_sum", [product], None, 16, LOOSE, True)
    return linear.watched_relu(party, watch, small, u, 16), watch.flag()


def renamed(party: Party, x: Shared, y: Shared, plain: Any) -> Any:
    """Shares as another dealer sees them: its lambda is what was masked, and the reverse."""
    return [relu.relu(party, rotation.named(party, x, (x.dealer + turn) % 3)) for turn in (1, 2)]


def rows_of(x: Shared) -> Shared:
    import tensorflow as tf

    return x.map(lambda a: tf.reshape(a, [WIDTH, -1]))


def picked(party: Party, x: Shared, y: Shared, plain: Any) -> Any:
    """The largest of each row by comparisons of all pairs, and its place."""
    return extremes._found(party, rows_of(x), "all-pairs", 31, None, index=True)


def halved(party: Party, x: Shared, y: Shared, plain: Any) -> Any:
    return extremes.argmin(party, rows_of(x).map(lambda a: a[:2]), 0, bits=31, method="tree")


def both_ways(party: Party, x: Shared, y: Shared, plain: Any) -> Any:
    return relational.equal(party, x, y, 31, 2)


def owned(owner: int) -> Callable[..., Any]:
    def protocol(party: Party, x: Shared, y: Shared, plain: Any) -> Any:
        return io.input_by(party, owner, plain if party.index == owner else None, (WORDS,))

    return protocol


PROTOCOLS: dict[str, Callable[..., Any]] = {
    "input_by_0": owned(0),
    "input_by_1": owned(1),
    "input_by_2": owned(2),
    "mul": lambda p, x, y, _: arithmetic.mul(p, x, y),
    "matmul": matmul,
    "rss_mul": lambda p, x, y, _: rss.mul(p, x, y),
    "truncate_safe": lambda p, x, y, _: truncation.truncate(p, x, 16),
    "truncate_probable": lambda p, x, y, _: truncation.truncate(p, x, 16, "probable"),
    "truncate_exact": lambda p, x, y, _: truncation.truncate(p, x, 16, "exact"),
    "truncate_reduce": lambda p, x, y, _: truncation.truncate_reduce(p, x, 16, LOOSE),
    "from_bits": from_bits,
    "extend": lambda p, x, y, _: convert.extend(p, x, 4),
    "msb_31": lambda p, x, y, _: compare.msb(p, x, 31, 2),
    "shuffle": secretly_shuffled,
    "extended": extended,
    "inject_truncated": reduced,
    "select_exp": selected,
    "lifted_product": lifted,
    "direction": stepped,
    "all_of": conjunction,
    "truncated_product": truncated,
    "product_sum": summed,
    "watched": watched,
    "relu": lambda p, x, y, _: relu.relu(p, x),
    "renamed": renamed,
    "small_relu": lambda p, x, y, _: relu.relu(p, truncation.truncate_reduce(p, x, 16, LOOSE)),
    "all_pairs": picked,
    "tree": halved,
    "equal": both_ways,
}
# Sites whose messages are bit planes, by superblocks of 8 words; all others are ring elements.
PLANES = ("msb", "open_bits", "extend", "reveal_bits", "all_of")
# Comparisons at a time, where they are not one per element.
COMPARED = {picked: WIDTH * (WIDTH - 1) // 2 * WORDS // WIDTH, halved: WORDS // WIDTH}
COMPARED[both_ways] = 2 * WORDS
# Sites where D deals two words and, to values of LOOSE bits, three packed wraps per element.
INJECTED = ("inject", "inject_truncated", "pick")
WRAP = (64 - LOOSE) // 8
# Widths of the arrays, one value per element each, in packed messages that are no whole bytes.
LAYOUTS = {
    ("adaptive_select", 0): ([26] * 3 + [24] * 3, [26] * 5 + [24] * 5 + [26] * 5),
    ("adaptive_select", 1): ([24], [11]),
    ("adaptive_select", 2): ([26],),
    ("adaptive_root", 1): ([14],),
}
# Factors' rings of lifted products, in a protocol that is their test.
LIFTED = (LOOSE, 26, 14)
# Bytes per element below which words repeat by chance: too short to be told from uncovered ones.
TELLING = 5


# ---- capture


@dataclass
class Tap:
    """Every tensor that a party receives, in the order in which its graph asks for them."""

    names: dict[int, str] = field(default_factory=dict)
    heard: tuple[list[Any], ...] = field(default_factory=lambda: ([], [], []))
    labels: tuple[list[Any], ...] = field(default_factory=lambda: ([], [], []))

    def traced(self, party: Party, protocol: Callable[..., Any]) -> Callable[..., Any]:
        """The protocol as a function for party.function that returns what was received."""

        def function(*arguments: Any) -> Any:
            self.heard[party.index].clear()
            self.labels[party.index].clear()
            result = protocol(party, *arguments)
            return result, list(self.heard[party.index])

        return function


@pytest.fixture
def tap(monkeypatch: pytest.MonkeyPatch) -> Tap:
    """What all parties receive while the test runs."""
    tap = Tap()
    site, recv = Party.site, Site.recv

    def named(self: Party, name: str, *about: Any, dealer: int | None = None) -> Site:
        made = site(self, name, *about, dealer=dealer)
        tap.names[made.number] = name
        return made

    def tapped(self: Site, shape: Any, source: int, slot: int = 0, dtype: Any = None) -> Any:
        data = recv(self, shape, source, slot, dtype)
        tap.heard[self.party.index].append(data)
        tap.labels[self.party.index].append((self.number, slot, source))
        return data

    monkeypatch.setattr(Party, "site", named)
    monkeypatch.setattr(Site, "recv", tapped)
    return tap


@dataclass(frozen=True)
class Message:
    """One received message, or one of several arrays in it.

    Attributes:
        elements: in the array, or bits in each of its planes.
    """

    site: int
    slot: int
    source: int
    name: str
    data: Words
    elements: int

    @property
    def planes(self) -> bool:
        """Whether this is bits rather than ring elements."""
        return self.name in PLANES

    def lanes(self) -> Words:
        """uint8 [elements, bytes of one]."""
        flat = np.ascontiguousarray(self.data).reshape(-1).view(np.uint8)
        return flat.reshape(self.elements, -1)

    def bits(self) -> Words:
        """uint8 [planes, elements]."""
        if self.name == "all_of":
            packed = np.ascontiguousarray(self.data).view(np.uint8)
        else:
            blocks = self.data.reshape(self.elements // 512, -1, 8)  # superblock, plane, word
            packed = np.ascontiguousarray(blocks.swapaxes(0, 1)).view(np.uint8)
        return np.unpackbits(packed.reshape(len(packed), -1), axis=1, bitorder="little")

    def words(self) -> Words:
        """The elements, or the words of planes, as uint64."""
        if self.data.dtype == np.uint8:
            lanes = self.lanes()
            whole = np.zeros((self.elements, 8), np.uint8)
            whole[:, : lanes.shape[1]] = lanes
            return whole.view(np.uint64).reshape(-1)
        return np.ascontiguousarray(self.data).reshape(-1).view(np.uint64)


def rows_in(data: Words, widths: Sequence[int]) -> Iterator[Words]:
    """Arrays that are packed one after the other: of each value its whole bytes."""
    ends = np.cumsum(widths) * WORDS // 8
    for width, part in zip(widths, np.split(data, ends[:-1]), strict=True):
        bits = np.unpackbits(part, bitorder="little").reshape(WORDS, width)
        yield np.packbits(bits[:, : width // 8 * 8], axis=1, bitorder="little").reshape(-1)


def arrays(
    site: int, slot: int, source: int, name: str, data: Words, compared: int
) -> Iterator[Message]:
    """The arrays of a message as it was received."""
    made = functools.partial(Message, site, slot, source, name)
    if name == "msb":
        yield made(data, compared)
    elif name == "all_of":
        yield made(data, 64 * data.shape[1])
    elif name in PLANES:  # one plane
        yield made(data, 64 * data.size)
    elif name in INJECTED and data.dtype == np.uint8:
        # (as many elements as a power of 2: only one of the two divides)
        each = 16 if data.size % (16 + 3 * WRAP) else 16 + 3 * WRAP
        n = data.size // each
        ends = np.cumsum([8 * n, 8 * n] + [WRAP * n] * 3)
        assert data.size in (ends[1], ends[-1])
        for i, end in enumerate(ends[ends <= data.size]):
            part = data[end - (8 if i < 2 else WRAP) * n : end]
            yield made(part.view(np.int64) if i < 2 else part, n)
    elif name == "lifted_product" and data.dtype == np.uint8:
        yield made(data[: 8 * WORDS].view(np.int64), WORDS)
        (ring,) = (k for k in LIFTED if 64 + 3 * (64 - k) == 8 * data.size // WORDS)
        for part in rows_in(data[8 * WORDS :], [64 - ring] * 3):
            yield made(part, WORDS)
    elif name == "truncate_safe" and slot == 0:
        yield made(data[: 8 * WORDS].view(np.int64), WORDS)
        for part in rows_in(data[8 * WORDS :], [8 * data.size // WORDS - 64]):
            yield made(part, WORDS)
    elif (name, slot) in LAYOUTS:
        (widths,) = (w for w in LAYOUTS[name, slot] if sum(w) * WORDS == 8 * data.size)
        for part in rows_in(data, widths):
            yield made(part, WORDS)
    else:
        yield made(data, WORDS if data.dtype == np.uint8 else min(WORDS, data.size))


@dataclass(frozen=True)
class View:
    """What one party holds and receives in one graph call."""

    own: list[Words]
    received: list[Message]

    def stream(self) -> Words:
        """All received 64-bit words."""
        raw = [np.ascontiguousarray(m.data).reshape(-1).view(np.uint8) for m in self.received]
        return np.concatenate(raw).view(np.uint64) if raw else np.zeros(0, np.uint64)


@dataclass(frozen=True)
class Run:
    """A protocol's views by secret and party, and those of two calls with the same frozen shares.

    In a frozen call all elements have one and the same share, so that only the masks vary.
    """

    fresh: dict[int, list[View]]
    frozen: list[list[View]]
    sim: Simulation


def watch(
    tap: Tap,
    protocol: Callable[..., Any],
    rng: np.random.Generator,
    secrets: Sequence[int] = SECRETS,
    **options: Any,
) -> Run:
    """Runs one protocol on every secret, and twice on frozen shares of the last one."""
    import tensorflow as tf

    plain = [np.full(WORDS, s, np.uint64).view(np.int64) for s in secrets]
    constant = np.full(WORDS, 5, np.int64)

    def program(party: Party, *columns: Shared) -> Any:
        *xs, y = columns
        graph = party.function(tap.traced(party, protocol))
        calls = [(x, y, tf.constant(p)) for x, p in zip(xs, plain, strict=True)]
        still = [c.map(lambda a: tf.fill(tf.shape(a), a[0])) for c in (xs[-1], y)]
        calls += [(*still, tf.constant(plain[-1]))] * 2
        views = []
        for x, other, p in calls:
            _, received = graph(x, other, p)
            own = [getattr(c, k) for c in (x, other) for k in ("m", "l1", "l2")]
            views.append(([t for t in own if t is not None], received))
        return views

    options.setdefault("keys", [rng.bytes(16) for _ in range(3)])
    sim = simulate(program, *plain, constant, seed=rng.bytes(16), **options)

    def view(party: int, call: int) -> View:
        own, received = sim.outputs[party][call]
        labels = tap.labels[party]
        compared = COMPARED.get(protocol, WORDS)
        messages = [
            message
            for (site, slot, source), data in zip(labels, received, strict=True)
            for message in arrays(site, slot, source, tap.names[site], data, compared)
        ]
        return View([o.reshape(-1).view(np.uint64) for o in own], messages)

    def views(call: int) -> list[View]:
        return [view(p, call) for p in range(3)]

    last = len(secrets)
    return Run({s: views(i) for i, s in enumerate(secrets)}, [views(last), views(last + 1)], sim)


# ---- statistics


def uniform_p(symbols: Words, values: int = 256) -> float:
    """Chi-square of symbols in range(values) against uniformity."""
    return float(stats.chisquare(np.bincount(symbols, minlength=values)).pvalue)


def independent_p(table: Words) -> float:
    """Chi-square of a contingency table."""
    total = table.sum()
    expected = np.outer(table.sum(axis=1), table.sum(axis=0)) / total
    if not expected.all():
        return 0.0  # 16384 draws that miss one of 16 or 256 values altogether
    statistic = ((table - expected) ** 2 / expected).sum()
    return float(stats.chi2.sf(statistic, (table.shape[0] - 1) * (table.shape[1] - 1)))


def nibbles_p(a: Words, b: Words) -> float:
    """Independence of two columns of nibbles."""
    return independent_p(np.bincount(a * 16 + b, minlength=256).reshape(16, 16))


def normal_p(z: Words) -> float:
    """The least of two-sided p-values, times their number."""
    return float(min(1.0, 2 * stats.norm.sf(np.abs(z).max()) * z.size)) if z.size else 1.0


def signs(bits: Words) -> Words:
    """+1 and -1 instead of 1 and 0."""
    return bits.astype(np.float32) * 2 - 1


def word_checks(message: Message, own: list[Words]) -> Iterator[tuple[str, float]]:
    """Uniformity, joint distribution with own shares, and neighbours of ring elements."""
    lanes = message.lanes()
    for lane in sorted({0, lanes.shape[1] // 2, lanes.shape[1] - 1}):
        yield "uniform", uniform_p(lanes[:, lane])
        yield "neighbours", uniform_p(lanes[0::2, lane] - lanes[1::2, lane])
    low, high = lanes[:, 0] & 15, lanes[:, -1] >> 4
    for share in own:
        held = share[: len(lanes)]
        for nibble in (held & np.uint64(15), held >> np.uint64(60)):
            yield "own share", nibbles_p(nibble.astype(np.int64), low)
            yield "own share", nibbles_p(nibble.astype(np.int64), high)


def plane_checks(message: Message, own: list[Words]) -> Iterator[tuple[str, float]]:
    """Balance of every plane, and its correlation with neighbours, planes and own share bits."""
    bits = signs(message.bits())
    scale = np.sqrt(message.elements)
    yield "uniform", normal_p(bits.sum(axis=1) / scale)
    yield "neighbours", normal_p((bits[:, 1:] * bits[:, :-1]).sum(axis=1) / scale)
    some = bits[:, :SOME]  # what a pad used twice would leave is no weak correlation
    between = some @ some.T / np.sqrt(SOME)
    yield "planes", normal_p(between[np.triu_indices(len(bits), 1)])
    for share in own:
        held = share[:SOME].view(np.uint8).reshape(SOME, 8)
        held = signs(np.unpackbits(held, axis=1, bitorder="little"))
        yield "own share", normal_p(some @ held / np.sqrt(SOME))


def two_sample_checks(a: Message, b: Message) -> Iterator[tuple[str, float]]:
    """One message under two secrets."""
    if a.planes:
        ones = [m.bits().sum(axis=1, dtype=np.int64) for m in (a, b)]
        yield "secret", normal_p((ones[0] - ones[1]) / np.sqrt(a.elements / 2))
        return
    lanes = [m.lanes() for m in (a, b)]
    for lane in sorted({0, lanes[0].shape[1] - 1}):
        counts = [np.bincount(x[:, lane], minlength=256) for x in lanes]
        used = np.array(counts)
        yield "secret", independent_p(used[:, used.any(axis=0)])


def checks(run: Run) -> Iterator[tuple[str, float]]:
    """(name, p-value) of every check of a run; 0.0 for a certain failure."""
    for views in run.fresh.values():
        for view in views:
            for message in view.received:
                made = plane_checks if message.planes else word_checks
                yield from made(message, view.own)
    for a, b in PAIRS:
        for left, right in zip(run.fresh[a], run.fresh[b], strict=True):
            for one, other in zip(left.received, right.received, strict=True):
                yield from two_sample_checks(one, other)
    yield from frozen_checks(run)


def frozen_checks(run: Run) -> Iterator[tuple[str, float]]:
    """All words differ within one call ("frozen") and in both ("frozen again").

    Messages of short elements are packed: there equal elements are as rare as chance has it.
    """
    for first, second in zip(*run.frozen, strict=True):
        alone = [view.stream() for view in (first, second)]
        for words in alone:
            yield "frozen", float(len(np.unique(words)) == len(words))
        both = np.concatenate(alone)
        yield "frozen again", float(len(np.unique(both)) == len(both))
        for one, other in zip(first.received, second.received, strict=True):
            if one.data.dtype != np.uint8:
                continue
            a, b = one.lanes(), other.lanes()
            for lag in (1, 2, 4):
                yield "frozen", equal_p(a[lag:], a[:-lag])
            yield "frozen again", equal_p(a, b)


def equal_p(a: Words, b: Words) -> float:
    """Whether more rows are equal than among uniform ones."""
    count = (a == b).all(axis=1).sum()
    return float(stats.binom.sf(count - 1, len(a), 0.5 ** (8 * a.shape[1])))


def failing(run: Run, made: Callable[[Run], Iterator[tuple[str, float]]] = checks) -> set[str]:
    """Names of the checks that fail at ALPHA for the whole run."""
    found = list(made(run))
    return {name for name, p in found if p * len(found) < ALPHA}


def received(run: Run) -> int:
    """Messages that the parties got in one call."""
    return sum(len(view.received) for view in run.frozen[0])


@pytest.mark.parametrize("name", PROTOCOLS)
def test_received_messages_are_uniform_and_independent_of_secret_and_own_shares(
    name: str, tap: Tap, rng: np.random.Generator
) -> None:
    run = watch(tap, PROTOCOLS[name], rng, dealer=int(rng.integers(3)))
    assert received(run) > 0
    assert failing(run) == set()


@pytest.mark.parametrize("name", PROTOCOLS)
@pytest.mark.parametrize(
    ("fault", "caught_by"),
    [("drop_mask", "frozen"), ("reuse_block", "frozen"), ("reuse_counter", "frozen again")],
)
def test_frozen_shares_show_a_seeded_mask_fault(
    name: str, fault: str, caught_by: str, tap: Tap, rng: np.random.Generator
) -> None:
    run = watch(tap, PROTOCOLS[name], rng, SECRETS[-1:], fault=fault)
    assert caught_by in failing(run, frozen_checks)


@pytest.mark.parametrize("fault", ["drop_mask", "reuse_block"])
def test_statistics_of_fresh_shares_show_a_seeded_mask_fault(
    fault: str, tap: Tap, rng: np.random.Generator
) -> None:
    run = watch(tap, PROTOCOLS["truncate_safe"], rng, fault=fault)
    assert failing(run) & {"uniform", "neighbours", "own share", "secret"}


# ---- the publication of bits, where the receivers may learn exactly the result


def published(party: Party, x: Shared, y: Shared, plain: Any) -> Any:
    return io.reveal_bits(party, compare.msb(party, x))


def test_revealed_bits_give_away_nothing_but_themselves(tap: Tap, rng: np.random.Generator) -> None:
    """Every single message is uniform; the dealer's two, and an evaluator's with its own, give
    the bits.  (The evaluators' shares of them are made by the masks of the comparison.)"""
    run = watch(tap, published, rng)
    p_values = []
    for secret, views in run.fresh.items():
        for party, view in enumerate(views):
            messages = [m for m in view.received if m.name == "reveal_bits"]
            assert len(messages) == (2 if party == 0 else 1)
            for message in messages:
                p_values += [p for _, p in plane_checks(message, view.own)]
            if party == 0:
                sums = messages[0].data ^ messages[1].data
                assert (sums == (-1 if secret >= 2**63 else 0)).all()
    assert min(p_values) * len(p_values) > ALPHA


def test_dropped_masks_show_in_revealed_bits(tap: Tap, rng: np.random.Generator) -> None:
    run = watch(tap, published, rng, SECRETS[-1:], fault="drop_mask")
    assert "frozen" in failing(run, frozen_checks)


# ---- stripping: the receiver takes off every pad that it can make


def pads_of(key: bytes, hi: int, lo: int, words: int) -> Words:
    """The mask of a counter, by another AES than the product's."""
    blocks = np.empty((-(-words // 2), 2), "<u8")
    blocks[:, 0] = lo + np.arange(len(blocks), dtype=np.uint64)
    blocks[:, 1] = hi
    encryptor = Cipher(algorithms.AES(key), modes.ECB()).encryptor()
    made = encryptor.update(blocks.tobytes()) + encryptor.finalize()
    return np.frombuffer(made, "<u8")[:words]


def holds(party: int) -> tuple[int, int]:
    """Indices of a party's keys."""
    return party, (party + 1) % 3


def strippable(message: Message, pads: dict[Any, Words]) -> list[Any]:
    """Which one or two pads leave words that do not vary: the message was in the clear to them.

    The shares are frozen, so that a word without its masks repeats.
    """
    words = message.words()
    xor = message.planes
    width = 64 if message.data.dtype != np.uint8 else 8 * message.lanes().shape[1]
    ring = np.uint64(2**width - 1)

    def without(left: Words, pad: Words) -> Iterator[Words]:
        if xor:
            yield left ^ pad
        else:
            yield (left - pad) & ring
            yield (left + pad) & ring

    found: list[Any] = []
    once = [(pad, rest) for pad, p in pads.items() for rest in without(words, p[: len(words)])]
    for pad, rest in once:
        top = (rest >> np.uint64(width - 4)).astype(np.uint8)
        if (rest[1:] == rest[:-1]).any() or uniform_p(top, 16) < ALPHA / 1000:
            found.append(pad)
    few = slice(0, 512)
    for a, rest in once:
        for b in (pad for pad in pads if pad > a):
            if any((r[1:] == r[:-1]).any() for r in without(rest[few], pads[b][few])):
                found.append((a, b))
    return found


def stripped(run: Run, keys: Sequence[bytes], dealer: int) -> dict[str, list[Any]]:
    """By "protocol to party", the strippable messages of a frozen call and the pads that did it."""
    found: dict[str, list[Any]] = {}
    his = np.unique(run.sim.pads["hi"])
    for party, view in enumerate(run.frozen[-1]):
        for message in view.received:
            if message.data.dtype == np.uint8 and message.lanes().shape[1] < TELLING:
                continue
            # the last call has the highest step
            hi = int(max(h for h in his if int(h) >> 40 == message.site))
            pads = {
                (key, role, tensor): pads_of(
                    keys[key], hi, dealer << 42 | role << 40 | tensor << 32, len(message.words())
                )
                for key in holds(party)
                for role in (1, 2, 3)
                for tensor in range(8)
            }
            found.setdefault(f"{message.name} to {party}", []).extend(strippable(message, pads))
    return found


QUICKLY_STRIPPED = ("mul", "truncate_safe", "from_bits")
STRIPPED = (
    "input_by_0",
    "input_by_1",
    "input_by_2",
    "mul",
    "matmul",
    "rss_mul",
    "truncate_safe",
    "truncate_exact",
    "from_bits",
    "shuffle",
    "extended",
    "inject_truncated",
    "select_exp",
    "lifted_product",
    "all_of",
    "truncated_product",
    "product_sum",
    "watched",
    "small_relu",
    "all_pairs",
    "tree",
)


# (test_joint_views.py asks for every site whether its receivers lack the pads' keys.)
@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[pytest.mark.slow] * (n not in QUICKLY_STRIPPED)) for n in STRIPPED],
)
def test_no_pads_that_a_receiver_can_make_uncover_a_message(
    name: str, tap: Tap, rng: np.random.Generator
) -> None:
    keys = [rng.bytes(16) for _ in range(3)]
    dealer = int(rng.integers(3))
    run = watch(tap, PROTOCOLS[name], rng, SECRETS[-1:], keys=keys, dealer=dealer, record=True)
    found = stripped(run, keys, dealer)
    assert found and not any(found.values()), found


@pytest.mark.parametrize(
    ("name", "receiver"),
    [
        pytest.param(n, to, marks=[pytest.mark.slow] * (n not in QUICKLY_STRIPPED))
        for n, to in (
            ("input_by_2", "input to 1"),
            ("mul", "mul to 1"),
            ("matmul", "matmul to 1"),
            ("shuffle", "shuffle to 1"),
            ("from_bits", "b2a to 1"),
            ("from_bits", "inject to 2"),
            ("extended", "inject to 2"),
            ("inject_truncated", "inject_truncated to 2"),
            ("lifted_product", "lifted_product to 2"),
            ("all_of", "all_of to 2"),
            ("truncated_product", "truncated_product to 2"),
            ("all_pairs", "pick to 2"),
            ("all_pairs", "index to 2"),
        )
    ],
)
def test_stripping_shows_two_parties_with_one_key(
    name: str, receiver: str, tap: Tap, rng: np.random.Generator
) -> None:
    """k0 = k1: E1 and E2 can make each other's masks, though their counters carry another role."""
    keys = [rng.bytes(16)] * 2 + [rng.bytes(16)]
    run = watch(tap, PROTOCOLS[name], rng, SECRETS[-1:], keys=keys, record=True)
    assert stripped(run, keys, 0)[receiver]
    assert failing(run, frozen_checks) == set()  # the marginals do not show it


def test_masks_are_aes_of_the_documented_counter_block(rng: np.random.Generator) -> None:
    import tensorflow as tf

    keys = [rng.bytes(16) for _ in range(3)]

    def program(party: Party, x: Shared) -> Any:
        def function(x: Shared) -> Any:
            site = party.site("masks")
            roles = [
                role for role in (1, 2, 3) if (party.index, role) not in ((0, 3), (1, 2), (2, 1))
            ]
            return {str(role): site.mask(role, 7, tf.constant([33])) for role in roles}

        return party.function(function)(x)

    sim = simulate(program, np.zeros(1, np.int64), keys=keys, record=True)
    hi = int(sim.pads["hi"][0])
    assert hi >> 40 == 1
    for party in range(3):
        for role, got in sim.outputs[party].items():
            key = {"1": 1, "2": 0, "3": 2}[role]  # dealer 0
            want = pads_of(keys[key], hi, int(role) << 40 | 7 << 32, 33)
            assert np.array_equal(np.asarray(got).view(np.uint64), want)


# ---- shuffles and sorts


def orders(rng: np.random.Generator, fault: str | None = None) -> Words:
    """Where the elements of rows of 4 end up, as numbers in base 4."""
    rows = np.tile(np.arange(4), (4096, 1))

    def program(party: Party, x: Shared) -> Any:
        return party.function(lambda x: shuffle.shuffle(party, [x])[0])(x)

    keys = [rng.bytes(16) for _ in range(3)]
    out: Words = simulate(program, rows, fault=fault, keys=keys).value()
    assert np.array_equal(np.sort(out, axis=1), rows)
    return np.asarray(out @ (4 ** np.arange(4)))


def orders_p(codes: Words) -> float:
    """Uniformity over the 24 orders."""
    counts = np.zeros(24, np.int64)
    found = np.unique(codes, return_counts=True)[1]
    counts[: len(found)] = found
    return float(stats.chisquare(counts).pvalue)


def test_a_shuffle_takes_all_orders_of_a_row_alike(rng: np.random.Generator) -> None:
    codes = orders(rng)
    assert orders_p(codes) > ALPHA
    # rows have orders of their own: neighbours are independent
    of = np.unique(codes, return_inverse=True)[1]
    table = np.bincount(of[0::2] * 24 + of[1::2], minlength=576).reshape(24, 24)
    assert independent_p(table) > ALPHA


def test_a_biased_permutation_shows_in_the_orders_of_rows(rng: np.random.Generator) -> None:
    assert orders_p(orders(rng, "biased_permutation")) < ALPHA


def comparisons(monkeypatch: pytest.MonkeyPatch, matrix: Words, **options: Any) -> Words:
    """Bits [rows, pairs] that the first level of a sort reveals."""
    first: list[tuple[Words, Words]] = []

    class Recording(SortPlan):
        left: Words | None = None

        def levels(self) -> Iterator[tuple[Words, Words]]:
            for left, right in super().levels():
                self.left = left.copy() if self.left is None else np.zeros(0)
                yield left, right

        def answer(self, words: Words) -> None:
            assert self.left is not None
            if len(self.left):
                packed = np.ascontiguousarray(words).view(np.uint8)
                bits = np.unpackbits(packed, bitorder="little")[: len(self.left)]
                first.append((self.left, bits))
            super().answer(words)

    monkeypatch.setattr(sort, "SortPlan", Recording)
    simulate(lambda p, x: sort.sort(p, x, algorithm="quick", full_range=False), matrix, **options)
    rows, n = matrix.shape
    left, bits = first[0]
    assert len(first) == 3
    for _, others in first[1:]:
        assert np.array_equal(bits, others)  # all three parties see the same
    by_row = np.argsort(left // n, kind="stable")
    return np.asarray(bits[by_row].reshape(rows, -1))


@pytest.mark.parametrize("n", [4, 12])
def test_what_a_quick_sort_reveals_has_one_distribution_for_all_inputs(
    n: int, monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator
) -> None:
    rows = 2048
    ascending = np.tile(np.arange(n), (rows, 1))
    inputs = [ascending, ascending[:, ::-1].copy(), np.full((rows, n), 7)]
    bits = [comparisons(monkeypatch, x, keys=[rng.bytes(16) for _ in range(3)]) for x in inputs]
    if n == 4:  # all pairs of a row: 24 answers are possible
        codes = [b @ (1 << np.arange(6)) for b in bits]
        p_values = [orders_p(c) for c in codes]
    else:
        codes = [b.sum(axis=1, dtype=np.int64) for b in bits]
        p_values = []
    table = np.array([np.bincount(c, minlength=128) for c in codes])
    p_values.append(independent_p(table[:, table.any(axis=0)]))
    each = np.array([b.sum(axis=0, dtype=np.int64) for b in bits])
    p_values += [normal_p((each[0] - e) / np.sqrt(rows / 2)) for e in each[1:]]
    assert min(p_values) * len(p_values) > ALPHA, p_values


def test_a_biased_permutation_shows_in_what_a_quick_sort_reveals(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keys = np.tile(np.arange(4), (2048, 1))
    bits = comparisons(monkeypatch, keys, fault="biased_permutation")
    assert orders_p(bits @ (1 << np.arange(6))) < ALPHA


@pytest.mark.parametrize("descending", [False, True])
def test_what_a_sort_reveals_does_not_depend_on_the_data_after_a_sort_of_another_shape(
    monkeypatch: pytest.MonkeyPatch, descending: bool
) -> None:
    """[256, 3] and then [384, 2], one pair per row: each revealed bit is a fair coin.

    A second shuffle by the rows of the first shape would leave the low triples before the high
    ones, so that every third pair compares a low key with a high one.
    """
    revealed: list[Words] = []

    class Recording(SortPlan):
        def answer(self, words: Words) -> None:
            packed = np.ascontiguousarray(words).view(np.uint8)
            revealed.append(np.unpackbits(packed, bitorder="little"))
            super().answer(words)

    def program(party: Party, *matrices: Any) -> None:
        for keys in matrices:
            sort.sort(party, keys, algorithm="quick", descending=descending)

    monkeypatch.setattr(sort, "SortPlan", Recording)
    low_high = np.tile([1, 2, 3, 1000, 2000, 3000], 128).reshape(384, 2)
    with contextlib.suppress(TfeBenchError):  # the question here is what was revealed before it
        simulate(program, np.zeros((256, 3), np.int64), low_high)
    assert len(revealed) == 6  # one level of each sort, seen by three parties
    bits = revealed[-1][:384].reshape(128, 3)
    p_values = [stats.binomtest(int(b), 128).pvalue for b in bits.sum(axis=0)]
    assert min(p_values) > ALPHA, f"ones among 128 reveals: {bits.sum(axis=0)}"

"""What the parties see does not depend on private values.

Three tools, each of which catches what the others miss (the seeded faults below prove it):
statistics of every received word against uniformity, the secret and the receiver's own shares;
frozen shares under fresh masks, where all received words must differ; and stripping, where the
receiver subtracts every pad that its own keys can make.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from scipy import stats

from tfe_bench.cluster.simulate import Simulation, simulate
from tfe_bench.errors import TfeBenchError
from tfe_bench.protocols import arithmetic, compare, convert, io, rss, shuffle, sort, truncation
from tfe_bench.protocols.party import Party, Site
from tfe_bench.protocols.sharing import Shared
from tfe_bench.protocols.sort_plan import SortPlan

ALPHA = 1e-6
SIDE = 128
WORDS = SIDE * SIDE  # elements per message
PAIRS = ((0, 1), (1, 2**63), (3, 2**64 - 1))
SECRETS = tuple(dict.fromkeys(s for pair in PAIRS for s in pair))
LOOSE = 24  # bits that truncate_reduce leaves: whole bytes
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
    "truncate_reduce": lambda p, x, y, _: truncation.truncate_reduce(p, x, 16, LOOSE),
    "from_bits": from_bits,
    "extend": lambda p, x, y, _: convert.extend(p, x, 4),
    "msb_31": lambda p, x, y, _: compare.msb(p, x, 31, 2),
    "shuffle": secretly_shuffled,
}
# Sites whose messages are bit planes, by superblocks of 8 words; all others are ring elements.
PLANES = ("msb", "open_bits", "extend", "reveal_bits")


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
    """One received message: bytes [elements, width], and bits [planes, elements] of planes."""

    site: int
    slot: int
    source: int
    name: str
    data: Words

    @property
    def planes(self) -> bool:
        """Whether this is bits rather than ring elements."""
        return self.name in PLANES

    def lanes(self, elements: int) -> Words:
        """uint8 [elements, bytes of one]."""
        return np.ascontiguousarray(self.data).reshape(-1).view(np.uint8).reshape(elements, -1)

    def bits(self, elements: int) -> Words:
        """uint8 [planes, elements]."""
        blocks = self.data.reshape(elements // 512, -1, 8)  # superblock, plane, word
        packed = np.ascontiguousarray(blocks.swapaxes(0, 1)).view(np.uint8)
        return np.unpackbits(packed.reshape(len(packed), -1), axis=1, bitorder="little")


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
    tap: Tap, protocol: Callable[..., Any], rng: np.random.Generator, dealer: int = 0, **options: Any
) -> Run:
    """Runs one protocol on every secret, and twice on frozen shares of the last one."""
    import tensorflow as tf

    plain = [np.full(WORDS, s, np.uint64).view(np.int64) for s in SECRETS]
    constant = np.full(WORDS, 5, np.int64)

    def program(party: Party, *columns: Shared) -> Any:
        *xs, y = columns
        # a product's operand: not constant in the shares, but equal for all secrets
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
    sim = simulate(program, *plain, constant, dealer=dealer, seed=rng.bytes(16), **options)

    def view(party: int, call: int) -> View:
        own, received = sim.outputs[party][call]
        labels = tap.labels[party]
        messages = [
            Message(site, slot, source, tap.names[site], data)
            for (site, slot, source), data in zip(labels, received, strict=True)
        ]
        return View([o.reshape(-1).view(np.uint64) for o in own], messages)

    def views(call: int) -> list[View]:
        return [view(p, call) for p in range(3)]

    last = len(SECRETS)
    return Run(
        {s: views(i) for i, s in enumerate(SECRETS)}, [views(last), views(last + 1)], sim
    )


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
    lanes = message.lanes(WORDS)
    for lane in sorted({0, lanes.shape[1] // 2, lanes.shape[1] - 1}):
        yield "uniform", uniform_p(lanes[:, lane])
        yield "neighbours", uniform_p(lanes[0::2, lane] - lanes[1::2, lane])
    low, high = lanes[:, 0] & 15, lanes[:, -1] >> 4
    for share in own:
        for nibble in (share & np.uint64(15), share >> np.uint64(60)):
            yield "own share", nibbles_p(nibble.astype(np.int64), low)
            yield "own share", nibbles_p(nibble.astype(np.int64), high)


def plane_checks(message: Message, own: list[Words]) -> Iterator[tuple[str, float]]:
    """Balance of every plane, and its correlation with neighbours, planes and own share bits."""
    bits = signs(message.bits(WORDS))
    scale = np.sqrt(WORDS)
    yield "uniform", normal_p(bits.sum(axis=1) / scale)
    yield "neighbours", normal_p((bits[:, 1:] * bits[:, :-1]).sum(axis=1) / scale)
    between = bits @ bits.T / scale
    yield "planes", normal_p(between[np.triu_indices(len(bits), 1)])
    for share in own:
        held = np.unpackbits(share.view(np.uint8).reshape(WORDS, 8), axis=1, bitorder="little")
        yield "own share", normal_p(bits @ signs(held) / scale)


def two_sample_checks(a: Message, b: Message) -> Iterator[tuple[str, float]]:
    """One message under two secrets."""
    if a.planes:
        ones = [m.bits(WORDS).sum(axis=1, dtype=np.int64) for m in (a, b)]
        yield "secret", normal_p((ones[0] - ones[1]) / np.sqrt(WORDS / 2))
        return
    lanes = [m.lanes(WORDS) for m in (a, b)]
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
    for first, second in zip(*run.frozen, strict=True):
        alone = [view.stream() for view in (first, second)]
        for words in alone:
            yield "frozen", float(len(np.unique(words)) == len(words))
        both = np.concatenate(alone)
        yield "frozen again", float(len(np.unique(both)) == len(both))


def failing(run: Run) -> set[str]:
    """Names of the checks that fail at ALPHA for the whole run."""
    found = list(checks(run))
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
def test_checks_catch_the_seeded_mask_fault(
    name: str, fault: str, caught_by: str, tap: Tap, rng: np.random.Generator
) -> None:
    run = watch(tap, PROTOCOLS[name], rng, fault=fault)
    assert caught_by in failing(run)

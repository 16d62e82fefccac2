"""Three tools that examine a party's view of private values.

Each catches faults that the others miss (the seeded faults prove it). Statistics compare every
received word with uniformity, the secret and the receiver's own shares. Frozen shares under fresh
masks must give distinct received words. Stripping subtracts every pad that the receiver's own keys
can generate.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy import stats

from tests.protocols.viewed import (
    ALPHA,
    COMPARED,
    INJECTED,
    LAYOUTS,
    LIFTED,
    PAIRS,
    PLANES,
    SECRETS,
    SOME,
    WORDS,
    WRAP,
    Words,
)
from tfe_bench.cluster.simulate import Simulation, simulate
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared


@dataclass
class Tap:
    """Every tensor that a party receives, in the order in which its graph receives them."""

    names: dict[int, str] = field(default_factory=dict)
    heard: tuple[list[Any], ...] = field(default_factory=lambda: ([], [], []))
    labels: tuple[list[Any], ...] = field(default_factory=lambda: ([], [], []))

    def trace_protocol(self, party: Party, protocol: Callable[..., Any]) -> Callable[..., Any]:
        """Return the protocol as a function for party.function, with the received tensors."""

        def function(*arguments: Any) -> Any:
            self.heard[party.index].clear()
            self.labels[party.index].clear()
            result = protocol(party, *arguments)
            return result, list(self.heard[party.index])

        return function


@dataclass(frozen=True)
class Message:
    """One received message, or one of several arrays in it.

    Attributes:
        elements: elements in the array, or bits in each of its planes.
    """

    site: int
    slot: int
    source: int
    name: str
    data: Words
    elements: int

    @property
    def planes(self) -> bool:
        """True for bit planes, False for ring elements."""
        return self.name in PLANES

    def lanes(self) -> Words:
        """Elements as uint8 [elements, bytes of one]."""
        flat = np.ascontiguousarray(self.data).reshape(-1).view(np.uint8)
        return flat.reshape(self.elements, -1)

    def bits(self) -> Words:
        """Return bits as uint8 [planes, elements]."""
        if self.name == "all_of":
            packed = np.ascontiguousarray(self.data).view(np.uint8)
        else:
            blocks = self.data.reshape(self.elements // 512, -1, 8)  # superblock, plane, word
            packed = np.ascontiguousarray(blocks.swapaxes(0, 1)).view(np.uint8)
        return np.unpackbits(packed.reshape(len(packed), -1), axis=1, bitorder="little")

    def words(self) -> Words:
        """Return the elements, or the words of planes, as uint64."""
        if self.data.dtype == np.uint8:
            lanes = self.lanes()
            whole = np.zeros((self.elements, 8), np.uint8)
            whole[:, : lanes.shape[1]] = lanes
            return whole.view(np.uint64).reshape(-1)
        return np.ascontiguousarray(self.data).reshape(-1).view(np.uint64)


def rows_in(data: Words, widths: Sequence[int]) -> Iterator[Words]:
    """Return arrays that are packed one after the other: the whole bytes of each value."""
    ends = np.cumsum(widths) * WORDS // 8
    for width, part in zip(widths, np.split(data, ends[:-1]), strict=True):
        bits = np.unpackbits(part, bitorder="little").reshape(WORDS, width)
        yield np.packbits(bits[:, : width // 8 * 8], axis=1, bitorder="little").reshape(-1)


def split_message(
    site: int, slot: int, source: int, name: str, data: Words, compared: int
) -> Iterator[Message]:
    """Return the arrays of a message as it was received."""
    make_message = functools.partial(Message, site, slot, source, name)
    if name == "msb":
        yield make_message(data, compared)
    elif name == "all_of":
        yield make_message(data, 64 * data.shape[1])
    elif name in PLANES:  # one plane
        yield make_message(data, 64 * data.size)
    elif name in INJECTED and data.dtype == np.uint8:
        # (as many elements as a power of 2: only one of the two divides)
        each = 16 if data.size % (16 + 3 * WRAP) else 16 + 3 * WRAP
        n = data.size // each
        ends = np.cumsum([8 * n, 8 * n] + [WRAP * n] * 3)
        assert data.size in (ends[1], ends[-1])
        for i, end in enumerate(ends[ends <= data.size]):
            part = data[end - (8 if i < 2 else WRAP) * n : end]
            yield make_message(part.view(np.int64) if i < 2 else part, n)
    elif name == "lifted_product" and data.dtype == np.uint8:
        yield make_message(data[: 8 * WORDS].view(np.int64), WORDS)
        (ring,) = (k for k in LIFTED if 64 + 3 * (64 - k) == 8 * data.size // WORDS)
        for part in rows_in(data[8 * WORDS :], [64 - ring] * 3):
            yield make_message(part, WORDS)
    elif name == "truncate_safe" and slot == 0:
        yield make_message(data[: 8 * WORDS].view(np.int64), WORDS)
        for part in rows_in(data[8 * WORDS :], [8 * data.size // WORDS - 64]):
            yield make_message(part, WORDS)
    elif (name, slot) in LAYOUTS:
        (widths,) = (w for w in LAYOUTS[name, slot] if sum(w) * WORDS == 8 * data.size)
        for part in rows_in(data, widths):
            yield make_message(part, WORDS)
    else:
        yield make_message(data, WORDS if data.dtype == np.uint8 else min(WORDS, data.size))


@dataclass(frozen=True)
class View:
    """A party's shares and received messages in one graph call."""

    own: list[Words]
    received: list[Message]

    def stream(self) -> Words:
        """Return all received 64-bit words."""
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


def run_views(
    tap: Tap,
    protocol: Callable[..., Any],
    rng: np.random.Generator,
    secrets: Sequence[int] = SECRETS,
    **options: Any,
) -> Run:
    """Run one protocol on every secret, and twice on frozen shares of the last one."""
    import tensorflow as tf

    plain = [np.full(WORDS, s, np.uint64).view(np.int64) for s in secrets]
    constant = np.full(WORDS, 5, np.int64)

    def program(party: Party, *columns: Shared) -> Any:
        *xs, y = columns
        graph = party.function(tap.trace_protocol(party, protocol))
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
            for message in split_message(site, slot, source, tap.names[site], data, compared)
        ]
        return View([o.reshape(-1).view(np.uint64) for o in own], messages)

    def views(call: int) -> list[View]:
        return [view(p, call) for p in range(3)]

    last = len(secrets)
    return Run({s: views(i) for i, s in enumerate(secrets)}, [views(last), views(last + 1)], sim)


# ---- statistics


def uniform_p(symbols: Words, values: int = 256) -> float:
    """Return the chi-square p-value of symbols in range(values) against uniformity."""
    return float(stats.chisquare(np.bincount(symbols, minlength=values)).pvalue)


def independent_p(table: Words) -> float:
    """Return the chi-square p-value of a contingency table."""
    total = table.sum()
    expected = np.outer(table.sum(axis=1), table.sum(axis=0)) / total
    if not expected.all():
        return 0.0  # 16384 draws without one of 16 or 256 values
    statistic = ((table - expected) ** 2 / expected).sum()
    return float(stats.chi2.sf(statistic, (table.shape[0] - 1) * (table.shape[1] - 1)))


def nibbles_p(a: Words, b: Words) -> float:
    """Return the p-value of independence of two columns of nibbles."""
    return independent_p(np.bincount(a * 16 + b, minlength=256).reshape(16, 16))


def normal_p(z: Words) -> float:
    """Return the least of two-sided p-values, times their number."""
    return float(min(1.0, 2 * stats.norm.sf(np.abs(z).max()) * z.size)) if z.size else 1.0


def as_signs(bits: Words) -> Words:
    """Return +1 and -1 instead of 1 and 0."""
    return bits.astype(np.float32) * 2 - 1


def word_checks(message: Message, own: list[Words]) -> Iterator[tuple[str, float]]:
    """Check uniformity, joint distribution with own shares, and neighbors of ring elements."""
    lanes = message.lanes()
    for lane in sorted({0, lanes.shape[1] // 2, lanes.shape[1] - 1}):
        yield "uniform", uniform_p(lanes[:, lane])
        yield "neighbors", uniform_p(lanes[0::2, lane] - lanes[1::2, lane])
    low, high = lanes[:, 0] & 15, lanes[:, -1] >> 4
    for share in own:
        held = share[: len(lanes)]
        for nibble in (held & np.uint64(15), held >> np.uint64(60)):
            yield "own share", nibbles_p(nibble.astype(np.int64), low)
            yield "own share", nibbles_p(nibble.astype(np.int64), high)


def plane_checks(message: Message, own: list[Words]) -> Iterator[tuple[str, float]]:
    """Check the balance of planes and correlations with neighbors, planes, own share bits."""
    bits = as_signs(message.bits())
    scale = np.sqrt(message.elements)
    yield "uniform", normal_p(bits.sum(axis=1) / scale)
    yield "neighbors", normal_p((bits[:, 1:] * bits[:, :-1]).sum(axis=1) / scale)
    some = bits[:, :SOME]  # a pad used twice would leave a strong correlation
    between = some @ some.T / np.sqrt(SOME)
    yield "planes", normal_p(between[np.triu_indices(len(bits), 1)])
    for share in own:
        held = share[:SOME].view(np.uint8).reshape(SOME, 8)
        held = as_signs(np.unpackbits(held, axis=1, bitorder="little"))
        yield "own share", normal_p(some @ held / np.sqrt(SOME))


def two_sample_checks(a: Message, b: Message) -> Iterator[tuple[str, float]]:
    """Compare one message under two secrets."""
    if a.planes:
        ones = [m.bits().sum(axis=1, dtype=np.int64) for m in (a, b)]
        yield "secret", normal_p((ones[0] - ones[1]) / np.sqrt(a.elements / 2))
        return
    lanes = [m.lanes() for m in (a, b)]
    for lane in sorted({0, lanes[0].shape[1] - 1}):
        counts = [np.bincount(x[:, lane], minlength=256) for x in lanes]
        used = np.array(counts)
        yield "secret", independent_p(used[:, used.any(axis=0)])


def all_checks(run: Run) -> Iterator[tuple[str, float]]:
    """Return (name, p-value) of every check of a run; 0.0 for a certain failure."""
    for views in run.fresh.values():
        for view in views:
            for message in view.received:
                check_message = plane_checks if message.planes else word_checks
                yield from check_message(message, view.own)
    for a, b in PAIRS:
        for left, right in zip(run.fresh[a], run.fresh[b], strict=True):
            for one, other in zip(left.received, right.received, strict=True):
                yield from two_sample_checks(one, other)
    yield from frozen_checks(run)


def frozen_checks(run: Run) -> Iterator[tuple[str, float]]:
    """Check that all words differ within one call ("frozen") and in both ("frozen again").

    Messages of short elements are packed: there equal elements occur as often as by chance.
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
    """Return the p-value of the number of equal rows among uniform ones."""
    count = (a == b).all(axis=1).sum()
    return float(stats.binom.sf(count - 1, len(a), 0.5 ** (8 * a.shape[1])))


def failing_checks(
    run: Run, list_checks: Callable[[Run], Iterator[tuple[str, float]]] = all_checks
) -> set[str]:
    """Return the names of the checks that fail at ALPHA for the whole run."""
    p_values = list(list_checks(run))
    return {name for name, p in p_values if p * len(p_values) < ALPHA}


def received_messages(run: Run) -> int:
    """Return the messages that the parties received in one call."""
    return sum(len(view.received) for view in run.frozen[0])

"""Three tools that examine a party's view of private values.

Each catches faults that the others miss (the seeded faults prove it). Statistics compare every
received word with uniformity, the secret and the receiver's own shares. Frozen shares under fresh
masks must give distinct received words. Stripping subtracts every pad that the receiver's own keys
can generate.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import numpy as np
from scipy import special

from tests.protocols.entry import LOOSE, WORDS, Entry
from tfe_bench.cluster.simulate import FAULTS, Simulation, simulate
from tfe_bench.protocols.session import ops
from tfe_bench.protocols.session.party import Party, Site
from tfe_bench.protocols.session.sharing import Shared

ALPHA = 1e-6
SOME = 2048  # elements for correlations of every plane with every other
PAIRS = ((0, 1), (1, 2**63), (3, 2**64 - 1))
SECRETS = tuple(dict.fromkeys(s for pair in PAIRS for s in pair))
# Faults of masks, and the check that shows each of them in any protocol.
CAUGHT_BY = {"drop_mask": "frozen", "reuse_block": "frozen", "reuse_counter": "frozen again"}
# Sites whose messages are bit planes, by superblocks of 8 words; all others are ring elements.
PLANES = ("msb", "mask_bits", "extend", "reveal_bits", "all_of")
# Sites where D deals two words and, for values of LOOSE bits, three packed wraps per element.
INJECTED = ("inject", "inject_truncated", "pick")
WRAP = (64 - LOOSE) // 8
# Widths of the arrays, one value per element each, in packed messages of incomplete bytes.
LAYOUTS = {
    ("adaptive_select", 0): ([26] * 3 + [24] * 3, [26] * 5 + [24] * 5 + [26] * 5),
}
# Factors' rings of lifted products, in a protocol that is their test.
LIFTED = (LOOSE, 26, 14)
# Bytes per element below which words repeat by chance: too short to tell from unmasked ones.
TELLING = 5
BIT_COUNTS = np.array([i.bit_count() for i in range(256)], np.uint8)
Words = np.ndarray[Any, Any]


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

    @contextlib.contextmanager
    def record_graphs(self) -> Iterator[None]:
        """Return a context in which the messages of traced graphs are recorded."""
        recv = Site.recv

        def tapped(site: Site, shape: Any, source: int, slot: int = 0, dtype: Any = None) -> Any:
            data, party = recv(site, shape, source, slot, dtype), site.party
            self.names[site.number] = party.site_names[site.number]
            self.heard[party.index].append(data)
            self.labels[party.index].append((site.number, slot, source))
            return data

        with mock.patch.object(Site, "recv", tapped):
            yield


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

    def packed_bits(self) -> Words:
        """Return bits as uint64 [planes, words of elements]."""
        if self.name == "all_of":
            return np.ascontiguousarray(self.data).view(np.uint64).reshape(len(self.data), -1)
        blocks = self.data.reshape(self.elements // 512, -1, 8)  # superblock, plane, word
        planes = np.ascontiguousarray(blocks.swapaxes(0, 1)).view(np.uint64)
        return planes.reshape(len(planes), -1)

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
    elif name == "extend_small" and slot == 0:
        for part in rows_in(data, [4 * data.size // WORDS] * 2):
            yield make_message(part, WORDS)
    elif data.dtype == np.uint8:
        for part in rows_in(data, [8 * data.size // WORDS]):
            yield make_message(part, WORDS)
    else:
        yield make_message(data, min(WORDS, data.size))


@dataclass(frozen=True)
class View:
    """A party's shares and received messages in one graph call."""

    own: list[Words]
    received: list[Message]

    def stream(self) -> Words:
        """Return all received 64-bit words."""
        raw = [np.ascontiguousarray(m.data).reshape(-1).view(np.uint8) for m in self.received]
        return np.concatenate(raw).view(np.uint64) if raw else np.zeros(0, np.uint64)

    @functools.cached_property
    def own_nibbles(self) -> list[Words]:
        """The lowest and the highest nibbles of the own shares."""
        ends = ((s & np.uint64(15), s >> np.uint64(60)) for s in self.own)
        return [nibble.astype(np.int64) for pair in ends for nibble in pair]

    @functools.cached_property
    def own_signs(self) -> Words:
        """Bits of some elements of the own shares, as signs [SOME, 64 per share]."""
        return np.concatenate([as_signs(s[:SOME], 64) for s in self.own], axis=1)


@dataclass(frozen=True)
class Run:
    """A protocol's views by secret and party, and those of two calls with the same frozen shares.

    In a frozen call all elements have one and the same share, so that only the masks vary.

    Attributes:
        faulty: the two frozen calls by seeded fault, None for no fault.
    """

    fresh: dict[int, list[View]]
    faulty: dict[str | None, list[list[View]]]
    sim: Simulation

    @property
    def frozen(self) -> list[list[View]]:
        return self.faulty[None]


def run_views(
    entry: Entry,
    rng: np.random.Generator,
    secrets: Sequence[int] = SECRETS,
    faults: Sequence[str | None] = (None,),
    **options: Any,
) -> Run:
    """Run one protocol on every secret, and with each fault twice on frozen shares of the last."""
    import tensorflow as tf

    assert entry.many is not None
    protocol, tap = entry.many, Tap()
    plain = [np.full(WORDS, s, np.uint64).view(np.int64) for s in secrets]
    constant = np.full(WORDS, 5, np.int64)

    def program(party: Party, *columns: Shared) -> Any:
        *xs, y = columns
        graph = party.function(tap.trace_protocol(party, protocol))
        still = [c.map(lambda a: tf.fill(tf.shape(a), a[0])) for c in (xs[-1], y)]
        calls: list[Any] = [(x, y, p, None) for x, p in zip(xs, plain, strict=True)]
        calls += [(*still, plain[-1], fault) for fault in faults for _ in range(2)]
        views = []
        for x, other, p, fault in calls:
            if fault:
                party.check(
                    ops.native().call_for_error("session_fault", party.handle, FAULTS[fault])
                )
            _, received = graph(x, other, tf.constant(p))
            own = [getattr(c, k) for c in (x, other) for k in ("m", "l1", "l2")]
            views.append(([t for t in own if t is not None], received))
        return views

    options.setdefault("keys", [rng.bytes(16) for _ in range(3)])
    with tap.record_graphs():
        sim = simulate(program, *plain, constant, seed=rng.bytes(16), **options)

    def view(party: int, call: int) -> View:
        own, received = sim.outputs[party][call]
        labels = tap.labels[party]
        messages = [
            message
            for (site, slot, source), data in zip(labels, received, strict=True)
            for message in split_message(site, slot, source, tap.names[site], data, entry.compared)
        ]
        return View([o.reshape(-1).view(np.uint64) for o in own], messages)

    def views(call: int) -> list[View]:
        return [view(p, call) for p in range(3)]

    pairs = [[views(i), views(i + 1)] for i in range(len(secrets), len(sim.outputs[0]), 2)]
    fresh = {s: views(i) for i, s in enumerate(secrets)}
    return Run(fresh, dict(zip(faults, pairs, strict=True)), sim)


# ---- statistics


def chi_square_p(statistic: float, degrees: int) -> float:
    return float(special.chdtrc(degrees, statistic))


def uniform_p(symbols: Words, values: int = 256) -> float:
    """Return the chi-square p-value of symbols in range(values) against uniformity."""
    counts, mean = np.bincount(symbols, minlength=values), symbols.size / values
    return chi_square_p(((counts - mean) ** 2).sum() / mean, len(counts) - 1)


def independent_p(table: Words) -> float:
    """Return the chi-square p-value of a contingency table."""
    total = table.sum()
    expected = np.outer(table.sum(axis=1), table.sum(axis=0)) / total
    if not expected.all():
        return 0.0  # 16384 draws without one of 16 or 256 values
    statistic = ((table - expected) ** 2 / expected).sum()
    return chi_square_p(statistic, (table.shape[0] - 1) * (table.shape[1] - 1))


def nibbles_p(a: Words, b: Words) -> float:
    """Return the p-value of independence of two columns of nibbles."""
    return independent_p(np.bincount(a * 16 + b, minlength=256).reshape(16, 16))


def normal_p(z: Words) -> float:
    """Return the least of two-sided p-values, times their number."""
    return float(min(1.0, 2 * special.ndtr(-np.abs(z).max()) * z.size)) if z.size else 1.0


def as_signs(words: Words, bits: int) -> Words:
    """Return the bits of each row of words as +1 and -1 instead of 1 and 0."""
    raw = np.ascontiguousarray(words).view(np.uint8).reshape(-1, bits // 8)
    return np.unpackbits(raw, axis=1, bitorder="little").astype(np.float32) * 2 - 1


def count_ones(planes: Words) -> Words:
    """Return the number of ones in each plane of packed bits."""
    return np.asarray(BIT_COUNTS[planes.view(np.uint8)].sum(axis=1, dtype=np.int64))


def word_checks(message: Message, view: View) -> Iterator[tuple[str, float]]:
    """Check uniformity, joint distribution with own shares, and neighbors of ring elements."""
    lanes = message.lanes()
    for lane in sorted({0, lanes.shape[1] // 2, lanes.shape[1] - 1}):
        yield "uniform", uniform_p(lanes[:, lane])
        yield "neighbors", uniform_p(lanes[0::2, lane] - lanes[1::2, lane])
    low, high = lanes[:, 0] & 15, lanes[:, -1] >> 4
    for nibble in view.own_nibbles:
        yield "own share", nibbles_p(nibble[: len(lanes)], low)
        yield "own share", nibbles_p(nibble[: len(lanes)], high)


def plane_checks(message: Message, view: View) -> Iterator[tuple[str, float]]:
    """Check the balance of planes and correlations with neighbors, planes, own share bits."""
    planes, n = message.packed_bits(), message.elements
    yield "uniform", normal_p((2 * count_ones(planes) - n) / np.sqrt(n))
    after = planes >> np.uint64(1)
    after[:, :-1] |= planes[:, 1:] << np.uint64(63)
    differ = planes ^ after
    differ[:, -1] &= np.uint64(2**63 - 1)  # the last bit has no neighbor
    yield "neighbors", normal_p((n - 1 - 2 * count_ones(differ)) / np.sqrt(n))
    some = as_signs(planes[:, : SOME // 64], SOME)  # a pad used twice: a strong correlation
    between = some @ some.T / np.sqrt(SOME)
    yield "planes", normal_p(between[np.triu_indices(len(planes), 1)])
    yield "own share", normal_p(some @ view.own_signs / np.sqrt(SOME))


def two_sample_checks(a: Message, b: Message) -> Iterator[tuple[str, float]]:
    """Compare one message under two secrets."""
    if a.planes:
        ones = [count_ones(m.packed_bits()) for m in (a, b)]
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
                yield from check_message(message, view)
    for a, b in PAIRS:
        for left, right in zip(run.fresh[a], run.fresh[b], strict=True):
            for one, other in zip(left.received, right.received, strict=True):
                yield from two_sample_checks(one, other)
    yield from frozen_checks(run.frozen)


def all_differ(words: Words) -> bool:
    ordered = np.sort(words)
    return not (ordered[1:] == ordered[:-1]).any()


def frozen_checks(frozen: Sequence[Sequence[View]]) -> Iterator[tuple[str, float]]:
    """Check that all words differ within one call ("frozen") and in both ("frozen again").

    Messages of short elements are packed: there equal elements occur as often as by chance.
    """
    for first, second in zip(*frozen, strict=True):
        alone = [view.stream() for view in (first, second)]
        for words in alone:
            yield "frozen", float(all_differ(words))
        yield "frozen again", float(all_differ(np.concatenate(alone)))
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
    return float(special.bdtrc(int(count) - 1, len(a), 0.5 ** (8 * a.shape[1])))


def failing_checks(checks: Iterator[tuple[str, float]]) -> set[str]:
    """Return the names of the checks that fail at ALPHA for all of them together."""
    p_values = list(checks)
    return {name for name, p in p_values if p * len(p_values) < ALPHA}

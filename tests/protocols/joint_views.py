"""Check that all messages of a party, taken together, can be simulated without any secret.

One message that looks random proves little: two of them may share one mask, or have a mask that
their receiver can generate. So keys and steps are fixed, one word of one pad stream at a time is
replaced at both of its holders, and the messages that each party receives are compared.

A party lacks one of the three keys. Its messages are put into an order in which each region (a
word, or an element of a packed message) has a pad of that key which changes it and no region that
is still to be explained. Then the regions are uniform together: given all pads but the first, the
first region is uniform; for any value of it, so is the second; and so on. `explain_regions`
searches for that order. If no order exists, two regions share their only pad, or one has none. (The
statistics of test_views.py show that one pad makes one region uniform.)

A pad explains a region if it changes the region's lowest bit and its highest: it covers all of the
element. The elements of packed messages are derived from the bits that the pads of their sender
change, so that no protocol has to declare its layout.

A value opened by `reveal` or `reveal_bits` replaces the message that led to it, which is the result
minus the receiver's share. A result need not be explained if the protocol exists to open it; but no
pad that changes it explains anything else. The check is deterministic, as the keys are fixed.

The same holds for a party that alters its messages (deviations.py): for each alteration, the check
is made again of all that this party receives. Messages of the others must keep names and sizes.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.protocols.deviations import Deviation, Message
from tests.protocols.entry import Entry
from tests.protocols.recorded_messages import (
    ALL,
    Changes,
    Declared,
    Heads,
    MessageRecorder,
    Pad,
    Region,
    Sizes,
    Stream,
    View,
    Words,
    find_changed_bits,
    to_integer,
)
from tfe_bench.cluster.simulate import get_mask_log, replay_masks, simulate
from tfe_bench.protocols.session import ops
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared

PATIENCE = 300.0  # seconds until parties that wait for each other time out
# Sites whose message 0 and tensor 0 are residues: words of one residue. Their modulus is no power
# of two.
RESIDUES = {"exp_one_round": 4, "exp2": 4, "select_exp": 4, "exp_prime": 1}
PERMUTATIONS = (0, 1, 2)  # tensors of a shuffle that are permutations: each is one pad


# ---- the order


def explain_regions(
    changed: Mapping[Any, set[Any]], covers: Mapping[Any, set[Any]] | None = None
) -> dict[Any, Any]:
    """Return the pad of each region that can be explained.

    Args:
        changed: for each pad that the party lacks, the regions that it changes.
        covers: regions that it can explain, if not all.
    """
    explained: dict[Any, Any] = {}
    while True:
        before = len(explained)
        for pad, regions in changed.items():
            unexplained = regions - explained.keys()
            if len(unexplained) == 1 and (covers is None or unexplained <= covers[pad]):
                explained[unexplained.pop()] = pad
        if len(explained) == before:
            return explained


# ---- messages that a party receives, cut into regions


class _Received:
    """Messages that a party received, and their regions that each pad it lacks changes."""

    def __init__(
        self,
        party: int,
        view: View,
        changes: Mapping[Pad, Changes],
        log: Words,
        names: dict[int, str],
        regions: Mapping[Message, list[Region]],
    ) -> None:
        self._view, self._names = view, names
        # party i holds the keys i and i + 1
        self._changes = {pad: m for pad, m in changes.items() if pad.stream.key == (party + 2) % 3}
        self.regions = {
            m: regions[m] if m in regions else list(self._cut_message(m, changes, log))
            for m in view
        }
        self._changed = {pad: set(self._changed_regions(m)) for pad, m in self._changes.items()}

    def _cut_message(
        self, message: Message, changes: Mapping[Pad, Changes], log: Words
    ) -> Iterator[Region]:
        data = self._view[message]
        size = 8 * data.nbytes
        if data.dtype != np.uint8:
            each = 64 * (RESIDUES[self._names[message.site]] if self._is_residue(message) else 1)
            yield from (Region(message, i, i + each) for i in range(0, size, each))
            return
        sent = log[(log["sent"] == 1) & (log["party"] == message.source)]
        streams = {Stream(*r) for r in sent[["key", "hi", "lo"]].tolist()}
        starts, ever = {0, size}, to_integer(data)
        for pad, by_message in changes.items():
            bits = by_message.get(message, 0)
            ever |= bits
            own = (pad.stream.site, pad.stream.iteration) == (message.site, message.iteration)
            if bits and pad.stream in streams and own:
                starts.add((bits & -bits).bit_length() - 1)
        for start, end in itertools.pairwise(sorted(starts)):
            # an array ends with up to 7 bits that are always 0
            fill = 0
            while end % 8 == 0 and fill < 7 and not ever >> (end - fill - 1) & 1:
                fill += 1
            yield Region(message, start, end - fill)

    def _changed_regions(self, changes: Changes) -> Iterator[Region]:
        for message, bits in changes.items():
            for r in self.regions.get(message, ()):
                if bits >> r.start & ((1 << r.end - r.start) - 1):
                    yield r

    def _is_residue(self, message: Message) -> bool:
        return message.slot == 0 and self._names[message.site] in RESIDUES

    def top_pads(self, left: set[Region] | None = None) -> set[tuple[Pad, int]]:
        """Return pads that change regions (`left`), and their bits that change the highest bit."""
        return {
            (pad, r.end - r.start - 1)
            for pad, regions in self._changed.items()
            for r in (regions if left is None else regions & left)
            if r.end - r.start <= 64
        }

    def _covers(self, pad: Pad, r: Region, heads: Heads) -> bool:
        """Return whether a pad that changes a region changes all of it."""
        if _is_permutation(pad.stream, self._names):
            return r.message.slot == -1
        if self._is_residue(r.message):
            return pad.stream.site == r.message.site
        bit = r.end - r.start - 1
        tops = (heads.get((p, bit), {}).get(r.message, 0) for p in (pad, _all_of(pad.stream)))
        low = self._changes[pad][r.message] >> r.start & 1
        return bool(low and any(top >> r.end - 1 & 1 for top in tops))

    def unexplained(self, heads: Heads) -> list[Region]:
        """Return the regions without a pad of their own."""
        covers = {
            pad: {r for r in regions if self._covers(pad, r, heads)}
            for pad, regions in self._changed.items()
        }
        explained = explain_regions(self._changed, covers)
        return [r for each in self.regions.values() for r in each if r not in explained]

    def describe_region(self, r: Region) -> str:
        """Describe a region."""
        step, iteration, site, slot, source = r.message
        what = "result" if slot == -1 else f"message {slot} from party {source}"
        return (
            f"{self._names[site]} (site {site}, step {step}, iteration {iteration}): {what}, bits "
            f"{r.start} to {r.end}"
        )


def _all_of(stream: Stream) -> Pad:
    return Pad(stream, 0, 0)


def _is_permutation(stream: Stream, names: Mapping[int, str]) -> bool:
    return names[stream.site] in ("shuffle", "order") and stream.tensor in PERMUTATIONS


# ---- one protocol


@dataclass(frozen=True)
class DeviationOutcome:
    """What runs in which one party alters its messages show.

    Attributes:
        unexplained: descriptions of regions without a pad among the messages that it received,
            opened results included.
        keeps_sizes: the others sent messages of the same names and sizes as without alterations.
    """

    deviation: Deviation
    unexplained: list[str]
    keeps_sizes: bool


@dataclass(frozen=True)
class Outcome:
    """What one traced run of a protocol shows.

    Attributes:
        unexplained: descriptions of regions without a pad of their own, by party.
        regions: number of regions, by party.
        names: names of the sites.
        calls: payload bits sent, and rounds, in a run with fresh masks, by party.
        declared: dealer and slots of each site, by party.
        sizes: bytes of the messages that each party received in that run.
        pads: the log of masks of two runs with equal inputs, all parties together.
        deviating: what runs with deviations show.
    """

    unexplained: tuple[list[str], ...]
    regions: tuple[int, ...]
    names: dict[int, str]
    calls: list[tuple[int, list[Any]]]
    declared: list[Declared]
    sizes: list[Sizes]
    pads: Words
    deviating: list[DeviationOutcome]


class _ThreadBarrier:
    """Let one of three threads compute for all."""

    def __init__(self) -> None:
        self._barrier = threading.Barrier(3)
        self._made: Any = None

    def __call__(self, make: Callable[[], Any]) -> Any:
        if self._barrier.wait(PATIENCE) == 0:
            self._made = make()
        self._barrier.wait(PATIENCE)
        return self._made

    @contextlib.contextmanager
    def or_not_at_all(self) -> Iterator[None]:
        """Let a failure of one thread fail the others."""
        try:
            yield
        except BaseException:
            self._barrier.abort()
            raise


def _list_pads(log: Words, names: Mapping[int, str]) -> list[Pad]:
    """Return the words of all streams in a log; a permutation or a residue as a whole."""
    sizes: dict[Stream, int] = {}
    for key, hi, lo, size in log[["key", "hi", "lo", "bytes"]].tolist():
        stream = Stream(key, hi, lo)
        sizes[stream] = max(sizes.get(stream, 0), -(-size // 8))
    pads = []
    for stream, words in sizes.items():
        name, each = names[stream.site], 1
        if _is_permutation(stream, names):
            each = max(1, words)
        elif stream.tensor == 0:
            each = RESIDUES.get(name, 1)
        pads += [Pad(stream, i, i + each) for i in range(0, words, each)]
    return pads


class _Experiment:
    """Messages that the parties received, and their changes after pads were replaced.

    Args:
        pads: those that are replaced.
        receivers: parties whose messages are examined.
        regions: known regions of their messages, by party.
    """

    def __init__(
        self,
        log: Words,
        names: dict[int, str],
        pads: list[Pad],
        receivers: Sequence[int] = range(3),
        regions: Mapping[int, Mapping[Message, list[Region]]] | None = None,
    ) -> None:
        self.log, self.names, self.pads = log, names, pads
        self._receivers, self._regions = receivers, regions or {}
        self.base: list[View] = [{}, {}, {}]
        self.changes: list[list[Changes]] = [[], [], []]
        self.received: dict[int, _Received] = {}
        self.tested_bits: list[tuple[Pad, int]] = []
        self.top_changes: list[list[Changes]] = [[], [], []]
        self.calls: list[Any] = [None] * 3
        self.sizes: list[Sizes] = [{}] * 3
        self._ends = {pad.stream: pad.end for pad in pads}

    def deviate(self, party: int) -> _Experiment:
        """Return an experiment on the same messages in runs in which one party alters its own."""
        # party i holds the keys i and i + 1
        pads = [pad for pad in self.pads if pad.stream.key == (party + 2) % 3]
        regions = {party: self.received[party].regions}
        return _Experiment(self.log, self.names, pads, [party], regions)

    def is_examined(self, party: int) -> bool:
        """Return whether the messages of a party are examined."""
        return party in self._receivers

    def added_words(self, pad: Pad, bits: int) -> Words:
        """Return the amount to add to a stream."""
        words = np.zeros(pad.end or self._ends[pad.stream], np.uint64)
        words[pad.first :] = bits
        return words

    def choose_streams(self) -> list[tuple[Pad, int]]:
        """Return the pads and bits to change next, as whole streams, and if they cover regions."""
        for p in self._receivers:
            changes = dict(zip(self.pads, self.changes[p], strict=True))
            regions = self._regions.get(p, {})
            self.received[p] = _Received(p, self.base[p], changes, self.log, self.names, regions)
        every = set().union(*(r.top_pads() for r in self.received.values()))
        return self._choose_bits({(_all_of(pad.stream), bit) for pad, bit in every})

    def choose_words(self) -> list[tuple[Pad, int]]:
        """Return the same for single pads, as two pads of a stream may have cancelled."""
        left = (r.top_pads(set(r.unexplained(self._heads(p)))) for p, r in self.received.items())
        return self._choose_bits(set().union(*left))

    def _choose_bits(self, heads: set[tuple[Pad, int]]) -> list[tuple[Pad, int]]:
        self.tested_bits += (more := sorted(heads))
        return [(pad, 1 << bit) for pad, bit in more]

    def _heads(self, party: int) -> Heads:
        return dict(zip(self.tested_bits, self.top_changes[party], strict=True))

    def list_unexplained(self, party: int, publishes: bool) -> list[str]:
        """Describe the regions of a party's messages without a pad of their own."""
        received = self.received[party]
        return [
            received.describe_region(r)
            for r in received.unexplained(self._heads(party))
            if not (publishes and r.message.slot == -1)
        ]

    def list_honest_sizes(self, party: int) -> list[Sizes]:
        """Return the bytes of all messages that the others have sent, by receiver."""
        return [{m: n for m, n in sizes.items() if m.source != party} for sizes in self.sizes]


def check_entry(
    entry: Entry,
    dealer: int = 0,
    n: int | None = None,
    deviations: Sequence[Deviation] = (),
) -> Outcome:
    """Run a protocol once for each pad and search for the order of every party.

    Args:
        n: elements of each input, if not those of the entry.
        deviations: alterations of a party's messages, for each of which the search is repeated.
    """
    n = entry.n if n is None else n
    rng = np.random.default_rng(zlib.crc32(repr((entry.sites, dealer, n)).encode()))
    keys = [rng.bytes(16) for _ in range(3)]
    inputs = rng.integers(-(2**63), 2**63, (2, n) if entry.limbs == 1 else (2, n, 2), np.int64)
    watch, together = MessageRecorder(deviates=bool(deviations)), _ThreadBarrier()
    logs: list[Words] = [np.zeros(0)] * 3
    both: list[Words] = [np.zeros(0)] * 3
    run_protocol = entry.run
    assert run_protocol is not None

    def program(party: Party, *shares: Shared) -> list[_Experiment]:
        p = party.index
        graph = None if entry.whole else party.function(lambda *s: run_protocol(party, *s))

        def run() -> View:
            watch.start[p] = party._step
            _ = run_protocol(party, *shares) if graph is None else graph(*shares)
            return watch.take_messages(p)

        def examine(experiment: _Experiment) -> None:
            def measure_changes(changes: Sequence[tuple[Pad, int]]) -> list[Changes]:
                """Return the changes of this party's messages for each change of a pad's words."""
                differences = []
                for pad, bits in changes:
                    words = experiment.added_words(pad, bits)
                    replay_masks(party, party._step - start, pad.stream.hi, pad.stream.lo, words)
                    after = run()
                    if experiment.is_examined(p):
                        differences.append(find_changed_bits(experiment.base[p], after))
                return differences

            experiment.changes[p] = measure_changes([(pad, ALL) for pad in experiment.pads])
            experiment.top_changes[p] += measure_changes(together(experiment.choose_streams))
            experiment.top_changes[p] += measure_changes(together(experiment.choose_words))

        def begin_deviation(deviation: Deviation) -> _Experiment:
            watch.deviation = deviation
            watch.honest = {m: words for view in honest.base for m, words in view.items()}
            return honest.deviate(deviation.party)

        with together.or_not_at_all():
            run()  # traces
            start = party._step
            party.reset_counters()
            base = run()
            sizes = watch.sizes[p]
            call = 8 * sum(party.counters()["payload"]), party.rounds()
            log = both[p] = get_mask_log(party)
            ops.native().record(party.handle, 0)
            logs[p] = log[log["hi"] % np.uint64(2**40) > np.uint64(start)]  # of this run only
            honest: _Experiment = together(
                lambda: _Experiment(
                    np.concatenate(logs),
                    party.site_names,
                    _list_pads(np.concatenate(logs), party.site_names),
                )
            )
            honest.base[p], honest.calls[p], honest.sizes[p] = base, call, sizes
            examine(honest)
            experiments = [honest]
            for deviation in deviations:
                deviating = together(functools.partial(begin_deviation, deviation))
                replay_masks(party, party._step - start)
                deviating.base[p] = run()
                deviating.sizes[p] = watch.sizes[p]
                examine(deviating)
                experiments.append(deviating)
        return experiments

    with watch.record_graphs():
        sim = simulate(
            program,
            *inputs,
            dealer=dealer,
            keys=keys,
            record=True,
            limbs=entry.limbs,
            fractional_bits=entry.fractional_bits,
        )
    honest, *deviating = sim.outputs[0]
    unexplained = [honest.list_unexplained(p, entry.publishes) for p in range(3)]
    regions = [sum(len(each) for each in honest.received[p].regions.values()) for p in range(3)]
    return Outcome(
        tuple(unexplained),
        tuple(regions),
        honest.names,
        honest.calls,
        watch.declared,
        honest.sizes,
        np.concatenate(both),
        [
            DeviationOutcome(
                d,
                experiment.list_unexplained(d.party, publishes=False),
                experiment.list_honest_sizes(d.party) == honest.list_honest_sizes(d.party),
            )
            for d, experiment in zip(deviations, deviating, strict=True)
        ],
    )

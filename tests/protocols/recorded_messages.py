"""Messages that the parties of one traced graph receive, recorded whenever the graph runs."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from unittest import mock

import numpy as np

from tests.protocols.deviations import Deviation, Message
from tfe_bench.protocols.session import io
from tfe_bench.protocols.session.numbering import MATERIAL, SiteParty
from tfe_bench.protocols.session.party import Party, Site
from tfe_bench.protocols.session.slots import Slots

ALL = 2**64 - 1
Words = np.ndarray[Any, Any]


class Region(NamedTuple):
    """Bits [start, end) of a message."""

    message: Message
    start: int
    end: int


class Stream(NamedTuple):
    """A stream of masks as named in the log."""

    key: int
    hi: int
    lo: int

    @property
    def site(self) -> int:
        return self.hi >> 40

    @property
    def iteration(self) -> int:
        return self.lo >> 44

    @property
    def tensor(self) -> int:
        return self.lo >> 32 & 255


class Pad(NamedTuple):
    """Words [first, end) of a stream; all of them for end 0."""

    stream: Stream
    first: int
    end: int


View = dict[Message, Words]
Sizes = dict[Message, int]
Declared = dict[int, tuple[int, Slots]]
Changes = dict[Message, int]  # the bits that have changed
Heads = Mapping[tuple[Pad, int], Changes]


@dataclass
class MessageRecorder:
    """Messages that the parties receive and values that they open, and the names of sites.

    Attributes:
        sizes: bytes of the messages that `take_messages` has returned last, by party.
        declared: dealer and slots of each site, by party.
        deviates: whether parties may alter messages in graphs that are traced.
        deviation: the alteration of messages in the next runs.
        honest: messages of a run without alterations, all parties together.
    """

    deviates: bool = False
    deviation: Deviation | None = None
    honest: View = field(default_factory=dict)
    start: list[int] = field(default_factory=lambda: [0] * 3)
    recorded: list[View] = field(default_factory=lambda: [{}, {}, {}])
    names: dict[int, str] = field(default_factory=dict)
    sizes: list[Sizes] = field(default_factory=lambda: [{}, {}, {}])
    declared: list[Declared] = field(default_factory=lambda: [{}, {}, {}])

    def record_value(
        self, party: SiteParty, ctx: Any, site: int, slot: int, source: int, data: Any
    ) -> None:
        """Add an op to a graph that records a value."""
        import tensorflow as tf

        self.names[site] = party.site_names[site]

        def see(call: Words, words: Words) -> None:
            step = int(call[1]) - self.start[party.index]
            self.recorded[party.index][Message(step, int(call[2]), site, slot, source)] = (
                words.copy()
            )

        tf.numpy_function(see, [ctx, data], [])

    def alter_message(self, site: Site, data: Any, slot: int) -> Any:
        """Return a message with an op that alters it in runs with a deviation."""
        import tensorflow as tf

        name = site.party.site_names[site.number]
        if name == "material":  # a count of messages, no part of a protocol
            return data

        def alter(call: Words, words: Words) -> Words:
            deviation, party = self.deviation, site.party.index
            if deviation is None or deviation.party != party:
                return words
            step = int(call[1]) - self.start[party]
            message = Message(step, int(call[2]), site.number, slot, party)
            return deviation.alter_words(message, name, site.slots[slot], words, self.honest)

        ctx = site.ctx if site._trace.is_looping else site._trace.ctx
        altered = tf.numpy_function(alter, [ctx, data], data.dtype, stateful=False)
        altered.set_shape(data.shape)
        return altered

    @contextlib.contextmanager
    def record_graphs(self) -> Iterator[None]:
        """Return a context in which traced graphs record their messages whenever they run."""
        recv, send, start_site = Site.recv, Site.send, Site.__init__

        def record_site(site: Site, party: Any, number: int, dealer: int, *arguments: Any) -> None:
            start_site(site, party, number, dealer, *arguments)
            self.declared[party.index][number] = dealer, site.slots

        def record_receive(
            site: Site, shape: Any, source: int, slot: int = 0, dtype: Any = None
        ) -> Any:
            data = recv(site, shape, source, slot, dtype)
            if site._trace.phase == MATERIAL:  # what is kept then is received in the other phase
                return data
            looping = site._trace.iteration_graph is not None
            ctx = site.ctx if looping else site._trace.ctx
            self.record_value(site.party, ctx, site.number, slot, source, data)
            return data

        def alter_send(
            site: Site, data: Any, to: int, slot: int = 0, run_ahead: bool = False
        ) -> Any:
            if self.deviates:
                data = self.alter_message(site, data, slot)
            return send(site, data, to, slot, run_ahead)

        def record_reveal(function: Callable[..., Any]) -> Callable[..., Any]:
            def publish(party: Party, *arguments: Any, **options: Any) -> Any:
                number, trace = party._next_site, party._trace
                result = function(party, *arguments, **options)
                if result is not None and trace is not None:
                    self.record_value(party, trace.ctx, number, -1, -1, result)
                return result

            return publish

        with contextlib.ExitStack() as stack:
            stack.enter_context(mock.patch.object(Site, "recv", record_receive))
            stack.enter_context(mock.patch.object(Site, "send", alter_send))
            stack.enter_context(mock.patch.object(Site, "__init__", record_site))
            for name in ("reveal", "reveal_bits"):
                function: Callable[..., Any] = getattr(io, name)
                for known, module in list(sys.modules.items()):
                    if known.startswith("tfe_bench.") and vars(module).get(name) is function:
                        stack.enter_context(
                            mock.patch.object(module, name, record_reveal(function))
                        )
            yield

    def take_messages(self, party: int) -> View:
        """Return the messages since the last call, an opened result in place of its message."""
        messages, self.recorded[party] = self.recorded[party], {}
        self.sizes[party] = {m: words.nbytes for m, words in messages.items() if m.slot != -1}
        for opened in [m for m in messages if m.slot == -1]:
            preceding = sorted(m for m in messages if m[:3] == opened[:3] and m.slot != -1)
            if len(preceding) == 2:  # a dealer receives two halves of bits: one, and both together
                assert np.array_equal(
                    messages[preceding[0]] ^ messages[preceding[1]], messages[opened]
                )
            del messages[preceding[-1]]
        return messages


def to_integer(words: Words) -> int:
    return int.from_bytes(np.ascontiguousarray(words).tobytes(), "little")


def find_changed_bits(before: View, after: View) -> Changes:
    """Return the bits that differ, by message; of messages that occur in one run only, all bits."""
    differences = {}
    for message in before.keys() | after.keys():
        a, b = before.get(message), after.get(message)
        if a is None or b is None or a.shape != b.shape:
            size = max(0 if x is None else x.nbytes for x in (a, b))
            differences[message] = (1 << 8 * size) - 1
        elif difference := to_integer(a) ^ to_integer(b):
            differences[message] = difference
    return differences

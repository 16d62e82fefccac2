"""The messages of a counted computation, and the messages on which each depends.

A `CostParty` with a `MessageGraph` adds an `Exchange` for each group of messages that it counts.
cluster/network_timeline.py derives times from the graph.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from tfe_bench.protocols.session.cost import Cost

Sources = frozenset[int]
NO_SOURCES: Sources = frozenset()
# Limit of a graph: a larger one has no timeline.
MAX_EXCHANGES = 200_000


@dataclass(frozen=True, slots=True)
class Exchange:
    """Messages of one counted group: the dealer's material, then rounds between the evaluators.

    Attributes:
        step: number of the graph call, from 0.
        dealer: party index of the dealer.
        cost: bits by role, and rounds.
        sources: exchanges whose results the evaluators need before their first message.
        mask_sources: exchanges from which the dealer learns masks; it deals after them.
        dealer_learns: the dealer receives the evaluators' last messages.
        work, moved_words: as in `counting.CostReport`, since the previous exchange.
    """

    step: int
    dealer: int
    cost: Cost
    sources: Sources = NO_SOURCES
    mask_sources: Sources = NO_SOURCES
    dealer_learns: bool = False
    work: int = 0
    moved_words: int = 0

    @property
    def sent_by_party(self) -> tuple[float, float, float]:
        """Payload bytes that parties 0, 1 and 2 send."""
        a, b, c = self.cost.by_party(self.dealer)
        return a / 8, b / 8, c / 8


@dataclass
class MessageGraph:
    """Exchanges in the order of their protocol invocations; a number is an index into them.

    Attributes:
        is_complete: False: a loop exceeded `MAX_EXCHANGES`, and its copies are not listed.
    """

    exchanges: list[Exchange] = field(default_factory=list)
    is_complete: bool = True

    @property
    def sent_by_party(self) -> tuple[float, float, float]:
        """Payload bytes that parties 0, 1 and 2 send in all exchanges."""
        sent = [e.sent_by_party for e in self.exchanges]
        a, b, c = (sum(column) for column in zip(*sent, strict=True)) if sent else (0.0, 0.0, 0.0)
        return a, b, c

    @property
    def step_count(self) -> int:
        """Number of graph calls, up to the last one with an exchange."""
        return self.exchanges[-1].step + 1 if self.exchanges else 0

    def add_exchange(self, exchange: Exchange) -> Sources:
        """Append an exchange and return the sources of its result."""
        self.exchanges.append(exchange)
        return frozenset((len(self.exchanges) - 1,))

    def repeat_exchanges(
        self, begin: int, times: int, steps: int, in_sequence: bool = True
    ) -> None:
        """Append the exchanges from number `begin` on `times` times.

        Args:
            steps: graph calls that a copy takes; 0: all copies belong to the same graph call.
            in_sequence: a copy depends on the copy before it as the exchanges depend on those
                before `begin`. False: all copies depend on the latter.
        """
        pattern = self.exchanges[begin:]
        if len(self.exchanges) + times * len(pattern) > MAX_EXCHANGES:
            self.is_complete = False
            return
        first_shifted = begin - len(pattern) if in_sequence else begin
        for copy in range(1, times + 1):
            shift = copy * len(pattern)
            self.exchanges += [
                replace(
                    e,
                    step=e.step + copy * steps,
                    sources=shift_sources(e.sources, first_shifted, shift),
                    mask_sources=shift_sources(e.mask_sources, first_shifted, shift),
                )
                for e in pattern
            ]

    def select_steps(self, steps: range) -> MessageGraph:
        """Return the exchanges of some consecutive graph calls, renumbered."""
        chosen = [(i, e) for i, e in enumerate(self.exchanges) if e.step in steps]
        begin = chosen[0][0] if chosen else 0

        def renumber_sources(sources: Sources) -> Sources:
            return frozenset(s - begin for s in sources if s >= begin)

        return MessageGraph(
            [
                replace(
                    e,
                    step=e.step - steps.start,
                    sources=renumber_sources(e.sources),
                    mask_sources=renumber_sources(e.mask_sources),
                )
                for _, e in chosen
            ],
            self.is_complete,
        )


def shift_sources(sources: Sources, begin: int, shift: int) -> Sources:
    """Return sources in which the numbers from `begin` on are `shift` higher."""
    return frozenset(s + shift if s >= begin else s for s in sources) if sources else sources

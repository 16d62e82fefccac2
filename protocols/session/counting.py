"""The cost of a protocol, from the same code run by a party that counts.

    cost_of(relu.relu, Private([1000]))

Protocols are counted by running them on symbolic tensors (symbolic.SymbolicTensor), without
TensorFlow and without kernels. A protocol that deals shares and exchanges their sum has a
`CostSite`, which counts both. A protocol with other messages declares to a `CostParty` the bits
that it sends and the shape of its result.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, NoReturn

from tfe_bench.errors import ProtocolError
from tfe_bench.protocols.session import symbolic
from tfe_bench.protocols.session.cost import Cost, packed_bits, words_for_bits
from tfe_bench.protocols.session.message_graph import (
    NO_SOURCES,
    Exchange,
    MessageGraph,
    Sources,
)
from tfe_bench.protocols.session.openings import Opening, OpeningLog
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import EvaluatorBits, MaskedBits, Shared
from tfe_bench.protocols.session.slots import NO_SLOTS, Slot, Slots, find_slot
from tfe_bench.protocols.session.tensor_ops import Shape, SymbolicTensor, Tensor, symbolic_result


@dataclass(frozen=True)
class Private:
    """A private input without elements.

    Attributes:
        shape: shape of its elements.
        bits: the ring is Z_{2^bits}; 0: all words.
        limbs: 64-bit words per element.
    """

    shape: tuple[int, ...]
    fractional_bits: int = 16
    bits: int = 0
    limbs: int = 1

    def to_symbolic(self, dealer: int = 0) -> Shared:
        """Return symbolic shares."""
        shape = Shape(self.shape if self.limbs == 1 else (*self.shape, self.limbs))
        return Shared(
            SymbolicTensor(shape), None, None, dealer, self.fractional_bits, self.limbs, self.bits
        )


@dataclass(frozen=True)
class PrivateBits:
    """Private bits without elements, exchanged under a mask."""

    shape: tuple[int, ...]

    def to_symbolic(self, dealer: int = 0) -> MaskedBits:
        """Return symbolic bits."""
        n = Shape(self.shape).num_elements()
        return MaskedBits(SymbolicTensor(Shape([words_for_bits(n)])), None, n, dealer, self.shape)


@dataclass(frozen=True)
class CostReport:
    """Totals of a counted protocol.

    Attributes:
        cost: bits and rounds of all messages, by the roles of party 0's values.
        largest: words of the largest array: a value, or one party's largest message.
        results: symbolic results of the protocol.
        work: multiplications of words in products of matrices and images, as in the clear: each
            evaluator makes two of them for each one, the dealer one.
        moved_words: words that local maps (sums, gathers, transpositions, ...) read or write, of
            one part of a sharing: each party holds two parts.
        openings: what becomes public to workers.
    """

    cost: Cost
    largest: int
    results: Any
    work: int = 0
    moved_words: int = 0
    openings: tuple[Opening, ...] = ()


@dataclass(frozen=True)
class CostSnapshot:
    """Running totals of a CostParty at one point.

    Attributes:
        by_party: bits sent.
        finished_rounds: rounds of the finished graph calls: online, and in total.
        call_rounds: rounds of the current graph call.
        work, moved_words, openings: as in `CostReport`.
        exchange_count: exchanges of the message graph.
        step: finished graph calls.
    """

    by_party: tuple[int, ...]
    finished_rounds: tuple[int, ...]
    call_rounds: tuple[int, ...]
    work: int
    moved_words: int
    exchange_count: int
    step: int
    openings: tuple[Opening, ...]


class CostParty(Party):
    """A party that sends nothing and adds up the messages that a protocol would send.

    Its shares have the part `m` only, a SymbolicTensor.

    Args:
        expected: count the steps after a secret shuffle at their average cost instead of refusing
            them.
        graph: the message graph to which all counted messages are added; None for none.
    """

    def __init__(
        self, dealer: int = 0, expected: bool = False, graph: MessageGraph | None = None
    ) -> None:
        self.expected = expected
        self.graph = graph
        self._step = 0  # finished graph calls
        self._counted_work = (0, 0)  # work and moved words before the last exchange
        self.index = (dealer + 1) % 3  # an evaluator: it holds masked values
        self.dealer = dealer
        self.site_names = {}
        self.openings = OpeningLog()
        self.open_site: CostSite | None = None  # a site that has not exchanged yet
        self.largest = 0
        self.work = 0
        self.moved_words = 0
        self._by_party = [0, 0, 0]
        self._finished_rounds = [0, 0]  # rounds and with_dealing of the finished graph calls
        self._call_rounds = [0, 0]  # those of the current call
        self._in_call = False

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Make this the thread's party, and count the words that the thread's local maps move."""
        with super().active(), symbolic.count_moved_words(self._count_local_map):
            yield

    def _count_local_map(self, words: int) -> None:
        if self.open_site is None:
            self.add_moved_words(words)

    def add_moved_words(self, count: int) -> None:
        """Add words that a local map reads or writes, of one part of a sharing."""
        self.moved_words += count

    @property
    def tracing(self) -> bool:
        """True while the function of a graph runs."""
        return self._in_call

    @property
    def total_cost(self) -> Cost:
        """Cost of all messages so far, by the roles of party 0's values."""
        rounds, with_dealing = (
            a + b for a, b in zip(self._finished_rounds, self._call_rounds, strict=True)
        )
        dealer, e1, e2 = self._by_party
        return Cost(dealer, e1, e2, rounds, with_dealing)

    def site(
        self, name: str, *about: Any, dealer: int | None = None, slots: Slots = NO_SLOTS
    ) -> Any:
        """Start a site that counts dealt shares and one exchange.

        Raises:
            ProtocolError: the last one exchanges nothing: its protocol does not declare its cost.
        """
        self._check_no_site_is_open()
        self.open_site = CostSite(self, name, self.dealer if dealer is None else dealer, slots)
        return self.open_site

    def _check_no_site_is_open(self) -> None:
        if self.open_site is not None:
            self.open_site.refuse_undeclared_cost()

    def count_messages(
        self,
        cost: Cost,
        shape: Sequence[int],
        *operands: Any,
        dealer: int | None = None,
        dealer_learns: bool = False,
    ) -> Tensor:
        """Count a protocol's messages and return what it exchanges (or leaves as shares).

        Args:
            cost: cost of the protocol.
            shape: shape of the result.
            operands: everything that it waits for: shares, bits, symbolic tensors; None for
                nothing.
            dealer: None: the dealer of the first shares or bits among the operands.
            dealer_learns: whether the dealer receives the evaluators' last messages.
        """
        if dealer is None:
            dealer = self._dealer_of(operands)
        inputs = symbolic_result((), *(_select_share_timing_tensor(v) for v in operands))
        for party, bits in enumerate(cost.by_party(dealer)):
            self._by_party[party] += bits
        # the first message of an evaluator already waits for the dealer, if the dealer sends one
        ready = max(inputs.with_dealing, inputs.masks + cost.with_dealing - cost.rounds)
        result = SymbolicTensor(
            Shape(int(n) for n in shape),
            inputs.rounds + cost.rounds,
            ready + cost.rounds,
            # each waits for the other in every round, so the first of a round is the second of the
            # next
            first=inputs.first * (-1) ** cost.rounds,
            sources=self._add_to_graph(cost, inputs, dealer, dealer_learns),
        )
        self._call_rounds = [
            max(self._call_rounds[0], result.rounds),
            max(self._call_rounds[1], result.with_dealing),
        ]
        self.largest = max(
            self.largest, result.shape.num_elements(), max(cost.dealer, cost.e1, cost.e2) // 64
        )
        return result

    def _add_to_graph(
        self, cost: Cost, inputs: SymbolicTensor, dealer: int, dealer_learns: bool
    ) -> Sources:
        """Add messages to the graph, if there is one, and return the sources of their result."""
        if self.graph is None:
            return NO_SOURCES
        if not (cost.total or cost.rounds):
            return inputs.sources
        work, moved_words = self._counted_work
        self._counted_work = self.work, self.moved_words
        return self.graph.add_exchange(
            Exchange(
                self._step,
                dealer,
                cost,
                inputs.sources,
                inputs.mask_sources,
                dealer_learns,
                self.work - work,
                self.moved_words - moved_words,
            )
        )

    def count_bit_messages(
        self,
        cost: Cost,
        n: int,
        *operands: Any,
        dealer: int | None = None,
        dealer_learns: bool = False,
    ) -> Tensor:
        """Count messages as `count_messages`, for a result of n packed bits."""
        return self.count_messages(
            cost, [words_for_bits(n)], *operands, dealer=dealer, dealer_learns=dealer_learns
        )

    def count_exchange(
        self,
        shape: Sequence[int],
        dealt: int | None,
        *operands: Any,
        scale: int = 0,
        width: int = 64,
        dealer: int | None = None,
    ) -> Shared:
        """Count one exchange under a fresh mask (ring/masked.py), one round, and return its result.

        Args:
            shape: shape of its elements.
            dealt: bits that D sends before; None: D sends nothing.
            operands: as in `count_messages`.
            scale, width: fractional bits of the result and bits of its ring.
        """
        evaluator_bits = packed_bits(math.prod(shape), width)
        cost = Cost(
            dealt or 0,
            evaluator_bits,
            evaluator_bits,
            rounds=1,
            with_dealing=1 if dealt is None else 2,
        )
        if dealer is None:
            dealer = self._dealer_of(operands)
        word_shape = [*shape, 2] if width == 128 else shape
        m = self.count_messages(cost, word_shape, *operands, dealer=dealer)
        return Shared(m, None, None, dealer, scale, len(word_shape) - len(shape) + 1, width % 64)

    def add_work(self, work: int) -> None:
        """Add multiplications of words, as in the clear."""
        self.work += work

    @property
    def finished_calls(self) -> int:
        """Number of finished graph calls."""
        return self._step

    def take_snapshot(self) -> CostSnapshot:
        """Return the running totals."""
        sent, calls, deepest = (
            tuple(v) for v in (self._by_party, self._finished_rounds, self._call_rounds)
        )
        return CostSnapshot(
            sent,
            calls,
            deepest,
            self.work,
            self.moved_words,
            0 if self.graph is None else len(self.graph.exchanges),
            self._step,
            self.openings.list_openings(),
        )

    def repeat(self, since: CostSnapshot, times: int, in_sequence: bool = True) -> None:
        """Count everything since a snapshot again, `times` times.

        Args:
            in_sequence: False: messages do not wait for those of other times, which adds no rounds.
        """

        def extrapolate_cost_totals(now: Sequence[int], then: Sequence[int]) -> list[int]:
            return [a + times * (a - b) for a, b in zip(now, then, strict=True)]

        self._by_party = extrapolate_cost_totals(self._by_party, since.by_party)
        self.work += times * (self.work - since.work)
        self.moved_words += times * (self.moved_words - since.moved_words)
        steps = self._step - since.step
        self._step += times * steps
        if self.graph is not None:
            self.graph.repeat_exchanges(since.exchange_count, times, steps, in_sequence)
            self._counted_work = self.work, self.moved_words
        if in_sequence:
            self._finished_rounds = extrapolate_cost_totals(
                self._finished_rounds, since.finished_rounds
            )
            self._call_rounds = extrapolate_cost_totals(self._call_rounds, since.call_rounds)
        self.openings.repeat_since(since.openings, times)

    def _dealer_of(self, operands: Sequence[Any]) -> int:
        return next((v.dealer for v in operands if hasattr(v, "dealer")), self.dealer)

    def count_dealt(self, shape: Sequence[int], *operands: Any) -> Tensor:
        """Count shares that stay with the evaluators: they wait for the dealer and send nothing."""
        return self.count_messages(Cost(0, 0, 0, rounds=0, with_dealing=1), shape, *operands)

    def function(
        self, function: Callable[..., Any], dynamic: bool | Collection[int] = False
    ) -> Any:
        """Return a function that counts each graph call; its chains of messages begin at zero."""

        def count_graph_call(*arguments: Any) -> Any:
            if self._in_call:
                raise ProtocolError(
                    "A party.function cannot be called within another. Call it outside.",
                    code="nested-graph-call",
                )
            self._in_call = True
            try:
                with self.active():
                    results = function(*_reset_rounds(arguments))
                self._check_no_site_is_open()
                return results
            finally:
                self._in_call = False
                self._step += 1
                self._finished_rounds = [
                    a + b for a, b in zip(self._finished_rounds, self._call_rounds, strict=True)
                ]
                self._call_rounds = [0, 0]

        return count_graph_call

    def cached_function(
        self, key: Any, make: Callable[[], Callable[..., Any]], dynamic: bool = False
    ) -> Any:
        """Return the counting function as `function` does."""
        return self.function(make(), dynamic)

    @contextlib.contextmanager
    def kept_graphs(self, *about: Hashable) -> Iterator[None]:
        """Do nothing: there are no graphs."""
        yield


class CostSite:
    """One protocol invocation of a party that counts: its cost follows from what it exchanges.

    It runs E1's part of the protocol on symbolic tensors, where masks are constants. ring/masked.py
    and other functions that deal shares count here. Any other use of a site is refused: such a
    protocol declares its cost. Local steps before the exchange do not count as moved words.

    Attributes:
        name: name of the protocol's site.
        slots: the messages that it declares, by number.
    """

    is_dealer, is_e1, is_e2 = False, True, False

    def __init__(self, party: CostParty, name: str, dealer: int, slots: Slots) -> None:
        self.name, self.dealer, self.slots = name, dealer, slots
        self._party = party
        self._dealt_bits: int | None = None  # None: D sends nothing

    def find_slot(self, number: int) -> Slot:
        """Return a declared slot, as `Site.find_slot`."""
        return find_slot(self.slots, number, self.name)

    def count_dealt(self, bits: int, shape: Sequence[int], *operands: Any) -> Tensor:
        """Count bits that D sends, and return E1's share, which waits for the operands."""
        self._dealt_bits = bits + (self._dealt_bits or 0)
        return symbolic_result(shape, *(_select_share_timing_tensor(v) for v in operands))

    def count_exchange(self, share: Tensor, shape: Sequence[int], scale: int, width: int) -> Shared:
        """Count the bits dealt so far and the exchange of a share, and return the result."""
        if not isinstance(share, SymbolicTensor):
            self.refuse_undeclared_cost()
        self._party.open_site = None
        dealt = self._dealt_bits
        self._dealt_bits = None if dealt is None else 0
        return self._party.count_exchange(
            shape, dealt, share, scale=scale, width=width, dealer=self.dealer
        )

    def __getattr__(self, _: str) -> NoReturn:
        self.refuse_undeclared_cost()

    def refuse_undeclared_cost(self) -> NoReturn:
        """Raise ProtocolError: the protocol does not declare its cost."""
        raise ProtocolError(
            "Expected a protocol that declares its cost to a party that counts. Received: "
            f"{self.name}. Add a branch for `CostParty`, or build it from protocols that have one.",
            code="undeclared-cost",
            operation=self.name,
        )


def _select_share_timing_tensor(value: Any) -> Any:
    """Return the tensor that determines when a value is known."""
    for kind, name in ((Shared, "m"), (MaskedBits, "masked"), (EvaluatorBits, "share")):
        if isinstance(value, kind):
            return getattr(value, name)
    return value


def _reset_rounds(value: Any) -> Any:
    """Return a nest of values as at the beginning of a graph call."""
    if isinstance(value, SymbolicTensor):
        return SymbolicTensor(value.shape)
    if isinstance(value, (list, tuple)):
        return type(value)(_reset_rounds(v) for v in value)
    if isinstance(value, dict):
        return {name: _reset_rounds(v) for name, v in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        return replace(
            value, **{f.name: _reset_rounds(getattr(value, f.name)) for f in fields(value)}
        )
    return value


def count_cost(
    protocol: Callable[..., Any],
    *inputs: Any,
    graphs: bool = False,
    expected: bool = False,
    messages: MessageGraph | None = None,
    **options: Any,
) -> CostReport:
    """Run protocol(party, *inputs, **options) with a party that counts.

    Args:
        inputs: `Private`, `PrivateBits`, tuples of them, and public values.
        graphs: the protocol calls graphs itself, as sorts do.
        expected: as in `CostParty`.
        messages: the graph to which the messages are added.

    Raises:
        ProtocolError: a called protocol does not declare its cost.
    """
    party = CostParty(expected=expected, graph=messages)

    def run_protocol(*operands: Any) -> Any:
        return protocol(party, *operands, **options)

    operands = [_convert_to_symbolic_shares(value) for value in inputs]
    with party.active():
        results = run_protocol(*operands) if graphs else party.function(run_protocol)(*operands)
    return CostReport(
        party.total_cost,
        party.largest,
        results,
        party.work,
        party.moved_words,
        party.openings.list_openings(),
    )


def _convert_to_symbolic_shares(value: Any) -> Any:
    if isinstance(value, (Private, PrivateBits)):
        return value.to_symbolic()
    return (
        tuple(_convert_to_symbolic_shares(v) for v in value) if isinstance(value, tuple) else value
    )


def cost_of(
    protocol: Callable[..., Any], *inputs: Hashable, graphs: bool = False, **options: Hashable
) -> Cost:
    """Return the cost of a protocol, cached; arguments as in `count_cost`."""
    return _cost_of(protocol, inputs, graphs, tuple(sorted(options.items())))


@functools.lru_cache(maxsize=1 << 12)
def _cost_of(
    protocol: Callable[..., Any],
    inputs: tuple[Any, ...],
    graphs: bool,
    options: tuple[tuple[str, Any], ...],
) -> Cost:
    return count_cost(protocol, *inputs, graphs=graphs, **dict(options)).cost

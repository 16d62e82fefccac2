"""What a protocol costs: the same code, run by a party that counts.

    cost_of(relu.relu, Private([1000]))

A protocol that talks on the wire (it has a site) says under a `Counting` party what it sends and
what comes of it.  All others are made of those, and are counted by running them, on tensors that
are not there (local.Abstract): without TensorFlow, without kernels.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

from tfe_bench.errors import ProtocolError
from tfe_bench.protocols.session import symbolic
from tfe_bench.protocols.session.cost import Cost, packed_bits, words_for_bits
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import EvaluatorBits, MaskedBits, Shared
from tfe_bench.protocols.session.tensor_ops import Shape, SymbolicTensor, Tensor, symbolic_result


@dataclass(frozen=True)
class Private:
    """A private input that is not there.

    Attributes:
        shape: of its elements.
        bits: the ring is Z_{2^bits}; 0: all words.
        limbs: 64-bit words per element.
    """

    shape: tuple[int, ...]
    fractional_bits: int = 16
    bits: int = 0
    limbs: int = 1

    def to_symbolic(self, dealer: int = 0) -> Shared:
        """The abstract shares."""
        shape = Shape(self.shape if self.limbs == 1 else (*self.shape, self.limbs))
        return Shared(
            SymbolicTensor(shape), None, None, dealer, self.fractional_bits, self.limbs, self.bits
        )


@dataclass(frozen=True)
class PrivateBits:
    """Private bits that are not there, exchanged under a mask."""

    shape: tuple[int, ...]

    def to_symbolic(self, dealer: int = 0) -> MaskedBits:
        """The abstract bits."""
        n = Shape(self.shape).num_elements()
        return MaskedBits(SymbolicTensor(Shape([words_for_bits(n)])), None, n, dealer, self.shape)


@dataclass(frozen=True)
class CostReport:
    """What was counted.

    Attributes:
        cost: of all that was sent, by the roles of party 0's values.
        largest: words of the largest array: a value, or what one party sends at once.
        results: of the protocol, abstract.
        work: multiplications of words in products of matrices and images, as in the clear: each
            evaluator makes two for one, the dealer one.
        moved: words that local maps (sums, gathers, transpositions, ...) read or write, of one part
            of a sharing: each party holds two.
    """

    cost: Cost
    largest: int
    results: Any
    work: int = 0
    moved_words: int = 0


@dataclass(frozen=True)
class CostSnapshot:
    """How far a party had counted.

    Attributes:
        by_party: bits sent.
        calls: rounds of the graph calls that are over, without the dealer's material and with it.
        deepest: of this one.
        work, moved: as of `Tally`.
    """

    by_party: tuple[int, ...]
    finished_rounds: tuple[int, ...]
    call_rounds: tuple[int, ...]
    work: int
    moved_words: int


class CostParty(Party):
    """A party that sends nothing and adds up what would be sent.

    Its shares have the part `m` only, which is Abstract.

    Args:
        expected: what follows a secret shuffle is counted as it is on average, and not refused.
    """

    def __init__(self, dealer: int = 0, expected: bool = False) -> None:
        self.expected = expected
        self.index = (dealer + 1) % 3  # what is masked is there
        self.dealer = dealer
        self.site_names = {}
        self.largest = 0
        self.work = 0
        self.moved_words = 0
        self._by_party = [0, 0, 0]
        self._finished_rounds = [0, 0]  # rounds, and with_dealing, of the graph calls that are over
        self._call_rounds = [0, 0]  # of this one
        self._in_call = False

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """As any party's; what the thread's local maps move is counted."""
        with super().active(), symbolic.count_moved_words(self.add_moved_words):
            yield

    def add_moved_words(self, count: int) -> None:
        """Words that a local map reads or writes, of one part of a sharing."""
        self.moved_words += count

    @property
    def tracing(self) -> bool:
        """Whether a graph's function is run."""
        return self._in_call

    @property
    def total_cost(self) -> Cost:
        """Of all so far, by the roles of party 0's values."""
        rounds, with_dealing = (
            a + b for a, b in zip(self._finished_rounds, self._call_rounds, strict=True)
        )
        dealer, e1, e2 = self._by_party
        return Cost(dealer, e1, e2, rounds, with_dealing)

    def site(self, name: str, *about: Any, dealer: int | None = None) -> Any:
        """No protocol has a site here.

        Raises:
            ProtocolError: always: the protocol does not say what it costs.
        """
        raise ProtocolError(f"{name} does not say what it sends. Received: a party that counts.")

    def count_messages(
        self,
        cost: Cost,
        shape: Sequence[int],
        *operands: Any,
        dealer: int | None = None,
    ) -> Tensor:
        """What a protocol exchanges (or leaves as shares) when it has sent its messages.

        Args:
            cost: of the protocol.
            shape: of the result.
            given: all that it waits for: shares, bits, Abstract tensors; None for nothing.
            dealer: None: that of the first share or bits given.
        """
        if dealer is None:
            dealer = self._dealer_of(operands)
        inputs = symbolic_result((), *(_held_tensor(v) for v in operands))
        for party, bits in enumerate(cost.by_party(dealer)):
            self._by_party[party] += bits
        # the first message of an evaluator already waits for the dealer, if any does
        ready = max(inputs.with_dealing, inputs.masks + cost.with_dealing - cost.rounds)
        result = SymbolicTensor(
            Shape(int(n) for n in shape),
            inputs.rounds + cost.rounds,
            ready + cost.rounds,
            # each waits for the other in every round: who was first is the second in the next
            first=inputs.first * (-1) ** cost.rounds,
        )
        self._call_rounds = [
            max(self._call_rounds[0], result.rounds),
            max(self._call_rounds[1], result.with_dealing),
        ]
        self.largest = max(
            self.largest, result.shape.num_elements(), max(cost.dealer, cost.e1, cost.e2) // 64
        )
        return result

    def count_bit_messages(
        self, cost: Cost, n: int, *operands: Any, dealer: int | None = None
    ) -> Tensor:
        """`sent` of n packed bits."""
        return self.count_messages(cost, [words_for_bits(n)], *operands, dealer=dealer)

    def count_exchange(
        self,
        shape: Sequence[int],
        dealt: int | None,
        *operands: Any,
        scale: int = 0,
        width: int = 64,
        dealer: int | None = None,
    ) -> Shared:
        """A value that the evaluators exchange under a fresh mask (ring/masked.py): one round.

        Args:
            shape: of its elements.
            dealt: bits that D sends before; None: none are.
            given: as of `sent`.
            scale, width: its fractional bits and those of its ring.
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
        """Multiplications of words, as in the clear."""
        self.work += work

    def take_snapshot(self) -> CostSnapshot:
        """How far it has counted."""
        sent, calls, deepest = (
            tuple(v) for v in (self._by_party, self._finished_rounds, self._call_rounds)
        )
        return CostSnapshot(sent, calls, deepest, self.work, self.moved_words)

    def repeat(self, since: CostSnapshot, times: int) -> None:
        """Counts what was counted since a mark, one behind the other, so many times more."""

        def extrapolate(now: Sequence[int], then: Sequence[int]) -> list[int]:
            return [a + times * (a - b) for a, b in zip(now, then, strict=True)]

        self._by_party = extrapolate(self._by_party, since.by_party)
        self._finished_rounds = extrapolate(self._finished_rounds, since.finished_rounds)
        self._call_rounds = extrapolate(self._call_rounds, since.call_rounds)
        self.work += times * (self.work - since.work)
        self.moved_words += times * (self.moved_words - since.moved_words)

    def _dealer_of(self, operands: Sequence[Any]) -> int:
        return next((v.dealer for v in operands if hasattr(v, "dealer")), self.dealer)

    def count_dealt(self, shape: Sequence[int], *operands: Any) -> Tensor:
        """Shares that stay with the evaluators: they wait for the dealer, and send nothing."""
        return self.count_messages(Cost(0, 0, 0, rounds=0, with_dealing=1), shape, *operands)

    def function(
        self, function: Callable[..., Any], dynamic: bool | Collection[int] = False
    ) -> Any:
        """Counts each call of a graph's function: its chains of messages begin anew."""

        def count_call(*arguments: Any) -> Any:
            if self._in_call:
                raise ProtocolError(
                    "A party.function cannot be called within another. Call it outside."
                )
            self._in_call = True
            try:
                with self.active():
                    return function(*_reset_rounds(arguments))
            finally:
                self._in_call = False
                self._finished_rounds = [
                    a + b for a, b in zip(self._finished_rounds, self._call_rounds, strict=True)
                ]
                self._call_rounds = [0, 0]

        return count_call

    def cached_function(
        self, key: Any, make: Callable[[], Callable[..., Any]], dynamic: bool = False
    ) -> Any:
        """`function`."""
        return self.function(make(), dynamic)

    @contextlib.contextmanager
    def kept_graphs(self, *about: Hashable) -> Iterator[None]:
        """There are no graphs."""
        yield


def _held_tensor(value: Any) -> Any:
    """The tensor by which a value is known."""
    for kind, name in ((Shared, "m"), (MaskedBits, "masked"), (EvaluatorBits, "share")):
        if isinstance(value, kind):
            return getattr(value, name)
    return value


def _reset_rounds(value: Any) -> Any:
    """A nest of values at the beginning of a graph call."""
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
    **options: Any,
) -> CostReport:
    """Runs protocol(party, *inputs, **options) with a party that counts.

    Args:
        inputs: `Private`, `PrivateBits`, tuples of them, and what is public.
        graphs: the protocol calls graphs itself, as sorts do.
        expected: as of `Counting`.

    Raises:
        ProtocolError: a protocol that is reached says not what it costs.
    """
    party = CostParty(expected=expected)

    def run_protocol(*operands: Any) -> Any:
        return protocol(party, *operands, **options)

    operands = [_to_symbolic(value) for value in inputs]
    with party.active():
        results = run_protocol(*operands) if graphs else party.function(run_protocol)(*operands)
    return CostReport(party.total_cost, party.largest, results, party.work, party.moved_words)


def _to_symbolic(value: Any) -> Any:
    if isinstance(value, (Private, PrivateBits)):
        return value.to_symbolic()
    return tuple(_to_symbolic(v) for v in value) if isinstance(value, tuple) else value


def cost_of(
    protocol: Callable[..., Any], *inputs: Hashable, graphs: bool = False, **options: Hashable
) -> Cost:
    """The cost of a protocol, remembered; as `count`."""
    return _cost_of(protocol, inputs, graphs, tuple(sorted(options.items())))


@functools.lru_cache(maxsize=1 << 12)
def _cost_of(
    protocol: Callable[..., Any],
    inputs: tuple[Any, ...],
    graphs: bool,
    options: tuple[tuple[str, Any], ...],
) -> Cost:
    return count_cost(protocol, *inputs, graphs=graphs, **dict(options)).cost

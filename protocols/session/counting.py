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
from tfe_bench.protocols.session import abstract
from tfe_bench.protocols.session.cost import Cost, packed, words
from tfe_bench.protocols.session.local import Abstract, Shape, Tensor, joined
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import EvaluatorBits, MaskedBits, Shared


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

    def made(self, dealer: int = 0) -> Shared:
        """The abstract shares."""
        shape = Shape(self.shape if self.limbs == 1 else (*self.shape, self.limbs))
        return Shared(
            Abstract(shape), None, None, dealer, self.fractional_bits, self.limbs, self.bits
        )


@dataclass(frozen=True)
class PrivateBits:
    """Private bits that are not there, exchanged under a mask."""

    shape: tuple[int, ...]

    def made(self, dealer: int = 0) -> MaskedBits:
        """The abstract bits."""
        n = Shape(self.shape).num_elements()
        return MaskedBits(Abstract(Shape([words(n)])), None, n, dealer, self.shape)


@dataclass(frozen=True)
class Tally:
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
    moved: int = 0


@dataclass(frozen=True)
class Mark:
    """How far a party had counted.

    Attributes:
        by_party: bits sent.
        calls: rounds of the graph calls that are over, without the dealer's material and with it.
        deepest: of this one.
        work, moved: as of `Tally`.
    """

    by_party: tuple[int, ...]
    calls: tuple[int, ...]
    deepest: tuple[int, ...]
    work: int
    moved: int


class Counting(Party):
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
        self.moved = 0
        self._by_party = [0, 0, 0]
        self._calls = [0, 0]  # rounds, and with_dealing, of the graph calls that are over
        self._deepest = [0, 0]  # of this one
        self._in_call = False

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """As any party's; what the thread's local maps move is counted."""
        with super().active(), abstract.counted_by(self.moves):
            yield

    def moves(self, words: int) -> None:
        """Words that a local map reads or writes, of one part of a sharing."""
        self.moved += words

    @property
    def tracing(self) -> bool:
        """Whether a graph's function is run."""
        return self._in_call

    @property
    def total(self) -> Cost:
        """Of all so far, by the roles of party 0's values."""
        rounds, with_dealing = (a + b for a, b in zip(self._calls, self._deepest, strict=True))
        dealer, e1, e2 = self._by_party
        return Cost(dealer, e1, e2, rounds, with_dealing)

    def site(self, name: str, *about: Any, dealer: int | None = None) -> Any:
        """No protocol has a site here.

        Raises:
            ProtocolError: always: the protocol does not say what it costs.
        """
        raise ProtocolError(f"{name} does not say what it sends. Received: a party that counts.")

    def sent(
        self,
        cost: Cost,
        shape: Sequence[int],
        *given: Any,
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
            dealer = self._dealer_of(given)
        waits = joined((), *(_held(v) for v in given))
        for party, bits in enumerate(cost.by_party(dealer)):
            self._by_party[party] += bits
        # the first message of an evaluator already waits for the dealer, if any does
        ready = max(waits.with_dealing, waits.masks + cost.with_dealing - cost.rounds)
        found = Abstract(
            Shape(int(n) for n in shape),
            waits.rounds + cost.rounds,
            ready + cost.rounds,
            # each waits for the other in every round: who was first is the second in the next
            first=waits.first * (-1) ** cost.rounds,
        )
        self._deepest = [
            max(self._deepest[0], found.rounds),
            max(self._deepest[1], found.with_dealing),
        ]
        self.largest = max(
            self.largest, found.shape.num_elements(), max(cost.dealer, cost.e1, cost.e2) // 64
        )
        return found

    def sent_bits(self, cost: Cost, n: int, *given: Any, dealer: int | None = None) -> Tensor:
        """`sent` of n packed bits."""
        return self.sent(cost, [words(n)], *given, dealer=dealer)

    def exchanged(
        self,
        shape: Sequence[int],
        dealt: int | None,
        *given: Any,
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
        each = packed(math.prod(shape), width)
        cost = Cost(dealt or 0, each, each, rounds=1, with_dealing=1 if dealt is None else 2)
        if dealer is None:
            dealer = self._dealer_of(given)
        of_words = [*shape, 2] if width == 128 else shape
        m = self.sent(cost, of_words, *given, dealer=dealer)
        return Shared(m, None, None, dealer, scale, len(of_words) - len(shape) + 1, width % 64)

    def worked(self, work: int) -> None:
        """Multiplications of words, as in the clear."""
        self.work += work

    def mark(self) -> Mark:
        """How far it has counted."""
        sent, calls, deepest = (tuple(v) for v in (self._by_party, self._calls, self._deepest))
        return Mark(sent, calls, deepest, self.work, self.moved)

    def again(self, since: Mark, times: int) -> None:
        """Counts what was counted since a mark, one behind the other, so many times more."""

        def more(now: Sequence[int], then: Sequence[int]) -> list[int]:
            return [a + times * (a - b) for a, b in zip(now, then, strict=True)]

        self._by_party = more(self._by_party, since.by_party)
        self._calls = more(self._calls, since.calls)
        self._deepest = more(self._deepest, since.deepest)
        self.work += times * (self.work - since.work)
        self.moved += times * (self.moved - since.moved)

    def _dealer_of(self, given: Sequence[Any]) -> int:
        return next((v.dealer for v in given if hasattr(v, "dealer")), self.dealer)

    def dealt(self, shape: Sequence[int], *given: Any) -> Tensor:
        """Shares that stay with the evaluators: they wait for the dealer, and send nothing."""
        return self.sent(Cost(0, 0, 0, rounds=0, with_dealing=1), shape, *given)

    def function(
        self, function: Callable[..., Any], dynamic: bool | Collection[int] = False
    ) -> Any:
        """Counts each call of a graph's function: its chains of messages begin anew."""

        def call(*arguments: Any) -> Any:
            if self._in_call:
                raise ProtocolError(
                    "A party.function cannot be called within another. Call it outside."
                )
            self._in_call = True
            try:
                with self.active():
                    return function(*_begun(arguments))
            finally:
                self._in_call = False
                self._calls = [a + b for a, b in zip(self._calls, self._deepest, strict=True)]
                self._deepest = [0, 0]

        return call

    def cached_function(
        self, key: Any, make: Callable[[], Callable[..., Any]], dynamic: bool = False
    ) -> Any:
        """`function`."""
        return self.function(make(), dynamic)

    @contextlib.contextmanager
    def kept_graphs(self, *about: Hashable) -> Iterator[None]:
        """There are no graphs."""
        yield


def _held(value: Any) -> Any:
    """The tensor by which a value is known."""
    for kind, name in ((Shared, "m"), (MaskedBits, "masked"), (EvaluatorBits, "share")):
        if isinstance(value, kind):
            return getattr(value, name)
    return value


def _begun(value: Any) -> Any:
    """A nest of values at the beginning of a graph call."""
    if isinstance(value, Abstract):
        return Abstract(value.shape)
    if isinstance(value, (list, tuple)):
        return type(value)(_begun(v) for v in value)
    if isinstance(value, dict):
        return {name: _begun(v) for name, v in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{f.name: _begun(getattr(value, f.name)) for f in fields(value)})
    return value


def count(
    protocol: Callable[..., Any],
    *inputs: Any,
    graphs: bool = False,
    expected: bool = False,
    **options: Any,
) -> Tally:
    """Runs protocol(party, *inputs, **options) with a party that counts.

    Args:
        inputs: `Private`, `PrivateBits`, tuples of them, and what is public.
        graphs: the protocol calls graphs itself, as sorts do.
        expected: as of `Counting`.

    Raises:
        ProtocolError: a protocol that is reached says not what it costs.
    """
    party = Counting(expected=expected)

    def run(*given: Any) -> Any:
        return protocol(party, *given, **options)

    given = [_made(value) for value in inputs]
    with party.active():
        results = run(*given) if graphs else party.function(run)(*given)
    return Tally(party.total, party.largest, results, party.work, party.moved)


def _made(value: Any) -> Any:
    if isinstance(value, (Private, PrivateBits)):
        return value.made()
    return tuple(_made(v) for v in value) if isinstance(value, tuple) else value


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
    return count(protocol, *inputs, graphs=graphs, **dict(options)).cost

"""What a plan costs, before anything is sent: counted on values that are not there."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tfe_bench.cluster.jobs import extent
from tfe_bench.errors import UsageError
from tfe_bench.models.arrays import evaluate
from tfe_bench.models.arrays.evaluate import Meaning
from tfe_bench.models.arrays.plan import Plan
from tfe_bench.models.queries.price import estimated
from tfe_bench.protocols.session.cost import Cost
from tfe_bench.protocols.session.counting import Counting
from tfe_bench.protocols.session.local import Tensor

# Plans whose price is remembered: a loop asks for the same one again and again.
_MOST = 256
# Exchanges and local maps of a plan's graphs, of a loop those of one turn: what takes a worker time
# to count and to trace, and memory: about so many bytes each (measured with 990 softmaxes).
MOST_OPS = 20_000
OP_BYTES = 32 << 10
_known: OrderedDict[str, Price] = OrderedDict()
_lock = threading.Lock()


@dataclass(frozen=True)
class Price:
    """What a plan costs.

    Attributes:
        cost: bits by party, and rounds.
        steps: bits that each step has the three workers send.
        made: what is public of each step's values.
        held: of each output the words.
        largest: 64-bit words of the largest array that is made on the way.
        moved: words that local maps move.
        ops: exchanges and local maps of its graphs.
    """

    cost: Cost
    steps: tuple[int, ...]
    made: tuple[tuple[Meaning, ...], ...]
    held: tuple[Meaning, ...]
    largest: int
    moved: int
    ops: int = 0

    @property
    def memory(self) -> int:
        """Bytes that its graphs take at a worker, about."""
        return self.ops * OP_BYTES

    @property
    def sent(self) -> int:
        """Bytes that the three workers send together."""
        return self.cost.total // 8

    def seconds(self, profile: str) -> float:
        """An estimate under a network profile.

        Raises:
            UsageError: there is no such profile.
        """
        return estimated(self.cost, self.moved, profile)


class _Bounded(Counting):
    """A party that counts, and does not go on counting without end."""

    def __init__(self) -> None:
        super().__init__(expected=True)
        self.made = 0

    def sent(
        self, cost: Cost, shape: Sequence[int], *given: Any, dealer: int | None = None
    ) -> Tensor:
        """As of Counting.

        Raises:
            UsageError: too many ops.
        """
        self._make()
        return super().sent(cost, shape, *given, dealer=dealer)

    def moves(self, words: int) -> None:
        """As of Counting.

        Raises:
            UsageError: too many ops.
        """
        self._make()
        super().moves(words)

    def _make(self) -> None:
        self.made += 1
        if self.made > MOST_OPS:
            raise UsageError(
                f"An expression takes at most {MOST_OPS} exchanges and local steps. Received: one "
                "that takes more. Have a part computed by itself: y = y.compute()."
            )


def price(plan: Plan) -> Price:
    """Counts a checked plan, or remembers what one of the same shape costs.

    Raises:
        UsageError: operations that do not take what they are given.
    """
    key = plan.shape()
    with _lock:
        found = _known.get(key)
        if found is not None:
            _known.move_to_end(key)
            return found
    found = _counted(plan)
    with _lock:
        _known[key] = found
        while len(_known) > _MOST:
            _known.popitem(last=False)
    return found


def _counted(plan: Plan) -> Price:
    party = _Bounded()
    base = len(plan.leaves)
    made: dict[int, tuple[Meaning, ...]] = {}
    totals: dict[int, int] = {}
    before = [0]

    def seen(number: int, values: list[evaluate.Value]) -> None:
        op = plan.steps[number - base].op
        made[number] = tuple(evaluate.meaning(op, value) for value in values)
        total = party.total.total
        totals[number] = total - before[0]
        before[0] = total

    leaves = [evaluate.words(leaf) for leaf in plan.leaves]
    with party.active():
        out = evaluate.run(party, plan, leaves, None, seen=seen)
    numbers = range(base, base + len(plan.steps))
    held = []
    for output, words in zip(plan.outputs, out, strict=True):
        own = evaluate.meaning("an output", words)
        number = output.ref.number
        if number < base:
            kind = plan.leaves[number].kind
        else:
            kind = made[number][output.ref.place or 0].kind
        held.append(Meaning(kind, own.shape, own.scale))
    sizes = [extent(m.shape) for each in made.values() for m in each]
    sizes += [extent(leaf.shape) for leaf in plan.leaves]
    return Price(
        party.total,
        tuple(totals[n] for n in numbers),
        tuple(made[n] for n in numbers),
        tuple(held),
        max([party.largest, *sizes], default=0),
        party.moved,
        party.made,
    )

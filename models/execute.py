"""A planned model on private inputs and private weights: one graph call, and what it costs."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tfe_bench.cluster import profiles
from tfe_bench.cluster.jobs import Size
from tfe_bench.errors import UsageError
from tfe_bench.models import limits, turns, weights
from tfe_bench.models.graph import Layer
from tfe_bench.models.kinds import registry
from tfe_bench.models.kinds.layer import Node
from tfe_bench.models.kinds.operations import Operations, Setting
from tfe_bench.models.kinds.passes import Pass
from tfe_bench.models.ranges import Plan
from tfe_bench.protocols.order import extremes
from tfe_bench.protocols.ring import arithmetic, rotation, small_ring
from tfe_bench.protocols.ring.range_check import Watch
from tfe_bench.protocols.session.cost import Cost
from tfe_bench.protocols.session.counting import Private, Tally, count
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.seeded import Seeded
from tfe_bench.protocols.session.sharing import Shared


@dataclass(frozen=True, eq=False)
class Prediction:
    """A model for a batch.

    Attributes:
        plan: of the model.
        setting: of its protocols.
        batch: number of samples.
        watched: whether every value is checked to have stayed in its range (range_check.Watch);
            comparisons are then as wide as what comes to them may be.
        public: values by name that its layers are told.
        dealers: of the layers, counted from that of the inputs (turns.dealers); empty: it is one.
    """

    plan: Plan
    setting: Setting
    batch: int = 1
    watched: bool = False
    public: Mapping[str, Any] = field(default_factory=dict)
    dealers: tuple[int, ...] = ()

    def nodes(self) -> list[Node]:
        """The model's layers where they stand."""
        return self._nodes

    @functools.cached_property
    def _nodes(self) -> list[Node]:
        found = limits.limits(self.plan) if self.watched else None
        nodes, round_bits = [], (self.setting.round_bits or 0) // self.batch
        # from the last: a value has the bits that are read of it, those of the model's outputs all
        wide = dict.fromkeys(self.plan.graph.outputs, 64)
        for x in reversed(self.plan.graph.layers):
            node = self.plan.node(x) if found is None else self._watched_node(x, found)
            node = replace(node, wide=wide.get(x.name, 64), round_bits=round_bits)
            nodes.append(node)
            for i, name in enumerate(x.inputs):
                wide[name] = max(wide.get(name, 2), registry.find(x.op).reads(node, i))
        return nodes[::-1]

    def _watched_node(self, x: Layer, found: limits.Limits) -> Node:
        given = tuple(limits.of_inputs(found, x) or ())
        node = replace(self.plan.node(x), watched=True, limits=given)
        if not node.numbers.bits:
            return node
        bits = max(node.numbers.bits, limits.compared(self.plan, x, found))
        return replace(node, numbers=replace(node.numbers, bits=bits))

    def counted(self, name: str) -> Shared:
        """A value that is not there, to be counted with."""
        shape = (self.batch, *self.plan.graph.shapes[name])
        wide = next((node.wide for node in self.nodes() if node.output == name), 64)
        return Private(shape, self.plan.fraction_of(name), wide % 64).made()

    def third(self, batch: int) -> Prediction:
        """The same for a third of a batch, which has a dealer of its own."""
        return replace(self, batch=batch, setting=replace(self.setting, turn=True))


class _Dealt:
    """A model's layers whose dealer is one party, and what they read as that dealer's."""

    def __init__(
        self, party: Party, s: Prediction, own: Mapping[str, Shared | Seeded], dealer: int
    ) -> None:
        self._party, self._dealer = party, dealer
        self._made = weights.Made(party, own, dealer)
        self._values: dict[str, Shared] = {}
        self.watch = Watch(party, s.batch, dealer) if s.watched else None
        self._pass = Pass(Operations(party, s.setting, self.watch), self._made, public=s.public)

    def value(self, node: Node, values: Mapping[str, Shared]) -> Shared:
        """A layer's."""
        self._made.given = [self._own(name, values[name]) for name in node.layer.inputs]
        return _value(self._pass, node, self._made.given)

    def _own(self, name: str, x: Shared) -> Shared:
        """A value under masks that this dealer knows as soon as its turn begins, or before."""
        if x.dealer == self._dealer:
            return x
        if name not in self._values:
            self._values[name] = rotation.handed(self._party, x, self._dealer)
        return self._values[name]


def _value(p: Pass, node: Node, given: Sequence[Shared]) -> Shared:
    """A layer's value, of the ring that is read of it, of inputs of the rings that it reads."""
    kind = registry.find(node.layer.op)
    read = [small_ring.reduced(x, kind.reads(node, i)) for i, x in enumerate(given)]
    return small_ring.reduced(kind.forward(p, node, *read), node.wide)


def _watched_run(
    party: Party, s: Prediction, own: Mapping[str, Shared | Seeded], inputs: Sequence[Shared]
) -> list[Shared]:
    first = inputs[0].dealer
    by_dealer = {0: _Dealt(party, s, own, first)}
    values = dict(zip(s.plan.graph.inputs, inputs, strict=True))
    for node, turn in zip(s.nodes(), s.dealers or (0,) * len(s.nodes()), strict=True):
        if turn not in by_dealer:
            by_dealer[turn] = _Dealt(party, s, own, (first + turn) % 3)
        values[node.output] = by_dealer[turn].value(node, values)
    found = [rotation.named(party, values[o], first) for o in s.plan.graph.outputs]
    if not s.watched:
        return found
    watches = [d.watch for d in by_dealer.values() if d.watch is not None]
    flags = [rotation.named(party, watch.flag(), first) for watch in watches]
    # (three of less than 2^61 do not wrap)
    return [*found, functools.reduce(arithmetic.add, flags)]


def _counted_weights(plan: Plan) -> dict[str, Shared]:
    return {
        key: Private(part.shape, part.fractional_bits).made()
        for part in weights.parts(plan)
        for key in part.keys
    }


def _cost(s: Prediction, run: Callable[..., list[Shared]]) -> Cost:
    own = _counted_weights(s.plan)
    inputs = [s.counted(name) for name in s.plan.graph.inputs]
    return count(lambda party: run(party, s, own, inputs)).cost


def layer_tallies(s: Prediction) -> list[Tally]:
    """What each layer costs by itself, and what it computes."""
    own = _counted_weights(s.plan)
    return [_layer_tally(s, own, node) for node in s.nodes()]


def _layer_tally(s: Prediction, own: Mapping[str, Shared], node: Node) -> Tally:
    given = [s.counted(name) for name in node.layer.inputs]

    def layer(party: Party) -> Shared:
        watch = Watch(party, s.batch, given[0].dealer) if s.watched else None
        p = Pass(Operations(party, s.setting, watch), own, public=s.public)
        return _value(p, node, given)

    return count(layer)


# What a round may be worth: from nothing (the lines are full) to all (nothing but rounds count).
_ROUND_BITS = (0, 1_000_000, 3_000_000, 7_000_000, 21_000_000, 10**12)
_USUAL_ROUND = 3_000_000


def tuned(
    plan: Plan,
    profile: str = "local",
    batch: int = 1,
    watched: bool = False,
    public: Mapping[str, Any] | None = None,
) -> Prediction:
    """The setting for which a batch is over soonest, by what is sent and by the rounds.

    Args:
        profile: "local", "lan" or "wan"; only on a wan there is a choice that matters.
        watched: check every value's range; see `run`.
        public: what its layers are told.
    """
    plain = Prediction(plan, Setting(profile, _USUAL_ROUND), batch, watched, public or {})
    if profile != "wan":
        return plain
    network = profiles.get(profile)

    def microseconds(s: Prediction) -> int:
        cost = model_cost(s)
        return network.microseconds(cost.by_party(0), cost.rounds, not rotated(s))

    choices = [replace(plain, setting=Setting(profile, bits)) for bits in _ROUND_BITS]
    best = min(choices, key=microseconds)
    if rotated(best):
        return best
    costs = [tally.cost for tally in layer_tallies(best)]
    dealers = turns.dealers(plan.graph, best.nodes(), costs, batch)
    return min(best, replace(best, dealers=dealers), key=microseconds)


def rotated(s: Prediction) -> bool:
    """Whether each party deals for a third of the batch: where the line is what is waited for."""
    if s.setting.profile != "wan" or s.batch < 3:
        return False
    return rotation.worthwhile(_cost(s, _watched_run), extremes.ROUND_BITS[s.setting.profile])


def model_cost(s: Prediction) -> Cost:
    """Cost of `run` for a batch."""
    return _cost(s, run)


def added(those: Sequence[Prediction], others: Sequence[Prediction]) -> tuple[float, int]:
    """What some cost more than others: a part of the bytes of these, and rounds."""
    costs = [[model_cost(s) for s in several] for several in (those, others)]
    more, less = (sum(c.total for c in several) for several in costs)
    later, sooner = (sum(c.with_dealing for c in several) for several in costs)
    return more / less - 1, later - sooner


# What a worker takes for a layer, over the words that come in, go out and are sent: each value has
# two parts, and operations make new ones of them before they let go of the old.
_COPIES = 4
# Beside that: what the dealer is ahead with, at two peers, and a layer's part of the graph.
_AHEAD, _GRAPH = 64 << 20, 1 << 20


def size(s: Prediction) -> Size:
    """How large `run` gets: its largest array, a value or what is sent, and the memory it takes.

    The memory is that of the layer that takes most, with the masks of the largest weights.
    """
    shapes = s.plan.graph.shapes
    words, layer = 2 * s.batch * max(math.prod(shape) for shape in shapes.values()), 0
    for node, tally in zip(s.nodes(), layer_tallies(s), strict=True):
        cost, turns = tally.cost, registry.find(node.layer.op).turns(node)
        sent = max(cost.dealer, cost.e1, cost.e2) // turns // 64
        words = max(words, sent)
        own = s.batch * sum(math.prod(shape) for shape in (*node.given, node.shape))
        layer = max(layer, own + sent)
    most = max((math.prod(part.shape) for part in weights.parts(s.plan)), default=0)
    ahead = _AHEAD * (2 if s.dealers or rotated(s) else 1)  # its own, and another's
    beside = ahead + _GRAPH * len(s.plan.graph.layers)
    return Size(words, memory=8 * (_COPIES * layer + 2 * most) + beside)


def run(
    party: Party, s: Prediction, own: Mapping[str, Shared | Seeded], inputs: Sequence[Shared]
) -> list[Shared]:
    """The model's outputs for a batch, inside party.function.

    Args:
        own: the weights as weights.by_key gives them, over Z_2^64, of the inputs' dealer.
        inputs: in the order of the graph's, [batch, ...] at plan.fraction_of.

    The outputs have the scales of plan.fraction_of; with s.watched one more says for each sample
    whether a value left its range (range_check.Watch.flag).  Rounds and bits: `model_cost`.
    """
    if not rotated(s):
        return _watched_run(party, s, own, inputs)

    def third(*cut: Shared) -> list[Shared]:
        return _watched_run(party, s.third(int(cut[0].shape[0])), own, cut)

    return rotation.by_thirds(party, third, inputs)


def check_executable(plan: Plan) -> None:
    """Refuses layers that are not run as they are, and numbers that cannot be.

    Raises:
        UsageError: naming the first one.
    """
    for x in plan.graph.layers:
        if not registry.find(x.op).predicts:
            raise UsageError(
                f"Layer {x.name!r} ({x.op}) is not run as it is. Optimize the graph first."
            )
    own, s = _counted_weights(plan), Prediction(plan, Setting())
    for x in plan.graph.layers:
        try:
            registry.find(x.op).check(plan.node(x))
        except (UsageError, ValueError, OverflowError) as error:
            raise UsageError(f"Layer {x.name!r} of the plan does not fit: {error}") from None
    for node in s.nodes():
        try:
            _layer_tally(s, own, node)
        except (UsageError, ValueError, OverflowError) as error:
            name = node.layer.name
            raise UsageError(f"Layer {name!r} of the plan does not fit: {error}") from None

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
from tfe_bench.models import bound_analysis, dealer_schedule, weights
from tfe_bench.models.calibration import Plan
from tfe_bench.models.graph import LayerSpec
from tfe_bench.models.kinds import registry
from tfe_bench.models.kinds.layer import PlacedLayer
from tfe_bench.models.kinds.operations import Operations, Setting
from tfe_bench.models.kinds.passes import ForwardContext
from tfe_bench.protocols.order import extremes
from tfe_bench.protocols.ring import arithmetic, rotation, small_ring
from tfe_bench.protocols.ring.range_check import RangeMonitor
from tfe_bench.protocols.session.cost import Cost
from tfe_bench.protocols.session.counting import CostReport, Private, count_cost
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

    def placed_layers(self) -> list[PlacedLayer]:
        """The model's layers where they stand."""
        return self._placed_layers

    @functools.cached_property
    def _placed_layers(self) -> list[PlacedLayer]:
        value_limits = bound_analysis.compute_limits(self.plan) if self.watched else None
        nodes, round_bits = [], (self.setting.round_bits or 0) // self.batch
        # from the last: a value has the bits that are read of it, those of the model's outputs all
        width_by_name = dict.fromkeys(self.plan.graph.outputs, 64)
        for x in reversed(self.plan.graph.layers):
            node = (
                self.plan.place_layer(x)
                if value_limits is None
                else self._place_monitored(x, value_limits)
            )
            node = replace(node, used_bits=width_by_name.get(x.name, 64), round_bits=round_bits)
            nodes.append(node)
            for i, name in enumerate(x.inputs):
                width_by_name[name] = max(
                    width_by_name.get(name, 2), registry.get_kind(x.op).count_input_bits(node, i)
                )
        return nodes[::-1]

    def _place_monitored(self, x: LayerSpec, value_limits: bound_analysis.Limits) -> PlacedLayer:
        known_limits = tuple(bound_analysis.input_limits(value_limits, x) or ())
        node = replace(self.plan.place_layer(x), is_range_checked=True, input_limits=known_limits)
        if not node.numbers.bits:
            return node
        bits = max(node.numbers.bits, bound_analysis.comparison_bits(self.plan, x, value_limits))
        return replace(node, numbers=replace(node.numbers, bits=bits))

    def make_placeholder(self, name: str) -> Shared:
        """A value that is not there, to be counted with."""
        shape = (self.batch, *self.plan.graph.shapes[name])
        width = next((node.used_bits for node in self.placed_layers() if node.output == name), 64)
        return Private(shape, self.plan.fraction_of(name), width % 64).to_symbolic()

    def for_batch_third(self, batch: int) -> Prediction:
        """The same for a third of a batch, which has a dealer of its own."""
        return replace(self, batch=batch, setting=replace(self.setting, is_third=True))


class _DealerLayers:
    """A model's layers whose dealer is one party, and what they read as that dealer's."""

    def __init__(
        self, party: Party, s: Prediction, model_weights: Mapping[str, Shared | Seeded], dealer: int
    ) -> None:
        self._party, self._dealer = party, dealer
        self._weights = weights.ExpandedWeights(party, model_weights, dealer)
        self._transferred: dict[str, Shared] = {}
        self.watch = RangeMonitor(party, s.batch, dealer) if s.watched else None
        self._pass = ForwardContext(
            Operations(party, s.setting, self.watch), self._weights, public=s.public
        )

    def compute_value(self, node: PlacedLayer, values: Mapping[str, Shared]) -> Shared:
        """A layer's."""
        self._weights.layer_inputs = [
            self._transfer_to_dealer(name, values[name]) for name in node.layer.inputs
        ]
        return _compute_layer(self._pass, node, self._weights.layer_inputs)

    def _transfer_to_dealer(self, name: str, x: Shared) -> Shared:
        """A value under masks that this dealer knows as soon as its turn begins, or before."""
        if x.dealer == self._dealer:
            return x
        if name not in self._transferred:
            self._transferred[name] = rotation.refresh_for_dealer(self._party, x, self._dealer)
        return self._transferred[name]


def _compute_layer(p: ForwardContext, node: PlacedLayer, layer_inputs: Sequence[Shared]) -> Shared:
    """A layer's value, of the ring that is read of it, of inputs of the rings that it reads."""
    kind = registry.get_kind(node.layer.op)
    reduced_inputs = [
        small_ring.reduce_ring(x, kind.count_input_bits(node, i))
        for i, x in enumerate(layer_inputs)
    ]
    return small_ring.reduce_ring(kind.forward(p, node, *reduced_inputs), node.used_bits)


def _run_layers(
    party: Party,
    s: Prediction,
    model_weights: Mapping[str, Shared | Seeded],
    inputs: Sequence[Shared],
) -> list[Shared]:
    input_dealer = inputs[0].dealer
    by_dealer = {0: _DealerLayers(party, s, model_weights, input_dealer)}
    values = dict(zip(s.plan.graph.inputs, inputs, strict=True))
    for node, turn in zip(
        s.placed_layers(), s.dealers or (0,) * len(s.placed_layers()), strict=True
    ):
        if turn not in by_dealer:
            by_dealer[turn] = _DealerLayers(party, s, model_weights, (input_dealer + turn) % 3)
        values[node.output] = by_dealer[turn].compute_value(node, values)
    outputs = [
        rotation.relabel_dealer(party, values[o], input_dealer) for o in s.plan.graph.outputs
    ]
    if not s.watched:
        return outputs
    watches = [d.watch for d in by_dealer.values() if d.watch is not None]
    flags = [
        rotation.relabel_dealer(party, watch.compute_flag(), input_dealer) for watch in watches
    ]
    # (three of less than 2^61 do not wrap)
    return [*outputs, functools.reduce(arithmetic.add, flags)]


def _placeholder_weights(plan: Plan) -> dict[str, Shared]:
    return {
        key: Private(part.shape, part.fractional_bits).to_symbolic()
        for part in weights.weight_parts(plan)
        for key in part.keys
    }


def _count_cost(s: Prediction, run: Callable[..., list[Shared]]) -> Cost:
    model_weights = _placeholder_weights(s.plan)
    inputs = [s.make_placeholder(name) for name in s.plan.graph.inputs]
    return count_cost(lambda party: run(party, s, model_weights, inputs)).cost


def layer_cost_reports(s: Prediction) -> list[CostReport]:
    """What each layer costs by itself, and what it computes."""
    model_weights = _placeholder_weights(s.plan)
    return [_layer_cost_report(s, model_weights, node) for node in s.placed_layers()]


def _layer_cost_report(
    s: Prediction, model_weights: Mapping[str, Shared], node: PlacedLayer
) -> CostReport:
    layer_inputs = [s.make_placeholder(name) for name in node.layer.inputs]

    def run_layer(party: Party) -> Shared:
        watch = RangeMonitor(party, s.batch, layer_inputs[0].dealer) if s.watched else None
        p = ForwardContext(Operations(party, s.setting, watch), model_weights, public=s.public)
        return _compute_layer(p, node, layer_inputs)

    return count_cost(run_layer)


# What a round may be worth: from nothing (the lines are full) to all (nothing but rounds count).
_ROUND_BITS = (0, 1_000_000, 3_000_000, 7_000_000, 21_000_000, 10**12)
_DEFAULT_ROUND_BITS = 3_000_000


def tune_prediction(
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
    default_prediction = Prediction(
        plan, Setting(profile, _DEFAULT_ROUND_BITS), batch, watched, public or {}
    )
    if profile != "wan":
        return default_prediction
    network = profiles.get_profile(profile)

    def estimate_time(s: Prediction) -> int:
        cost = model_cost(s)
        return network.microseconds(cost.by_party(0), cost.rounds, not has_rotating_dealers(s))

    choices = [replace(default_prediction, setting=Setting(profile, bits)) for bits in _ROUND_BITS]
    best = min(choices, key=estimate_time)
    if has_rotating_dealers(best):
        return best
    costs = [tally.cost for tally in layer_cost_reports(best)]
    dealers = dealer_schedule.assign_dealers(plan.graph, best.placed_layers(), costs, batch)
    return min(best, replace(best, dealers=dealers), key=estimate_time)


def has_rotating_dealers(s: Prediction) -> bool:
    """Whether each party deals for a third of the batch: where the line is what is waited for."""
    if s.setting.profile != "wan" or s.batch < 3:
        return False
    return rotation.is_worthwhile(
        _count_cost(s, _run_layers), extremes.ROUND_BITS[s.setting.profile]
    )


def model_cost(s: Prediction) -> Cost:
    """Cost of `run` for a batch."""
    return _count_cost(s, run_model)


def compare_costs(
    predictions: Sequence[Prediction], baselines: Sequence[Prediction]
) -> tuple[float, int]:
    """What some cost more than others: a part of the bytes of these, and rounds."""
    costs = [[model_cost(s) for s in several] for several in (predictions, baselines)]
    total_bits, baseline_bits = (sum(c.total for c in several) for several in costs)
    total_rounds, baseline_rounds = (sum(c.with_dealing for c in several) for several in costs)
    return total_bits / baseline_bits - 1, total_rounds - baseline_rounds


# What a worker takes for a layer, over the words that come in, go out and are sent: each value has
# two parts, and operations make new ones of them before they let go of the old.
_COPIES = 4
# Beside that: what the dealer is ahead with, at two peers, and a layer's part of the graph.
_PREFETCH_BYTES, _LAYER_GRAPH_BYTES = 64 << 20, 1 << 20


def estimate_size(s: Prediction) -> Size:
    """How large `run` gets: its largest array, a value or what is sent, and the memory it takes.

    The memory is that of the layer that takes most, with the masks of the largest weights.
    """
    shapes = s.plan.graph.shapes
    words, layer_words = 2 * s.batch * max(math.prod(shape) for shape in shapes.values()), 0
    for node, tally in zip(s.placed_layers(), layer_cost_reports(s), strict=True):
        cost, slice_count = tally.cost, registry.get_kind(node.layer.op).count_stages(node)
        sent = max(cost.dealer, cost.e1, cost.e2) // slice_count // 64
        words = max(words, sent)
        value_words = s.batch * sum(math.prod(shape) for shape in (*node.input_shapes, node.shape))
        layer_words = max(layer_words, value_words + sent)
    largest_weight = max(
        (math.prod(part.shape) for part in weights.weight_parts(s.plan)), default=0
    )
    prefetch_bytes = _PREFETCH_BYTES * (
        2 if s.dealers or has_rotating_dealers(s) else 1
    )  # its own, and another's
    fixed_bytes = prefetch_bytes + _LAYER_GRAPH_BYTES * len(s.plan.graph.layers)
    return Size(words, memory=8 * (_COPIES * layer_words + 2 * largest_weight) + fixed_bytes)


def run_model(
    party: Party,
    s: Prediction,
    model_weights: Mapping[str, Shared | Seeded],
    inputs: Sequence[Shared],
) -> list[Shared]:
    """The model's outputs for a batch, inside party.function.

    Args:
        own: the weights as weights.by_key gives them, over Z_2^64, of the inputs' dealer.
        inputs: in the order of the graph's, [batch, ...] at plan.fraction_of.

    The outputs have the scales of plan.fraction_of; with s.watched one more says for each sample
    whether a value left its range (range_check.Watch.flag).  Rounds and bits: `model_cost`.
    """
    if not has_rotating_dealers(s):
        return _run_layers(party, s, model_weights, inputs)

    def run_third(*cut: Shared) -> list[Shared]:
        return _run_layers(party, s.for_batch_third(int(cut[0].shape[0])), model_weights, cut)

    return rotation.compute_by_thirds(party, run_third, inputs)


def check_executable(plan: Plan) -> None:
    """Refuses layers that are not run as they are, and numbers that cannot be.

    Raises:
        UsageError: naming the first one.
    """
    for x in plan.graph.layers:
        if not registry.get_kind(x.op).can_predict:
            raise UsageError(
                f"Layer {x.name!r} ({x.op}) is not run as it is. Optimize the graph first."
            )
    model_weights, s = _placeholder_weights(plan), Prediction(plan, Setting())
    for x in plan.graph.layers:
        try:
            registry.get_kind(x.op).check_format(plan.place_layer(x))
        except (UsageError, ValueError, OverflowError) as error:
            raise UsageError(f"Layer {x.name!r} of the plan does not fit: {error}") from None
    for node in s.placed_layers():
        try:
            _layer_cost_report(s, model_weights, node)
        except (UsageError, ValueError, OverflowError) as error:
            name = node.layer.name
            raise UsageError(f"Layer {name!r} of the plan does not fit: {error}") from None

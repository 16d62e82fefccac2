"""Execution of a planned model on private inputs and weights in one graph call, and its cost."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tfe_bench.cluster import profiles
from tfe_bench.cluster.jobs import Size
from tfe_bench.errors import UsageError
from tfe_bench.models.convert import bound_analysis
from tfe_bench.models.convert.calibration import ModelPlan
from tfe_bench.models.convert.graph import LayerSpec
from tfe_bench.models.inference import dealer_schedule, weights
from tfe_bench.models.layers.base import ForwardContext, PlacedLayer, registry
from tfe_bench.models.layers.base.operations import Operations, ProtocolSetting
from tfe_bench.protocols.order import extremes
from tfe_bench.protocols.ring import arithmetic, rotation, small_ring
from tfe_bench.protocols.ring.range_check import RangeMonitor
from tfe_bench.protocols.session.cost import Cost
from tfe_bench.protocols.session.counting import CostReport, Private, count_cost
from tfe_bench.protocols.session.message_graph import MessageGraph
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.seeded import Seeded
from tfe_bench.protocols.session.sharing import Shared


@dataclass(frozen=True, eq=False)
class Prediction:
    """A model for one batch size and protocol setting.

    Attributes:
        plan: the plan of the model.
        setting: the setting of its protocols.
        batch: number of samples.
        watched: whether the range of every value is checked (range_check). Comparisons are then as
            wide as the bounds of their operands require.
        public: public values by name for layers that need them.
        dealers: dealer of each layer relative to the dealer of the inputs
            (dealer_schedule.assign_dealers); empty: one dealer for all.
    """

    plan: ModelPlan
    setting: ProtocolSetting
    batch: int = 1
    watched: bool = False
    public: Mapping[str, Any] = field(default_factory=dict)
    dealers: tuple[int, ...] = ()

    def placed_layers(self) -> list[PlacedLayer]:
        """Return the model's layers with their positions, formats and widths."""
        return self._placed_layers

    @functools.cached_property
    def _placed_layers(self) -> list[PlacedLayer]:
        value_limits = bound_analysis.compute_layer_limits(self.plan) if self.watched else None
        nodes, round_bits = [], (self.setting.round_bits or 0) // self.batch
        # from the last layer back: a value is as wide as its widest use, and outputs have all 64
        # bits
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
                    width_by_name.get(name, 2),
                    registry.get_layer_kind(x.op).count_input_bits(node, i),
                )
        return nodes[::-1]

    def _place_monitored(self, x: LayerSpec, value_limits: bound_analysis.Limits) -> PlacedLayer:
        known_limits = tuple(bound_analysis.input_limits(value_limits, x) or ())
        node = replace(self.plan.place_layer(x), is_range_checked=True, input_limits=known_limits)
        if not node.numbers.bits:
            return node
        bits = max(
            node.numbers.bits, bound_analysis.layer_comparison_bits(self.plan, x, value_limits)
        )
        return replace(node, numbers=replace(node.numbers, bits=bits))

    def make_placeholder(self, name: str) -> Shared:
        """Return a symbolic value for counting costs."""
        shape = (self.batch, *self.plan.graph.shapes[name])
        width = next((node.used_bits for node in self.placed_layers() if node.output == name), 64)
        return Private(shape, self.plan.fraction_of(name), width % 64).to_symbolic()

    def for_batch_third(self, batch: int) -> Prediction:
        """Return the prediction for a third of a batch, which has its own dealer."""
        return replace(self, batch=batch, setting=replace(self.setting, is_third=True))


class _DealerLayers:
    """The layers of a model with one dealer, and their inputs and weights under that dealer."""

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
        """Compute the value of a layer."""
        self._weights.layer_inputs = [
            self._transfer_to_dealer(name, values[name]) for name in node.layer.inputs
        ]
        return _compute_layer(self._pass, node, self._weights.layer_inputs)

    def _transfer_to_dealer(self, name: str, x: Shared) -> Shared:
        """Return a value under masks that this dealer knows by the start of its stretch."""
        if x.dealer == self._dealer:
            return x
        if name not in self._transferred:
            self._transferred[name] = rotation.refresh_for_dealer(self._party, x, self._dealer)
        return self._transferred[name]


def _compute_layer(p: ForwardContext, node: PlacedLayer, layer_inputs: Sequence[Shared]) -> Shared:
    """Compute a layer's value; reduce inputs to the rings it reads, and the result to its ring."""
    kind = registry.get_layer_kind(node.layer.op)
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
    # the sum of three values below 2^61 does not wrap
    return [*outputs, functools.reduce(arithmetic.add, flags)]


def _placeholder_model_weights(plan: ModelPlan) -> dict[str, Shared]:
    return {
        key: Private(part.shape, part.fractional_bits).to_symbolic()
        for part in weights.weight_parts(plan)
        for key in part.keys
    }


def _count_prediction_cost(
    s: Prediction, run: Callable[..., list[Shared]], messages: MessageGraph | None = None
) -> Cost:
    model_weights = _placeholder_model_weights(s.plan)
    inputs = [s.make_placeholder(name) for name in s.plan.graph.inputs]
    return count_cost(lambda party: run(party, s, model_weights, inputs), messages=messages).cost


def layer_cost_reports(
    s: Prediction, messages: Sequence[MessageGraph | None] | None = None
) -> list[CostReport]:
    """Count the cost and the work of each layer on its own, and add its messages to its graph."""
    model_weights, layers = _placeholder_model_weights(s.plan), s.placed_layers()
    return [
        _layer_cost_report(s, model_weights, node, graph)
        for node, graph in zip(layers, messages or [None] * len(layers), strict=True)
    ]


def _layer_cost_report(
    s: Prediction,
    model_weights: Mapping[str, Shared],
    node: PlacedLayer,
    messages: MessageGraph | None = None,
) -> CostReport:
    layer_inputs = [s.make_placeholder(name) for name in node.layer.inputs]

    def run_layer(party: Party) -> Shared:
        watch = RangeMonitor(party, s.batch, layer_inputs[0].dealer) if s.watched else None
        p = ForwardContext(Operations(party, s.setting, watch), model_weights, public=s.public)
        return _compute_layer(p, node, layer_inputs)

    return count_cost(run_layer, messages=messages)


# Candidate weights of a round in bits: from 0 (bandwidth is the bottleneck) to a value that makes
# rounds alone count.
_ROUND_BITS = (0, 1_000_000, 3_000_000, 7_000_000, 21_000_000, 10**12)
_DEFAULT_ROUND_BITS = 3_000_000


def tune_prediction(
    plan: ModelPlan,
    profile: str = "local",
    batch: int = 1,
    watched: bool = False,
    public: Mapping[str, Any] | None = None,
) -> Prediction:
    """Choose the setting with the shortest predicted time for a batch, from bytes and rounds.

    Args:
        profile: "local", "lan" or "wan"; the choice matters on "wan" alone.
        watched: check the range of every value; see `run_model`.
        public: public values for layers that need them.
    """
    default_prediction = Prediction(
        plan, ProtocolSetting(profile, _DEFAULT_ROUND_BITS), batch, watched, public or {}
    )
    if profile != "wan":
        return default_prediction
    network = profiles.get_profile(profile)

    def estimate_time(s: Prediction) -> int:
        cost = model_cost(s)
        return network.microseconds(cost.by_party(0), cost.rounds, not has_rotating_dealers(s))

    choices = [
        replace(default_prediction, setting=ProtocolSetting(profile, bits)) for bits in _ROUND_BITS
    ]
    best = min(choices, key=estimate_time)
    if has_rotating_dealers(best):
        return best
    costs = [tally.cost for tally in layer_cost_reports(best)]
    dealers = dealer_schedule.assign_dealers(plan.graph, best.placed_layers(), costs, batch)
    return min(best, replace(best, dealers=dealers), key=estimate_time)


def has_rotating_dealers(s: Prediction) -> bool:
    """Return whether each party deals for a third of the batch, as bandwidth is the bottleneck."""
    if s.setting.profile != "wan" or s.batch < 3:
        return False
    return rotation.is_worthwhile(
        _count_prediction_cost(s, _run_layers), extremes.ROUND_BITS[s.setting.profile]
    )


def model_cost(s: Prediction, messages: MessageGraph | None = None) -> Cost:
    """Count the cost of `run_model` for a batch, and add its messages to a graph."""
    return _count_prediction_cost(s, run_model, messages)


def compare_prediction_costs(
    predictions: Sequence[Prediction], baselines: Sequence[Prediction]
) -> tuple[float, int]:
    """Return the relative extra bytes and the extra rounds of predictions over baselines."""
    costs = [[model_cost(s) for s in several] for several in (predictions, baselines)]
    total_bits, baseline_bits = (sum(c.total for c in several) for several in costs)
    total_rounds, baseline_rounds = (sum(c.with_dealing for c in several) for several in costs)
    return total_bits / baseline_bits - 1, total_rounds - baseline_rounds


# Memory of a layer, as a multiple of the words that it reads, writes and sends: each value has two
# parts, and operations allocate new parts before they release the old ones.
_COPIES = 4
# Further memory: correlated randomness that the dealer sends in advance, at two peers, and the
# graph of a layer.
_PREFETCH_BYTES, _LAYER_GRAPH_BYTES = 64 << 20, 1 << 20


def estimate_prediction_size(s: Prediction) -> Size:
    """Estimate the size of `run_model`: its largest array, a value or a message, and its memory.

    The memory is that of the layer that needs most, plus the masks of the largest weights.
    """
    shapes = s.plan.graph.shapes
    words, layer_words = 2 * s.batch * max(math.prod(shape) for shape in shapes.values()), 0
    for node, tally in zip(s.placed_layers(), layer_cost_reports(s), strict=True):
        cost, slice_count = tally.cost, registry.get_layer_kind(node.layer.op).count_stages(node)
        sent = max(cost.dealer, cost.e1, cost.e2) // slice_count // 64
        words = max(words, sent)
        value_words = s.batch * sum(math.prod(shape) for shape in (*node.input_shapes, node.shape))
        layer_words = max(layer_words, value_words + sent)
    largest_weight = max(
        (math.prod(part.shape) for part in weights.weight_parts(s.plan)), default=0
    )
    prefetch_bytes = _PREFETCH_BYTES * (
        2 if s.dealers or has_rotating_dealers(s) else 1
    )  # its own material and that of another dealer
    fixed_bytes = prefetch_bytes + _LAYER_GRAPH_BYTES * len(s.plan.graph.layers)
    return Size(words, memory=8 * (_COPIES * layer_words + 2 * largest_weight) + fixed_bytes)


def run_model(
    party: Party,
    s: Prediction,
    model_weights: Mapping[str, Shared | Seeded],
    inputs: Sequence[Shared],
) -> list[Shared]:
    """Compute the model's outputs for a batch, inside party.function.

    Args:
        model_weights: the weights from weights.map_weights_by_key, over Z_2^64, with the dealer of
            the inputs.
        inputs: [batch, ...] in the order of the graph's inputs, with plan.fraction_of fractional
            bits.

    Returns:
        Outputs with plan.fraction_of fractional bits.  With s.watched, one more output states for
            each sample whether a value left its range (range_check.RangeMonitor.compute_flag).

    Rounds and bits: `model_cost`.
    """
    if not has_rotating_dealers(s):
        return _run_layers(party, s, model_weights, inputs)

    def run_third(*cut: Shared) -> list[Shared]:
        return _run_layers(party, s.for_batch_third(int(cut[0].shape[0])), model_weights, cut)

    return rotation.compute_by_thirds(party, run_third, inputs)


def check_executable_plan(plan: ModelPlan) -> None:
    """Reject a plan with layers that must be optimized first, or with invalid numbers.

    Raises:
        UsageError: a layer is invalid; the text names the first one.
    """
    for x in plan.graph.layers:
        if not registry.get_layer_kind(x.op).can_predict:
            raise UsageError(
                f"Layer {x.name!r} ({x.op}) cannot run as it is. Optimize the graph first.",
                code="unsupported-layer",
                operation=x.name,
                received=x.op,
            )
    model_weights, s = _placeholder_model_weights(plan), Prediction(plan, ProtocolSetting())
    for x in plan.graph.layers:
        try:
            registry.get_layer_kind(x.op).check_format(plan.place_layer(x))
        except (UsageError, ValueError, OverflowError) as error:
            raise UsageError(
                f"Invalid layer {x.name!r} of the plan: {error}",
                code="invalid-plan",
                operation=x.name,
            ) from None
    for node in s.placed_layers():
        try:
            _layer_cost_report(s, model_weights, node)
        except (UsageError, ValueError, OverflowError) as error:
            name = node.layer.name
            raise UsageError(
                f"Invalid layer {name!r} of the plan: {error}", code="invalid-plan", operation=name
            ) from None

"""One private step: from a batch and the state to the next state."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import numpy as np

from tfe_bench.cluster import profiles
from tfe_bench.models.layers.base import ForwardContext, registry
from tfe_bench.models.layers.base.operations import Operations, ProtocolSetting
from tfe_bench.models.training import gradients, nodes, penalties, state, updates
from tfe_bench.models.training.recipe import Recipe
from tfe_bench.protocols.ring import shapes
from tfe_bench.protocols.ring.range_check import RING
from tfe_bench.protocols.session.cost import Cost
from tfe_bench.protocols.session.counting import Private, count_cost
from tfe_bench.protocols.session.message_graph import MessageGraph
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared

# Range checks of a step: none, the values of layers, or gradients and their squares as well.
NOTHING, VALUES, ALL = "", "values", "gradients"
# Default budget of range checks: a fraction of a step's bits, or this many bits.
_WATCH_SHARE, _WATCH_BITS = 0.03, 8 * 4096
# Predictions lie within 2^_OUTPUT_BITS.
_OUTPUT_BITS = 13


def run_step(
    party: Party,
    recipe: Recipe,
    setting: ProtocolSetting,
    state_values: Mapping[str, Shared],
    x: Shared,
    y: Shared,
    public: Mapping[str, Any],
    loss: bool = False,
    range_flags: dict[str, Shared] | None = None,
    watch: str = ALL,
) -> tuple[dict[str, Shared], Shared | None]:
    """Compute the next state, inside party.function.

    Args:
        state_values: the state by key, as in state.list_training_state_specs.
        x: features [batch, ...] with numbers.activation fractional bits.
        y: targets [batch, *recipe.label_shape] with numbers.gradient fractional bits.
        public: `public_values` of the step, as int64 tensors.
        range_flags: receives, by the names of places, a flag [1] that is 0 if all values of the
            step were in their range, and else a random number (range_check.Watch.flag).
        watch: the range checks: VALUES or ALL.
        loss: whether to compute the loss too; it stays private, and `mean_loss` converts its
            revealed sum.

    Returns:
        The state, and the sum of the losses of all answers [] (None unless requested).

    Rounds and bits: `step_cost`.
    """
    ops, small = Operations(party, setting), recipe.loss.accepts_small_ring and not loss
    p = ForwardContext(
        ops,
        state_values,
        recipe.numbers,
        recipe.frozen,
        public,
        is_training=True,
        accepts_small_ring=small,
    )
    p.range_checks, p.checks_gradients = (
        None if range_flags is None else {},
        range_flags is not None and watch == ALL,
    )
    output = gradients.run_forward_pass(p, recipe, x)
    if output.ring_bits == RING:
        p.check_magnitude(recipe.graph.outputs[0], output, output.fractional_bits + _OUTPUT_BITS)
    weight = None
    if recipe.weighted:
        lead, last = ops.get_shape(y)[:-1], ops.get_shape(y)[-1] - 1
        weight = ops.apply_local(
            lambda v: shapes.getitem(v, (..., slice(last, None))), y, (*lead, 1)
        )
        y = ops.apply_local(lambda v: shapes.getitem(v, (..., slice(last))), y, (*lead, last))
    d, total = recipe.loss.compute_gradient(ops, output, y, loss)
    if weight is not None:
        d = ops.truncate(ops.mul(d, weight), weight.fractional_bits)
    weight_gradients = gradients.run_backward_pass(
        p, recipe, d, nodes.find_differentiated_values(recipe.graph, recipe.frozen)
    )
    weight_gradients = penalties.add_penalty_gradients(
        p, recipe.penalties, recipe.gradient_share, weight_gradients
    )
    if total is not None and (more := _sum_weight_penalties(p, recipe)) is not None:
        total = ops.add(total, more)
    result = {**updates.update_training_state(p, recipe, weight_gradients), **p.new_statistics}
    if range_flags is not None and p.range_checks is not None:
        range_flags.update({name: watch.compute_flag() for name, watch in p.range_checks.items()})
    return result, total


def _sum_weight_penalties(p: ForwardContext, recipe: Recipe) -> Shared | None:
    """Sum of the penalties of trained weights, at the scale of the sum of a batch's losses."""
    shape, loss = recipe.output_shape, recipe.loss
    rows = Fraction(recipe.batch * loss.count_terms(shape), loss.compute_scale(shape, recipe.batch))
    trained = {k: pair for k, pair in recipe.penalties.items() if k not in recipe.frozen}
    return penalties.compute_penalty_loss(p, trained, rows)


def public_values(recipe: Recipe, number: int) -> dict[str, Any]:
    """Return the public values of a step that change between steps, int64 arrays by name.

    Args:
        number: number of the step, counted from 0 over all epochs.
    """
    rates = updates.public_learning_rates(recipe, number)
    values: dict[str, Any] = {name: np.asarray(rate, np.int64) for name, rate in rates.items()}
    for layer in recipe.graph.layers:
        shape = (recipe.batch, *recipe.graph.shapes[layer.name])
        values.update(
            registry.get_layer_kind(layer.op).public_values(layer, shape, recipe.seed, number)
        )
    return values


def mean_training_loss(recipe: Recipe, total: float, rows: int | None = None) -> float:
    """Return the mean loss as in Keras, from the revealed sum over a batch (or this many rows)."""
    rows = recipe.batch if rows is None else rows
    loss, shape = recipe.loss, recipe.output_shape
    return total * loss.compute_scale(shape, recipe.batch) / (rows * loss.count_terms(shape))


# Candidate prices of a round in bits: from none (links are saturated) to all (only rounds count).
_ROUND_BITS = (1, 3_000_000, 21_000_000, 10**12)


def tune_setting(recipe: Recipe, profile: str = "local") -> ProtocolSetting:
    """Choose the setting with the shortest step, by the bytes and the rounds.

    Args:
        profile: "local", "lan" or "wan"; the choice matters on a wan only.
    """
    if profile != "wan":
        return ProtocolSetting(profile)
    network = profiles.get_profile(profile)

    def estimate_microseconds(setting: ProtocolSetting) -> int:
        cost = step_cost(recipe, setting)
        return network.microseconds(cost.by_party(0), cost.rounds)

    thirds = (False, True) if recipe.optimizer.is_adaptive else (False,)
    choices = [ProtocolSetting(profile, bits, third) for bits in _ROUND_BITS for third in thirds]
    return min(choices, key=estimate_microseconds)


def step_cost(
    recipe: Recipe, setting: ProtocolSetting, loss: bool = False, watch: str = NOTHING
) -> Cost:
    """Return the cost of `run_step`; its total is a lower bound for updates dealt by thirds.

    Args:
        watch: the range checks.
    """
    return _count_training_step(recipe, setting, loss, watch)[0]


def list_step_range_checks(
    recipe: Recipe, setting: ProtocolSetting, loss: bool, watch: str
) -> list[str]:
    """List the names of a step's range checks, in the order of its flags: layers, weights."""
    return _count_training_step(recipe, setting, loss, watch)[1] if watch else []


def choose_step_range_checks(recipe: Recipe, setting: ProtocolSetting, loss: bool) -> str:
    """Choose the most range checks for 3% of a step's bytes, or for 4 KiB."""
    plain = step_cost(recipe, setting, loss).total
    for watch in (ALL, VALUES):
        more = step_cost(recipe, setting, loss, watch).total - plain
        if more < max(_WATCH_SHARE * plain, _WATCH_BITS):
            return watch
    return NOTHING


def count_step_messages(
    recipe: Recipe, profile: str, loss: bool = False, watch: str = NOTHING
) -> MessageGraph:
    """Count the messages of `run_step` with the setting for a profile."""
    messages = MessageGraph()
    _count_training_step(recipe, tune_setting(recipe, profile), loss, watch, messages)
    return messages


def _count_training_step(
    recipe: Recipe,
    setting: ProtocolSetting,
    loss: bool,
    watch: str,
    messages: MessageGraph | None = None,
) -> tuple[Cost, list[str]]:
    state_values = {
        s.key: Private(s.shape, s.fractional_bits).to_symbolic()
        for s in state.list_training_state_specs(recipe)
    }
    x = Private((recipe.batch, *recipe.input_shape), recipe.numbers.activation)
    y = Private((recipe.batch, *recipe.label_shape), recipe.numbers.gradient)
    public = public_values(recipe, 0)

    def run_counted(party: Party, x: Shared, y: Shared) -> None:
        flags: dict[str, Shared] | None = {} if watch else None
        run_step(party, recipe, setting, state_values, x, y, public, loss, flags, watch)
        names.extend(flags or ())

    names: list[str] = []
    return count_cost(run_counted, x, y, messages=messages).cost, names

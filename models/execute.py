"""A planned model on private inputs and private weights: one graph call, and what it costs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from tfe_bench.cluster import profiles
from tfe_bench.models import layers
from tfe_bench.models.graph import Layer
from tfe_bench.models.layers import Setting
from tfe_bench.models.ranges import Plan
from tfe_bench.protocols.order import extremes
from tfe_bench.protocols.ring import range_check, rotation
from tfe_bench.protocols.ring.range_check import Watch
from tfe_bench.protocols.session.cost import Cost
from tfe_bench.protocols.session.counting import Counting, Private, count
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared


def _run(
    party: Party, s: Setting, weights: Mapping[str, Shared], inputs: Sequence[Shared]
) -> list[Shared]:
    graph = s.plan.graph
    values = dict(zip(graph.inputs, inputs, strict=True))
    watch = Watch(party, s.batch, inputs[0].dealer) if s.watched else None
    for x in graph.layers:
        given = [values[i] for i in x.inputs]
        values[x.name] = layers.run_layer(party, s, x, given, weights, watch)
    found = [values[o] for o in graph.outputs]
    return found if watch is None else [*found, watch.flag()]


def _whole_cost(s: Setting) -> Cost:
    """All layers together; those that do not wait for each other share rounds."""
    graph = s.plan.graph
    reached = {name: (0, 0) for name in graph.inputs}
    sent = [0, 0, 0]
    told = (0, 0)
    for x in graph.layers:
        now = (0, 0)
        for inputs, cost in layers.stages(s, x):
            for i, bits in enumerate((cost.dealer, cost.e1, cost.e2)):
                sent[i] += bits
            waited = [now, *(reached[i] for i in inputs)]
            rounds, cold = (max(w[k] for w in waited) for k in (0, 1))
            after = Cost(0, 0, 0, rounds, cold).then(cost)
            now = (after.rounds, after.cold)
        reached[x.name] = now
        before = layers.noted(s, x)
        if before is not None:
            told = (max(told[0], now[0] - before), max(told[1], now[1] - before))
    if s.watched:
        flag = range_check.flag_cost(s.batch)
        sent = [a + b for a, b in zip(sent, (flag.dealer, flag.e1, flag.e2), strict=True)]
        after = Cost(0, 0, 0, *told).then(flag)
        reached["flag"] = (after.rounds, after.cold)
    rounds, cold = (max(r[k] for r in reached.values()) for k in (0, 1))
    return Cost(sent[0], sent[1], sent[2], rounds, cold)


# What a round may be worth: from nothing (the lines are full) to all (nothing but rounds count).
_ROUND_BITS = (0, 1_000_000, 3_000_000, 7_000_000, 21_000_000, 10**12)


def tuned(plan: Plan, profile: str = "local", batch: int = 1, watched: bool = False) -> Setting:
    """The setting for which a batch is over soonest, by what is sent and by the rounds.

    Args:
        profile: "local", "lan" or "wan"; only on a wan there is a choice that matters.
        watched: check every value's range; see `run`.
    """
    plain = Setting(plan, profile, batch, watched=watched)
    if profile != "wan":
        return plain
    network = profiles.get(profile)

    def microseconds(s: Setting) -> int:
        cost = model_cost(s)
        line = [bits // 8 * 1_000_000 // network.bytes_per_second for bits in cost.by_party(0)]
        waits = cost.rounds * network.delay_us
        # a dealer's material leaves while the evaluators wait for each other
        return max(line) + waits if rotated(s) else max(line[0], max(line[1:]) + waits)

    return min((replace(plain, round_bits=b) for b in _ROUND_BITS), key=microseconds)


def rotated(s: Setting) -> bool:
    """Whether each party deals for a third of the batch: where the line is what is waited for."""
    if s.profile != "wan" or s.batch < 3:
        return False
    return rotation.worthwhile(_whole_cost(s), extremes.ROUND_BITS[s.profile])


def model_cost(s: Setting) -> Cost:
    """Cost of `run` for a batch."""
    if not rotated(s):
        return _whole_cost(s)

    def thirds(party: Counting, batch: Shared) -> list[Shared]:
        def third(cut: Shared) -> list[Shared]:
            cost = _whole_cost(replace(s, batch=cut.shape[0], turn=True))
            return [replace(cut, m=party.sent(cost, cut.shape, cut))]

        return rotation.by_thirds(party, third, [batch])

    return count(thirds, Private((s.batch,))).cost


def largest(s: Setting) -> int:
    """An upper bound on the words of the largest array of `run`: a value, or what it sends."""
    values = max(math.prod(shape) for shape in s.plan.graph.shapes.values())
    sent = max(
        max(cost.dealer, cost.e1, cost.e2)
        for x in s.plan.graph.layers
        for _, cost in layers.stages(s, x)
    )
    return max(2 * s.batch * values, sent // 64)


def run(
    party: Party, s: Setting, weights: Mapping[str, Shared], inputs: Sequence[Shared]
) -> list[Shared]:
    """The model's outputs for a batch, inside party.function.

    Args:
        weights: as weights.by_key gives them, over Z_2^64.
        inputs: in the order of the graph's, [batch, ...] at plan.fraction.

    The outputs have the scales of plan.fraction_of; with s.watched one more says for each sample
    whether a value left its range (range_check.Watch.flag).  Rounds and bits: `model_cost`.
    """
    if not rotated(s):
        return _run(party, s, weights, inputs)

    def third(*cut: Shared) -> list[Shared]:
        dealer, batch = cut[0].dealer, int(cut[0].shape[0])
        own = {name: rotation.named(party, w, dealer) for name, w in weights.items()}
        return _run(party, replace(s, batch=batch, turn=True), own, cut)

    return rotation.by_thirds(party, third, inputs)


def macs(plan: Plan, x: Layer) -> int:
    """Multiplications of a layer for one sample."""
    if x.op != "sum":
        return 0
    out, total = plan.graph.shapes[x.name], 0
    for i, term in enumerate(x.options["terms"]):
        if term["op"] == "skip":
            continue
        kernel = x.weights[f"kernel{i}"].shape
        if term["op"] in ("affine", "depthwise_conv2d"):
            total += math.prod(out) * math.prod(kernel[:2] if len(kernel) == 4 else ())
        else:
            total += math.prod(out) * math.prod(kernel[:-1])
    return total

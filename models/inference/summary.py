"""Predicted cost of a prediction, layer by layer, before anything is sent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tfe_bench.cluster import profiles
from tfe_bench.cluster.network_timeline import simulate_network
from tfe_bench.models.convert.calibration import ModelPlan
from tfe_bench.models.convert.precision import MAX_ERROR, LayerError
from tfe_bench.models.inference import execute
from tfe_bench.models.layers.base import registry
from tfe_bench.protocols.session.cost import Cost
from tfe_bench.protocols.session.message_graph import MessageGraph
from tfe_bench.protocols.session.openings import Opening, describe_openings

# Measured for ResNet50 with three workers on two cores: 64-bit multiplications per second, bytes
# per second through comparisons and the channel, and the overhead of a round. These are estimates;
# bytes and rounds are exact.
MACS_PER_SECOND = 6e9
BYTES_PER_SECOND = 600e6
# Correlated randomness of polynomials is multiplied in words of up to 256 bits. A byte takes 2.6
# times as long for EfficientNetB0, which consists nearly of SiLUs alone; for a GELU alone 1.9
# times, for a SiLU 3.0 times.
WIDE_BYTES_PER_SECOND = 230e6
ROUND_SECONDS = 0.2e-3
# Each evaluator multiplies twice for each product of the plaintext model.
PRODUCTS = 2


@dataclass(frozen=True)
class LayerSummary:
    """Predicted cost of one layer.

    Attributes:
        name, kind: name and type of the layer.
        shape: shape of its value, with the batch.
        fraction: fractional bits of its value.
        cost: bits sent by role, and rounds.
        seconds: predicted time of the layer alone under the profile.
        error: error of its values in fixed point, if known.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    fraction: int
    cost: Cost
    seconds: float
    error: LayerError | None = None


@dataclass(frozen=True)
class Summary:
    """Predicted cost of a model's layers and their total; printing it shows the table.

    Attributes:
        rows: the layers in order.
        cost: total cost; layers that do not depend on each other share rounds.
        seconds: total time.
        rotated: whether each party deals for a third of the batch.
        openings: what becomes public to workers.
    """

    model: str
    profile: str
    batch: int
    parameters: int
    rows: tuple[LayerSummary, ...]
    cost: Cost
    seconds: float
    rotated: bool
    openings: tuple[Opening, ...] = ()

    def __str__(self) -> str:
        lines: list[tuple[str, ...]] = [
            ("layer", "kind", "shape", "bits", "kB sent", "rounds", "seconds", "error")
        ]
        for row in self.rows:
            lines.append(
                (
                    row.name,
                    row.kind,
                    "x".join(map(str, row.shape)),
                    str(row.fraction),
                    f"{row.cost.total / 8000:,.1f}",
                    str(row.cost.rounds),
                    f"{row.seconds:.3f}",
                    "" if row.error is None else f"{row.error.largest:.1e}",
                )
            )
        if all(row.error is None for row in self.rows):
            lines = [line[:-1] for line in lines]
        widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
        text = [
            "  ".join(
                cell.ljust(w) if i < 3 else cell.rjust(w)
                for i, (cell, w) in enumerate(zip(line, widths, strict=True))
            )
            for line in lines
        ]
        text.insert(1, "-" * len(text[0]))
        text += [
            text[1],
            f"{self.model}: {self.parameters:,} private weights, batch {self.batch}, profile "
            f"{self.profile}{', each party deals for a third' if self.rotated else ''}",
            f"predicted: {self.cost.total / 8e6:,.2f} MB sent in all, {self.cost.rounds} rounds, "
            f"{self.seconds:.3f} s per batch (bytes and rounds exact, seconds estimated)",
            f"a prediction {describe_openings(self.openings)}",
        ]
        if self.imprecise:
            text.append(
                f"imprecise: more than {100 * MAX_ERROR:g} % of the range in "
                f"{', '.join(self.imprecise)}; convert with more fractional_bits, or scale what "
                "comes to the first of them"
            )
        return "\n".join(text)

    @property
    def imprecise(self) -> list[str]:
        """Layers whose error exceeds 1 % of their range."""
        return [r.name for r in self.rows if r.error is not None and r.error.relative > MAX_ERROR]


def _predict_seconds(
    cost: Cost, work: int, wide: float, profile: profiles.NetworkProfile, messages: MessageGraph
) -> float:
    """Predict the time of counted work on a network.

    Args:
        wide: fraction of the bytes that is multiplied in wide words (Kind.uses_wide_words).
        messages: its messages.
    """
    dealt, exchanged = cost.dealer / 8, max(cost.e1, cost.e2) / 8
    byte_seconds = wide / WIDE_BYTES_PER_SECOND + (1 - wide) / BYTES_PER_SECOND
    computing = PRODUCTS * work / MACS_PER_SECOND + max(dealt, exchanged) * byte_seconds
    computing += cost.rounds * ROUND_SECONDS
    if not profile.shaped:
        return computing
    return simulate_network(messages, profile, [computing] * 3).seconds


def summarize_plan(
    plan: ModelPlan,
    profile: str = "local",
    batch: int = 1,
    errors: Mapping[str, LayerError] | None = None,
) -> Summary:
    """Summarize the cost of a plan under a network profile.

    Args:
        errors: errors of layers, by name.

    Raises:
        UsageError: the profile is unknown.
    """
    network = profiles.get_profile(profile)
    s = execute.tune_prediction(plan, network.plan, batch)
    rotated = execute.has_rotating_dealers(s)
    rows, sent, wide = [], 0, 0
    layer_messages = [MessageGraph() for _ in plan.graph.layers]
    tallies = execute.layer_cost_reports(s, layer_messages)
    for x, tally, graph in zip(plan.graph.layers, tallies, layer_messages, strict=True):
        cost = tally.cost
        wide_share = registry.get_layer_kind(x.op).uses_wide_words
        sent, wide = sent + cost.total, wide + wide_share * cost.total
        shape = (batch, *plan.graph.shapes[x.name])
        seconds = _predict_seconds(cost, tally.work, float(wide_share), network, graph)
        kind, fraction = registry.get_layer_kind(x.op).describe_layer(x), plan.fraction_of(x.name)
        error = (errors or {}).get(x.name)
        rows.append(LayerSummary(x.name, kind, shape, fraction, cost, seconds, error))
    messages = MessageGraph()
    total = execute.model_cost(s, messages)
    work = sum(tally.work for tally in tallies)
    if rotated:  # each party then performs a third of each role
        work = work * 5 // 6
    seconds = _predict_seconds(total, work, wide / max(sent, 1), network, messages)
    name, weight_count = plan.graph.name, plan.graph.weight_count
    openings = tuple(opening for tally in tallies for opening in tally.openings)
    return Summary(
        *(name, profile, batch, weight_count, tuple(rows), total, seconds, rotated, openings)
    )

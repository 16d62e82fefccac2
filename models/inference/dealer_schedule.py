"""Schedule of dealers for layers: on slow links, a dealer's bandwidth limits a prediction.

A dealer sends about twice as much as both evaluators together, and runs ahead of them.  So another
party deals for some stretches of a model, while the first dealer prepares the following layers.
Values that enter such a stretch get masks that the new dealer knows in advance (ring/refresh.py),
for one round and one message of each evaluator.  A batch of three or more is split into thirds
instead (rotation.compute_by_thirds).

Source: Araki et al., CCS 2016, section 2 (the sharing is symmetric).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tfe_bench.models.convert.graph import Graph
from tfe_bench.models.layers.base.layer import PlacedLayer
from tfe_bench.protocols.session.cost import Cost

# Minimum number of bits dealt in a stretch: as much as a dealer may send in advance to a peer.
_MIN_DEALT_BITS = 32 << 23
# Values that enter a stretch have at most 1/8 of the dealt bits.
_MAX_HANDOVER_PART = 8
# One stretch in 8 has another dealer. A dealer's own messages delay its answers as an evaluator, so
# that more such stretches take longer, as measured with ViT-B/16 (docs/performance.md).
_PERIOD, _OTHER_DEALER = 8, 2


def assign_dealers(
    graph: Graph, nodes: Sequence[PlacedLayer], costs: Sequence[Cost], batch: int
) -> tuple[int, ...]:
    """Assign the dealer of each layer, relative to that of the inputs; empty if one deals for all.

    Args:
        nodes, costs: the layers and their costs, in order.
        batch: number of samples.
    """
    width_by_name = {node.output: node.used_bits for node in nodes}
    last_user = {name: i for i, x in enumerate(graph.layers) for name in x.inputs}
    bits = {
        name: 2 * batch * width_by_name.get(name, 64) * math.prod(shape)
        for name, shape in graph.shapes.items()
    }
    live_values = {name for name in graph.inputs if name in last_user}
    layer_dealers, stretch, dealt_bits = [], 0, 0
    for i, (x, cost) in enumerate(zip(graph.layers, costs, strict=True)):
        if (
            dealt_bits >= _MIN_DEALT_BITS
            and _MAX_HANDOVER_PART * sum(bits[name] for name in live_values) <= dealt_bits
        ):
            stretch, dealt_bits = stretch + 1, 0
        layer_dealers.append(_OTHER_DEALER if stretch % _PERIOD == _PERIOD - 1 else 0)
        dealt_bits += cost.dealer
        live_values = {name for name in (*live_values, x.name) if last_user.get(name, 0) > i}
    return tuple(layer_dealers) if any(layer_dealers) else ()

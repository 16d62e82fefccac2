"""Who deals for which layers: on slow links a dealer's line is what a prediction waits for.

A dealer sends about twice what the evaluators send together, and runs ahead of them.  So some
stretches of a model are dealt by another party, while the first is ahead with what comes behind;
what they read is put under masks that the new dealer knows before (ring/refresh.py), for a round
and a message of each evaluator.  A batch of three or more is cut in thirds instead
(rotation.by_thirds).

Source: Araki et al., CCS 2016, section 2 (the sharing is symmetric).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tfe_bench.models.graph import Graph
from tfe_bench.models.kinds.layer import PlacedLayer
from tfe_bench.protocols.session.cost import Cost

# So many bits are dealt in a turn at least: as much as a dealer may be ahead with at a peer.
_MIN_DEALT_BITS = 32 << 23
# What is handed over is at most so small a part of it.
_MAX_HANDOVER_PART = 8
# One turn in so many is another's: what it deals is in the way of what it has to answer, so that
# more of them take longer, measured with ViT-B/16 (docs/performance.md).
_PERIOD, _OTHER_DEALER = 8, 2


def assign_dealers(
    graph: Graph, nodes: Sequence[PlacedLayer], costs: Sequence[Cost], batch: int
) -> tuple[int, ...]:
    """The dealer of each layer, counted from that of the inputs; empty: it deals for all.

    Args:
        nodes, costs: of the layers, in their order.
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

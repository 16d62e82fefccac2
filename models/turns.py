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
from tfe_bench.models.kinds.layer import Node
from tfe_bench.protocols.session.cost import Cost

# So many bits are dealt in a turn at least: as much as a dealer may be ahead with at a peer.
_TURN = 32 << 23
# What is handed over is at most so small a part of it.
_HANDED = 8
# One turn in so many is another's: what it deals is in the way of what it has to answer, so that
# more of them take longer, measured with ViT-B/16 (docs/performance.md).
_EVERY, _OTHER = 8, 2


def dealers(
    graph: Graph, nodes: Sequence[Node], costs: Sequence[Cost], batch: int
) -> tuple[int, ...]:
    """The dealer of each layer, counted from that of the inputs; empty: it deals for all.

    Args:
        nodes, costs: of the layers, in their order.
        batch: number of samples.
    """
    wide = {node.output: node.wide for node in nodes}
    last = {name: i for i, x in enumerate(graph.layers) for name in x.inputs}
    bits = {
        name: 2 * batch * wide.get(name, 64) * math.prod(shape)
        for name, shape in graph.shapes.items()
    }
    read = {name for name in graph.inputs if name in last}
    found, turn, dealt = [], 0, 0
    for i, (x, cost) in enumerate(zip(graph.layers, costs, strict=True)):
        if dealt >= _TURN and _HANDED * sum(bits[name] for name in read) <= dealt:
            turn, dealt = turn + 1, 0
        found.append(_OTHER if turn % _EVERY == _EVERY - 1 else 0)
        dealt += cost.dealer
        read = {name for name in (*read, x.name) if last.get(name, 0) > i}
    return tuple(found) if any(found) else ()

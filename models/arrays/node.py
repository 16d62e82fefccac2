"""Values of expressions as a client knows them: what is public of each, and what it is made of."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tfe_bench.cluster.requests import PrivateInput
from tfe_bench.models.arrays.bounds import Bounds, widest_bounds
from tfe_bench.models.arrays.evaluate import ArraySpec
from tfe_bench.models.arrays.plan import Leaf, LoopBody


@dataclass(frozen=True, eq=False)
class Node:
    """One value of an expression.

    Attributes:
        meaning: what is public of it.
        leaf: where it comes from, if it is not made of others.
        value: words of a leaf that this client has.
        op, args, named: the operation and its arguments, among them nodes.
        body: what it does in each turn, if it is a loop.
        place: of a result among several; None: there is one.
        step: the node that makes all of several.
        depth: operations one behind the other that lead here.
        holds: what lives as long as this does, such as a handle.
        bounds: of its ring elements, public; None: nothing is known but its kind.
        guards: what the workers count on the way to it: in words, and the number as a node.
        part_of: of what stands for an element in each turn of a loop: the array of all elements.
    """

    spec: ArraySpec
    leaf: Leaf | None = None
    value: PrivateInput | None = field(default=None, repr=False)
    op: str = ""
    args: tuple[Any, ...] = ()
    named: Mapping[str, Any] = field(default_factory=dict)
    body: LoopBody | None = None
    place: int | None = None
    step: Node | None = None
    depth: int = 0
    holds: object = None
    bounds: Bounds | None = None
    guards: tuple[tuple[str, Node], ...] = ()
    part_of: Node | None = field(default=None, repr=False)

    @property
    def range(self) -> Bounds:
        """The bounds of its ring elements."""
        return widest_bounds(self.spec) if self.bounds is None else self.bounds


@dataclass(eq=False)
class Handle:
    """What the workers hold for this client, until nothing here refers to it.

    Attributes:
        id: at the workers.
    """

    id: str = field(default_factory=lambda: uuid.uuid4().hex)

"""Nodes of expressions at a client: public facts about each value, and its operands."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tfe_bench.arrays.array_spec import ArraySpec
from tfe_bench.arrays.bounds import Bounds, widest_bounds
from tfe_bench.arrays.plan import ExpressionLeaf, LoopBody
from tfe_bench.cluster.requests import PrivateInput


@dataclass(frozen=True, eq=False)
class ExpressionNode:
    """One value of an expression.

    Attributes:
        spec: its public facts.
        leaf: origin of a value without operands.
        value: words of a leaf of this client.
        op, args, named: the operation and its arguments, which contain nodes.
        body: body of a loop.
        place: index among several results; None: a single result.
        step: node of the operation with several results.
        depth: number of successive operations up to this value.
        holds: object that lives as long as this node, such as a handle.
        bounds: public bounds of its ring elements; None: only its kind is known.
        guards: texts of violations that the workers count for it, and the numbers as nodes.
        part_of: for a loop variable of an element: the array of all elements.
    """

    spec: ArraySpec
    leaf: ExpressionLeaf | None = None
    value: PrivateInput | None = field(default=None, repr=False)
    op: str = ""
    args: tuple[Any, ...] = ()
    named: Mapping[str, Any] = field(default_factory=dict)
    body: LoopBody | None = None
    place: int | None = None
    step: ExpressionNode | None = None
    depth: int = 0
    holds: object = None
    bounds: Bounds | None = None
    guards: tuple[tuple[str, ExpressionNode], ...] = ()
    part_of: ExpressionNode | None = field(default=None, repr=False)

    @property
    def range(self) -> Bounds:
        """Bounds of its ring elements."""
        return widest_bounds(self.spec) if self.bounds is None else self.bounds


@dataclass(eq=False)
class HeldArrayHandle:
    """A value that the workers hold for this client while it refers to the handle.

    Attributes:
        id: identifier at the workers.
    """

    id: str = field(default_factory=lambda: uuid.uuid4().hex)

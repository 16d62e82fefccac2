"""What an expression does, costs and tells, said before anything is sent."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from tfe_bench.cluster import profiles
from tfe_bench.models.arrays import plan as plans
from tfe_bench.models.arrays.building import Built, build
from tfe_bench.models.arrays.evaluate import Meaning, refreshed
from tfe_bench.models.arrays.node import Node
from tfe_bench.models.arrays.plan import BITS, HANDLE, INPUT, REVEAL, Leaf
from tfe_bench.models.arrays.price import Price, price

_WORD = 8
_MOST_SHOWN = 12


Counted = tuple[Sequence[str], Sequence[Node]]


def priced(node: Node, counts: Sequence[Node] = ()) -> tuple[Built, Price]:
    """The plan that would reveal an array and what is counted on the way, and what it costs."""
    nodes = [node, *counts]
    built = build(nodes, [(REVEAL, {})] * len(nodes))
    return built, price(built.plan)


def text(node: Node, profile: str, counted: Counted = ((), ())) -> str:
    """Lines for people.

    Args:
        profile: the network.
        counted: what has to be 0 for the value to be right, in words, and the numbers.

    Raises:
        UsageError: there is no such network, or too many operations.
    """
    built, found = priced(node, counted[1])
    plan = built.plan
    name = profiles.get(profile).name
    rows = [("step", "", "makes", "from", "to", "MB sent")]
    for number, leaf in enumerate(plan.leaves):
        meaning = _meaning(leaf)
        ends = _range(built, number, meaning)
        rows.append((str(number), _source(leaf), _shown(meaning), *ends, ""))
    for number, step in enumerate(plan.steps, len(plan.leaves)):
        at = number - len(plan.leaves)
        made = ", ".join(_shown(each) for each in found.made[at])
        ends = _range(built, number, found.made[at][0])
        rows.append((str(number), _written(step), made, *ends, f"{found.steps[at] / 8e6:,.3f}"))
    widths = [max(len(row[i]) for row in rows) for i in range(6)]
    lines = [
        "  ".join(
            cell.ljust(width) if i in (1, 2) else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
    if any(refreshed(plan)):
        lines.append("The result is masked anew before it leaves.")
    own = sum(_elements(leaf) for leaf in plan.leaves if leaf.source == INPUT)
    lines += [
        f"All: {found.sent / 1e6:,.3f} MB among the workers, {found.cost.rounds} rounds, about "
        f"{found.seconds(name):,.3f} s over {name}; this client sends {own * 2 * _WORD / 1e6:,.3f} "
        f"MB. The largest array has {found.largest * _WORD / 1e6:,.3f} MB.",
        "The workers learn this list, the shapes and the public numbers in it, and no element. "
        f"This client learns the last value ({_shown(found.held[0])}), and nobody else.",
    ]
    if counted[0]:
        lines.append(
            "It learns besides how often a value left the range of an operation, in which case the "
            f"result is refused: {'; '.join(counted[0])}."
        )
    for leaf in plan.leaves:
        if leaf.source not in (INPUT, HANDLE):
            lines.append(
                f"It is made of {leaf.about[1]!r}, whose owner has to permit that it is revealed: "
                "every worker looks that up for itself."
            )
    return "\n".join(lines)


def _elements(leaf: Leaf) -> int:
    return _meaning(leaf).elements


def _meaning(leaf: Leaf) -> Meaning:
    return Meaning(leaf.kind, leaf.shape, leaf.scale)


def _range(built: Built, number: int, meaning: Meaning) -> tuple[str, str]:
    """The bounds of a value, as numbers."""
    own = built.bounds.get(number)
    if own is None or meaning.kind == BITS:
        return "", ""
    return tuple(f"{end / (1 << meaning.scale):.3g}" for end in own)  # type: ignore[return-value]


def _shown(meaning: Meaning) -> str:
    scale = f".{meaning.scale}" if meaning.scale else ""
    return f"{meaning.kind}{scale} {list(meaning.shape)}"


def _source(leaf: Leaf) -> str:
    if leaf.source == INPUT:
        return "private input"
    if leaf.source == HANDLE:
        return "held at the workers"
    return " ".join(["stored", repr(leaf.about[1]), *filter(None, [leaf.about[3]])])


def _written(step: plans.Step) -> str:
    args = [*map(_argument, step.args)]
    args += [f"{name}={_argument(each)}" for name, each in step.named.items()]
    turn = "" if step.body is None else f" of {_turn(step.body)}"
    return f"{step.op}({', '.join(args)}){turn}"


def _turn(body: plans.Body) -> str:
    """The operations of one turn, as many as a line takes."""
    names = [step.op for step in body.steps]
    return ", ".join(names[:_MOST_SHOWN]) + (", .." if len(names) > _MOST_SHOWN else "")


def _argument(given: Any) -> str:
    match given:
        case ["ref", number]:
            return f"[{number}]"
        case ["ref", number, place]:
            return f"[{number}.{place}]"
        case ["list" | "tuple", list(items)]:
            return f"({', '.join(map(_argument, items))})"
        case ["slice", *bounds]:
            return ":".join("" if b is None else str(b) for b in bounds)
        case ["ellipsis"]:
            return "..."
        case ["array", dtype, shape, _]:
            return f"public {dtype} {shape}"
        case _:
            return json.dumps(given)

"""What an operation makes of values of which only kind, shape and scale are known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tfe_bench.models.arrays import arguments, evaluate, operations
from tfe_bench.models.arrays import plan as plans
from tfe_bench.models.arrays.arguments import Ref
from tfe_bench.models.arrays.evaluate import Meaning
from tfe_bench.models.arrays.node import Node
from tfe_bench.models.arrays.plan import BITS, Body
from tfe_bench.protocols.session.counting import Counting, PrivateBits
from tfe_bench.protocols.session.counting import Private as Counted


def derive(
    operation: operations.Operation,
    args: Sequence[Any],
    named: Mapping[str, Any],
    body: Body | None,
) -> tuple[list[Meaning], bool]:
    """The meanings of an operation's results, and whether it makes a list.

    Args:
        args, named: arguments, with nodes in place of private values.

    Raises:
        UsageError: the operation does not take them.
    """
    nodes: dict[int, Node] = {}

    def taken(value: Any) -> Any:
        if isinstance(value, Node):
            nodes.setdefault(id(value), value)
            return Ref(list(nodes).index(id(value)))
        if isinstance(value, (list, tuple)):
            return type(value)(taken(each) for each in value)
        return value

    step = [
        operation.name,
        [arguments.encoded(taken(each)) for each in args],
        {key: arguments.encoded(taken(each)) for key, each in named.items()},
        *([] if body is None else [body.header()]),
    ]
    checked = plans.checked_step(step, len(nodes))
    party = Counting(expected=True)
    several: list[bool] = []

    def run(values: Sequence[Any]) -> list[Any]:
        known = {Ref(number): value for number, value in enumerate(values)}
        made = evaluate.call(party, checked, known, several)
        return made

    given = [_counted(node.meaning) for node in nodes.values()]
    with party.active():
        made = run(given) if operation.between else party.function(run)(given)
    return [evaluate.meaning(operation.name, each) for each in made], several[0]


def _counted(meaning: Meaning) -> Any:
    if meaning.kind == BITS:
        return PrivateBits(meaning.shape).made()
    return Counted(meaning.shape, meaning.scale).made()

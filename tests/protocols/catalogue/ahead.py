"""Calls in two phases: material before the request, and the rest with it."""

from __future__ import annotations

from typing import Any, cast

from tests.protocols import joint_views
from tests.protocols.entry import Entry
from tests.protocols.seeded import Patch
from tfe_bench.cluster.simulate import replay_masks
from tfe_bench.protocols.ring import arithmetic, refresh
from tfe_bench.protocols.session.material import AheadFunction, KeptMessages, Material
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared

_KEY = "a function in two phases"


def run_in_two_phases(party: Party, x: Shared, y: Shared) -> list[Any]:
    """Compute the third power of both inputs, each with material of its own."""

    def cube(_: list[Shared], inputs: list[Shared]) -> Shared:
        z = refresh.refresh(party, inputs[0])
        return arithmetic.mul(party, arithmetic.mul(party, z, z), z)

    functions: dict[Any, Any] = party._functions
    if _KEY not in functions:
        functions[_KEY] = party.ahead_function(cube, request=[1])
    function: AheadFunction = functions[_KEY]
    results = []
    for value in (x, y):
        kept = KeptMessages()
        material = function.make_material(kept, [], [value.map(lambda a: 0 * a)])
        results.append(function.use_material(material, kept, [], [value]))
    return results


def use_twice(patch: Patch) -> None:
    """Draw the masks of every second material as those of the one before it."""
    make, replay = AheadFunction.make_material, replay_masks
    replayed: dict[int, tuple[Any, ...]] = {p: (0,) for p in range(3)}
    first_steps: dict[int, int] = {}

    def record_replay(party: Party, steps: int, *altered: Any) -> None:
        replayed[party.index] = steps, *altered
        replay(party, steps, *altered)

    def make_every_second(self: AheadFunction, sink: KeptMessages, *arguments: Any) -> Material:
        party = cast(Party, self._party)
        steps, *altered = replayed[party.index]
        first = first_steps.pop(party.index, None)
        if first is not None:
            replay(party, steps + party._step + 1 - first, *altered)
            return make(self, sink, *arguments)
        replay(party, steps, *altered)
        material = make(self, sink, *arguments)
        first_steps[party.index] = party._step
        return material

    patch.setattr(joint_views, "replay_masks", record_replay)
    patch.setattr(AheadFunction, "make_material", make_every_second)


ENTRIES = {
    "two_phases": Entry(
        run_in_two_phases,
        ("material", "refresh", "mul"),
        n=2,
        whole=True,
        counted=False,
        faults={"a material is used twice": use_twice},
    ),
}

"""Inputs and options of the execution of a plan."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field

from tfe_bench.protocols.session.sharing import Shared
from tfe_bench.protocols.tables.relation import Relation
from tfe_bench.queries.dp_noise import NoiseDraw

Load = Callable[[str, Sequence[str]], Relation]
LoadLink = Callable[[str, int], Shared]


@dataclass(frozen=True)
class QueryExecutionContext:
    """Inputs and options of the execution of all steps.

    Attributes:
        load_columns: loads columns of a stored table, by the plan's alias.
        load_link: loads one of its links, by number.
        cache_key: key of everything public (the plan, which names deployments, and the profile),
            if graphs are cached for later runs.
        profile: network profile for which sorts are planned.
        progress: callback with a fraction and a word before each step and before the delivery.
        unit_of: returns the unit column of a table, by the plan's alias.
        noise_draws: noise that this worker drew, by number of the step (`dp_noise.draw_noise`).
    """

    load_columns: Load
    load_link: LoadLink
    cache_key: Hashable | None
    profile: str = "local"
    progress: Callable[[float, str], None] = lambda fraction, text: None
    unit_of: Callable[[str], str] = lambda alias: ""
    noise_draws: Mapping[int, NoiseDraw] = field(default_factory=dict)

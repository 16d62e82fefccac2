"""The use of a worker by a job, as the receipt states it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tfe_bench.cluster.stored import StoredFacts
    from tfe_bench.protocols.session.openings import Opening

# Digits of a deployment's number in receipts.
_SHORT_DEPLOYMENT = 12


@dataclass
class JobUse:
    """The use of a worker by one job, collected while the job runs.

    Attributes:
        stored: (noun, name, owner, deployment, right) of stored values.
        rights: rights to columns by (noun, name), as "column:right".
        charged: privacy loss rho by table.
        opened: returns what has become public to the workers.
    """

    stored: set[tuple[str, ...]] = field(default_factory=set)
    rights: dict[tuple[str, ...], set[str]] = field(default_factory=dict)
    charged: dict[str, str] = field(default_factory=dict)
    opened: Callable[[], Sequence[Opening]] = tuple

    def record_stored(self, noun: str, facts: StoredFacts, right: str) -> None:
        """Record the use of a stored value, and the right to it."""
        row = (noun, facts.name, facts.owner, facts.deployment[:_SHORT_DEPLOYMENT], right)
        self.stored.add(row)

    def list_stored(self) -> list[list[str]]:
        """Return a sorted row for each stored value, with the rights to its columns at the end."""
        return [[*row, *sorted(self.rights.get(row[:2], ()))] for row in sorted(self.stored)]

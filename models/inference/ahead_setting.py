"""The setting of a deployed model for material ahead of time: part of its public facts."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tfe_bench.cluster import profiles
from tfe_bench.cluster.spool import MAX_ENTRIES
from tfe_bench.errors import UsageError

KEY = "ahead"  # of a model's public facts, and of a record
MAX_BATCH = 1 << 12


@dataclass(frozen=True)
class AheadSetting:
    """The material that the workers keep ready for a deployed model.

    Attributes:
        entries: number of predictions.
        batch: number of samples of each.
        profile: network profile for which they are planned.
        check_range: whether they check ranges.
    """

    entries: int
    batch: int
    profile: str
    check_range: bool

    @classmethod
    def from_facts(cls, about: Mapping[str, Any]) -> AheadSetting | None:
        """Read the setting of a model's public facts; None without one.

        Raises:
            UsageError: it is invalid.
        """
        row = about.get(KEY)
        if row is None:
            return None
        kinds = {"entries": int, "batch": int, "profile": str, "check_range": bool}
        is_valid = isinstance(row, Mapping) and {k: type(v) for k, v in row.items()} == kinds
        if not is_valid or not (
            1 <= row["entries"] <= MAX_ENTRIES and 1 <= row["batch"] <= MAX_BATCH
        ):
            raise UsageError(
                f"Expected 1 to {MAX_ENTRIES} predictions of 1 to {MAX_BATCH} samples for which "
                "material is made ahead of time.",
                code="invalid-parameters",
                operation=KEY,
            )
        profiles.get_profile(row["profile"][:80])
        return cls(**row)

    def to_facts(self) -> dict[str, Any]:
        """Return the setting as public facts."""
        return dataclasses.asdict(self)

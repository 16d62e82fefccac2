"""Faults that keep results right and break privacy, seeded in a protocol by its site."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tfe_bench.protocols.session.party import Site

Patch = pytest.MonkeyPatch
Fault = Callable[[Patch], None]


def merge_masks(site: str, tensors: dict[int, int]) -> Fault:
    """Give masks of one site the numbers of others at both holders: the results stay correct."""

    def seed(patch: Patch) -> None:
        named = Site._named

        def wrong(self: Site, key: int, tensor: int) -> dict[str, Any]:
            here = self.party.site_names[self.number] == site
            return named(self, key, tensors.get(tensor, tensor) if here else tensor)

        patch.setattr(Site, "_named", wrong)

    return seed


def drop_mask(site: str, role: str) -> Fault:
    """Send a role's messages without their mask."""

    def seed(patch: Patch) -> None:
        apply_mask = Site.apply_mask

        def wrong(self: Site, x: Any, *arguments: Any, **options: Any) -> Any:
            here = self.party.site_names[self.number] == site and getattr(self, role)
            return x if here else apply_mask(self, x, *arguments, **options)

        patch.setattr(Site, "apply_mask", wrong)

    return seed

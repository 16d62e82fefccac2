"""Players by name: they provide inputs and receive outputs."""

from __future__ import annotations

from tfe_bench.tf_encrypted.player.data_owner import DataOwner
from tfe_bench.tf_encrypted.player.player import Player

__all__ = ["DataOwner", "Player"]

"""Players, under the name of tf-encrypted's module."""

from __future__ import annotations

from tfe_bench.tf_encrypted.config import Player

__all__ = ["Player"]

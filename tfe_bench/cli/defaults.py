"""Default cluster and client of commands, from the environment."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from tfe_bench.cluster.config import CLIENT_VARIABLE, CLUSTER_VARIABLE


def default_cluster_file() -> Path | None:
    """Return the cluster.toml that the environment names, or None."""
    name = os.environ.get(CLUSTER_VARIABLE)
    return Path(name) if name else None


def apply_environment_defaults(parsed: argparse.Namespace) -> None:
    """Set the cluster and client of a command from the environment, and print them."""
    if not getattr(parsed, "takes_cluster", False):
        return
    notices = []
    if parsed.cluster is None and (cluster_file := default_cluster_file()) is not None:
        parsed.cluster = cluster_file
        notices.append(f"cluster {cluster_file} ({CLUSTER_VARIABLE})")
    if (
        parsed.cluster is not None
        and parsed.client is None
        and (who := os.environ.get(CLIENT_VARIABLE))
    ):
        parsed.client = who
        notices.append(f"client {who} ({CLIENT_VARIABLE})")
    if notices:
        print(f"tfe_bench: {', '.join(notices)}", file=sys.stderr)

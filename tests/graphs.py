"""Graphs that can be looked at: as a rule only what TensorFlow runs is left of them."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

from tfe_bench.protocols.session import graph


def in_python() -> AbstractContextManager[Any]:
    """What is traced meanwhile has its graph in Python, at `Graph.concrete`."""
    return mock.patch.object(graph, "_Compiled", lambda concrete: concrete)

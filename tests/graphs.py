"""Inspectable graphs: by default, a traced function keeps only the part that TensorFlow runs."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

from tfe_bench.protocols.session import graph


def keep_python_graphs() -> AbstractContextManager[Any]:
    """Keep the Python graph of functions that are traced in this context, as `Graph.concrete`."""
    return mock.patch.object(graph, "_Compiled", lambda concrete: concrete)

"""Sizes of the arrays in traced graphs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

from tests.graphs import keep_python_graphs
from tfe_bench.protocols.session.graph import PrivateFunction


@contextlib.contextmanager
def record_arrays() -> Iterator[list[tuple[float, str]]]:
    """Collect (words, op) of every array of known size in graphs traced in this context.

    The size of a dealer's message counts where it is received.
    """
    sizes: list[tuple[float, str]] = []
    trace = PrivateFunction._trace

    def watched(self: PrivateFunction, *arguments: Any) -> Any:
        traced: Any = trace(self, *arguments)
        for op in traced.concrete.graph.get_operations():
            for t in op.outputs:
                count = t.shape.num_elements()
                if count is not None:
                    sizes.append((count * t.dtype.size / 8, op.type))
        return traced

    with keep_python_graphs(), mock.patch.object(PrivateFunction, "_trace", watched):
        yield sizes

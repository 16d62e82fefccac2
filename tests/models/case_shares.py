"""The shares of simulated predictions: weights and input of each case."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from tfe_bench.models.inference import execute, weights
from tfe_bench.protocols.session.sharing import Shared


def split_case_shares(
    cases: Sequence[tuple[execute.Prediction, Any, Any]], shares: Sequence[Shared]
) -> Iterator[tuple[execute.Prediction, dict[str, Shared], Shared]]:
    """Yield each case with its weights and its input, from the shares of all cases."""
    remaining = iter(shares)
    for s, _, _ in cases:
        own: dict[str, Shared] = {}
        for part in weights.weight_parts(s.plan):
            w = replace(next(remaining), fractional_bits=part.fractional_bits)
            own |= dict.fromkeys(part.keys, w)
        (name,) = s.plan.graph.inputs
        yield s, own, replace(next(remaining), fractional_bits=s.plan.fraction_of(name))

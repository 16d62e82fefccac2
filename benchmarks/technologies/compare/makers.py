"""Factories of the technologies in the table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tfe_bench.benchmarks.technologies.compare.authority import Functional
from tfe_bench.benchmarks.technologies.compare.encrypted import Homomorphic, Storage
from tfe_bench.benchmarks.technologies.compare.networks import Networks
from tfe_bench.benchmarks.technologies.compare.plaintext import Plaintext
from tfe_bench.benchmarks.technologies.compare.secret_sharing import SecretSharing
from tfe_bench.benchmarks.technologies.compare.table import Maker
from tfe_bench.benchmarks.technologies.compare.tasks import ComparisonEffort, ComparisonInputs


def all_of(
    effort: ComparisonEffort, inputs: ComparisonInputs, cluster: Callable[[], Any]
) -> dict[str, Maker]:
    """Return factories of the technologies by name, plaintext first.

    Args:
        effort, inputs: the same for all technologies.
        cluster: returns a cluster of three workers; called on first use.
    """
    models = Networks(inputs)
    shared: list[Homomorphic] = []

    def homomorphic() -> Homomorphic:
        if not shared:
            shared.append(Homomorphic(effort, inputs, models))
        return shared[0]

    return {
        "plaintext": lambda: Plaintext(effort, inputs, models),
        "secret-sharing": lambda: SecretSharing(cluster(), effort, inputs, models),
        "functional": lambda: Functional(effort, inputs),
        "homomorphic": homomorphic,
        "storage": lambda: Storage(homomorphic()),
    }

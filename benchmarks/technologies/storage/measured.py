"""The CNN of the homomorphic benchmark as a model for devices, with costs of this machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from tfe_bench.benchmarks.technologies.homomorphic import costs as homomorphic
from tfe_bench.benchmarks.technologies.homomorphic.network import (
    EncryptedNetwork,
    choose_parameters,
)
from tfe_bench.benchmarks.technologies.homomorphic.parties import Setting
from tfe_bench.benchmarks.technologies.storage.model import Costs, Layer, Model, Operations
from tfe_bench.errors import UsageError

DEGREE: Final = 8192
_WORDS: Final = 8


def build_cnn(degree: int = DEGREE, images: int = 1) -> Model:
    """The MNIST network under CKKS, layer by layer as it is computed.

    Args:
        degree: N, 8192 or 16384.
        images: pictures in a ciphertext.

    Raises:
        UsageError: there is no such network.
        ConfigError: the library is not installed.
    """
    return of_network(EncryptedNetwork(Setting(choose_parameters(degree)), images))


def of_network(network: EncryptedNetwork) -> Model:
    """A network's layers, their plaintexts, and the keys that each is the first to take."""
    top = network.setting.parameters.levels
    ciphertext = 2 * top * network.setting.parameters.degree * _WORDS
    keys, layers = dict(network.key_bytes), []
    for layer in network.layers:
        wanted = {key for operation in layer.operations for key in operation.key_ids}
        layers.append(
            Layer(
                name=layer.name,
                weight_bytes=sum(o.plaintext_bytes for o in layer.operations),
                key_bytes=sum(keys.pop(key, 0) for key in wanted),
                working_bytes=(network.ciphertexts + 1) * ciphertext,
                operations=tuple(Operations(o.op, o.level, o.count) for o in layer.operations),
            )
        )
    return Model(
        name=f"CNN, N = {network.setting.parameters.degree}",
        layers=tuple(layers),
        input_bytes=network.ciphertexts * ciphertext,
        output_bytes=2 * network.setting.parameters.degree * _WORDS,
    )


def measure_costs(degree: int = DEGREE, levels: int | None = None) -> Costs:
    """What operations cost on this machine, measured now on one thread.

    Args:
        levels: that are measured; None: those of the network of that degree.
    """
    most = choose_parameters(degree).levels if levels is None else levels
    return of_table(homomorphic.cost_table(degree, most))


def of_table(table: Mapping[str, Sequence[float]]) -> Costs:
    """Costs from a table with one entry for each number of primes, from 1."""

    def cost(operation: str, level: int) -> float:
        known = table.get(operation, ())
        if not 1 <= level <= len(known):
            raise UsageError(
                f"Costs of {operation} are measured for {len(known)} levels. Received: a model "
                f"that computes it with {level} primes."
            )
        return known[level - 1]

    return cost

"""The CNN of the homomorphic benchmark as a device model, with costs measured on this machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from tfe_bench.benchmarks.technologies.homomorphic import costs as homomorphic
from tfe_bench.benchmarks.technologies.homomorphic.network import (
    EncryptedNetwork,
    choose_network_parameters,
)
from tfe_bench.benchmarks.technologies.homomorphic.parties import Setting
from tfe_bench.benchmarks.technologies.storage.model import (
    Costs,
    DeviceLayer,
    DeviceModel,
    DeviceOperations,
)
from tfe_bench.errors import UsageError

DEGREE: Final = 8192
_WORDS: Final = 8


def build_cnn(degree: int = DEGREE, images: int = 1) -> DeviceModel:
    """Build the model of the MNIST network under CKKS, layer by layer in order of computation.

    Args:
        degree: N, 8192 or 16384.
        images: number of pictures in a ciphertext.

    Raises:
        UsageError: no network has this degree or number of images.
        ConfigError: the library is not installed.
    """
    return describe_network_layers(
        EncryptedNetwork(Setting(choose_network_parameters(degree)), images)
    )


def describe_network_layers(network: EncryptedNetwork) -> DeviceModel:
    """Describe a network's layers with their plaintexts and the keys that each uses first."""
    top = network.setting.parameters.levels
    ciphertext = 2 * top * network.setting.parameters.degree * _WORDS
    keys, layers = dict(network.key_bytes), []
    for layer in network.layers:
        key_ids = {key for operation in layer.operations for key in operation.key_ids}
        layers.append(
            DeviceLayer(
                name=layer.name,
                weight_bytes=sum(o.plaintext_bytes for o in layer.operations),
                key_bytes=sum(keys.pop(key, 0) for key in key_ids),
                working_bytes=(network.ciphertexts + 1) * ciphertext,
                operations=tuple(
                    DeviceOperations(o.op, o.level, o.count) for o in layer.operations
                ),
            )
        )
    return DeviceModel(
        name=f"CNN, N = {network.setting.parameters.degree}",
        layers=tuple(layers),
        input_bytes=network.ciphertexts * ciphertext,
        output_bytes=2 * network.setting.parameters.degree * _WORDS,
    )


def measure_costs(degree: int = DEGREE, levels: int | None = None) -> Costs:
    """Measure the costs of operations on one thread of this machine.

    Args:
        degree: N, 8192 or 16384.
        levels: the number of measured levels; None for those of the network of that degree.
    """
    most = choose_network_parameters(degree).levels if levels is None else levels
    return operation_costs_from_table(homomorphic.cost_table(degree, most))


def operation_costs_from_table(table: Mapping[str, Sequence[float]]) -> Costs:
    """Return costs from a table with seconds for each number of primes, from 1.

    The returned function raises UsageError for a missing operation or level.
    """

    def cost(operation: str, level: int) -> float:
        known = table.get(operation, ())
        if not 1 <= level <= len(known):
            raise UsageError(
                f"Costs of {operation} are measured for {len(known)} levels. Received: a model "
                f"that computes it with {level} primes. Measure more levels.",
                code="cost-missing",
                operation=operation,
                received=level,
                expected=f"1 to {len(known)}",
            )
        return known[level - 1]

    return cost

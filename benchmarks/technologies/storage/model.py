"""A model of a homomorphic program on a storage device: layers in order, their bytes and time."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tfe_bench.benchmarks.technologies.storage import published
from tfe_bench.benchmarks.technologies.storage.device import (
    GIGA,
    OPERATIONS,
    StorageDevice,
    read_device_or_model_file,
)
from tfe_bench.cluster.toml_file import TomlTable, quote_received_value
from tfe_bench.errors import ConfigError, did_you_mean

MOST_LAYERS: Final = 1000
_MOST_GIGABYTES: Final = 1e6
_MOST_SECONDS: Final = 1e6
_MOST_OPERATIONS: Final = 10**9
_MOST_LEVEL: Final = 64
_SIZES: Final = ("weight_gigabytes", "key_gigabytes", "working_gigabytes")

# Returns the measured time in seconds of an operation at a level.
Costs = Callable[[str, int], float]


@dataclass(frozen=True)
class DeviceOperations:
    """Equal operations of a layer.

    Attributes:
        operation: one of device.OPERATIONS.
        level: the number of primes of their input.
        count: the number of operations.
    """

    operation: str
    level: int
    count: int


@dataclass(frozen=True, kw_only=True)
class DeviceLayer:
    """A part of a program that reads its data while it computes.

    Attributes:
        name: the name for display.
        weight_bytes: plaintexts, which every inference reads again.
        key_bytes: evaluation keys that no earlier layer reads; each client has its own.
        working_bytes: ciphertexts in memory at the same time.
        seconds: computing time; None for a layer described by its operations.
        operations: the operations of a layer without `seconds`.
    """

    name: str
    weight_bytes: float
    key_bytes: float = 0
    working_bytes: float = 0
    seconds: float | None = None
    operations: tuple[DeviceOperations, ...] = ()

    @property
    def bytes(self) -> float:
        """Bytes that the layer reads: weights and keys."""
        return self.weight_bytes + self.key_bytes


@dataclass(frozen=True, kw_only=True)
class DeviceModel:
    """A program.

    Attributes:
        name: the name for display.
        layers: the layers in order.
        input_bytes, output_bytes: traffic of one inference between client and device.
    """

    name: str
    layers: tuple[DeviceLayer, ...]
    input_bytes: float = 0
    output_bytes: float = 0

    @property
    def weight_bytes(self) -> float:
        """Weights of all layers, in bytes."""
        return sum(layer.weight_bytes for layer in self.layers)

    @property
    def key_bytes(self) -> float:
        """Evaluation keys of one client for all layers, in bytes."""
        return sum(layer.key_bytes for layer in self.layers)

    @property
    def counted(self) -> bool:
        """True if a layer is described by its operations, whose times depend on the device."""
        return any(layer.seconds is None for layer in self.layers)


def list_needed(model: DeviceModel) -> list[tuple[str, int]]:
    """List the distinct (operation, level) whose costs a model requires, sorted."""
    every = [o for layer in model.layers if layer.seconds is None for o in layer.operations]
    return sorted({(o.operation, o.level) for o in every})


def device_compute_seconds(
    model: DeviceModel, device: StorageDevice, costs: Costs | None
) -> list[float]:
    """Compute the time of each layer on a device, in seconds.

    Args:
        model: the program.
        device: the profile.
        costs: measured times, for layers described by their operations; None without measurements.

    Raises:
        ConfigError: a layer has an operation without a known cost.
    """
    seconds = []
    for layer in model.layers:
        if layer.seconds is not None:
            seconds.append(layer.seconds)
            continue
        total = 0.0
        for cost in layer.operations:
            operation, level = cost.operation, cost.level
            if operation in device.microseconds:
                one = device.operation_seconds(operation, level, math.nan)
            elif costs is None:
                raise ConfigError(
                    f"{model.name}: the cost of {operation} at level {level} is unknown. Add "
                    f'"{operation}" to the table [microseconds] of the device.',
                    code="cost-missing",
                    operation=operation,
                    received=level,
                )
            else:
                one = device.operation_seconds(operation, level, costs(operation, level))
            total += cost.count * one
        seconds.append(total)
    return seconds


def processor_inference_seconds(model: DeviceModel, costs: Costs) -> float:
    """Compute the time of one inference on the processor of the measured costs, in seconds."""
    return sum(
        layer.seconds
        if layer.seconds is not None
        else sum(o.count * costs(o.operation, o.level) for o in layer.operations)
        for layer in model.layers
    )


def load_device_model(name: str) -> DeviceModel:
    """Load a model: "published", or a TOML file.

    Raises:
        ConfigError: the model does not exist or is malformed; the text has file and field.
    """
    return read_device_or_model_file(
        name, "A model that is not measured", {"published": published.NETWORK}, parse_device_model
    )


def parse_device_model(values: Mapping[str, Any]) -> DeviceModel:
    """Build a model from the tables of its file.

    Raises:
        ConfigError: a field is missing, unknown, or outside its bounds, or no layer reads or
            computes anything.
    """
    table = TomlTable(values, "model", ("name", "input_bytes", "output_bytes", "layer"))
    layers = table.get_tables("layer", ("name", *_SIZES, "seconds", "operation"))
    if not 1 <= len(layers) <= MOST_LAYERS:
        raise ConfigError(
            f"A model has 1 to {MOST_LAYERS} [[layer]]. Received: {len(layers)}.",
            code="wrong-number-of-values",
            operation="layer",
        )
    parsed_layers = tuple(map(_read_device_layer, layers))
    if not any(layer.bytes or layer.seconds or layer.operations for layer in parsed_layers):
        raise ConfigError(
            "Expected a model with a layer that reads or computes something. "
            "Received: only layers of zeros.",
            code="model-without-cost",
        )
    return DeviceModel(
        name=table.get_text("name"),
        layers=parsed_layers,
        input_bytes=_read_device_number(table, "input_bytes", _MOST_GIGABYTES * GIGA, 0.0),
        output_bytes=_read_device_number(table, "output_bytes", _MOST_GIGABYTES * GIGA, 0.0),
    )


def _read_device_layer(table: TomlTable) -> DeviceLayer:
    operations = table.get_tables("operation", ("name", "level", "count"))
    seconds = None if operations else _read_device_number(table, "seconds", _MOST_SECONDS)
    if operations and table.get_number("seconds", math.pi) != math.pi:
        raise ConfigError(
            f'{table.where}: Expected either "seconds" or [[layer.operation]]. Received: both.',
            code="conflicting-options",
            operation="seconds",
        )
    return DeviceLayer(
        name=table.get_text("name"),
        weight_bytes=_read_device_number(table, "weight_gigabytes", _MOST_GIGABYTES) * GIGA,
        key_bytes=_read_device_number(table, "key_gigabytes", _MOST_GIGABYTES, 0.0) * GIGA,
        working_bytes=_read_device_number(table, "working_gigabytes", _MOST_GIGABYTES, 0.0) * GIGA,
        seconds=seconds,
        operations=tuple(map(_read_operations, operations)),
    )


def _read_operations(table: TomlTable) -> DeviceOperations:
    name, level, count = (
        table.get_text("name"),
        table.get_integer("level"),
        table.get_integer("count"),
    )
    if name not in OPERATIONS:
        raise ConfigError(
            f"{table.where}: operations are {', '.join(OPERATIONS)}. Received: "
            f"{quote_received_value(name)}."
            f"{did_you_mean(name, OPERATIONS)}",
            code="unknown-name",
            operation="operation",
            received=name,
        )
    for key, value, largest in (("level", level, _MOST_LEVEL), ("count", count, _MOST_OPERATIONS)):
        if not 1 <= value <= largest:
            raise ConfigError(
                f'{table.where}: "{key}" is 1 to {largest}. Received: {value}.',
                code="number-out-of-range",
                operation=key,
            )
    return DeviceOperations(name, level, count)


def _read_device_number(
    table: TomlTable, key: str, largest: float, default: float | None = None
) -> float:
    value = table.get_number(key, default)
    if not 0 <= value <= largest:
        raise ConfigError(
            f'{table.where}: "{key}" is 0 to {largest:g}. Received: {value:g}.',
            code="number-out-of-range",
            operation=key,
        )
    return value

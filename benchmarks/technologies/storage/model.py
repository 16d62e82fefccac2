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
    bounded_rule,
    read_device_or_model_file,
)
from tfe_bench.cluster.schema import declare_field, parsed_field
from tfe_bench.cluster.toml_file import (
    INTEGER,
    NUMBER,
    TEXT,
    TomlTable,
    quote_received_value,
    tables_field,
)
from tfe_bench.errors import ConfigError, did_you_mean

MOST_LAYERS: Final = 1000
_MOST_GIGABYTES: Final = 1e6
_MOST_SECONDS: Final = 1e6
_MOST_OPERATIONS: Final = 10**9
_MOST_LEVEL: Final = 64

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


def _read_operation_name(value: object) -> str:
    if (name := TEXT.read(value)) not in OPERATIONS:
        raise ConfigError(
            f"[[layer.operation]]: operations are {', '.join(OPERATIONS)}. Received: "
            f"{quote_received_value(name)}.{did_you_mean(name, OPERATIONS)}",
            code="unknown-name",
            operation="operation",
            received=name,
        )
    return str(name)


_GIGABYTES = bounded_rule(NUMBER, 0, _MOST_GIGABYTES)
_BYTES = bounded_rule(NUMBER, 0, _MOST_GIGABYTES * GIGA)


@dataclass(frozen=True)
class _OperationTable(TomlTable):
    name: str = parsed_field(_read_operation_name)
    level: int = declare_field(bounded_rule(INTEGER, 1, _MOST_LEVEL))
    count: int = declare_field(bounded_rule(INTEGER, 1, _MOST_OPERATIONS))


@dataclass(frozen=True)
class _LayerTable(TomlTable):
    name: str = declare_field(TEXT)
    weight_gigabytes: float = declare_field(_GIGABYTES)
    key_gigabytes: float = declare_field(_GIGABYTES, 0.0)
    working_gigabytes: float = declare_field(_GIGABYTES, 0.0)
    seconds: float | None = declare_field(bounded_rule(NUMBER, 0, _MOST_SECONDS), None)
    operation: tuple[_OperationTable, ...] = tables_field("operation", _OperationTable)


@dataclass(frozen=True)
class _ModelTable(TomlTable, subject="model"):
    name: str = declare_field(TEXT)
    input_bytes: float = declare_field(_BYTES, 0.0)
    output_bytes: float = declare_field(_BYTES, 0.0)
    layer: tuple[_LayerTable, ...] = tables_field("layer", _LayerTable)


def parse_device_model(values: Mapping[str, Any]) -> DeviceModel:
    """Build a model from the tables of its file.

    Raises:
        ConfigError: a field is missing, unknown, or outside its bounds, or no layer reads or
            computes anything.
    """
    table = _ModelTable.from_header(values)
    layers = table.layer
    if not 1 <= len(layers) <= MOST_LAYERS:
        raise ConfigError(
            f"A model has 1 to {MOST_LAYERS} [[layer]]. Received: {len(layers)}.",
            code="wrong-number-of-values",
            operation="layer",
        )
    parsed_layers = tuple(
        _read_device_layer(layer, f"[[layer]] number {number}")
        for number, layer in enumerate(layers, start=1)
    )
    if not any(layer.bytes or layer.seconds or layer.operations for layer in parsed_layers):
        raise ConfigError(
            "Expected a model with a layer that reads or computes something. "
            "Received: only layers of zeros.",
            code="model-without-cost",
        )
    return DeviceModel(
        name=table.name,
        layers=parsed_layers,
        input_bytes=table.input_bytes,
        output_bytes=table.output_bytes,
    )


def _read_device_layer(table: _LayerTable, where: str) -> DeviceLayer:
    if table.operation and table.seconds is not None:
        raise ConfigError(
            f'{where}: Expected either "seconds" or [[layer.operation]]. Received: both.',
            code="conflicting-options",
            operation="seconds",
        )
    if not table.operation and table.seconds is None:
        raise ConfigError(
            f'{where}: "seconds" is missing. Add it: a finite number.',
            code="missing-argument",
            operation="seconds",
        )
    return DeviceLayer(
        name=table.name,
        weight_bytes=table.weight_gigabytes * GIGA,
        key_bytes=table.key_gigabytes * GIGA,
        working_bytes=table.working_gigabytes * GIGA,
        seconds=table.seconds,
        operations=tuple(DeviceOperations(**vars(each)) for each in table.operation),
    )

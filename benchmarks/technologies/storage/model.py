"""A homomorphic program as a storage device runs it: layers in order, their bytes and time."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tfe_bench.benchmarks.technologies.storage import published
from tfe_bench.benchmarks.technologies.storage.device import GIGA, OPERATIONS, Device, from_file
from tfe_bench.cluster.toml_file import TomlTable, quote_value
from tfe_bench.errors import ConfigError, did_you_mean

MOST_LAYERS: Final = 1000
_MOST_GIGABYTES: Final = 1e6
_MOST_SECONDS: Final = 1e6
_MOST_OPERATIONS: Final = 10**9
_MOST_LEVEL: Final = 64
_SIZES: Final = ("weight_gigabytes", "key_gigabytes", "working_gigabytes")

# The measured time in seconds of an operation at a level.
Costs = Callable[[str, int], float]


@dataclass(frozen=True)
class Operations:
    """Equal operations of a layer.

    Attributes:
        operation: one of device.OPERATIONS.
        level: how many primes their input has.
        count: how many.
    """

    operation: str
    level: int
    count: int


@dataclass(frozen=True, kw_only=True)
class Layer:
    """A part of a program that reads its data while it computes.

    Attributes:
        name: for people.
        weight_bytes: plaintexts that it reads, for every inference again.
        key_bytes: evaluation keys that no earlier layer has read; each client has its own.
        working_bytes: ciphertexts that it holds at once.
        seconds: that it computes, where that is told; else None.
        operations: that it is made of, else.
    """

    name: str
    weight_bytes: float
    key_bytes: float = 0
    working_bytes: float = 0
    seconds: float | None = None
    operations: tuple[Operations, ...] = ()

    @property
    def bytes(self) -> float:
        """All that it reads."""
        return self.weight_bytes + self.key_bytes


@dataclass(frozen=True, kw_only=True)
class Model:
    """A program.

    Attributes:
        name: for people.
        layers: in order.
        input_bytes, output_bytes: of one inference, between client and device.
    """

    name: str
    layers: tuple[Layer, ...]
    input_bytes: float = 0
    output_bytes: float = 0

    @property
    def weight_bytes(self) -> float:
        """Of all layers."""
        return sum(layer.weight_bytes for layer in self.layers)

    @property
    def key_bytes(self) -> float:
        """Of all layers, of one client."""
        return sum(layer.key_bytes for layer in self.layers)

    @property
    def counted(self) -> bool:
        """Whether some layer is told by its operations, whose times depend on the device."""
        return any(layer.seconds is None for layer in self.layers)


def list_needed(model: Model) -> list[tuple[str, int]]:
    """The (operation, level) whose cost a model asks for, each once."""
    every = [o for layer in model.layers if layer.seconds is None for o in layer.operations]
    return sorted({(o.operation, o.level) for o in every})


def compute_seconds(model: Model, device: Device, costs: Costs | None) -> list[float]:
    """What each layer computes on a device, in seconds.

    Args:
        costs: measured times, for layers that are told by their operations; None if there are none.

    Raises:
        ConfigError: a layer is told by operations whose cost nobody tells.
    """
    found = []
    for layer in model.layers:
        if layer.seconds is not None:
            found.append(layer.seconds)
            continue
        total = 0.0
        for each in layer.operations:
            operation, level = each.operation, each.level
            if operation in device.microseconds:
                one = device.operation_seconds(operation, level, math.nan)
            elif costs is None:
                raise ConfigError(
                    f"{model.name}: the cost of {operation} at level {level} is not told. Add "
                    f'"{operation}" to the table [microseconds] of the device.'
                )
            else:
                one = device.operation_seconds(operation, level, costs(operation, level))
            total += each.count * one
        found.append(total)
    return found


def processor_seconds(model: Model, costs: Costs) -> float:
    """One inference on the processor that costs were measured on."""
    return sum(
        layer.seconds
        if layer.seconds is not None
        else sum(o.count * costs(o.operation, o.level) for o in layer.operations)
        for layer in model.layers
    )


def load_model(name: str) -> Model:
    """A model: "published", or a TOML file.

    Raises:
        ConfigError: there is none, or it is malformed; names file and field.
    """
    return from_file(
        name, "A model that is not measured", {"published": published.NETWORK}, of_toml
    )


def of_toml(values: Mapping[str, Any]) -> Model:
    """A model from the tables of its file.

    Raises:
        ConfigError: fields that are missing, unknown, or outside their bounds.
    """
    table = TomlTable(values, "model", ("name", "input_bytes", "output_bytes", "layer"))
    layers = table.get_tables("layer", ("name", *_SIZES, "seconds", "operation"))
    if not 1 <= len(layers) <= MOST_LAYERS:
        raise ConfigError(f"A model has 1 to {MOST_LAYERS} [[layer]]. Received: {len(layers)}.")
    made = tuple(map(_read_layer, layers))
    if not any(layer.bytes or layer.seconds or layer.operations for layer in made):
        raise ConfigError("A model reads or computes something. Received: layers of zeros alone.")
    return Model(
        name=table.get_text("name"),
        layers=made,
        input_bytes=_read_number(table, "input_bytes", _MOST_GIGABYTES * GIGA, 0.0),
        output_bytes=_read_number(table, "output_bytes", _MOST_GIGABYTES * GIGA, 0.0),
    )


def _read_layer(table: TomlTable) -> Layer:
    told = table.get_tables("operation", ("name", "level", "count"))
    seconds = None if told else _read_number(table, "seconds", _MOST_SECONDS)
    if told and table.get_number("seconds", math.pi) != math.pi:
        raise ConfigError(f'{table.where}: "seconds" or [[layer.operation]]. Received: both.')
    return Layer(
        name=table.get_text("name"),
        weight_bytes=_read_number(table, "weight_gigabytes", _MOST_GIGABYTES) * GIGA,
        key_bytes=_read_number(table, "key_gigabytes", _MOST_GIGABYTES, 0.0) * GIGA,
        working_bytes=_read_number(table, "working_gigabytes", _MOST_GIGABYTES, 0.0) * GIGA,
        seconds=seconds,
        operations=tuple(map(_read_operations, told)),
    )


def _read_operations(table: TomlTable) -> Operations:
    name, level, count = (
        table.get_text("name"),
        table.get_integer("level"),
        table.get_integer("count"),
    )
    if name not in OPERATIONS:
        raise ConfigError(
            f"{table.where}: operations are {', '.join(OPERATIONS)}. Received: {quote_value(name)}."
            f"{did_you_mean(name, OPERATIONS)}"
        )
    for key, value, most in (("level", level, _MOST_LEVEL), ("count", count, _MOST_OPERATIONS)):
        if not 1 <= value <= most:
            raise ConfigError(f'{table.where}: "{key}" is 1 to {most}. Received: {value}.')
    return Operations(name, level, count)


def _read_number(table: TomlTable, key: str, most: float, default: float | None = None) -> float:
    value = table.get_number(key, default)
    if not 0 <= value <= most:
        raise ConfigError(f'{table.where}: "{key}" is 0 to {most:g}. Received: {value:g}.')
    return value

"""Computational storage devices: profiles, read from TOML files.

A profile gives the location of weights and evaluation keys: on the device itself, or in the host
behind lanes that all devices share. It also gives read rates, memory and computing speed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, make_dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from tfe_bench.benchmarks.technologies.storage import published
from tfe_bench.cluster.schema import Mismatch, Rule, choice_field, declare_field, list_rule
from tfe_bench.cluster.toml_file import (
    FLAG,
    NUMBER,
    TEXT,
    TomlTable,
    load_toml,
    parse_toml,
    prefix_config_errors,
)
from tfe_bench.errors import ConfigError, check_one_of, did_you_mean

GIGA: Final = 1e9
T = TypeVar("T")
PLACES: Final = ("device", "host")
# The operations of a homomorphic program; a device has its own speed for each.
OPERATIONS: Final = (
    *("add", "add_plain", "multiply", "multiply_plain", "square"),
    *("relinearize", "rescale", "rotate"),
)
SHIPPED: Final = ("csd", "fpga", "fpga-ssd")
_MOST_LEVELS: Final = 64


def bounded_rule(kind: Rule, least: float, largest: float) -> Rule:
    """Return a rule for a number of a kind from `least` to `largest`."""

    def read_value(value: object) -> Any:
        number = kind.read(value)
        if not least <= number <= largest:
            raise Mismatch(f"{least:g} to {largest:g}", "number-out-of-range")
        return number

    return Rule(read_value, least=least, most=largest)


def _operations_field(key: str, names: Collection[str], element: Rule) -> Any:
    """Declare a field for the table ``[key]`` of values by operation; empty if missing."""
    declared = [(name, Any, declare_field(element, None)) for name in names]
    table: Any = make_dataclass("_OperationTable", declared, bases=(TomlTable,), frozen=True)

    def read_value(value: object) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise Mismatch(f"a table, [{key}]")
        values = vars(table.from_parameters(value, f"[{key}]", ConfigError))
        return {name: each for name, each in values.items() if each is not None}

    return declare_field(Rule(read_value), factory=dict)


_POSITIVE = bounded_rule(NUMBER, 1e-9, 1e9)
_TIMES = list_rule(_POSITIVE, 1, _MOST_LEVELS)


def _read_times(value: object) -> tuple[float, ...]:
    """Read one time, or one for each number of primes from 1."""
    times: tuple[float, ...] = _TIMES.read(
        list(value) if isinstance(value, list | tuple) else [value]
    )
    return times


# Divisors: the least value is above 0.
_RATE: Final = bounded_rule(NUMBER, 1e-3, 1e5)


@dataclass(frozen=True, kw_only=True)
class StorageDevice(TomlTable, subject="device"):
    """A device profile; several devices share the host's lanes.

    Rates are in GB/s (1e9 bytes), sizes in GB.

    Attributes:
        name: the name for display.
        weights_on: the location of the weights: "device" for its own storage, or "host".
        storage_gigabytes_per_second: read rate of one device's storage, or with "host" of one
            storage unit of the host.
        write_gigabytes_per_second: write rate of values that do not fit into memory.
        lane_gigabytes_per_second: rate of one lane of the host.
        lanes: number of the host's lanes, for all its devices and storage.
        lanes_to_storage: number of lanes that lead to the host's own storage.
        lanes_per_device: the largest number of lanes of one slot.
        memory_gigabytes: memory of the device.
        disk_gigabytes: capacity of the device's storage, or of the host's.
        key_cache_gigabytes: part of the memory that keeps evaluation keys for later inferences of
            the same clients; with 0 keys are dropped after use.
        latency_seconds: time until the first byte of a stream arrives.
        network_gigabytes_per_second: rate of a client's link; 0 ignores the client's traffic.
        prefetch: whether the device reads data while it uses earlier data.
        watts: power of one device; 0 if unknown.
        price: price of one device in any currency; 0 if unknown.
        speedup: factor of each operation over the measured costs, by name; "all" for the others.
        microseconds: times of each operation by number of primes, instead of measured costs.

    Raises:
        ConfigError: a field is outside its bounds, or figures contradict each other.
    """

    name: str = declare_field(TEXT)
    weights_on: str = choice_field(PLACES)
    storage_gigabytes_per_second: float = declare_field(_RATE)
    write_gigabytes_per_second: float = declare_field(_RATE)
    lane_gigabytes_per_second: float = declare_field(_RATE, 1.0)
    lanes: float = declare_field(bounded_rule(NUMBER, 1, 4096), 32)
    lanes_to_storage: float = declare_field(bounded_rule(NUMBER, 0, 4095), 0)
    lanes_per_device: float = declare_field(bounded_rule(NUMBER, 1, 1024), 16)
    memory_gigabytes: float = declare_field(_RATE)
    disk_gigabytes: float = declare_field(bounded_rule(NUMBER, 1e-3, 1e7))
    key_cache_gigabytes: float = declare_field(bounded_rule(NUMBER, 0, 1e5), 0)
    latency_seconds: float = declare_field(bounded_rule(NUMBER, 0, 10), 0)
    network_gigabytes_per_second: float = declare_field(bounded_rule(NUMBER, 0, 1e5), 0)
    prefetch: bool = declare_field(FLAG, True)
    watts: float = declare_field(bounded_rule(NUMBER, 0, 1e6), 0)
    price: float = declare_field(bounded_rule(NUMBER, 0, 1e9), 0)
    speedup: Mapping[str, float] = _operations_field("speedup", ("all", *OPERATIONS), _POSITIVE)
    microseconds: Mapping[str, tuple[float, ...]] = _operations_field(
        "microseconds", OPERATIONS, Rule(_read_times)
    )

    def __post_init__(self) -> None:
        self.check_fields()
        if self.lanes_to_storage >= self.lanes:
            raise ConfigError(
                '"lanes_to_storage" must leave lanes for devices. Received: '
                f"{self.lanes_to_storage:g} of {self.lanes:g} lanes.",
                code="inconsistent-profile",
                operation="lanes_to_storage",
            )
        if self.key_cache_gigabytes >= self.memory_gigabytes:
            raise ConfigError(
                '"key_cache_gigabytes" is a part of "memory_gigabytes". Received: '
                f"{self.key_cache_gigabytes:g} of {self.memory_gigabytes:g} GB.",
                code="inconsistent-profile",
                operation="key_cache_gigabytes",
            )

    @property
    def link_rate(self) -> float:
        """Bytes per second of one device without other devices."""
        storage = self.storage_gigabytes_per_second
        if self.weights_on == "host":
            slot = self.lanes_per_device * self.lane_gigabytes_per_second
            storage = min(storage, slot, self.shared_rate / GIGA)
        return storage * GIGA

    @property
    def shared_rate(self) -> float:
        """Bytes per second of all devices together."""
        if self.weights_on == "device":
            return math.inf
        return (self.lanes - self.lanes_to_storage) * self.lane_gigabytes_per_second * GIGA

    def shared_device_rate(self, devices: int) -> float:
        """Return bytes per second of each device while `devices` of them read."""
        return min(self.link_rate, self.shared_rate / devices)

    def operation_seconds(self, operation: str, level: int, measured: float) -> float:
        """Return the time of an operation on the device, in seconds.

        Args:
            operation: one of OPERATIONS.
            level: the number of primes of the input, from 1.
            measured: the measured time on the reference processor, in seconds.

        Raises:
            UsageError: the operation is unknown.
            ConfigError: the profile has times of this operation, but for fewer levels.
        """
        check_one_of("Operations are", operation, OPERATIONS)
        times = self.microseconds.get(operation)
        if times is None:
            return measured / self.speedup.get(operation, self.speedup.get("all", 1.0))
        if len(times) == 1:
            return times[0] * 1e-6
        if not 1 <= level <= len(times):
            raise ConfigError(
                f'{self.name}: "microseconds" of {operation} has times of {len(times)} levels. '
                f"Received: a model that computes it with {level} primes. Add the times.",
                code="cost-missing",
                operation=operation,
                received=level,
                expected=f"1 to {len(times)}",
            )
        return times[level - 1] * 1e-6


def load_device(name: str) -> StorageDevice:
    """Load a profile: one of SHIPPED by its name, or a TOML file.

    Raises:
        ConfigError: the profile does not exist or is malformed; the text has file and field.
    """
    return read_device_or_model_file(
        name, "A device", dict.fromkeys(SHIPPED), StorageDevice.from_header
    )


def read_device_or_model_file(
    name: str, what: str, shipped: Mapping[str, str | None], make: Callable[[dict[str, Any]], T]
) -> T:
    """Read an object from a TOML file of the user, or from a shipped file by its name.

    Args:
        name: a shipped name, or the path of a TOML file.
        what: the kind of the object, for error texts.
        shipped: files by name; None if the file has the same name.
        make: builds the object from the tables of the file.

    Raises:
        ConfigError: the file does not exist or is malformed; the text has the file.
    """
    if name in shipped:
        return make(parse_toml(published.read_published_file(f"{shipped[name] or name}.toml")))
    path = Path(name)
    if path.suffix != ".toml":
        raise ConfigError(
            f"{what} is {', '.join(shipped)}, or a file (FILE.toml). Received: {name!r}."
            f"{did_you_mean(name, shipped)}",
            code="unknown-name",
            operation=what,
            received=name,
            expected=", ".join(shipped),
        )
    with prefix_config_errors(path.name):
        return make(load_toml(path))

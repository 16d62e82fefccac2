"""Storage devices that compute: profiles, read from TOML files.

A profile says where weights and evaluation keys lie (on the device itself, or in the host, behind
lanes that all devices share), how fast they come, how much memory the device has, and how fast it
computes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any, Final, TypeVar

from tfe_bench.benchmarks.technologies.storage import published
from tfe_bench.cluster.toml_file import TomlTable, load_toml, parse_toml, prefix_errors, quote_value
from tfe_bench.errors import ConfigError, check_one_of, did_you_mean

GIGA: Final = 1e9
T = TypeVar("T")
PLACES: Final = ("device", "host")
# What a homomorphic program is made of; a device computes each kind at its own speed.
OPERATIONS: Final = (
    *("add", "add_plain", "multiply", "multiply_plain", "square"),
    *("relinearize", "rescale", "rotate"),
)
SHIPPED: Final = ("csd", "fpga", "fpga-ssd")
_MOST_LEVELS: Final = 64


def _number_field(low: float, high: float) -> dict[str, float]:
    """What a number of a profile may be."""
    return {"low": low, "high": high}


# Least above 0: what is divided by.
_RATE: Final = _number_field(1e-3, 1e5)


@dataclass(frozen=True, kw_only=True)
class Device:
    """One kind of device; several of them share the host's lanes.

    Rates are in GB/s (1e9 bytes), sizes in GB.

    Attributes:
        name: for people.
        weights_on: "device", where its own storage gives them, or "host".
        storage_gigabytes_per_second: what one device's storage reads, or with "host" one of the
            host's.
        write_gigabytes_per_second: what it writes, when memory does not hold a layer's values.
        lanes, lane_gigabytes_per_second: of the host, for all its devices and storage.
        lanes_to_storage: those of them that lead to the host's own storage.
        lanes_per_device: that one slot has at most.
        memory_gigabytes: of the device.
        disk_gigabytes: of its storage, or the host's.
        key_cache_gigabytes: of its memory, for evaluation keys of clients that come again; 0: keys
            are dropped after use.
        latency_seconds: until the first byte of a stream comes.
        network_gigabytes_per_second: of a client's link; 0: what it sends is not counted.
        prefetch: whether data are read while earlier ones are used.
        watts, price: of one device, 0 where they are not told; the price in a currency of yours.
        speedup: of each operation over the measured costs, by name; "all" for the others.
        microseconds: of each operation by primes, in place of measured costs.

    Raises:
        ConfigError: a field is outside its bounds, or figures that cannot be together.
    """

    name: str
    weights_on: str
    storage_gigabytes_per_second: float = field(metadata=_RATE)
    write_gigabytes_per_second: float = field(metadata=_RATE)
    lane_gigabytes_per_second: float = field(default=1.0, metadata=_RATE)
    lanes: float = field(default=32, metadata=_number_field(1, 4096))
    lanes_to_storage: float = field(default=0, metadata=_number_field(0, 4095))
    lanes_per_device: float = field(default=16, metadata=_number_field(1, 1024))
    memory_gigabytes: float = field(metadata=_number_field(1e-3, 1e5))
    disk_gigabytes: float = field(metadata=_number_field(1e-3, 1e7))
    key_cache_gigabytes: float = field(default=0, metadata=_number_field(0, 1e5))
    latency_seconds: float = field(default=0, metadata=_number_field(0, 10))
    network_gigabytes_per_second: float = field(default=0, metadata=_number_field(0, 1e5))
    prefetch: bool = True
    watts: float = field(default=0, metadata=_number_field(0, 1e6))
    price: float = field(default=0, metadata=_number_field(0, 1e9))
    speedup: Mapping[str, float] = field(default_factory=dict)
    microseconds: Mapping[str, tuple[float, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for key, each in _NUMBERS.items():
            value, low, high = getattr(self, key), each.metadata["low"], each.metadata["high"]
            if not low <= value <= high:  # also refuses NaN
                raise ConfigError(f'"{key}" is {low:g} to {high:g}. Received: {value:g}.')
        if self.weights_on not in PLACES:
            raise ConfigError(
                f'"weights_on" is {" or ".join(PLACES)}. Received: {quote_value(self.weights_on)}.'
                f"{did_you_mean(self.weights_on, PLACES)}"
            )
        if self.lanes_to_storage >= self.lanes:
            raise ConfigError(
                '"lanes_to_storage" leave lanes for devices. Received: '
                f"{self.lanes_to_storage:g} of {self.lanes:g} lanes."
            )
        if self.key_cache_gigabytes >= self.memory_gigabytes:
            raise ConfigError(
                '"key_cache_gigabytes" is a part of "memory_gigabytes". Received: '
                f"{self.key_cache_gigabytes:g} of {self.memory_gigabytes:g} GB."
            )

    @property
    def link_rate(self) -> float:
        """Bytes per second that one device gets when it is alone."""
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
        """Bytes per second of each of so many devices that all read."""
        return min(self.link_rate, self.shared_rate / devices)

    def operation_seconds(self, operation: str, level: int, measured: float) -> float:
        """The time of an operation here.

        Args:
            operation: one of OPERATIONS.
            level: how many primes its input has, from 1.
            measured: its time on the processor that costs were measured on, in seconds.

        Raises:
            ConfigError: the profile tells times of this operation, but of fewer levels.
        """
        check_one_of("Operations are", operation, OPERATIONS)
        told = self.microseconds.get(operation)
        if told is None:
            return measured / self.speedup.get(operation, self.speedup.get("all", 1.0))
        if len(told) == 1:
            return told[0] * 1e-6
        if not 1 <= level <= len(told):
            raise ConfigError(
                f'{self.name}: "microseconds" of {operation} are of {len(told)} levels. Received: '
                f"a model that computes it with {level} primes."
            )
        return told[level - 1] * 1e-6


_NUMBERS: Final = {each.name: each for each in fields(Device) if each.metadata}
_KEYS: Final = ("name", "weights_on", "prefetch", *_NUMBERS, "speedup", "microseconds")


def load_device(name: str) -> Device:
    """A profile: one of SHIPPED by its name, or a TOML file.

    Raises:
        ConfigError: there is none, or it is malformed; names file and field.
    """
    return from_file(name, "A device", dict.fromkeys(SHIPPED), of_toml)


def from_file(
    name: str, what: str, shipped: Mapping[str, str | None], make: Callable[[dict[str, Any]], T]
) -> T:
    """What a TOML file says: one of the user's, or one that is shipped, by its name.

    Args:
        what: it is, for errors.
        shipped: files by name; None where the file has the same one.

    Raises:
        ConfigError: there is none, or it is malformed; names the file.
    """
    if name in shipped:
        return make(parse_toml(published.read_text(f"{shipped[name] or name}.toml")))
    path = Path(name)
    if path.suffix != ".toml":
        raise ConfigError(
            f"{what} is {', '.join(shipped)}, or a file (FILE.toml). Received: {name!r}."
            f"{did_you_mean(name, shipped)}"
        )
    with prefix_errors(path.name):
        return make(load_toml(path))


def of_toml(values: Mapping[str, Any]) -> Device:
    """A profile from the tables of its file.

    Raises:
        ConfigError: fields that are missing, unknown, or outside their bounds.
    """
    table = TomlTable(values, "device", _KEYS)
    numbers = {
        key: table.get_number(key, None if each.default is MISSING else each.default)
        for key, each in _NUMBERS.items()
    }
    speedup = table.get_table("speedup", ("all", *OPERATIONS))
    table.get_table("microseconds", OPERATIONS)
    return Device(
        name=table.get_text("name"),
        weights_on=table.get_text("weights_on"),
        prefetch=table.get_boolean("prefetch", True),
        speedup={
            key: _check_positive(speedup.get_number(key), f"[speedup] {key}")
            for key in values.get("speedup", {})
        },
        microseconds={
            key: _by_level(each, f"[microseconds] {key}")
            for key, each in values.get("microseconds", {}).items()
        },
        **numbers,
    )


def _by_level(value: object, where: str) -> tuple[float, ...]:
    """One time, or one for each number of primes from 1."""
    given = value if isinstance(value, list) else [value]
    if not 1 <= len(given) <= _MOST_LEVELS:
        raise ConfigError(f"{where}: 1 to {_MOST_LEVELS} times. Received: {len(given)}.")
    return tuple(_check_positive(each, where) for each in given)


def _check_positive(value: object, where: str) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool) and 1e-9 <= value <= 1e9:
        return float(value)
    raise ConfigError(f"{where} is a number from 1e-9 to 1e9. Received: {quote_value(value)}.")

"""The closed form and the simulation of storage devices: published cells, limits, bad input."""

from __future__ import annotations

import dataclasses
import importlib.util
import itertools
import math
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from tests.refusals import raises
from tfe_bench.benchmarks.technologies.storage import (
    device,
    model,
    program_order,
    projections,
    published,
    simulation,
)
from tfe_bench.benchmarks.technologies.storage.device import GIGA, StorageDevice
from tfe_bench.benchmarks.technologies.storage.links import SharedLink
from tfe_bench.benchmarks.technologies.storage.model import DeviceLayer, DeviceModel
from tfe_bench.benchmarks.technologies.storage.simulation import InferenceLoad, SimulationOutcome
from tfe_bench.errors import ConfigError, UsageError

_ORACLE = Path("../shared/seeds/isc_fit.py")
PLAIN = {"name": "d", "weights_on": "device"} | dict.fromkeys(
    (
        "storage_gigabytes_per_second",
        "write_gigabytes_per_second",
        "memory_gigabytes",
        "disk_gigabytes",
    ),
    8.0,
)


def make_device(**changed: Any) -> StorageDevice:
    fields: dict[str, Any] = PLAIN | {"disk_gigabytes": 1000.0}
    return StorageDevice(**fields | changed)


def make_model(*layers: tuple[float, float, float, float]) -> tuple[DeviceModel, list[float]]:
    """Build a model of layers (GB of weights, of keys, of values, seconds), and its times."""
    each = tuple(
        DeviceLayer(
            name=f"layer {i}",
            weight_bytes=weights * GIGA,
            key_bytes=keys * GIGA,
            working_bytes=working * GIGA,
            seconds=seconds,
        )
        for i, (weights, keys, working, seconds) in enumerate(layers)
    )
    return DeviceModel(name="m", layers=each), [layer.seconds or 0.0 for layer in each]


def simulate_load(
    profile: StorageDevice, of: tuple[DeviceModel, list[float]], **load: Any
) -> SimulationOutcome:
    return simulation.simulate_inference_load(profile, *of, InferenceLoad(**load))


PUBLISHED = make_model((1.5, 0.5, 0, 0.234), (1.8, 0, 0, 0.770), (0, 0, 0, 0.051))


# ---- published tables


def test_every_published_cell_is_met_within_one_percent() -> None:
    measured = projections.published_tables()
    assert len(measured) == 5 + 18
    published_cells = [m for m in measured if "published_seconds" in m.figures]
    assert len(published_cells) == 5 + 17
    for m in published_cells:
        theirs = m.figures["published_seconds"]
        for name in ("latency_seconds", "simulated_seconds"):
            assert m.figures[name] == pytest.approx(theirs, rel=0.01), m.parameters
        assert m.correct is True and name in m.modeled
    throughputs = {
        (m.parameters["devices"], m.parameters["configuration"]): m.figures["throughput_per_second"]
        for m in published_cells
        if m.parameters["table"] == "devices"
    }
    # as printed in the source together with the latencies
    assert throughputs[16, "fpga-ssd"] == pytest.approx(4.147, rel=0.01)
    assert throughputs[32, "csd"] == pytest.approx(29.879, rel=0.01)


def test_the_empty_cell_is_said_to_be_empty() -> None:
    [empty] = [m for m in projections.published_tables() if "published_seconds" not in m.figures]
    assert empty.parameters["devices"] == 32 and empty.parameters["configuration"] == "fpga-ssd"
    assert empty.figures["published"] == "empty in the source" and empty.correct is None
    assert empty.figures["latency_seconds"] == pytest.approx(3.8 / 0.5 + 0.051)


@pytest.fixture(scope="module")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    if not _ORACLE.is_file():
        pytest.skip("the reference model is not here")
    folder = tmp_path_factory.mktemp("oracle")  # it writes files into its own folder
    copy = folder / "oracle.py"
    copy.write_text(_ORACLE.read_text())
    spec = importlib.util.spec_from_file_location("oracle", copy)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_it_agrees_with_the_reference_model(oracle: ModuleType, rng: np.random.Generator) -> None:
    for _ in range(40):
        layers = [
            (f"l{i}", float(rng.choice([0.0, rng.uniform(0.01, 3)])), float(rng.uniform(1, 900)))
            for i in range(int(rng.integers(1, 6)))
        ]
        rate = float(rng.uniform(0.5, 20))
        workload = make_model(*((size, 0, 0, ms / 1000) for _, size, ms in layers))
        sizes = [layer.bytes for layer in workload[0].layers]
        ours = program_order.inference_seconds(sizes, workload[1], rate * GIGA)
        assert ours == pytest.approx(oracle.closed(layers, rate) / 1000)
        theirs, *_ = oracle.des(layers, rate, chunks=simulation.CHUNKS)
        timing = simulate_load(make_device(storage_gigabytes_per_second=rate), workload)
        assert timing.latencies[0] == pytest.approx(theirs / 1000, rel=1e-3)


# ---- the closed form


def test_a_bandwidth_breaks_even_where_it_is_said_to(rng: np.random.Generator) -> None:
    for _ in range(100):
        count = int(rng.integers(1, 6))
        sizes, compute = rng.uniform(0, 1e9, count), rng.uniform(0, 1, count)
        for target in (compute.sum(), compute.sum() * rng.uniform(1, 5)):
            rate = program_order.least_storage_rate(list(sizes), list(compute), float(target))
            assert rate is not None
            assert program_order.inference_seconds(
                list(sizes), list(compute), rate
            ) == pytest.approx(target)
            assert program_order.inference_seconds(list(sizes), list(compute), rate * 0.9) > target
    assert program_order.least_storage_rate([1.0], [1.0], 0.5) is None
    assert program_order.least_storage_rate([0.0], [1.0], 1.0) == 0.0
    with raises(UsageError, "number-out-of-range", operation="target"):
        program_order.least_storage_rate([1.0], [1.0], math.nan)


def test_the_published_device_breaks_even_as_its_layers_say() -> None:
    sizes = [layer.bytes for layer in PUBLISHED[0].layers]
    hidden = program_order.least_storage_rate(sizes, PUBLISHED[1], 1.055)
    assert hidden == pytest.approx(2.0 / 0.234 * GIGA)
    even = program_order.least_storage_rate(sizes, PUBLISHED[1], published.PROCESSOR_SECONDS)
    assert even == pytest.approx(3.8 / (11.359 - 0.051) * GIGA)


# ---- the simulation


def test_without_prefetch_nothing_overlaps() -> None:
    timing = simulate_load(make_device(prefetch=False), PUBLISHED)
    assert timing.latencies[0] == pytest.approx(3.8 / 8 + 1.055)
    assert timing.latencies[0] > simulate_load(make_device(), PUBLISHED).latencies[0]


@pytest.mark.parametrize("memory", [0.05, 0.2, 1.0, 8.0])
def test_memory_is_never_exceeded_and_less_of_it_never_helps(memory: float) -> None:
    timing = simulate_load(make_device(memory_gigabytes=memory), PUBLISHED, requests=2)
    assert timing.peak_bytes <= memory * GIGA * (1 + 1e-9)
    assert timing.latencies[0] >= simulate_load(make_device(), PUBLISHED).latencies[0] - 1e-9


def test_values_that_do_not_fit_are_written_and_read_again() -> None:
    workload = make_model((1.0, 0, 4.0, 0.1))
    fits = simulate_load(make_device(memory_gigabytes=8), workload)
    assert fits.spilled_bytes == 0
    for write, factor in ((8.0, 2.0), (2.0, 5.0)):
        tight = make_device(memory_gigabytes=1, write_gigabytes_per_second=write)
        timing = simulate_load(tight, workload)
        excess = 4.0 - (1 - 2 * 1.0 / simulation.CHUNKS)
        assert timing.spilled_bytes == pytest.approx(excess * GIGA)
        # reads and writes hide the computation
        assert timing.latencies[0] == pytest.approx((1.0 + factor * excess) / 8, rel=0.01)


def test_keys_that_are_kept_are_not_read_again() -> None:
    workload = make_model((1.0, 1.0, 0, 0.01))
    never = simulate_load(make_device(), workload, clients=1, requests=4)
    kept = simulate_load(make_device(key_cache_gigabytes=1), workload, clients=1, requests=4)
    assert (never.key_hits, kept.key_hits) == (0, 3)
    assert never.read_bytes == pytest.approx(8 * GIGA)
    assert kept.read_bytes == pytest.approx(5 * GIGA)
    alternating = simulate_load(
        make_device(key_cache_gigabytes=1), workload, clients=2, requests=8, affinity=False
    )
    assert alternating.key_hits == 0


def test_affinity_finds_more_keys_and_lets_nobody_starve() -> None:
    workload = make_model((0.2, 1.0, 0, 0.02))
    load = {"devices": 2, "clients": 6, "requests": 120, "arrivals": 20.0}
    profile = make_device(key_cache_gigabytes=2)
    loose = simulate_load(profile, workload, **load, affinity=False)
    close = simulate_load(profile, workload, **load, affinity=True)
    assert close.key_hits > loose.key_hits and close.read_bytes < loose.read_bytes
    assert len(close.latencies) == 120 and close.throughput > loose.throughput


def test_a_queue_grows_with_arrivals_and_an_idle_device_answers_at_once() -> None:
    seldom = simulate_load(make_device(), PUBLISHED, requests=50, arrivals=0.01, clients=5)
    often = simulate_load(make_device(), PUBLISHED, requests=50, arrivals=5.0, clients=5)
    alone = simulate_load(make_device(), PUBLISHED).latencies[0]
    assert seldom.latency_quantile(0.5) == pytest.approx(alone)
    assert often.latency_quantile(0.95) > 10 * alone
    assert often.throughput == pytest.approx(1 / alone, rel=0.02)
    again = simulate_load(make_device(), PUBLISHED, requests=50, arrivals=5.0, clients=5)
    assert again.latencies == often.latencies
    other = simulate_load(make_device(), PUBLISHED, requests=50, arrivals=5.0, clients=5, seed=2)
    assert other.latencies != often.latencies


def test_what_a_client_sends_and_gets_is_counted() -> None:
    with_data = dataclasses.replace(PUBLISHED[0], input_bytes=3e9, output_bytes=1e9)
    timing = simulate_load(make_device(network_gigabytes_per_second=1), (with_data, PUBLISHED[1]))
    assert timing.latencies[0] == pytest.approx(
        4 + simulate_load(make_device(), PUBLISHED).latencies[0]
    )
    delayed = simulate_load(make_device(latency_seconds=0.5), PUBLISHED)
    assert delayed.latencies[0] == pytest.approx(
        0.5 + simulate_load(make_device(), PUBLISHED).latencies[0]
    )


def test_work_is_conserved(rng: np.random.Generator) -> None:
    """Compute and read each request once under any load; no latency is below one request's."""
    for _ in range(15):
        workload = make_model(
            *((*rng.uniform(0, 1, 3), float(rng.uniform(0, 0.3))) for _ in range(3))
        )
        devices, clients, requests = (int(rng.integers(1, high)) for high in (5, 9, 20))
        where = str(rng.choice(["device", "host"]))
        profile = make_device(weights_on=where, lanes=float(rng.integers(1, 16)))
        load: dict[str, Any] = {"devices": devices, "clients": clients, "requests": requests}
        if rng.integers(2):
            load["arrivals"] = float(rng.uniform(0.1, 10))
        timing = simulate_load(profile, workload, **load)
        alone = simulate_load(profile, workload).latencies[0]
        assert len(timing.latencies) == requests
        assert min(timing.latencies) >= alone * (1 - 1e-9)
        total = sum(layer.bytes for layer in workload[0].layers) * requests
        assert timing.read_bytes == pytest.approx(total)
        assert timing.computing * timing.seconds * devices == pytest.approx(
            sum(workload[1]) * requests
        )
        assert timing.peak_bytes <= 8 * GIGA * (1 + 1e-9)


def test_a_link_gives_equal_parts() -> None:
    link = SharedLink(alone=10.0, together=15.0)
    link.start_stream(0.0, 1, 10.0)
    assert link.next_end() == pytest.approx(1.0)
    link.start_stream(0.5, 2, 7.5)
    # each gets 7.5 per second: the first needs 5 more, the second 7.5
    assert link.next_end() == pytest.approx(0.5 + 5 / 7.5)
    assert link.end_stream(link.next_end()) == 1
    assert link.next_end() == pytest.approx(0.5 + 5 / 7.5 + 2.5 / 10)
    assert link.end_stream(link.next_end()) == 2
    assert link.next_end() == math.inf


# ---- bad input


def profile_text(**changed: str | None) -> str:
    lines: dict[str, str | None] = {
        key: f'"{value}"' if isinstance(value, str) else str(value) for key, value in PLAIN.items()
    }
    lines |= changed
    return "\n".join(f"{key} = {value}" for key, value in lines.items() if value is not None)


@pytest.mark.parametrize(
    ("changed", "code", "operation"),
    [
        ({"memory_gigabytes": None}, "missing-argument", "memory_gigabytes"),
        ({"memory_gigabytes": None, "memory_gigabyte": "8"}, "unknown-option", "device"),
        ({"storage_gigabytes_per_second": "nan"}, "wrong-type", "storage_gigabytes_per_second"),
        ({"storage_gigabytes_per_second": "inf"}, "wrong-type", "storage_gigabytes_per_second"),
        (
            {"storage_gigabytes_per_second": "0"},
            "number-out-of-range",
            "storage_gigabytes_per_second",
        ),
        ({"disk_gigabytes": "-1"}, "number-out-of-range", "disk_gigabytes"),
        ({"disk_gigabytes": '"large"'}, "wrong-type", "disk_gigabytes"),
        ({"weights_on": '"devise"'}, "unknown-name", "weights_on"),
        ({"lanes_to_storage": "32"}, "inconsistent-profile", "lanes_to_storage"),
        ({"key_cache_gigabytes": "8"}, "inconsistent-profile", "key_cache_gigabytes"),
        ({"prefetch": "1"}, "wrong-type", "prefetch"),
        ({"speedup": "{ rotat = 2 }"}, "unknown-option", "[speedup]"),
        ({"speedup": "{ rotate = 0 }"}, "number-out-of-range", "rotate"),
        ({"speedup": "{ rotate = nan }"}, "wrong-type", "rotate"),
        ({"microseconds": "{ rotate = [1, nan] }"}, "wrong-type", "rotate"),
        ({"microseconds": "{ rotate = [] }"}, "wrong-type", "rotate"),
        ({"microseconds": "{ rotate = true }"}, "wrong-type", "rotate"),
    ],
)
def test_a_profile_that_cannot_be_is_refused(
    tmp_path: Path, changed: dict[str, str | None], code: str, operation: str
) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(profile_text(**changed))
    with raises(ConfigError, code, operation=operation, names=("mine.toml: ",)):
        device.load_device(str(file))


LAYER = '[[layer]]\nname = "a"\nweight_gigabytes = 1\n'


@pytest.mark.parametrize(
    ("text", "code", "operation"),
    [
        ('name = "m"', "wrong-number-of-values", "layer"),
        (f'name = "m"\n{LAYER}', "missing-argument", "seconds"),
        (
            f'name = "m"\n{LAYER}seconds = 0'.replace("gigabytes = 1", "gigabytes = 0"),
            "model-without-cost",
            None,
        ),
        (f'name = "m"\n{LAYER}seconds = nan', "wrong-type", "seconds"),
        (f'name = "m"\n{LAYER}seconds = -1', "number-out-of-range", "seconds"),
        (f'name = "m"\n{LAYER}second = 1', "unknown-option", "[[layer]] number 1"),
        (f"{LAYER}seconds = 1", "missing-argument", "name"),
        (
            f'name = "m"\n{LAYER}[[layer.operation]]\nname = "add"\nlevel = 1',
            "missing-argument",
            "count",
        ),
        (
            f'name = "m"\n{LAYER}[[layer.operation]]\nname = "add"\nlevel = 65\ncount = 1',
            "number-out-of-range",
            "level",
        ),
        (
            f'name = "m"\n{LAYER}seconds = 1\n[[layer.operation]]\nname = "add"\nlevel = 1\n'
            "count = 1",
            "conflicting-options",
            "seconds",
        ),
    ],
)
def test_a_model_that_cannot_be_is_refused(
    tmp_path: Path, text: str, code: str, operation: str | None
) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(text)
    with raises(ConfigError, code, operation=operation):
        model.load_device_model(str(file))


def test_an_unknown_operation_of_a_model_is_named(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(f'name = "m"\n{LAYER}[[layer.operation]]\nname = "rotat"\nlevel = 1\ncount = 1')
    with raises(ConfigError, "unknown-name", operation="operation", received="rotat"):
        model.load_device_model(str(file))


@pytest.mark.parametrize(
    ("profile", "load", "said"),
    [
        (make_device(disk_gigabytes=3.7), {}, "The disk is too small"),
        (make_device(disk_gigabytes=10), {"clients": 14}, "The disk is too small"),
        (make_device(memory_gigabytes=0.03), {}, "The memory is too small"),
        (make_device(), {"devices": 0}, "--devices"),
        (make_device(), {"devices": 1025}, "--devices"),
        (make_device(), {"clients": 0}, "--clients"),
        (make_device(), {"requests": 10**6}, "--requests is at most"),
        (make_device(), {"arrivals": math.nan}, "--arrivals"),
        (make_device(), {"arrivals": 0.0}, "--arrivals"),
    ],
)
def test_what_a_device_cannot_do_is_refused(
    profile: StorageDevice, load: dict[str, Any], said: str
) -> None:
    with pytest.raises((UsageError, ConfigError)) as caught:
        simulate_load(profile, PUBLISHED, **load)
    assert said in str(caught.value) and "Received" in str(caught.value)


def test_the_disk_may_be_exactly_full() -> None:
    assert simulate_load(make_device(disk_gigabytes=3.8), PUBLISHED).latencies


# ---- layers described by their operations


def count_operations(*operations: tuple[str, int, int]) -> DeviceModel:
    each = tuple(itertools.starmap(model.DeviceOperations, operations))
    return DeviceModel(name="m", layers=(DeviceLayer(name="a", weight_bytes=1e9, operations=each),))


def test_layers_are_computed_from_operations_and_their_costs() -> None:
    workload = count_operations(("rotate", 2, 10), ("add", 1, 5))
    assert model.list_needed(workload) == [("add", 1), ("rotate", 2)]
    costs = {("rotate", 2): 0.02, ("add", 1): 0.001}

    def cost(operation: str, level: int) -> float:
        return costs[operation, level]

    assert model.device_compute_seconds(workload, make_device(), cost) == [pytest.approx(0.205)]
    faster = make_device(speedup={"rotate": 10.0, "all": 5.0})
    assert model.device_compute_seconds(workload, faster, cost) == [pytest.approx(0.02 + 0.001)]
    profile = make_device(microseconds={"rotate": (1.0, 2.0, 3.0), "add": (4.0,)})
    assert model.device_compute_seconds(workload, profile, None) == [pytest.approx(40e-6)]


def test_costs_that_nobody_tells_are_asked_for() -> None:
    with raises(ConfigError, "cost-missing", operation="rotate", received=2, expected=None):
        model.device_compute_seconds(count_operations(("rotate", 2, 1)), make_device(), None)
    short = make_device(microseconds={"rotate": (1.0, 2.0)})
    with raises(ConfigError, "cost-missing", operation="rotate", received=3, expected="1 to 2"):
        model.device_compute_seconds(count_operations(("rotate", 3, 1)), short, None)

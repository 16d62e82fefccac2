"""Projected costs of inferences on storage devices, as measurements with modeled figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from tfe_bench.benchmarks.technologies.measurement import Measurement
from tfe_bench.benchmarks.technologies.storage import device as devices
from tfe_bench.benchmarks.technologies.storage import model as models
from tfe_bench.benchmarks.technologies.storage import program_order, published, simulation
from tfe_bench.benchmarks.technologies.storage.device import GIGA, StorageDevice
from tfe_bench.benchmarks.technologies.storage.model import Costs, DeviceModel
from tfe_bench.benchmarks.technologies.storage.simulation import InferenceLoad
from tfe_bench.errors import check_range

TECHNOLOGY: Final = "storage"
PUBLISHED, PROJECTION, VALIDATION = "published tables", "projection", "validation"
# The largest accepted relative difference from a published cell.
TOLERANCE: Final = 0.01
_BANDWIDTHS: Final = (1e-3, 1e5)


def published_tables() -> list[Measurement]:
    """Compute every cell of the published tables by the closed form and by the simulation."""
    model = models.load_device_model("published")
    return [_project_published_cell(cell, model) for cell in published.read_published_cells()]


def _project_published_cell(cell: published.PublishedCell, model: DeviceModel) -> Measurement:
    device = devices.load_device(cell.configuration)
    if cell.gigabytes_per_second is not None:
        device = replace(device, storage_gigabytes_per_second=cell.gigabytes_per_second)
    compute = models.device_compute_seconds(model, device, None)
    sizes = [layer.bytes for layer in model.layers]
    latency = program_order.inference_seconds(
        sizes, compute, device.shared_device_rate(cell.devices)
    )
    load = InferenceLoad(devices=cell.devices, clients=cell.devices, requests=cell.devices)
    simulated = simulation.simulate_inference_load(device, model, compute, load).latency_quantile(
        0.5
    )
    figures: dict[str, Any] = {
        "latency_seconds": latency,
        "simulated_seconds": simulated,
        "throughput_per_second": cell.devices / latency,
    }
    correct = None
    if cell.seconds is None:
        figures["published"] = "empty in the source"
    else:
        figures["published_seconds"] = cell.seconds
        figures["difference"] = latency / cell.seconds - 1
        worst = max(abs(time / cell.seconds - 1) for time in (latency, simulated))
        correct = worst <= TOLERANCE
    return Measurement(
        technology=TECHNOLOGY,
        job=PUBLISHED,
        parameters={
            "table": cell.table,
            "configuration": cell.configuration,
            "devices": cell.devices,
            "gigabytes_per_second": device.shared_device_rate(cell.devices) / GIGA,
        },
        seconds=None,
        figures=figures,
        modeled=("latency_seconds", "simulated_seconds", "throughput_per_second"),
        correct=correct,
    )


def with_bandwidth(device: StorageDevice, gigabytes_per_second: float | None) -> StorageDevice:
    """Return the device with another storage bandwidth; None changes nothing.

    Raises:
        UsageError: the bandwidth is outside its bounds.
    """
    if gigabytes_per_second is None:
        return device
    check_range("--bandwidth", gigabytes_per_second, *_BANDWIDTHS)
    return replace(device, storage_gigabytes_per_second=gigabytes_per_second)


def project_device_costs(
    device: StorageDevice,
    model: DeviceModel,
    load: InferenceLoad,
    costs: Costs | None,
    processor_seconds: float | None,
) -> Measurement:
    """Project latency, throughput and cost of a model on devices under a load.

    Args:
        device: the profile of the devices.
        model: the program.
        load: the requests of the clients.
        costs: measured times of operations, for a model described by them.
        processor_seconds: time of one inference on the processor of the measured costs, or on
            another reference processor; None if unknown.

    Raises:
        UsageError: a number of the load is outside its bounds.
        ConfigError: the disk or the memory is too small, or the cost of an operation is unknown.
    """
    compute = models.device_compute_seconds(model, device, costs)
    simulated = simulation.simulate_inference_load(device, model, compute, load)
    sizes = [layer.bytes for layer in model.layers]
    rate = device.shared_device_rate(load.devices)
    figures: dict[str, Any] = {
        "latency_seconds": program_order.inference_seconds(sizes, compute, rate),
        "unoverlapped_seconds": program_order.without_prefetch(sizes, compute, rate),
        "compute_seconds": sum(compute),
        "median_seconds": simulated.latency_quantile(0.5),
        "p95_seconds": simulated.latency_quantile(0.95),
        "throughput_per_second": simulated.throughput,
        "computing": simulated.computing,
        "reading": simulated.reading,
        "read_bytes": round(simulated.read_bytes),
        "spilled_bytes": round(simulated.spilled_bytes),
        "peak_memory_bytes": round(simulated.peak_bytes),
        "key_hits": simulated.key_hits,
        **_break_even_bandwidths(sizes, compute, processor_seconds),
    }
    if device.watts:
        joules = device.watts * load.devices * simulated.seconds
        figures["joules_per_inference"] = joules / len(simulated.latencies)
    if device.price:
        figures["price_per_inference_per_second"] = (
            device.price * load.devices / simulated.throughput
        )
    return Measurement(
        technology=TECHNOLOGY,
        job=PROJECTION,
        parameters={
            "device": device.name,
            "model": model.name,
            "gigabytes_per_second": rate / GIGA,
            "devices": load.devices,
            "clients": load.clients,
            "requests": load.requests,
            "arrivals_per_second": load.arrivals,
            "affinity": load.affinity,
            "prefetch": device.prefetch,
            "memory_gigabytes": device.memory_gigabytes,
            "key_cache_gigabytes": device.key_cache_gigabytes,
        },
        seconds=None,
        figures=figures,
        modeled=tuple(name for name in figures if name != "processor_seconds"),
    )


def _break_even_bandwidths(
    sizes: Sequence[float], compute: Sequence[float], processor_seconds: float | None
) -> dict[str, Any]:
    """Compute the bandwidths that hide reading and that reach the processor's time."""
    hidden = program_order.least_storage_rate(sizes, compute, sum(compute))
    figures: dict[str, Any] = {}
    if hidden is not None:
        figures["hidden_bytes_per_second"] = hidden
    if processor_seconds is not None:
        figures["processor_seconds"] = processor_seconds
        even = program_order.least_storage_rate(sizes, compute, processor_seconds)
        if even is None:
            figures["break_even"] = "at no bandwidth: computing alone takes longer"
        else:
            figures["break_even_bytes_per_second"] = even
    return figures

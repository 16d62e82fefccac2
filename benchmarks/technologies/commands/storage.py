"""`python -m tfe_bench storage`: homomorphic inference projected to storage devices."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tfe_bench.benchmarks.technologies.commands import options
from tfe_bench.benchmarks.technologies.storage.simulation import InferenceLoad
from tfe_bench.cli import common
from tfe_bench.cli.command import Command
from tfe_bench.errors import UsageError, check_range

if TYPE_CHECKING:
    from tfe_bench.benchmarks.technologies.measurement import Measurement
    from tfe_bench.benchmarks.technologies.storage.device import StorageDevice
    from tfe_bench.benchmarks.technologies.storage.model import Costs, DeviceModel

_PROJECTED = (
    "device",
    "model",
    "devices",
    "clients",
    "requests",
    "arrivals",
    "bandwidth",
)
_MOST_BANDWIDTHS = 64
_DEGREES = (8192, 16384)


def _add_storage_options(p: argparse.ArgumentParser) -> None:
    common.add_option(
        p,
        "--device NAME",
        "storage device: csd, fpga, fpga-ssd, or a profile (FILE.toml) (default: csd)",
    )
    common.add_option(
        p,
        "--model NAME",
        "model: published, measured (the CNN of `homomorphic`, with costs of operations that are "
        "measured on this machine), or layers (FILE.toml) (default: published)",
    )
    common.add_option(
        p,
        "--degree N",
        "degree of the ring for measured costs: 8192 or 16384 (default: 8192)",
        type=int,
        default=8192,
    )
    options.add_job_options(
        p,
        InferenceLoad,
        {
            "devices": "1",
            "clients": "the number of devices",
            "requests": "8 for each device",
            "arrivals": "each client requests an inference when it has received the previous one",
        },
    )
    common.add_option(
        p,
        "--bandwidth G,G",
        "bandwidths of the storage in GB/s, one line of the table for each (default: the device's)",
    )
    common.add_option(
        p, "--no-affinity", "choose devices without regard to the keys that they hold"
    )
    options.add_job_options(p, InferenceLoad, {"seed": None})
    common.add_option(
        p,
        "--validate",
        "run the CNN on this machine, read its weights at 0.05 to 8 GB/s (or the rates of "
        "--bandwidth), and compare with the prediction",
    )
    options.add_technology_options(p)


def run_storage(arguments: argparse.Namespace) -> int:
    """Project homomorphic inference on storage devices.

    Without options, prints the published tables of a computational storage device cell by cell.
    With a device, a model or a load, prints the latency of clients by a closed form and by a
    discrete-event simulation, and the bandwidth at which storage breaks even. With --validate,
    measures the accuracy of the prediction on a real run.
    """
    options.check_technology_options(arguments)
    check_range("--seed", arguments.seed, 0)
    if arguments.degree not in _DEGREES:
        raise UsageError(
            f"--degree is 8192 or 16384. Received: {arguments.degree}.",
            code="number-out-of-range",
            operation="--degree",
            received=arguments.degree,
        )
    rates = _parse_storage_bandwidths(arguments.bandwidth)
    is_projection = arguments.no_affinity or any(
        getattr(arguments, name) is not None for name in _PROJECTED
    )
    if arguments.validate:
        projection_options = [
            name for name in _PROJECTED[:-1] if getattr(arguments, name) is not None
        ]
        if projection_options or arguments.no_affinity:
            raise UsageError(
                "--validate runs the CNN on this machine: of the options it takes --bandwidth, "
                f"--degree and --repeat. Received: --{(projection_options or ['no-affinity'])[0]}.",
                code="conflicting-options",
                operation="--validate",
            )
        return _validate_storage_model(arguments, rates)
    return (
        _project_storage_devices(arguments, rates)
        if is_projection
        else _print_published_storage(arguments)
    )


def _parse_storage_bandwidths(text: str | None) -> list[float | None]:
    """Parse the bandwidths of --bandwidth.

    Raises:
        UsageError: the text has other words than numbers, or too many.
    """
    if text is None:
        return [None]
    words = text.split(",")
    if len(words) > _MOST_BANDWIDTHS:
        raise UsageError(
            f"Expected at most {_MOST_BANDWIDTHS} numbers in --bandwidth. Received: {len(words)}.",
            code="wrong-number-of-values",
            operation="--bandwidth",
            received=len(words),
        )
    try:
        rates: list[float | None] = [float(word) for word in words]
    except ValueError:
        raise UsageError(
            f"Expected numbers of GB/s in --bandwidth, like 1,2. Received: {text[:80]!r}.",
            code="malformed-option",
            operation="--bandwidth",
        ) from None
    for rate in rates:
        assert rate is not None
        check_range("--bandwidth", rate, 1e-3, 1e5)
    return rates


def _print_published_storage(arguments: argparse.Namespace) -> int:
    from tfe_bench.benchmarks.technologies.storage import projections

    measured = projections.published_tables()
    worst = max(abs(m.figures["difference"]) for m in measured if "difference" in m.figures)
    columns: options.Columns = {
        "device": lambda m: m.parameters["configuration"],
        "n": lambda m: str(m.parameters["devices"]),
        "GB/s": lambda m: f"{m.parameters['gigabytes_per_second']:g}",
        "published": lambda m: _format_milliseconds(m, "published_seconds", "empty"),
        "ours": lambda m: _format_milliseconds(m, "latency_seconds"),
        "simulated": lambda m: _format_milliseconds(m, "simulated_seconds"),
        "off by": lambda m: (
            f"{100 * m.figures['difference']:+.2f} %" if "difference" in m.figures else "-"
        ),
    }
    notes = [
        f"The largest difference is {100 * worst:.2f} %. Modeled: three layers that are read in "
        "the order of use while earlier ones compute.",
    ]
    return options.report_technology_measurements(
        arguments, measured, "One inference of the published CNN, in ms", columns, notes
    )


def _format_milliseconds(m: Measurement, name: str, absent: str = "-") -> str:
    value = m.figures.get(name)
    return absent if value is None else f"{1000 * value:,.0f}"


def _project_storage_devices(arguments: argparse.Namespace, rates: Sequence[float | None]) -> int:
    from tfe_bench.benchmarks.technologies.storage import device as devices
    from tfe_bench.benchmarks.technologies.storage import model as models
    from tfe_bench.benchmarks.technologies.storage import projections, published, simulation

    device = devices.load_device(arguments.device or "csd")
    name = arguments.model or "published"
    load = _parse_storage_load(arguments)
    processor = published.PROCESSOR_SECONDS if name == "published" else None
    with common.command_progress_bar(arguments) as bar:
        bar.show_text("measuring what operations cost")
        if name == "measured":
            from tfe_bench.benchmarks.technologies.storage import measured as measured_network

            model = measured_network.build_cnn(arguments.degree)
        else:
            model = models.load_device_model(name)
        costs = _measure_storage_model_costs(arguments, model, device)
    if costs is not None:
        processor = models.processor_inference_seconds(model, costs)
    measured = []
    for rate in rates:
        faster = projections.with_bandwidth(device, rate)
        simulation.check_inference_load(faster, model, load)
        measured.append(projections.project_device_costs(faster, model, load, costs, processor))
    columns: options.Columns = {
        "GB/s": lambda m: f"{m.parameters['gigabytes_per_second']:.3g}",
        "alone, ms": lambda m: _format_milliseconds(m, "latency_seconds"),
        "median, ms": lambda m: _format_milliseconds(m, "median_seconds"),
        "p95, ms": lambda m: _format_milliseconds(m, "p95_seconds"),
        "per second": lambda m: f"{m.figures['throughput_per_second']:.3g}",
        "computing": lambda m: f"{100 * m.figures['computing']:.0f} %",
        "keys there": lambda m: f"{m.figures['key_hits']} of {m.parameters['requests']}",
    }
    title = f"{model.name} on {load.devices} x {device.name}, {load.clients} clients, modeled"
    return options.report_technology_measurements(
        arguments, measured, title, columns, _describe_storage_break_even(measured[0])
    )


def _measure_storage_model_costs(
    arguments: argparse.Namespace, model: DeviceModel, device: StorageDevice
) -> Costs | None:
    """Measure costs on this machine if the device profile lacks costs that the model needs."""
    from tfe_bench.benchmarks.technologies.storage.model import list_needed

    missing_levels = [
        level for name, level in list_needed(model) if name not in device.microseconds
    ]
    if not missing_levels:
        return None
    from tfe_bench.benchmarks.technologies.storage import measured

    return measured.measure_costs(arguments.degree, max(missing_levels))


def _validate_storage_model(arguments: argparse.Namespace, rates: Sequence[float | None]) -> int:
    from tfe_bench.benchmarks.technologies.storage import validation

    chosen_rates = [rate for rate in rates if rate is not None] or validation.RATES
    with common.command_progress_bar(arguments) as bar:
        measured = [
            *validation.validate_storage_rates(
                chosen_rates, arguments.repeat, arguments.degree, bar.update
            )
        ]
    columns: options.Columns = {
        "GB/s": lambda m: f"{m.parameters['gigabytes_per_second']:g}",
        "reached": lambda m: f"{m.figures['reached_gigabytes_per_second']:.3g}",
        "measured, ms": lambda m: f"{1000 * m.seconds.median:,.0f}" if m.seconds else "-",
        "predicted": lambda m: _format_milliseconds(m, "predicted_seconds"),
        "off by": lambda m: f"{100 * m.figures['difference']:+.1f} %",
        "from costs": lambda m: _format_milliseconds(m, "predicted_from_costs_seconds"),
        "off by ": lambda m: f"{100 * m.figures['difference_from_costs']:+.1f} %",
    }
    title = f"The CNN under CKKS, N = {arguments.degree}, its weights read from a file"
    notes = [
        "Predicted: from when each plaintext is asked for with all of them in memory; from costs: "
        "layer by layer, from counts of operations times what each costs. The file is in the page "
        "cache: a token bucket sets the rate.",
    ]
    return options.report_technology_measurements(arguments, measured, title, columns, notes)


def _parse_storage_load(arguments: argparse.Namespace) -> InferenceLoad:
    devices = 1 if arguments.devices is None else arguments.devices
    check_range("--devices", devices, 1)
    clients = devices if arguments.clients is None else arguments.clients
    requests = 8 * devices if arguments.requests is None else arguments.requests
    return InferenceLoad(
        devices=devices,
        clients=clients,
        requests=requests,
        arrivals=arguments.arrivals,
        affinity=not arguments.no_affinity,
        seed=arguments.seed,
    )


def _describe_storage_break_even(m: Measurement) -> list[str]:
    """Describe the bandwidth that storage needs to break even."""
    figures, notes = m.figures, []
    if (hidden := figures.get("hidden_bytes_per_second")) is not None:
        notes.append(f"From {hidden / 1e9:.3g} GB/s for each device, reading costs no time.")
    if (even := figures.get("break_even_bytes_per_second")) is not None:
        notes.append(
            f"From {even / 1e9:.3g} GB/s a device is as fast as the processor that takes "
            f"{figures['processor_seconds']:.4g} s."
        )
    elif "break_even" in figures:
        notes.append(f"A device is as fast as the processor {figures['break_even']}.")
    for name, words in (
        ("joules_per_inference", "J for one inference."),
        ("price_per_inference_per_second", "of the price for each inference per second."),
    ):
        if name in figures:
            notes.append(f"{figures[name]:.4g} {words}")
    return notes


COMMAND = Command(
    _add_storage_options,
    run_storage,
    examples=("storage --device csd --devices 4",),
    heading="other technologies",
    after="homomorphic",
)

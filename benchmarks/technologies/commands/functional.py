"""`python -m tfe_bench functional`: functional encryption for inner products and LeNet-5."""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tfe_bench.benchmarks.technologies.commands import options
from tfe_bench.benchmarks.technologies.functional import energy
from tfe_bench.benchmarks.technologies.functional.sweep import SweepCell
from tfe_bench.cli import common
from tfe_bench.cli.command import Command
from tfe_bench.cli.progress import ProgressBar
from tfe_bench.errors import UsageError, check_range

if TYPE_CHECKING:
    from tfe_bench.benchmarks.technologies.measurement import Measurement

BITS = (16, 20, 24, 28, 32)
LENGTHS = (10, 100, 784, 1024)
BATCHES = (1, 16)
_ENERGY = [each.name for each in dataclasses.fields(energy.EnergyInputs)]


def _list_sizes(sizes: Sequence[int]) -> str:
    return f"{', '.join(map(str, sizes[:-1]))} and {sizes[-1]}"


def _add_functional_options(p: argparse.ArgumentParser) -> None:
    sizes = {"length": LENGTHS, "result_bits": BITS, "batch": BATCHES}
    texts = {
        name: " and ".join([*", ".join(map(str, of)).rsplit(", ", 1)]) for name, of in sizes.items()
    }
    threads = {"threads": "1, and one for each processor"}
    defaults = {"scheme": None, **texts, "outputs": None, **threads, "table_bits": None}
    options.add_job_options(p, SweepCell, defaults)
    common.add_option(p, "--quick", "use fewer and smaller cases")
    common.add_option(
        *(
            p,
            "--modulus BITS",
            "prime group to compare with: 3072, 2048 or 1024 bits (default: no comparison)",
        ),
        type=int,
    )
    common.add_option(
        p, "--insecure-for-comparison", "permit a --modulus of less than 128 bits of security"
    )
    lenet = p.add_argument_group("LeNet-5 on encrypted pictures")
    common.add_option(lenet, "--lenet5", "train and test LeNet-5 instead")
    common.add_option(
        lenet,
        "--allow-leakage",
        "permit keys that disclose the pictures, as the keys of LeNet-5 do",
    )
    common.add_option(
        lenet, "--batches K", "number of measured batches of 64 pictures (default: 4)", type=int
    )
    common.add_option(
        lenet, "--data-dir FOLDER", "folder of the four MNIST files (default: the file of Keras)"
    )
    year = p.add_argument_group("energy and cost per year")
    common.add_option(year, "--energy", "estimate energy and cost instead, without measuring")
    options.add_job_options(year, energy.EnergyInputs, dict.fromkeys(_ENERGY, ""))
    options.add_technology_options(p)


def run_functional(arguments: argparse.Namespace) -> int:
    """Measure functional encryption of inner products.

    Encrypts vectors, derives keys for weights and decrypts the inner products, on an elliptic
    curve, for several lengths and sizes of results. --lenet5 trains a network whose first layer
    takes encrypted pictures, and measures the leakage to the holder of its keys.
    """
    options.check_technology_options(arguments)
    common.check_dependent_options(arguments, "lenet5", "allow_leakage", "batches", "data_dir")
    common.check_dependent_options(arguments, "modulus", "insecure_for_comparison")
    common.check_dependent_options(arguments, "energy", *_ENERGY)
    _check_functional_modes(arguments)
    check_range("--table-bits", arguments.table_bits, 4, 28)
    if arguments.threads is not None:
        check_range("--threads", arguments.threads, 1, 64)
    if arguments.energy:
        return _estimate_encryption_energy(arguments)
    if arguments.lenet5:
        return _measure_encrypted_lenet(arguments)
    if arguments.modulus is not None:
        return _measure_modular_group(arguments)
    return _run_functional_sweep(arguments)


def _check_functional_modes(arguments: argparse.Namespace) -> None:
    """Reject options that have no effect in the chosen mode."""
    for mode, allowed_options in (
        ("energy", ()),
        ("lenet5", ("threads",)),
        ("modulus", ("length", "outputs")),
    ):
        if getattr(arguments, mode) in (None, False):
            continue
        conflicting = [
            name
            for name in ("length", "result_bits", "batch", "threads", "energy", "lenet5", "modulus")
            if name not in (*allowed_options, mode)
            and getattr(arguments, name) not in (None, False)
        ]
        if conflicting:
            raise UsageError(
                f"--{mode} does not go with --{conflicting[0].replace('_', '-')}. Received: both.",
                code="conflicting-options",
                operation=f"--{mode}",
            )


def _count_processors() -> int:
    return len(os.sched_getaffinity(0))


def _load_curve(bar: ProgressBar) -> None:
    """Load the curve, which is compiled at its first use: before anything is timed."""
    from tfe_bench.benchmarks.technologies.functional import curve_library

    bar.show_text("compiling the curve, at its first use")
    curve_library.load_curve_library()


def _functional_sweep_cells(arguments: argparse.Namespace) -> Iterator[SweepCell]:
    """Yield the cells that the sweep measures."""
    quick, threads = arguments.quick, sorted({1, _count_processors()})
    sizes = {
        "threads": threads,
        "length": LENGTHS[1:3] if quick else LENGTHS,
        "batch": BATCHES[:1] if quick else BATCHES,
        "result_bits": BITS[::2] if quick else BITS,
    }
    given = {name: (v,) for name in sizes if (v := getattr(arguments, name)) is not None}
    same = {name: getattr(arguments, name) for name in ("outputs", "scheme", "table_bits")}
    for values in itertools.product(*(sizes | given).values()):
        yield SweepCell(**dict(zip(sizes, values, strict=True)), **same)


def _run_functional_sweep(arguments: argparse.Namespace) -> int:
    from tfe_bench.benchmarks.technologies.functional import compared, measuring
    from tfe_bench.benchmarks.technologies.functional.curve import Table

    cells = list(_functional_sweep_cells(arguments))
    with common.command_progress_bar(arguments) as bar:
        _load_curve(bar)
        bar.show_text("making the table of baby steps")
        build, table = measuring.time_call(lambda: Table(arguments.table_bits))
        for cell in cells:
            table.check_bound(cell.bound)
        measured = []
        for i, cell in enumerate(cells):
            bar.update(i / len(cells), f"length {cell.length}, {cell.result_bits} bits")
            measured.append(measuring.measure_cell(cell, table, arguments.repeat))
        bar.show_text("logarithms by other means")
        widths = dict.fromkeys(cell.result_bits for cell in cells)
        others = [
            compared.compare_logarithms(
                _discrete_logarithm_cell(cells[0], bits), table, arguments.repeat
            )
            for bits in widths
        ]
    notes = (
        f"Table: 2^{table.log2} baby steps, {table.nbytes / 1e6:.1f} MB, made in {build:.2f} s.",
        "On: number of threads. Times are of one message (encrypt, unpack), one key, one result "
        "(product, log); decrypt is a result's part of all three.",
    )
    code = options.report_technology_measurements(
        arguments, measured, "Functional encryption", _COLUMNS, notes
    )
    if not others:
        return code
    title = "Logarithms: one table for all results, one for each, and a walk (modeled)"
    report_code = options.report_technology_measurements(
        arguments, others, title, _LOGARITHMS, _published_functional_notes()
    )
    return max(code, report_code)


def _discrete_logarithm_cell(cell: SweepCell, bits: int) -> SweepCell:
    return dataclasses.replace(cell, length=min(100, cell.length), result_bits=bits, batch=1)


def _published_functional_notes() -> tuple[str, ...]:
    from tfe_bench.benchmarks.technologies.functional.published import published_gpu_speed_up

    return (
        f"Published: a GPU's baby-step-giant-step is {published_gpu_speed_up()} times as fast as "
        "a CPU's with a "
        "table for each result (32 bits, vectors of 100, a group of 1024 bits).",
    )


def _measure_modular_group(arguments: argparse.Namespace) -> int:
    from tfe_bench.benchmarks.technologies.functional import compared

    compared.check_modulus_security(arguments.modulus, arguments.insecure_for_comparison)
    options.import_library("gmpy2", f"The group modulo a prime of {arguments.modulus} bits")
    length = arguments.length or (100 if arguments.quick else 784)
    check_range("--length", length, 1, 4096)
    check_range("--outputs", arguments.outputs, 1, 1024)
    check_range("--table-bits", arguments.table_bits, 4, 22)
    with common.command_progress_bar(arguments) as bar:
        _load_curve(bar)
        bar.show_text(f"inner products modulo {arguments.modulus} bits")
        measurement = compared.compare_modulus(
            arguments.modulus, length, arguments.outputs, arguments.table_bits
        )
    return options.report_technology_measurements(
        arguments, [measurement], "Modulo a prime, and on the curve", _MODULUS
    )


def _measure_encrypted_lenet(arguments: argparse.Namespace) -> int:
    from tfe_bench.benchmarks.technologies.functional import training

    batches = arguments.batches if arguments.batches is not None else 1 if arguments.quick else 4
    check_range("--batches", batches, 1, 150)
    common.quiet_tensorflow()
    with common.command_progress_bar(arguments) as bar:
        _load_curve(bar)
        measurement = training.measure_training(
            batches=batches,
            threads=arguments.threads or _count_processors(),
            allowed=arguments.allow_leakage,
            scheme_name=arguments.scheme,
            data=arguments.data_dir,
            epochs=0.1 if arguments.quick else 1.0,
            table_bits=arguments.table_bits,
            say=bar.show_text,
        )
    f = measurement.figures
    lines = [
        f"Leakage: {f['leakage']}. Least squares gives {f['pixels_recovered']:.1%} of the pixels "
        f"exactly; of {f['few_keys']} random keys, {f['few_keys_pixels_recovered']:.1%}.",
        f"Accuracy on {f['tested']} encrypted test pictures {f['accuracy']:.3f}, in the clear "
        f"{f['accuracy_in_the_clear']:.3f}; on all of them by the same whole numbers "
        f"{f['test_accuracy_of_whole_numbers']:.4f}, in the clear "
        f"{f['test_accuracy_in_the_clear']:.4f}.",
        f"Hours of all pictures and of an epoch are extrapolated (measured batches: {batches}).",
        *(
            f"Published (128 cores): {name}: {_describe_encryption_hours(e, t)}."
            for name, e, t in f["published_hours"]
        ),
    ]
    return options.report_technology_measurements(
        arguments, [measurement], "LeNet-5, first layer encrypted", _LENET, lines
    )


def _describe_encryption_hours(encryption: str, training: str) -> str:
    return f"training {training}" + ("" if encryption == "-" else f", encryption {encryption}")


def _estimate_encryption_energy(arguments: argparse.Namespace) -> int:
    from tfe_bench.benchmarks.technologies.measurement import Measurement

    option_values = {name: v for name in _ENERGY if (v := getattr(arguments, name)) is not None}
    inputs = energy.EnergyInputs(**option_values)
    sheet = dataclasses.asdict(energy.compute_energy_sheet(inputs))
    measurement = Measurement(
        technology="functional",
        job="energy",
        parameters=dataclasses.asdict(inputs),
        seconds=None,
        figures=sheet,
        modeled=tuple(sheet),
    )
    columns: Mapping[str, Any] = {
        "nodes replaced": _functional_figure_column("nodes_replaced", 1),
        "W saved": _functional_figure_column("saved_watts"),
        "times": _functional_figure_column("efficiency", 2),
        "kWh a year": _functional_figure_column("saved_kwh_year"),
        "$ a year": _functional_figure_column("saved_dollars_year"),
        "t CO2 a year": _functional_figure_column("saved_tons_co2_year", 1),
    }
    notes = [f"{name}: {value:,g}" for name, value in dataclasses.asdict(inputs).items()]
    return options.report_technology_measurements(
        arguments, [measurement], "Energy, modeled from:", columns, notes
    )


def _functional_figure_column(name: str, digits: int = 0) -> Any:
    return lambda m: f"{m.figures[name]:,.{digits}f}"


def _functional_seconds_column(name: str, factor: float = 1.0) -> Any:
    """Return a column of times, `factor` seconds per unit, in a suitable unit."""

    def format_time(m: Measurement) -> str:
        value = float(m.figures[name]) * factor
        for unit, size in (("h", 3600.0), ("s", 1.0), ("ms", 1e-3)):
            if value >= size:
                return f"{value / size:.3g} {unit}"
        return f"{value * 1e6:.3g} us"

    return format_time


def _functional_parameter_column(name: str) -> Any:
    return lambda m: str(m.parameters[name])


_COLUMNS: options.Columns = {
    "length": _functional_parameter_column("length"),
    "bits": _functional_parameter_column("result_bits"),
    "batch": _functional_parameter_column("batch"),
    "on": _functional_parameter_column("threads"),
    "encrypt": _functional_seconds_column("encrypt_seconds"),
    "key": _functional_seconds_column("derive_seconds"),
    "unpack": _functional_seconds_column("decode_seconds"),
    "product": _functional_seconds_column("evaluate_seconds"),
    "log": _functional_seconds_column("logarithm_seconds"),
    "decrypt": _functional_seconds_column("decrypt_seconds"),
}
_LOGARITHMS: options.Columns = {
    "bits": _functional_parameter_column("result_bits"),
    "one table": _functional_seconds_column("one_table_seconds"),
    "table each": _functional_seconds_column("table_per_output_seconds"),
    "walk": _functional_seconds_column("walk_seconds"),
    "over table each": lambda m: f"{m.figures['speed_up_over_table_per_output']:.3g}x",
    "over walk": lambda m: f"{m.figures['speed_up_over_walk']:.3g}x",
}
_MODULUS: options.Columns = {
    "group": lambda m: m.job,
    "security": lambda m: f"{m.parameters['security_bits']} bits",
    "encrypt": _functional_seconds_column("encrypt_seconds"),
    "decrypt": _functional_seconds_column("decrypt_seconds"),
    "curve: encrypt": _functional_seconds_column("curve_encrypt_seconds"),
    "decrypt there": _functional_seconds_column("curve_decrypt_seconds"),
    "encrypt ratio": lambda m: f"{m.figures['encrypt_ratio']:.3g}x",
    "decrypt ratio": lambda m: f"{m.figures['decrypt_ratio']:.3g}x",
}
_LENET: options.Columns = {
    "encrypt a picture": _functional_seconds_column("encrypt_seconds"),
    "batch of 64": _functional_seconds_column("batch_seconds"),
    "encrypt all": _functional_seconds_column("encrypt_all_hours", 3600),
    "epoch": _functional_seconds_column("epoch_hours", 3600),
    "epoch in the clear": _functional_seconds_column("plain_epoch_hours", 3600),
    "key rank": lambda m: f"{m.figures['key_rank']} of {m.figures['message_length']}",
}

COMMAND = Command(
    _add_functional_options,
    run_functional,
    examples=("functional --quick",),
    heading="other technologies",
    after="technologies",
)

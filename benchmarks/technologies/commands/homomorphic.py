"""`python -m tfe_bench homomorphic`: costs of homomorphic encryption by operation and job."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfe_bench.benchmarks.technologies.commands import options
from tfe_bench.cli import common
from tfe_bench.cli.command import Command
from tfe_bench.errors import ConfigError, UsageError, check_known, check_range

if TYPE_CHECKING:
    from tfe_bench.benchmarks.technologies.homomorphic.parameters import Parameters
    from tfe_bench.benchmarks.technologies.measurement import Measurement

_REPEAT = 10
_QUICK_REPEAT = 3
_SEED = 13
_IMAGES = 1000
_QUICK_IMAGES = 32
_MOST_SEED = 2**32 - 1


def _add_homomorphic_options(p: argparse.ArgumentParser) -> None:
    jobs = p.add_mutually_exclusive_group()
    common.add_option(
        jobs, "--dense", "measure a dense layer 784 -> 128 on encrypted vectors, also with TenSEAL"
    )
    common.add_option(jobs, "--network", "measure an MNIST network on encrypted pictures")
    common.add_option(
        jobs,
        "--advise JOB",
        "recommend a scheme for a job: its name, or words like exact,plain=128,rotate=16,depth=2",
    )
    common.add_option(p, "--scheme NAME,NAME", "schemes: BFV, BGV, CKKS (default: all)")
    common.add_option(
        p, "--degree N,N", "degrees N of the ring, 1024 to 32768 (default: 4096,8192,16384)"
    )
    common.add_option(
        p,
        "--primes BITS,BITS",
        "sizes of the modulus' primes in bits, the last for key switching (default: by degree)",
    )
    common.add_option(
        p, "--insecure-for-comparison", "permit parameters of less than 128 bits of security"
    )
    common.add_option(
        p, "--quick", "use N = 4096 and 8192, fewer runs, and 32 pictures for the network"
    )
    common.add_option(
        p, "--images N", f"number of pictures of --network (default: {_IMAGES})", type=int
    )
    common.add_option(
        p, "--data-dir FOLDER", "folder of the four IDX files of MNIST (default: the file of Keras)"
    )
    common.add_option(
        p,
        "--seed S",
        f"seed of values and training, not of keys (default: {_SEED})",
        type=int,
        default=_SEED,
    )
    options.add_technology_options(p, _REPEAT)


def run_homomorphic(arguments: argparse.Namespace) -> int:
    """Measure homomorphic encryption: its operations, a dense layer, a network.

    Times every operation of BFV, BGV and CKKS and compares with a published table, with sizes,
    noise and security; or times a dense layer or an MNIST network on encrypted inputs. Every
    result is decrypted and compared with plaintext.
    """
    options.check_technology_options(arguments)
    check_range("--seed", arguments.seed, 0, _MOST_SEED)
    jobs = [name for name in ("dense", "network") if getattr(arguments, name)]
    table_only = {"scheme": "--scheme", "primes": "--primes"}
    for name, option in table_only.items():
        if jobs and getattr(arguments, name) is not None:
            raise UsageError(
                f"{option} goes with the table of operations, without --{jobs[0]}.",
                code="conflicting-options",
                operation=option,
                received=f"--{jobs[0]}",
            )
    for name in ("images", "data_dir"):
        if getattr(arguments, name) is not None and not arguments.network:
            raise UsageError(
                f"--{name.replace('_', '-')} goes with --network.",
                code="option-requires-option",
                operation=f"--{name.replace('_', '-')}",
                expected="--network",
            )
    if arguments.dense:
        return _measure_homomorphic_dense(arguments)
    return (
        _measure_homomorphic_network(arguments)
        if arguments.network
        else _measure_homomorphic_operations(arguments)
    )


# ---- the table of operations


def _measure_homomorphic_operations(arguments: argparse.Namespace) -> int:
    from tfe_bench.benchmarks.technologies.homomorphic import advice, operations, published

    chosen = _list_homomorphic_parameters(arguments)
    work = None if arguments.advise is None else advice.CiphertextWork.parse_work(arguments.advise)
    repeat = min(arguments.repeat, _QUICK_REPEAT) if arguments.quick else arguments.repeat
    measured: list[Measurement] = []
    ends = []
    with common.command_progress_bar(arguments) as bar:
        for done, parameters in enumerate(chosen):
            words = f"{parameters.scheme}, N = {parameters.degree}"
            bar.update(done / len(chosen), words)
            measured += operations.measure_scheme_operations(parameters, repeat, arguments.seed)
            ends.append(measured[-1])
    notes = []
    for parameters, last in zip(chosen, ends, strict=True):
        notes += [
            _describe_homomorphic_parameters(parameters),
            _describe_ciphertext_sizes(last.figures),
        ]
    notes.append(
        "ratio: the published figure divided by ours. noise: the remaining bits of the noise "
        "budget, or for CKKS the largest error."
    )
    ratios = [r for m in measured if (r := m.figures.get("published_ratio")) is not None]
    if ratios:
        mean = statistics.geometric_mean(ratios)
        notes += [published.DEBUG_BUILD, f"Here the geometric mean is {mean:.0f}."]
    if any("published_suspect" in each.figures for each in measured):
        notes.append(published.DEFECT)
    notes += _ciphertext_rotation_notes(measured)
    if work is not None:
        notes += ["", f"For {arguments.advise}:", *advice.write_advice(work, measured)]
    title = f"Operations of homomorphic encryption (seed {arguments.seed})"
    return options.report_technology_measurements(
        arguments, measured, title, _homomorphic_operation_columns(), notes
    )


def _list_homomorphic_parameters(arguments: argparse.Namespace) -> list[Parameters]:
    from tfe_bench.benchmarks.technologies.homomorphic import parameters

    schemes = list(dict.fromkeys(_split_option_values(arguments.scheme))) or list(
        parameters.SCHEMES
    )
    for name in schemes:
        check_known("scheme", name, parameters.SCHEMES)
    usual = parameters.DEGREES[:2] if arguments.quick else parameters.DEGREES
    degrees = _parse_polynomial_degrees(arguments) or list(usual)
    bits = [
        _parse_option_number("--primes", n) for n in _split_option_values(arguments.primes)
    ] or None
    insecure = arguments.insecure_for_comparison
    return [
        parameters.choose_scheme_parameters(scheme, degree, bits, insecure)
        for degree in degrees
        for scheme in schemes
    ]


def _split_option_values(text: str | None) -> list[str]:
    return [] if text is None else [word.strip() for word in text.split(",")]


def _parse_polynomial_degrees(arguments: argparse.Namespace) -> list[int]:
    return list(
        dict.fromkeys(
            _parse_option_number("--degree", n) for n in _split_option_values(arguments.degree)
        )
    )


def _parse_option_number(option: str, text: str) -> int:
    try:
        return common.parse_whole_number(text)
    except argparse.ArgumentTypeError as error:
        raise UsageError(
            f"{option}: {error}", code="not-whole", operation=option, received=text
        ) from error


def _describe_homomorphic_parameters(parameters: Parameters) -> str:
    security = parameters.security_bits
    granted = f"{security} bits of security" if security else "LESS THAN 128 BITS OF SECURITY"
    precision_name = "scale" if parameters.scheme == "CKKS" else "plaintext modulus"
    return (
        f"{parameters.scheme}, N = {parameters.degree}: {granted}; primes of "
        f"{', '.join(map(str, parameters.prime_bits))} bits, {precision_name} "
        f"2^{parameters.precision_bits}."
    )


def _describe_ciphertext_sizes(figures: Mapping[str, Any]) -> str:
    from tfe_bench.benchmarks.table import human_bytes

    named = {
        "a ciphertext": "fresh_ciphertext_bytes",
        "the key for products": "relinearization_key_bytes",
        "all rotation keys": "rotation_keys_bytes",
        "memory at the most": "peak_memory_bytes",
    }
    sizes = ", ".join(f"{words} {human_bytes(figures[name])}" for words, name in named.items())
    return f"  Sizes: {sizes}."


def _ciphertext_rotation_notes(measured: Sequence[Measurement]) -> list[str]:
    from tfe_bench.benchmarks.table import human_seconds
    from tfe_bench.benchmarks.technologies.homomorphic.operations import BY_N, STEPS

    lines = []
    for measurement in measured:
        if measurement.job == BY_N and measurement.seconds is not None:
            one_by_one = measurement.figures["rotations_by_1_seconds"]
            lines.append(
                f"{measurement.parameters['scheme']}, N = {measurement.parameters['degree']}: a "
                f"rotation by {STEPS} takes {human_seconds(measurement.seconds.median)} with keys "
                f"for powers of two, {human_seconds(one_by_one)} one by one, "
                f"{human_seconds(measurement.figures['own_key_seconds'])} with a key of its own."
            )
    return lines


def _homomorphic_operation_columns() -> Mapping[str, Callable[[Measurement], str]]:
    from tfe_bench.benchmarks.table import format_three_digits, human_seconds

    def format_seconds(value: float | None) -> str:
        return "-" if value is None else human_seconds(value)

    def format_noise(m: Measurement) -> str:
        if not m.correct:
            return "WRONG"
        if "noise_budget_bits" in m.figures:
            return f"{m.figures['noise_budget_bits']} bits"
        if "max_abs_error" in m.figures:
            return f"{m.figures['max_abs_error']:.1e}"
        return f"{m.figures['depth']} deep" if "depth" in m.figures else "-"

    def format_ratio(m: Measurement) -> str:
        if "published_ratio" not in m.figures:
            return "-"
        suspect = "?" if "published_suspect" in m.figures else ""
        return f"{format_three_digits(m.figures['published_ratio'])}x{suspect}"

    return {
        "scheme, N": lambda m: f"{m.parameters['scheme']} {m.parameters['degree']}",
        "operation": lambda m: m.job,
        "median": lambda m: format_seconds(m.seconds.median if m.seconds else None),
        "p95": lambda m: format_seconds(m.figures.get("p95_seconds")),
        "ratio": format_ratio,
        "noise": format_noise,
    }


# ---- jobs


def _measure_homomorphic_dense(arguments: argparse.Namespace) -> int:
    from tfe_bench.benchmarks.technologies.homomorphic import jobs, tenseal

    if arguments.degree is not None:
        raise UsageError(
            "--dense runs at N = 8192; --degree goes with the table and --network.",
            code="option-not-applicable",
            operation="--degree",
            received="--dense",
        )
    notes = [_describe_homomorphic_parameters(jobs.LINEAR)]
    measured = []
    with common.command_progress_bar(arguments) as bar:
        for done, batch in enumerate((1, 64)):
            bar.update(done / 3, f"784 -> 128, batch {batch}")
            measured.append(jobs.run_homomorphic_dense(batch, arguments.quick))
        notes += [_format_encryption_throughput(each) for each in measured]
        bar.update(2 / 3, "TenSEAL")
        try:
            measured.append(theirs := tenseal.run_tenseal_dense())
        except ConfigError:
            notes.append("TenSEAL is not installed: pip install tenseal, to compare with it.")
        else:
            ratio = theirs.figures["evaluate_seconds"] / measured[0].figures["evaluate_seconds"]
            notes.append(f"The server's part takes TenSEAL {ratio:.0f} times as long, batch 1.")
    return options.report_technology_measurements(
        arguments,
        measured,
        "A dense layer 784 -> 128, encrypted",
        _homomorphic_job_columns(),
        notes,
    )


def _format_encryption_throughput(m: Measurement) -> str:
    from tfe_bench.benchmarks.table import format_three_digits, human_seconds

    parts = ", ".join(
        f"{part} {human_seconds(m.figures[f'{part}_seconds'])}"
        for part in ("setup", "encrypt", "evaluate", "decrypt")
    )
    each = format_three_digits(m.figures["throughput_per_second"])
    return f"Batch {m.parameters['batch']}: {parts}; {each} a second in one process."


def _measure_homomorphic_network(arguments: argparse.Namespace) -> int:
    from tfe_bench.benchmarks.technologies.homomorphic import accuracy, network

    common.quiet_tensorflow()
    count = arguments.images
    if count is None:
        count = _QUICK_IMAGES if arguments.quick else _IMAGES
    degrees = _parse_polynomial_degrees(arguments) or [16384]
    for degree in degrees:
        network.choose_network_parameters(degree)
    folder: Path | None = arguments.data_dir
    measured = []
    with common.command_progress_bar(arguments) as bar:
        for degree in degrees:
            measured.append(
                accuracy.measure_encrypted_accuracy(
                    count, bar.update, folder=folder, degree=degree, seed=arguments.seed
                )
            )
    notes = [
        _describe_homomorphic_parameters(network.choose_network_parameters(degree))
        for degree in degrees
    ]
    for measurement in measured:
        figures = measurement.figures
        notes.append(
            f"N = {measurement.parameters['degree']}: {100 * figures['accuracy']:.2f} % right of "
            f"{count} encrypted pictures, {100 * figures['accuracy_plaintext']:.2f} % in "
            f"plaintext; the same answer for {100 * figures['agreement']:.2f} %. Trained in "
            f"{figures['training_seconds']:.0f} s from seed {arguments.seed}. "
            f"{measurement.parameters['processes']} processes, "
            f"{figures['throughput_per_second']:.3g} pictures a second."
        )
    return options.report_technology_measurements(
        arguments, measured, "A network of MNIST, encrypted", _homomorphic_job_columns(), notes
    )


def _homomorphic_job_columns() -> Mapping[str, Callable[[Measurement], str]]:
    from tfe_bench.benchmarks.table import human_bytes, human_seconds

    def figure_column(name: str, show: Callable[[Any], str]) -> Callable[[Measurement], str]:
        return lambda m: show(m.figures[name]) if name in m.figures else "-"

    def batch_cell(m: Measurement) -> str:
        return str(m.parameters.get("batch", m.parameters.get("images", "-")))

    return {
        "job": lambda m: m.job,
        "batch": batch_cell,
        "time": lambda m: human_seconds(m.seconds.median) if m.seconds else "-",
        "up": figure_column("bytes_up", human_bytes),
        "down": figure_column("bytes_down", human_bytes),
        "keys": figure_column("key_bytes", human_bytes),
        "error": lambda m: f"{m.figures['max_abs_error']:.1e}" if m.correct else "WRONG",
    }


COMMAND = Command(
    _add_homomorphic_options,
    run_homomorphic,
    examples=("homomorphic --quick",),
    heading="other technologies",
    after="functional",
)

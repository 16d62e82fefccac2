"""`python -m tfe_bench baselines`: run a workload on other systems on this machine."""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfe_bench.cli import common
from tfe_bench.errors import UsageError, check_known

if TYPE_CHECKING:
    from tfe_bench.benchmarks.baselines.base import (
        Baseline,
        BaselineRequest,
        BaselineResult,
        UnavailableBaseline,
    )
    from tfe_bench.benchmarks.records import Record

_WORKLOADS = ("sort", "max", "relu", "matmul", "softmax", "train", "join")
_BASELINES = ("spu", "tf-encrypted", "mp-spdz")


def _add_baseline_options(p: argparse.ArgumentParser) -> None:
    p.add_argument("workload", metavar="WORKLOAD", help=f"workload: {', '.join(_WORKLOADS)}")
    common.add_option(
        p,
        "--n N",
        "number of elements, of rows of 4 (max) or 10 (softmax), of rows and columns (matmul), of "
        "rows in a batch of network A (train), or of rows of each table (default: 1024)",
        type=int,
        default=1024,
    )
    common.add_option(p, "--baseline NAME,NAME", f"systems: {', '.join(_BASELINES)} (default: all)")
    p.add_argument("--peer", dest="baseline", help=argparse.SUPPRESS)  # its former name
    common.add_option(p, "--spu-env DIR", "virtual environment with SPU (default: none)")
    common.add_option(
        p, "--install", "create --spu-env if it is missing, and pip install spu there"
    )
    common.add_option(
        p, "--tf-encrypted-env DIR", "virtual environment with tf-encrypted (default: none)"
    )
    common.add_option(p, "--mp-spdz DIR", "build folder of MP-SPDZ (default: none)")
    common.add_option(p, "--profile NAME", "network profile (default: local)", default="local")
    common.add_option(p, "--repeat R", "number of timed runs (default: 3)", type=int, default=3)
    common.add_option(
        p,
        "--timeout S",
        "time limit of one system in seconds (default: 600)",
        type=float,
        default=600.0,
    )
    common.add_option(p, "--json", "print only one JSON object")


def run_baselines(arguments: argparse.Namespace) -> int:
    """Run the same workload on other systems and print the ratio of times.

    Runs a workload with tfe_bench and with other systems, each in its own environment on this
    machine, and prints the times side by side. A missing system is reported, never estimated.
    """
    from tfe_bench.benchmarks.baselines.base import BaselineRequest, BaselineResult

    request = BaselineRequest(
        arguments.workload,
        arguments.n,
        arguments.repeat,
        arguments.profile,
        arguments.timeout,
    )
    chosen = _choose_baselines(arguments)
    results: dict[str, Any] = {}
    with common.command_progress_bar(arguments) as bar:
        bar.show_text("tfe_bench")
        ours = _measure_ours(arguments, request, bar)
        for baseline in chosen:
            bar.show_text(baseline.name)
            results[baseline.name] = baseline.find_obstacle() or baseline.run(request)
    if arguments.json:
        print(json.dumps(_baselines_to_json(arguments.command, ours, results)))
    else:
        _print_baselines(request, ours, results)
    wrong = [r for r in results.values() if isinstance(r, BaselineResult) and r.correct is False]
    return 1 if wrong or ours.correct is False else 0


def _choose_baselines(arguments: argparse.Namespace) -> list[Baseline]:
    from tfe_bench.benchmarks.baselines.mp_spdz import MpSpdz
    from tfe_bench.benchmarks.baselines.spu import Spu
    from tfe_bench.benchmarks.baselines.tf_encrypted import TfEncrypted

    baselines: dict[str, Baseline] = {
        "spu": Spu(arguments.spu_env, arguments.install),
        "tf-encrypted": TfEncrypted(arguments.tf_encrypted_env),
        "mp-spdz": MpSpdz(arguments.mp_spdz),
    }
    if arguments.install and arguments.spu_env is None:
        raise UsageError(
            "--install requires --spu-env. Received: no --spu-env. Add --spu-env DIR.",
            code="option-requires-option",
            operation="--install",
            expected="--spu-env",
        )
    if arguments.baseline is None:
        return list(baselines.values())
    names = list(dict.fromkeys(name.strip() for name in arguments.baseline.split(",")))
    for name in names:
        check_known("baseline", name, baselines)
    return [baselines[name] for name in names]


def _measure_ours(arguments: argparse.Namespace, request: BaselineRequest, bar: Any) -> Record:
    """Measure the workload with the command of this project and return its record."""
    from tfe_bench.benchmarks import records

    with tempfile.TemporaryDirectory(prefix="tfe_bench-") as folder:
        file = Path(folder) / "record.jsonl"
        words = [*_own_command(request, Path(folder)), "--profile", request.profile]
        common.run_nested_command(arguments, words, file, bar)
        return records.read_records(file)[-1]


def _own_command(request: BaselineRequest, folder: Path) -> list[str]:
    """Return the command line of the workload; a training reads its images from the folder."""
    n, repeat = request.n, ["--repeat", str(request.repeat)]
    if request.workload == "max":
        return ["max", "--shape", f"{n}x4", *repeat]
    if request.workload == "softmax":
        return ["softmax", "--shape", f"{n}x10", *repeat]
    if request.workload == "join":
        return ["relational", "join", "--rows", str(n), *repeat]
    if request.workload == "train":
        from tfe_bench.benchmarks.baselines import base

        base.write_training_images(folder, n)
        # the first step, which builds the graph, is not timed
        steps = str(request.repeat + 1)
        words = ["train", "network-a", "--batch", str(n), "--steps", steps, "--epochs", steps]
        return [*words, "--data-dir", str(folder), "--discard"]
    return [request.workload, "--n", str(n), *repeat]


def _baselines_to_json(
    command: str, ours: Record, results: dict[str, BaselineResult | UnavailableBaseline]
) -> dict[str, Any]:
    from dataclasses import asdict

    return {
        "ours": json.loads(ours.to_json()),
        command: {name: asdict(result) for name, result in results.items()},
    }


def _print_baselines(
    request: BaselineRequest, ours: Record, results: dict[str, BaselineResult | UnavailableBaseline]
) -> None:
    from rich.console import Console
    from rich.text import Text

    from tfe_bench.benchmarks.baselines.base import UnavailableBaseline
    from tfe_bench.benchmarks.table import (
        align_columns,
        format_three_digits,
        human_bytes,
        human_seconds,
        print_within,
    )

    console = Console()
    median = ours.seconds.median
    tls = "TLS" if ours.tls else "no TLS"
    sent = human_bytes(sum(ours.bytes_sent)) if ours.bytes_sent else "-"
    rows = [("system", "time", "theirs/ours", "sent", "right")]
    right = {True: "yes", False: "NO", None: "not checked"}
    rows.append(("tfe_bench", human_seconds(median), "-", sent, right[ours.correct]))
    notes = [
        f"tfe_bench: three processes, gRPC, {tls}, profile {ours.profile}; inputs and outputs "
        "not counted."
    ]
    for name, result in results.items():
        if isinstance(result, UnavailableBaseline):
            rows.append((name, "-", "-", "-", result.reason))
            continue
        theirs = statistics.median(result.seconds)
        ratio = f"{format_three_digits(theirs / median)}x" if median > 0 else "-"
        count = human_bytes(result.bytes_sent) if result.bytes_sent is not None else "-"
        rows.append((name, human_seconds(theirs), ratio, count, right[result.correct]))
        notes.append(f"{name} {result.version}: {result.setting}.")
    print_within(
        console, Text(f"{request.workload}, n = {request.n:,}, {request.profile}"), console.width
    )
    for line in [*align_columns(rows, (1, 2, 3)), *notes]:
        print_within(console, Text(line), console.width)


COMMANDS = {
    "baselines": (_add_baseline_options, run_baselines),
    "peers": (_add_baseline_options, run_baselines),
}

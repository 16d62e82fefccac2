"""`python -m tfe_bench submit|status|cancel`: a client's jobs on three hosts."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfe_bench.cli import common
from tfe_bench.errors import TfeBenchError, UsageError

if TYPE_CHECKING:
    from tfe_bench.cluster.client import Client
    from tfe_bench.cluster.requests import JobResult, PrivateInput

_SHOWN = 5


def _add_submit_options(p: argparse.ArgumentParser) -> None:
    p.add_argument("program", metavar="PROGRAM", help="name of a program that the workers have")
    _add_job_cluster_options(p)
    common.add_option(
        p,
        "--param K=V",
        "parameter of the program; V is JSON (12, true, [1,2]) or else a text; may be repeated",
        action="append",
        default=[],
    )
    common.add_option(
        p,
        "--input NAME=FILE",
        "private input from a .npy or .csv file (FILE#COLUMN selects a column of a .csv); "
        "may be repeated, in the program's order",
        action="append",
        default=[],
    )
    common.add_option(p, "--output FILE", "write the results to a file (.npz)")
    common.add_sealed_option(p)


def _add_cancel_options(p: argparse.ArgumentParser) -> None:
    p.add_argument(
        "job",
        metavar="JOB",
        help="name of the job or its first digits, at least 4, as `status` prints it",
    )
    _add_job_cluster_options(p)


def _add_job_cluster_options(p: argparse.ArgumentParser) -> None:
    common.add_cluster_options(p, required=True)
    common.add_option(p, "--json", "print only JSON")


def run_submit(arguments: argparse.Namespace) -> int:
    """Run any installed program on three hosts.

    Shares inputs among three workers and waits in their queue for the results. The workers send
    the results over this command's connections. If the command ends early, for example by Ctrl-C,
    all workers cancel the job.
    """
    from tfe_bench.cluster.client import new_job
    from tfe_bench.cluster.config import ClusterConfig

    parameters = dict(_parse_job_parameter(text) for text in arguments.param)
    if arguments.output is not None:
        common.check_output_path(arguments.output, (".npz",), "The results")
    fractional_bits = ClusterConfig.load(arguments.cluster).fractional_bits
    inputs: dict[str, PrivateInput] = {}
    for text in arguments.input:
        name, value = _parse_job_input(text, fractional_bits)
        if name in inputs:
            raise UsageError(
                f"Expected one --input for each name. Received: {name} twice.",
                code="duplicate-name",
                operation="--input",
                received=name,
            )
        inputs[name] = value
    job = new_job()
    last_text, quiet = "", arguments.json or sys.stderr.isatty()

    with _open_job_client(arguments) as client, common.command_progress_bar(arguments) as bar:

        def print_progress(fraction: float, text: str) -> None:
            nonlocal last_text
            bar.update(fraction, text)
            if text.startswith("waiting") and text != last_text and not quiet:
                last_text = text
                print(f"job {job[:12]} is {text}", file=sys.stderr)

        common.set_opening_rules(client, arguments)
        bar.show_text("connecting to the workers")
        client.wait_ready()
        bar.show_text("sharing the inputs")
        if not arguments.json:
            print(f"job {job[:12]} submitted", file=sys.stderr)
        result = client.run(arguments.program, parameters, inputs, print_progress, job)
    _output_job_result(arguments, job, result)
    return 0


def _parse_job_parameter(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise UsageError(
            f"Expected K=V in --param. Received: {text!r}.",
            code="malformed-option",
            operation="--param",
            expected="K=V",
        )
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def _parse_job_input(text: str, fractional_bits: int) -> tuple[str, PrivateInput]:
    from tfe_bench.cli.data import columns
    from tfe_bench.cluster.requests import PrivateInput
    from tfe_bench.protocols.session.fixedpoint import FixedPoint

    name, equals, path = text.partition("=")
    if not equals or not name or not path:
        raise UsageError(
            f"Expected NAME=FILE or NAME=FILE#COLUMN in --input. Received: {text!r}.",
            code="malformed-option",
            operation="--input",
            expected="NAME=FILE",
        )
    file, mark, column = path.rpartition("#")
    if not mark or Path(path).is_file():
        file, column = path, ""
    loaded_column = columns.load_data_column(file, column or None)
    # Integers are exact; reals are in the cluster's fixed point.
    bits = fractional_bits if loaded_column.values.dtype.kind == "f" else 0
    with columns.name_csv_positions(file, [loaded_column.name]):
        ring = FixedPoint(bits).encode(loaded_column.values)
    return name, PrivateInput(ring, bits)


def _decode_job_outputs(result: JobResult) -> dict[str, Any]:
    from tfe_bench.protocols.session.fixedpoint import FixedPoint

    decoded = {}
    for name, ring in result.outputs.items():
        bits, limbs = result.fractional_bits[name], result.limbs[name]
        exact = bits == 0 and limbs == 1
        decoded[name] = ring if exact else FixedPoint(bits, 64 * limbs).decode(ring)
    return decoded


def _output_job_result(arguments: argparse.Namespace, job: str, result: JobResult) -> None:
    import numpy as np

    from tfe_bench.cluster.files import write_secret_file

    outputs = _decode_job_outputs(result)
    if arguments.output is not None:
        buffer = io.BytesIO()
        np.savez(buffer, **outputs)
        write_secret_file(arguments.output, buffer.getvalue(), overwrite=True)
    if arguments.json:
        shown = {} if arguments.output else {k: v.tolist() for k, v in outputs.items()}
        shapes = {k: list(v.shape) for k, v in outputs.items()}
        summary = {"job": job, "shapes": shapes, "outputs": shown, "measured": result.measured}
        summary["opened"] = common.encode_opened_values(result.opened)
        print(json.dumps(summary))
        return
    for name, value in outputs.items():
        line = f"{name}  {list(value.shape)} {value.dtype}"
        if arguments.output is None:
            first = ", ".join(str(x) for x in value.reshape(-1)[:_SHOWN].tolist())
            line += f"  {first}{', ...' if value.size > _SHOWN else ''}"
        print(line)
    if arguments.output is not None:
        print(f"written to {arguments.output}")
    elif not outputs:
        print("done (the program reveals nothing; --json shows what it measured)")


def run_status(arguments: argparse.Namespace) -> int:
    """List this client's jobs on three hosts.

    Lists running and queued jobs of this client, and the number of other clients' jobs.
    """
    with _open_job_client(arguments) as client:
        answers = client.status()
    silent = [a for a in answers if isinstance(a, TfeBenchError)]
    if arguments.json:
        answer_rows = [{"error": str(a)} if isinstance(a, TfeBenchError) else a for a in answers]
        print(json.dumps(answer_rows))
    else:
        _print_job_status(answers)
    for error in silent:
        print(f"tfe_bench: {type(error).__name__}: {error}", file=sys.stderr)
    return max((error.exit_code for error in silent), default=0)


def _print_job_status(answers: list[dict[str, Any] | TfeBenchError]) -> None:
    from rich.console import Console
    from rich.table import Table

    # Party 0 decides the order of jobs for all; if it does not answer, use another party's list.
    answer = next((a for a in answers if isinstance(a, dict)), None)
    if answer is None:
        return
    table = Table("job", "program", "client", "state", "before", "age")
    for job in answer["jobs"]:
        seconds = job["age"] if job["running"] is None else job["running"]
        state = (
            job["state"] if job["running"] is None else f"running {_format_job_duration(seconds)}"
        )
        before = str(job["before"]) if job["state"] == "waiting" else ""
        name, age = str(job["job"])[:12], _format_job_duration(job["age"])
        table.add_row(name, str(job["program"]), str(job["client"]), state, before, age)
    console = Console()
    if answer["jobs"]:
        console.print(table)
    else:
        console.print("no job of this client runs or waits")
    running = "one runs" if answer["others_running"] else "none runs"
    console.print(f"other clients' jobs: {running}, {answer['others_waiting']} wait")
    for p, each in enumerate(answers):
        up = (
            f"up {_format_job_duration(each['uptime'])}"
            if isinstance(each, dict)
            else "does not answer"
        )
        console.print(f"party {p}: {up}")


def _format_job_duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"


def run_cancel(arguments: argparse.Namespace) -> int:
    """Cancel one of this client's jobs."""
    if len(arguments.job) < 4:
        raise UsageError(
            f"Expected at least 4 digits of a job's name in JOB. Received: {arguments.job!r}.",
            code="malformed-option",
            operation="JOB",
        )
    with _open_job_client(arguments) as client:
        client.cancel(arguments.job)
    if arguments.json:
        print(json.dumps({"cancelled": arguments.job}))
    else:
        print(f"job {arguments.job[:12]} is cancelled")
    return 0


def _open_job_client(arguments: argparse.Namespace) -> contextlib.closing[Client]:
    from tfe_bench.cluster.client import Client

    return contextlib.closing(Client.open(arguments.cluster, arguments.client))


COMMANDS = {
    "submit": (_add_submit_options, run_submit),
    "status": (_add_job_cluster_options, run_status),
    "cancel": (_add_cancel_options, run_cancel),
}

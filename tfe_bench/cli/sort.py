"""`python -m tfe_bench sort`: sort private keys on three workers, and print what it cost."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfe_bench.cli.common import (
    add_plan_option,
    add_run_options,
    harness_parameters,
    open_cluster,
    planned_network,
    progress_bar,
    report,
)
from tfe_bench.errors import UsageError

if TYPE_CHECKING:
    import numpy as np

    from tfe_bench.cluster.client import JobResult

ALGORITHMS = ("auto", "quick", "all-pairs", "network")
_FRACTIONAL_BITS = 16


def add_parser(commands: Any) -> None:
    """Adds the command."""
    p = commands.add_parser(
        "sort",
        help="sort private keys",
        description="Shares keys among three workers, sorts them without any worker seeing them, "
        "checks the result against numpy and prints what it cost.",
    )
    p.add_argument("--n", type=int, metavar="N", help="generate N keys (default 1024)")
    p.add_argument(
        "--kind",
        default="int64",
        choices=("int64", "few", "float", "sorted", "reversed"),
        help="which keys to generate (default: int64, full range)",
    )
    p.add_argument("--seed", type=int, default=1, help="of the generated keys (default 1)")
    p.add_argument("--input", type=Path, metavar="FILE", help="sort a .csv or .npy file instead")
    p.add_argument("--column", metavar="C", help="which column of it: a name or a 0-based index")
    p.add_argument(
        "--payload", metavar="C,C", help="numeric columns of the .csv that move with the keys"
    )
    p.add_argument("--output", type=Path, metavar="FILE", help="write the result (.csv or .npy)")
    p.add_argument("--algorithm", default="auto", metavar="NAME", help=", ".join(ALGORITHMS))
    add_plan_option(p, "auto and quick plan")
    p.add_argument("--descending", action="store_true", help="largest first")
    add_run_options(p)
    p.set_defaults(run=run)


@dataclass(frozen=True)
class _Work:
    """What is to be sorted: ring elements and how they came about."""

    ring: np.ndarray[Any, Any]
    original: np.ndarray[Any, Any]
    fractional_bits: int
    name: str
    source: str
    payload: dict[str, np.ndarray[Any, Any]]


def run(arguments: argparse.Namespace) -> int:
    """Runs the command."""
    from tfe_bench.benchmarks import data
    from tfe_bench.cluster.client import PrivateInput
    from tfe_bench.errors import did_you_mean

    if arguments.algorithm not in ALGORITHMS:
        raise UsageError(
            f"Unknown --algorithm {arguments.algorithm!r}."
            f"{did_you_mean(arguments.algorithm, ALGORITHMS)} Known: {', '.join(ALGORITHMS)}."
        )
    arguments.plan_for = planned_network(arguments)
    if arguments.output:
        data.check_result_path(arguments.output)
    work = _work(arguments)
    if arguments.output:
        _check_output(arguments.output, work)
    inputs = {"keys": PrivateInput(work.ring, work.fractional_bits)}
    inputs.update({f"payload:{name}": _encoded(column) for name, column in work.payload.items()})
    parameters = {
        "algorithm": arguments.algorithm,
        "descending": arguments.descending,
        **harness_parameters(arguments),
        "profile": arguments.plan_for,
    }
    with progress_bar(arguments) as bar, open_cluster(arguments, bar) as cluster:
        result = cluster.run("sort", parameters, inputs, bar.update)
    correct, error = _check(work, arguments.descending, result)
    if arguments.output:
        _write(arguments.output, work, result)
    shown = {
        "n": int(work.ring.size),
        "keys": "fixed point" if work.fractional_bits else "int64",
        "source": work.source,
        "algorithm": arguments.algorithm,
        "descending": arguments.descending,
    }
    if arguments.plan_for != "local":
        shown["plan_for"] = arguments.plan_for
    if work.ring.ndim == 2:
        shown["rows"] = int(work.ring.shape[0])
    if work.payload:
        shown["payload"] = len(work.payload)
    report("sort", arguments, cluster, result, shown, correct, error, work.fractional_bits)
    return 0 if correct else 1


def _work(arguments: argparse.Namespace) -> _Work:
    from tfe_bench.benchmarks import data
    from tfe_bench.cluster.policy import DEFAULT_MAX_ELEMENTS

    payload: dict[str, Any] = {}
    if arguments.input is None:
        for option in ("column", "payload"):
            if getattr(arguments, option) is not None:
                raise UsageError(f"--{option} goes with --input. Received: no --input.")
        n = 1024 if arguments.n is None else arguments.n
        if n < 0:
            raise UsageError(f"--n is 0 or more. Received: {n}.")
        if n > DEFAULT_MAX_ELEMENTS and arguments.cluster is None:
            raise UsageError(
                f"--n is at most {DEFAULT_MAX_ELEMENTS} on three local workers. Received: {n}."
            )
        try:
            values = data.generate(n, arguments.seed, arguments.kind)
        except (MemoryError, OverflowError, ValueError):
            raise UsageError(
                f"--n is more keys than this machine's memory holds. Received: {n}."
            ) from None
        name, source = "key", f"{arguments.kind}, seed {arguments.seed}"
    else:
        if arguments.n is not None:
            raise UsageError("--n and --input exclude each other. Received: both.")
        column = data.load_column(arguments.input, arguments.column)
        values, name, source = column.values, column.name, arguments.input.name
        if arguments.payload:
            names = [c.strip() for c in arguments.payload.split(",")]
            payload = data.load_table(arguments.input, names)
    encoded = _encoded(values)
    return _Work(encoded.ring, values, encoded.fractional_bits, name, source, payload)


def _encoded(values: Any) -> Any:
    """Integers exactly, reals in fixed point."""
    from tfe_bench.cluster.client import PrivateInput
    from tfe_bench.protocols.fixedpoint import FixedPoint

    bits = _FRACTIONAL_BITS if values.dtype.kind == "f" else 0
    return PrivateInput(FixedPoint(bits).encode(values), bits)


def _decoded(ring: Any, fractional_bits: int) -> Any:
    from tfe_bench.protocols.fixedpoint import FixedPoint

    return FixedPoint(fractional_bits).decode(ring) if fractional_bits else ring


def _check(work: _Work, descending: bool, result: JobResult) -> tuple[bool, float]:
    """Against numpy's stable sort: keys, positions, payload; and the error of the encoding."""
    import numpy as np

    order = np.argsort(~work.ring if descending else work.ring, axis=-1, kind="stable")
    outputs = result.outputs
    correct = np.array_equal(outputs["keys"], np.take_along_axis(work.ring, order, -1))
    correct = correct and np.array_equal(outputs["indices"], order)
    for name, column in work.payload.items():
        encoded = _encoded(column).ring
        correct = correct and np.array_equal(
            outputs[f"payload:{name}"], np.take_along_axis(encoded, order, -1)
        )
    if not work.fractional_bits or work.ring.size == 0:
        return correct, 0.0
    exact = np.take_along_axis(work.original, order, -1)
    error = np.abs(_decoded(outputs["keys"], work.fractional_bits) - exact).max()
    return correct, float(error)


def _check_output(path: Path, work: _Work) -> None:
    """Refuses before the sort what `data.write_table` would refuse after it."""
    kinds = {"f" if work.fractional_bits else "i", *(c.dtype.kind for c in work.payload.values())}
    if path.suffix.lower() == ".npy" and len(kinds) > 1:
        raise UsageError(
            "A .npy file has one type. Received: integers and reals; write a .csv instead."
        )


def _write(path: Path, work: _Work, result: JobResult) -> None:
    from tfe_bench.benchmarks import data

    keys = _decoded(result.outputs["keys"], work.fractional_bits)
    if not work.payload:
        data.write_result(path, keys, work.name)
        return
    table = {work.name: keys}
    for name, column in work.payload.items():
        bits = _encoded(column).fractional_bits
        table[name] = _decoded(result.outputs[f"payload:{name}"], bits)
    data.write_table(path, table)

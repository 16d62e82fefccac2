"""`python -m tfe_bench matmul`: the product of two private matrices, and its cost."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from tfe_bench.cli import common, job_record
from tfe_bench.errors import check_range

if TYPE_CHECKING:
    from tfe_bench.cluster.requests import JobResult

_FRACTIONAL_BITS = 16


def _add_matmul_options(p: argparse.ArgumentParser) -> None:
    common.add_option(
        p,
        "--n N",
        "number of rows and columns of each matrix (default: 1024)",
        type=int,
        default=1024,
    )
    p.add_argument(
        "--seed", type=int, default=1, help="seed of the generated matrices (default: 1)"
    )
    common.add_run_options(p)


def run_matmul(arguments: argparse.Namespace) -> int:
    """Multiply two private matrices.

    Shares two n x n matrices of fixed-point numbers among three workers and multiplies them over
    Z_2^64 (the scale of the product is the product of both scales). Checks the result and prints
    the cost.
    """
    import numpy as np

    from tfe_bench.cluster.requests import PrivateInput
    from tfe_bench.protocols.session.fixedpoint import FixedPoint

    n = arguments.n
    check_range("--n", n, 1, 8192)
    rng = np.random.default_rng(arguments.seed)
    x, y = (rng.uniform(-10, 10, (n, n)) for _ in range(2))
    encode = FixedPoint(_FRACTIONAL_BITS).encode
    inputs = {
        name: PrivateInput(encode(value), _FRACTIONAL_BITS) for name, value in (("x", x), ("y", y))
    }

    def judge_result(result: JobResult) -> job_record.JobOutcome:
        product = FixedPoint(2 * _FRACTIONAL_BITS).decode(result.outputs["product"])
        error = float(np.abs(product - x @ y).max())
        # each of the n terms has an error of at most half an ulp of each factor
        correct = error <= n * 20 * 2.0 ** -(_FRACTIONAL_BITS + 1) + 1e-6
        shown = {"n": n, "shape": f"{n} x {n} x {n}"}
        return job_record.JobOutcome(shown, correct, error, _FRACTIONAL_BITS)

    job = ("matmul", common.timing_loop_parameters(arguments), inputs)
    return job_record.run_and_report(arguments, "matmul", job, judge_result)


COMMANDS = {"matmul": (_add_matmul_options, run_matmul)}

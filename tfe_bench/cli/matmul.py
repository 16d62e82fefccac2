"""`python -m tfe_bench matmul`: private x private matrix product, and what it cost."""

from __future__ import annotations

import argparse
from typing import Any

from tfe_bench.cli.common import (
    add_run_options,
    harness_parameters,
    open_cluster,
    progress_bar,
    report,
)
from tfe_bench.errors import UsageError

_FRACTIONAL_BITS = 16


def add_parser(commands: Any) -> None:
    """Adds the command."""
    p = commands.add_parser(
        "matmul",
        help="multiply two private matrices",
        description="Shares two n x n matrices of fixed-point numbers among three workers, "
        "multiplies them over Z_2^64 (the product keeps both scales), checks and prints the cost.",
    )
    p.add_argument("--n", type=int, default=1024, metavar="N", help="size (default 1024)")
    p.add_argument("--seed", type=int, default=1, help="of the generated matrices (default 1)")
    add_run_options(p)
    p.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Runs the command."""
    import numpy as np

    from tfe_bench.cluster.requests import PrivateInput
    from tfe_bench.protocols.session.fixedpoint import FixedPoint

    n = arguments.n
    if not 1 <= n <= 8192:
        raise UsageError(f"--n is 1 to 8192. Received: {n}.")
    rng = np.random.default_rng(arguments.seed)
    x, y = (rng.uniform(-10, 10, (n, n)) for _ in range(2))
    encode = FixedPoint(_FRACTIONAL_BITS).encode
    inputs = {
        name: PrivateInput(encode(value), _FRACTIONAL_BITS) for name, value in (("x", x), ("y", y))
    }
    with progress_bar(arguments) as bar, open_cluster(arguments, bar) as cluster:
        result = cluster.run("matmul", harness_parameters(arguments), inputs, bar.update)
    product = FixedPoint(2 * _FRACTIONAL_BITS).decode(result.outputs["product"])
    error = float(np.abs(product - x @ y).max())
    # each of n terms is off by at most half an ulp of each factor
    correct = error <= n * 20 * 2.0 ** -(_FRACTIONAL_BITS + 1) + 1e-6
    shown = {"n": n, "shape": f"{n} x {n} x {n}"}
    report("matmul", arguments, cluster, result, shown, correct, error, _FRACTIONAL_BITS)
    return 0 if correct else 1

"""`python -m tfe_bench channel`: rounds and bandwidth between workers, also with grpcio alone."""

from __future__ import annotations

import argparse
import json
import statistics

from tfe_bench.cli import common
from tfe_bench.cli.common import check_network_options
from tfe_bench.errors import check_range


def _add_channel_options(p: argparse.ArgumentParser) -> None:
    p.add_argument(
        "--rounds", type=int, default=200, help="number of rounds in one graph (default: 200)"
    )
    p.add_argument(
        "--megabytes", type=int, default=64, help="size of the transfer in MB (default: 64)"
    )
    p.add_argument("--repeat", type=int, default=7, help="number of timed repetitions (default: 7)")
    common.add_option(p, "--no-tls", "send everything without TLS, on loopback")
    common.add_option(p, "--profile NAME", "network profile (default: local)", default="local")
    common.add_option(
        p,
        "--emulate HOW",
        "emulation of the profile: auto, netns or channel (default: auto)",
        default="auto",
    )
    common.add_option(p, "--json", "print only JSON")


def run_channel(arguments: argparse.Namespace) -> int:
    """Measure the workers' channel and compare it with grpcio alone.

    Times exchanges, one-way messages and a transfer between workers 1 and 2 with TLS, and the same
    over grpcio alone with TLS in the same run.
    """
    from rich.console import Console
    from rich.table import Table

    from tfe_bench.benchmarks import bare_grpc
    from tfe_bench.cluster.launch import LocalCluster

    settings = {k: getattr(arguments, k) for k in ("rounds", "megabytes", "repeat")}
    for name, value in settings.items():
        check_range(f"--{name}", value, 1, 4096)
    systems = [{name: list[float]() for name in ("exchange", "hop", "bulk")} for _ in range(3)]
    ours, lockstep, duplex = systems
    arguments.cluster = arguments.client = None
    check_network_options(arguments)
    on = not arguments.no_tls
    with LocalCluster(tls_on=on, profile=arguments.profile, emulate=arguments.emulate) as cluster:
        # Alternating, so that noise affects all systems alike.
        for _ in range(2):
            measured = cluster.run("channel", settings, {}).measured[1]
            keys = ("exchange_seconds", "hop_seconds", "bytes_per_second")
            for values, key in zip(ours.values(), keys, strict=True):
                values += measured[key]
            for mode, bare in (("lockstep", lockstep), ("duplex", duplex)):
                for name, values in bare_grpc.measure_bare_grpc(
                    **settings, mode=mode, tls_on=on
                ).items():
                    bare[name] += values
    if arguments.json:
        print(json.dumps({"tfe_bench": ours, "bare_grpc": lockstep, "bare_grpc_duplex": duplex}))
        return 0
    title = f"between workers 1 and 2, TLS {'on' if on else 'OFF'}"
    table = Table(title, "tfe_bench", "bare, lock-step", "bare, duplex")
    for name, label, unit, scale in (
        ("exchange", "exchange (both send, both wait)", "us", 1e6),
        ("hop", "hop (half a ping-pong)", "us", 1e6),
        ("bulk", f"transfer of {arguments.megabytes} MB", "GB/s", 1e-9),
    ):
        digits = 0 if scale > 1 else 2
        middle = statistics.median(ours[name])
        cells = []
        for column in systems:
            values = column[name]
            m, low, high = statistics.median(values), min(values), max(values)
            spread = f"({low * scale:.{digits}f}..{high * scale:.{digits}f})"
            text = f"{m * scale:.{digits}f} {unit} {spread}"
            cells.append(text if column is ours else f"{text}, x{middle / m:.2f}")
        table.add_row(label, *cells)
    Console().print(table)
    return 0


COMMANDS = {"channel": (_add_channel_options, run_channel)}

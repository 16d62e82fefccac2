"""`python -m tfe_bench links`: delay, bandwidth and loss between the workers, measured."""

from __future__ import annotations

import argparse
import json

from tfe_bench.cli import common
from tfe_bench.errors import check_range

# Number of transfers into which the megabytes are divided; the fastest one counts.
_TURNS = 4


def _add_link_options(p: argparse.ArgumentParser) -> None:
    common.add_option(
        p,
        "--megabytes MB",
        "size in MB that each worker sends, half of it to each peer (default: 100)",
        type=float,
        default=100.0,
    )
    p.add_argument(
        "--pings", type=int, default=4, help="number of consecutive pings of each pair (default: 4)"
    )
    common.add_network_options(p)
    common.add_option(p, "--json", "print only JSON")


def run_links(arguments: argparse.Namespace) -> int:
    """Measure the links of a network profile.

    Starts three workers on the links of a --profile and measures the one-way delay of every pair,
    the upload bandwidth of every worker, and lost bytes.
    """
    from rich.console import Console
    from rich.table import Table

    from tfe_bench.benchmarks import measured_links
    from tfe_bench.errors import ProfileError

    common.check_network_options(arguments)
    check_range("--megabytes", arguments.megabytes, 0.001, 4000)
    check_range("--pings", arguments.pings, 1, 1000)
    with (
        common.command_progress_bar(arguments) as bar,
        common.start_command_cluster(arguments, bar) as cluster,
    ):
        kilobytes = max(1, round(1000 * arguments.megabytes / _TURNS))
        measured = measured_links.measure_links(
            cluster, kilobytes, arguments.pings, _TURNS, progress=bar.update
        )
        profile, emulation = cluster.profile, cluster.emulation
    off = measured.describe_deviations(profile)
    holds = not off
    if arguments.json:
        shown = {
            "profile": profile.name,
            "profile_emulation": emulation,
            "holds": holds if profile.shaped else None,
            "off": off,
            **measured.as_json(),
        }
        print(json.dumps(shown))
    else:
        console = Console()
        console.print(
            f"{profile.name}: {profile.text}" + (f" ({emulation})" if emulation else ""),
            highlight=False,
        )
        table = Table("", "wanted", "measured")
        target = f"{1e3 * profile.delay:g} ms" if profile.shaped else "-"
        for pair, value in measured.as_json()["one_way_ms"].items():
            table.add_row(f"one-way delay {pair}", target, f"{value:.3f} ms")
        target = f"{profile.bits_per_second / 1e6:g} Mbit/s" if profile.shaped else "-"
        for party, rate in enumerate(measured.rates):
            table.add_row(f"egress of worker {party}", target, f"{rate / 1e6:.1f} Mbit/s")
        table.add_row(
            f"lost of 3 x {measured.megabytes:g} MB", "0 bytes", f"{measured.lost_bytes} bytes"
        )
        console.print(table)
        if profile.shaped:
            verdict = "The links hold the profile's figures within 10 %."
            if off:
                verdict = f"Off by more than 10 %: {'; '.join(off)}."
                if not profile.strict:
                    verdict += f" Results are labeled ({measured_links.HOST_LIMITED})."
            console.print(verdict, highlight=False)
    if measured.lost_bytes or (off and profile.strict):
        return ProfileError.exit_code
    return 0


COMMANDS = {"links": (_add_link_options, run_links)}

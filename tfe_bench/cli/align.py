"""`python -m tfe_bench align`: link private tables on their common keys, for training."""

from __future__ import annotations

import argparse
import json
import time

from tfe_bench.cli import common, stored_objects


def _add_align_options(p: argparse.ArgumentParser) -> None:
    p.add_argument(
        "tables", nargs="+", metavar="TABLE", help="2 to 8 private tables that the workers store"
    )
    common.add_option(
        p,
        "--on KEY",
        "key columns to match; KEY=KEY if their names differ, one for each table",
        nargs="+",
        required=True,
    )
    common.add_option(
        p, "--as NAME", "name of the data set that the workers store", dest="name", required=True
    )
    common.add_option(p, "--label COLUMN", "column to predict; also TABLE.COLUMN", required=True)
    common.add_option(
        p, "--columns COLUMN", "feature columns (default: all that the owners permit)", nargs="+"
    )
    stored_objects.add_client_option(p, "also train on them")
    common.add_option(p, "--replace", "replace a data set of this name")
    stored_objects.add_confirm_options(p)
    stored_objects.add_service_options(p, "them")


def run_align(arguments: argparse.Namespace) -> int:
    """Align owners' private tables, to train on the rows that they have in common.

    The workers match the keys of tables that their owners have uploaded (`table put`) and store the
    common rows as a data set, for `train --columns NAME --labels NAME`. No party learns which rows
    match; the number of matches is revealed if every owner permits it. See docs/tables.md.
    """
    from tfe_bench.cluster.stored import check_client_names, check_name
    from tfe_bench.private_tables import tables

    common.quiet_tensorflow()
    check_name(arguments.name, "A data set's name")
    check_client_names(arguments.allow)
    with (
        common.command_progress_bar(arguments) as bar,
        stored_objects.open_stored_object_service(arguments, bar) as cluster,
    ):
        alignment = tables(cluster).align(
            arguments.tables,
            arguments.on,
            arguments.name,
            arguments.label,
            columns=arguments.columns,
            clients=arguments.allow,
            replace=arguments.replace,
        )
        if not stored_objects.is_job_confirmed(arguments, bar, alignment, alignment.order):
            return stored_objects.unconfirmed_exit_code(arguments)
        started = time.perf_counter()
        aligned = alignment.run(bar.update)
        seconds = time.perf_counter() - started
    summary = {
        **{key: aligned.about[key] for key in ("rows", "columns", "target", "classes", "made_of")},
        **{"name": aligned.name, "clients": arguments.allow},
        "opened": common.encode_opened_values(alignment.opened),
        "seconds": seconds,
    }
    if arguments.json:
        print(json.dumps(summary))
        return 0
    owned = [f"{each['table']} ({each['owner']})" for each in aligned.about["made_of"]]
    print(
        f"{aligned.name}: {aligned.about['rows']:,} rows that {' and '.join(owned)} have in common"
    )
    learned = {"number": "a number", "binary": "two classes"}
    kind = learned.get(aligned.about["target"], f"{aligned.about['classes']} classes")
    print(f"features: {', '.join(aligned.about['columns'])}; label: {arguments.label}, {kind}")
    print(f"may be trained on by {stored_objects.describe_permitted_clients(arguments.allow)}")
    return 0


COMMANDS = {"align": (_add_align_options, run_align)}

"""`python -m tfe_bench table` and `query`: private tables, and queries on them."""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tfe_bench.cli import common, listing, stored_objects
from tfe_bench.cli.data.files import check_data_files_exist
from tfe_bench.errors import UsageError

_WORDS = {
    "put": "store a private table at three workers",
    "list": "list the tables that this client may query",
    "remove": "remove a table from three workers",
}
# Options that `put` takes under their own names.
_AS_GIVEN = (
    *("columns", "nullable", "unique", "sorted_by", "hashed_by", "links", "pad_to", "rights"),
    *("unit", "budget", "contributions", "open_count", "replace"),
)


def _add_list_option(
    p: argparse.ArgumentParser, typed: str, about: str, dest: str | None = None
) -> None:
    """Add an option of one or more values, stored as a list that is empty by default."""
    common.add_option(p, typed, about, nargs="+", default=[], dest=dest)


def _add_table_options(p: argparse.ArgumentParser) -> None:
    words = p.add_subparsers(dest="word", required=True, metavar="|".join(_WORDS))
    for word, about in _WORDS.items():
        one = words.add_parser(
            word,
            help=about,
            description=f"{about[:1].upper()}{about[1:]}.",
            epilog=listing.format_command_examples(f"table {word}"),
        )
        # (defaults of options that other words do not have)
        one.set_defaults(name=None, input=[], types=[], rename=[], allow=[])
        if word != "list":
            one.add_argument(
                "name", metavar="NAME", help="name of the table: letters, digits, - and _"
            )
        if word == "put":
            _add_put_options(one)
        stored_objects.add_service_options(one, "tables")


def _add_put_options(p: argparse.ArgumentParser) -> None:
    common.add_option(
        p,
        "--input FILE",
        "table file to store (.csv with a header line, .parquet, .feather)",
        "--csv",
        "--parquet",
        action="append",
        default=[],
    )
    _add_list_option(p, "--rename OLD=NEW", "new names of columns")
    _add_list_option(
        p,
        "--type COLUMN:TYPE",
        "column types: int[0,120], decimal(2), fixed(16), bool, date, timestamp(ms), "
        "category(a,b), category (the words of the column become public), text "
        "(default: by content)",
        "types",
    )
    common.add_option(p, "--columns COLUMN", "columns to store (default: all)", nargs="+")
    _add_list_option(
        p, "--nullable COLUMN", "columns to declare nullable although they have no NULL"
    )
    _add_list_option(p, "--unique COLUMN", "columns without repeated values")
    common.add_option(
        p, "--sorted-by COLUMN", "sort the rows by this column before they are shared", default=""
    )
    common.add_option(
        p,
        "--hashed-by COLUMN",
        "place rows in hash bins by this key, so that other tables can link to it",
        default="",
    )
    _add_list_option(p, "--link COLUMN=TABLE.COLUMN", "prepared joins, which need no sort", "links")
    common.add_option(
        p,
        "--pad-to N",
        "public number of rows, padded with dummy rows (default: no padding)",
        type=int,
    )
    stored_objects.add_client_option(p, "query the table")
    _add_list_option(
        p,
        "--right COLUMN:RIGHTS",
        "rights of the clients: open, group, aggregate, quantile, filter, match, train; "
        "* for all columns",
        "rights",
    )
    common.add_option(
        p, "--min-group N", "least number of records in a released group (default: 10)", type=int
    )
    common.add_option(
        p, "--unit COLUMN", "column of the person or unit that a row belongs to", default=""
    )
    common.add_option(
        p,
        "--budget RHO",
        "privacy budget (zCDP rho) of other clients' queries, whose results get noise",
    )
    common.add_option(
        p,
        "--contributions N",
        "largest number of rows of a unit that count under a budget (default: 1)",
        type=int,
        default=1,
    )
    common.add_option(
        p,
        "--scale COLUMN",
        "columns whose coarse standard deviation and mean become public, for training",
        nargs="+",
    )
    common.add_option(p, "--open-count", "permit counting the rows in common with other tables")
    common.add_option(p, "--replace", "replace a table of this name")


def run_table(arguments: argparse.Namespace) -> int:
    """Store private tables at three workers, list or remove them."""
    from tfe_bench.cluster.stored import check_client_names, check_name
    from tfe_bench.private_tables import tables

    common.quiet_tensorflow()
    source = _find_table_source(arguments)
    if arguments.name is not None:
        check_name(arguments.name, "A table's name")
    check_client_names(arguments.allow)
    types = dict(_parse_column_type(each) for each in arguments.types)
    rename = dict(_parse_column_renaming(each) for each in arguments.rename)
    started = time.perf_counter()
    with (
        common.command_progress_bar(arguments) as bar,
        stored_objects.open_stored_object_service(arguments, bar) as cluster,
    ):
        private_tables = tables(cluster)
        if arguments.word == "list":
            return _print_tables(arguments, private_tables.listed(), cluster.identity)
        name = str(arguments.name)
        if arguments.word == "remove":
            private_tables.remove(name)
            arguments.remove = name
            return stored_objects.report_removed_object(arguments)
        bar.show_text("sharing")
        more = {} if arguments.min_group is None else {"min_group": arguments.min_group}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # (the report has them)
            report = private_tables.put(
                name,
                source,
                types=types,
                rename=rename,
                clients=arguments.allow,
                scale=arguments.scale or (),
                progress=bar.update,
                **{name: getattr(arguments, name) for name in _AS_GIVEN},
                **more,
            )
    summary = {
        "name": arguments.name,
        "rows": report.schema.rows,
        "columns": {name: column.to_header() for name, column in report.columns.items()},
        "warnings": report.warnings,
        "clients": arguments.allow,
        "opened": common.encode_opened_values(report.opened),
        "seconds": time.perf_counter() - started,
    }
    if arguments.json:
        print(json.dumps(summary))
        return 0
    print(report)
    print(f"may be asked about by {stored_objects.describe_permitted_clients(arguments.allow)}")
    return 0


def _find_table_source(arguments: argparse.Namespace) -> Path | None:
    files: list[Path] = arguments.input
    if arguments.word != "put":
        return None
    if len(files) != 1:
        raise UsageError(
            "table put takes one --input FILE (also --csv, --parquet). "
            f"Received: {len(files)} files.",
            code="missing-argument",
            operation="--input",
            received=len(files),
            expected=1,
        )
    check_data_files_exist(files[0])
    return files[0]


def _parse_column_type(text: str) -> tuple[str, str]:
    column, colon, kind = text.partition(":")
    if not colon or not column:
        raise UsageError(
            f"Expected COLUMN:TYPE in --type. Received: {text[:80]!r}.",
            code="malformed-option",
            operation="--type",
            expected="COLUMN:TYPE",
        )
    return column, kind


def _parse_column_renaming(text: str) -> tuple[str, str]:
    old, equals, new = text.partition("=")
    if not equals or not old or not new:
        raise UsageError(
            f"Expected OLD=NEW in --rename. Received: {text[:80]!r}.",
            code="malformed-option",
            operation="--rename",
            expected="OLD=NEW",
        )
    return old, new


def _print_tables(arguments: argparse.Namespace, listed: Any, client: str) -> int:
    from tfe_bench.cluster.ledger import format_privacy_loss as number
    from tfe_bench.queries.schema import TableSchema

    rows = []
    for entry in listed.values():
        schema = TableSchema.from_header(entry.about)
        columns = {name: str(c.type) for name, c in schema.columns.items()}
        rights = {name: sorted(schema.allows(client, entry.owner, name)) for name in columns}
        row = {**stored_objects.common_stored_facts(entry), "rows": schema.rows, "columns": columns}
        row |= {"rights": rights, "min_group": schema.min_group}
        if schema.budget:
            left = number(max(0, schema.budget - entry.spent))
            row["privacy"] = f"rho {left} of {number(schema.budget)} left"
        rows.append(row)
    shown = {
        "rows": lambda row: f"{row['rows']:,}",
        "columns: your rights": lambda row: "\n".join(
            _describe_table_columns(row, row["owner"] == client)
        ),
        "min group": lambda row: f"{row['min_group']:,}",
        "privacy": lambda row: row.get("privacy", ""),
    }
    return stored_objects.print_stored_objects(arguments, rows, "table", shown)


def _describe_table_columns(row: Mapping[str, Any], owned: bool) -> list[str]:
    """Return each column with its type, and with the client's rights unless it is the owner."""
    descriptions = []
    for name, kind in row["columns"].items():
        rights = row["rights"][name]
        words = "open" if "open" in rights else ", ".join(rights) or "none"
        descriptions.append(f"{name} {kind}" if owned else f"{name} {kind}: {words}")
    return descriptions


def _add_query_options(p: argparse.ArgumentParser) -> None:
    p.add_argument("sql", metavar="SQL", help="one SELECT statement in DuckDB's dialect")
    common.add_option(
        p,
        "--max-rows N",
        "bound on the rows of the result, and of joins with repeated keys",
        type=int,
    )
    common.add_option(
        p,
        "--rho RHO",
        "privacy loss (zCDP rho) to spend on tables with a budget; more gives less noise",
    )
    common.add_option(p, "--texts FILE", "table file whose texts are shown instead of their hashes")
    stored_objects.add_confirm_options(p)
    common.add_option(
        p, "--output FILE", "write the rows to a file (.csv, .json, .parquet, .feather)", "--out"
    )
    stored_objects.add_service_options(p, "tables")


def run_query(arguments: argparse.Namespace) -> int:
    """Query private tables that three workers store.

    The workers join, filter and aggregate tables that their owners share, and see no row. Only
    this client receives the result, as far as the owners' rights permit. On a terminal the plan
    is shown first. See docs/tables.md in the source tree.
    """
    from tfe_bench.private_tables import tables

    common.quiet_tensorflow()
    if arguments.output is not None and arguments.output.exists():
        raise UsageError(
            f"Expected a new file in --output. Received: {str(arguments.output)!r}, which exists.",
            code="file-exists",
            operation="--output",
            received=arguments.output,
        )
    with (
        common.command_progress_bar(arguments) as bar,
        stored_objects.open_stored_object_service(arguments, bar) as cluster,
    ):
        known = tables(cluster)
        if arguments.texts is not None:
            known.show_texts(arguments.texts)
        query = known.sql(arguments.sql, max_rows=arguments.max_rows, rho=arguments.rho)
        if not stored_objects.is_job_confirmed(arguments, bar, query, query.plan):
            return stored_objects.unconfirmed_exit_code(arguments)
        started = time.perf_counter()
        result = query.run(bar.update)
        seconds = time.perf_counter() - started
    if arguments.output is not None:
        result.write(arguments.output)
    if arguments.json:
        sent = sum(sum(m["payload"]) for m in result.measured)
        summary = {"rows": result.listed(), "seconds": seconds, "bytes_sent": sent}
        summary["opened"] = common.encode_opened_values(result.opened)
        summary |= {"noise": result.noise, "notes": list(result.notes)}
        print(json.dumps(summary))
    elif arguments.output is None:
        _print_query_result(result)
    else:
        print(f"{len(result):,} rows written to {arguments.output}")
    if not arguments.json:
        for note in result.notes:
            print(note)
    return 0


def _print_query_result(result: Any) -> None:
    from rich.console import Console
    from rich.table import Table

    shown = Table(*result.types)
    for row in result.rows:
        shown.add_row(*("NULL" if v is None else f"{v}" for v in row))
    Console().print(shown)


COMMANDS = {"table": (_add_table_options, run_table), "query": (_add_query_options, run_query)}

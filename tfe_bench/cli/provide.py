"""`python -m tfe_bench provide`: store shares of an owner's rows at three workers for training."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfe_bench.cli import common, stored_objects
from tfe_bench.errors import DataError, UsageError

if TYPE_CHECKING:
    from tfe_bench.models.convert.tables import Table
    from tfe_bench.models.datasets.readers import Rows


def _add_provide_options(p: argparse.ArgumentParser) -> None:
    p.add_argument(
        "name", nargs="?", metavar="NAME", help="name of the data set: letters, digits, - and _"
    )
    common.add_option(
        p, "--input FILE", "table file (.csv) with a header line", "--csv", dest="csv"
    )
    common.add_option(p, "--label COLUMN", "column to predict (default: features only)")
    common.add_option(
        p,
        "--target T",
        "type of the label: binary, classes (integers from 0) or number (default: binary)",
    )
    common.add_option(p, "--classes K", "number of classes, with --target classes", type=int)
    common.add_option(p, "--labels-only", "store the label without the features")
    common.add_option(
        p, "--features COLUMN", "feature columns (default: all except the label)", nargs="+"
    )
    common.add_option(p, "--drop COLUMN", "columns to leave out", nargs="+", default=[])
    common.add_option(
        p, "--scale FILE", "file of --save-scale with columns, scales and classes of another owner"
    )
    common.add_option(
        p, "--save-scale FILE", "write columns, scales and classes for other owners (.json)"
    )
    common.add_option(p, "--raw", "store unscaled columns (default: scaled to about 1)")
    common.add_option(
        p, "--dataset D", "data set mnist or fashion-mnist instead of a table, for evaluation"
    )
    common.add_option(p, "--data-dir FOLDER", "folder of the four IDX files of --dataset")
    common.add_option(
        p, "--part I/K", "I-th of K parts of the pictures, counted from 1 (default: all)"
    )
    stored_objects.add_client_option(p, "train on them")
    common.add_option(p, "--replace", "replace a data set of this name")
    common.add_option(p, "--list", "list the data sets that this client may use")
    common.add_option(p, "--remove NAME", "remove a data set of this client")
    stored_objects.add_service_options(p, "data sets")


def run_provide(arguments: argparse.Namespace) -> int:
    """Store shares of rows at three workers, for training by permitted clients.

    Shares rows among three workers, which store them under a name for the clients that their
    owner permits to train on them (`train --rows` and `--columns`). No worker and no client sees a
    row; a trained model may leak information about its training rows.
    """
    from tfe_bench.cluster.stored import check_client_names, check_name
    from tfe_bench.models.datasets import owners

    common.quiet_tensorflow()
    chosen_modes = [arguments.name is not None, arguments.list, arguments.remove is not None]
    if sum(chosen_modes) != 1:
        raise UsageError(
            "provide takes exactly one of NAME, or --list, or --remove NAME. Received: "
            f"{sum(chosen_modes)} of them.",
            code="exactly-one-required",
            operation="provide",
        )
    rows = None
    if arguments.name is not None:
        check_name(arguments.name, "A data set's name")
        check_client_names(arguments.allow)
        rows = _read_provided_rows(arguments)
    datasets: dict[str, Any] = {}
    seconds = 0.0
    with (
        common.command_progress_bar(arguments) as bar,
        stored_objects.open_stored_object_service(arguments, bar) as cluster,
    ):
        if arguments.list:
            datasets = owners.list_datasets(cluster)
        elif rows is None:
            owners.withdraw(cluster, arguments.remove)
        else:
            started = time.perf_counter()
            bar.show_text("sharing")
            owners.provide(
                cluster,
                str(arguments.name),
                rows,
                arguments.allow,
                arguments.replace,
                bar.update,
            )
            seconds = time.perf_counter() - started
            if arguments.save_scale is not None:
                _save_column_scale(arguments.save_scale, rows)
    if arguments.list:
        return _print_datasets(arguments, datasets)
    if rows is None:
        return stored_objects.report_removed_object(arguments)
    summary = {
        "name": arguments.name,
        "rows": len(rows),
        "features": None if rows.x is None else list(rows.x.shape[1:]),
        "labels": rows.y is not None,
        "clients": arguments.allow,
        "seconds": seconds,
    }
    if arguments.json:
        print(json.dumps(summary))
        return 0
    shared_parts = " and ".join(
        word for word, part in (("features", rows.x), ("labels", rows.y)) if part is not None
    )
    print(f"{arguments.name}: {shared_parts} of {len(rows):,} rows shared in {seconds:.1f} s")
    print(f"may be trained on by {stored_objects.describe_permitted_clients(arguments.allow)}")
    return 0


def _read_provided_rows(arguments: argparse.Namespace) -> Rows:
    """Read the rows of the command line."""
    from tfe_bench.models.datasets import readers as datasets

    if (arguments.csv is None) == (arguments.dataset is None):
        raise UsageError(
            "Expected either --input FILE or --dataset NAME. Received: both or none.",
            code="exactly-one-required",
            operation="--input",
        )
    if arguments.dataset is not None:
        of_tables = (arguments.label, arguments.features, arguments.scale, arguments.save_scale)
        if any(of_tables) or arguments.drop or arguments.labels_only or arguments.raw:
            raise UsageError(
                "--label, --labels-only, --features, --drop, --raw, --scale and --save-scale "
                "go with --input. Received: --dataset.",
                code="option-requires-option",
                operation="--label",
                expected="--input",
            )
        rows, _ = datasets.load_digits(
            arguments.dataset, arguments.data_dir, arguments.target or "classes"
        )
        return rows.take(_dataset_shard_slice(arguments.part, len(rows)))
    if arguments.part is not None or arguments.data_dir is not None:
        raise UsageError(
            "--part and --data-dir require --dataset. Received: --input.",
            code="option-requires-option",
            operation="--part",
            expected="--dataset",
        )
    if arguments.label is None and (arguments.labels_only or arguments.target is not None):
        raise UsageError(
            "--labels-only and --target require --label COLUMN. Received: no --label.",
            code="option-requires-option",
            operation="--labels-only",
            expected="--label",
        )
    like = None
    if arguments.scale is not None:
        if arguments.raw or arguments.features or arguments.drop or arguments.classes is not None:
            raise UsageError(
                "--scale says which columns, scales and classes are used. Received: --raw, "
                "--features, --drop or --classes too. Remove them.",
                code="conflicting-options",
                operation="--scale",
            )
        like = _read_column_scale(arguments.scale)
        if arguments.target not in (None, like.target):
            raise UsageError(
                f"The label of {arguments.scale.name!r} has the target {like.target!r}. Received: "
                f"--target {arguments.target}.",
                code="conflicting-options",
                operation="--target",
                expected=like.target,
            )
    return datasets.table(
        arguments.csv,
        arguments.label,
        arguments.target or (like.target if like is not None else "binary"),
        arguments.classes,
        features=not arguments.labels_only,
        standardize=not arguments.raw,
        columns=arguments.features,
        drop=arguments.drop,
        like=like,
    )


def _save_column_scale(path: Path, rows: Rows) -> None:
    assert rows.table is not None
    try:
        path.write_text(json.dumps(rows.table.to_header()) + "\n")
    except OSError as error:
        raise DataError(
            f"Cannot write {str(path)!r}: {error.strerror}.",
            code="file-not-writable",
            operation="--save-scale",
            received=path,
        ) from error


def _read_column_scale(path: Path) -> Table:
    from tfe_bench.models.convert.tables import Table

    try:
        return Table.from_header(json.loads(path.read_text()))
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(
            f"Expected a file of --save-scale. Received: {str(path)!r} is no file of --save-scale "
            f"({type(error).__name__}).",
            code="invalid-header",
            operation="--scale",
            received=type(error).__name__,
        ) from None


def _dataset_shard_slice(text: str | None, count: int) -> slice:
    """Return the slice of shard "I/K" of the rows."""
    if text is None:
        return slice(0, count)
    number, slash, parts = text.partition("/")
    if not (slash and number.isdigit() and parts.isdigit() and 1 <= int(number) <= int(parts)):
        raise UsageError(
            f"--part is I/K with I from 1 to K. Received: {text!r}.",
            code="malformed-option",
            operation="--part",
            received=text,
            expected="I/K",
        )
    i, k = int(number), int(parts)
    return slice(count * (i - 1) // k, count * i // k)


def _print_datasets(arguments: argparse.Namespace, datasets: Any) -> int:
    columns = {
        "rows": lambda row: f"{row['rows']:,}",
        "features": lambda row: "" if row["x"] is None else "x".join(map(str, row["x"])),
        "labels": lambda row: "" if row["y"] is None else row["target"],
        "made of": lambda row: ", ".join(f"{e['table']} ({e['owner']})" for e in row["made_of"]),
    }
    rows = [
        {**stored_objects.common_stored_facts(each), "made_of": [], **each.about}
        for each in datasets.values()
    ]
    if not any(row["made_of"] for row in rows):
        del columns["made of"]
    return stored_objects.print_stored_objects(arguments, rows, "data set", columns)


COMMANDS = {"provide": (_add_provide_options, run_provide)}

"""`python -m tfe_bench predict`: predictions of a stored model for a client."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfe_bench.cli import common, prediction_stream, stored_objects
from tfe_bench.cli.data import files
from tfe_bench.errors import UsageError

if TYPE_CHECKING:
    from tfe_bench.models.convert.graph import Graph
    from tfe_bench.models.convert.tables import Table
    from tfe_bench.models.inference.private import PrivateModel
    from tfe_bench.models.inference.service import DeployedModel

_SHOWN = 5
_NUMBERS = 10


def _add_predict_options(p: argparse.ArgumentParser) -> None:
    p.add_argument(
        "name", metavar="MODEL", help="name of a deployed model (see `models`), or a .keras file"
    )
    common.add_image_option(p)
    common.add_option(
        p,
        "--input FILE",
        "numbers instead of pictures: a table with column names (.csv), an array (.npy, [n, ...]), "
        "or arrays by names of inputs (.npz)",
    )
    common.add_option(
        p, "--preprocessing WAY", "preprocessing of pictures (default: stated by the owner)"
    )
    common.add_option(p, "--batch N", "number of samples at a time (default: 32)", type=int)
    common.add_option(p, "--output FILE", "write the outputs to a file (.csv or .npy)")
    prediction_stream.add_stream_options(p)
    common.add_check_range_option(p)
    stored_objects.add_service_options(p, "models")


def run_predict(arguments: argparse.Namespace) -> int:
    """Predict privately with a model that three workers store.

    Shares a picture or numbers among three workers that store a model, and reconstructs the
    result on this machine. No worker sees the input or the result.
    """
    from tfe_bench.benchmarks.prediction import measured_run_rounds
    from tfe_bench.models.inference import service
    from tfe_bench.models.inference.ahead_setting import KEY

    common.quiet_tensorflow()
    prediction_stream.check_stream_options(arguments)
    if arguments.stream and not arguments.image and arguments.input is None:
        arguments.input = prediction_stream.STANDARD_INPUT
    if bool(arguments.image) == (arguments.input is not None):
        raise UsageError(
            "predict takes pictures (--image FILE) or numbers (--input FILE). Received: "
            f"{'both' if arguments.image else 'neither'}.",
            code="exactly-one-required",
            operation="predict",
        )
    if arguments.output is not None:
        common.check_output_path(arguments.output, (".csv", ".npy"), "The outputs")
    model_file = arguments.name if arguments.name.endswith(".keras") else None
    is_typed = arguments.input == prediction_stream.STANDARD_INPUT
    files.check_data_files_exist(
        model_file, None if is_typed else arguments.input, *arguments.image
    )
    local_model = _load_local_keras_model(arguments) if arguments.name.endswith(".keras") else None
    with (
        common.command_progress_bar(arguments) as bar,
        stored_objects.open_stored_object_service(arguments, bar) as cluster,
    ):
        model = local_model or service.find(cluster, arguments.name)
        if arguments.output is not None and len(model.private.graph.outputs) > 1:
            raise UsageError(
                "--output requires a model with one output. Received: several outputs. Use --json.",
                code="option-not-applicable",
                operation="--output",
            )
        bar.show_text("preparing the inputs")
        if is_typed:
            requests = prediction_stream.read_request_lines(sys.stdin, model)
            return prediction_stream.print_stream(arguments, cluster, model, requests)
        inputs, notes = _read_model_inputs(arguments, model)
        if arguments.stream:
            requests = prediction_stream.cut_into_requests(inputs, arguments.batch or 1)
            return prediction_stream.print_stream(arguments, cluster, model, requests, notes)
        started = time.perf_counter()
        outputs, result = service.predict(
            cluster,
            model if isinstance(model, service.DeployedModel) else model.private,
            inputs,
            batch=arguments.batch,
            progress=bar.update,
            check_range=arguments.check_range,
        )
        seconds = time.perf_counter() - started
    for note in notes:
        print(f"tfe_bench: {note}", file=sys.stderr)
    names = [path.name for path in arguments.image]
    measured = result.measured
    summary = {
        "model": model.name,
        "seconds": seconds,
        "run_seconds": max(m["seconds"][0] for m in measured),
        "bytes_sent": [sum(m["payload"]) for m in measured],
        "rounds": measured_run_rounds(measured)[0],
        "opened": common.encode_opened_values(result.opened),
    }
    if KEY in measured[0]:  # material of the model is made ahead of time
        summary["ahead"] = {
            "used": measured[0][KEY]["used"],
            "bytes_sent_before": [m[KEY]["bytes"] for m in measured],
        }
    labels: list[str] = list(outputs) if isinstance(outputs, dict) else []
    several: Any = [outputs[name] for name in labels] if labels else outputs
    several = several if isinstance(several, list) else [several]
    header, rows = _prediction_table(model, several[0])
    if arguments.output is not None and arguments.input is not None:
        header, rows = _join_unused_columns(arguments.input, model, header, rows)
    if arguments.output is not None:
        _write_predictions(arguments.output, several, header, rows)
    if arguments.json:
        shown: Any = None if arguments.output is not None else [y.tolist() for y in several]
        if labels and shown:
            shown = dict(zip(labels, shown, strict=True))
        print(json.dumps({**summary, "images": names, "outputs": shown}))
        return 0
    for i, row in enumerate(several[0] if arguments.output is None else ()):
        output_text = _format_largest_outputs(row) if names else _format_prediction_outputs(row)
        if model.table is not None:
            pairs = zip(header, rows[i], strict=True)
            output_text = "  ".join(
                f"{h} {v if isinstance(v, str) else f'{v:.6g}'}" for h, v in pairs
            )
        print(f"{names[i] if names else f'sample {i}'}: {output_text}")
        if i + 1 == 20 and len(several[0]) > 20:
            print(f"... and {len(several[0]) - 20} more (--output FILE takes all)")
            break
    if arguments.output is not None:
        print(f"written to {arguments.output}")
    print(
        f"{seconds:.2f} s, {summary['run_seconds']:.2f} s of it at the workers; "
        f"{sum(summary['bytes_sent']) / 1e6:.3g} MB sent in {summary['rounds']} rounds"
    )
    if "ahead" in summary:
        before = sum(summary["ahead"]["bytes_sent_before"])
        print(f"{before / 1e6:.3g} MB of its material were sent before the request")
    return 0


@dataclass(frozen=True, eq=False)
class _LocalKerasModel:
    """A model from a file, with the attributes of a `DeployedModel` of the workers."""

    name: str
    private: PrivateModel
    table: Table | None
    preprocessing: str | None = None


def _load_local_keras_model(arguments: argparse.Namespace) -> _LocalKerasModel:
    from tfe_bench.models.convert import tables
    from tfe_bench.models.inference.private import convert

    path = Path(arguments.name)
    return _LocalKerasModel(path.name, convert(path), tables.load_table(path))


def _read_model_inputs(
    arguments: argparse.Namespace, model: DeployedModel | _LocalKerasModel
) -> tuple[Any, list[str]]:
    """Return the model's inputs, and notes for the user."""
    import numpy as np

    from tfe_bench.cli.data import arrays
    from tfe_bench.models.inference import images

    if arguments.input is not None:
        if arguments.input.suffix.lower() == ".csv":
            return _read_model_table_inputs(arguments.input, model)
        return arrays.read_named_arrays(arguments.input), []
    way = arguments.preprocessing or model.preprocessing
    shapes = list(model.private.graph.inputs.values())
    if len(shapes) != 1:
        raise UsageError(
            f"Expected a model with one input. Received: {model.name!r} has {len(shapes)} inputs. "
            "Use the Python client.",
            code="unsupported-operation",
            operation="predict",
            received=len(shapes),
        )
    if way is None:
        raise UsageError(
            f"The owner of {model.name!r} did not state the preprocessing of pictures. Add "
            f"--preprocessing ({', '.join(images.PREPROCESSINGS)}).",
            code="missing-argument",
            operation="--preprocessing",
        )
    return np.concatenate(
        [images.load_picture(path, shapes[0], way) for path in arguments.image]
    ), []


def _read_model_table_inputs(
    path: Path, model: DeployedModel | _LocalKerasModel
) -> tuple[Any, list[str]]:
    """Return a table's columns in the model's order, by name."""
    from tfe_bench import csv_file

    names, lines = csv_file.read_csv(path)
    if model.table is not None:
        x = model.table.rows(names, lines, path.name)
        return x, _note_ignored_columns(n for n in names if n not in model.table.columns)
    graph = model.private.graph
    shapes = [s[:-1] if name in graph.tokens else s for name, s in graph.inputs.items()]
    if len(shapes) > 1 and all(shape == (1,) for shape in shapes):
        return _split_columns_by_input(path, names, lines, graph)
    if shapes != [(len(names),)]:
        raise UsageError(
            f"{model.name!r} has no column names and takes {' and '.join(map(str, shapes))} of "
            f"each row. Received: {path.name!r} with {len(names)} columns. Provide its columns "
            "in the order of the model, or arrays by the names of its inputs in a .npz file.",
            code="column-count-mismatch",
            received=len(names),
        )
    csv_file.check_csv_column_names(path.name, names)
    x = csv_file.parse_columns(path.name, names, lines, range(len(names)))
    return x, [f"{model.name!r} has no names of columns: they are taken in the file's order"]


def _split_columns_by_input(
    path: Path, names: list[str], lines: Any, graph: Graph
) -> tuple[Any, list[str]]:
    """Return columns by the names of a model's inputs of one number per row."""
    from tfe_bench import csv_file

    missing = [name for name in graph.inputs if name not in names]
    if missing:
        raise UsageError(
            f"The model's inputs are {', '.join(graph.inputs)}. Received: {path.name!r} without "
            f"the columns {', '.join(missing)}.",
            code="column-not-found",
            received=", ".join(missing),
        )
    x = csv_file.parse_columns(
        path.name, names, lines, [names.index(name) for name in graph.inputs]
    )
    arrays = {name: x[:, [i]] for i, name in enumerate(graph.inputs)}
    for name in graph.tokens:  # (other values than whole numbers stay floats; rejected later)
        if (arrays[name] == arrays[name].round()).all():
            arrays[name] = arrays[name].astype(int)
    return arrays, _note_ignored_columns(name for name in names if name not in graph.inputs)


def _note_ignored_columns(names: Iterable[str]) -> list[str]:
    ignored = ", ".join(names)
    return [f"left out what the model does not take: {ignored}"] if ignored else []


def _prediction_table(
    model: DeployedModel | _LocalKerasModel, outputs: Any
) -> tuple[list[str], list[list[Any]]]:
    """Return outputs as a table: the column names and one line for each row."""
    table = model.table
    if table is None:
        flat = outputs.reshape(len(outputs), -1)
        return [f"output{i}" for i in range(flat.shape[1])], flat.tolist()
    probabilities = table.probabilities(outputs)
    label = table.label or "prediction"
    if table.target == "number":
        return [label], probabilities.tolist()
    known = [*table.classes, *map(str, range(len(table.classes), probabilities.shape[1]))]
    best = probabilities.argmax(1)
    rows = [[known[b], *row] for b, row in zip(best, probabilities.tolist(), strict=True)]
    return [label, *(f"probability_{name}" for name in known)], rows


def _join_unused_columns(
    path: Path, model: DeployedModel | _LocalKerasModel, header: list[str], rows: list[list[Any]]
) -> tuple[list[str], list[list[Any]]]:
    """Append predictions to the columns that the model does not use, such as a row ID."""
    from tfe_bench import csv_file

    inputs = list(model.private.graph.inputs)
    if path.suffix.lower() != ".csv" or (model.table is None and len(inputs) == 1):
        return header, rows
    used_names = inputs if model.table is None else model.table.columns
    names, lines = csv_file.read_csv(path)
    places = [i for i, name in enumerate(names) if name not in used_names]
    others = [names[i] if names[i] not in header else f"{names[i]} (given)" for i in places]
    cells = [[line[i] for i in places] for line in lines]
    return [*others, *header], [[*a, *b] for a, b in zip(cells, rows, strict=True)]


def _format_largest_outputs(row: Any) -> str:
    """Format the largest outputs with their index."""
    flat = row.reshape(-1)
    order = sorted(range(flat.size), key=lambda i: -flat[i])[:_SHOWN]
    return "  ".join(f"{i} ({flat[i]:.4g})" for i in order)


def _format_prediction_outputs(row: Any) -> str:
    """Format the outputs in order; if there are many, the first and the largest ones."""
    flat = row.reshape(-1)
    text = "  ".join(f"{v:.6g}" for v in flat[:_NUMBERS])
    more = (
        f"  ... of {flat.size}; largest: {_format_largest_outputs(row)}"
        if flat.size > _NUMBERS
        else ""
    )
    return text + more


def _write_predictions(
    path: Path, outputs: list[Any], header: list[str], rows: list[list[Any]]
) -> None:
    import csv
    import io

    import numpy as np

    from tfe_bench.cluster.files import write_secret_file

    if path.suffix.lower() == ".csv":
        text = io.StringIO(newline="")
        csv.writer(text, lineterminator="\n").writerows([header, *rows])
        write_secret_file(path, text.getvalue().encode(), overwrite=True)
        return
    buffer = io.BytesIO()
    np.save(buffer, outputs[0])
    write_secret_file(path, buffer.getvalue(), overwrite=True)


COMMANDS = {"predict": (_add_predict_options, run_predict)}

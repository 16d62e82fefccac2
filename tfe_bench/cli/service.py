"""`python -m tfe_bench deploy|predict|models`: the prediction service for clients."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfe_bench.cli import common, stored_objects
from tfe_bench.cli.data import files
from tfe_bench.errors import DataError, UsageError

if TYPE_CHECKING:
    from tfe_bench.models.graph import Graph
    from tfe_bench.models.private import PrivateModel
    from tfe_bench.models.service import DeployedModel
    from tfe_bench.models.tables import Table

_SHOWN = 5
_NUMBERS = 10


def _add_deploy_options(p: argparse.ArgumentParser) -> None:
    p.add_argument(
        "model",
        metavar="MODEL",
        help="a .keras file, or the name of a model of the zoo, such as resnet50",
    )
    common.add_option(
        p, "--name NAME", "name of the deployed model: letters, digits, - and _", required=True
    )
    common.add_option(
        p,
        "--allow CLIENT",
        "client that may use the model in addition to its owner, * for all; may be repeated",
        action="append",
        default=[],
    )
    common.add_option(p, "--replace", "replace a model of this name")
    common.add_option(
        p,
        "--samples FILE",
        "public sample inputs for calibration (.npy, [n, ...], or .npz with arrays by name)",
    )
    common.add_option(
        p,
        "--tokens N",
        "length of texts in tokens, if the model does not fix it (default for the zoo: 128)",
        type=int,
    )
    common.add_option(
        p,
        "--preprocessing WAY",
        "preprocessing of pictures: caffe (ResNet50, VGG19), tf (ResNet50V2, MobileNetV2), "
        "torch (DenseNet121), unit (0 to 1) or none",
    )
    common.add_option(
        p,
        "--weights W",
        "weights of a model of the zoo: imagenet, a path, or seeded (default: seeded)",
        default="seeded",
    )
    common.add_option(
        p,
        "--activations HOW",
        "activations: exact, or series with errors up to 2^-10 and a quarter of the bytes "
        "(default: exact)",
        default="exact",
    )
    stored_objects.add_service_options(p, "models")


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
    common.add_check_range(p)
    stored_objects.add_service_options(p, "models")


def _add_models_options(p: argparse.ArgumentParser) -> None:
    common.add_option(p, "--remove NAME", "remove a model of this client instead of listing")
    stored_objects.add_service_options(p, "models")


# ---- deploy


def run_deploy(arguments: argparse.Namespace) -> int:
    """Store shares of a Keras model at three workers.

    Converts a Keras model, shares its weights among three workers and stores the shares under a
    name. No worker sees a weight. Without --cluster, three local workers store the shares in one
    folder, for evaluation only.
    """
    from tfe_bench.cluster.stored import check_clients, check_name
    from tfe_bench.models import service

    common.quiet_tensorflow()
    check_name(arguments.name)
    check_clients(arguments.allow)
    model = arguments.model if arguments.model.endswith(".keras") else None
    files.check_files_exist(model, arguments.samples)
    with common.progress_bar(arguments) as bar:
        if arguments.cluster is not None and not arguments.replace:
            with stored_objects.open_service(arguments, bar) as cluster:  # before slow steps
                _check_new_name(cluster, arguments.name)
        bar.show_text("converting the model")
        private, way, source, table = _convert_model(arguments)
        with stored_objects.open_service(arguments, bar) as cluster:
            started = time.perf_counter()
            service.deploy(
                *(cluster, private, arguments.name, arguments.allow, arguments.replace),
                *(way, bar.update, table),
            )
            seconds = time.perf_counter() - started
    summary = {
        "name": arguments.name,
        "model": private.name,
        "weights": source,
        "parameters": private.graph.weight_count,
        "calibrated": private.calibrated,
        "rescaled": private.rescaled,
        "clients": arguments.allow,
        "preprocessing": way,
        "seconds": seconds,
    }
    if arguments.json:
        print(json.dumps(summary))
        return 0
    print(f"{arguments.name}: {private.graph.weight_count:,} weights shared in {seconds:.1f} s")
    print(f"may be used by {stored_objects.describe_clients(arguments.allow)}")
    if not private.calibrated:
        print("ranges: assumed, |v| < 2^14 in every layer; --samples FILE takes them from inputs")
    if private.rescaled:
        print(f"fewer fractional bits for the range in: {', '.join(private.rescaled)}")
    return 0


def _check_new_name(cluster: Any, name: str) -> None:
    for row in cluster.stored():
        if row["name"] == name and row["owner"] == cluster.identity:
            raise UsageError(
                f"Expected a new name in --name. Received: {name!r}, the name of a model of yours. "
                "Choose another --name, or add --replace.",
                code="name-in-use",
                operation="--name",
                received=name,
            )


def _convert_model(
    arguments: argparse.Namespace,
) -> tuple[PrivateModel, str | None, str, Table | None]:
    """Return the model, its preprocessing, the source of its weights, and its table."""
    from tfe_bench.models import images, tables, zoo
    from tfe_bench.models.private import convert

    way = arguments.preprocessing
    how = {"activations": arguments.activations}
    samples = None if arguments.samples is None else _read_arrays(arguments.samples)
    table = None
    if arguments.model in zoo.list_models():
        entry = zoo.find_model(arguments.model)
        if not entry.is_text and arguments.tokens is not None:
            raise UsageError(
                f"--tokens requires a model of texts. Received: {entry.title}.",
                code="option-not-applicable",
                operation="--tokens",
                received=entry.title,
            )
        if entry.is_text and way is not None:
            raise UsageError(
                f"--preprocessing requires a model of pictures. Received: {entry.title}.",
                code="option-not-applicable",
                operation="--preprocessing",
                received=entry.title,
            )
        tokens = zoo.TOKENS if arguments.tokens is None else arguments.tokens
        built = zoo.build(arguments.model, arguments.weights, tokens=tokens)
        way = way or (None if entry.is_text else entry.preprocessing)
        shown = zoo.samples(entry, tokens=tokens) if samples is None else samples
        private, source = convert(built.keras, shown, **how), built.weights
    elif Path(arguments.model).suffix != ".keras" and not Path(arguments.model).exists():
        zoo.find_model(arguments.model)  # raises an error with the known names
        raise AssertionError("unreachable")
    else:
        private = convert(arguments.model, samples, length=arguments.tokens, **how)
        source = Path(arguments.model).name
        table = tables.load_table(arguments.model)
    if way is not None:
        shapes = list(private.graph.inputs.values())
        images.check_preprocessing(way, images.picture_shape(shapes[0])[2])
    return private, way, source, table


def _read_arrays(path: Path) -> Any:
    """Read an array of reals with a batch axis, or arrays by name from a .npz file.

    Raises:
        DataError: the file is missing, damaged, or holds something else.
    """
    import numpy as np

    try:
        values: Any = np.load(path, allow_pickle=False)
        if isinstance(values, np.lib.npyio.NpzFile):
            with values as file:
                values = {name: file[name] for name in file.files}
    except Exception as error:  # NumPy's header parser raises many kinds on random bytes
        raise DataError(
            f"{str(path)!r} is not a readable .npy file, or it is damaged. "
            f"Received: {type(error).__name__}.",
            code="file-damaged",
            received=type(error).__name__,
        ) from error
    for each in values.values() if isinstance(values, dict) else [values]:
        if not isinstance(each, np.ndarray) or each.dtype.kind not in "biuf" or not each.size:
            raise DataError(
                f"Expected an array of numbers. Received: {str(path)!r} with another type or no "
                "elements. Use a .npy file of reals.",
                code="unsupported-type",
            )
    return values


# ---- predict


def run_predict(arguments: argparse.Namespace) -> int:
    """Predict privately with a model that three workers store.

    Shares a picture or numbers among three workers that store a model, and reconstructs the
    result on this machine. No worker sees the input or the result.
    """
    from tfe_bench.benchmarks.prediction import total_rounds
    from tfe_bench.models import service

    common.quiet_tensorflow()
    if bool(arguments.image) == (arguments.input is not None):
        raise UsageError(
            "predict takes pictures (--image FILE) or numbers (--input FILE). Received: "
            f"{'both' if arguments.image else 'neither'}.",
            code="exactly-one-required",
            operation="predict",
        )
    if arguments.output is not None:
        common.check_output(arguments.output, (".csv", ".npy"), "The outputs")
    model_file = arguments.name if arguments.name.endswith(".keras") else None
    files.check_files_exist(model_file, arguments.input, *arguments.image)
    local_model = _load_local_model(arguments) if arguments.name.endswith(".keras") else None
    with (
        common.progress_bar(arguments) as bar,
        stored_objects.open_service(arguments, bar) as cluster,
    ):
        model = local_model or service.find(cluster, arguments.name)
        if arguments.output is not None and len(model.private.graph.outputs) > 1:
            raise UsageError(
                "--output requires a model with one output. Received: several outputs. Use --json.",
                code="option-not-applicable",
                operation="--output",
            )
        bar.show_text("preparing the inputs")
        inputs, notes = _read_inputs(arguments, model)
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
        "rounds": total_rounds(measured)[0],
    }
    labels: list[str] = list(outputs) if isinstance(outputs, dict) else []
    several: Any = [outputs[name] for name in labels] if labels else outputs
    several = several if isinstance(several, list) else [several]
    header, rows = _output_table(model, several[0])
    if arguments.output is not None and arguments.input is not None:
        header, rows = _join_unused_columns(arguments.input, model, header, rows)
    if arguments.output is not None:
        _write_outputs(arguments.output, several, header, rows)
    if arguments.json:
        shown: Any = None if arguments.output is not None else [y.tolist() for y in several]
        if labels and shown:
            shown = dict(zip(labels, shown, strict=True))
        print(json.dumps({**summary, "images": names, "outputs": shown}))
        return 0
    for i, row in enumerate(several[0] if arguments.output is None else ()):
        output_text = _format_largest(row) if names else _format_outputs(row)
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
    return 0


@dataclass(frozen=True, eq=False)
class _LocalModel:
    """A model from a file, with the attributes of a `DeployedModel` of the workers."""

    name: str
    private: PrivateModel
    table: Table | None
    preprocessing: str | None = None


def _load_local_model(arguments: argparse.Namespace) -> _LocalModel:
    from tfe_bench.models import tables
    from tfe_bench.models.private import convert

    path = Path(arguments.name)
    return _LocalModel(path.name, convert(path), tables.load_table(path))


def _read_inputs(
    arguments: argparse.Namespace, model: DeployedModel | _LocalModel
) -> tuple[Any, list[str]]:
    """Return the model's inputs, and notes for the user."""
    import numpy as np

    from tfe_bench.models import images

    if arguments.input is not None:
        if arguments.input.suffix.lower() == ".csv":
            return _read_table_inputs(arguments.input, model)
        return _read_arrays(arguments.input), []
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


def _read_table_inputs(path: Path, model: DeployedModel | _LocalModel) -> tuple[Any, list[str]]:
    """Return a table's columns in the model's order, by name."""
    from tfe_bench.models import csv_file

    names, lines = csv_file.read_csv(path)
    if model.table is not None:
        x = model.table.rows(names, lines, path.name)
        ignored = [n for n in names if n not in model.table.columns]
        return x, [
            f"left out what the model does not take: {', '.join(ignored)}"
        ] if ignored else []
    graph = model.private.graph
    shapes = [s[:-1] if name in graph.tokens else s for name, s in graph.inputs.items()]
    if len(shapes) > 1 and all(shape == (1,) for shape in shapes):
        return _split_by_input(path, names, lines, graph)
    if shapes != [(len(names),)]:
        raise UsageError(
            f"{model.name!r} has no column names and takes {' and '.join(map(str, shapes))} of "
            f"each row. Received: {path.name!r} with {len(names)} columns. Provide its columns "
            "in the order of the model, or arrays by the names of its inputs in a .npz file.",
            code="column-count-mismatch",
            received=len(names),
        )
    csv_file.check_column_names(path.name, names)
    x = csv_file.parse_columns(path.name, names, lines, range(len(names)))
    return x, [f"{model.name!r} has no names of columns: they are taken in the file's order"]


def _split_by_input(
    path: Path, names: list[str], lines: Any, graph: Graph
) -> tuple[Any, list[str]]:
    """Return columns by the names of a model's inputs of one number per row."""
    from tfe_bench.models import csv_file

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
    for (
        name
    ) in graph.tokens:  # (other values than whole numbers stay floats, and are rejected later)
        if (arrays[name] == arrays[name].round()).all():
            arrays[name] = arrays[name].astype(int)
    ignored = [name for name in names if name not in graph.inputs]
    return arrays, [f"left out what the model does not take: {', '.join(ignored)}"][: len(ignored)]


def _output_table(
    model: DeployedModel | _LocalModel, outputs: Any
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
    path: Path, model: DeployedModel | _LocalModel, header: list[str], rows: list[list[Any]]
) -> tuple[list[str], list[list[Any]]]:
    """Append predictions to the columns that the model does not use, such as a row ID."""
    from tfe_bench.models import csv_file

    inputs = list(model.private.graph.inputs)
    if path.suffix.lower() != ".csv" or (model.table is None and len(inputs) == 1):
        return header, rows
    used_names = inputs if model.table is None else model.table.columns
    names, lines = csv_file.read_csv(path)
    places = [i for i, name in enumerate(names) if name not in used_names]
    others = [names[i] if names[i] not in header else f"{names[i]} (given)" for i in places]
    cells = [[line[i] for i in places] for line in lines]
    return [*others, *header], [[*a, *b] for a, b in zip(cells, rows, strict=True)]


def _format_largest(row: Any) -> str:
    """Format the largest outputs with their index."""
    flat = row.reshape(-1)
    order = sorted(range(flat.size), key=lambda i: -flat[i])[:_SHOWN]
    return "  ".join(f"{i} ({flat[i]:.4g})" for i in order)


def _format_outputs(row: Any) -> str:
    """Format the outputs in order; if there are many, the first and the largest ones."""
    flat = row.reshape(-1)
    text = "  ".join(f"{v:.6g}" for v in flat[:_NUMBERS])
    more = f"  ... of {flat.size}; largest: {_format_largest(row)}" if flat.size > _NUMBERS else ""
    return text + more


def _write_outputs(
    path: Path, outputs: list[Any], header: list[str], rows: list[list[Any]]
) -> None:
    import csv
    import io

    import numpy as np

    from tfe_bench.cluster.files import write_private

    if path.suffix.lower() == ".csv":
        text = io.StringIO(newline="")
        csv.writer(text, lineterminator="\n").writerows([header, *rows])
        write_private(path, text.getvalue().encode(), overwrite=True)
        return
    buffer = io.BytesIO()
    np.save(buffer, outputs[0])
    write_private(path, buffer.getvalue(), overwrite=True)


# ---- models


def run_models(arguments: argparse.Namespace) -> int:
    """List the deployed models that this client may use.

    Lists the models that three workers store and that this client may use.
    """
    from tfe_bench.models import service

    with (
        common.progress_bar(arguments) as bar,
        stored_objects.open_service(arguments, bar) as cluster,
    ):
        if arguments.remove is not None:
            service.undeploy(cluster, arguments.remove)
            rows = None
        else:
            rows = service.list_deployed(cluster)
    if rows is None:
        return stored_objects.report_removed(arguments)
    columns = {
        "inputs": lambda row: (
            "(of another version: deploy it again)"
            if row["inputs"] is None
            else ", ".join("x".join(map(str, s)) for s in row["inputs"].values())
        ),
        "weights": lambda row: "" if row["parameters"] is None else f"{row['parameters']:,}",
        "pictures": lambda row: row["preprocessing"] or "",
    }
    return stored_objects.print_list(
        arguments, [_model_facts(model) for model in rows], "model", columns
    )


def _model_facts(model: DeployedModel) -> dict[str, Any]:
    """Return the row of a model; inputs and parameters are None if this version cannot read it."""
    inputs: dict[str, list[int]] | None = None
    parameters: int | None = None
    with contextlib.suppress(DataError, UsageError):
        graph = model.private.graph
        inputs = {name: list(shape) for name, shape in graph.inputs.items()}
        parameters = graph.weight_count
    return {
        **stored_objects.common_facts(model),
        "inputs": inputs,
        "parameters": parameters,
        "preprocessing": model.preprocessing,
    }


COMMANDS = {
    "deploy": (_add_deploy_options, run_deploy),
    "predict": (_add_predict_options, run_predict),
    "models": (_add_models_options, run_models),
}

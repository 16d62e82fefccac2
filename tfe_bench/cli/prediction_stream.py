"""`predict --stream`: requests from a file or standard input, several of them in flight."""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

from tfe_bench.cli import common
from tfe_bench.errors import DataError, UsageError

# `--input` of samples that are typed or piped.
STANDARD_INPUT = Path("-")
_MOST_LINE = 1 << 26


def add_stream_options(p: argparse.ArgumentParser) -> None:
    """Add the options of a stream of requests."""
    common.add_option(
        p,
        "--stream",
        "send requests one after the other over one connection, several in flight, and print a "
        "JSON array of each sample's outputs as soon as they are known, in order: requests of "
        "--batch samples (default: 1) of --input, or lines of standard input (--input -), each a "
        "sample as a JSON array",
    )
    common.add_option(
        p,
        "--in-flight N",
        "largest number of requests of --stream at a time (default: 4; workers permit 8 jobs of a "
        "client unless their operators choose another max_jobs_per_client)",
        type=int,
    )


def check_stream_options(arguments: argparse.Namespace) -> None:
    """Reject options that do not apply with or without `--stream`.

    Raises:
        UsageError: naming the option.
    """
    if arguments.in_flight is not None and not arguments.stream:
        raise UsageError(
            "--in-flight requires --stream. Received: no --stream.",
            code="option-requires-option",
            operation="--in-flight",
            expected="--stream",
        )
    if arguments.input == STANDARD_INPUT and not arguments.stream:
        raise UsageError(
            "--input - (standard input) requires --stream. Received: no --stream.",
            code="option-requires-option",
            operation="--input",
            expected="--stream",
        )
    if arguments.stream and arguments.output is not None:
        raise UsageError(
            "--stream prints the outputs of each sample. Received: --output. Remove it, or "
            "redirect the standard output to a file.",
            code="conflicting-options",
            operation="--output",
            received="--stream",
        )


def read_request_lines(lines: TextIO, model: Any) -> Iterator[Any]:
    """Yield a request of one sample for each line: a JSON array of the shape of a model's input.

    Args:
        model: a model with `name` and `private`.

    Raises:
        UsageError: the model has several inputs.
        DataError: naming the line that is no such array.
    """
    shapes = list(model.private.graph.inputs.values())
    if len(shapes) != 1:
        raise UsageError(
            f"Expected a model with one input. Received: {model.name!r} has {len(shapes)} inputs. "
            "Use --input FILE (.npz).",
            code="unsupported-operation",
            operation="predict",
            received=len(shapes),
        )
    is_tokens = bool(model.private.graph.tokens)
    number = 0
    while line := lines.readline(_MOST_LINE):
        number += 1
        if line.strip():
            yield _parse_sample(line, number, is_tokens)[None]


def _parse_sample(line: str, number: int, is_tokens: bool) -> Any:
    import numpy as np

    try:
        values = np.asarray(json.loads(line))
        if values.dtype.kind not in "iuf" or not np.isfinite(values).all():
            raise ValueError("not numbers")
    except (ValueError, RecursionError):
        raise DataError(
            f"Expected a JSON array of numbers in line {number} of standard input. Received: "
            "another value. Each line is one sample, such as [0.5, 2, 1].",
            code="invalid-cell",
            operation=f"line {number}",
        ) from None
    return values if is_tokens else values.astype(np.float64)


def cut_into_requests(inputs: Any, size: int) -> Iterator[Any]:
    """Yield requests of a number of samples from inputs: an array, or arrays by name."""
    several = list(inputs.values()) if isinstance(inputs, dict) else [inputs]
    count = len(several[0])
    for begin in range(0, count, max(1, size)):
        part = slice(begin, begin + max(1, size))
        yield (
            {name: values[part] for name, values in inputs.items()}
            if isinstance(inputs, dict)
            else inputs[part]
        )


def print_stream(
    arguments: argparse.Namespace,
    cluster: Any,
    model: Any,
    requests: Iterable[Any],
    notes: Sequence[str] = (),
) -> int:
    """Print the outputs of each sample in order, and the rate of requests to stderr."""
    from tfe_bench.models.inference import service, stream

    for note in notes:
        print(f"tfe_bench: {note}", file=sys.stderr)
    results = stream.predict_stream(
        cluster,
        model if isinstance(model, service.DeployedModel) else model.private,
        requests,
        in_flight=(
            stream.DEFAULT_IN_FLIGHT if arguments.in_flight is None else arguments.in_flight
        ),
        batch=arguments.batch,
        check_range=arguments.check_range,
    )
    started = time.perf_counter()
    request_count = sample_count = 0
    for outputs, _ in results:
        samples = _list_samples(outputs)
        for sample in samples:
            print(json.dumps(sample), flush=True)
        request_count += 1
        sample_count += len(samples)
    seconds = time.perf_counter() - started
    rate = request_count / seconds if seconds else math.nan
    print(
        f"{sample_count} samples in {request_count} requests, {seconds:.2f} s: "
        f"{rate:.3g} requests per second",
        file=sys.stderr,
    )
    return 0


def _list_samples(outputs: Any) -> list[Any]:
    """Return the outputs of each sample: a list, or lists by name or in order for several."""
    if isinstance(outputs, dict):
        columns = [values.tolist() for values in outputs.values()]
        return [dict(zip(outputs, row, strict=True)) for row in zip(*columns, strict=True)]
    if isinstance(outputs, list):
        return [list(row) for row in zip(*(y.tolist() for y in outputs), strict=True)]
    return list(outputs.tolist())

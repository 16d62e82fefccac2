"""The commands of single operations, and `ops`: all on one cluster, in this process."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cli.conftest import SharedCluster
from tests.paths import ROOT
from tfe_bench.__main__ import main
from tfe_bench.benchmarks import operations
from tfe_bench.benchmarks.records import Record, read_records
from tfe_bench.cluster import launch

USAGE, DATA, RANGE = 2, 10, 40
_SECRET = "123456.75"


@pytest.fixture(scope="module")
def workers() -> Iterator[launch.LocalCluster]:
    with launch.LocalCluster() as cluster:
        yield cluster


Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Command:
    """Return a function that runs a command in the test's folder: exit code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    monkeypatch.setenv("COLUMNS", "80")

    def run(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        try:
            code = main(list(arguments))
        except SystemExit as ended:  # from argparse
            code = int(ended.code or 0)
        output = capsys.readouterr()
        return code, output.out, output.err

    return run


@pytest.fixture
def on_workers(
    command: Command, workers: launch.LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> Command:
    """Return a command whose three local workers already run."""
    monkeypatch.setattr(launch, "LocalCluster", lambda **_: SharedCluster(workers))
    return command


@pytest.fixture
def refused(
    command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[..., str]:
    """Return a function that checks that a command is rejected before workers start: its stderr."""

    def started(**_: object) -> None:
        raise AssertionError("the workers were started")

    monkeypatch.setattr(launch, "LocalCluster", started)

    def check(arguments: list[str], code: int, *fragments: str) -> str:
        before = sorted(tmp_path.rglob("*"))
        got, out, err = command(*arguments)
        assert got == code, err
        assert out == "" and "Traceback" not in err and len(err.splitlines()) <= 24
        for word in fragments:
            assert word in err, err
        assert sorted(tmp_path.rglob("*")) == before
        return err

    return check


# ---- files of users

_TABLE = "a,b\n1,2.5\n3,-4\n5,5\n"
_KEYS = "name,s,t\nx,9223372036854775807,-9223372036854775808\ny,-5,-5\nz,3,4\n"


@pytest.mark.parametrize(
    ("arguments", "header", "expected"),
    [
        (["max"], "max", [2.5, 3, 5]),
        (["max", "--axis", "column"], "max", [5, 5]),
        (["max", "--column", "b", "--method", "tree"], "max", [5]),
        (["max", "--column", "0"], "max", [5]),
        (["relu"], "relu_0,relu_1", [[1, 2.5], [3, 0], [5, 5]]),
        (["relu", "--column", "b"], "relu", [2.5, 0, 5]),
        (["argmax"], "argmax", [1, 0, 0]),
        (["top_k", "--k", "1", "--axis", "column"], "top_k_0,top_k_1", [[5, 5]]),
        (["maximum"], "maximum", [2.5, 3, 5]),
        (["compare"], "less", [1, 0, 0]),
        (["compare", "--op", "not_equal"], "not_equal", [1, 1, 0]),
        (["compare", "--column", "b,a"], "less", [0, 1, 0]),
    ],
    ids=lambda value: "-".join(map(str, value)) if isinstance(value, list) else None,
)
def test_a_file_goes_in_and_the_exact_result_comes_out(
    on_workers: Command, tmp_path: Path, arguments: list[str], header: str, expected: Any
) -> None:
    (tmp_path / "table.csv").write_text(_TABLE)
    line = [*arguments, "--input", "table.csv", "--output", "result.csv", "--repeat", "1"]
    code, out, err = on_workers(*line)
    assert code == 0, err
    assert "correct        yes, max error 0" in out and "\x1b" not in out
    names, *rows = (tmp_path / "result.csv").read_text().splitlines()
    assert names == header
    assert np.array_equal([[float(v) for v in r.split(",")] for r in rows], _as_column(expected))
    assert (tmp_path / "result.csv").stat().st_mode & 0o777 == 0o600


def _as_column(values: Any) -> Any:
    array = np.array(values, np.float64)
    return array[:, np.newaxis] if array.ndim == 1 else array


@pytest.mark.parametrize("axis", ["row", "column"])
def test_softmax_of_a_file_lies_as_the_file_does(
    on_workers: Command, tmp_path: Path, axis: str
) -> None:
    x = np.array([[1.0, -2.0, 9.0], [0.5, 0.5, 0.25]])
    np.save(tmp_path / "x.npy", x)
    code, _, err = on_workers(
        *("softmax", "--input", "x.npy", "--axis", axis, "--output", "y.npy", "--repeat", "1")
    )
    assert code == 0, err
    e = np.exp(x)
    expected = e / e.sum(axis=1 if axis == "row" else 0, keepdims=True)
    np.testing.assert_allclose(np.load(tmp_path / "y.npy"), expected, atol=2**-15)


def test_integers_at_the_ends_of_the_range_compare_exactly(
    on_workers: Command, tmp_path: Path
) -> None:
    (tmp_path / "keys.csv").write_text(_KEYS)
    line = ["--input", "keys.csv", "--column", "s,t", "--output", "r.csv", "--repeat", "1"]
    code, out, err = on_workers("compare", "--op", "greater", *line, "--json")
    assert code == 0, err
    assert (tmp_path / "r.csv").read_text() == "greater\n1\n0\n0\n"
    record = Record.from_json(out)
    assert record.parameters["values"] == "int64" and record.fractional_bits == 0
    line = ["--input", "keys.csv", "--column", "s", "--bits", "64", "--output", "r.npy"]
    code, _, err = on_workers("relu", *line, "--repeat", "1")
    assert code == 0, err
    assert np.load(tmp_path / "r.npy").tolist() == [2**63 - 1, 0, 3]


# ---- records


@pytest.mark.parametrize(
    ("arguments", "shape"),
    [
        (["max", "--n", "50"], "50x4"),
        (["max", "--shape", "30x10", "--method", "all-pairs", "--plan-for", "wan"], "30x10"),
        (["relu", "--shape", "3x4x5"], "3x4x5"),
        (["softmax", "--n", "7", "--plan-for", "wan"], "7x10"),
        (["compare", "--n", "100"], "100"),
        (["compare", "--n", "100", "--kind", "float", "--op", "equal"], "100"),
    ],
    ids=lambda value: "-".join(map(str, value)) if isinstance(value, list) else None,
)
def test_json_prints_one_record(
    on_workers: Command, tmp_path: Path, arguments: list[str], shape: str
) -> None:
    code, out, err = on_workers(
        *arguments, "--json", "--repeat", "2", "--seed", "3", "--record", "r"
    )
    assert (code, err) == (0, "")
    record = Record.from_json(out)
    assert out.count("\n") == 1
    assert record.workload == arguments[0] and record.correct and record.repeats == 2
    assert record.parameters["shape"] == shape and record.parameters["source"] == "seed 3"
    assert record.bytes_sent is not None and sum(record.bytes_sent) > 0
    assert record.rounds is not None and record.rounds_ahead is not None
    assert record.rounds > record.rounds_ahead > 0
    assert record.peak_memory is not None and record.cluster == "local"
    assert ("plan_for" in record.parameters) == ("--plan-for" in arguments)
    assert read_records(tmp_path / "r") == [record]


def test_a_wrong_result_ends_with_code_1(
    on_workers: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = operations.Verdict(False, 0.5, 32768.0)
    monkeypatch.setattr(operations, "judge_result", lambda *_: wrong)
    code, out, _ = on_workers("relu", "--n", "5", "--repeat", "1")
    assert code == 1 and "NO, max error 0.5" in out
    code, out, _ = on_workers("ops", "--only", "relu,mul", "--quick", "--repeat", "1")
    assert code == 1 and out.count(" NO\n") == 2 and "wrong: relu, mul" in out


# ---- ops


# The shortest and the longest name, many classes, pairs of words, no figure in ulp.
SOME = ("max", "depthwise_conv2d", "softmax", "floordiv", "top_k", "less")


@pytest.mark.parametrize("names", [SOME, pytest.param((), marks=pytest.mark.slow)], ids=len)
def test_ops_prints_one_line_for_each_operation_within_80_columns(
    names: tuple[str, ...], on_workers: Command
) -> None:
    only = ("--only", ",".join(names)) if names else ()
    code, out, err = on_workers("ops", "--quick", "--repeat", "1", *only)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert max(map(len, lines)) <= 80 and "\x1b" not in out
    end = lines.index("")
    assert lines[0].split() == [
        *("operation", "size", "time", "B/elem", "sent", "rounds", "ulp", "ok")
    ]
    every = names or [o.name for o in operations.listed_operations()]
    assert {line.split()[0] for line in lines[1:end]} == {*every} and end == 1 + len(every)
    assert all(line.endswith(" yes") for line in lines[1:end])
    assert f"{end - 1} operations, 1 runs each, all correct." in " ".join(lines[end:])


def test_ops_with_json_prints_a_record_for_each_operation(
    on_workers: Command, tmp_path: Path
) -> None:
    names = ["top_k", "mul", "greater"]
    code, out, err = on_workers(
        *("ops", "--only", ", ".join([*names, "mul"]), "--scale", "0.001", "--repeat", "1"),
        *("--json", "--record", "records.jsonl"),
    )
    assert (code, err) == (0, "")
    records = [Record.from_json(line) for line in out.splitlines()]
    assert [r.workload for r in records] == names
    assert read_records(tmp_path / "records.jsonl") == records
    assert [r.parameters["shape"] for r in records] == ["1x4", "262", "262"]
    assert records[0].parameters["k"] == 4
    assert all(r.correct and json.loads(r.to_json())["rounds"] for r in records)


@pytest.mark.parametrize("columns", [30, 50, 79, 200])
def test_a_narrow_terminal_shows_fewer_columns(
    on_workers: Command, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    from rich import console

    screen = io.StringIO()
    plain = console.Console

    def narrow(**_: bool) -> console.Console:
        return plain(file=screen, width=columns, force_terminal=True, _environ={"TERM": "xterm"})

    monkeypatch.setattr(console, "Console", narrow)
    code, _, _ = on_workers(
        "ops", "--only", "depthwise_conv2d,matmul", "--scale", "0.01", "--repeat", "1"
    )
    assert code == 0
    shown = screen.getvalue()
    assert "\x1b[1m" in shown
    lines = [_strip_styles(line) for line in shown.splitlines()]
    assert max(map(len, lines)) <= columns
    assert lines[1].startswith("depthwise_conv2d") and lines[1].rstrip().endswith("yes")
    assert ("No room for:" in " ".join(lines)) == (columns < 79)


def _strip_styles(text: str) -> str:
    first, *rest = text.split("\x1b[")
    return first + "".join(part.partition("m")[2] for part in rest)


def test_what_was_measured_before_a_failure_is_shown(
    on_workers: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tfe_bench.cli import operation
    from tfe_bench.errors import PeerLost

    whole = operation.run_work

    def lost(cluster: Any, work: Any, *more: Any) -> Any:
        if work.operation.name == "mul":
            raise PeerLost(1, "it was lost in a test")
        return whole(cluster, work, *more)

    monkeypatch.setattr(operation, "run_work", lost)
    code, out, err = on_workers("ops", "--only", "relu,mul", "--scale", "0.001", "--repeat", "1")
    assert code == 20 and "[peer-lost]" in err and "party 1" in err
    assert "\nrelu " in out and "\nmul" not in out and "1 operations" in out


# ---- inputs that do not fit


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["max", "--n", "0"], USAGE, ["--n", "Received: 0"]),
        (["relu", "--n", "-3"], USAGE, ["--n", "Received: -3"]),
        (["relu", "--n", "5", "--shape", "5"], USAGE, ["exclude"]),
        (["relu", "--n", "67108865"], USAGE, ["67108864", "67108865"]),
        (["relu", "--shape", "99999999999x99999999999"], USAGE, ["67108864"]),
        (["relu", "--shape", ""], USAGE, ["--shape"]),
        (["relu", "--shape", "4,4"], USAGE, ["--shape", "'4,4'"]),
        (["relu", "--shape", "٣"], USAGE, ["--shape"]),
        (["relu", "--shape=-1x4"], USAGE, ["1x1 or more", "-1x4"]),
        (["relu", "--bits", "1"], USAGE, ["2 to 64"]),
        (["relu", "--shape", "2x3x4", "--output", "o.npy"], USAGE, ["axes"]),
        (["max", "--shape", "4"], USAGE, ["2 axes"]),
        (["max", "--shape", "4x0"], USAGE, ["1x1 or more"]),
        (["max", "--method", "tre"], USAGE, ['Did you mean "tree"']),
        (["max", "--shape", "9x11", "--method", "all-pairs"], USAGE, ["up to 10"]),
        (["max", "--axis", "column"], USAGE, ["--axis", "--input"]),
        (["max", "--column", "a"], USAGE, ["--column", "--input"]),
        (["max", "--seed", "-1"], USAGE, ["-1"]),
        (["softmax", "--shape", "2x65537"], USAGE, ["65536"]),
        (["compare", "--op", "lesss"], USAGE, ['Did you mean "less"', "greater_equal"]),
        (["compare", "--kind", "floats"], USAGE, ["floats"]),
        (["relu", "--repeat", "0"], USAGE, ["--repeat"]),
        (["relu", "--client", "bob"], USAGE, ["--cluster"]),
        (["relu", "--output", "r.txt"], DATA, [".csv or .npy"]),
        (["relu", "--record", "missing/r.jsonl"], DATA, ["missing"]),
        (["where", "--n", "0"], USAGE, ["1 or more"]),
        (["conv2d", "--input", "a.npy"], USAGE, ["--input"]),
        (["top_k", "--k", "5000"], USAGE, ["Received: 5000"]),
        (["ops", "--only", "relu,maxx"], USAGE, ['Did you mean "max"']),
        (["ops", "--only", ""], USAGE, ["Unknown operation ''"]),
        (["ops", "--scale", "0"], USAGE, ["--scale"]),
        (["ops", "--scale", "-1"], USAGE, ["--scale"]),
        (["ops", "--scale", "nan"], USAGE, ["nan"]),
        (["ops", "--scale", "17"], USAGE, ["16"]),
        (["ops", "--scale", "0.5", "--quick"], USAGE, ["--quick"]),
        (["ops", "--seed", "-1"], USAGE, ["--seed"]),
        (["ops", "--repeat", "0"], USAGE, ["--repeat"]),
    ],
    ids=lambda value: "-".join(map(str, value)) if isinstance(value, list) else None,
)
def test_an_option_that_does_not_fit_is_refused_before_workers_start(
    refused: Callable[..., str], arguments: list[str], code: int, told: list[str]
) -> None:
    refused(arguments, code, *told)


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["relu", "--input", "nan.csv"], DATA, ["Line 3", "NaN"]),
        (["max", "--input", "empty.npy"], DATA, ["empty"]),
        (["max", "--input", "empty.csv"], DATA, ["empty"]),
        (["max", "--input", "cube.npy"], DATA, ["one or two axes"]),
        (["relu", "--input", "nann.csv"], DATA, ['Did you mean "nan.csv"']),
        (["max", "--input", "keys.csv"], DATA, ["not numeric"]),
        (["max", "--input", "keys.csv", "--column", "u"], DATA, ["no column"]),
        (["max", "--input", "keys.csv", "--column", "s,s"], USAGE, ["s"]),
        (["max", "--input", "keys.csv", "--column", "s", "--n", "3"], USAGE, ["exclude"]),
        (["max", "--input", "keys.csv", "--column", "s", "--shape", "3"], USAGE, ["exclude"]),
        (["max", "--input", "keys.csv", "--column", "s,t"], RANGE, ["2^62", "line 2", "'s'"]),
        (["max", "--input", "late.csv", "--axis", "column"], RANGE, ["line 3", "column 'a'"]),
        (["relu", "--input", "keys.csv", "--column", "s"], RANGE, ["2^30", "line 2"]),
        (["relu", "--input", "large.csv"], RANGE, ["2^14", "line 2"]),
        (["softmax", "--input", "large.csv"], RANGE, ["2^14", "line 2"]),
        (["compare", "--input", "keys.csv", "--column", "s"], USAGE, ["two columns"]),
        (["compare", "--input", "nan.csv"], DATA, ["NaN"]),
    ],
    ids=lambda value: "-".join(map(str, value)) if isinstance(value, list) else None,
)
def test_a_file_that_does_not_fit_is_refused_without_showing_a_value(
    refused: Callable[..., str],
    tmp_path: Path,
    arguments: list[str],
    code: int,
    told: list[str],
) -> None:
    for name, text in {
        "keys.csv": _KEYS,
        "nan.csv": f"v\n{_SECRET}\nnan\n",
        "large.csv": f"v\n{_SECRET}\n2.5\n",
        "late.csv": "a,b\n1.5,2\n7.5e20,3\n",
        "empty.csv": "",
    }.items():
        (tmp_path / name).write_text(text)
    np.save(tmp_path / "empty.npy", np.zeros((0, 3)))
    np.save(tmp_path / "cube.npy", np.zeros((2, 2, 2)))
    err = refused(arguments, code, *told)
    for secret in (_SECRET, "9223372036854775807", "7.5e20", "-5"):
        assert secret not in err


def test_what_is_checked_beforehand_needs_no_tensorflow(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "tfe_bench", "max", "--n", "9", "--repeat", "0"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert done.returncode == USAGE and "numpy" in imported and "tensorflow" not in imported

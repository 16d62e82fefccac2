"""Mistakes of users: an exit code, one screen on stderr, and nothing else."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tfe_bench.__main__ import main

if TYPE_CHECKING:
    from tests.cli.conftest import Command

USAGE, CONFIG, SECURITY, RANGE = 2, 10, 30, 40


@pytest.fixture
def command(command_here: Command) -> Command:
    """Run all commands in this process: a rejected command starts no other process."""
    return command_here


_SECRET = "123456.789"


def _check_refused(
    command: Command, folder: Path, arguments: list[str], code: int, *fragments: str
) -> str:
    """Check that a command line is rejected with a short error and leaves no file."""
    before = sorted(folder.rglob("*"))
    done = command(*arguments)
    assert done.returncode == code, done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) <= 24
    for word in fragments:
        assert word in done.stderr, done.stderr
    assert sorted(folder.rglob("*")) == before
    return done.stderr


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Return a folder of data files, most of them invalid."""
    contents = {
        "people.csv": "name,salary,age\nann,85000,31\nbob,72000,47\ncy,91000,29\n",
        "nan.csv": f"salary\n{_SECRET}\nNaN\n1.5\n",
        "inf.csv": f"salary\n{_SECRET}\n1.5\n-inf\n",
        "large.csv": "salary\n1.5\n7.77e20\n",
        "wide.csv": "salary\n1\n77777777777777777777\n",
        "text.csv": f"salary,note\n{_SECRET},hello\n2.5,world\n",
        "holes.csv": f"salary\n{_SECRET}\n\n3.5\n",
        "ragged.csv": "a,b\n1,2\n3\n",
        "header.csv": "salary\n",
        "empty.csv": "",
        "mixed.csv": "key,weight\n1,2.5\n2,3.5\n",
    }
    for name, content in contents.items():
        (tmp_path / name).write_text(content)
    (tmp_path / "noise.npy").write_bytes(b"\x93NUMPY\x01\x00 nothing")
    (tmp_path / "picture.png").write_bytes(b"\x89PNG")
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["nan.csv"], CONFIG, ["Line 3", "'salary'", "NaN"]),
        (["inf.csv"], CONFIG, ["Line 4", "'salary'", "infinite"]),
        (["wide.csv"], CONFIG, ["Line 3", "outside -2^63 .. 2^63-1"]),
        (["holes.csv"], CONFIG, ["Line 3", "blank"]),
        (["ragged.csv"], CONFIG, ["Line 3"]),
        (["header.csv"], CONFIG, ["no rows"]),
        (["empty.csv"], CONFIG, ["empty"]),
        (["noise.npy"], CONFIG, ["not a .npy file"]),
        (["picture.png"], CONFIG, [".csv or .npy"]),
        (["."], CONFIG, ["folder"]),
        (["peopel.csv"], CONFIG, ["no file", 'Did you mean "people.csv"']),
        (["missing/people.csv"], CONFIG, ["no file", "folder"]),
        (["people.csv"], CONFIG, ["numeric columns", "salary", "age"]),
        (["people.csv", "--column", "salry"], CONFIG, ['Did you mean "salary"']),
        (["people.csv", "--column", "7"], CONFIG, ["no column"]),
        (["people.csv", "--column", "name"], CONFIG, ["Line 2", "text"]),
        (["text.csv", "--column", "note"], CONFIG, ["Line 2", "text"]),
        (["people.csv", "--column", "age", "--payload", "age"], USAGE, ["'age'", "once"]),
        (["people.csv", "--column", "age", "--payload", "agee"], CONFIG, ['"age"']),
        (["people.csv", "--column", "age", "--n", "5"], USAGE, ["exclude"]),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, list) else None,
)
def test_a_data_file_that_does_not_fit_is_refused_without_showing_a_value(
    command: Command, files: Path, arguments: list[str], code: int, told: list[str]
) -> None:
    err = _check_refused(command, files, ["sort", "--input", *arguments], code, *told)
    for secret in (_SECRET, "7.77e20", "777777777", "85000", "hello"):
        assert secret not in err


def test_a_value_beyond_fixed_point_is_told_by_its_line(command: Command, files: Path) -> None:
    fragments = ["on line 3 of 'large.csv', column 'salary'", "2^46"]
    err = _check_refused(command, files, ["relu", "--input", "large.csv"], RANGE, *fragments)
    assert "index" not in err and "7.77e20" not in err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--n", "-1"], ["--n", "-1"]),
        (["--n", "10", "--repeat", "0"], ["--repeat", "0"]),
        (["--repeat", "-3"], ["--repeat", "-3"]),
        (["--repeat", "1001"], ["1000"]),
        (["--n", "67108865"], ["67108864", "67108865"]),
        (["--n", "99999999999999999999999"], ["99999999999999999999999"]),
        (["--n", "many"], ["--n"]),
        (["--seed", "-1"], ["-1"]),
        (["--algorithm", "quik"], ['Did you mean "quick"', "all-pairs"]),
        (["--algorithm", ""], ["--algorithm"]),
        (["--kind", "floats"], ["floats"]),
        (["--profile", "mars"], ["mars", "net3"]),
        (["--profile", "wam"], ["wam", 'Did you mean "wan"']),
        (["--emulate", "netn"], ["netn", 'Did you mean "netns"']),
        (["--emulate", "netns", "--cluster", "c.toml"], ["--emulate", "--cluster"]),
        (["--cores", "0"], ["--cores", "0"]),
        (["--cores", "100000"], ["--cores", "100000"]),
        (["--cores", "1", "--cluster", "c.toml"], ["--cores", "--cluster"]),
        (["--column", "salary"], ["--column", "--input"]),
        (["--payload", "a,b"], ["--payload", "--input"]),
        (["--client", "bob"], ["--client", "--cluster"]),
        (["--frobnicate"], ["--frobnicate"]),
        (["5"], ["5"]),
    ],
    ids=lambda value: "=".join(value) if isinstance(value, list) else None,
)
def test_an_option_that_does_not_fit_is_refused(
    command: Command, tmp_path: Path, arguments: list[str], told: list[str]
) -> None:
    _check_refused(command, tmp_path, ["sort", *arguments], USAGE, *told)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--method", "tailor"], ['Did you mean "taylor"', "one-round"]),
        (["--method", ""], ["--method"]),
        (["--clamp", "high"], ["high"]),
        (["--ring", "32"], ["32"]),
        (["--iterations", "4"], ["--iterations", "taylor"]),
        (["--iterations", "0", "--method", "taylor"], ["Received: 0"]),
        (["--fractional-bits", "0"], ["--fractional-bits", "0"]),
        (["--fractional-bits", "63"], ["63"]),
        (["--seed", "-1"], ["-1"]),
        (["--report", "r"], ["--report", "--study"]),
        (["--quick"], ["--quick", "--study"]),
        (["--float32"], ["--float32", "--study"]),
        (["--levels", "net1"], ["--levels", "--study"]),
        (["--study", "--levels", "net1,nett2"], ["--levels", "'nett2'", 'Did you mean "net2"']),
        (["--study", "--levels", "none,net1"], ["'none'", "net0, net1, net2, net3"]),
        (["--study", "--levels", ""], ["--levels", "Received: ''"]),
        (["--study", "--profile", "net2"], ["--profile net2", "--levels"]),
        (["--study", "--n", "7"], ["--n", "--study"]),
        (["--study", "--record", "r.jsonl"], ["--record", "--study"]),
        (["--study", "--repeat", "0"], ["--repeat", "0"]),
        (["--advise", "3", "2"], ["LOW <= HIGH", "3 2"]),
        (["--advise", "nan", "2"], ["LOW <= HIGH"]),
        (["--advise", "1"], ["--advise"]),
    ],
    ids=lambda value: "=".join(value) if isinstance(value, list) else None,
)
def test_an_option_of_exp_that_does_not_fit_is_refused(
    command: Command, tmp_path: Path, arguments: list[str], told: list[str]
) -> None:
    _check_refused(command, tmp_path, ["exp", *arguments], USAGE, *told)


@pytest.mark.parametrize("folder", ["full", "file.txt", "missing/report"])
def test_a_report_that_could_not_be_written_is_refused_before_the_study(
    command: Command, tmp_path: Path, folder: str
) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("mine")
    (tmp_path / "file.txt").write_text("mine")
    arguments = ["exp", "--study", "--quick", "--report", folder]
    _check_refused(command, tmp_path, arguments, CONFIG, folder, "--report")


@pytest.mark.parametrize(
    ("option", "path", "told"),
    [
        ("--output", "missing/result.csv", "missing"),
        ("--output", "result.txt", ".csv or .npy"),
        ("--output", "result", ".csv or .npy"),
        ("--output", "folder.csv", "folder.csv"),
        ("--record", "missing/record.jsonl", "missing"),
        ("--record", "folder.csv", "folder.csv"),
    ],
)
def test_a_file_that_could_not_be_written_is_refused_before_the_run(
    command: Command, tmp_path: Path, option: str, path: str, told: str
) -> None:
    (tmp_path / "folder.csv").mkdir()
    _check_refused(command, tmp_path, ["sort", "--n", "9", option, path], CONFIG, told)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission_is_refused_before_the_run(
    command: Command, tmp_path: Path
) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o500)
    for option, name in (("--output", "a.csv"), ("--record", "a.jsonl")):
        _check_refused(command, tmp_path, ["sort", "--n", "9", option, str(closed / name)], CONFIG)


@pytest.mark.parametrize(
    ("file", "columns", "code", "told"),
    [
        ("mixed.csv", ["key", "weight"], USAGE, ".csv"),
        ("people.csv", ["age", "name"], CONFIG, "Line 2"),
    ],
)
def test_columns_that_no_npy_file_holds_are_refused_before_the_run(
    command: Command, files: Path, file: str, columns: list[str], code: int, told: str
) -> None:
    arguments = ["sort", "--input", file, "--column", columns[0], "--payload", columns[1]]
    _check_refused(command, files, [*arguments, "--output", "result.npy"], code, told)


# ---- cluster files

_GOOD = """\
[cluster]
name = "demo"
tls = false
[[party]]
name = "a"
host = "127.0.0.1"
port = 17701
[[party]]
name = "b"
host = "127.0.0.2"
port = 17702
[[party]]
name = "c"
host = "127.0.0.3"
port = 17703
"""


@pytest.mark.parametrize(
    ("text", "code", "told"),
    [
        ("", CONFIG, ["three [[party]]"]),
        ("[cluster\n", CONFIG, ["not valid TOML", "line 1"]),
        (_GOOD.replace("tls", "tsl"), CONFIG, ['Did you mean "tls"']),
        (_GOOD.replace("port = 17702", 'port = "17702"'), CONFIG, ["port", "whole number"]),
        (_GOOD.replace("17702", "99999"), CONFIG, ["99999", "65535"]),
        (_GOOD.replace("127.0.0.2", "127.0.0.1").replace("17702", "17701"), CONFIG, ["same"]),
        (_GOOD.replace('"b"', '"a"'), CONFIG, ["same"]),
        (_GOOD.replace("tls = false", "tls = true"), CONFIG, ["certificate"]),
        (_GOOD.replace("127.0.0.2", "10.1.2.3"), SECURITY, ["loopback", "10.1.2.3"]),
        (_GOOD + '[[party]]\nname = "d"\nhost = "127.0.0.4"\nport = 1\n', CONFIG, ["Received: 4"]),
        (_GOOD.replace("tls = false", "ring = 128\ntls = false"), CONFIG, ["ring", "128"]),
        ('{"server0": "127.0.0.1:1", "server1": "127.0.0.1:2"}', CONFIG, ["server2"]),
        ("\0\1\2", CONFIG, ["TOML"]),
    ],
    ids=[
        *("empty", "cut", "misspelt", "type", "port", "address", "name", "certificate"),
        *("cleartext", "four", "ring", "json", "binary"),
    ],
)
@pytest.mark.parametrize("arguments", [["sort", "--n", "9"], ["worker", "--party", "0"]])
def test_a_cluster_file_that_does_not_hold_together_is_refused(
    command: Command, tmp_path: Path, arguments: list[str], text: str, code: int, told: list[str]
) -> None:
    (tmp_path / "cluster.toml").write_text(text)
    arguments = [*arguments, "--cluster", "cluster.toml"]
    _check_refused(command, tmp_path, arguments, code, "cluster.toml", *told)


def test_a_missing_file_is_named(command: Command, tmp_path: Path) -> None:
    _check_refused(
        command, tmp_path, ["sort", "--cluster", "no.toml"], CONFIG, "no.toml", "certs all"
    )
    (tmp_path / "cluster.toml").write_text(_GOOD)
    worker = ["worker", "--party", "1", "--cluster", "cluster.toml"]
    _check_refused(command, tmp_path, worker, CONFIG, "worker1.toml")


# ---- commands


@pytest.mark.parametrize("arguments", [["sorr"], ["--bogus"], ["certs"], ["certs", "none"]])
def test_an_unknown_or_missing_command_shows_the_usage(
    command: Command, tmp_path: Path, arguments: list[str]
) -> None:
    _check_refused(command, tmp_path, arguments, USAGE, "usage:")


@pytest.mark.parametrize(
    ("workload", "option"),
    [
        ("matmul", "--repeat"),
        ("matmul", "--n"),
        ("exp", "--repeat"),
        ("exp", "--n"),
        ("channel", "--repeat"),
        ("channel", "--rounds"),
        ("channel", "--megabytes"),
    ],
)
def test_every_workload_refuses_useless_numbers(
    command: Command, tmp_path: Path, workload: str, option: str
) -> None:
    for number in ("0", "-1", "5000000"):
        _check_refused(command, tmp_path, [workload, option, number], USAGE, option, number)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["all", "--hosts", "127.0.0.1:1,127.0.0.2:2"], USAGE),
        (["all", "--hosts", "a:1,b:2,c"], USAGE),
        (["all", "--hosts", "a:1,a:1,b:2"], USAGE),
        (["all", "--hosts", "a:1,b:1,c:1", "--client", "../x"], USAGE),
        (["all", "--hosts", "a:1,b:1,c:1", "--days", "0"], USAGE),
        (["client", "--name", "a b"], USAGE),
        (["party", "--party", "3"], USAGE),
    ],
)
def test_certs_refuses_what_does_not_fit_and_writes_nothing(
    command: Command, tmp_path: Path, arguments: list[str], code: int
) -> None:
    _check_refused(command, tmp_path, ["certs", *arguments, "--out", "made"], code)


@pytest.mark.parametrize(
    "words",
    [
        *("sort --input no.csv", "relu --input no.npy", "deploy no.keras --name m"),
        *("predict m --image no.png", "predict no.keras --input rows.csv", "certs show no.crt"),
        *("predict m --input no.npy", "train no.keras --dataset rows.csv --label a"),
        *("table put t --input no.csv", "status --cluster no.toml"),
        "worker --party 0 --cluster no.toml",
    ],
)
def test_a_missing_file_is_told_before_anything_is_started(
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Check that a missing file is reported without TensorFlow or a worker."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.csv").write_text("a,b\n1,2\n")

    def starts(*_: object, **__: object) -> None:
        raise AssertionError("a cluster was started")

    monkeypatch.setattr("tfe_bench.cluster.launch.LocalCluster.__init__", starts)
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    assert main(words.split()) == 10
    missing = next(word for word in words.split() if word.startswith("no."))
    assert missing in capsys.readouterr().err


def test_a_name_that_is_taken_is_told_before_a_model_is_converted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class TakenNames:
        identity = "ann"

        def __enter__(self) -> TakenNames:
            return self

        def __exit__(self, *_: object) -> None:
            """Do nothing."""

        def stored(self) -> list[dict[str, str]]:
            return [{"name": "m", "owner": "ann"}, {"name": "other", "owner": "bob"}]

    def converts(*_: object) -> None:
        raise AssertionError("converted")

    (tmp_path / "m.keras").write_bytes(b"")
    monkeypatch.setattr("tfe_bench.cluster.launch.Cluster", lambda *_: TakenNames())
    monkeypatch.setattr("tfe_bench.cli.service._convert_model", converts)
    words = ["deploy", str(tmp_path / "m.keras"), "--cluster", "c.toml", "--name"]
    assert main([*words, "m"]) == 2
    assert "--replace" in capsys.readouterr().err
    for more in (["n"], ["m", "--replace"], ["other"]):  # (the workers refuse another client's)
        assert main([*words, *more]) == 1
        assert "AssertionError" in capsys.readouterr().err

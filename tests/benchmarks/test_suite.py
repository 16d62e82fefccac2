"""Suites: their rows, resumption, and the effect of a failure.

No worker starts here: a replacement of the commands writes records.
"""

from __future__ import annotations

import argparse
import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.refusals import raises
from tfe_bench import __main__ as program
from tfe_bench.benchmarks import provenance, published, records, suite
from tfe_bench.cli import suite as command
from tfe_bench.errors import ConfigError, DataError, PeerLost, TfeBenchError, UsageError

if TYPE_CHECKING:
    from tests.benchmarks.conftest import Maker


class _FakeCommands:
    """Stand-in for the command line: it writes the record of each row, or fails on request."""

    def __init__(self, make_record: Maker) -> None:
        self.ran: list[list[str]] = []
        self.fails: dict[str, BaseException] = {}
        self.wrong: set[str] = set()
        self._make_record = make_record

    def parse_args(self, words: list[str]) -> argparse.Namespace:
        self.ran.append(words)
        return argparse.Namespace(run=lambda _: self._run(words))

    def _run(self, words: list[str]) -> int:
        options = dict(itertools.pairwise(words))
        file, profile = Path(options["--record"]), options["--profile"]
        every = [
            *suite.paper_suite_rows(True),
            *suite.paper_suite_rows(False),
            *suite.operation_suite_rows(True),
        ]
        rows = list({(row.command, row.only): row for row in every}.values())
        names = options.get("--only", "").split(",")
        print("a command's own words")
        for row in rows:
            mine = list(row.command) == words[: len(row.command)]
            if not mine or (row.only is not None and row.only not in names):
                continue
            if row.label in self.fails:
                raise self.fails[row.label]
            right = row.label not in self.wrong
            record = self._make_record(
                row.workload, parameters={**row.parameters, "more": 1}, correct=right,
                profile=profile,
            )  # fmt: skip
            records.append_record(file, record)
        return 0


@pytest.fixture
def commands(make_record: Maker, monkeypatch: pytest.MonkeyPatch) -> _FakeCommands:
    fake = _FakeCommands(make_record)
    monkeypatch.setattr(program, "make_parser", lambda words: fake)
    return fake


def _run_suite(folder: Path, **options: Any) -> int:
    usual: dict[str, Any] = {
        "suite": "paper",
        "profiles": "local",
        "out": folder,
        "only": "sort,max" if options.get("suite", "paper") == "paper" else None,
        "quick": True,
        "repeat": 2,
        "data_dir": None,
        "cluster": None,
        "client": None,
        "json": False,
        "parse": program.parse_command,
    }
    return command.run_suite(argparse.Namespace(**{**usual, **options}))


def test_rows_are_the_published_sizes() -> None:
    rows = suite.suite_rows("paper")
    assert [r.label for r in rows[:7]] == [
        *("sort 1024", "sort 65536", "sort 1048576"),
        *("max 1024x4", "max 65536x4", "max 1048576x4"),
        "resnet50 1 image",
    ]
    assert [r.label for r in suite.suite_rows("paper", only="max")] == [r.label for r in rows[3:6]]
    trained = {(f.size, f.optimizer) for f in published.load_figures() if f.workload == "train"}
    settings = {
        (r.parameters["model"], r.parameters["optimizer"]) for r in rows if r.name == "train"
    }
    assert settings == trained
    assert {r.name for r in rows[7:]} == {"train", "learn"}
    with raises(UsageError, "unknown-name", operation="suite") as caught:
        suite.suite_rows("papr")
    assert '"paper"' in str(caught.value)
    with raises(UsageError, "unknown-name", operation="--only", received="sirt"):
        suite.suite_rows("paper", only="sirt")


def test_every_row_is_a_command_that_exists(make_record: Maker) -> None:
    parser = program.make_parser()
    for row in [
        *suite.paper_suite_rows(),
        *suite.operation_suite_rows(),
        *suite.core_suite_rows(),
    ]:
        words = suite.command_words([suite.SuiteTask(row, "local")], 2, "mnist")
        parsed = parser.parse_args(words)
        assert parsed.profile == "local"
        assert ("--repeat" in words) == row.repeats and ("--data-dir" in words) == row.pictures


def test_trainings_are_run_once_and_learned_from_on_fast_networks(
    tmp_path: Path, commands: _FakeCommands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tfe_bench.models.datasets.mnist.check_there", lambda folder: None)
    assert _run_suite(tmp_path, only="train,learn", profiles="lan,wan", data_dir=Path("mnist")) == 0
    ran = [(words[1], words[words.index("--profile") + 1]) for words in commands.ran]
    trained = [("logistic", "lan"), ("network-a", "lan"), ("logistic", "lan")]
    assert ran == [*trained, ("logistic", "wan"), ("network-a", "wan")]
    assert all("--repeat" not in words and "mnist" in words for words in commands.ran)
    # existing records need no data
    monkeypatch.setattr("tfe_bench.models.datasets.mnist.check_there", lambda folder: 1 / 0)
    assert _run_suite(tmp_path, only="train,learn", profiles="lan,wan") == 0
    assert len(commands.ran) == 5


def test_a_finished_suite_runs_nothing_again(
    tmp_path: Path, commands: _FakeCommands, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _run_suite(tmp_path / "out") == 0
    assert len(commands.ran) == 4
    output = capsys.readouterr().out
    assert output.count("measured") == 4 and "a command's own words" not in output
    assert _run_suite(tmp_path / "out") == 0
    assert len(commands.ran) == 4
    assert capsys.readouterr().out.count("kept") == 4
    assert len(records.read_records(tmp_path / "out" / "records.jsonl")) == 4
    # other code needs other rows
    assert _run_suite(tmp_path / "out", quick=False, only="max") == 0
    assert len(commands.ran) == 4 + 2  # max 1024x4 is in both


def test_records_of_another_commit_do_not_count(
    tmp_path: Path, commands: _FakeCommands, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert _run_suite(tmp_path, only="max") == 0
    monkeypatch.setattr(provenance, "commit", lambda: "0" * 40)
    task = suite.SuiteTask(suite.suite_rows("paper", True, "max")[-1], "local")
    stored = records.read_records(tmp_path / "records.jsonl")
    assert suite.find_record(task, "local", stored) is None


def test_an_interrupted_suite_goes_on_where_it_stopped(
    tmp_path: Path, commands: _FakeCommands, capsys: pytest.CaptureFixture[str]
) -> None:
    commands.fails["max 256x4"] = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        _run_suite(tmp_path)
    captured = capsys.readouterr()
    assert captured.out.count("measured") == 2 and captured.out.count("not run") == 2
    assert "goes on where this one stopped" in captured.err
    commands.fails.clear()
    assert _run_suite(tmp_path) == 0
    assert [words[2] for words in commands.ran[3:]] == ["256x4", "1024x4"]


def test_a_lost_worker_ends_one_row_and_a_bad_option_ends_all(
    tmp_path: Path, commands: _FakeCommands, capsys: pytest.CaptureFixture[str]
) -> None:
    commands.fails["sort 1024"] = PeerLost(1, "its process ended")
    assert _run_suite(tmp_path) == PeerLost.exit_code
    output = capsys.readouterr().out
    assert output.count("measured") == 3 and "failed: sort 1024, local: Lost party 1" in output
    fatal: TfeBenchError = ConfigError("nothing will do")
    commands.fails["sort 1024"] = fatal
    with pytest.raises(ConfigError):
        _run_suite(tmp_path)


def test_rows_without_their_data_are_left_out_before_the_first_runs(
    tmp_path: Path,
    commands: _FakeCommands,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    code = _run_suite(tmp_path / "made", only=None, profiles="lan,wan")
    captured = capsys.readouterr()
    assert code == DataError.exit_code
    assert "rows are left out" in captured.err and "--data-dir FOLDER" in captured.err
    assert "Without them: --only sort,max,resnet50." in captured.err
    assert captured.out.count("no data") > 2 and "not run" not in captured.out
    assert {words[0] for words in commands.ran} == {"sort", "max", "resnet50"}
    assert {words[words.index("--profile") + 1] for words in commands.ran} == {"lan", "wan"}
    with raises(DataError, "file-not-found", operation="mnist"):
        _run_suite(tmp_path / "made", only="train")
    with raises(DataError, "file-not-found"):
        _run_suite(tmp_path / "made", only=None, data_dir=tmp_path)


def test_a_wrong_result_is_run_again(
    tmp_path: Path, commands: _FakeCommands, capsys: pytest.CaptureFixture[str]
) -> None:
    commands.wrong.add("sort 256")
    assert _run_suite(tmp_path) == 1
    assert "WRONG" in capsys.readouterr().out
    commands.wrong.clear()
    assert _run_suite(tmp_path) == 0
    assert len(commands.ran) == 5


def test_operations_share_one_cluster_and_skip_the_one_that_fails(
    tmp_path: Path, commands: _FakeCommands
) -> None:
    rows = suite.operation_suite_rows(True)
    failing = rows[2]
    commands.fails[failing.label] = PeerLost(0, "its process ended")
    assert _run_suite(tmp_path, suite="ops") == PeerLost.exit_code
    assert len(commands.ran) == 2  # all; then the rows after the failed one
    assert len(records.read_records(tmp_path / "records.jsonl")) == len(rows) - 1


def test_bad_input_is_refused_before_anything_runs(tmp_path: Path, commands: _FakeCommands) -> None:
    with raises(UsageError, "unknown-name"):
        _run_suite(tmp_path, profiles="local,wam")
    with raises(UsageError, "number-out-of-range", operation="--repeat"):
        _run_suite(tmp_path, repeat=0)
    (tmp_path / "file").write_text("")
    with raises(DataError, "file-not-writable", operation="--output"):
        _run_suite(tmp_path / "file")
    (tmp_path / "records.jsonl").write_text("{\n")
    with raises(DataError, "invalid-json") as caught:
        _run_suite(tmp_path)
    assert "Line 1 " in str(caught.value)
    assert commands.ran == []


def test_json_prints_records(
    tmp_path: Path, commands: _FakeCommands, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _run_suite(tmp_path, json=True) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [records.Record.from_json(line).workload for line in lines] == [
        *("sort", "sort", "max", "max"),
    ]

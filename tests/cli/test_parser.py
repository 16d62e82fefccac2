"""The command line in this process: formats of numbers, the version, types of files."""

from __future__ import annotations

import argparse
import functools
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.benchmarks.test_table import a_record
from tfe_bench import __version__
from tfe_bench.__main__ import main, make_parser, parse_command
from tfe_bench.benchmarks import operations
from tfe_bench.cli import common, job_record, sort, stored_objects


def _walk_parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for child in action.choices.values():
                yield from _walk_parsers(child)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        *(("0", 0), ("-1", -1), ("+7", 7), ("007", 7), ("1_000_000", 10**6), ("1e6", 10**6)),
        *(("1E6", 10**6), ("2.5e3", 2500), ("1.50e1", 15), ("3.0", 3), ("2^20", 1 << 20)),
        *(("-2e2", -200), ("0e5", 0), ("10^3", 1000), ("1e99", 10**99)),
    ],
)
def test_a_whole_number_is_read_however_it_is_written(text: str, number: int) -> None:
    assert common.parse_whole_number(text) == number
    assert type(common.parse_whole_number(text)) is int


def test_an_unknown_option_is_answered_with_the_usage_of_its_command(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for words, hint in (
        (("query", "select 1", "--ouput", "r.csv"), '"--output"'),
        (("provide", "rows", "--inptu", "r.csv"), '"--input"'),
    ):
        with pytest.raises(SystemExit):
            main(list(words))
        output = capsys.readouterr().err
        assert f"\nusage: python -m tfe_bench {words[0]} " in output
        assert f"Did you mean {hint}?" in output.splitlines()[0]


@pytest.mark.parametrize(
    ("words", "name", "value"),
    [
        *((("table", "put", "t", n, "f"), "input", [Path("f")]) for n in ("--input", "--csv")),
        (("table", "put", "t", "--parquet", "f"), "input", [Path("f")]),
        *((("provide", "t", n, "f"), "csv", Path("f")) for n in ("--input", "--csv")),
        *((("train", "linear", n, "f.csv"), "dataset", "f.csv") for n in ("--input", "--dataset")),
        *((("query", "q", n, "f"), "output", Path("f")) for n in ("--output", "--out")),
        *((("suite", "smoke", n, "f"), "out", Path("f")) for n in ("--output", "--out")),
    ],
)
def test_one_thing_is_called_alike_by_every_command(
    words: tuple[str, ...], name: str, value: object
) -> None:
    assert getattr(make_parser(words).parse_args(words), name) == value


@pytest.mark.parametrize(
    "text",
    [
        *("", "many", "1.5", "1e-3", "1.25e1", "1e", "e5", "1e999999999", "2^", "2^999", "-2^3"),
        *("1,000", "0x10", "\u0661", "nan", "inf", "1 000", "9" * 101),
    ],
)
def test_what_is_no_whole_number_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="expected a whole number"):
        common.parse_whole_number(text)


def test_every_option_of_integers_of_every_command_reads_them_so() -> None:
    count = 0
    for parser in _walk_parsers(make_parser()):
        for action in parser._actions:
            if action.type is int:
                count += 1
                assert parser._registry_get("type", int, int) is common.parse_whole_number, (
                    action.dest
                )
    assert count > 20
    parsed = make_parser().parse_args(["train", "linear", "--limit", "1e4", "--batch", "2^5"])
    assert (parsed.limit, parsed.batch) == (10_000, 32)


@pytest.mark.parametrize("name", sorted(operations.OPERATIONS))
def test_every_operation_is_a_command_with_its_options(name: str) -> None:
    parsed = vars(make_parser().parse_args([name, "--repeat", "2"]))
    assert parsed["repeat"] == 2 and callable(parsed["run"])
    if name not in ("exp", "matmul"):  # their options differ
        for option, default in operations.find_operation(name).options.items():
            assert option == "profile" or parsed[option] == default


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["--version"])
    assert end.value.code == 0
    assert capsys.readouterr().out == f"tfe_bench {__version__}\n"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], {"repeat": 5}),
        (["--repeat", "1"], {"repeat": 1}),
        (["--input", "f.csv"], {"repeat": 1, "warm_up": 0}),
        (["--input", "f.csv", "--repeat", "3"], {"repeat": 3}),
    ],
)
@pytest.mark.parametrize("command", ["sort", "relu", "max", "compare", "softmax"])
def test_a_file_is_computed_on_once(command: str, words: list[str], told: Any) -> None:
    assert common.timing_loop_parameters(make_parser().parse_args([command, *words])) == told


def test_rows_of_a_matrix_are_said_to_be_sorted_by_themselves(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "m.npy", np.arange(6.0).reshape(2, 3))
    words = ["sort", "--input", str(tmp_path / "m.npy")]
    work = sort._sort_work_from_file(make_parser().parse_args(words))
    assert work.keys.shape == (2, 3) and "each of its 2 rows" in capsys.readouterr().err
    work = sort._sort_work_from_file(make_parser().parse_args([*words, "--column", "1"]))
    assert work.keys.shape == (2,) and capsys.readouterr().err == ""


def test_a_file_without_names_is_sorted_whole_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "years.csv"
    words = ["sort", "--input", str(file), "--column", "0"]
    for text, keys in (("2019,5\n2021,3\n", 2), ("year,n\n2019,5\n2021,3\n", 2)):
        file.write_text(text)
        work = sort._sort_work_from_file(make_parser().parse_args(words))
        output = capsys.readouterr().err
        assert work.keys.shape == (keys,)
        assert ("has no line of names: its first line is sorted" in output) == (text[0] == "2")


@pytest.mark.parametrize("words", [[], ["--repeat", "1"], ["--json"]])
def test_a_sorted_file_is_named_first_and_figures_are_for_those_who_ask(
    words: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file, out = tmp_path / "s.csv", tmp_path / "sorted.csv"
    file.write_text("n\n3\n1\n2\n")
    inputs = ["sort", "--input", str(file), "--output", str(out), *words]
    parsed = make_parser().parse_args(inputs)
    outputs = {"keys": np.array([1, 2, 3]), "indices": np.array([1, 2, 0])}
    record = a_record(parameters={"n": 3})

    def performed(arguments: Any, workload: str, job: Any, judge: Any) -> int:
        return job_record.report_job_result(workload, arguments, None, result, judge(result))

    result: Any = SimpleNamespace(outputs=outputs)
    monkeypatch.setattr(job_record, "run_and_report", performed)
    monkeypatch.setattr(job_record, "make_record", lambda *_: record)
    assert sort.run_sort(parsed) == 0
    assert out.read_text() == "n\n1\n2\n3\n"
    lines = capsys.readouterr().out.splitlines()
    if not words:
        assert lines[0] == f"written to {out}" and len(lines) == 2 and "checked" in lines[1]
    else:
        assert (len(lines) == 1) == (words == ["--json"])
        assert (lines[0] == f"written to {out}") == (words != ["--json"])


def test_the_environment_names_a_cluster_and_a_client_where_the_line_does_not(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TFE_BENCH_CLIENT", "ann")
    assert (parse_command(["sort"]).cluster, parse_command(["sort"]).client) == (None, None)
    assert capsys.readouterr().err == ""
    monkeypatch.setenv("TFE_BENCH_CLUSTER", "c.toml")
    for words in (["sort"], ["table", "list"], ["status"], ["predict", "m"]):
        parsed = parse_command(words)
        assert (parsed.cluster, parsed.client) == (Path("c.toml"), "ann")
        output = capsys.readouterr().err
        assert "c.toml (TFE_BENCH_CLUSTER)" in output and "ann (TFE_BENCH_CLIENT)" in output
    parsed = parse_command(["sort", "--cluster", "d.toml", "--client", "bob"])
    assert (parsed.cluster, parsed.client) == (Path("d.toml"), "bob")
    assert capsys.readouterr().err == ""
    # `doctor` and `worker` ignore the variables: their own command line names the files
    assert parse_command(["doctor"]).cluster is None
    with pytest.raises(SystemExit):
        parse_command(["worker", "--party", "0"])


def test_a_question_that_is_not_answered_with_yes_runs_nothing_and_ends_with_130(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    parsed = parse_command(["query", "select 1"])
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    prompts: list[str] = []
    job: Any = argparse.Namespace(explain=lambda: "the plan")

    def answered(question: str, answer: str) -> str:
        prompts.append(question)
        return answer

    for answer, code in (("n", 130), ("", 130), ("y", 0)):
        monkeypatch.setattr("builtins.input", functools.partial(answered, answer=answer))
        with common.command_progress_bar(argparse.Namespace(json=True)) as bar:
            fits = stored_objects.is_job_confirmed(parsed, bar, job, {})
        assert fits == (code == 0)
        assert code == 0 or stored_objects.unconfirmed_exit_code(parsed) == code
        assert ("nothing was run" in capsys.readouterr().err) == (code != 0)
    assert all("[y/N]" in question for question in prompts)

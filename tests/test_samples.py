"""The samples of README.md and docs/ run, parse, and print the stated output."""

from __future__ import annotations

import itertools
import re
import tomllib
from pathlib import Path

import pytest

from tests.cli.test_parser import _walk_parsers
from tests.pages import import_page
from tests.paths import ROOT
from tfe_bench.__main__ import main, make_parser
from tfe_bench.cli import common, job_record
from tfe_bench.cluster import jobs
from tfe_bench.cluster.config import ClusterConfig
from tfe_bench.cluster.policy import WorkerPolicy
from tfe_bench.queries import accepted, sql

samples = import_page("samples")
PAGES = [pytest.param(page, id=page.stem) for page in samples.PAGES]


def _runs(page: Path) -> bool:
    text = page.read_text()
    fast = any(b.kind == "run" and not b.is_slow for b in samples.parse_blocks(text))
    return fast or "<!-- generated" in text


@pytest.mark.parametrize("page", PAGES)
def test_every_block_runs_or_says_why_not(page: Path) -> None:
    before = None
    for block in samples.parse_blocks(page.read_text()):
        where = f"{page.name}, line {block.line}"
        assert block.language and block.kind, f"{where}: see docs/samples.py for what it may be"
        if block.kind == "run":
            assert block.language in ("sh", "python") and block.rest in ("", "slow"), where
        elif block.kind == "output":
            assert before is not None and before.kind == "run", where
        else:
            assert block.rest, f"{where}: a reason, or a file's name"
        if block.language == "toml":
            tomllib.loads(block.text)
        before = block


def test_every_query_is_sql_of_duckdb() -> None:
    import duckdb

    texts = [
        block.text for page in samples.PAGES for block in samples.parse_blocks(page.read_text())
    ]
    texts += [path.read_text() for path in (ROOT / "tfe_bench" / "queries").glob("*.py")]
    texts = [text.replace("\\\n", "") for text in texts]  # (lines that a shell joins)
    queries = [
        query for text in texts for query in re.findall(r'"(select [^"]+ from [^"]+)"', text)
    ]
    assert len(queries) >= 4
    for query in queries:
        assert len(duckdb.extract_statements(query)) == 1, query
        accepted.check_sql_nodes(sql.parse_sql(query))


@pytest.mark.parametrize("page", PAGES)
def test_every_command_is_one_that_the_parser_knows(page: Path) -> None:
    for block in samples.parse_blocks(page.read_text()):
        if block.language == "sh":
            for words in samples.parse_commands(block):
                parsed = make_parser().parse_args(words)
                assert parsed.command == words[0], words


def _generates(page: Path) -> bool:
    return "<!-- generated" in page.read_text()


@pytest.mark.parametrize("page", [p for p in PAGES if _runs(p.values[0])])  # type: ignore[arg-type]
def test_what_starts_no_worker_prints_what_its_page_says(page: Path) -> None:
    text, differs = samples.rerun_page(page.read_text(), fast=True)
    assert not differs, "\n".join(differs)
    assert samples.regenerate(text) == text, "python -m docs.samples --fast --write renews it"


@pytest.mark.slow
@pytest.mark.parametrize("page", [p for p in PAGES if _generates(p.values[0])])  # type: ignore[arg-type]
def test_every_generated_section_is_what_the_code_says(page: Path) -> None:
    text = page.read_text()
    assert samples.regenerate(text, fast=False) == text, "python -m docs.samples --write renews it"


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_every_sample_prints_what_its_page_says(page: Path) -> None:
    _, differs = samples.rerun_page(page.read_text(), fast=False)
    assert not differs, "\n".join(differs)


def test_the_files_of_the_cluster_page_fit_each_other_and_its_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Check that later commands name the files of earlier steps and can read them as written."""
    blocks = samples.parse_blocks((ROOT / "docs" / "cluster.md").read_text())
    monkeypatch.chdir(tmp_path)
    for block in blocks:
        if block.kind == "file":
            Path(block.rest).write_text(block.text)
        elif block.kind == "run":
            for words in samples.parse_commands(block):
                assert main(words) == 0
    for party in "12":  # made on the other hosts
        assert main(["certs", "party", "--party", party, "--out", "."]) == 0
    assert len(ClusterConfig.load("cluster.toml").parties) == 3
    assert WorkerPolicy.load("worker.toml").load_key()
    for block in blocks:
        for words in samples.parse_commands(block) if block.language == "sh" else ():
            for option, name in itertools.pairwise(words):
                if option in ("--cluster", "--config", "--worker"):
                    assert Path(name).is_file(), words


# ---- programs


class _ProgramSubmitted(Exception):
    """Signal that a program was submitted."""


class _Runner:
    """A cluster that runs nothing and records its requests."""

    profile = emulation = realized = None
    start_seconds = 0.0
    name = "fake"

    def __enter__(self) -> _Runner:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def run(self, program: str, *_: object, **__: object) -> None:
        raise _ProgramSubmitted(program)


@pytest.mark.parametrize(
    "words",
    [
        "sort",
        "max",
        "compare",
        "relu",
        "softmax",
        "ops",
        "exp",
        "matmul",
        "infer network-a",
        "generate gpt2-tiny --tokens 3",
    ],
)
def test_commands_order_the_programs_of_the_table(
    words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (common, job_record):
        monkeypatch.setattr(module, "open_cluster", lambda *_: _Runner())
    parsed = make_parser().parse_args([*words.split(), "--repeat", "1"])
    with pytest.raises(_ProgramSubmitted) as ordered:
        parsed.run(parsed)
    assert samples.PROGRAMS[parsed.command] == (str(ordered.value),)


def test_commands_fit_a_page_of_the_site() -> None:
    """A line of code shows about 110 characters at 1200 px; a reader must scroll to see more."""
    for page in samples.PAGES:
        for block in samples.parse_blocks(page.read_text()):
            if block.language == "sh":
                long = [line for line in block.text.splitlines() if len(line) > 110]
                assert not long, (page.name, long)


def test_rows_of_tables_are_short() -> None:
    for page in samples.PAGES:
        long = [line for line in page.read_text().splitlines() if line[:1] == "|" and line[200:]]
        assert not long, (page.name, long)


def test_a_long_row_continues_below_outside_of_code() -> None:
    row = samples._format_row("`f(x, y)`", " ".join(["word"] * 60))
    first, second = row.splitlines()
    assert len(first) <= samples.MAX_ROW and second.startswith("|  | word")
    assert row.count("word") == 60 and "`f(x, y)`" in first


def test_the_table_has_every_command_and_every_program() -> None:
    parser = make_parser()
    (commands,) = (a.choices for a in parser._actions if hasattr(a, "choices") and a.choices)
    ordering = {
        name
        for name, p in commands.items()
        if any("--cluster" in a.option_strings for each in _walk_parsers(p) for a in each._actions)
    }
    none = {"submit", "status", "cancel", "worker", "audit"}  # any name, or no name
    by_command = {words.split()[0] for words in samples.PROGRAMS if "." not in words}
    assert by_command == ordering - none
    named = {name for names in samples.PROGRAMS.values() for name in names}
    assert named == set(jobs.installed_programs()) - {"channel"}  # for local workers only
    assert samples.PROGRAMS["deploy"] == ("deploy",)
    assert samples.PROGRAMS["models --remove"] == ("undeploy",)
    assert samples.PROGRAMS["predict"] == ("serve",)
    assert samples.PROGRAMS["provide"] == ("provide",)
    assert samples.PROGRAMS["provide --remove"] == ("withdraw",)


# ---- the tool itself


def _fence(mark: str, text: str) -> str:
    return f"```{mark}\n{text}```\n"


@pytest.mark.parametrize(
    ("printed", "same"),
    [
        (
            "in 7.25 s  (7 ms .. 8 s)\nsent  2.1 kB\nrounds  9 total / 7 online\nx 1.05 3",
            True,
        ),
        (
            "in 7.25 s  (7 ms .. 8 s)\nsent  2.1 kB\nrounds  9 total / 7 online\nx 1.25 3",
            False,
        ),
        (
            "in 7.25 s  (7 ms .. 8 s)\nsent  2.1 kB\nrounds  9 total / 7 online\nx 1.05 4",
            False,
        ),
        ("in 7.25 s  (7 ms .. 8 s)\nsent  2.1 kB\nx 1.05 3", False),
        ("in 7.25 s\nsent  2.1 kB\nrounds  9 total / 7 online\nx 1.05 3", False),
        ("", False),
    ],
)
def test_outputs_agree_but_for_what_two_runs_cannot_share(printed: str, same: bool) -> None:
    shown = "in 1.5 ms  (1 ms .. 2 ms)\nsent  12 MB\nrounds  19 total / 15 online\nx 1.00 3"
    assert samples.is_alike(shown, printed) is same


def test_a_sample_that_is_stale_or_fails_is_told_and_renewed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.md"
    stale = _fence("sh run", "cat note.txt; head -1 salaries.csv\n") + _fence(
        "text output", "old\n"
    )
    python = _fence("python run", "for n in (3, 4):\n    print(n)\nprint('x')  # -> y\n")
    page.write_text(
        _fence("text file=note.txt", "a note\n")
        + stale
        + _fence("python run", "print(1 + 1)  # -> 3\n")
        + _fence("sh run", "exit 3\n")
        + _fence("sh run slow", "exit 4\n")
        + _fence("sh skip no reason", "exit 5\n")
    )
    assert samples.main([str(page), "--fast"]) == 1
    output = capsys.readouterr().out
    assert all(word in output for word in ("line 4:", "line 10:", "line 13: ended with 3")), output
    assert "ended with 4" not in output
    assert samples.main([str(page), "--fast", "--write"]) == 0
    assert "```text output\na note\nname,salary,bonus\n```" in page.read_text()
    assert "print(1 + 1)  # -> 2\n" in page.read_text()
    page.write_text(python)  # three lines; the page shows one
    assert samples.main([str(page)]) == 1


def test_a_generated_section_follows_the_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(samples.GENERATED, "programs", lambda: "new\n")
    page = "a\n<!-- generated programs -->\n\nold\n\n<!-- end -->\nb\n"
    assert samples.regenerate(page) == page.replace("old", "new")
    with pytest.raises(KeyError):
        samples.regenerate(page.replace("programs", "unheard-of"))

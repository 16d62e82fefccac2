"""Commands and report sections of other packages, which their metadata registers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.paths import ROOT
from tfe_bench.__main__ import main
from tfe_bench.benchmarks.report import annexes
from tfe_bench.errors import ConfigError

PAGE = ROOT / "docs" / "adding_a_command.md"
_BLOCK = re.compile(r"^```\w+ file=(\S+)\n(.*?)^```$", re.M | re.S)
_SECTIONS = """
from tfe_bench.benchmarks.report.annexes import ReportSections
THEIRS = ReportSections("theirs 1", lambda text: 1, (), lambda records: {}, lambda *_: [])
AGAIN = ReportSections("technologies 1", lambda text: 1, (), lambda records: {}, lambda *_: [])
"""


def _install_package(folder: Path, name: str, **groups: dict[str, str]) -> None:
    """Write a package's metadata as pip does."""
    about = folder / f"{name}-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    text = "".join(
        f"[tfe_bench.{group}]\n" + "".join(f"{k} = {v}\n" for k, v in points.items())
        for group, points in groups.items()
    )
    (about / "entry_points.txt").write_text(text)


Outcome = tuple[int, str, str]


@pytest.fixture
def run_words(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Callable[..., Outcome]]:
    """Return a function that runs a command with the packages installed."""

    def run(*words: str) -> Outcome:
        try:
            code = main([*words])
        except SystemExit as ended:
            code = int(ended.code or 0)
        out, err = capsys.readouterr()
        return code, out, err

    plain = run("--help")[1]
    monkeypatch.syspath_prepend(str(folder))
    annexes.load_report_sections.cache_clear()
    (folder / "plain.txt").write_text(plain)
    yield run
    annexes.load_report_sections.cache_clear()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the page's package, and with packages that are refused."""
    where = tmp_path_factory.mktemp("packages")
    for name, body in _BLOCK.findall(PAGE.read_text()):
        (where / name).write_text(body)
    ((name, value),) = re.findall(
        r'^(\S+) = "(share_sizes:\w+)"$', (where / "pyproject.toml").read_text(), re.M
    )
    _install_package(where, "share-sizes", commands={name: value})
    (where / "sections.py").write_text(_SECTIONS)
    _install_package(
        where,
        "others",
        commands={
            "broken": "missing_module:COMMAND",
            "number": "sys:maxsize",
            "twice": "share_sizes:COMMAND",
            "sort": "share_sizes:COMMAND",
            "relu": "share_sizes:COMMAND",
            "functional": "share_sizes:COMMAND",
        },
        report_sections={"theirs": "sections:THEIRS", "again": "sections:AGAIN", "none": "no:X"},
    )
    _install_package(where, "more", commands={"twice": "others:COMMAND"})
    return where


def test_a_packages_command_is_listed_and_runs(run_words: Callable[..., Outcome]) -> None:
    printed = re.search(r"prints\s+`(.*?)`", PAGE.read_text())
    assert printed is not None
    assert run_words("share-size", "--n", "1e6") == (0, printed[1] + "\n", "")
    text = run_words("share-size", "--help")[1]
    assert "holds two of three words" in text and "share-size --n 1e6" in text


def test_refused_commands_leave_the_others(run_words: Callable[..., Outcome], folder: Path) -> None:
    _, out, err = run_words("--help")
    heading = " other packages: share-size print the size of shares"
    plain, listed = (" ".join(text.split()) for text in ((folder / "plain.txt").read_text(), out))
    assert heading in listed and listed.replace(heading, "") == plain
    for name in ("broken", "number"):
        assert err.count(f"entry point {name!r}") == 1
    for name in ("twice", "sort", "relu", "functional"):
        assert err.count(f"The command {name!r} of") == 1
    assert len(err.splitlines()) == 6
    for name, code in (
        ("broken", "extension-not-loadable"),
        ("number", "extension-not-loadable"),
        ("twice", "duplicate-name"),
    ):
        status, out, err = run_words(name)
        assert status == ConfigError.exit_code and out == "" and len(err.splitlines()) == 1
        assert err.startswith("tfe_bench: ConfigError: ") and f"[{code}]" in err
    for words in (["sort", "--help"], ["relu", "--help"], ["functional", "--energy"]):
        status, out, err = run_words(*words)
        assert (status, err) == (0, "") and "the size of shares" not in out


def test_refused_report_sections_leave_the_others(
    run_words: Callable[..., Outcome], tmp_path: Path
) -> None:
    record = tmp_path / "r.jsonl"
    assert run_words("storage", "--record", str(record))[0] == 0
    status, out, err = run_words("report", str(record))
    assert (status, err) == (0, "")
    notes = "\n".join(out.splitlines()[:2])
    assert "'technologies 1' exist" in notes and "entry point 'none'" in notes
    page = (tmp_path / "report.html").read_text()
    assert "Homomorphic inference on storage devices" in page and "ModuleNotFoundError" in page
    record.write_text('{"schema": "unknown 1"}')
    assert "[extension-not-loadable]" in run_words("report", str(record))[2]

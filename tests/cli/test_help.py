"""Help texts: present for every command, and not wider than a terminal."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.cli.test_parser import _walk_parsers
from tfe_bench.__main__ import RENAMED, main, make_parser
from tfe_bench.benchmarks import operations
from tfe_bench.cli import listing, parsing

if TYPE_CHECKING:
    from tests.cli.conftest import Command

COMMANDS = [
    [],
    ["sort"],
    ["matmul"],
    ["exp"],
    ["channel"],
    ["max"],
    ["compare"],
    ["relu"],
    ["softmax"],
    ["resnet50"],
    ["infer"],
    ["generate"],
    ["deploy"],
    ["predict"],
    ["models"],
    ["train"],
    ["provide"],
    ["table"],
    ["table", "put"],
    ["table", "list"],
    ["query"],
    ["align"],
    ["ops"],
    ["links"],
    ["worker"],
    ["certs"],
    ["certs", "party"],
    ["certs", "client"],
    ["certs", "show"],
    ["cluster"],
    ["cluster", "up"],
    ["certs", "all"],
    ["certs", "renew"],
    ["submit"],
    ["status"],
    ["cancel"],
    ["doctor"],
    ["audit"],
    ["audit", "verify"],
    ["audit", "show"],
]


def test_help_fits_80_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    parser = make_parser()
    for each in _walk_parsers(parser):
        words = each.prog.removeprefix(parser.prog).split()
        with pytest.raises(SystemExit) as ended:
            main([*words, "--help"])
        out, err = capsys.readouterr()
        assert ended.value.code == 0 and err == "", words
        assert out.startswith("usage: python -m tfe_bench"), words
        assert max(map(len, out.splitlines())) <= 80, words
        assert "SUPPRESS" not in out and "--local" not in out, words


def test_help_names_every_command(command_here: Command) -> None:
    text = command_here("--help").stdout
    for words in COMMANDS:
        if words:
            assert f"\n  {words[0]} " in text


def test_help_needs_neither_tensorflow_nor_grpc(command: Command) -> None:
    # -X importtime lists the imported modules on stderr.
    done = command("--help", PYTHONPROFILEIMPORTTIME="1")
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "argparse" in imported
    assert not {"tensorflow", "numpy.random"} & imported


def test_an_abbreviation_of_an_option_is_no_surprise(command_here: Command) -> None:
    done = command_here("sort", "--n", "-1", "--desc")
    assert done.returncode == 2


def test_every_command_has_examples_that_parse_and_fit_80_columns() -> None:
    parser = make_parser()
    count = 0
    for each in _walk_parsers(parser):
        if each is parser:
            continue
        words = each.prog.removeprefix(parser.prog).split()
        text = each.format_help()
        assert parsing.EXAMPLES in text, words
        for line in text.partition(parsing.EXAMPLES)[2].splitlines():
            if line.strip():
                assert len(line) <= 80, line
                inputs = shlex.split(line.strip().removeprefix(parser.prog))
                assert inputs[: len(words)] == words
                assert callable(parser.parse_args(inputs).run)
                count += 1
    assert count > 100


def test_the_full_help_has_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--helpfull"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    assert all(
        f"\nusage: {parsing.typed_command()} {words[0]} " in text for words in COMMANDS if words
    )


def test_options_are_read_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "options").write_text("--n=2^4\n--descending\n")
    parsed = make_parser().parse_args(["sort", f"--flagfile={tmp_path / 'options'}"])
    assert (parsed.n, parsed.descending) == (16, True)


def test_the_help_lists_every_command_in_one_group() -> None:
    parser = make_parser()
    [commands] = (a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    listed = [name for names in parser._groups.values() for name in names]
    assert len(set(listed)) == len(listed)
    unlisted = {name for name, entry in operations.OPERATIONS.items() if not entry.help}
    unlisted -= set(listed)  # (exp and matmul have separate commands)
    assert set(listed) == set(commands.choices) - unlisted - set(RENAMED)
    text = parser.format_help()
    assert all(f"\n{heading}:\n" in text for heading in parser._groups)
    assert {*listing.GROUPS, "other technologies"} == set(parser._groups)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["srot"], "Unknown command 'srot'. Did you mean \"sort\"?"),
        (["certs", "shw"], "Unknown command 'shw'. Did you mean \"show\"?"),
        (["deploy"], "The following arguments are required: MODEL, --name."),
        (["sort", "--outptu", "r"], 'Unrecognized arguments: --outptu r. Did you mean "--output"?'),
        (["table", "list", "--type", "a:b"], "Unrecognized arguments: --type a:b."),
        (["worker", "--party", "7", "--cluster", "c"], "Argument --party: invalid choice: 7"),
    ],
)
def test_a_mistake_is_one_sentence_before_a_short_usage_of_that_command(
    capsys: pytest.CaptureFixture[str], words: list[str], told: str
) -> None:
    with pytest.raises(SystemExit) as end:
        main(words)
    out, err = capsys.readouterr()
    assert end.value.code == 2 and out == ""
    first, second, *rest = err.splitlines()
    assert first.startswith(f"tfe_bench: UsageError: {told}"), err
    of = " ".join([parsing.typed_command(), *(words[:2] if words[0] in ("table",) else words[:1])])
    assert second.startswith(f"usage: {of if words[0] != 'srot' else parsing.typed_command()}"), err
    assert len(rest) <= 3 and rest[-1].endswith("--help`.")


def test_nothing_help_and_version_are_answered(capsys: pytest.CaptureFixture[str]) -> None:
    texts = []
    for words in ([], ["help"], ["--help"], ["version"], ["--version"], ["help", "sort"]):
        with pytest.raises(SystemExit) as end:
            main(words)
        assert end.value.code == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1] == texts[2] and texts[3] == texts[4]
    assert texts[5].startswith(f"usage: {parsing.typed_command()} sort")


def test_the_usage_names_the_command_as_it_was_typed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["/usr/local/bin/tfe-bench", "sort"])
    assert make_parser(["sort", "--help"]).prog == "tfe-bench"
    monkeypatch.setattr("sys.argv", ["/src/tfe_bench/__main__.py"])
    assert make_parser(["sort"]).prog == "python -m tfe_bench"

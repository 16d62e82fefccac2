"""Help texts: there for every command, and no wider than a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

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
    ["query"],
    ["align"],
    ["ops"],
    ["links"],
    ["worker"],
    ["certs"],
    ["certs", "party"],
    ["certs", "client"],
    ["certs", "all"],
    ["certs", "renew"],
    ["submit"],
    ["status"],
    ["cancel"],
    ["doctor"],
]


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: "-".join(words) or "none")
def test_help_fits_80_columns(command: Command, words: list[str]) -> None:
    done = command(*words, "--help", COLUMNS="80")
    assert done.returncode == 0
    assert done.stderr == ""
    assert done.stdout.startswith("usage: tfe_bench")
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert "SUPPRESS" not in done.stdout and "--local" not in done.stdout


def test_help_names_every_command(command: Command) -> None:
    text = command("--help").stdout
    for words in COMMANDS:
        if words:
            assert f"\n    {words[0]} " in text


def test_help_needs_neither_tensorflow_nor_grpc(command: Command) -> None:
    # -X importtime lists what is imported, on stderr.
    done = command("--help", PYTHONPROFILEIMPORTTIME="1")
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "argparse" in imported
    assert not {"tensorflow", "numpy.random"} & imported


def test_an_abbreviation_of_an_option_is_no_surprise(command: Command) -> None:
    done = command("sort", "--n", "-1", "--desc")
    assert done.returncode == 2

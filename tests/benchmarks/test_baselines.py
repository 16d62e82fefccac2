"""Baselines: their requests, their answers, and missing installations.

The baselines here are scripts in fake environments; no baseline is installed.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.refusals import raises
from tfe_bench.__main__ import main
from tfe_bench.benchmarks.baselines import base
from tfe_bench.benchmarks.baselines.base import (
    Baseline,
    BaselineRequest,
    BaselineResult,
    UnavailableBaseline,
)
from tfe_bench.benchmarks.baselines.mp_spdz import MpSpdz
from tfe_bench.benchmarks.baselines.spu import Spu
from tfe_bench.benchmarks.baselines.tf_encrypted import TfEncrypted
from tfe_bench.cli import baselines as command
from tfe_bench.cluster.links import NoNamespaces
from tfe_bench.errors import UsageError

ANSWER = {
    "seconds": [0.5, 0.25],
    "bytes_sent": None,
    "correct": True,
    "version": "1",
    "setting": "here",
}


def make_environment(folder: Path, code: str = "") -> Path:
    """Return a virtual environment whose python prints the output of `code` for any argument."""
    (folder / "bin").mkdir(parents=True)
    python = folder / "bin" / "python"
    program = folder / "program.py"
    program.write_text(code)
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{program}" "$@"\n')
    python.chmod(0o755)
    return folder


def print_lines(*lines: str) -> str:
    return "".join(f"print({line!r})\n" for line in lines)


@pytest.mark.parametrize(
    ("given", "code", "operation"),
    [
        ({"workload": "softmax"}, "unknown-name", "workload"),
        ({"n": 0}, "number-out-of-range", "--n"),
        ({"n": 1 << 23}, "number-out-of-range", "--n"),
        ({"repeat": 0}, "number-out-of-range", "--repeat"),
        ({"timeout": 0.0}, "number-out-of-range", "--timeout"),
        ({"timeout": float("nan")}, "number-out-of-range", "--timeout"),
    ],
    ids=str,
)
def test_work_that_baselines_cannot_do_is_refused(
    given: dict[str, Any], code: str, operation: str
) -> None:
    with raises(UsageError, code, operation=operation):
        parameters: dict[str, Any] = {"workload": "sort", "n": 8, "repeat": 2}
        BaselineRequest(**(parameters | given))


def test_what_is_not_there_is_said_with_its_option(tmp_path: Path) -> None:
    cases: list[tuple[Baseline, str]] = [
        (Spu(None), "no --spu-env DIR was given (--install puts it there)"),
        (TfEncrypted(None), "no --tf-encrypted-env DIR was given"),
        (MpSpdz(None), "no --mp-spdz DIR was given"),
        (Spu(tmp_path), "has no bin/python"),
        (Spu(make_environment(tmp_path / "a", "raise SystemExit(1)")), "has no package spu"),
        (TfEncrypted(tmp_path / "a"), "has no package tf-encrypted"),
        (MpSpdz(tmp_path), "has no compile.py"),
    ]
    for baseline, words in cases:
        missing = baseline.find_obstacle()
        assert isinstance(missing, UnavailableBaseline) and words in missing.reason, baseline


def test_a_script_gets_the_request_and_its_last_line_counts(tmp_path: Path) -> None:
    code = (
        "import json, sys\n"
        "given = json.load(sys.stdin)\n"
        "print('compiling')\n"
        f"print(json.dumps({ANSWER!r} | {{'setting': json.dumps(given, sort_keys=True)}}))\n"
    )
    baseline = Spu(make_environment(tmp_path / "env", code))
    result = baseline.run(BaselineRequest("sort", 8, 2))
    assert isinstance(result, BaselineResult)
    assert result.seconds == (0.5, 0.25) and result.correct is True and result.bytes_sent is None
    assert json.loads(result.setting) == {"n": 8, "repeat": 2, "workload": "sort"}


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("", "printed no result"),
        (print_lines("nothing like it"), "printed no result"),
        (print_lines("[1]"), "printed no result"),
        (print_lines(json.dumps(ANSWER | {"seconds": [0.5]})), "printed no result"),
        (print_lines(json.dumps(ANSWER | {"seconds": [0.5, -1]})), "printed no result"),
        (print_lines(json.dumps(ANSWER | {"seconds": [0.5, float("nan")]})), "printed no result"),
        (print_lines(json.dumps(ANSWER | {"correct": "yes"})), "printed no result"),
        (print_lines(json.dumps(ANSWER | {"bytes_sent": True})), "printed no result"),
        ("raise SystemExit('out of luck \\x1b[31m')", "exit code 1, out of luck"),
        ("import time\ntime.sleep(60)", "not done after 1 s"),
    ],
)
def test_a_baseline_that_fails_is_missing_with_a_reason(
    tmp_path: Path, code: str, words: str
) -> None:
    result = Spu(make_environment(tmp_path / "env", code)).run(
        BaselineRequest("max", 8, 2, timeout=1.0)
    )
    assert isinstance(result, UnavailableBaseline) and words in result.reason
    assert "\x1b" not in result.reason


def test_a_network_that_is_not_imposed_on_a_baseline_gives_no_figure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = make_environment(tmp_path / "env", print_lines(json.dumps(ANSWER)))
    wan = BaselineRequest("sort", 8, 2, profile="wan")
    for baseline in (TfEncrypted(env), MpSpdz(env)):
        missing = baseline.run(wan)
        assert isinstance(missing, UnavailableBaseline) and "local only" in missing.reason

    def refused(_: Any) -> Any:
        raise NoNamespaces("not here")

    monkeypatch.setattr(base, "Links", refused)
    missing = Spu(env).run(wan)
    assert isinstance(missing, UnavailableBaseline) and "not here" in missing.reason


def test_a_baseline_on_a_network_is_given_hosts_and_namespaces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading, writing = os.pipe()

    class Three:
        hosts = ("a", "b", "c", "client")
        namespaces = (reading,)
        closed = False

        def __init__(self, profile: Any) -> None:
            assert profile.name == "net1"

        def close(self) -> None:
            Three.closed = True

    code = (
        "import json, os, sys\n"
        "given = json.load(sys.stdin)\n"
        "os.fstat(given['namespaces'][0])\n"
        f"print(json.dumps({ANSWER!r} | {{'setting': ' '.join(given['hosts'])}}))\n"
    )
    monkeypatch.setattr(base, "Links", Three)
    result = Spu(make_environment(tmp_path / "env", code)).run(
        BaselineRequest("relu", 8, 2, profile="net1")
    )
    os.close(reading)
    os.close(writing)
    assert isinstance(result, BaselineResult) and result.setting == "a b c"
    assert Three.closed


def test_the_command_names_what_is_missing_and_prints_ratios(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Ours:
        class seconds:
            median = 0.125

        tls, bytes_sent, correct, profile = True, (1000, 500, 500), True, "local"

        @staticmethod
        def to_json() -> str:
            return "{}"

    monkeypatch.setattr(command, "_measure_ours", lambda arguments, request, bar: Ours)
    env = make_environment(tmp_path / "env", print_lines(json.dumps(ANSWER)))
    assert main(["baselines", "sort", "--n", "8", "--repeat", "2", "--spu-env", str(env)]) == 0
    out = capsys.readouterr().out
    rows = {line.split()[0]: line for line in reversed(out.splitlines()) if line}
    assert "3.00x" in rows["spu"]
    assert "no --tf-encrypted-env" in rows["tf-encrypted"] and "no --mp-spdz" in rows["mp-spdz"]

    words = [
        "baselines",
        "sort",
        "--repeat",
        "2",
        "--spu-env",
        str(env),
        "--baseline",
        "spu",
        "--json",
    ]
    assert main(words) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["baselines"]["spu"]["seconds"] == [0.5, 0.25]

    wrong = make_environment(
        tmp_path / "wrong", print_lines(json.dumps(ANSWER | {"correct": False}))
    )
    assert (
        main(["baselines", "sort", "--repeat", "2", "--spu-env", str(wrong), "--baseline", "spu"])
        == 1
    )
    assert main(["peers", "sort", "--repeat", "2", "--spu-env", str(env), "--peer", "spu"]) == 0
    assert "`peers` is called `baselines` now" in capsys.readouterr().err
    assert main(["baselines", "sort", "--baseline", "spy"]) == 2
    assert 'Did you mean "spu"' in capsys.readouterr().err
    assert main(["baselines", "sort", "--install"]) == 2


def test_a_folder_that_is_no_environment_is_not_installed_into(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("dear")
    missing = Spu(tmp_path, install=True).find_obstacle()
    assert (
        isinstance(missing, UnavailableBaseline) and "is no virtual environment" in missing.reason
    )
    assert sorted(p.name for p in tmp_path.iterdir()) == ["letter.txt"]

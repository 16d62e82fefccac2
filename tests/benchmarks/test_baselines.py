"""Baselines: their requests, their answers, and missing installations.

The baselines here are scripts in fake environments; no baseline is installed.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.refusals import raises
from tfe_bench.__main__ import main, make_parser
from tfe_bench.benchmarks.baselines import base
from tfe_bench.benchmarks.baselines.base import (
    Baseline,
    BaselineRequest,
    BaselineResult,
    UnavailableBaseline,
)
from tfe_bench.benchmarks.baselines.mp_spdz import MpSpdz, check_revealed
from tfe_bench.benchmarks.baselines.scripts import workloads
from tfe_bench.benchmarks.baselines.spu import Spu
from tfe_bench.benchmarks.baselines.tf_encrypted import TfEncrypted
from tfe_bench.cli import baselines as command
from tfe_bench.cluster.links import NoNamespaces
from tfe_bench.errors import UsageError
from tfe_bench.models.datasets import mnist

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
        ({"workload": "tanh"}, "unknown-name", "workload"),
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


def test_a_step_in_plaintext_follows_the_gradient_of_the_loss() -> None:
    images, labels, *weights = workloads.make_inputs("train", 8, 0)
    stepped = workloads.compute_results("train", [images, labels, *weights])

    def compute_loss(values: list[Any]) -> float:
        hidden = images
        for kernel, bias in zip(values[0:4:2], values[1:4:2], strict=True):
            hidden = np.maximum(hidden @ kernel + bias, 0)
        logits = hidden @ values[4] + values[5]
        likely = logits - logits.max(1, keepdims=True)
        return -float((labels * (likely - np.log(np.exp(likely).sum(1))[:, None])).sum()) / 8

    for position, weight in enumerate(weights):
        gradient = (weight - stepped[position]) / workloads.RATE
        place = np.unravel_index(np.abs(gradient).argmax(), weight.shape)
        change = [w.copy() for w in weights]
        change[position][place] += 1e-6
        slope = (compute_loss(change) - compute_loss(weights)) / 1e-6
        assert slope == pytest.approx(gradient[place], rel=1e-3), position
    _, velocities = workloads.step_weights(np, images, labels, weights, [1.0] * len(weights))
    assert all(np.abs(v - workloads.MOMENTUM).max() < 0.1 for v in velocities)


@pytest.mark.parametrize("workload", ["sort", "max", "relu", "matmul", "softmax", "train"])
def test_all_systems_get_the_same_inputs_and_wrong_results_are_seen(workload: str) -> None:
    first, again = (workloads.make_inputs(workload, 6, 30) for _ in range(2))
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    expected = workloads.compute_results(workload, first)
    assert workloads.results_agree(workload, expected, expected, 1e-3)
    assert not workloads.results_agree(workload, expected[1:], expected, 1e-3)
    if workload == "train":  # weights without the step
        assert not workloads.results_agree(workload, first[2:], expected, 1e-2)
    wrong = [e + 1.0 for e in expected[:1]] + expected[1:]
    assert not workloads.results_agree(workload, wrong, expected, 1e-3)


def test_our_training_reads_the_images_of_the_baselines(tmp_path: Path) -> None:
    base.write_training_images(tmp_path, 5)
    digits = mnist.load(tmp_path)
    images, labels = workloads.make_inputs("train", 5, 0)[:2]
    assert np.array_equal(digits.train_images.reshape(5, 784) / 255, images)
    assert np.array_equal(digits.train_labels, labels.argmax(1))
    assert len(digits.test_labels) == 5


def test_our_commands_take_the_size_of_the_request(tmp_path: Path) -> None:
    words = {
        name: " ".join(command._own_command(BaselineRequest(name, 16, 3), tmp_path))
        for name in base.WORKLOADS
    }
    assert words["matmul"] == "matmul --n 16 --repeat 3"
    assert words["softmax"] == "softmax --shape 16x10 --repeat 3"
    assert words["max"] == "max --shape 16x4 --repeat 3"
    assert words["train"].startswith("train network-a --batch 16 --steps 4 ")
    parser = make_parser()
    assert all(parser.parse_args(line.split()) for line in words.values())


# Lines that replicated-ring-party prints, shortened.
_PRODUCT = "Time1 = 0.25 seconds (1.5 MB, 8 rounds)\nGlobal data sent = 12.5 MB (all parties)\n"
_LOGITS = [0.5, -1.25, 2, 0, 1, 3.0625, -7.5, 0.25, 0.125, 1.5]


def make_softmax_lines(shift: float = 0.0, subtract: int | None = None) -> str:
    powers = np.exp(np.array(_LOGITS))
    values = powers / powers.sum()
    if subtract is not None:
        values[subtract] -= 1
    values[3] += shift
    return (
        f"{_PRODUCT}CHECK x0 {' '.join(map(str, _LOGITS))}\n"
        f"CHECK y0 {' '.join(f'{v:.6g}' for v in values)}\n"
    )


@pytest.mark.parametrize(
    ("workload", "output", "correct"),
    [
        ("relu", _PRODUCT, None),
        ("matmul", f"{_PRODUCT}CHECK c0 12.5001 12.5\n", True),
        ("matmul", f"{_PRODUCT}CHECK c0 12.6 12.5\n", False),
        ("matmul", f"{_PRODUCT}CHECK c0 12.5\n", False),
        ("matmul", f"{_PRODUCT}CHECK c0 1.2.3 4\n", False),
        ("matmul", _PRODUCT, False),
        ("softmax", make_softmax_lines(), True),
        ("softmax", make_softmax_lines(0.02), False),
        ("softmax", make_softmax_lines(subtract=0), False),
        ("train", make_softmax_lines(subtract=0), True),
        ("train", make_softmax_lines(), False),
        ("train", "CHECK x0 1 2\nCHECK y0 1 2\n", False),
    ],
)
def test_revealed_values_of_mp_spdz_are_compared_with_the_plaintext(
    workload: str, output: str, correct: bool | None
) -> None:
    assert check_revealed(workload, 1, output) is correct


def test_mp_spdz_compiles_runs_and_cleans_up(tmp_path: Path) -> None:
    (tmp_path / "Scripts").mkdir()
    (tmp_path / "replicated-ring-party.x").write_text("")
    programs = {
        "compile.py": 'test "$1 $2" = "-R 64" && grep -q "c = a.dot(b)" Programs/Source/$3.mpc',
        "Scripts/ring.sh": f"printf '%s' '{_PRODUCT}CHECK c0 2 2\nCHECK c1 3 3\n'",
    }
    for name, text in programs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    result = MpSpdz(tmp_path).run(BaselineRequest("matmul", 2, 2))
    assert isinstance(result, BaselineResult)
    assert result.seconds == (0.25, 0.25) and result.bytes_sent == 12_500_000
    assert result.correct is True
    assert list((tmp_path / "Programs" / "Source").iterdir()) == []
    short = MpSpdz(tmp_path).run(BaselineRequest("matmul", 3, 1))
    assert isinstance(short, BaselineResult) and short.correct is False

"""Complete programs: configurations, conversion, and a checkout's tests and scripts."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.paths import ROOT
from tests.refusals import raises
from tests.tf_encrypted.simulated import tfe
from tfe_bench.__main__ import main
from tfe_bench.benchmarks.tf_encrypted_programs import checkout as baseline
from tfe_bench.benchmarks.tf_encrypted_programs.checkout import TestOutcome
from tfe_bench.errors import ConfigError, UsageError
from tfe_bench.tf_encrypted import checkout
from tfe_bench.tf_encrypted.config import get_config, set_config

TESTS = """
import time, unittest
import numpy as np
import tf_encrypted as tfe
from tf_encrypted.protocol.aby3 import ABY3, ShareType
from tf_encrypted.tensor import factories

class TestOurs(unittest.TestCase):
    def test_passes(self):
        assert ABY3 is type(tfe.get_protocol()) and factories[64].nbits == 64
    def test_is_refused(self):
        tfe.pairwise_keys()
    def test_fails(self):
        np.testing.assert_allclose(1, 2)
    def test_takes_long(self):
        time.sleep(60)
    @unittest.skip("not today")
    def test_is_skipped(self):
        pass
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Create a folder in the form of a checkout."""
    file = tmp_path / "tf_encrypted" / "protocol" / "aby3" / "aby3_test.py"
    file.parent.mkdir(parents=True)
    file.write_text(TESTS)
    return tmp_path


def test_a_checkout_s_tests_are_told_apart(
    source: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["compare", "tf-encrypted", "--source", str(source), "--test-seconds", "2"]
    assert main([*command, "--json"]) == 1
    rows = json.loads(capsys.readouterr().out)["tests"]
    assert {t["test"]: t["outcome"] for t in rows} == {
        "test_passes": "passed",
        "test_is_refused": "refused",
        "test_fails": "failed",
        "test_takes_long": "stopped",
        "test_is_skipped": "skipped",
    }
    known = [TestOutcome(**row) for row in rows if row["outcome"] != "failed"]
    monkeypatch.setattr(baseline, "run_tests", lambda *_: iter(known))
    assert main(command) == 0
    shown = capsys.readouterr().out
    assert "protocol/aby3/aby3" in shown and "never show them" in shown


def test_what_is_no_checkout_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, words in (
        (["tf-encrypted"], "--source CHECKOUT"),
        (["tf-encrypted", "--source", str(tmp_path)], "git clone"),
        (["--source", str(tmp_path)], "[option-not-applicable]"),
    ):
        assert main(["compare", *arguments]) == 2
        assert words in capsys.readouterr().err
    with (
        checkout.alias_imports(tmp_path),
        pytest.raises(ModuleNotFoundError, match="is not offered"),
    ):
        __import__("tf_encrypted.queue.fifo")


PROGRAM = """
import json, sys
import numpy as np
import keras
import tf_encrypted as tfe
from tf_encrypted.convert import convert
from tfe_bench.errors import RangeError

config = tfe.RemoteConfig.load(sys.argv[1])
config.connect_servers()
tfe.set_config(config)
tfe.set_protocol(tfe.ABY3(fixedpoint_config="l"))
x = tfe.define_private_variable(np.array([[3.0, -1.0], [2.0, 0.5]]))
x.write("rows")
again = next(tfe.read("rows", 1, [2, 2]))
keras.utils.set_random_seed(1)
given = keras.Input((4, 4, 1))
inner = keras.layers.Conv2D(2, 3, activation="relu")(given)
outer = keras.layers.Dense(3)(keras.layers.Flatten()(inner))
model = keras.Model(given, outer)
images = np.linspace(-1, 1, 32).reshape(2, 4, 4, 1)
private = convert.Converter(config=config).convert(
    model, [2, 4, 4, 1], model_provider=config.get_player("weights-provider")
)
got = private.predict(tfe.define_private_input("bob", lambda: images), batch_size=2)
refused = []
for do in (
    lambda: private.predict(tfe.define_private_variable(images)),
    lambda: private.compile("sgd", None),
):
    try:
        do()
    except NotImplementedError as error:
        refused.append(type(error).__name__)
off = np.abs(got - model.predict(images, verbose=0)).max()
pictures = 127 * images + 127  # planned anew
got = private.predict(tfe.define_private_input("bob", lambda: pictures), batch_size=2)
wide = np.abs(got - model.predict(pictures, verbose=0)).max() / 255
try:
    private.predict(tfe.define_private_input("bob", lambda: 1e6 * images), batch_size=2)
except RangeError as error:
    refused.append(type(error).__name__)
kept = (again * 2).reveal().to_native().numpy().tolist()
print(json.dumps({"kept": kept, "off": float(off), "wide": float(wide), "refused": refused}))
"""


def test_a_program_runs_with_workers_on_this_host(tmp_path: Path) -> None:
    names = ["server0", "server1", "server2", "weights-provider"]
    hosts = {name: f"127.0.0.1:{4440 + i}" for i, name in enumerate(names)}
    (tmp_path / "config.json").write_text(json.dumps(hosts))
    (tmp_path / "program.py").write_text(PROGRAM)
    command = [sys.executable, "-m", "tfe_bench.tf_encrypted.checkout", str(tmp_path)]
    command += [str(tmp_path / "program.py"), "--script", str(tmp_path / "config.json")]
    environment = {**os.environ, "TF_USE_LEGACY_KERAS": "0", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=240, cwd=tmp_path, env=environment
    )
    assert done.returncode == 0, done.stderr[-3000:]
    document = json.loads(done.stdout.splitlines()[-1])
    assert document["kept"] == [[6, -2], [4, 1]]
    assert document["off"] < 1e-3
    assert document["wide"] < 1e-3
    assert document["refused"] == ["NotOffered", "NotOffered", "RangeError"]


EXAMPLE = """
import sys
from models import seconds
open("written", "w").close()
print(f"[Time] {sys.argv[1]}: {seconds} s")
"""


def test_example_programs_run_in_folders_of_their_own(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Run them here, and in an environment of tf-encrypted, which this package replaces."""
    folder = tmp_path / "examples" / "benchmark" / "training"
    folder.mkdir(parents=True)
    (folder / "private_training.py").write_text(EXAMPLE)
    (tmp_path / "examples" / "models.py").write_text("seconds = 2.5")
    before = {*tmp_path.rglob("*"), *Path.cwd().iterdir()}
    command = ["compare", "tf-encrypted", "--source", str(source), "--only", "none"]
    command += ["--tf-encrypted-env", sys.prefix, "--json"]
    assert main([*command, "--programs", "network A, one"]) == 0
    names = ["training: network A, one epoch", "training, converted: network A, one epoch"]
    programs = json.loads(capsys.readouterr().out)["programs"]
    assert list(programs) == names
    assert programs[names[0]] == {"here": {"network_a": 2.5}, "there": {"network_a": 2.5}}
    assert all("exit code" in programs[names[1]][where] for where in ("here", "there"))
    after = {*tmp_path.rglob("*"), *Path.cwd().iterdir()} - before
    assert all("__pycache__" in str(path) for path in after)
    assert main([*command, "--programs", "nothing"]) == 2
    assert "network A" in capsys.readouterr().err


def test_configurations_name_players(tmp_path: Path) -> None:
    local = tfe.LocalConfig(player_names=["a", "b"])
    assert [p.name for p in local.get_players("a, b")] == ["a", "b"]
    assert local.get_player("c").index == 2
    assert tfe.LocalConfig(["a"], auto_add_unknown_players=False).get_player("z") is None
    remote = tfe.RemoteConfig({"x": "h1:1", "y": "h2:2", "z": "h3:3"})
    remote.save(tmp_path / "hosts.json")
    assert tfe.RemoteConfig.load(tmp_path / "hosts.json").hostmap == remote.hostmap
    assert remote.hosts == ["h1:1", "h2:2", "h3:3"]
    with raises(ConfigError, "cluster-file-missing"):
        remote.connect_servers()
    with raises(UsageError, "unsupported-operation", operation="start_server"):
        remote.start_server("x")
    (tmp_path / "bad.json").write_text("[1]")
    for name in ("bad.json", "none.json"):
        with pytest.raises(ConfigError):
            tfe.RemoteConfig.load(tmp_path / name)
    before = get_config()
    with raises(UsageError, "wrong-type"):
        set_config("local")  # type: ignore[arg-type]
    assert get_config() is before


def test_a_player_s_command_says_who_starts_workers() -> None:
    with pytest.raises(SystemExit, match="operator"):
        runpy.run_module("tfe_bench.tf_encrypted.player", run_name="__main__")


def test_the_module_has_the_names_of_its_protocol() -> None:
    assert callable(tfe.matmul) and tfe.keras.Sequential
    tfe.set_protocol(None)
    try:
        with pytest.raises(AttributeError, match="matmul"):
            _: Any = tfe.matmul
    finally:
        tfe.set_protocol(tfe.ABY3())
    with raises(UsageError, "wrong-type"):
        tfe.set_protocol(np)

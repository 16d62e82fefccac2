"""The service files: every path and command line in them exists."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.paths import ROOT
from tfe_bench.__main__ import make_parser

DEPLOY = ROOT / "cluster" / "deploy"
UNIT = "tfe-bench-worker@.service"


def _read_unit() -> dict[str, list[str]]:
    settings: dict[str, list[str]] = {}
    for line in (DEPLOY / UNIT).read_text().splitlines():
        if line and line[0] not in "#[":
            name, equals, value = line.partition("=")
            assert equals, line
            settings.setdefault(name, []).append(value)
    return settings


def _check_command(words: list[str]) -> None:
    """Check that the worker's command line is valid for the command."""
    parsed = make_parser().parse_args(words)
    assert parsed.command == "worker" and parsed.party in (0, 1, 2)
    assert parsed.config.name == f"worker{parsed.party}.toml"


def test_the_unit_starts_a_worker_and_is_hardened() -> None:
    unit = _read_unit()
    [command] = unit["ExecStart"]
    words = command.replace("%i", "2").split()
    assert words[1:3] == ["-m", "tfe_bench"]
    _check_command(words[3:])
    for name, value in {
        "NoNewPrivileges": "yes",
        "ProtectSystem": "strict",
        "PrivateTmp": "yes",
        "Restart": "on-failure",
        "LimitCORE": "0",
        "MemorySwapMax": "0",
        "KillSignal": "SIGTERM",
        "User": "tfe-bench",
    }.items():
        assert unit[name] == [value]
    # Errors that a restart cannot fix (docs/exit_codes.md).
    assert unit["RestartPreventExitStatus"] == ["2 10 30 50"]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze")
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    copy = tmp_path / UNIT.replace("@", "@0")
    # The virtual environment of the file is not on this machine.
    copy.write_text((DEPLOY / UNIT).read_text().replace("/opt/tfe_bench/bin/python", "/bin/true"))
    done = subprocess.run(
        ["systemd-analyze", "verify", str(copy)], capture_output=True, text=True, timeout=60
    )
    complaints = [line for line in (done.stdout + done.stderr).splitlines() if copy.name in line]
    assert complaints == []


def test_compose_has_one_service_for_each_party_that_it_starts_alone() -> None:
    text = (DEPLOY / "compose.yaml").read_text()
    services = re.findall(
        r"^  party(\d):\n    <<: \*worker\n    profiles: \[party(\d)\]\n    command: \[(.*)\]$",
        text,
        re.MULTILINE,
    )
    assert [s[:2] for s in services] == [("0", "0"), ("1", "1"), ("2", "2")]
    for party, _, command in services:
        words = [word.strip().strip('"') for word in command.split(",")]
        _check_command(words)
        assert words[2] == party and f"/config/worker{party}.toml" in words
    assert "network_mode: host" in text and 'user: "10001"' in text and "read_only: true" in text
    named = re.search(r"context: (\S+)\n    dockerfile: (\S+)", text)
    assert named is not None
    context = (DEPLOY / named[1]).resolve()
    assert (context / "setup.py").is_file() and (context / named[2]).is_file()


def test_compose_is_yaml() -> None:
    yaml = pytest.importorskip("yaml")
    loaded = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    assert set(loaded["services"]) == {"party0", "party1", "party2"}
    for service in loaded["services"].values():
        assert service["user"] == "10001" and service["ulimits"]["core"] == 0


def test_the_image_runs_as_nobody_special_and_holds_no_key() -> None:
    text = (DEPLOY / "Dockerfile").read_text()
    stages = re.findall(r"^FROM (\S+)(?: AS (\S+))?$", text, re.MULTILINE)
    assert [name for _, name in stages] == ["build", ""]
    assert all(image.startswith("python:3.11-slim") for image, _ in stages)
    final = text.rpartition("FROM ")[2]
    assert "USER 10001" in final and "--uid 10001" in final
    assert final.index("USER 10001") < final.index("ENTRYPOINT")
    entry = re.search(r"^ENTRYPOINT (\[.*\])$", final, re.MULTILINE)
    assert entry is not None and json.loads(entry[1])[1:] == ["-m", "tfe_bench"]
    assert "**/*.key" in (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()


def test_the_files_are_installed_and_in_the_source_distribution() -> None:
    assert "graft cluster/deploy" in (ROOT / "MANIFEST.in").read_text()
    assert '"tfe_bench.cluster": ["deploy/*"]' in (ROOT / "setup.py").read_text()

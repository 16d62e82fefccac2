"""``doctor``: checks of this machine, the files, the workers and the links."""

from __future__ import annotations

import json
import re
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.refusals import raises
from tfe_bench.__main__ import main
from tfe_bench.cluster import checks as checks_of_doctor
from tfe_bench.cluster import tls
from tfe_bench.cluster.files import write_public_file, write_secret_file
from tfe_bench.cluster.jobs import InputSpec
from tfe_bench.errors import UsageError

if TYPE_CHECKING:
    from tests.cluster.conftest import Hosts

Checks = dict[str, dict[str, str]]


def _run_doctor(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, Checks]:
    capsys.readouterr()
    code = main(["doctor", *arguments, "--json"])
    return code, {check["name"]: check for check in json.loads(capsys.readouterr().out)}


@pytest.fixture
def folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """Create the files of a cluster that does not run."""
    ports = []
    for _ in range(3):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            ports.append(s.getsockname()[1])
    where = ",".join(f"127.0.0.{p + 1}:{port}" for p, port in enumerate(ports))
    assert main(["certs", "all", "--hosts", where, "--out", str(tmp_path / "trial")]) == 0
    return tmp_path / "trial"


def test_this_machine_alone_is_well(capsys: pytest.CaptureFixture[str]) -> None:
    code, checks = _run_doctor(capsys)
    assert code == 0
    assert {"Python", "TensorFlow", "grpcio", "compiled ops", "processor", "memory"} <= set(checks)
    assert "ABI" in checks["compiled ops"]["found"] and "aes" in checks["processor"]["found"]


def test_before_any_worker_runs_the_files_and_the_port_are_looked_at(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks_of_doctor, "CONNECT_SECONDS", 0.5)
    where = ("--cluster", str(folder / "cluster.toml"), "--worker", str(folder / "worker1.toml"))
    code, checks = _run_doctor(capsys, *where, "--offline")
    assert code == 0
    assert "is free" in checks["own port"]["found"]
    assert checks["private key"]["status"] == "ok"
    assert "365 days left" in checks["certificate of party 2"]["found"]
    assert not any(name.startswith("party") for name in checks)

    code, checks = _run_doctor(capsys, *where)
    assert code == 1
    failed = {name: c["found"] for name, c in checks.items() if c["status"] == "FAIL"}
    assert set(failed) == {"party 0", "party 2"}
    assert "does not answer" in failed["party 0"]


def test_each_thing_that_is_wrong_is_named_with_its_remedy_and_no_secret(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from tests.cluster.certificates import odd_certificate

    key = folder / "party1.key"
    secret = key.read_text().splitlines()[1]
    key.chmod(0o644)
    pair = odd_certificate(tls.party_common_name(2), start_days=-30, end_days=-1)
    write_public_file(folder / "party2.crt", pair[1], overwrite=True)
    pair = tls.make_self_signed_certificate(tls.party_common_name(0), 20)
    write_public_file(folder / "party0.crt", pair[1], overwrite=True)
    (folder / "worker0.toml").write_text(
        'party = 0\nkey = "party0.key"\nallow_programs = ["sroted"]\n'
    )
    where = ("--cluster", str(folder / "cluster.toml"), "--offline")
    code, checks = _run_doctor(capsys, *where, "--worker", str(folder / "worker1.toml"))
    assert code == 1
    assert checks["certificate of party 2"]["status"] == "FAIL"
    assert "expired on" in checks["certificate of party 2"]["found"]
    assert checks["certificate of party 0"]["status"] == "warn"
    assert "certs renew" in checks["certificate of party 0"]["remedy"]
    assert checks["worker file"]["status"] == "FAIL"
    assert "chmod 600" in checks["worker file"]["remedy"]
    assert secret not in json.dumps(checks)

    code, checks = _run_doctor(capsys, *where, "--worker", str(folder / "worker0.toml"))
    assert code == 1
    assert "does not belong" in checks["private key"]["found"]
    assert checks["names"]["status"] == checks["policy"]["status"] == "warn"
    assert 'Did you mean "sort"?' in checks["names"]["found"]

    code, checks = _run_doctor(capsys, "--cluster", str(folder / "none.toml"))
    assert code == 1 and checks["cluster file"]["status"] == "FAIL"
    assert main(["doctor", "--client", "analyst"]) == 2
    assert main(["doctor", "--megabytes", "0"]) == 2


def test_a_port_that_something_else_holds_is_no_worker(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (folder / "cluster.toml").read_text()
    port = int(re.findall(r"port = (\d+)", text)[0])
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", port))
        listener.listen()
        code, checks = _run_doctor(
            *(capsys, "--cluster", str(folder / "cluster.toml"), "--offline"),
            *("--worker", str(folder / "worker0.toml")),
        )
    assert code == 1 and checks["own port"]["status"] == "FAIL"


def test_the_program_links_refuses_unfit_parameters() -> None:
    from tfe_bench.benchmarks.workloads.links import PROGRAM

    PROGRAM.parse({"pings": 3, "pair_kilobytes": 1}, [])
    for unfit, code in (
        ({"pings": 0}, "number-out-of-range"),
        ({"kilobytes": 4_000_001}, "number-out-of-range"),
        ({"pair_kilobytes": 1.5}, "wrong-type"),
        ({"turns": True}, "wrong-type"),
        ({"x": 1}, "unknown-option"),
    ):
        with raises(UsageError, code):
            PROGRAM.parse(unfit, [])
    with raises(UsageError, "unexpected-inputs", operation="links"):
        PROGRAM.parse({}, [InputSpec("a", (1,), 0)])


def test_a_client_sees_every_worker_and_every_link(
    hosts: Hosts, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Party 1's operator does not allow `links`; its port is also checked from its own file."""
    hosts.ensure()
    client = ("--client", "analyst", "--megabytes", "1")
    code, checks = _run_doctor(capsys, "--cluster", str(hosts.cluster), *client)
    assert code == 0, checks
    for party in range(3):
        for what in ("", ": cluster file", ": versions", ": clock"):
            assert checks[f"party {party}{what}"]["status"] == "ok"
    assert checks["links"]["status"] == "warn" and "Party 1" in checks["links"]["found"]

    where = ("--cluster", str(hosts.cluster))
    code, checks = _run_doctor(capsys, *where, "--worker", str(hosts.folder / "worker1.toml"))
    assert code == 0, checks
    assert "worker serves" in checks["own port"]["found"]
    assert "party 0: clock" in checks and "party 1: clock" not in checks

    # Another text is another digest, another certificate is not the pinned one.
    other = tmp_path / "other"
    shutil.copytree(hosts.folder, other)
    path = other / "cluster.toml"
    path.write_text(path.read_text().replace('name = "trial"', 'name = "trail"'))
    code, checks = _run_doctor(capsys, "--cluster", str(path), *client)
    assert code == 1
    assert checks["party 2: cluster file"]["status"] == "FAIL"
    write_public_file(
        other / "party2.crt",
        tls.make_self_signed_certificate(tls.party_common_name(2))[1],
        overwrite=True,
    )
    code, checks = _run_doctor(capsys, "--cluster", str(path), *client)
    assert code == 1
    assert "shows SHA-256" in checks["party 2"]["found"] and checks["party 2"]["status"] == "FAIL"


@pytest.fixture(scope="module")
def own_hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Start three hosts that allow everything."""
    from tests.cluster.conftest import Hosts

    three = Hosts(tmp_path_factory.mktemp("doctor") / "trial")
    yield three
    three.close()


@pytest.mark.slow
def test_the_links_between_all_pairs_are_measured(
    own_hosts: Hosts, capsys: pytest.CaptureFixture[str]
) -> None:
    own_hosts.ensure()
    code, checks = _run_doctor(capsys, "--cluster", str(own_hosts.cluster), "--megabytes", "2")
    assert code == 0, checks
    for pair in ("0-1", "0-2", "1-2"):
        assert re.search(r"round trip [0-9.]+ ms, [0-9]+ MB/s", checks[f"link {pair}"]["found"])


@pytest.mark.slow
def test_a_partys_certificate_does_not_pass_for_another_party(
    own_hosts: Hosts, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Start a worker with party 1's key and certificate on party 2's address."""
    hosts = own_hosts
    hosts.ensure(2)
    other = tmp_path / "impostor"
    shutil.copytree(hosts.folder, other)
    path = other / "cluster.toml"
    text = path.read_text()
    # Its own file names party 2, with a certificate without a role.
    from tests.cluster.certificates import odd_certificate

    key, certificate = odd_certificate("worker.example")
    write_secret_file(other / "party2.key", key, overwrite=True)
    write_public_file(other / "party2.crt", certificate, overwrite=True)
    path.write_text(text)
    hosts.start(2, cluster=path)
    hosts.wait_ready(2)
    code, checks = _run_doctor(capsys, "--cluster", str(hosts.cluster))
    assert code == 1 and "shows SHA-256" in checks["party 2"]["found"]
    done = hosts.command("sort", "--cluster", str(hosts.cluster), "--n", "9")
    assert (done.returncode, done.stdout) == (20, "")
    assert "Party 2" in done.stderr and "TLS" in done.stderr
    hosts.stop(2)

    # The file itself rejects party 1's certificate in party 2's place.
    shutil.copy(other / "party1.crt", other / "party2.crt")
    shutil.copy(other / "party1.key", other / "party2.key")
    done = hosts.command("worker", "--party", "2", "--cluster", str(path))
    assert done.returncode == 10 and "belongs to another member" in done.stderr

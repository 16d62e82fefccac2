"""worker.toml, and the certs command that writes a first one."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import socket
import stat
from dataclasses import Field
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.mistakes import check_mistake_named
from tests.refusals import raises
from tfe_bench.__main__ import main
from tfe_bench.cli import certs, worker
from tfe_bench.cluster import grpc_tls, policy, tls
from tfe_bench.cluster.config import ClusterConfig
from tfe_bench.cluster.files import write_secret_file
from tfe_bench.cluster.policy import RevealRule, WorkerPolicy
from tfe_bench.errors import ConfigError, PolicyError, SecurityError, UsageError

GOOD = """\
party = 1
key = "party1.key"
allow_programs = ["sort", "max"]

[[reveal]]
program = "sort"
to = ["analyst"]

[[reveal]]
program = "max"
to = ["*"]

[limits]
max_elements = 1000
job_seconds = 60
"""
HOSTS = "127.0.0.1:7700,127.0.0.2:7700,127.0.0.3:7700"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_secret_file(
        tmp_path / "party1.key", tls.make_self_signed_certificate("party-1.tfe-bench")[0]
    )
    return tmp_path


def _load_policy(folder: Path, text: str) -> WorkerPolicy:
    (folder / "worker.toml").write_text(text)
    return WorkerPolicy.load(folder / "worker.toml")


def test_a_good_file_is_read(folder: Path) -> None:
    policy = _load_policy(folder, GOOD)
    assert policy == WorkerPolicy(
        party=1,
        key=folder / "party1.key",
        allow_programs=("sort", "max"),
        reveal=(RevealRule("sort", ("analyst",)), RevealRule("max", ("*",))),
        max_elements=1000,
        job_seconds=60.0,
    )
    assert policy.load_key() == (folder / "party1.key").read_bytes()


def test_what_is_not_listed_is_not_permitted(folder: Path) -> None:
    policy = _load_policy(folder, 'party = 1\nkey = "party1.key"\n')
    with pytest.raises(PolicyError):
        policy.permit_program("sort")
    with pytest.raises(PolicyError):
        policy.permit_reveal("sort", "analyst")
    policy.permit_elements(1 << 26)
    with pytest.raises(PolicyError):
        policy.permit_elements((1 << 26) + 1)
    assert policy.job_seconds == 3600


def test_a_program_is_permitted_by_name(folder: Path) -> None:
    policy = _load_policy(folder, GOOD)
    policy.permit_program("sort")
    for name in ("train", "Sort", "sort ", "", "*"):
        with raises(PolicyError, "program-not-allowed") as caught:
            policy.permit_program(name)
        assert f'program "{name}"' in str(caught.value)
    _load_policy(folder, GOOD.replace('"max"]', '"*"]')).permit_program("train")


def test_a_reveal_is_permitted_by_program_and_client(folder: Path) -> None:
    policy = _load_policy(folder, GOOD)
    policy.permit_reveal("sort", "analyst")
    policy.permit_reveal("max", "anyone")
    for program, to in [("sort", "bob"), ("train", "analyst"), ("*", "analyst"), ("sort", "*")]:
        with pytest.raises(PolicyError) as caught:
            policy.permit_reveal(program, to)
        text = str(caught.value)
        assert f'program = "{program}"' in text and f'to = ["{to}"]' in text


def test_the_line_that_an_error_proposes_is_the_one_that_helps(folder: Path) -> None:
    with pytest.raises(PolicyError) as caught:
        _load_policy(folder, GOOD).permit_reveal("sort", "bob")
    assert 'program = "sort" and to = ["bob"]' in str(caught.value)
    added = '\n[[reveal]]\nprogram = "sort"\nto = ["bob"]\n'
    _load_policy(folder, GOOD + added).permit_reveal("sort", "bob")


def test_a_refusal_tells_a_client_nothing_else_and_stays_on_one_line(folder: Path) -> None:
    policy = _load_policy(folder, GOOD)
    for name in ("x\nINFO: all is well \x1b[2J", "y" * 100_000):
        with pytest.raises(PolicyError) as program:
            policy.permit_program(name)
        with pytest.raises(PolicyError) as reveal:
            policy.permit_reveal(name, name)
        for text in (str(program.value), str(reveal.value)):
            assert text.isprintable() and len(text) < 1000
            assert str(folder) not in text and "analyst" not in text and '"max"' not in text


def test_elements_are_limited(folder: Path) -> None:
    policy = _load_policy(folder, GOOD)
    policy.permit_elements(0)
    policy.permit_elements(1000)
    for count in (1001, -1):
        with raises(
            PolicyError, "too-large", operation="inputs of this size", received=f"{count} elements"
        ):
            policy.permit_elements(count)


@pytest.mark.parametrize("limit", policy._policy_limit_fields(), ids=lambda limit: limit.name)
def test_every_limit_is_read_and_holds_its_range(folder: Path, limit: Field[Any]) -> None:
    name, default = limit.name, limit.default
    least, most = limit.metadata["least"], limit.metadata["most"]

    def loaded(value: object) -> WorkerPolicy:
        text = f'party = 1\nkey = "party1.key"\n[limits]\n{name} = {value}\n'
        return _load_policy(folder, text)

    assert getattr(WorkerPolicy(1), name) == default
    within = (0.5, 1e9) if type(default) is float else (least, default, min(most, 2**62))
    for value in within:
        assert getattr(loaded(value), name) == value
    outside = [0, -1] if type(default) is float else [least - 1, -1, 2**63 - 1]
    for value in outside:
        with raises(ConfigError, "number-out-of-range", operation=name, received=value) as caught:
            loaded(value)
        assert f"{default:g}" in str(caught.value) or str(default) in str(caught.value)


BAD = {
    "unknown key": ("allow_programs", "allow_program", ['"allow_program"', '"allow_programs"?']),
    "unknown table": ("[limits]", "[limit]", ['"limit"', 'Did you mean "limits"?']),
    "unknown limit": ("max_elements", "max_element", ["[limits]", '"max_elements"?']),
    "unknown rule key": ("to = [\"*\"]", "too = [\"*\"]", ["[[reveal]] number 2", '"to"?']),
    "no party": ("party = 1\n", "", ['"party" is missing']),
    "party high": ("party = 1", "party = 3", ['"party"', "Received: 3"]),
    "party text": ("party = 1", 'party = "1"', ["whole number", 'Received: "1"']),
    "programs text": ('["sort", "max"]', '"*"', ['"allow_programs"', "list", 'Received: "*"']),
    "programs mixed": ('["sort", "max"]', '["sort", 1]', ['"allow_programs"', "list"]),
    "to text": ('["analyst"]', '"analyst"', ["[[reveal]] number 1", '"to"', "list"]),
    "rule without program": ('program = "sort"\n', "", ["number 1", '"program" is missing']),
    "elements": ("= 1000", "= 0", ['"max_elements"', "Received: 0"]),
    "elements float": ("= 1000", "= 1e3", ['"max_elements"', "whole number"]),
    "seconds": ("= 60", "= 0", ['"job_seconds"', "Received: 0"]),
    "seconds inf": ("= 60", "= inf", ['"job_seconds"', "finite number"]),
    "seconds nan": ("= 60", "= nan", ['"job_seconds"', "finite number"]),
    "seconds bool": ("= 60", "= true", ['"job_seconds"', "Received: true"]),
    "not toml": ("party = 1", "party 1", ["line 1", "party 1"]),
    "no key file": ("party1.key", "party9.key", ["party9.key", "No such file"]),
}  # fmt: skip


@pytest.mark.parametrize("case", list(BAD))
def test_a_mistake_is_named_with_file_key_and_what_was_received(folder: Path, case: str) -> None:
    check_mistake_named(_load_policy, folder / "worker.toml", GOOD, BAD[case])


def test_a_reveal_in_single_brackets_is_explained(folder: Path) -> None:
    text = 'party = 1\nkey = "party1.key"\n[reveal]\nprogram = "sort"\nto = ["analyst"]\n'
    with raises(ConfigError, "wrong-type", operation="reveal", names=("[[reveal]]",)):
        _load_policy(folder, text)


def test_a_key_open_to_others_is_refused_and_the_policy_itself_may_be_read(folder: Path) -> None:
    (folder / "worker.toml").write_text(GOOD)
    (folder / "worker.toml").chmod(0o644)
    WorkerPolicy.load(folder / "worker.toml")
    (folder / "party1.key").chmod(0o640)
    with raises(SecurityError, "insecure-permissions", received="mode 0640"):
        WorkerPolicy.load(folder / "worker.toml")


def test_without_a_key_only_tls_is_impossible(folder: Path) -> None:
    policy = _load_policy(folder, "party = 2\n")
    assert policy.key is None
    with raises(ConfigError, "key-missing", operation="key"):
        policy.load_key()


def test_a_local_policy_permits_everything(folder: Path) -> None:
    policy = WorkerPolicy.for_local(1, folder / "party1.key")
    policy.permit_program("anything")
    policy.permit_reveal("anything", "anyone")
    assert policy.load_key()
    assert WorkerPolicy.for_local(0, None).key is None


def _run_certs(*words: str) -> int:
    parser = argparse.ArgumentParser()
    certs.add_cert_options(parser)
    return certs.run_certs(parser.parse_args(words))


def test_certs_all_makes_a_cluster_that_loads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "new" / "trial"
    assert (
        _run_certs("all", "--out", str(out), "--hosts", HOSTS, "--client", "ann", "--client", "b")
        == 0
    )
    cluster = ClusterConfig.load(out / "cluster.toml")
    for party in cluster.parties:
        tls.check_any_certificate_valid(party.certificates)
    assert [party.address for party in cluster.parties] == HOSTS.split(",")
    assert [client.name for client in cluster.clients] == ["ann", "b"]
    for index in range(3):
        policy = WorkerPolicy.load(out / f"worker{index}.toml")
        assert policy.party == index
        policy.permit_program("sort")
        policy.permit_reveal("sort", "ann")
        with pytest.raises(PolicyError):
            policy.permit_reveal("sort", "stranger")
        certificate = cluster.parties[index].certificate
        assert certificate is not None
        grpc_tls.worker_tls_credentials(policy.load_key(), certificate, cluster.trusted_by(index))
    printed = capsys.readouterr()
    assert sorted(printed.out.splitlines()) == sorted(str(out / name) for name in os.listdir(out))
    assert "TRIALS ONLY" in printed.err and "all three private keys" in printed.err
    for path in out.glob("*.key"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert path.read_text() not in printed.out + printed.err
    assert len(list(out.glob("*.key"))) == 5
    assert stat.S_IMODE(out.stat().st_mode) == 0o700


def test_certs_all_has_a_client_by_default(tmp_path: Path) -> None:
    _run_certs("all", "--out", str(tmp_path), "--hosts", "[::1]:1,b.example.org:1,c.example.org:1")
    cluster = ClusterConfig.load(tmp_path / "cluster.toml")
    assert [client.name for client in cluster.clients] == ["analyst"]
    assert cluster.parties[0].address == "[::1]:1"


@pytest.mark.parametrize("taken", ["worker2.toml", "party0.key", "cluster.toml", "party1.crt"])
def test_certs_all_overwrites_nothing_and_leaves_nothing_behind(tmp_path: Path, taken: str) -> None:
    (tmp_path / taken).write_text("mine")
    with raises(ConfigError, "file-exists", received=str(tmp_path / taken)):
        _run_certs("all", "--out", str(tmp_path), "--hosts", HOSTS)
    assert os.listdir(tmp_path) == [taken]
    assert (tmp_path / taken).read_text() == "mine"


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("wrong-party-count", ["--hosts", "127.0.0.1:1,127.0.0.1:2"]),
        ("invalid-address", ["--hosts", "127.0.0.1,127.0.0.2,127.0.0.3"]),
        ("duplicate-name", ["--hosts", "127.0.0.1:1,127.0.0.1:1,127.0.0.1:2"]),
        ("number-out-of-range", ["--hosts", "127.0.0.1:1,127.0.0.1:2,127.0.0.1:99999"]),
        ("invalid-name", ["--hosts", HOSTS, "--client", "../x"]),
        ("duplicate-name", ["--hosts", HOSTS, "--client", "a", "--client", "A"]),
        ("duplicate-name", ["--hosts", HOSTS, "--client", "party0"]),
        ("number-out-of-range", ["--hosts", HOSTS, "--days", "0"]),
    ],
)
def test_certs_all_refuses_wrong_arguments_before_it_writes(
    tmp_path: Path, code: str, words: list[str]
) -> None:
    with raises(UsageError, code):
        _run_certs("all", "--out", str(tmp_path / "out"), *words)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("words", "stem"),
    [(["party", "--party", "1"], "party1"), (["client", "--name", "ann"], "client-ann")],
)
def test_one_organization_makes_its_own_and_is_told_what_to_send(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], stem: str
) -> None:
    out = tmp_path / "own"
    assert _run_certs(*words, "--out", str(out)) == 0
    assert sorted(os.listdir(out)) == [f"{stem}.crt", f"{stem}.key"]
    certificate = tls.load_certificate(out / f"{stem}.crt")
    key = tls.load_private_key(out / f"{stem}.key")
    grpc_tls.channel_tls_credentials(key, certificate, certificate)
    printed = capsys.readouterr()
    assert f"send         {out / stem}.crt" in printed.out
    assert (
        tls.format_certificate_fingerprint(tls.compute_certificate_fingerprint(certificate))
        in printed.out
    )
    assert f"{stem}.key never leaves this machine" in printed.err
    assert "PRIVATE" not in printed.out + printed.err
    with raises(ConfigError, "file-exists"):
        _run_certs(*words, "--out", str(out))
    assert tls.load_private_key(out / f"{stem}.key") == key


def test_a_key_left_without_its_certificate_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "party1.crt").write_text("mine")
    with raises(ConfigError, "file-exists", received=str(tmp_path / "party1.crt")):
        _run_certs("party", "--party", "1", "--out", str(tmp_path))
    assert os.listdir(tmp_path) == ["party1.crt"]


def test_an_out_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("mine")
    with raises(ConfigError, "file-not-writable"):
        _run_certs("client", "--name", "ann", "--out", str(tmp_path / "out"))
    with raises(UsageError, "invalid-name", operation="client"):
        _run_certs("client", "--name", "a/b", "--out", str(tmp_path / "other"))


def test_a_worker_finds_what_is_wrong_with_its_files_and_port_before_it_loads_tensorflow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def loads(*_: object) -> None:
        raise AssertionError("TensorFlow was loaded")

    monkeypatch.setattr(worker, "start_tensorflow", loads)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    with contextlib.closing(socket.socket()) as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        hosts = f"127.0.0.1:{port},127.0.0.2:7700,127.0.0.3:7700"
        folder = tmp_path / "trial"
        assert main(["certs", "all", "--hosts", hosts, "--out", str(folder)]) == 0
        where = ["worker", "--party", "0", "--cluster", str(folder / "cluster.toml")]
        assert main(where) == 10
        assert f"cannot listen on 127.0.0.1:{port}" in capsys.readouterr().err
    (folder / "worker0.toml").rename(folder / "w4.toml")
    mine = [*where, "--config", str(folder / "w4.toml")]
    assert main(mine) == 1  # the port is free now
    assert "AssertionError" in capsys.readouterr().err
    text = (folder / "w4.toml").read_text()
    for old, new, fragment in (
        ("party = 0", "party = 1", "w4.toml of party 1"),
        ('key = "party0.key"', "", 'w4.toml: "key" is missing'),
        ("job_seconds", "job_second", "w4.toml: [limits]: unknown key"),
    ):
        (folder / "w4.toml").write_text(text.replace(old, new, 1))
        assert main(mine) == 10
        assert fragment in capsys.readouterr().err

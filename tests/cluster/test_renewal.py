"""Certificates that expire, and the change to the next ones while workers serve."""

from __future__ import annotations

import datetime
import os
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.refusals import raises
from tfe_bench.__main__ import main
from tfe_bench.cluster import expiry, grpc_tls, tls
from tfe_bench.cluster.client import Client
from tfe_bench.cluster.config import ClientConfig, ClusterConfig, PartyConfig
from tfe_bench.cluster.files import write_public_file, write_secret_file
from tfe_bench.cluster.requests import PrivateInput
from tfe_bench.errors import ConfigError, SecurityError

if TYPE_CHECKING:
    from tests.cluster.conftest import Hosts

UTC = datetime.UTC


def _make_cluster(days: int = 365) -> tuple[ClusterConfig, list[bytes]]:
    pairs = [tls.make_self_signed_certificate(tls.party_common_name(p), days) for p in range(3)]
    key, certificate = tls.make_self_signed_certificate(tls.client_common_name("ann"), days)
    parties = tuple(
        PartyConfig(p, f"p{p}", f"127.0.0.{p + 1}", 7700, pem) for p, (_, pem) in enumerate(pairs)
    )
    config = ClusterConfig("c", parties, (ClientConfig("ann", certificate),))
    return config, [*(k for k, _ in pairs), key]


def _with_second(config: ClusterConfig, party: int, pem: bytes) -> ClusterConfig:
    old = config.parties[party]
    new = PartyConfig(party, old.name, old.host, old.port, old.certificate, pem)
    parties = tuple(new if p.index == party else p for p in config.parties)
    return ClusterConfig(config.name, parties, config.clients)


# ---- the file


def test_a_member_may_have_two_certificates_and_the_digest_covers_both(tmp_path: Path) -> None:
    config, keys = _make_cluster()
    key, second = tls.make_self_signed_certificate(tls.party_common_name(1))
    both = _with_second(config, 1, second)
    assert both.digest() != config.digest()
    path = tmp_path / "cluster.toml"
    both.save(path)
    assert 'certificate = ["party1.crt", "party1-new.crt"]' in path.read_text()
    again = ClusterConfig.load(path)
    assert again == both and again.digest() == both.digest()
    assert again.identify(tls.compute_certificate_fingerprint(second)).name == "p1"
    assert (
        again.identify(
            tls.compute_certificate_fingerprint(config.parties[1].certificate or b"")
        ).name
        == "p1"
    )
    assert len(again.trusted_by(0)) == 4 and len(again.trusted_by(1)) == 3
    mine = again.parties[1].certificates
    assert tls.select_key_certificate(key, mine) == second
    assert tls.select_key_certificate(keys[1], mine) == mine[0]
    with raises(ConfigError, "key-mismatch"):
        tls.select_key_certificate(keys[0], mine)


def test_of_two_certificates_with_one_key_the_one_that_lasts_longer_is_shown() -> None:
    key, short = tls.make_self_signed_certificate(tls.party_common_name(0), 10)
    _, long = tls.make_self_signed_certificate(tls.party_common_name(0), 20, key)
    assert tls.select_key_certificate(key, [short, long]) == long
    assert tls.select_key_certificate(key, [long, short]) == long
    config, _ = _make_cluster()
    PartyConfig(0, "p", "127.0.0.1", 1, short, long)
    with raises(ConfigError, "duplicate-name", operation='"certificate" (or the key in it)'):
        ClusterConfig(
            "c",
            (PartyConfig(0, "p", "127.0.0.1", 1, short), *config.parties[1:]),
            (ClientConfig("bob", _client_with(key)),),
        )


def _client_with(key: bytes) -> bytes:
    return tls.make_self_signed_certificate(tls.client_common_name("bob"), 10, key)[1]


_CODES = {
    "two different ones": "duplicate-certificate",
    "somebody else": "certificate-of-another-member",
    "Received: 3": "too-many-certificates",
    "list of texts": "wrong-type",
    "missing.crt": "file-not-found",
}


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ('["party1.crt", "party1.crt"]', "two different ones"),
        ('["party1.crt", "party2.crt"]', "somebody else"),
        ('["party1.crt", "party1.crt", "party1.crt"]', "Received: 3"),
        ("[1]", "list of texts"),
        ('["party1.crt", "missing.crt"]', "missing.crt"),
    ],
)
def test_an_unfit_list_of_certificates_is_refused(tmp_path: Path, line: str, told: str) -> None:
    config, _ = _make_cluster()
    path = tmp_path / "cluster.toml"
    config.save(path)
    path.write_text(path.read_text().replace('"party1.crt"', line))
    with raises(ConfigError, _CODES[told]):
        ClusterConfig.load(path)


# ---- their end


def test_an_expired_certificate_is_refused_with_its_date_and_the_command() -> None:
    config, _ = _make_cluster(days=10)
    later = datetime.datetime.now(UTC) + datetime.timedelta(days=11)
    until = tls.certificate_valid_until(config.parties[0].certificate or b"")
    with raises(SecurityError, "certificate-expired") as caught:
        tls.check_any_certificate_valid(config.parties[0].certificates, later)
    assert f"{until:%Y-%m-%d}" in str(caught.value)
    renewed = config
    for party in range(3):
        _, second = tls.make_self_signed_certificate(tls.party_common_name(party), 300)
        renewed = _with_second(renewed, party, second)
    for member in renewed.parties:
        tls.check_any_certificate_valid(member.certificates, later)


def test_a_month_before_its_end_a_certificate_is_warned_of_until_it_has_a_successor() -> None:
    config, _ = _make_cluster(days=40)
    now = datetime.datetime.now(UTC)
    assert expiry.certificate_expiry_warnings(config, now) == []
    soon = now + datetime.timedelta(days=15)
    expiry_texts = expiry.certificate_expiry_warnings(config, soon)
    assert len(expiry_texts) == 4
    assert (
        "party 0" in expiry_texts[0]
        and "25 days left" in expiry_texts[0]
        and "certs renew" in expiry_texts[0]
    )
    _, second = tls.make_self_signed_certificate(tls.party_common_name(0), 300)
    assert len(expiry.certificate_expiry_warnings(_with_second(config, 0, second), soon)) == 3
    gone = expiry.certificate_expiry_warnings(config, now + datetime.timedelta(days=41))
    assert all("expired on" in line for line in gone)


# ---- the command


def test_renew_makes_a_second_pair_and_says_how_to_change(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["certs", "party", "--party", "1", "--out", str(tmp_path)]) == 0
    old = tmp_path / "party1.crt"
    capsys.readouterr()
    assert main(["certs", "renew", str(old), "--days", "20"]) == 0
    shown = capsys.readouterr()
    new = tmp_path / "party1-new.crt"
    for path in (old, new):
        fingerprint = tls.format_certificate_fingerprint(
            tls.compute_certificate_fingerprint(tls.load_certificate(path))
        )
        assert fingerprint in shown.out and len(fingerprint.split()) == 16
        assert main(["certs", "show", str(path)]) == 0
        assert fingerprint in capsys.readouterr().out
    assert tls.certificate_server_name(new.read_bytes()) == tls.certificate_server_name(
        old.read_bytes()
    )
    assert tls.public_key_fingerprint(new.read_bytes()) != tls.public_key_fingerprint(
        old.read_bytes()
    )
    key = tls.load_private_key(tmp_path / "party1-new.key")
    assert tls.select_key_certificate(key, [old.read_bytes(), new.read_bytes()]) == new.read_bytes()
    assert 'certificate = ["party1.crt", "party1-new.crt"]' in shown.err
    assert 'key = "party1-new.key"' in shown.err
    assert "PRIVATE" not in shown.out + shown.err
    # No file is replaced, and the next run uses the plain names again.
    assert main(["certs", "renew", str(old)]) == 10
    assert main(["certs", "renew", str(new), "--out", str(tmp_path / "next")]) == 0
    assert sorted(p.name for p in (tmp_path / "next").iterdir()) == ["party1.crt", "party1.key"]


def test_renew_can_keep_the_key(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["certs", "client", "--name", "ann", "--out", str(tmp_path)]) == 0
    old = tmp_path / "client-ann.crt"
    assert main(["certs", "renew", str(old), "--keep-key"]) == 0
    assert "client-ann.key" in capsys.readouterr().err
    new = tmp_path / "client-ann-new.crt"
    assert not new.with_suffix(".key").exists()
    assert tls.public_key_fingerprint(new.read_bytes()) == tls.public_key_fingerprint(
        old.read_bytes()
    )
    shutil.copy(tmp_path / "client-ann.key", tmp_path / "other.key")
    os.remove(tmp_path / "client-ann.key")
    assert main(["certs", "renew", str(old), "--keep-key", "--out", str(tmp_path / "x")]) == 10
    assert main(["certs", "renew", str(tmp_path / "no.crt")]) == 10
    assert main(["certs", "renew", str(old), "--days", "0", "--out", str(tmp_path / "y")]) == 2


# ---- workers


def _check_sort(hosts: Hosts, cluster: Path, key: Path | None = None) -> None:
    key = key or cluster.parent / "client-analyst.key"
    client = Client.load(cluster, key, key.with_suffix(".crt"))
    try:
        client.wait_ready()
        result = client.run("sort", {}, {"keys": PrivateInput(np.arange(9)[::-1].copy())})
    finally:
        client.close()
    np.testing.assert_array_equal(result.outputs["keys"], np.arange(9))


@pytest.fixture
def own_hosts(tmp_path: Path) -> object:
    """Start three hosts of this test alone."""
    from tests.cluster.conftest import Hosts

    three = Hosts(tmp_path / "trial")
    yield three
    three.close()


@pytest.mark.slow
def test_a_party_and_a_client_change_certificates_one_restart_at_a_time(own_hosts: Hosts) -> None:
    hosts = own_hosts
    folder = hosts.folder
    for stem in ("party1", "client-analyst"):
        done = hosts.command("certs", "renew", str(folder / f"{stem}.crt"))
        assert done.returncode == 0, done.stderr
        text = hosts.cluster.read_text()
        both = f'certificate = ["{stem}.crt", "{stem}-new.crt"]'
        hosts.cluster.write_text(text.replace(f'certificate = "{stem}.crt"', both))
    hosts.ensure()
    _check_sort(hosts, hosts.cluster)  # old keys everywhere
    _check_sort(hosts, hosts.cluster, folder / "client-analyst-new.key")
    pids = {p: w.pid for p, w in hosts.workers.items()}
    own = folder / "worker1.toml"
    own.write_text(own.read_text().replace("party1.key", "party1-new.key"))
    assert hosts.stop(1) == 0
    hosts.start(1)
    hosts.wait_ready(1)
    _check_sort(hosts, hosts.cluster)
    _check_sort(hosts, hosts.cluster, folder / "client-analyst-new.key")
    assert all(hosts.workers[p].pid == pids[p] for p in (0, 2))


@pytest.mark.slow
def test_an_expired_or_early_end_is_told_by_workers_and_clients(own_hosts: Hosts) -> None:
    """Warn of certificates that expire in 20 days, and start no worker with an expired one."""
    hosts = own_hosts
    folder = hosts.folder
    for stem, name in (("party2", tls.party_common_name(2)),):
        key, certificate = tls.make_self_signed_certificate(name, 20)
        write_secret_file(folder / f"{stem}.key", key, overwrite=True)
        write_public_file(folder / f"{stem}.crt", certificate, overwrite=True)
    hosts.ensure()
    for party in range(3):
        warned = [line for line in hosts.log(party).splitlines() if "days left" in line]
        assert len(warned) == 1 and "party 2" in warned[0] and "certs renew" in warned[0]
    _check_sort(hosts, hosts.cluster)


def test_a_worker_and_a_client_whose_certificate_has_ended_are_told_the_date(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from tests.cluster.certificates import odd_certificate

    folder = tmp_path / "trial"
    where = "127.0.0.1:7791,127.0.0.2:7791,127.0.0.3:7791"
    assert main(["certs", "all", "--hosts", where, "--out", str(folder)]) == 0
    for stem, name in (
        ("client-analyst", tls.client_common_name("analyst")),
        ("party0", tls.party_common_name(0)),
    ):
        key, certificate = odd_certificate(name, start_days=-30, end_days=-1)
        write_secret_file(folder / f"{stem}.key", key, overwrite=True)
        write_public_file(folder / f"{stem}.crt", certificate, overwrite=True)
        capsys.readouterr()
        code = main(["status", "--cluster", str(folder / "cluster.toml")])
        output = capsys.readouterr().err
        assert code == 30
        assert re.search(r"has expired\. Received: valid until 20\d\d-\d\d-\d\d", output), output
        assert "certs renew" in output
    with raises(SecurityError, "certificate-expired", operation="party-0.tfe-bench"):
        config = ClusterConfig.load(folder / "cluster.toml")
        pem = config.parties[0].certificates[0]
        grpc_tls.worker_tls_credentials(
            (folder / "party0.key").read_bytes(), pem, config.trusted_by(0)
        )

"""cluster.toml: parsing, rejection, and the conditions for equal clusters."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from tests.cluster.mistakes import check_mistake_named
from tests.refusals import raises
from tfe_bench.cluster import tls
from tfe_bench.cluster.addresses import parse_worker_address
from tfe_bench.cluster.config import ClientConfig, ClusterConfig, PartyConfig
from tfe_bench.cluster.policy import WorkerPolicy
from tfe_bench.cluster.worker.server import Worker
from tfe_bench.errors import ConfigError, SecurityError

GOOD = """\
[cluster]
name = "demo"
ring = 64
fractional_bits = 16
tls = true

[[party]]
name = "alice"
host = "10.0.0.1"
port = 7700
certificate = "party0.crt"

[[party]]
name = "bob"
host = "10.0.0.2"
port = 7700
certificate = "party1.crt"

[[party]]
name = "carol"
host = "carol.example.org"
port = 7701
certificate = "party2.crt"

[[client]]
name = "analyst"
certificate = "client-analyst.crt"
"""


@pytest.fixture(scope="session")
def certificates() -> dict[str, bytes]:
    names = {f"party{index}.crt": tls.party_common_name(index) for index in range(3)}
    names["client-analyst.crt"] = tls.client_common_name("analyst")
    return {file: tls.make_self_signed_certificate(name)[1] for file, name in names.items()}


@pytest.fixture
def folder(tmp_path: Path, certificates: dict[str, bytes]) -> Path:
    for name, pem in certificates.items():
        (tmp_path / name).write_bytes(pem)
    return tmp_path


def _load_config(folder: Path, text: str, name: str = "cluster.toml") -> ClusterConfig:
    (folder / name).write_text(text)
    return ClusterConfig.load(folder / name)


def _cleartext_config(*hosts: str, port: int = 7700) -> str:
    lines = ["[cluster]", "tls = false"]
    for number, host in enumerate(hosts):
        lines += ["[[party]]", f'name = "p{number}"', f'host = "{host}"', f"port = {port}"]
        port += 1
    return "\n".join(lines)


def test_a_good_file_is_read(folder: Path, certificates: dict[str, bytes]) -> None:
    config = _load_config(folder, GOOD)
    assert config.name == "demo"
    assert [party.index for party in config.parties] == [0, 1, 2]
    assert [party.name for party in config.parties] == ["alice", "bob", "carol"]
    assert [party.address for party in config.parties] == [
        "10.0.0.1:7700",
        "10.0.0.2:7700",
        "carol.example.org:7701",
    ]
    assert config.clients == (ClientConfig("analyst", certificates["client-analyst.crt"]),)
    assert (config.ring, config.fractional_bits, config.tls) == (64, 16, True)
    for party in config.parties:
        tls.check_any_certificate_valid(party.certificates)


def test_defaults_are_tls_ring_64_and_16_fractional_bits(folder: Path) -> None:
    config = _load_config(folder, GOOD[GOOD.index("[[party]]") :])
    assert (config.ring, config.fractional_bits, config.tls) == (64, 16, True)


def test_certificates_lie_relative_to_the_file_and_not_to_the_working_directory(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "cluster.toml").write_text(GOOD)
    monkeypatch.chdir(folder.parent)
    relative = ClusterConfig.load(Path(folder.name) / "cluster.toml")
    assert relative == ClusterConfig.load(folder / "cluster.toml")


def test_the_digest_ignores_formatting_file_names_and_the_order_of_clients(
    folder: Path, certificates: dict[str, bytes]
) -> None:
    (folder / "certs").mkdir()
    _, second = tls.make_self_signed_certificate("client-zoe.tfe-bench")
    (folder / "client-zoe.crt").write_bytes(second)
    (folder / "certs" / "b.pem").write_bytes(
        b"# bob's\n" + certificates["party1.crt"].replace(b"\n", b"\r\n")
    )
    zoe = '[[client]]\nname = "zoe"\ncertificate = "client-zoe.crt"\n'
    head, client = GOOD.split("[[client]]")
    first = _load_config(folder, GOOD + zoe)
    other = _load_config(
        folder,
        "# ours\n"
        + (head + zoe + "[[client]]" + client)
        .replace("ring = 64\n", "")
        .replace("party1.crt", "certs/b.pem")
        .replace("carol.example", "Carol.Example")
        .replace(" = ", "="),
    )
    assert first.digest() == other.digest()
    assert len(first.digest()) == 64


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"demo"', '"other"'),
        ("fractional_bits = 16", "fractional_bits = 15"),
        ("7701", "7702"),
        ("10.0.0.2", "10.0.0.3"),
        ('"bob"', '"bobby"'),
        ("bits = 16\ntls = true", "bits = 17"),
    ],
)
def test_the_digest_changes_with_every_field(folder: Path, old: str, new: str) -> None:
    assert old in GOOD
    assert (
        _load_config(folder, GOOD).digest() != _load_config(folder, GOOD.replace(old, new)).digest()
    )


def test_the_digest_changes_with_a_partys_certificate_and_tls_and_not_with_clients(
    folder: Path,
) -> None:
    digests = {_load_config(folder, GOOD).digest()}
    for name in ("party0.crt", "client-analyst.crt"):
        common_name = tls.certificate_server_name((folder / name).read_bytes())
        (folder / name).write_bytes(tls.make_self_signed_certificate(common_name)[1])
        digests.add(_load_config(folder, GOOD).digest())
    digests.add(_load_config(folder, GOOD.split("[[client]]")[0]).digest())
    assert len(digests) == 2
    loopback = GOOD.replace("carol.example.org", "127.0.0.1").replace("10.0.0.", "127.0.0.")
    digests.add(_load_config(folder, loopback).digest())
    digests.add(_load_config(folder, loopback.replace("tls = true", "tls = false")).digest())
    assert len(digests) == 4


def test_the_digest_is_a_fixed_function_of_the_content() -> None:
    parties = tuple(PartyConfig(index, f"p{index}", "127.0.0.1", 1 + index) for index in range(3))
    config = ClusterConfig("demo", parties, tls=False)
    of_parties = "".join(
        f', "party {p}\'s address": ["127.0.0.1", {1 + p}], "party {p}\'s certificate": []'
        f', "party {p}\'s name": "p{p}"'
        for p in range(3)
    )
    canonical = (
        '["tfe-bench cluster 2", {"fractional_bits": 16'
        + of_parties
        + ', "ring": 64, "the name": "demo", "tls": false}]'
    )
    assert config.digest() == hashlib.sha256(canonical.encode()).hexdigest()


def test_saved_and_loaded_again_it_is_the_same_cluster(folder: Path, tmp_path: Path) -> None:
    config = _load_config(folder, GOOD.replace('"demo"', '"d\\"e\\\\m é o"'))
    other = tmp_path / "other"
    other.mkdir()
    config.save(other / "cluster.toml")
    again = ClusterConfig.load(other / "cluster.toml")
    assert again == config
    assert again.digest() == config.digest()
    config.save(other / "cluster.toml")  # files with the same contents are no conflict
    assert sorted(os.listdir(other)) == sorted(
        ["cluster.toml", "party0.crt", "party1.crt", "party2.crt", "client-analyst.crt"]
    )


def test_saving_replaces_other_contents_only_when_asked(folder: Path) -> None:
    config = _load_config(folder, GOOD)
    with raises(ConfigError, "file-exists"):
        config.save(folder / "cluster.toml")
    assert (folder / "cluster.toml").read_text() == GOOD
    config.save(folder / "cluster.toml", overwrite=True)
    assert ClusterConfig.load(folder / "cluster.toml") == config


def test_a_fingerprint_leads_to_its_owner_and_an_unknown_one_is_refused(folder: Path) -> None:
    config = _load_config(folder, GOOD)
    for member in config.members:
        assert member.fingerprint is not None
        assert config.identify(member.fingerprint) is member
    with raises(SecurityError, "certificate-not-pinned", received="abcd"):
        config.identify("abcd")


def test_a_worker_trusts_all_but_itself(folder: Path) -> None:
    config = _load_config(folder, GOOD)
    names = [tls.certificate_server_name(pem) for pem in config.trusted_by(1)]
    assert names == ["party-0.tfe-bench", "party-2.tfe-bench", "client-analyst.tfe-bench"]


def test_a_repr_shows_no_certificate(folder: Path) -> None:
    assert "BEGIN" not in repr(_load_config(folder, GOOD))


BAD = {
    "unknown key": ('port = 7700\ncertificate = "party0', 'prot = 7700\ncertificate = "party0', [
        'unknown key "prot"', 'Did you mean "port"?', "[[party]] number 1"]),
    "unknown table": ("[cluster]", "[clutser]", ['"clutser"', 'Did you mean "cluster"?']),
    "unknown cluster key": ("ring = 64", "rings = 64", ['"rings"', 'Did you mean "ring"?']),
    "unknown client key": ('name = "analyst"', 'nam = "analyst"', ['"nam"', '"name"']),
    "not toml": ('name = "bob"', "name = bob", ["line 14", "name = bob"]),
    "cut off": ('"client-analyst.crt"', '"client-analyst', ["valid TOML"]),
    "twice": ("ring = 64", "ring = 64\nring = 64", ["line 4"]),
    "ring": ("ring = 64", "ring = 128", ['"ring"', "64", "Received: 128"]),
    "bits low": ("bits = 16", "bits = -1", ['"fractional_bits"', "0 to 30", "Received: -1"]),
    "bits high": ("bits = 16", "bits = 31", ['"fractional_bits"', "Received: 31"]),
    "bits bool": ("bits = 16", "bits = true", ["whole number", "Received: true"]),
    "bits float": ("bits = 16", "bits = 16.0", ["whole number", "Received: 16.0"]),
    "tls text": ("tls = true", 'tls = "true"', ['"tls"', "true or false", 'Received: "true"']),
    "port zero": ("7701", "0", ["party 2", '"port"', "Received: 0"]),
    "port high": ("7701", "65536", ["party 2", "Received: 65536"]),
    "port text": ("7701", '"7701"', ["[[party]] number 3", '"port"', 'Received: "7701"']),
    "host number": ('"10.0.0.2"', "10", ['"host"', "text in quotes", "Received: 10"]),
    "host with port": ("10.0.0.2", "10.0.0.2:7700", ["party 1", '"host"', "without port"]),
    "host with protocol": ("10.0.0.2", "http://bob", ['"host"', "protocol"]),
    "host socket": ("10.0.0.2", "unix:/tmp/socket", ['"host"', "unix:"]),
    "host empty": ("10.0.0.2", "", ['"host"', 'Received: ""']),
    "host mistyped": ("10.0.0.2", "10.0.0.256", ['"host"', "10.0.0.256"]),
    "host short": ("10.0.0.2", "127.1", ['"host"', "127.1"]),
    "host octal": ("10.0.0.2", "010.0.0.2", ['"host"', "010.0.0.2"]),
    "host any": ("10.0.0.2", "0.0.0.0", ['"host"', "0.0.0.0"]),
    "host scope": ("10.0.0.2", "fe80::1%eth0", ['"host"', "fe80"]),
    "same address": ("10.0.0.2", "10.0.0.1", ["party 0", "party 1", '"host" and "port"']),
    "same name": ('"bob"', '"alice"', ["party 0", "party 1", '"name"']),
    "client like party": ('"analyst"', '"Alice"', ['"certificate" belongs to another member']),
    "name with blank": ('"bob"', '"bob b"', ["party 1", '"name"', "bob b"]),
    "name with path": ('"analyst"', '"../x"', ["client", '"name"', "../x"]),
    "name star": ('"analyst"', '"*"', ["client", '"name"', "*"]),
    "cluster name": ('"demo"', '"a\\nb"', ["[cluster]", '"name"']),
    "same certificate": ("party1.crt", "party0.crt", ["party 1", "party-0.tfe-bench"]),
    "swapped": ("client-analyst.crt", "party0.crt", ['client "analyst"', "party-0.tfe-bench"]),
    "no certificate": ('certificate = "party1.crt"\n', "", [
        'party 1 ("bob")', '"certificate" is missing', "certs"]),
    "missing file": ("party1.crt", "nowhere.crt", [
        "[[party]] number 2", "nowhere.crt", "does not exist", "certs"]),
    "no host": ('host = "10.0.0.2"\n', "", ["[[party]] number 2", '"host" is missing']),
    "single brackets": ("[[client]]", "[client]", ["[[client]]", "double brackets"]),
    "two parties": (GOOD[GOOD.index('[[party]]\nname = "carol"'):GOOD.index("[[client]]")], "", [
        "exactly three", "Received: 2"]),
    "four parties": ("[[client]]\n", "[[party]]\nhost = 'h'\nport = 1\n", [
        "exactly three", "Received: 4"]),
}  # fmt: skip


@pytest.mark.parametrize("case", list(BAD))
def test_a_mistake_is_named_with_file_key_and_what_was_received(folder: Path, case: str) -> None:
    check_mistake_named(_load_config, folder / "cluster.toml", GOOD, BAD[case])


def test_one_certificate_or_key_cannot_serve_two_members(folder: Path) -> None:
    _, pem = tls.make_self_signed_certificate("company.example.org")
    for name in ("party1.crt", "client-analyst.crt"):
        (folder / name).write_bytes(pem)
    with raises(ConfigError, "duplicate-name", names=("party 1", "client", '"certificate"')):
        _load_config(folder, GOOD)


def test_two_certificates_of_one_key_cannot_serve_two_members(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    monkeypatch.setattr(ec, "generate_private_key", lambda curve: key)
    for index in (0, 2):
        _, pem = tls.make_self_signed_certificate(tls.party_common_name(index))
        (folder / f"party{index}.crt").write_bytes(pem)
    with raises(ConfigError, "duplicate-name", names=("party 0", "party 2", '"certificate"')):
        _load_config(folder, GOOD)


def test_a_private_key_given_as_certificate_is_refused(folder: Path) -> None:
    key, pem = tls.make_self_signed_certificate("party-1.tfe-bench")
    (folder / "party1.crt").write_bytes(pem + key)
    with raises(SecurityError, "private-key-in-certificate", names=("number 2",)) as caught:
        _load_config(folder, GOOD)
    assert key.decode().splitlines()[1] not in str(caught.value)


def test_names_differing_only_in_case_are_the_same(folder: Path) -> None:
    with raises(ConfigError, "duplicate-name", operation='"name"'):
        _load_config(folder, GOOD.replace('"bob"', '"ALICE"'))


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with raises(ConfigError, "file-not-readable", names=("missing.toml",)):
        ClusterConfig.load(tmp_path / "missing.toml")
    with raises(ConfigError, "file-not-readable", received="Is a directory"):
        ClusterConfig.load(tmp_path)
    (tmp_path / "latin").write_bytes(b"\n\nname = \xe9\n")
    with raises(ConfigError, "not-utf8", received="line 3"):
        ClusterConfig.load(tmp_path / "latin")
    (tmp_path / "deep").write_bytes(b"a = " + b"[" * 100_000)
    with raises(ConfigError, "invalid-toml", "nested-too-deeply"):
        ClusterConfig.load(tmp_path / "deep")
    (tmp_path / "long").write_bytes(b"#" * ((1 << 20) + 1))
    with raises(ConfigError, "too-large", received=(1 << 20) + 1):
        ClusterConfig.load(tmp_path / "long")


def test_a_file_with_a_byte_order_mark_is_read(folder: Path) -> None:
    assert _load_config(folder, "\ufeff" + GOOD).digest() == _load_config(folder, GOOD).digest()


@pytest.mark.parametrize(
    "hosts",
    [
        ("127.0.0.1", "127.0.0.2", "127.255.0.1"),
        ("localhost", "::1", "127.0.0.1"),
        ("LOCALHOST", "0:0:0:0:0:0:0:1", "127.0.0.1"),
    ],
)
def test_cleartext_is_allowed_on_loopback(tmp_path: Path, hosts: tuple[str, ...]) -> None:
    assert not _load_config(tmp_path, _cleartext_config(*hosts)).tls


@pytest.mark.parametrize(
    "host",
    [
        "10.0.0.1",
        "128.0.0.1",
        "localhost.example.org",
        "127.0.0.1.example.org",
        "ip6-localhost",
        "::2",
        "::ffff:10.0.0.1",
        "alice",
    ],
)
def test_cleartext_is_refused_elsewhere(tmp_path: Path, host: str) -> None:
    with raises(SecurityError, "tls-required") as caught:
        _load_config(tmp_path, _cleartext_config("127.0.0.1", host, "127.0.0.1"))
    assert "tls = true" in str(caught.value)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org", ""])
def test_a_worker_without_tls_listens_on_loopback_alone(host: str) -> None:
    parties = tuple(PartyConfig(p, f"p{p}", "127.0.0.1", 7700 + p) for p in range(3))
    config = ClusterConfig("open", parties, tls=False)
    for good in ("127.0.0.1", "127.9.9.9", "::1", "localhost"):
        config.check_bind(good)
    with raises(SecurityError, "tls-required"):
        config.check_bind(host)
    if host:  # before any worker listens
        with raises(SecurityError, "tls-required"):
            Worker(config, WorkerPolicy.for_local(0, None), host)


def test_localhost_is_an_address_and_no_question_to_a_resolver(tmp_path: Path) -> None:
    config = _load_config(tmp_path, _cleartext_config("localhost", "::1", "127.0.0.1"))
    assert [party.address for party in config.parties] == [
        "127.0.0.1:7700",
        "[::1]:7701",
        "127.0.0.1:7702",
    ]
    text = _cleartext_config("localhost", "::1", "127.0.0.1").replace("7702", "7700")
    with raises(ConfigError, "duplicate-name", operation='"host" and "port"'):
        _load_config(tmp_path, text)


@pytest.mark.parametrize("name", ["config.json", "config"])
def test_tf_encrypteds_json_is_read(tmp_path: Path, name: str) -> None:
    text = (
        '{"master": "localhost:4443", "server0": "localhost:4440", '
        '"server1": "127.0.0.1:4441", "server2": "[::1]:4442"}'
    )
    config = _load_config(tmp_path, text, name)
    assert not config.tls
    assert [party.name for party in config.parties] == ["server0", "server1", "server2"]
    assert [party.address for party in config.parties] == [
        "127.0.0.1:4440",
        "127.0.0.1:4441",
        "[::1]:4442",
    ]


def test_tf_encrypteds_json_is_refused_off_loopback(tmp_path: Path) -> None:
    text = '{"server0": "10.0.0.1:1", "server1": "10.0.0.2:1", "server2": "10.0.0.3:1"}'
    with raises(SecurityError, "tls-required"):
        _load_config(tmp_path, text, "config.json")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"server0": "localhost:1", "server1": "localhost:2"}', '"server2" is missing'),
        ('{"server0": "localhost"}', "host:port"),
        ('{"server0": "localhost:x"}', "host:port"),
        ('{"server0": "::1:4440"}', "host:port"),
        ('{"server0": 4440}', "text in quotes"),
        ('{"sever0": "localhost:1"}', 'Did you mean "server0"?'),
        ('{"server0": "localhost:1", "server0": "localhost:2"}', "twice"),
        ('{"server0": "localhost:99999"}', '"port"'),
        ('{"server0": ', "line 1"),
    ],
)
def test_a_mistake_in_json_is_named(tmp_path: Path, text: str, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        _load_config(tmp_path, text, "config.json")
    assert expected in str(caught.value)
    assert str(tmp_path / "config.json") in str(caught.value)


def test_json_that_is_no_object_is_refused(tmp_path: Path) -> None:
    with raises(ConfigError, "invalid-json"):
        _load_config(tmp_path, '["localhost:1"]', "config.json")


def test_an_address_is_split_at_its_port() -> None:
    assert parse_worker_address("x", "host:1") == ("host", 1)
    assert parse_worker_address("x", "[::1]:65535") == ("::1", 65535)
    for wrong in ("", ":", "host", ":1", "host:", "host:-1", "[host]:1", "::1", "[]:1", "h:\u0661"):
        with raises(ConfigError, "invalid-address"):
            parse_worker_address("x", wrong)


def test_a_cluster_built_in_python_is_checked_too(certificates: dict[str, bytes]) -> None:
    parties = tuple(PartyConfig(index, f"p{index}", "127.0.0.1", 1 + index) for index in range(3))
    with raises(ConfigError, "wrong-party-count"):
        ClusterConfig("demo", parties[:2], tls=False)
    with raises(ConfigError, "wrong-party-count"):
        ClusterConfig("demo", parties[::-1], tls=False)
    with raises(ConfigError, "certificate-missing"):
        ClusterConfig("demo", parties)
    with raises(ConfigError, "certificate-of-another-member"):
        PartyConfig(0, "p0", "127.0.0.1", 1, certificates["party1.crt"])
    with raises(ConfigError, "number-out-of-range", operation="party", received=3):
        PartyConfig(3, "p3", "127.0.0.1", 1)

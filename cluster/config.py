"""cluster.toml: the three parties, their addresses, and the clients that may call them.

All members share the file: parties and settings are equal at all of them, and a session starts
only if their digests agree.  Settings of one operator alone are in worker.toml (`policy`).
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tfe_bench.cluster import agreement, tls
from tfe_bench.cluster.addresses import canonical_host, is_loopback, parse_worker_address
from tfe_bench.cluster.cluster_tables import ClusterFile
from tfe_bench.cluster.files import write_public_file
from tfe_bench.cluster.member_certificates import (
    check_member_certificates,
    load_member_certificates,
)
from tfe_bench.cluster.schema import Rule, declare_field
from tfe_bench.cluster.toml_file import (
    TEXT,
    TomlTable,
    parse_toml,
    prefix_config_errors,
    quote_received_value,
    read_config_text,
)
from tfe_bench.errors import ConfigError, SecurityError

# The environment may name the file and the client if a command or program does not. The variables
# hold these two names alone; every security setting is in the file.
CLUSTER_VARIABLE, CLIENT_VARIABLE = "TFE_BENCH_CLUSTER", "TFE_BENCH_CLIENT"
RING = 64
MAX_FRACTIONAL_BITS = 30
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_-]{0,38}[A-Za-z0-9])?")


class _PinnedMember:
    """A member's certificates, as cluster.toml pins them."""

    certificate: bytes | None
    next_certificate: bytes | None

    @property
    def certificates(self) -> tuple[bytes, ...]:
        """The pinned certificates: none, one, or two during a roll-over."""
        pinned = (self.certificate, self.next_certificate)
        return tuple(pem for pem in pinned if pem is not None)

    @property
    def fingerprint(self) -> str | None:
        """SHA-256 of the certificate (DER), hex; None without one."""
        return (
            None
            if self.certificate is None
            else tls.compute_certificate_fingerprint(self.certificate)
        )


@dataclass(frozen=True)
class PartyConfig(_PinnedMember):
    """One of the three workers.

    Attributes:
        index: the party, 0, 1 or 2.
        name: letters, digits, '-' and '_', at most 40 characters.
        host: IP address or host name, without a port.
        port: TCP port, 1 to 65535.
        certificate: the pinned certificate (PEM); None without TLS.
        next_certificate: a second pinned certificate, during a roll-over.

    Raises:
        ConfigError: a field is outside of these limits.
    """

    index: int
    name: str
    host: str
    port: int
    certificate: bytes | None = field(default=None, repr=False)
    next_certificate: bytes | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        where = f"party {self.index}"
        if self.index not in (0, 1, 2):
            raise ConfigError(
                f"A party's index is 0, 1 or 2. Received: {self.index}.",
                code="number-out-of-range",
                operation="party",
                received=self.index,
                expected="0, 1 or 2",
            )
        _check_name(where, self.name)
        object.__setattr__(self, "host", canonical_host(where, self.host))
        if not 1 <= self.port <= 65535:
            raise ConfigError(
                f'{where}: "port" is a number from 1 to 65535. Received: {self.port}. '
                "Choose a free one, such as 7700.",
                code="number-out-of-range",
                operation="port",
                received=self.port,
                expected="1 to 65535",
            )
        _canonicalize_member_certs(self, where, tls.party_common_name(self.index))

    @property
    def address(self) -> str:
        """``host:port`` in the form that gRPC accepts.

        "localhost" becomes 127.0.0.1: no resolver decides where cleartext goes.
        """
        host = "127.0.0.1" if self.host == "localhost" else self.host
        return f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"


@dataclass(frozen=True)
class ClientConfig(_PinnedMember):
    """A client that may submit jobs, and to which results may be revealed.

    Attributes:
        name: letters, digits, '-' and '_', at most 40 characters; worker.toml refers to it.
        certificate: the pinned certificate (PEM); None without TLS.
        next_certificate: a second pinned certificate, during a roll-over.

    Raises:
        ConfigError: a field is outside of these limits.
    """

    name: str
    certificate: bytes | None = field(default=None, repr=False)
    next_certificate: bytes | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        _check_name("client", self.name)
        _canonicalize_member_certs(self, f'client "{self.name}"', tls.client_common_name(self.name))


@dataclass(frozen=True)
class ClusterConfig:
    """The settings that all parties and clients of one cluster share.

    Attributes:
        name: free text for people, at most 100 characters on one line.
        parties: party 0, 1 and 2, in order.
        clients: any number of clients.
        ring: bits of a share; 64.
        fractional_bits: fractional bits of a fixed-point number, 0 to 30.
        tls: whether mutual TLS is used; only a cluster on loopback may disable it.

    Raises:
        ConfigError: a field is outside of these limits, or two members have the same name,
            address, certificate or key.
        SecurityError: TLS is disabled although a party is not on loopback.
    """

    name: str
    parties: tuple[PartyConfig, ...]
    clients: tuple[ClientConfig, ...] = ()
    ring: int = RING
    fractional_bits: int = 16
    tls: bool = True

    def __post_init__(self) -> None:
        if not self.name.isprintable() or len(self.name) > 100:
            raise ConfigError(
                '[cluster]: "name" is one line of at most 100 characters. '
                f"Received: {quote_received_value(self.name)}. Shorten it.",
                code="invalid-name",
                operation="name",
                received=self.name,
            )
        if self.ring != RING:
            raise ConfigError(
                f'[cluster]: "ring" must be {RING} (bits of a share). Received: {self.ring}. '
                "Delete the line to use the default.",
                code="unsupported-ring",
                operation="ring",
                received=self.ring,
                expected=RING,
            )
        if not 0 <= self.fractional_bits <= MAX_FRACTIONAL_BITS:
            raise ConfigError(
                f'[cluster]: "fractional_bits" is a number from 0 to {MAX_FRACTIONAL_BITS}. '
                f"Received: {self.fractional_bits}. The usual one is 16.",
                code="number-out-of-range",
                operation="fractional_bits",
                received=self.fractional_bits,
                expected=f"0 to {MAX_FRACTIONAL_BITS}",
            )
        if [party.index for party in self.parties] != [0, 1, 2]:
            raise ConfigError(
                "A cluster has exactly three [[party]] entries, for party 0, 1 and 2 in this "
                f"order. Received: {len(self.parties)}. Add or delete entries.",
                code="wrong-party-count",
                received=len(self.parties),
                expected=3,
            )
        self._check_distinct_members()
        self._check_transport_security()

    @property
    def members(self) -> tuple[PartyConfig | ClientConfig, ...]:
        """The three parties, then the clients."""
        return (*self.parties, *self.clients)

    def _check_distinct_members(self) -> None:
        names = ((_describe_member(member), member.name.lower()) for member in self.members)
        _check_unique_member_values(names, '"name"')
        _check_unique_member_values(
            ((_describe_member(member), member.address) for member in self.parties),
            '"host" and "port"',
        )
        keys = (
            (_describe_member(member), key)
            for member in self.members
            # Two certificates of one member may have the same key.
            for key in sorted({tls.public_key_fingerprint(pem) for pem in member.certificates})
        )
        _check_unique_member_values(keys, '"certificate" (or the key in it)')

    def _check_transport_security(self) -> None:
        if self.tls:
            for member in self.members:
                if member.certificate is None:
                    raise ConfigError(
                        f'{_describe_member(member)}: "certificate" is missing. Received: tls = '
                        "true. "
                        'Name the PEM file that its owner creates with "python -m tfe_bench '
                        'certs".',
                        code="certificate-missing",
                        operation=_describe_member(member),
                    )
            return
        for party in self.parties:
            if not is_loopback(party.host):
                raise SecurityError(
                    "A cluster without TLS must be on loopback (127.0.0.1, ::1, localhost), "
                    "or everyone on the network can read and change the shares. Received: "
                    f"{_describe_member(party)} at host {quote_received_value(party.host)}. "
                    "Set tls = true in cluster.toml and give every [[party]] a certificate "
                    '("python -m tfe_bench certs" creates them).',
                    code="tls-required",
                    received=party.host,
                    expected="a loopback address",
                )

    def check_bind(self, host: str) -> None:
        """Reject cleartext on an address that other machines can reach.

        Raises:
            SecurityError: TLS is disabled, and the host is not a loopback address.
        """
        if not self.tls and not is_loopback(host):
            raise SecurityError(
                "Without TLS a worker listens on loopback alone, or everyone on the network can "
                "act as "
                f"any party and any client. Received: --bind {quote_received_value(host)}. Set "
                "tls = true "
                "in "
                'cluster.toml and give every [[party]] a certificate ("python -m tfe_bench certs" '
                "creates them).",
                code="tls-required",
                operation="--bind",
                received=host,
                expected="a loopback address",
            )

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> ClusterConfig:
        """Read cluster.toml, or tf-encrypted's JSON ``{"server0": "host:port", ...}``.

        Raises:
            ConfigError: the file is missing or malformed, has unknown keys or invalid values, or a
                certificate file is missing or unusable.
            SecurityError: TLS is disabled although a party is not on loopback, or a certificate
                file holds a private key or a certificate authority's certificate.
        """
        path = Path(path)
        with prefix_config_errors(path):
            text = read_config_text(path)
            if path.suffix == ".json" or text.lstrip().startswith("{"):
                return _parse_tf_encrypted_hosts(text)
            return _parse_cluster_toml(parse_toml(text), path.parent)

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write the certificates, then cluster.toml in the same folder.

        Args:
            path: the path of cluster.toml; its folder must exist.
            overwrite: replace files with other contents.

        Raises:
            ConfigError: a file with other contents exists, or a file cannot be written.
        """
        path = Path(path)
        certificates = {
            path.with_name(name): pem
            for member in self.members
            for name, pem in zip(
                _member_certificate_files(member), member.certificates, strict=True
            )
        }
        for target, content in [*certificates.items(), (path, self.to_toml().encode())]:
            if not (target.is_file() and target.read_bytes() == content):
                write_public_file(target, content, overwrite=overwrite)

    def to_toml(self) -> str:
        """Return the text of cluster.toml; `member_certificate_file` names the certificates."""
        lines = [
            "# The same file on all three workers and every client.",
            "[cluster]",
            f"name = {_quote_toml(self.name)}",
            f"ring = {self.ring}",
            f"fractional_bits = {self.fractional_bits}",
            f"tls = {'true' if self.tls else 'false'}",
        ]
        for party in self.parties:
            lines += ["", "[[party]]", f"name = {_quote_toml(party.name)}"]
            lines += [f"host = {_quote_toml(party.host)}", f"port = {party.port}"]
            lines += _certificate_toml_lines(party)
        for client in self.clients:
            lines += ["", "[[client]]", f"name = {_quote_toml(client.name)}"]
            lines += _certificate_toml_lines(client)
        return "\n".join(lines) + "\n"

    def digest(self) -> str:
        """Return the SHA-256 hash (hex) of the settings on which all members must agree.

        It covers the parties and settings.  It is independent of the file's formatting, of file
        names and of the clients, which each worker admits by its own file.
        """
        return agreement.digest_cluster_settings(self)

    def trusted_by(self, party: int) -> list[bytes]:
        """Return the certificates (PEM) whose owners may call worker ``party``: all but its own."""
        own_entry = self.parties[party]
        return [
            pem for member in self.members if member is not own_entry for pem in member.certificates
        ]

    def identify(self, fingerprint: str) -> PartyConfig | ClientConfig:
        """Return the member whose certificate has this fingerprint (SHA-256, hex).

        Raises:
            SecurityError: no member of this cluster has it.
        """
        for member in self.members:
            if fingerprint in [
                tls.compute_certificate_fingerprint(pem) for pem in member.certificates
            ]:
                return member
        raise SecurityError(
            "A caller's certificate is not in cluster.toml. Received: SHA-256 fingerprint "
            f"{quote_received_value(fingerprint)}. All parties must use the same cluster.toml; "
            "add the "
            "caller to it if it should take part.",
            code="certificate-not-pinned",
            received=fingerprint,
        )


def member_certificate_file(member: PartyConfig | ClientConfig) -> str:
    """Return the file name of a member's certificate, in the folder of cluster.toml."""
    if isinstance(member, PartyConfig):
        return f"party{member.index}.crt"
    return f"client-{member.name}.crt"


def _member_certificate_files(member: PartyConfig | ClientConfig) -> list[str]:
    first = member_certificate_file(member)
    return [first, first.replace(".crt", "-new.crt")][: len(member.certificates)]


def _certificate_toml_lines(member: PartyConfig | ClientConfig) -> list[str]:
    names = [_quote_toml(name) for name in _member_certificate_files(member)]
    if not names:
        return []
    return [
        f"certificate = {names[0]}" if len(names) == 1 else f"certificate = [{', '.join(names)}]"
    ]


def _parse_cluster_toml(values: dict[str, Any], folder: Path) -> ClusterConfig:
    file = ClusterFile.from_header(values)
    if len(file.party) != 3:
        raise ConfigError(
            "A cluster has exactly three [[party]] entries, for party 0, 1 and 2 in this order. "
            f"Received: {len(file.party)}. Add or delete entries.",
            code="wrong-party-count",
            received=len(file.party),
            expected=3,
        )
    parties = tuple(
        PartyConfig(
            *(index, party.name, party.host, party.port),
            *load_member_certificates(party.certificate, f"[[party]] number {index + 1}", folder),
        )
        for index, party in enumerate(file.party)
    )
    clients = tuple(
        ClientConfig(
            client.name,
            *load_member_certificates(client.certificate, f"[[client]] number {number}", folder),
        )
        for number, client in enumerate(file.client, start=1)
    )
    return ClusterConfig(parties=parties, clients=clients, **vars(file.cluster))


def _host_rule(index: int) -> Rule:
    key = f"server{index}"
    return Rule(lambda v: PartyConfig(index, key, *parse_worker_address(f'"{key}"', TEXT.read(v))))


@dataclass(frozen=True)
class _HostsFile(TomlTable):
    server0: PartyConfig = declare_field(_host_rule(0))
    server1: PartyConfig = declare_field(_host_rule(1))
    server2: PartyConfig = declare_field(_host_rule(2))


def _parse_tf_encrypted_hosts(text: str) -> ClusterConfig:
    try:
        values = json.loads(text, object_pairs_hook=_reject_duplicate_json_keys)
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f"This is not valid JSON: {error}. Correct the line.", code="invalid-json"
        ) from None
    if not isinstance(values, dict):
        raise ConfigError(
            f"The file must be a JSON object. Received: {quote_received_value(values)}. "
            'Write {"server0": "host:port", "server1": ..., "server2": ...}.',
            code="invalid-json",
        )
    # "master" is tf-encrypted's driver, which tfe_bench does not have.
    values.pop("master", None)
    parties = vars(_HostsFile.from_header(values)).values()
    return ClusterConfig(name="cluster", parties=tuple(parties), tls=False)


def _reject_duplicate_json_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) != len(pairs):
        raise ConfigError(
            "A key occurs twice in this JSON. Delete one of them.", code="duplicate-name"
        )
    return values


def _check_name(where: str, name: str) -> None:
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"{where}: \"name\" consists of letters, digits, '-' and '_', at most 40. "
            f"Received: {quote_received_value(name)}. Choose a plainer name.",
            code="invalid-name",
            operation=where,
            received=name,
        )


def _canonicalize_member_certs(
    member: PartyConfig | ClientConfig, where: str, own_name: str
) -> None:
    """Replace a member's certificates by their canonical form."""
    pair = (member.certificate, member.next_certificate)
    certificate, next_certificate = check_member_certificates(pair, where, own_name)
    object.__setattr__(member, "certificate", certificate)
    object.__setattr__(member, "next_certificate", next_certificate)


def _check_unique_member_values(described_values: Iterable[tuple[str, str]], keys: str) -> None:
    first_with: dict[str, str] = {}
    for description, value in described_values:
        if value in first_with:
            raise ConfigError(
                f"{first_with[value]} and {description} have the same {keys}. Received: "
                f"{quote_received_value(value)} twice. Every party and client has its own.",
                code="duplicate-name",
                operation=keys,
                received=value,
            )
        first_with[value] = description


def _describe_member(member: PartyConfig | ClientConfig) -> str:
    if isinstance(member, PartyConfig):
        return f'party {member.index} ("{member.name}")'
    return f'client "{member.name}"'


def _quote_toml(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)  # the same escapes as TOML's, in printable text

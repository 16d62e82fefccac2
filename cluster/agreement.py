"""Settings on which all members of a cluster must agree, and descriptions of differences.

The parties and settings form one digest, which every worker and client compares.  The digest does
not contain clients: each worker admits the clients of its own file, and for each job the three
workers compare the certificate of that job's client alone.  Adding a client therefore interrupts
no other client.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from tfe_bench.cluster import tls

# Hexadecimal digits of a setting's digest. Members exchange them to explain a difference, not to
# decide whether there is one.
_SHORT_DIGEST_CHARS = 16


class ClientEntry(Protocol):
    """A client of a cluster file."""

    @property
    def name(self) -> str:
        """Name of the client."""
        ...

    @property
    def certificates(self) -> tuple[bytes, ...]:
        """Certificates (PEM)."""
        ...


class PartyEntry(ClientEntry, Protocol):
    """A party of a cluster file."""

    @property
    def index(self) -> int:
        """0, 1 or 2."""
        ...

    @property
    def host(self) -> str:
        """Address of its worker."""
        ...

    @property
    def port(self) -> int:
        """Port of its worker."""
        ...


class ClusterEntry(Protocol):
    """A cluster file (cluster.config.ClusterConfig)."""

    @property
    def name(self) -> str:
        """Name of the cluster."""
        ...

    @property
    def ring(self) -> int:
        """Bits of the ring."""
        ...

    @property
    def fractional_bits(self) -> int:
        """Fractional bits of fixed-point numbers."""
        ...

    @property
    def tls(self) -> bool:
        """True if links are encrypted."""
        ...

    @property
    def parties(self) -> Sequence[PartyEntry]:
        """The three parties."""
        ...

    @property
    def clients(self) -> Sequence[ClientEntry]:
        """Clients that the file names."""
        ...


def list_cluster_settings(config: ClusterEntry) -> dict[str, Any]:
    """Return the settings that must be equal at all members, by a name for people."""
    settings: dict[str, Any] = {
        "the name": config.name,
        "ring": config.ring,
        "fractional_bits": config.fractional_bits,
        "tls": config.tls,
    }
    for party in config.parties:
        prefix = f"party {party.index}'s"
        settings[f"{prefix} name"] = party.name
        settings[f"{prefix} address"] = [party.host, party.port]
        # (the order of two certificates does not matter)
        settings[f"{prefix} certificate"] = sorted(
            tls.compute_certificate_fingerprint(pem) for pem in party.certificates
        )
    return settings


@functools.lru_cache(maxsize=16)  # (every job needs it)
def digest_cluster_settings(config: ClusterEntry) -> str:
    """Return the SHA-256 hash (hex) of all settings."""
    canonical = json.dumps(["tfe-bench cluster 2", list_cluster_settings(config)], sort_keys=True)
    return hashlib.sha256(canonical.encode()).hexdigest()


@functools.lru_cache(maxsize=16)  # (every job needs it)
def summarize_cluster_settings(config: ClusterEntry) -> str:
    """Return a short digest of each setting as JSON, which members send to name differences."""
    return json.dumps(
        {
            name: _digest_cluster_setting(value)
            for name, value in list_cluster_settings(config).items()
        }
    )


def describe_cluster_differences(config: ClusterEntry, received_summary: object) -> str:
    """Describe the settings in which another member's file differs.

    Args:
        received_summary: `summarize_cluster_settings` of the other member as received; it may be
        anything.

    Returns:
        "party 1's address and tls", or "" if the other member does not send a summary.
    """
    try:
        their_digests = json.loads(str(received_summary)[:4096])
    except ValueError:
        return ""
    if not isinstance(their_digests, Mapping):
        return ""
    our_digests = {
        name: _digest_cluster_setting(value)
        for name, value in list_cluster_settings(config).items()
    }
    different = [name for name, value in our_digests.items() if their_digests.get(name) != value]
    if len(different) == len(our_digests):
        return ""
    return " and ".join(filter(None, [", ".join(different[:-1]), *different[-1:]]))


def digest_clients(config: ClusterEntry) -> dict[str, str]:
    """Return a short digest of each client's certificates, by the client's name."""
    return {client.name: digest_client(client) for client in config.clients}


def digest_client(client: ClientEntry) -> str:
    """Return a short digest of one client's certificates."""
    return _digest_cluster_setting(
        sorted(tls.compute_certificate_fingerprint(pem) for pem in client.certificates)
    )


def describe_client_changes(before: ClusterEntry, after: ClusterEntry) -> list[str]:
    """Describe how the clients of two files differ, one line per client."""
    old_digests, new_digests = digest_clients(before), digest_clients(after)
    added = [f"client {name} was added" for name in new_digests.keys() - old_digests.keys()]
    removed = [f"client {name} was removed" for name in old_digests.keys() - new_digests.keys()]
    common_names = old_digests.keys() & new_digests.keys()
    changed = [
        f"client {name} has other certificates"
        for name in common_names
        if old_digests[name] != new_digests[name]
    ]
    return sorted(added) + sorted(removed) + sorted(changed)


def find_revoked_clients(before: ClusterEntry, after: ClusterEntry) -> set[str]:
    """Return the names of clients that lose a certificate."""
    accepted = {client.name: set(client.certificates) for client in after.clients}
    return {
        client.name
        for client in before.clients
        if set(client.certificates) - accepted.get(client.name, set())
    }


def _digest_cluster_setting(value: object) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:_SHORT_DIGEST_CHARS]

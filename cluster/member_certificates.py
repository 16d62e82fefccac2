"""The pinned certificates of a member: one, or two during a roll-over."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tfe_bench.cluster import tls
from tfe_bench.cluster.toml_file import prefix_config_errors
from tfe_bench.errors import ConfigError

CertificatePair = tuple[bytes | None, bytes | None]


def load_member_certificates(names: Sequence[str], where: str, folder: Path) -> CertificatePair:
    """Read the certificates that a table of cluster.toml names, relative to its folder.

    Args:
        where: the table in error texts.

    Raises:
        ConfigError: the table names more than two files, or a file is no certificate.
    """
    names = [name for name in names if name]
    if len(names) > 2:
        raise ConfigError(
            f'{where}: "certificate" is one file, or two during a roll-over. '
            f"Received: {len(names)}. Delete those that are no longer used.",
            code="too-many-certificates",
            operation=where,
            received=len(names),
            expected="1 or 2",
        )
    loaded: list[bytes | None] = [None, None]
    for position, name in enumerate(names):
        with prefix_config_errors(f'{where}: certificate = "{name}" (relative to cluster.toml)'):
            loaded[position] = tls.load_certificate(folder / name)
    return loaded[0], loaded[1]


def check_member_certificates(pair: CertificatePair, where: str, own_name: str) -> CertificatePair:
    """Return the canonical form of a member's certificates.

    Args:
        where: the member in error texts.
        own_name: the name in the member's certificates, if they are of this program.

    Raises:
        ConfigError: a certificate is invalid, both are one, or their names differ.
    """
    first, second = (
        None if pem is None else _canonical_member_certificate(where, pem, own_name) for pem in pair
    )
    if second is None:
        return first, second
    if first is None or first == second:
        raise ConfigError(
            f'{where}: "certificate" lists one certificate, or two different ones. Received: one '
            "twice. Delete the second.",
            code="duplicate-certificate",
            operation=where,
        )
    # Callers expect the same name of the worker with either certificate.
    names = [tls.certificate_server_name(pem) for pem in (first, second)]
    if names[0] != names[1]:
        raise ConfigError(
            f'{where}: both certificates under "certificate" have one DNS name. Received: '
            f"{names[0]} and {names[1]}. Create the second with the name of the first.",
            code="certificate-name-mismatch",
            operation=where,
            received=names[1],
            expected=names[0],
        )
    return first, second


def _canonical_member_certificate(where: str, pem: bytes, own_name: str) -> bytes:
    """Return the canonical certificate; reject one that names another member of a cluster."""
    with prefix_config_errors(f'{where}: "certificate"'):
        pem = tls.canonical_certificate(pem)
    name = tls.certificate_server_name(pem)
    if name.endswith(f".{tls.DOMAIN}") and name != own_name:
        raise ConfigError(
            f'{where}: "certificate" belongs to another member. Received: {name}, expected: '
            f"{own_name}. Check that the certificate files are not swapped.",
            code="certificate-of-another-member",
            operation=where,
            received=name,
            expected=own_name,
        )
    return pem

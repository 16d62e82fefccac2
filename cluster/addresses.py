"""Hosts and ports in configuration files."""

from __future__ import annotations

import ipaddress
import re
import socket

from tfe_bench.cluster.toml_file import quote_received_value
from tfe_bench.errors import ConfigError

_HOST_NAME = re.compile(
    r"(?=.{1,253}\Z)[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9])?(\.[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9])?)*"
)


def worker_bind_error(party: int, address: str) -> ConfigError:
    """Return the error for a worker whose address cannot be bound."""
    return ConfigError(
        f"Party {party} cannot listen on {address}. Received: the address is in use or not this "
        "host's. Stop what uses it, or change the port in cluster.toml.",
        code="address-not-available",
        party=party,
        received=address,
    )


def check_worker_port_free(party: int, host: str, port: int) -> None:
    """Reject an address that a worker cannot bind, before the worker spends seconds on its start.

    Raises:
        ConfigError: the address is in use or does not belong to this host.
    """
    try:
        address_infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError:
        raise worker_bind_error(party, f"{host}:{port}") from None
    for family, kind, protocol, _, address in address_infos:
        with socket.socket(family, kind, protocol) as probe_socket:
            probe_socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                probe_socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            try:
                probe_socket.bind(address)
            except OSError:
                shown_address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
                raise worker_bind_error(party, shown_address) from None


def is_loopback(host: str) -> bool:
    """Return whether an address is a loopback address (127.0.0.0/8, ::1 or "localhost")."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def parse_worker_address(where: str, text: str) -> tuple[str, int]:
    """Split ``host:port`` (an IPv6 address is in brackets).

    Raises:
        ConfigError: the text has another form.
    """
    host, colon, port = text.rpartition(":")
    in_brackets = host.startswith("[") and host.endswith("]")
    bare = host[1:-1] if in_brackets else host
    if not colon or not bare or (":" in bare) != in_brackets or not re.fullmatch("[0-9]+", port):
        raise ConfigError(
            f"{where} must be host:port. Received: {quote_received_value(text)}. "
            "Write it like 10.0.0.1:7700, or [::1]:7700.",
            code="invalid-address",
            operation=where,
            received=text,
        )
    return bare, int(port[:6])


def canonical_host(where: str, host: str) -> str:
    """Return the canonical form of a host, so that two spellings of an address compare equal.

    Raises:
        ConfigError: others cannot reach a party at this host, or it is malformed.
    """
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        pass
    else:
        if address.is_unspecified or address.is_multicast or "%" in host:
            raise ConfigError(
                f'{where}: "host" is the address where the others reach this party. '
                f"Received: {quote_received_value(host)}. Write the machine's own address.",
                code="invalid-address",
                operation=where,
                received=host,
            )
        return str(address)
    name = host.lower()
    # A name of digits and dots is a mistyped address, which resolvers interpret in different ways.
    if not _HOST_NAME.fullmatch(name) or not re.search("[a-z]", name.rpartition(".")[2]):
        raise ConfigError(
            f'{where}: "host" must be an IP address or a host name, without port or protocol. '
            f'Received: {quote_received_value(host)}. Write it like "10.0.0.1" and the port under '
            '"port".',
            code="invalid-address",
            operation=where,
            received=host,
        )
    return name

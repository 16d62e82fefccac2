"""Hosts and ports as configurations name them."""

from __future__ import annotations

import ipaddress
import re

from tfe_bench.cluster.toml_file import shown
from tfe_bench.errors import ConfigError

_HOST_NAME = re.compile(
    r"(?=.{1,253}\Z)[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9])?(\.[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9])?)*"
)


def is_loopback(host: str) -> bool:
    """Whether an address is this machine itself (127.0.0.0/8, ::1 or "localhost")."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def parse_address(where: str, text: str) -> tuple[str, int]:
    """Splits ``host:port`` (an IPv6 address stands in brackets).

    Raises:
        ConfigError: it is something else.
    """
    host, colon, port = text.rpartition(":")
    in_brackets = host.startswith("[") and host.endswith("]")
    bare = host[1:-1] if in_brackets else host
    if not colon or not bare or (":" in bare) != in_brackets or not re.fullmatch("[0-9]+", port):
        raise ConfigError(
            f"{where} must be host:port. Received: {shown(text)}. "
            "Write it like 10.0.0.1:7700, or [::1]:7700."
        )
    return bare, int(port[:6])


def canonical_host(where: str, host: str) -> str:
    """The host in canonical form, so that two spellings of one address are seen as one.

    Raises:
        ConfigError: it is none where others could reach a party.
    """
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        pass
    else:
        if address.is_unspecified or address.is_multicast or "%" in host:
            raise ConfigError(
                f'{where}: "host" is the address where the others reach this party. '
                f"Received: {shown(host)}. Write the machine's own address."
            )
        return str(address)
    name = host.lower()
    # A name of digits and dots is a mistyped address, which resolvers read in odd ways.
    if not _HOST_NAME.fullmatch(name) or not re.search("[a-z]", name.rpartition(".")[2]):
        raise ConfigError(
            f'{where}: "host" must be an IP address or a host name, without port or protocol. '
            f'Received: {shown(host)}. Write it like "10.0.0.1" and the port under "port".'
        )
    return name

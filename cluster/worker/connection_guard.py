"""Limits on the connections to a worker's port, by member and by address.

gRPC accepts connections by itself and bounds their total number, but not the number by address;
nor does it identify the other end before a call arrives.  This module therefore reads the
process's own descriptors: a connection over which no member of the cluster has called is
unauthenticated. Unauthenticated connections are limited in number and time.  They are closed by
shutdown(): to gRPC, the other side has ended.
"""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import os
import resource
import socket
import stat
import threading
import time
import urllib.parse
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field

from tfe_bench.errors import ConfigError, QueueFull

# A member calls as soon as its handshake has ended.
UNAUTHENTICATED_SECONDS = 10.0
# Descriptors other than incoming connections: files, libraries, streams to the other workers,
# wake-ups.
RESERVED_DESCRIPTORS = 256
_MOST_DESCRIPTORS = 1 << 16
_SCAN_SECONDS = 0.25
_MIN_PAUSE = 0.02
_WARN_SECONDS = 60.0
_MAX_WARNED_HOSTS = 64
_QUOTA_DIVISOR = 4

log = logging.getLogger("tfe_bench.worker")

Address = tuple[str, int]


@dataclass(eq=False)
class _IncomingConnection:
    """An incoming connection of this worker.

    Attributes:
        inode: of the socket; unlike the descriptor's number it is not reused soon.
        fd: gRPC's descriptor at the last scan.
        member: the member of the cluster that has called over it; "" if unauthenticated.
        close_reason: why it was closed here, "" if it was not.
    """

    inode: int
    fd: int
    address: Address
    member: str = ""
    close_reason: str = ""
    since: float = field(default_factory=time.monotonic)

    @property
    def is_current(self) -> bool:
        """True if its descriptor still belongs to this connection."""
        return _socket_inode(self.fd) == self.inode

    def close(self, reason: str) -> None:
        """Shut it down in both directions; gRPC then releases its descriptor."""
        self.close_reason = reason
        with contextlib.suppress(OSError), _duplicate_socket(self.fd) as copy:
            if _socket_inode(copy.fileno()) == self.inode:
                copy.shutdown(socket.SHUT_RDWR)


class ConnectionGuard:
    """Limits the connections to one worker.

    Args:
        party: of the worker.
        port: on which it listens.
        most: connections in total, also gRPC's limit (`grpc.max_allowed_incoming_connections`).
            A member may hold at most a quarter of them, and so may all unauthenticated ones.
        per_address: unauthenticated connections from one address.
    """

    def __init__(self, party: int, port: int, max_connections: int, per_address: int) -> None:
        self._party = party
        self._port = port
        self._max_connections = max_connections
        self._per_address = per_address
        self._lock = threading.Lock()
        self._connections: dict[int, _IncomingConnection] = {}
        self._other_inodes: set[int] = set()
        self._woken = threading.Event()
        self._closed = False
        self._warnings = _ConnectionWarningLog()
        threading.Thread(target=self._watch_connections, name="tfe-door", daemon=True).start()

    def close(self) -> None:
        """Stop the scans."""
        self._closed = True
        self._woken.set()

    def wake_up(self) -> None:
        """Request a scan at once: a handshake begins."""
        self._woken.set()

    def mark_authenticated(self, peer: str, member: str) -> None:
        """Record that a member calls over a connection.

        Args:
            peer: the other end, in gRPC's notation.
            member: a party's or client's name.

        Raises:
            QueueFull: the member holds too many connections.
        """
        with self._lock:
            connection = self._find_connection(peer)
            if connection is None or connection.member:
                return
            limit = self._max_connections // _QUOTA_DIVISOR
            if self._count_connections(member) >= limit:
                self._scan_descriptors()
            if self._count_connections(member) >= limit:
                # The connection stays unauthenticated: the caller receives the error, and it is
                # closed soon.
                self._warnings.count_event(
                    connection.address[0], f"called when {member} held {limit} already"
                )
                raise QueueFull(
                    f"Party {self._party} takes {limit} connections of one member at a time. "
                    "Received: one more. Close some; its operator sets max_connections (four "
                    "times as many) under [limits] in worker.toml.",
                    code="too-many-connections",
                    operation=member,
                    expected=limit,
                    party=self._party,
                )
            connection.member = member

    def disconnect_peer(self, peer: str, reason: str) -> None:
        """Close a connection of any member with all its calls."""
        with self._lock:
            connection = self._find_connection(peer)
            if connection is not None:
                connection.close(reason)

    def list_connections(self, members: Collection[str]) -> list[_IncomingConnection]:
        """List the present connections of these members."""
        with self._lock:
            return [c for c in self._connections.values() if c.member in members]

    def close_connections(self, connections: Iterable[_IncomingConnection], reason: str) -> None:
        """Close those of these connections that are still open."""
        with self._lock:
            for connection in connections:
                if not connection.close_reason:
                    connection.close(reason)

    def _find_connection(self, peer: str) -> _IncomingConnection | None:
        address = _parse_grpc_peer(peer)
        if address is None:
            return None
        for _ in range(2):
            for connection in self._connections.values():
                if connection.address == address and connection.is_current:
                    return connection
            self._scan_descriptors()
        return None

    def _count_connections(self, member: str) -> int:
        return sum(c.member == member and not c.close_reason for c in self._connections.values())

    def _watch_connections(self) -> None:
        while not self._closed:
            self._woken.wait(_SCAN_SECONDS)
            self._woken.clear()
            with self._lock:
                self._scan_descriptors()
                self._close_excess()
                lines = self._warnings.take_lines()
            for line in lines:
                log.warning(line)
            time.sleep(_MIN_PAUSE)  # limits the load of a flood

    def _scan_descriptors(self) -> None:
        """Update the list of present connections."""
        connections: dict[int, _IncomingConnection] = {}
        others: set[int] = set()
        for name in os.listdir("/proc/self/fd"):
            fd = int(name)
            inode = _socket_inode(fd)
            if inode in self._connections:
                connections[inode] = self._connections[inode]
                connections[inode].fd = fd
            elif inode in self._other_inodes:
                others.add(inode)
            elif inode:
                address = _remote_address(fd, inode, self._port)
                if address is None:
                    others.add(inode)
                else:
                    connections[inode] = _IncomingConnection(inode, fd, address)
        for inode, ended in self._connections.items():
            if inode not in connections and not ended.member and not ended.close_reason:
                self._warnings.count_event(
                    ended.address[0], "ended without a certificate of the cluster"
                )
        self._connections, self._other_inodes = connections, others

    def _close_excess(self) -> None:
        """Close unauthenticated connections: the old ones, and the oldest of too many."""
        now = time.monotonic()
        unauthenticated = [
            c for c in self._connections.values() if not c.member and not c.close_reason
        ]
        unauthenticated.sort(key=lambda c: c.since, reverse=True)
        per_address: dict[str, int] = {}
        kept_count = 0
        for connection in unauthenticated:
            host = connection.address[0]
            count = per_address.get(host, 0)
            if now - connection.since > UNAUTHENTICATED_SECONDS:
                reason = f"no call within {UNAUTHENTICATED_SECONDS:.0f} s"
            elif count >= self._per_address:
                reason = (
                    f"more than {self._per_address} unauthenticated, max_connections_per_address"
                )
            elif kept_count >= self._max_connections // _QUOTA_DIVISOR:
                reason = (
                    f"more than {self._max_connections // _QUOTA_DIVISOR} unauthenticated, "
                    "a quarter of max_connections"
                )
            else:
                per_address[host] = count + 1
                kept_count += 1
                continue
            connection.close(reason)
            self._warnings.count_event(host, f"closed: {reason}")
        if len(self._connections) >= self._max_connections:
            self._warnings.count_event(
                "all addresses", f"times all {self._max_connections} of max_connections were open"
            )


@dataclass
class _HostConnectionCounts:
    """Events of one address since its last log line, and the time of the next line."""

    next_line_at: float = 0.0
    counts: dict[str, int] = field(default_factory=dict)


class _ConnectionWarningLog:
    """Log lines about unauthenticated connections: at most one a minute per address and event."""

    def __init__(self) -> None:
        self._hosts: dict[str, _HostConnectionCounts] = {}

    def count_event(self, host: str, event: str) -> None:
        """Count one connection."""
        if host not in self._hosts and len(self._hosts) >= _MAX_WARNED_HOSTS:
            host = "other addresses"
        counts = self._hosts.setdefault(host, _HostConnectionCounts()).counts
        counts[event] = counts.get(event, 0) + 1

    def take_lines(self) -> list[str]:
        """Return the lines to log now."""
        now = time.monotonic()
        lines = []
        for host, host_counts in list(self._hosts.items()):
            if host_counts.next_line_at > now:
                continue
            if not host_counts.counts:
                del self._hosts[host]
                continue
            host_counts.next_line_at = now + _WARN_SECONDS
            counts, host_counts.counts = host_counts.counts, {}
            lines += [f"connections from {host}: {n} {event}" for event, n in counts.items()]
        return lines


def reserve_socket_descriptors(connections: int) -> None:
    """Raise this process's limit on descriptors, and check that it is sufficient.

    Args:
        connections: that others may hold.

    Raises:
        ConfigError: the limit is too low.
    """
    needed = connections + RESERVED_DESCRIPTORS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    infinite = resource.RLIM_INFINITY
    limit = _MOST_DESCRIPTORS if hard == infinite else min(hard, _MOST_DESCRIPTORS)
    if soft != infinite and soft < limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
        soft = limit
    if soft != infinite and soft < needed:
        raise ConfigError(
            f"A worker with {connections} connections needs {needed} file descriptors. "
            f"Received: a limit of {soft}. Raise it (ulimit -n, LimitNOFILE= of systemd), or lower "
            "max_connections under [limits] in worker.toml.",
            code="descriptor-limit",
            received=soft,
            expected=needed,
        )


def _socket_inode(fd: int) -> int:
    """Return the inode of a socket; 0 for other descriptors."""
    try:
        status = os.fstat(fd)
    except OSError:
        return 0
    return status.st_ino if stat.S_ISSOCK(status.st_mode) else 0


@contextlib.contextmanager
def _duplicate_socket(fd: int) -> Iterator[socket.socket]:
    """Duplicate the socket of a descriptor that gRPC may close at any time."""
    copy = os.dup(fd)
    try:
        duplicate = socket.socket(fileno=copy)
    except BaseException:
        os.close(copy)
        raise
    with duplicate:
        yield duplicate


def _remote_address(fd: int, inode: int, port: int) -> Address | None:
    """Return the remote address of a connection to this port; None for other descriptors."""
    try:
        with _duplicate_socket(fd) as copy:
            if _socket_inode(copy.fileno()) != inode:
                return None
            if copy.family not in (socket.AF_INET, socket.AF_INET6):
                return None
            if copy.getsockname()[1] != port:
                return None
            name = copy.getpeername()
            return _normalize_host(name[0]), name[1]
    except OSError:  # no socket, a listening one, or it has just ended
        return None


def _normalize_host(host: str) -> str:
    """Return the canonical form of an address."""
    address = ipaddress.ip_address(host.partition("%")[0])
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped or address)


def _parse_grpc_peer(peer: str) -> Address | None:
    """Parse gRPC's ipv4:1.2.3.4:5 and ipv6:%5B::1%5D:5."""
    kind, _, rest = urllib.parse.unquote(peer).partition(":")
    host, _, port = rest.rpartition(":")
    if kind not in ("ipv4", "ipv6") or not port.isdigit():
        return None
    try:
        return _normalize_host(host.strip("[]")), int(port)
    except ValueError:
        return None

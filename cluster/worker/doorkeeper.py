"""Who may hold a connection to a worker's port, and how many.

gRPC accepts connections by itself, and bounds their number in all, but not by address; nor does it
say who is at the other end before a call arrives.  So this looks at the process's own descriptors:
a connection over which no member of the cluster has called yet is a stranger's.  Strangers are
few, and not for long.  What is closed here is closed by shutdown(): to gRPC the other side ended.
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
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from tfe_bench.errors import ConfigError, QueueFull

# A member calls as soon as its handshake is over.
STRANGER_SECONDS = 10.0
# For what is no connection of others: files, libraries, streams to the other workers, wake-ups.
RESERVED_DESCRIPTORS = 256
_MOST_DESCRIPTORS = 1 << 16
_LOOK_SECONDS = 0.25
_BREATH_SECONDS = 0.02
_TELL_SECONDS = 60.0
_MOST_TOLD = 64
_SHARE = 4

log = logging.getLogger("tfe_bench.worker")

Address = tuple[str, int]


@dataclass(eq=False)
class _Connection:
    """One that others have made to this worker.

    Attributes:
        inode: of the socket; unlike the descriptor's number it is not used again soon.
        fd: gRPC's descriptor when it was last seen.
        member: of the cluster, who has called over it; "" for a stranger.
        shut: why it was closed here, "" if it was not.
    """

    inode: int
    fd: int
    address: Address
    member: str = ""
    shut: str = ""
    since: float = field(default_factory=time.monotonic)

    @property
    def stands(self) -> bool:
        """Whether its descriptor is still this connection's."""
        return _inode(self.fd) == self.inode

    def close(self, why: str) -> None:
        """Ends it in both directions; gRPC then releases its descriptor."""
        self.shut = why
        with contextlib.suppress(OSError), _duplicate(self.fd) as copy:
            if _inode(copy.fileno()) == self.inode:
                copy.shutdown(socket.SHUT_RDWR)


class Doorkeeper:
    """Watches the connections to one worker.

    Args:
        party: whose.
        port: where it listens.
        most: connections in all, as gRPC is told too (`grpc.max_allowed_incoming_connections`).
            No member may hold more than a quarter of them, nor all strangers together.
        per_address: strangers' connections from one address.
    """

    def __init__(self, party: int, port: int, most: int, per_address: int) -> None:
        self._party = party
        self._port = port
        self._most = most
        self._per_address = per_address
        self._lock = threading.Lock()
        self._held: dict[int, _Connection] = {}
        self._others: set[int] = set()
        self._woken = threading.Event()
        self._closed = False
        self._told = _Complaints()
        threading.Thread(target=self._watch, name="tfe-door", daemon=True).start()

    def close(self) -> None:
        """Stops watching."""
        self._closed = True
        self._woken.set()

    def wake(self) -> None:
        """Has it look at once: a handshake begins."""
        self._woken.set()

    def greet(self, peer: str, member: str) -> None:
        """Notes that a member calls over a connection.

        Args:
            peer: the other end, as gRPC writes it.
            member: a party's or client's name.

        Raises:
            QueueFull: the member holds too many.
        """
        with self._lock:
            found = self._find(peer)
            if found is None or found.member:
                return
            most = self._most // _SHARE
            if self._count(member) >= most:
                self._look()
            if self._count(member) >= most:
                # It stays a stranger's: it can be told why, and is closed before long.
                self._told.add(found.address[0], f"called when {member} held {most} already")
                raise QueueFull(
                    f"Party {self._party} takes {most} connections of one member at a time. "
                    "Received: one more. Close some; its operator sets max_connections (four "
                    "times as many) under [limits] in worker.toml."
                )
            found.member = member

    def hang_up(self, peer: str, why: str) -> None:
        """Closes a connection, whoever holds it, and with it all calls over it."""
        with self._lock:
            found = self._find(peer)
            if found is not None:
                found.close(why)

    def dismiss(self, members: Collection[str], why: str) -> None:
        """Closes all connections of these members."""
        with self._lock:
            for each in self._held.values():
                if each.member in members and not each.shut:
                    each.close(why)

    def _find(self, peer: str) -> _Connection | None:
        address = _parsed(peer)
        if address is None:
            return None
        for _ in range(2):
            for each in self._held.values():
                if each.address == address and each.stands:
                    return each
            self._look()
        return None

    def _count(self, member: str) -> int:
        return sum(c.member == member and not c.shut for c in self._held.values())

    def _watch(self) -> None:
        while not self._closed:
            self._woken.wait(_LOOK_SECONDS)
            self._woken.clear()
            with self._lock:
                self._look()
                self._judge()
                lines = self._told.lines()
            for line in lines:
                log.warning(line)
            time.sleep(_BREATH_SECONDS)  # a flood must not keep it busy

    def _look(self) -> None:
        """Finds the connections that are there now."""
        held: dict[int, _Connection] = {}
        others: set[int] = set()
        for name in os.listdir("/proc/self/fd"):
            fd = int(name)
            inode = _inode(fd)
            if inode in self._held:
                held[inode] = self._held[inode]
                held[inode].fd = fd
            elif inode in self._others:
                others.add(inode)
            elif inode:
                address = _caller(fd, inode, self._port)
                if address is None:
                    others.add(inode)
                else:
                    held[inode] = _Connection(inode, fd, address)
        for inode, gone in self._held.items():
            if inode not in held and not gone.member and not gone.shut:
                self._told.add(gone.address[0], "ended without a certificate of the cluster")
        self._held, self._others = held, others

    def _judge(self) -> None:
        """Closes strangers' connections: the old, and the oldest of too many."""
        now = time.monotonic()
        strangers = [c for c in self._held.values() if not c.member and not c.shut]
        strangers.sort(key=lambda c: c.since, reverse=True)
        per_address: dict[str, int] = {}
        left = 0
        for each in strangers:
            host = each.address[0]
            same = per_address.get(host, 0)
            if now - each.since > STRANGER_SECONDS:
                why = f"no call within {STRANGER_SECONDS:.0f} s"
            elif same >= self._per_address:
                why = f"more than {self._per_address} strangers, max_connections_per_address"
            elif left >= self._most // _SHARE:
                why = f"more than {self._most // _SHARE} strangers, a quarter of max_connections"
            else:
                per_address[host] = same + 1
                left += 1
                continue
            each.close(why)
            self._told.add(host, f"closed: {why}")
        if len(self._held) >= self._most:
            self._told.add("all addresses", f"times all {self._most} of max_connections were open")


@dataclass
class _Told:
    """What was counted of one address since its last line, and when the next one is due."""

    due: float = 0.0
    counts: dict[str, int] = field(default_factory=dict)


class _Complaints:
    """What is logged of strangers: at most once a minute of each address, and of few addresses."""

    def __init__(self) -> None:
        self._hosts: dict[str, _Told] = {}

    def add(self, host: str, what: str) -> None:
        """Counts one connection."""
        if host not in self._hosts and len(self._hosts) >= _MOST_TOLD:
            host = "other addresses"
        counts = self._hosts.setdefault(host, _Told()).counts
        counts[what] = counts.get(what, 0) + 1

    def lines(self) -> list[str]:
        """What is to be logged now."""
        now = time.monotonic()
        found = []
        for host, told in list(self._hosts.items()):
            if told.due > now:
                continue
            if not told.counts:
                del self._hosts[host]
                continue
            told.due = now + _TELL_SECONDS
            counts, told.counts = told.counts, {}
            found += [f"connections from {host}: {n} {what}" for what, n in counts.items()]
        return found


def reserve_descriptors(connections: int) -> None:
    """Raises this process's limit on descriptors, and checks that it is enough.

    Args:
        connections: that others may hold.

    Raises:
        ConfigError: it is not.
    """
    needed = connections + RESERVED_DESCRIPTORS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    infinite = resource.RLIM_INFINITY
    most = _MOST_DESCRIPTORS if hard == infinite else min(hard, _MOST_DESCRIPTORS)
    if soft != infinite and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        soft = most
    if soft != infinite and soft < needed:
        raise ConfigError(
            f"A worker that takes {connections} connections needs {needed} file descriptors. "
            f"Received: a limit of {soft}. Raise it (ulimit -n, LimitNOFILE= of systemd), or lower "
            "max_connections under [limits] in worker.toml."
        )


def _inode(fd: int) -> int:
    """Of a socket; 0 of anything else."""
    try:
        found = os.fstat(fd)
    except OSError:
        return 0
    return found.st_ino if stat.S_ISSOCK(found.st_mode) else 0


@contextlib.contextmanager
def _duplicate(fd: int) -> Iterator[socket.socket]:
    """The socket behind a descriptor that gRPC may close at any time."""
    copy = os.dup(fd)
    try:
        twin = socket.socket(fileno=copy)
    except BaseException:
        os.close(copy)
        raise
    with twin:
        yield twin


def _caller(fd: int, inode: int, port: int) -> Address | None:
    """The other end of a connection that was made to this port; None if it is something else."""
    try:
        with _duplicate(fd) as copy:
            if _inode(copy.fileno()) != inode:
                return None
            if copy.family not in (socket.AF_INET, socket.AF_INET6):
                return None
            if copy.getsockname()[1] != port:
                return None
            name = copy.getpeername()
            return _plain(name[0]), name[1]
    except OSError:  # no socket, one that listens, or it has just ended
        return None


def _plain(host: str) -> str:
    """One way to write an address."""
    address = ipaddress.ip_address(host.partition("%")[0])
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped or address)


def _parsed(peer: str) -> Address | None:
    """gRPC's ipv4:1.2.3.4:5 and ipv6:%5B::1%5D:5."""
    kind, _, rest = urllib.parse.unquote(peer).partition(":")
    host, _, port = rest.rpartition(":")
    if kind not in ("ipv4", "ipv6") or not port.isdigit():
        return None
    try:
        return _plain(host.strip("[]")), int(port)
    except ValueError:
        return None

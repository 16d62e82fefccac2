"""Emulated links: hosts in separate network namespaces, joined by one process.

`python -m tfe_bench.cluster.emulator SETTINGS` creates three unnamed namespaces, passes them to
its parent over its standard input (a socket), and forwards packets among them and the namespace
in which it was started.  All its resources live as long as the process: when its parent ends for
any reason, the socket closes, the process exits, and the kernel removes devices and namespaces.

If the kernel has `tc netem`, a bridge and netem forward the packets and this process only waits.
Otherwise every host has a TUN device, and this process queues packets: a packet leaves when its
host's link is free, occupies the link for its length divided by the rate, and arrives a delay
later.  Packets for different hosts alternate on the link.  The emulator needs no package, and
iproute2 only for netem.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import gc
import heapq
import json
import os
import select
import shutil
import socket
import struct
import subprocess
import sys
import time
from collections import deque
from typing import Any

CLONE_NEWNET = 0x40000000
HOSTS = 4  # three workers, and the client in the namespace of the parent
CLIENT = 3

_TUNSETIFF = 0x400454CA
_TUNSETOFFLOAD = 0x400454D0
_IFF_TUN, _IFF_NO_PI, _IFF_VNET_HDR = 0x0001, 0x1000, 0x4000
_TUN_F_CSUM = 0x01
_VNET_BYTES = 10
_SIOCGIFFLAGS, _SIOCSIFFLAGS = 0x8913, 0x8914
_SIOCSIFADDR, _SIOCSIFNETMASK, _SIOCSIFMTU, _SIOCSIFTXQLEN = 0x8916, 0x891C, 0x8922, 0x8943
_IFF_UP = 1
_MASK_BITS = 29

_libc = ctypes.CDLL(None, use_errno=True)


def enter_network_namespace(namespace: int) -> None:
    """Move the calling thread (and threads that it starts later) into a network namespace.

    Raises:
        OSError: the process lacks the permission.
    """
    if _libc.setns(namespace, CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "setns: " + os.strerror(ctypes.get_errno()))


def emulated_host_addresses(subnet: str) -> list[str]:
    """Return the addresses of party 0, 1, 2 and the client in a subnet, by its network address."""
    head, _, last = subnet.rpartition(".")
    return [f"{head}.{int(last) + 1 + host}" for host in range(HOSTS)]


def best_link_mtu(bytes_per_second: int) -> int:
    """Return the bytes sent in a millisecond: few packets, and none occupies the link for long."""
    return min(60_000, max(1500, bytes_per_second // 1000))


def link_buffer_bytes(bytes_per_second: int, delay_us: int) -> int:
    """Return the most bytes in flight of a socket: those of two round trips, and a margin.

    A larger buffer would delay heartbeats behind queued data.
    """
    return min(2 * int(bytes_per_second * 2 * delay_us / 1e6), 32 << 20) + (256 << 10)


# ---- devices


def _build_interface_request(device: str, payload: bytes = b"") -> bytes:
    """Return a struct ifreq."""
    return device.encode().ljust(16, b"\0") + payload.ljust(24, b"\0")


def _configure_network_device(device: str, address: str, mtu: int) -> None:
    def build_address(text: str) -> bytes:
        return _build_interface_request(
            device, struct.pack("=HH4s", socket.AF_INET, 0, socket.inet_aton(text))
        )

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        fcntl.ioctl(s, _SIOCSIFMTU, _build_interface_request(device, struct.pack("=i", mtu)))
        fcntl.ioctl(s, _SIOCSIFTXQLEN, _build_interface_request(device, struct.pack("=i", 20_000)))
        fcntl.ioctl(s, _SIOCSIFADDR, build_address(address))
        mask = socket.inet_ntoa(struct.pack("!I", (0xFFFFFFFF << (32 - _MASK_BITS)) & 0xFFFFFFFF))
        fcntl.ioctl(s, _SIOCSIFNETMASK, build_address(mask))
    _bring_up_network_device(device)


def _bring_up_network_device(device: str) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        flags = struct.unpack_from(
            "=H", fcntl.ioctl(s, _SIOCGIFFLAGS, _build_interface_request(device)), 16
        )[0]
        fcntl.ioctl(
            s, _SIOCSIFFLAGS, _build_interface_request(device, struct.pack("=H", flags | _IFF_UP))
        )


def _open_tun_device(pattern: str) -> tuple[int, str]:
    fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    flags = _IFF_TUN | _IFF_NO_PI | _IFF_VNET_HDR
    reply = fcntl.ioctl(fd, _TUNSETIFF, _build_interface_request(pattern, struct.pack("=H", flags)))
    # Packets stay in this machine's memory, so checksums are not needed.
    fcntl.ioctl(fd, _TUNSETOFFLOAD, _TUN_F_CSUM)
    return fd, reply[:16].rstrip(b"\0").decode()


def _set_link_tcp_windows(buffer: int) -> None:
    """Set TCP windows that the link needs; a warm connection stays warm."""
    settings = {
        "tcp_rmem": f"4096 {min(2 * buffer, 1 << 20)} {2 * buffer}",
        "tcp_wmem": f"4096 {min(buffer, 1 << 20)} {buffer}",
        "tcp_slow_start_after_idle": "0",
        "tcp_no_metrics_save": "1",
    }
    for name, value in settings.items():
        # In older kernels some settings are common to all namespaces.
        with contextlib.suppress(OSError), open(f"/proc/sys/net/ipv4/{name}", "w") as file:
            file.write(value)


def _new_network_namespace(buffer: int) -> int:
    if _libc.unshare(CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "unshare: " + os.strerror(ctypes.get_errno()))
    _set_link_tcp_windows(buffer)
    ipv6 = "/proc/sys/net/ipv6/conf/default/disable_ipv6"
    with contextlib.suppress(OSError), open(ipv6, "w") as file:
        file.write("1")
    _bring_up_network_device("lo")
    return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)


# ---- the link emulator


class _LinkEmulator:
    """Packets of four hosts, in transit or waiting for their host's link."""

    def __init__(self, tuns: list[int], last_bytes: list[int], delay: float, rate: float) -> None:
        self._tuns = tuns
        self._host_of = {last: host for host, last in enumerate(last_bytes)}
        self._delay = delay
        self._rate = rate
        self._queues = [[deque[bytes]() for _ in range(HOSTS)] for _ in range(HOSTS)]
        self._next_destination = [0] * HOSTS
        self._busy = [False] * HOSTS
        # (time, order, host whose link becomes free or -1, destination, packet)
        self._events: list[tuple[float, int, int, int, bytes]] = []
        self._order = 0

    def forward_packets(self, control: socket.socket) -> None:
        """Forward packets until the other end of the socket closes."""
        descriptors = [*self._tuns, control.fileno()]
        clock, events = time.monotonic, self._events
        while True:
            wait = None
            if events:
                wait = events[0][0] - clock()
                if wait <= 0:
                    self._process_due_packets(clock())
                    wait = 0.0
            ready = select.select(descriptors, [], [], wait)[0]
            for fd in ready:
                if fd == descriptors[-1]:
                    return
                self._read_packets(self._tuns.index(fd))

    def _read_packets(self, host: int) -> None:
        """Read the packets that a host sends."""
        tun, queues = self._tuns[host], self._queues[host]
        size = 65536 + _VNET_BYTES
        for _ in range(32):
            try:
                packet = os.read(tun, size)
            except BlockingIOError:
                return
            if len(packet) < _VNET_BYTES + 20 or packet[_VNET_BYTES] >> 4 != 4:
                continue
            to = self._host_of.get(packet[_VNET_BYTES + 19], -1)
            if to < 0 or to == host:
                continue
            queues[to].append(packet)
            if not self._busy[host]:
                self._send_next_packet(host, time.monotonic())

    def _send_next_packet(self, host: int, now: float) -> None:
        """Send the next packet over a host's link; the destinations alternate."""
        queues, first_destination = self._queues[host], self._next_destination[host]
        for i in range(HOSTS):
            to = (first_destination + i) % HOSTS
            if queues[to]:
                break
        else:
            self._busy[host] = False
            return
        packet = queues[to].popleft()
        self._next_destination[host] = to + 1
        self._busy[host] = True
        self._order += 2
        free = now + (len(packet) - _VNET_BYTES) / self._rate
        heapq.heappush(self._events, (free, self._order, host, 0, b""))
        heapq.heappush(self._events, (free + self._delay, self._order + 1, -1, to, packet))

    def _process_due_packets(self, now: float) -> None:
        """Process all events that are due, each at its own time."""
        events = self._events
        while events and events[0][0] <= now:
            at, _, host, to, packet = heapq.heappop(events)
            if host >= 0:
                self._send_next_packet(host, at)
                continue
            with contextlib.suppress(OSError):  # that host has ended
                os.write(self._tuns[to], packet)


# ---- starting


def _run_network_command(command: str, *words: str) -> None:
    completed = subprocess.run(
        [*command.split(), *words], stdin=subprocess.DEVNULL, capture_output=True, timeout=20
    )
    if completed.returncode:
        raise OSError(f"{command}: {completed.stderr.decode(errors='replace').strip()[:200]}")


def _try_netem_links(
    home: int, hosts: list[str], settings: dict[str, Any], buffer: int
) -> list[int] | None:
    """Create the hosts' namespaces behind a bridge with netem; return None if the kernel cannot."""
    if not shutil.which("tc") or not shutil.which("ip"):
        return None
    delay, rate = settings["delay_us"], settings["bytes_per_second"] * 8
    netem = f"root netem delay {delay}us rate {rate}bit limit 200000".split()
    try:
        switch = _new_network_namespace(buffer)
        _run_network_command("ip link add probe type veth peer name probe2")
        _run_network_command("tc qdisc add dev probe", *netem)
        _run_network_command("ip link del probe")
        _run_network_command("ip link add br0 type bridge")
        _bring_up_network_device("br0")
        spaces = [_new_network_namespace(buffer) for _ in range(HOSTS - 1)] + [home]
        client_device = settings["device"] + "v"
        for host, space in enumerate(spaces):
            device = client_device if host == CLIENT else "eth0"
            enter_network_namespace(switch)
            _run_network_command(f"ip link add port{host} type veth peer name far{host}")
            _run_network_command(f"ip link set port{host} master br0")
            _bring_up_network_device(f"port{host}")
            target = f"/proc/{os.getpid()}/fd/{space}"
            _run_network_command(f"ip link set far{host} netns", target)
            enter_network_namespace(space)
            _run_network_command(f"ip link set far{host} name", device)
            _configure_network_device(device, hosts[host], 1500)
            _run_network_command("tc qdisc add dev", device, *netem)
        return spaces[:-1]
    except (OSError, subprocess.SubprocessError):
        return None
    finally:
        with contextlib.suppress(OSError):  # without permission the next attempt reports the reason
            enter_network_namespace(home)


def main(settings: dict[str, Any]) -> int:
    """Create the hosts, pass their namespaces to the parent, and forward packets until it ends."""
    control = socket.socket(fileno=0)
    rate, delay_us = int(settings["bytes_per_second"]), int(settings["delay_us"])
    hosts = emulated_host_addresses(settings["subnet"])
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    links = None
    buffer = link_buffer_bytes(rate, delay_us)
    try:
        spaces = _try_netem_links(home, hosts, settings, buffer) if settings["netem"] else None
        kind = "netns+netem" if spaces else "netns+tun"
        if spaces is None:
            spaces, tuns = [], []
            mtu = best_link_mtu(rate)
            for host in range(HOSTS):
                if host == CLIENT:
                    enter_network_namespace(home)
                else:
                    spaces.append(_new_network_namespace(buffer))
                tun, device = _open_tun_device(settings["device"] if host == CLIENT else "tun0")
                _configure_network_device(device, hosts[host], mtu)
                tuns.append(tun)
            last = [int(a.rpartition(".")[2]) for a in hosts]
            links = _LinkEmulator(tuns, last, delay_us / 1e6, rate)
        # Packets are late if workers occupy the processor that this process needs.
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    except OSError as error:
        control.sendall(json.dumps({"error": str(error)[:300]}).encode())
        return 1
    socket.send_fds(control, [json.dumps({"kind": kind}).encode()], spaces)
    gc.disable()
    if links is None:
        control.recv(1)
    else:
        links.forward_packets(control)
    return 0


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))

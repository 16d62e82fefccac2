"""Emulation of a network profile on one machine: namespaces with emulated links, or the channel."""

from __future__ import annotations

import json
import os
import random
import socket
import subprocess
import sys
from pathlib import Path

from tfe_bench.cluster import emulator
from tfe_bench.cluster.profiles import NetworkProfile
from tfe_bench.errors import ClusterError, unknown_name_error

EMULATIONS = ("auto", "netns", "channel")
CHANNEL = "channel"
_START_SECONDS = 20.0


class NoNamespaces(ClusterError):
    """Links cannot be emulated here: the process lacks privileges, or there are no TUN devices."""


def check_link_emulation(name: str) -> str:
    """Return the name of an emulation.

    Raises:
        UsageError: the name is unknown.
    """
    if name not in EMULATIONS:
        raise unknown_name_error(
            f"Unknown emulation of a network. Received: {name!r}.", name, EMULATIONS
        )
    return name


class Links:
    """Three namespaces for workers, joined with each other and with this one by shaped links.

    All resources end with `close`, or with this process.

    Attributes:
        kind: "netns+tun" or "netns+netem".
        hosts: addresses of party 0, 1, 2 and of the client.

    Args:
        netem: whether the kernel's own emulator may be used.

    Raises:
        NoNamespaces: this process lacks the permission, or the kernel the support.
    """

    def __init__(self, profile: NetworkProfile, netem: bool = True) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self.namespaces: list[int] = []
        if not sys.platform.startswith("linux") or not Path("/dev/net/tun").exists():
            raise NoNamespaces(
                "This system has no TUN devices. Received: no /dev/net/tun.",
                code="emulation-not-available",
            )
        subnet = _free_emulation_subnet()
        self.hosts = emulator.emulated_host_addresses(subnet)
        settings = {
            "delay_us": profile.delay_us,
            "bytes_per_second": profile.bytes_per_second,
            "subnet": subnet,
            "device": "tfe" + os.urandom(4).hex(),
            "netem": netem,
        }
        control, child_end = socket.socketpair()
        self._control = control
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", emulator.__name__, json.dumps(settings)],
                stdin=child_end.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
            child_end.close()
            control.settimeout(_START_SECONDS)
            try:
                reply, self.namespaces, _, _ = socket.recv_fds(control, 4096, 3)
            except OSError as error:
                raise NoNamespaces(
                    f"The link emulator does not answer ({error}).", code="emulation-not-available"
                ) from None
            answer = json.loads(reply) if reply else {"error": self._last_error_line()}
            if "kind" not in answer or len(self.namespaces) != 3:
                raise NoNamespaces(
                    "Network namespaces cannot be created here (this requires root, or "
                    "CAP_NET_ADMIN and "
                    f"CAP_SYS_ADMIN). Received: {answer.get('error', 'nothing')}.",
                    code="emulation-not-available",
                )
            self.kind: str = answer["kind"]
            for fd in self.namespaces:
                os.set_inheritable(fd, False)
        except BaseException:
            self.close()
            raise

    def _last_error_line(self) -> str:
        assert self._process is not None and self._process.stderr is not None
        lines = self._process.stderr.read().decode(errors="replace").splitlines()
        return lines[-1][:200] if lines else "its end"

    @property
    def pid(self) -> int:
        """Process id of the emulator."""
        assert self._process is not None
        return self._process.pid

    def close(self) -> None:
        """End the emulator; devices and namespaces end with it."""
        self._control.close()
        for fd in self.namespaces:
            os.close(fd)
        self.namespaces = []
        if self._process is not None:
            try:
                self._process.wait(3)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            if self._process.stderr is not None:
                self._process.stderr.close()
            self._process = None


def _free_emulation_subnet() -> str:
    """Return eight unused addresses of 198.18.0.0/15, reserved for benchmarks (RFC 2544)."""
    used_routes = []
    try:
        for line in Path("/proc/net/route").read_text().splitlines()[1:]:
            fields = line.split()
            used_routes.append([int.from_bytes(bytes.fromhex(fields[i]), "little") for i in (1, 7)])
    except (OSError, ValueError, IndexError):
        pass
    base = int.from_bytes(socket.inet_aton("198.18.0.0"), "big")
    rng, subnet = random.SystemRandom(), base
    for _ in range(1000):
        subnet = base + 8 * rng.randrange(1 << 14)
        if not any(mask and subnet & mask == address & mask for address, mask in used_routes):
            break
    return socket.inet_ntoa(subnet.to_bytes(4, "big"))

"""Network profiles: their figures, both emulations, and their cleanup."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.refusals import raises
from tfe_bench.benchmarks import measured_links
from tfe_bench.benchmarks.measured_links import MeasuredLinks
from tfe_bench.benchmarks.prediction import measured_run_rounds
from tfe_bench.cluster import emulator, links, profiles
from tfe_bench.cluster.launch import LocalCluster
from tfe_bench.cluster.policy import WorkerPolicy
from tfe_bench.cluster.requests import PrivateInput
from tfe_bench.errors import PolicyError, ProfileError, UsageError
from tfe_bench.protocols.session import ops

if TYPE_CHECKING:
    from tests.cluster.conftest import Processes

WAN = profiles.get_profile("wan")


# ---- the table


def test_profiles_have_their_figures() -> None:
    figures = {p.name: (p.bits_per_second, p.delay) for p in profiles.PROFILES.values()}
    assert figures == {
        "local": (0, 0),
        "lan": (40e9, 10e-6),
        "wan": (352e6, 20e-3),
        "net0": (100e9, 0),
        "net1": (1e9, 1e-3),
        "net2": (100e6, 10e-3),
        "net3": (10e6, 100e-3),
        "orq-wan": (6e9, 10e-3),
        "puma-lan": (5e9, 0.5e-3),
    }
    assert {p.name for p in profiles.PROFILES.values() if p.strict} == {"wan", "net2", "net3"}
    assert not profiles.get_profile("local").shaped and WAN.bytes_per_second == 44_000_000


@pytest.mark.parametrize(("name", "meant"), [("wam", "wan"), ("net4", "net"), ("LAN", "")])
def test_an_unknown_profile_is_refused(name: str, meant: str) -> None:
    with raises(UsageError, "unknown-name", received=name) as refused:
        profiles.get_profile(name)
    assert meant in str(refused.value)


def test_an_unknown_emulation_is_refused() -> None:
    with raises(UsageError, "unknown-name", received="chanel") as refused:
        LocalCluster(profile="wan", emulate="chanel")
    assert 'Did you mean "channel"' in str(refused.value)


def _make_links(delay: float = 20e-3, rate: float = 352e6, lost: int = 0) -> MeasuredLinks:
    return MeasuredLinks((20e-3, 20e-3, delay), (352e6, rate, 352e6), 100.0, lost)


def test_figures_within_a_tenth_hold_and_others_are_named() -> None:
    assert _make_links(21.9e-3, 318e6).describe_deviations(WAN) == []
    [delay] = _make_links(delay=22.1e-3).describe_deviations(WAN)
    assert "1-2" in delay and "22.1 ms instead of 20 ms" in delay
    [rate] = _make_links(rate=390e6).describe_deviations(WAN)
    assert "worker 1 390 Mbit/s instead of 352 Mbit/s" in rate
    assert _make_links(lost=8).describe_deviations(WAN) == ["8 bytes lost"]
    assert _make_links(1.0, 1.0).describe_deviations(profiles.get_profile("local")) == []


def test_a_worker_refuses_shaping_unless_its_operator_allows_it(tmp_path: Path) -> None:
    file = tmp_path / "worker.toml"
    file.write_text("party = 1\n")
    with raises(PolicyError, "shaping-not-allowed"):
        WorkerPolicy.load(file).permit_shaping()
    file.write_text("party = 1\nallow_shaping = true\n")
    WorkerPolicy.load(file).permit_shaping()
    WorkerPolicy.for_local(1, None).permit_shaping()


# ---- in the channel


class _Sender:
    """A native session of party 1, with its messages and their times."""

    def __init__(self, delay_us: int, bytes_per_second: int) -> None:
        self.native = ops.native()
        self.handle = self.native.session_new(1, os.urandom(48), 0)
        for peer in (0, 2):
            self.native.shape(self.handle, peer, delay_us, bytes_per_second)
        assert not self.native.call_for_error("step_begin", self.handle, 1, 1, 9)

    def send(self, peer: int, size: int) -> None:
        payload = bytes(size)
        assert not self.native.call_for_error("control_send", self.handle, peer, 1, payload, size)

    def take(self, peer: int, size: int, at: list[tuple[float, int]]) -> None:
        """Pop this number of payload bytes; return the time and size of each piece."""
        space = ctypes.create_string_buffer(1 << 19)
        got = 0
        while got < size:
            popped = self.native.next_blob(self.handle, peer, space, 1 << 19, 1 << 19, 5000)
            assert popped > 0
            offset = 0
            while offset < popped:
                length = int.from_bytes(space.raw[offset + 32 : offset + 36], "little")
                got += length
                offset += 48 + length
            at.append((time.monotonic(), got))


@pytest.fixture
def sender() -> Iterator[_Sender]:
    native_sender = _Sender(20_000, 44_000_000)
    yield native_sender
    native_sender.native.session_drop(native_sender.handle)


def test_a_channel_holds_delay_and_rate_and_a_small_message_passes_a_large_one(
    sender: _Sender,
) -> None:
    large, small = 8_800_000, 1000  # 0.2 s, and few bytes
    times: dict[int, list[tuple[float, int]]] = {0: [], 2: []}
    started = time.monotonic()
    sender.send(0, large)
    sender.send(2, small)
    threads = [
        threading.Thread(target=sender.take, args=(peer, size, times[peer]))
        for peer, size in ((0, large), (2, small))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    first, last = times[0][0][0] - started, times[0][-1][0] - started
    passed = times[2][-1][0] - started
    print(f"first {first:.4f} s, last {last:.4f} s, small {passed:.4f} s")
    # Never early; late only as far as this machine is busy.
    assert 0.020 <= first < 0.06
    assert 0.220 <= last < 0.30
    assert 0.020 <= passed < 0.06
    # The rate holds at any moment: bytes that have arrived had the time to leave.
    for at, got in times[0]:
        assert got <= 44e6 * (at - started - 0.020) + 1


def test_messages_to_both_peers_share_the_rate(sender: _Sender) -> None:
    each = 2_200_000  # 0.05 s alone
    times: dict[int, list[tuple[float, int]]] = {0: [], 2: []}
    started = time.monotonic()
    for peer in (0, 2):
        sender.send(peer, each)
    threads = [
        threading.Thread(target=sender.take, args=(peer, each, times[peer])) for peer in (0, 2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    ends = [times[peer][-1][0] - started for peer in (0, 2)]
    print(f"ends {ends}")
    assert max(ends) >= 0.120 and min(ends) >= 0.110
    assert max(ends) < 0.2


# ---- in namespaces


@pytest.fixture
def emulated_links() -> Iterator[links.Links]:
    try:
        some = links.Links(WAN)
    except links.NoNamespaces as error:
        pytest.skip(str(error))
    yield some
    some.close()


def _socket_in(namespace: int) -> socket.socket:
    """Create a socket in a namespace: it belongs to the namespace of its thread."""
    sockets: list[socket.socket] = []

    def make() -> None:
        emulator.enter_network_namespace(namespace)
        sockets.append(socket.socket())

    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    return sockets[0]


@pytest.mark.slow
def test_namespaces_hold_delay_and_rate(emulated_links: links.Links) -> None:
    with (
        _socket_in(emulated_links.namespaces[0]) as door,
        _socket_in(emulated_links.namespaces[1]) as caller,
    ):
        door.bind((emulated_links.hosts[0], 7700))
        door.listen()
        caller.connect((emulated_links.hosts[0], 7700))
        called, _ = door.accept()
        for s in (caller, called):
            s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        trips = []
        for _ in range(10):
            started = time.monotonic()
            caller.sendall(b"x")
            called.sendall(called.recv(1))
            caller.recv(1)
            trips.append(time.monotonic() - started)
        print(f"round trips {[f'{1e3 * t:.2f}' for t in trips]} ms")
        assert 0.040 <= min(trips) < 0.044

        def pour(size: int) -> float:
            space = bytearray(1 << 20)
            thread = threading.Thread(target=caller.sendall, args=(bytes(size),))
            started, got = time.monotonic(), 0
            thread.start()
            while got < size:
                got += called.recv_into(space)
            thread.join()
            return time.monotonic() - started - 0.020

        pour(4_000_000)
        rate = max(8 * 13_200_000 / pour(13_200_000) for _ in range(3))
        print(f"{rate / 1e6:.1f} Mbit/s")
        assert 0.9 * 352e6 < rate < 1.1 * 352e6
        called.close()


def _list_devices() -> str:
    return Path("/proc/net/dev").read_text()


def test_links_leave_nothing_behind(emulated_links: links.Links) -> None:
    pid = emulated_links.pid
    assert "tfe" in _list_devices()
    emulated_links.close()
    assert not Path(f"/proc/{pid}").exists()
    emulated_links.namespaces = []


def test_links_of_a_killed_process_go_with_it(
    emulated_links: links.Links, processes: Processes
) -> None:
    program = (
        "import sys, time\n"
        "from tfe_bench.cluster import links, profiles\n"
        "made = links.Links(profiles.get_profile('wan'))\n"
        "print(made.pid, made.hosts[3], flush=True)\n"
        "time.sleep(100)\n"
    )
    parent = processes.start(
        "-c", program, out=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert parent.stdout is not None
    pid, address = parent.stdout.readline().split()
    processes.watch([int(pid)])
    assert processes.is_alive(int(pid))
    with socket.socket() as s:
        s.bind((address, 0))  # the client's own address is there
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    assert processes.wait_gone([int(pid)], 5) == []
    with socket.socket() as s, pytest.raises(OSError):
        s.bind((address, 0))


# ---- clusters


def _time_sort(cluster: LocalCluster, n: int) -> tuple[float, int]:
    keys = np.random.default_rng(5).integers(-(2**63), 2**63 - 1, n, np.int64)
    result = cluster.run("sort", {"profile": "wan", "repeat": 1}, {"keys": PrivateInput(keys)})
    np.testing.assert_array_equal(result.outputs["keys"], np.sort(keys))
    _, rounds = measured_run_rounds(result.measured)
    return max(m["seconds"][0] for m in result.measured), rounds


@pytest.fixture
def no_namespaces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make network namespaces unavailable."""

    def refuse(profile: profiles.NetworkProfile) -> links.Links:
        raise links.NoNamespaces("Network namespaces cannot be made here.")

    monkeypatch.setattr(links, "Links", refuse)


@pytest.mark.usefixtures("no_namespaces")
def test_without_privileges_the_channel_emulates_and_wrong_figures_are_refused() -> None:
    with LocalCluster(profile="wan") as cluster:
        assert cluster.emulation == "channel"
        assert cluster.fallback is not None and "namespaces" in cluster.fallback
        seconds, rounds = _time_sort(cluster, 300)
        print(f"{rounds} rounds in {seconds:.3f} s")
        assert seconds >= rounds * WAN.delay
        # A faster link than a wan's, and one with another delay.
        for wrong, fragment in (
            ((20_000, 110_000_000), "Mbit/s instead"),
            ((10_000, 44_000_000), "ms instead"),
        ):
            cluster.client.shaping = wrong
            with raises(ProfileError, "profile-not-met", operation="wan") as refused:
                measured_links.verify_links(cluster)
            assert fragment in str(refused.value)
        assert ProfileError.exit_code == 60


@pytest.mark.usefixtures("no_namespaces")
def test_namespaces_that_cannot_be_are_an_error_where_they_were_asked_for() -> None:
    with pytest.raises(links.NoNamespaces):
        LocalCluster(profile="wan", emulate="netns")


@pytest.mark.slow
def test_a_sort_in_namespaces_takes_its_rounds(emulated_links: links.Links) -> None:
    emulated_links.close()
    emulated_links.namespaces = []
    with LocalCluster(profile="wan", emulate="netns") as cluster:
        assert cluster.emulation in ("netns+tun", "netns+netem")
        seconds, rounds = _time_sort(cluster, 300)
        print(f"{rounds} rounds in {seconds:.3f} s")
        assert seconds >= rounds * WAN.delay
        result = measured_links.measure_links(cluster, 2000)
        print(json.dumps(result.as_json()))
        assert result.lost_bytes == 0 and min(result.delays) >= WAN.delay

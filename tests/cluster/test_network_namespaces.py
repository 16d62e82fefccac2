"""Three workers and a client in separate network namespaces, as on four machines."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tfe_bench.benchmarks.records import Record

if TYPE_CHECKING:
    from tests.cluster.conftest import Processes

pytestmark = pytest.mark.slow

_CLIENT, _SWITCH = 3, 4


def _run_ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, timeout=30)
    if done.returncode:
        raise OSError(f"ip {' '.join(words)}: {done.stderr.strip()}")


class _Network:
    """Four hosts (three workers and a client) on one switch."""

    def __init__(self, folder: Path, processes: Processes) -> None:
        self.folder, self.processes = folder, processes
        self.names = [f"tfe{os.getpid()}-{i}" for i in range(5)]
        self.addresses = [f"10.77.0.{i + 1}" for i in range(4)]
        self.workers: list[subprocess.Popen[Any]] = []

    def build(self) -> None:
        for name in self.names:
            _run_ip("netns", "add", name)
        switch = self.names[_SWITCH]
        _run_ip("-n", switch, "link", "add", "br0", "type", "bridge")
        _run_ip("-n", switch, "link", "set", "br0", "up")
        for i, address in enumerate(self.addresses):
            host = self.names[i]
            port = f"port{i}"
            _run_ip(*f"-n {switch} link add {port} type veth peer name eth0 netns {host}".split())
            _run_ip("-n", switch, "link", "set", port, "master", "br0")
            _run_ip("-n", switch, "link", "set", port, "up")
            _run_ip("-n", host, "addr", "add", f"{address}/24", "dev", "eth0")
            _run_ip("-n", host, "link", "set", "lo", "up")
            _run_ip("-n", host, "link", "set", "eth0", "up")

    def cut(self, host: int) -> None:
        """Disconnect a host at the switch."""
        _run_ip("-n", self.names[_SWITCH], "link", "set", f"port{host}", "down")

    def start(self, host: int, *command: str, **options: Any) -> subprocess.Popen[Any]:
        """Start ``tfe_bench command...`` on a host."""
        inside = ("ip", "netns", "exec", self.names[host])
        return self.processes.start("-m", "tfe_bench", *command, inside=inside, **options)

    def start_workers(self) -> Path:
        trial = self.folder / "trial"
        hosts = ",".join(f"{address}:7700" for address in self.addresses[:3])
        process = self.start(_CLIENT, "certs", "all", "--hosts", hosts, "--out", str(trial))
        assert process.wait(60) == 0
        logs = [trial / f"party{p}.log" for p in range(3)]
        for p, log in enumerate(logs):
            with log.open("wb") as out:
                command = ["worker", "--party", str(p), "--cluster", str(trial / "cluster.toml")]
                self.workers.append(self.start(p, *command, out=out))
        self.processes.wait_for(lambda: all("ready" in log.read_text() for log in logs), "workers")
        return trial / "cluster.toml"

    def close(self) -> None:
        self.processes.close()
        for name in self.names:
            with contextlib.suppress(OSError):
                _run_ip("netns", "del", name)


@pytest.fixture
def network(tmp_path: Path, processes: Processes) -> Iterator[_Network]:
    if os.geteuid() != 0:
        pytest.skip("network namespaces need root")
    if shutil.which("ip") is None:
        pytest.skip("the command ip is missing")
    net = _Network(tmp_path, processes)
    try:
        try:
            net.build()
        except OSError as error:
            pytest.skip(f"this machine makes no network namespaces: {error}")
        yield net
    finally:
        net.close()


def test_three_hosts_sort_and_a_cut_cable_is_a_lost_party(
    network: _Network, tmp_path: Path
) -> None:
    cluster = str(network.start_workers())
    for _ in range(2):
        command = network.start(
            *(_CLIENT, "sort", "--cluster", cluster, "--n", "1000", "--json"),
            out=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        out, err = command.communicate(timeout=120)
        assert command.returncode == 0, err
        record = Record.from_json(out)
        assert record.correct and record.tls

    with (tmp_path / "err").open("wb") as error_file:
        long = network.start(
            *(_CLIENT, "sort", "--cluster", cluster, "--n", "200000", "--repeat", "200"),
            stderr=error_file,
        )
    log = Path(cluster).parent / "party0.log"
    network.processes.wait_for(lambda: log.read_text().count("begins") == 3, "the job begins")
    time.sleep(2)
    network.cut(1)
    struck = time.monotonic()
    assert long.wait(60) == 20
    seconds = time.monotonic() - struck
    message = (tmp_path / "err").read_text()
    print(f"cut cable told after {seconds:.2f} s: {message}")
    assert "PeerLost" in message and "party 1" in message and "Traceback" not in message
    assert seconds < 14
    for worker in network.workers:
        assert worker.poll() is None
        worker.send_signal(signal.SIGTERM)
    assert [worker.wait(30) for worker in network.workers] == [0, 0, 0]

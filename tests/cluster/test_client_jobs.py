"""Jobs of several clients on three workers: queue, status, cancellation, shutdown."""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.announcements import remove_announcement
from tests.refusals import raises
from tfe_bench.cluster import wire
from tfe_bench.cluster.client import Client, new_job
from tfe_bench.cluster.launch import Cluster
from tfe_bench.cluster.requests import PrivateInput
from tfe_bench.cluster.worker_calls import WorkerCall, end_calls
from tfe_bench.errors import ClusterError, JobCancelled, QueueFull, UsageError

if TYPE_CHECKING:
    from tests.cluster.conftest import Hosts

_SECRET = 8675309123456789


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    """Start three workers that accept three jobs of a client and four in total."""
    from tests.cluster.conftest import Hosts

    three = Hosts(tmp_path_factory.mktemp("jobs") / "trial", ("analyst", "guest"))
    try:
        for party in range(3):
            path = three.folder / f"worker{party}.toml"
            path.write_text(path.read_text() + "max_jobs = 4\nmax_jobs_per_client = 3\n")
        three.ensure()
        yield three
    finally:
        three.close()


class _JobInThread:
    """A job in a separate thread, on its own connections."""

    def __init__(self, hosts: Hosts, client: str, n: int, repeat: int) -> None:
        self.job = new_job()
        self.told: list[str] = []
        self.outcome: Any = None
        self.began = threading.Event()
        self._cluster = Cluster(hosts.cluster, client)
        self.client: Client = self._cluster.client
        self._thread = threading.Thread(target=self._run, args=(n, repeat), daemon=True)
        self._thread.start()

    def _run(self, n: int, repeat: int) -> None:
        keys = np.full(n, _SECRET, np.int64) + np.arange(n)[::-1]

        def progress(fraction: float, text: str) -> None:
            self.told.append(text)
            if not text.startswith("waiting"):
                self.began.set()

        try:
            self.outcome = self.client.run(
                "sort", {"repeat": repeat}, {"keys": PrivateInput(keys)}, progress, self.job
            )
            np.testing.assert_array_equal(self.outcome.outputs["keys"], np.sort(keys))
        except BaseException as error:
            self.outcome = error

    def end(self, seconds: float = 120) -> Any:
        self._thread.join(seconds)
        assert not self._thread.is_alive()
        self._cluster.close()
        return self.outcome


def _start_long_job(hosts: Hosts, client: str = "analyst") -> _JobInThread:
    """Start a job that runs until it is cancelled."""
    job = _JobInThread(hosts, client, 60_000, 1000)
    assert job.began.wait(60), job.outcome
    return job


def _start_short_job(hosts: Hosts, client: str = "analyst") -> _JobInThread:
    job = _JobInThread(hosts, client, 20, 1)
    hosts.processes.wait_for(
        lambda: job.outcome is not None or any(t.startswith("waiting") for t in job.told),
        "the job waits",
    )
    return job


def _ended_everywhere(hosts: Hosts, job: str) -> None:
    word = f"{job[:12]} failed"
    hosts.processes.wait_for(
        lambda: all(word in hosts.log(party) for party in range(3)), "all three end it", 10
    )


def test_jobs_wait_with_their_position_and_show_only_to_their_clients(hosts: Hosts) -> None:
    from tests.cluster.conftest import wait_until

    hosts.ensure()
    running = _start_long_job(hosts)
    second = _start_short_job(hosts)
    third = _start_short_job(hosts, "guest")
    assert "waiting: 1 job before this one" in second.told
    assert third.told[-1] == "waiting: 1 job before this one"  # (clients take turns)
    wait_until(lambda: second.told[-1] == "waiting: 2 jobs before this one", "it moves back")

    statuses = running.client.status()
    for party, answer in enumerate(statuses):
        assert isinstance(answer, dict)
        assert answer["party"] == party
        own = {job["job"]: job for job in answer["jobs"]}
        assert set(own) == {running.job, second.job}
        assert own[running.job]["state"] == "running"
        assert own[second.job]["state"] == "waiting"
        assert (answer["others_running"], answer["others_waiting"]) == (False, 1)
        assert third.job not in json.dumps(answer) and "guest" not in json.dumps(answer)
    guests = third.client.status()[0]
    assert isinstance(guests, dict)
    assert [job["job"] for job in guests["jobs"]] == [third.job]
    assert guests["jobs"][0]["before"] == 1
    assert (guests["others_running"], guests["others_waiting"]) == (True, 1)

    # Another client's job is indistinguishable from one that does not exist.
    with raises(UsageError, "job-not-found"):
        third.client.cancel(running.job)
    for party in range(3):
        assert third.client.ask(party, wire.CANCEL, job=running.job)["found"] is False
    done = hosts.command("status", "--cluster", str(hosts.cluster), "--client", "guest", "--json")
    assert done.returncode == 0, done.stderr
    assert [job["job"] for job in json.loads(done.stdout)[0]["jobs"]] == [third.job]

    started = time.monotonic()
    done = hosts.command(
        *("cancel", running.job[:10], "--cluster", str(hosts.cluster), "--client", "analyst")
    )
    assert done.returncode == 0, done.stderr
    error = running.end()
    assert isinstance(error, JobCancelled) and error.code == "job-cancelled"
    for job in (second, third):
        assert not isinstance(job.end(), BaseException), job.outcome
    print(f"cancelled, and two jobs done, after {time.monotonic() - started:.2f} s")
    _ended_everywhere(hosts, running.job)


def test_a_waiting_job_can_be_cancelled_or_left_and_those_behind_it_move_up(hosts: Hosts) -> None:
    hosts.ensure()
    running = _start_long_job(hosts, "guest")
    cancelled, left, last = (_start_short_job(hosts) for _ in range(3))
    assert last.told[-1] == "waiting: 3 jobs before this one"
    last.client.cancel(cancelled.job)
    assert isinstance(cancelled.end(), JobCancelled)
    hosts.processes.wait_for(lambda: last.told[-1].startswith("waiting: 2 "), "it moves up", 5)
    left.client.close()
    hosts.processes.wait_for(lambda: last.told[-1].startswith("waiting: 1 "), "it moves up", 5)
    assert isinstance(left.end(), BaseException)
    running.client.cancel(running.job)
    assert isinstance(running.end(), JobCancelled)
    assert not isinstance(last.end(), BaseException), last.outcome


def test_more_jobs_than_the_limits_are_refused_at_once(hosts: Hosts) -> None:
    hosts.ensure()
    running = _start_long_job(hosts)
    waiting = [_start_short_job(hosts), _start_short_job(hosts)]
    error = _start_short_job(hosts).end()
    assert isinstance(error, QueueFull) and "max_jobs_per_client" in str(error)
    waiting.append(_start_short_job(hosts, "guest"))
    done = hosts.command(
        *("sort", "--cluster", str(hosts.cluster), "--client", "guest", "--n", "9")
    )
    assert done.returncode == 20 and "QueueFull" in done.stderr and "max_jobs " in done.stderr
    running.client.cancel(running.job)
    running.end()
    for job in waiting:
        assert not isinstance(job.end(), BaseException), job.outcome


def _capture_headers(client: Client, job: str) -> list[list[bytes]]:
    """Return an honest client's header to each worker for a sort of one key."""
    sent: list[list[bytes]] = [[], [], []]
    stub, channels = wire.stub, client._channels

    class _Stop(Exception):
        pass

    def listening(channel: Any, method: str) -> Any:
        if method != wire.JOB:
            return stub(channel, method)
        party = channels.index(channel)

        def call(requests: Iterator[bytes], **_: Any) -> Any:
            sent[party].append(next(requests))
            if party == 2:
                raise _Stop
            return stub(channel, method)(iter(()))

        return call

    wire.stub = listening
    try:
        with contextlib.suppress(_Stop):
            client.run("sort", {}, {"keys": PrivateInput(np.arange(1))}, None, job)
    finally:
        wire.stub = stub
    return sent


@pytest.mark.parametrize(
    "every",
    [((0,), (1, 2)), pytest.param(((0, 1), (1,), (0, 2)), marks=pytest.mark.slow)],
    ids=str,
)
def test_jobs_given_to_some_workers_only_hold_up_nobody(
    hosts: Hosts, every: tuple[tuple[int, ...], ...]
) -> None:
    hosts.ensure()
    over = threading.Event()
    with Cluster(hosts.cluster, "guest") as cluster:
        calls: list[WorkerCall] = []
        for fields in every:
            sent = _capture_headers(cluster.client, new_job())

            def requests(party: int, sent: Any = sent) -> Iterator[bytes]:
                yield from sent[party]
                over.wait(60)

            calls += [
                WorkerCall(cluster.client._channels[p], wire.JOB, requests(p), timeout=60)
                for p in fields
            ]
        try:
            time.sleep(0.5)
            job = _JobInThread(hosts, "analyst", 20, 1)
            started = time.monotonic()
            assert not isinstance(job.end(), BaseException), job.outcome
            seconds = time.monotonic() - started
            print(f"a job beside some given to {every} only: {seconds:.2f} s")
            assert seconds < 8  # incomplete ones end after 12 s
            errors = [
                next(e for e in _read_events(call) if e["event"] == "error") for call in calls
            ]
            reasons = [event["message"] for event in errors]
            assert sum("has no job" in reason for reason in reasons) >= len(every), reasons
            assert all(
                "has no job" in reason or "before its turn" in reason for reason in reasons
            ), reasons
        finally:
            over.set()
            end_calls(calls)


def _read_events(call: Any) -> Iterator[dict[str, Any]]:
    reader = wire.JobStreamReader(call)
    while (event := reader.next_event()) is not None:
        yield event
        if event["event"] == "error":
            return


def test_an_interrupted_client_cancels_its_job_on_all_three_workers(
    hosts: Hosts, tmp_path: Path
) -> None:
    hosts.ensure()
    before = [hosts.log(p).count("failed") for p in range(3)]
    begun = hosts.log(2).count("begins")
    with (tmp_path / "err").open("wb") as err:
        process = hosts.processes.start(
            *("-m", "tfe_bench", "sort", "--cluster", str(hosts.cluster), "--client", "analyst"),
            *("--n", "60000", "--repeat", "500"),
            stderr=err,
        )
    hosts.processes.wait_for(lambda: hosts.log(2).count("begins") > begun, "the job begins")
    time.sleep(1.0)
    process.send_signal(signal.SIGINT)
    struck = time.monotonic()
    assert process.wait(30) == 130
    assert remove_announcement((tmp_path / "err").read_text()) == "tfe_bench: interrupted\n"
    hosts.processes.wait_for(
        lambda: all(hosts.log(p).count("failed") > before[p] for p in range(3)), "it ends", 10
    )
    print(f"all three ended it {time.monotonic() - struck:.2f} s after Ctrl-C")
    with Cluster(hosts.cluster, "analyst") as cluster:
        answer = cluster.client.status()[2]
        assert isinstance(answer, dict) and answer["jobs"] == []


@pytest.mark.parametrize("party", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_a_worker_told_to_stop_cancels_the_job_and_the_next_one_runs_after_its_restart(
    hosts: Hosts, party: int
) -> None:
    hosts.ensure()
    pids = {p: w.pid for p, w in hosts.workers.items()}
    kept = Cluster(hosts.cluster, "analyst")
    running = _start_long_job(hosts)
    waiting = _start_short_job(hosts)
    started = time.monotonic()
    assert hosts.stop(party) == 0
    stopped = time.monotonic() - started
    for job in (running, waiting):
        error = job.end(30)
        assert isinstance(error, ClusterError), error
        assert f"Party {party}" in str(error) or f"party {party}" in str(error)
    hosts.start(party)
    hosts.wait_ready(party)
    ready = time.monotonic()
    # Also over connections that stayed open.
    with kept:
        result = kept.run("sort", {}, {"keys": PrivateInput(np.arange(9)[::-1].copy())})
    np.testing.assert_array_equal(result.outputs["keys"], np.arange(9))
    seconds = time.monotonic() - ready
    print(f"stopped in {stopped:.2f} s; next job {seconds:.2f} s after the worker was ready")
    assert seconds < 5 + 4  # 5 s are required; the rest is a margin for a busy machine
    assert all(hosts.workers[p].pid == pids[p] for p in range(3) if p != party)
    assert "Traceback" not in hosts.log(party)


def test_submit_takes_files_and_parameters_and_writes_results(hosts: Hosts, tmp_path: Path) -> None:
    hosts.ensure()
    table = tmp_path / "people.csv"
    table.write_text("name,salary\nann,3.5\nbob,1.25\ncy,2.0\n")
    result = tmp_path / "result.npz"
    where = ("--cluster", str(hosts.cluster), "--client", "analyst")
    done = hosts.command(
        *("submit", "sort", *where, "--param", "descending=true", "--param", "algorithm=network"),
        *("--input", f"keys={table}#salary", "--output", str(result)),
    )
    assert done.returncode == 0, done.stderr
    assert "submitted" in done.stderr
    with np.load(result) as outputs:
        np.testing.assert_array_equal(outputs["keys"], [3.5, 2.0, 1.25])
        np.testing.assert_array_equal(outputs["indices"], [0, 2, 1])
    for arguments, code, word in (
        (("--param", "x"), 2, "--param"),
        (("--input", "keys"), 2, "--input"),
        (("--output", str(tmp_path / "x.txt")), 2, ".npz"),
        (("--output", str(tmp_path / "missing" / "x.npz")), 10, "missing"),
        (("--input", f"keys={table}#wages"), 10, "wages"),
    ):
        done = hosts.command("submit", "sort", *where, *arguments)
        assert (done.returncode, done.stdout) == (code, ""), done.stderr
        assert word in done.stderr and "Traceback" not in done.stderr
    done = hosts.command("submit", "sroted", *where)
    assert done.returncode == 2 and "sroted" in done.stderr
    done = hosts.command("cancel", "00000000", *where)
    assert done.returncode == 2 and "no job of this client" in done.stderr


def test_logs_name_the_party_and_the_job_and_hold_no_value(hosts: Hosts) -> None:
    from tests.cluster.conftest import wait_until

    hosts.ensure()
    job = _JobInThread(hosts, "analyst", 20, 1)
    assert not isinstance(job.end(), BaseException)
    for party in range(3):

        def find_lines(party: int = party) -> list[str]:
            return [line for line in hosts.log(party).splitlines() if job.job[:12] in line]

        wait_until(lambda: len(find_lines()) >= 2, "the job's end is logged")
        assert all(f"[party {party}]" in line for line in find_lines())
        assert str(_SECRET)[:9] not in hosts.log(party)


def test_status_names_a_worker_that_does_not_answer(hosts: Hosts) -> None:
    hosts.ensure(1)
    done = hosts.command("status", "--cluster", str(hosts.cluster), "--client", "analyst")
    assert done.returncode == 20
    assert "Party 1 does not answer" in done.stderr and "party 0: up" in done.stdout


def test_a_running_worker_of_another_version_is_named_with_both(
    hosts: Hosts, tmp_path: Path
) -> None:
    """Run party 2 from a copy of the package with another version."""
    import tfe_bench
    from tfe_bench.errors import VersionMismatch

    # (the package alone, without other installed packages; links of a checkout become folders)
    own, copy = Path(tfe_bench.__file__).parent, tmp_path / "other"
    shutil.copytree(own, copy / "tfe_bench", ignore=shutil.ignore_patterns("__pycache__"))
    init = copy / "tfe_bench" / "__init__.py"
    init.write_text(init.read_text().replace('__version__ = "', '__version__ = "9.'))
    hosts.ensure(2)
    from tests.cluster.conftest import environment

    with (hosts.folder / "party2.log").open("wb") as out:
        hosts.workers[2] = hosts.processes.start(
            *("-m", "tfe_bench", "worker", "--party", "2", "--cluster", str(hosts.cluster)),
            out=out,
            env=environment(PYTHONPATH=str(copy)),
            cwd=copy,
        )
    hosts._runs[2] = hosts.cluster / "other"
    hosts.wait_ready(2)
    version = tfe_bench.__version__
    with (
        Cluster(hosts.cluster, "analyst") as cluster,
        raises(VersionMismatch, "members-differ", received=version, expected=f"9.{version}"),
    ):
        cluster.run("sort", {}, {"keys": PrivateInput(np.arange(3))})
    done = hosts.command("doctor", "--cluster", str(hosts.cluster), "--client", "analyst", "--json")
    assert done.returncode == 1, done.stderr
    failed = {c["name"]: c for c in json.loads(done.stdout) if c["status"] == "FAIL"}
    assert set(failed) == {"party 2: versions"}
    assert tfe_bench.__version__ in failed["party 2: versions"]["remedy"]

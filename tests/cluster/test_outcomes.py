"""A worker's log: every refusal once, with client, program and reason, and no value."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.cluster.conftest import wait_until
from tfe_bench.cluster import wire
from tfe_bench.cluster.client import Client, new_job
from tfe_bench.cluster.policy import WorkerPolicy
from tfe_bench.cluster.requests import PrivateInput
from tfe_bench.cluster.worker import memory, outcomes
from tfe_bench.cluster.worker.callers import CallerAuthenticator
from tfe_bench.cluster.worker.job_queue import JobQueue
from tfe_bench.errors import PolicyError, QueueFull, TfeBenchError

if TYPE_CHECKING:
    from tests.cluster.conftest import Trio

LIMITS: dict[str, Any] = {"max_inputs": 5}
SECRET = 271828182845
_X = {"x": PrivateInput(np.full(3, SECRET))}

# Checks that may refuse a job before its inputs are read, by their place.
POLICY = [name for name in vars(WorkerPolicy) if name.startswith("permit_")]
OTHERS: list[tuple[type, str]] = [
    (JobQueue, "hold"),
    (JobQueue, "enter"),
    (CallerAuthenticator, "read_first_message"),
]


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[str], list[str]]]:
    """Return the log's lines that contain a word."""
    caplog.set_level(logging.INFO, "tfe_bench.worker")
    yield lambda word: [m for m in caplog.messages if word in m]


@pytest.fixture(autouse=True)
def _full_allowance(trio: Trio) -> None:
    for worker in trio.workers:
        worker._host.outcomes._windows.clear()


def _submit_refused(
    client: Client, program: str = "plain", **parameters: Any
) -> tuple[str, Exception]:
    job = new_job()
    with pytest.raises(TfeBenchError) as caught:
        client.run(program, parameters, _X, job=job)
    return job[:12], caught.value


def _once_each(trio: Trio, lines: Callable[[str], list[str]], word: str) -> list[str]:
    wait_until(trio.idle, "the job is gone", 20)
    matching = [line for line in lines(word) if "begins" not in line]
    # (the client disconnects at the first refusal, possibly before other workers have checked its
    # job)
    assert 1 <= len(matching) <= 3, matching
    assert len({line for line in matching if "Party" in line}) == sum(
        "Party" in m for m in matching
    )
    return matching


@pytest.mark.parametrize("method", POLICY)
def test_every_refusal_of_the_policy_is_logged_once_with_client_program_job_and_reason(
    trio: Trio,
    lines: Callable[[str], list[str]],
    monkeypatch: pytest.MonkeyPatch,
    method: str,
) -> None:
    def refuse(self: WorkerPolicy, *_: object) -> None:
        raise PolicyError(f"Party {self.party} has a seeded reason for {method}.")

    monkeypatch.setattr(WorkerPolicy, method, refuse)
    monkeypatch.setattr(memory, "_MUCH", 0)
    client = trio.client("analyst")
    client.shaping = (0, 1 << 30) if method == "permit_shaping" else None
    job, error = _submit_refused(client)
    assert f"seeded reason for {method}" in str(error)
    for line in _once_each(trio, lines, job):
        assert "is refused" in line and "(plain, client analyst)" in line
        assert "PolicyError: Party" in line and f"seeded reason for {method}" in line
        assert str(SECRET) not in line


@pytest.mark.parametrize(("kind", "method"), OTHERS)
def test_a_refusal_before_the_submission_is_known_is_logged_with_the_client(
    trio: Trio,
    lines: Callable[[str], list[str]],
    monkeypatch: pytest.MonkeyPatch,
    kind: type,
    method: str,
) -> None:
    def refuse(*_: object, **__: object) -> Any:
        raise QueueFull(f"A seeded reason for {method}.")

    monkeypatch.setattr(kind, method, refuse)
    _submit_refused(trio.client("guest"))
    word = f"seeded reason for {method}"
    wait_until(trio.idle, "the job is gone", 20)
    # (the dealer holds no bytes of inputs)
    assert 1 <= len(lines(word)) <= (2 if method == "hold" else 3)
    assert all("guest" in line and "QueueFull" in line for line in lines(word))


@pytest.mark.parametrize(
    ("program", "parameters", "about", "told"),
    [
        ("serve", {"name": "risk", "deployment": "0" * 32}, 'serve of "risk"', "has no model"),
        ("undeploy", {"name": "risk"}, 'undeploy of "risk"', "has no inputs"),
        ("srot", {}, "srot", "UsageError: No installed package"),
        ("query", {"plan": {"tables": 5}}, "query, client", "UsageError"),
        (
            "plain",
            {"name": "\x1b[31m\nb" * 99, "fail": SECRET},
            'of "?[31m b',
            "UsageError",
        ),
    ],
)
def test_what_does_not_exist_or_fit_is_logged_by_its_name_alone(
    trio: Trio,
    lines: Callable[[str], list[str]],
    program: str,
    parameters: dict[str, Any],
    about: str,
    told: str,
) -> None:
    job, _ = _submit_refused(trio.client("analyst"), program, **parameters)
    for line in _once_each(trio, lines, job):
        assert about in line and told in line, line
        assert line.isprintable() and len(line) < 1200
        assert str(SECRET) not in line


def test_a_question_that_is_refused_is_logged(
    trio: Trio, lines: Callable[[str], list[str]]
) -> None:
    client = trio.client("guest")
    with pytest.raises(TfeBenchError):
        client.ask(1, wire.MODELS, of="nothing of this kind")
    [line] = lines("is refused")
    assert "models" in line and "guest" in line and "Expected a kind of stored values" in line


def test_a_client_that_is_refused_again_and_again_writes_few_lines_and_a_count(
    trio: Trio, lines: Callable[[str], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outcomes, "WINDOW_SECONDS", 2.0)
    client, other = trio.client("analyst"), trio.client("guest")

    def ask(who: Client, times: int) -> None:
        for _ in range(times):
            with pytest.raises(TfeBenchError):
                who.ask(2, wire.MODELS, of="nothing")

    ask(client, outcomes.MOST_LINES + 15)
    assert len(lines("of analyst is refused")) == outcomes.MOST_LINES
    ask(other, 1)  # each client has its own limit
    assert len(lines("of guest is refused")) == 1
    wait_until(lambda: lines("client analyst: 15 more refusals"), "the rest is counted", 10)
    ask(client, 1)
    assert len(lines("of analyst is refused")) == outcomes.MOST_LINES + 1


def test_a_job_that_ends_well_is_logged_with_its_figures(
    trio: Trio, lines: Callable[[str], list[str]]
) -> None:
    job = new_job()
    trio.client("analyst").run("sort", {}, {"keys": _X["x"]}, job=job)
    wait_until(lambda: len(lines(f"{job[:12]} is done")) == 3, "all three are done", 20)
    for line in lines(job[:12]):
        assert "(sort, client analyst)" in line
    for line in lines(f"{job[:12]} is done"):
        result = re.search(r": (\d+\.\d\d) s, (\d+) bytes of inputs here, (\d+) bytes sent", line)
        assert result is not None and int(result[2]) == 24 and int(result[3]) > 0, line

"""The order of jobs: first come, first served, within limits."""

from __future__ import annotations

import threading

import pytest

from tfe_bench.cluster.queueing import JobQueue, Place
from tfe_bench.errors import ClusterError, QueueFull


def _entered(queue: JobQueue, client: str, told: list[int] | None = None) -> Place:
    place = queue.enter(client)
    if told is not None:
        place.move = told.append
    return place


def test_ready_jobs_run_in_the_order_in_which_they_came() -> None:
    queue = JobQueue(0, 9, 9)
    first, second, third = (_entered(queue, name) for name in ("a", "b", "a"))
    for place in (third, first, second):
        queue.set_ready(place)
    order = []
    for _ in range(3):
        turn = queue.next()
        assert turn is not None
        order.append(turn)
        queue.leave(turn)
    assert order == [first, second, third]


def test_a_job_that_a_worker_lacks_is_overtaken() -> None:
    queue = JobQueue(0, 9, 9)
    told: list[int] = []
    late = _entered(queue, "a", told)
    ready = _entered(queue, "b")
    queue.set_ready(ready)
    assert queue.next() is ready
    queue.set_ready(late)
    assert told == [1] and queue.before(late) == 1
    queue.leave(ready)
    assert told == [1, 0]
    assert queue.next() is late


def test_whoever_waits_is_told_when_somebody_before_it_leaves() -> None:
    queue = JobQueue(0, 9, 9)
    told: list[list[int]] = [[], [], []]
    places = [_entered(queue, "a", each) for each in told]
    for place in places:
        queue.set_ready(place)
    assert queue.next() is places[0]
    queue.leave(places[1])
    queue.leave(places[1])  # twice is once
    assert told == [[], [1], [2, 1]]
    queue.leave(places[0])
    assert told[2] == [2, 1, 0]
    assert queue.others("a") == (False, 0) and queue.others("b") == (False, 1)


def test_limits_are_refused_by_name_and_free_again() -> None:
    queue = JobQueue(2, 3, 2)
    one = queue.enter("a")
    queue.enter("a")
    with pytest.raises(QueueFull, match=r"Party 2 takes 2 jobs of one client.*max_jobs_per_client"):
        queue.enter("a")
    queue.enter("b")
    with pytest.raises(QueueFull, match=r"Party 2 takes 3 jobs at a time.*max_jobs ") as caught:
        queue.enter("c")
    assert isinstance(caught.value, ClusterError) and caught.value.exit_code == 20
    queue.leave(one)
    queue.enter("a")


def test_closing_ends_whoever_waits_for_a_job() -> None:
    queue = JobQueue(0, 3, 2)
    got: list[Place | None] = []
    thread = threading.Thread(target=lambda: got.append(queue.next()))
    thread.start()
    queue.close()
    thread.join(10)
    assert got == [None]

"""The order of jobs: clients take turns, each first come, first served, within limits."""

from __future__ import annotations

import threading

import pytest

from tests.refusals import raises
from tfe_bench.cluster.policy import WorkerPolicy
from tfe_bench.cluster.worker.job_queue import JobQueue, QueueSlot
from tfe_bench.errors import ClusterError, PolicyError, QueueFull


def _make_queue(party: int, total: int, per_client: int, **limits: int) -> JobQueue:
    return JobQueue(
        WorkerPolicy(party, max_jobs=total, max_jobs_per_client=per_client, **limits)  # type: ignore[arg-type]
    )


def _enter_queue(queue: JobQueue, client: str, positions: list[int] | None = None) -> QueueSlot:
    place = queue.enter(client)
    if positions is not None:
        place.on_move = positions.append
    return place


def test_ready_jobs_run_in_the_order_in_which_they_came() -> None:
    queue = _make_queue(0, 9, 9)
    first, second, third = (_enter_queue(queue, name) for name in ("a", "b", "a"))
    for place in (third, first, second):
        queue.set_ready(place)
    order = []
    for _ in range(3):
        turn = queue.take_next()
        assert turn is not None
        order.append(turn)
        queue.finish_turn(turn)
    assert order == [first, second, third]


def test_a_client_with_many_jobs_delays_another_ones_job_by_one_of_its_own() -> None:
    queue = _make_queue(0, 16, 8)
    order: list[str] = []
    positions: list[int] = []

    def submit(client: str) -> None:
        queue.set_ready(_enter_queue(queue, client, positions if client == "one" else None))

    for _ in range(8):
        submit("many")
    for i in range(6):
        if i == 2:
            submit("one")  # behind six waiting jobs of the other client
        turn = queue.take_next()
        assert turn is not None
        order.append(turn.client)
        queue.finish_turn(turn)
        queue.release_slot(turn)
        if turn.client == "many":
            submit("many")  # it keeps as many in flight as it may
            with raises(QueueFull, "too-many-jobs", operation="max_jobs_per_client", expected=8):
                queue.enter("many")
    assert order == ["many", "many", "one", "many", "many", "many"]
    assert positions == []  # (nothing before it: no turn was under way)


def test_three_clients_take_turns_and_each_ones_jobs_keep_their_order() -> None:
    queue = _make_queue(0, 16, 8)
    slots = {name: [queue.enter(name) for _ in range(3)] for name in ("a", "b", "c")}
    for name in ("a", "b", "c"):
        for slot in slots[name]:
            queue.set_ready(slot)
    assert [queue.count_before(slot) for slot in slots["b"]] == [1, 4, 7]
    taken = []
    for _ in range(9):
        turn = queue.take_next()
        assert turn is not None
        taken.append(turn)
        queue.finish_turn(turn)
    assert taken == [slots[name][i] for i in range(3) for name in ("a", "b", "c")]


def test_a_job_that_a_worker_lacks_is_overtaken() -> None:
    queue = _make_queue(0, 9, 9)
    positions: list[int] = []
    late = _enter_queue(queue, "a", positions)
    ready = _enter_queue(queue, "b")
    queue.set_ready(ready)
    assert queue.take_next() is ready
    queue.set_ready(late)
    assert positions == [1] and queue.count_before(late) == 1
    queue.finish_turn(ready)
    assert positions == [1, 0]
    assert queue.take_next() is late


def test_whoever_waits_is_told_when_somebody_before_it_leaves() -> None:
    queue = _make_queue(0, 9, 9)
    positions: list[list[int]] = [[], [], []]
    places = [_enter_queue(queue, "a", each) for each in positions]
    for place in places:
        queue.set_ready(place)
    assert queue.take_next() is places[0]
    queue.release_slot(places[1])
    queue.release_slot(places[1])  # a second call has no effect
    assert positions == [[], [1], [2, 1]]
    queue.finish_turn(places[0])
    assert positions[2] == [2, 1, 0]
    assert queue.count_others("a") == (False, 0) and queue.count_others("b") == (False, 1)


def test_limits_are_refused_by_name_and_free_again() -> None:
    queue = _make_queue(2, 3, 2)
    one = queue.enter("a")
    queue.enter("a")
    with raises(QueueFull, "too-many-jobs", operation="max_jobs_per_client", expected=2, party=2):
        queue.enter("a")
    queue.enter("b")
    with raises(QueueFull, "too-many-jobs", operation="max_jobs", expected=3, party=2) as caught:
        queue.enter("c")
    assert isinstance(caught.value, ClusterError) and caught.value.exit_code == 20
    queue.release_slot(one)
    queue.enter("a")


def test_closing_ends_whoever_waits_for_a_job() -> None:
    queue = _make_queue(0, 3, 2)
    got: list[QueueSlot | None] = []
    thread = threading.Thread(target=lambda: got.append(queue.take_next()))
    thread.start()
    queue.close()
    thread.join(10)
    assert got == [None]


def test_a_place_is_held_until_its_turn_is_over_and_its_client_has_left() -> None:
    for client_first in (True, False):
        queue = _make_queue(0, 1, 1)
        place = queue.enter("a")
        queue.set_ready(place)
        assert queue.take_next() is place
        first, then = (
            (queue.release_slot, queue.finish_turn)
            if client_first
            else (queue.finish_turn, queue.release_slot)
        )
        first(place)
        with pytest.raises(QueueFull):
            queue.enter("a")
        assert queue.count_others("b") == (client_first, 0)
        then(place)
        queue.enter("a")


def test_bytes_are_limited_for_a_job_a_client_and_all_and_go_with_their_place() -> None:
    queue = _make_queue(1, 9, 9, max_bytes_per_job=10, max_bytes_per_client=15, max_bytes=20)
    first, second, third = (queue.enter(name) for name in ("a", "a", "b"))
    with raises(PolicyError, "too-many-bytes", operation="max_bytes_per_job", expected=10, party=1):
        queue.hold(first, 11)
    queue.hold(first, 10)
    with raises(QueueFull, "too-many-bytes", operation="max_bytes_per_client", expected=15):
        queue.hold(second, 6)
    queue.hold(second, 5)
    with raises(QueueFull, "too-many-bytes", operation="max_bytes", expected=20):
        queue.hold(third, 6)
    queue.hold(first, 0)
    queue.hold(third, 10)
    queue.release_slot(third)
    queue.hold(first, 10)

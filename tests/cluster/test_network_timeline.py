"""Predicted times: graphs whose time is known, counted protocols, and the messages of a run."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from tfe_bench import LocalCluster
from tfe_bench.cluster import network_timeline, profiles
from tfe_bench.cluster.counted_jobs import count_job_messages
from tfe_bench.cluster.jobs import InputSpec
from tfe_bench.cluster.network_timeline import Timeline, simulate_network
from tfe_bench.cluster.profiles import NetworkProfile
from tfe_bench.cluster.requests import PrivateInput, SubmittedJob
from tfe_bench.protocols.session.cost import Cost
from tfe_bench.protocols.session.message_graph import Exchange, MessageGraph

# 1 s one way, 1000 bytes/s: a message of 1000 bytes takes 1 s on its line and 1 s on its way.
SLOW = NetworkProfile("slow", 1.0, 8000.0, "wan", False, "")


def build_exchange(
    sent: int = 0,
    dealt: int = 0,
    sources: Sequence[int] = (),
    *,
    rounds: int = 1,
    dealer: int = 0,
    step: int = 0,
    mask_sources: Sequence[int] = (),
    dealer_learns: bool = False,
) -> Exchange:
    """Return an exchange: bytes of each evaluator and of the dealer's material."""
    cost = Cost(8 * dealt, 8 * sent, 8 * sent, rounds, rounds + (dealt > 0))
    return Exchange(step, dealer, cost, frozenset(sources), frozenset(mask_sources), dealer_learns)


def simulate_exchanges(*exchanges: Exchange, **options: Any) -> Timeline:
    return simulate_network(MessageGraph(list(exchanges)), SLOW, (0.0, 0.0, 0.0), **options)


def test_a_round_takes_its_line_and_the_delay() -> None:
    timeline = simulate_exchanges(build_exchange(1000))
    assert timeline.seconds == pytest.approx(2.0)
    assert timeline.lines == pytest.approx((0.0, 1.0, 1.0))
    assert timeline.path == pytest.approx({"line": 1.0, "delay": 1.0, "computing": 0.0})
    assert timeline.parties == pytest.approx((0.0, 2.0, 2.0))


def test_rounds_follow_each_other_and_independent_ones_do_not() -> None:
    assert simulate_exchanges(build_exchange(), build_exchange(0, 0, [0])).seconds == 2.0
    assert simulate_exchanges(build_exchange(), build_exchange()).seconds == 1.0
    assert simulate_exchanges(build_exchange(rounds=3)).seconds == 3.0
    assert simulate_exchanges().seconds == 0.0


def test_two_lines_send_at_the_same_time_one_line_in_sequence() -> None:
    def deal(dealer: int) -> Exchange:
        return build_exchange(0, 1000, rounds=0, dealer=dealer)

    assert simulate_exchanges(deal(0), deal(1), deal(2)).seconds == pytest.approx(2.0)
    one_line = simulate_exchanges(deal(0), deal(0), deal(0))
    assert one_line.seconds == pytest.approx(4.0) and one_line.largest_part == "line"
    assert one_line.lines == pytest.approx((3.0, 0.0, 0.0))


def test_material_is_hidden_behind_rounds() -> None:
    """Material of 500 bytes takes half a round, so that only the first one delays the rounds."""
    chain = [build_exchange(0, 500, [i - 1] if i else []) for i in range(4)]
    timeline = simulate_exchanges(*chain)
    assert timeline.seconds == pytest.approx(0.5 + 1 + 4) and timeline.largest_part == "delay"
    # twice a round: the line bounds
    chain = [build_exchange(0, 2000, [i - 1] if i else []) for i in range(4)]
    timeline = simulate_exchanges(*chain)
    assert timeline.seconds == pytest.approx(4 * 2 + 1 + 1) and timeline.largest_part == "line"


def test_an_answer_waits_for_a_chunk_of_material_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    material = build_exchange(0, 5000, rounds=0, dealer=0)
    answer = build_exchange(100, dealer=1, dealer_learns=True)  # by parties 2 and 0
    for chunk, waited in ((500, 0.5), (10**6, 5.0)):
        monkeypatch.setattr(network_timeline, "CHUNK_BYTES", chunk)
        timeline = simulate_exchanges(material, answer)
        assert timeline.parties[1] == pytest.approx(waited + 0.1 + 1)


def test_a_dealer_waits_at_the_gate_until_its_material_is_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chain = build_exchange(0, 1000), build_exchange(0, 1000, [0])
    assert simulate_exchanges(*chain).seconds == pytest.approx(4.0)
    # Used at 2 s, reported at 3 s: the second material is sent until 4 s and arrives at 5 s.
    monkeypatch.setattr(network_timeline, "MAX_AHEAD_BYTES", 999)
    assert simulate_exchanges(*chain).seconds == pytest.approx(6.0)


def test_a_dealer_is_at_most_four_graph_calls_ahead() -> None:
    steps = [build_exchange(step=s, dealt=3000 if s == 4 else 0) for s in range(6)]
    # Peers end call 0 at 1 s; call 4 begins at the dealer at 2 s, its material arrives at 6 s.
    assert simulate_exchanges(*steps).seconds == pytest.approx(6 + 1 + 1)
    steps[3], steps[4] = (dataclasses.replace(steps[7 - s], step=s) for s in (3, 4))
    assert simulate_exchanges(*steps).seconds == pytest.approx(4 + 1 + 2)


def test_a_dealer_that_learns_a_result_waits_for_it() -> None:
    reveal = build_exchange(100, dealer_learns=True)
    assert simulate_exchanges(reveal).parties[0] == pytest.approx(1.1)
    second = build_exchange(0, 1000, step=1)
    assert simulate_exchanges(reveal, second).seconds == pytest.approx(1.1 + 2 + 1)


def test_material_under_exchanged_masks_waits_for_them() -> None:
    first = build_exchange(dealer=2)  # its evaluators are parties 0 and 1
    second = build_exchange(0, 1000, [0], dealer=0, mask_sources=[0])
    assert simulate_exchanges(first, second).seconds == pytest.approx(1 + 2 + 1)
    third = build_exchange(0, 1000, [0], dealer=0)
    assert simulate_exchanges(first, third).seconds == pytest.approx(2 + 1)


def test_computing_is_distributed_over_the_exchanges_of_a_party() -> None:
    graph = MessageGraph([build_exchange(1000), build_exchange(1000, 0, [0])])
    timeline = simulate_network(graph, SLOW, (0.0, 4.0, 6.0))
    assert timeline.computing == pytest.approx((0.0, 4.0, 6.0))
    # Party 1 sends at 2 s, so that party 2 continues at 4 s; it computes 3 s in each round.
    assert timeline.seconds == pytest.approx(4 + 3 + 2)


# ---- counted jobs


def _jobs() -> Iterator[SubmittedJob]:
    keys = InputSpec("keys", (64,), 0)
    for algorithm in ("quick", "all-pairs", "network"):
        yield SubmittedJob("sort", {"algorithm": algorithm}, (keys,))
    for name, shape in (("relu", (100,)), ("exp", (100,)), ("max", (50, 4)), ("softmax", (5, 10))):
        yield SubmittedJob("operation", {"operation": name}, (InputSpec("x", shape, 16),))
    x, y = (InputSpec(name, (8, 8), 16) for name in "xy")
    yield SubmittedJob("matmul", {}, (x, y))


JOBS = {f"{j.program} {next(iter(j.parameters.values()), '')}".strip(): j for j in _jobs()}


@pytest.mark.parametrize("job", JOBS.values(), ids=list(JOBS))
def test_lines_carry_the_counted_bytes_and_more_bandwidth_is_never_slower(
    job: SubmittedJob,
) -> None:
    graph = count_job_messages(job)
    assert graph is not None and graph.exchanges
    for name in ("wan", "net1", "net3"):
        network, before = profiles.get_profile(name), float("inf")
        for factor in (1, 2, 5, 50):
            rate = factor * network.bits_per_second
            faster = dataclasses.replace(network, bits_per_second=rate)
            timeline = simulate_network(graph, faster)
            carried = [seconds * rate / 8 for seconds in timeline.lines]
            assert carried == pytest.approx(graph.sent_by_party)
            assert timeline.seconds <= before + 1e-9
            assert timeline.seconds == pytest.approx(sum(timeline.path.values()))
            before = timeline.seconds
        # the rounds alone, and each line alone, take no longer
        assert before >= timeline.path["delay"] and before >= max(timeline.lines)


def test_a_local_network_takes_the_computing_time_of_a_party_at_least() -> None:
    graph = count_job_messages(JOBS["operation softmax"])
    assert graph is not None
    timeline = simulate_network(graph, profiles.get_profile("local"), (1.0, 2.0, 3.0))
    assert 3.0 <= timeline.seconds <= 6.0 and timeline.lines == (0.0, 0.0, 0.0)


def test_a_program_that_needs_stored_values_is_not_counted() -> None:
    assert count_job_messages(SubmittedJob("query", {}, ())) is None
    assert count_job_messages(SubmittedJob("nothing", {}, ())) is None


# ---- the wire


def _list_sent_bytes(parts: Sequence[dict[str, Any]]) -> list[tuple[int, int, int]]:
    """Return the bytes that parties 0, 1 and 2 sent at each site, in the order of sites."""
    sent: dict[tuple[int, int, int], list[int]] = {}
    for p, part in enumerate(parts):
        for values in part["events"]:
            e = dict(zip(part["fields"], values, strict=True))
            if e["kind"] == 0 and e["site"]:
                place = e["step"], e["site"], e["iteration"]
                sent.setdefault(place, [0, 0, 0])[p] += e["bytes"]
    return [(a, b, c) for _, (a, b, c) in sorted(sent.items())]


def _sum_bytes(columns: Sequence[Sequence[float]]) -> list[tuple[float, ...]]:
    return list(
        itertools.accumulate(
            map(tuple, columns), lambda a, b: tuple(x + y for x, y in zip(a, b, strict=True))
        )
    )


@pytest.mark.parametrize("name", ["sort all-pairs", "operation relu", "operation max", "matmul"])
def test_the_wire_carries_the_counted_exchanges_site_by_site(
    shared_cluster: LocalCluster, name: str
) -> None:
    """After each counted exchange, the parties have sent as much as after some site, in order."""
    job = JOBS[name]
    rng = np.random.default_rng(1)
    inputs = {
        spec.name: PrivateInput(rng.integers(-1000, 1000, spec.shape), spec.fractional_bits)
        for spec in job.inputs
    }
    parameters = {**job.parameters, "trace": True, "repeat": 1, "warm_up": 1}
    result = shared_cluster.run(job.program, parameters, inputs)
    assert result.submitted == SubmittedJob(job.program, parameters, job.inputs)
    graph = count_job_messages(result.submitted)
    assert graph is not None
    wire = _sum_bytes(_list_sent_bytes([m["trace"] for m in result.measured]))
    counted = _sum_bytes([e.sent_by_party for e in graph.exchanges])
    assert wire[-1] == counted[-1]
    assert set(counted) <= set(wire) or set(wire) <= set(counted)

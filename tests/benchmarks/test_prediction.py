"""Prediction: the time of a run on a network."""

from __future__ import annotations

from typing import Any

import pytest

from tests.refusals import raises
from tfe_bench.benchmarks import prediction
from tfe_bench.cluster import profiles
from tfe_bench.errors import UsageError
from tfe_bench.protocols.session.cost import Cost
from tfe_bench.protocols.session.message_graph import Exchange, MessageGraph


def test_delay_counts_once_a_round_and_the_busiest_host_sends_at_its_rate() -> None:
    wan, net3 = profiles.get_profile("wan"), profiles.get_profile("net3")
    seconds = prediction.modeled_seconds(wan, 0.5, 10, (44_000_000, 1, 0))
    assert seconds == pytest.approx(0.5 + 10 * 0.02 + 1.0)
    assert prediction.modeled_seconds(net3, 0.25, 0, (0, 0, 0)) == 0.25


def test_an_unknown_network_is_refused() -> None:
    with raises(UsageError, "unknown-name"):
        prediction.predict_run_times([_make_timing(0.0)] * 3, "wann", 1.0)


def test_only_the_first_graph_call_waits_for_the_dealers_material() -> None:
    # steps of three parties each: (total, online)
    steps = [[(1, 0), (3, 2), (3, 2)], [(0, 0), (5, 4), (5, 3)]]
    assert prediction.critical_path_rounds(steps) == 3 + 4
    assert prediction.critical_path_rounds([]) == 0


def test_computing_is_what_the_busiest_party_did_not_wait() -> None:
    waits = [(0.0, 0.4, 0.5), (0.2, 0.0, 0.1), (0.0, 0.0, 0.0)]
    busy = prediction.busy_party_seconds([1.0, 1.0, 0.2], waits)
    assert busy == pytest.approx((0.1, 0.7, 0.2))
    waits = [(1.0, 0.0, 0.0)] * 3
    assert prediction.busy_party_seconds([0.1, 0.1, 0.1], waits) == (0.0, 0.0, 0.0)


def _make_timing(waited: float) -> dict[str, Any]:
    return {
        "rounds": [[2, 1]],
        "frames": [0, 500, 500],
        "breakdown": {"run": 1.0, "waiting": [0.0, waited, 0.0]},
    }


# One round of 125,000 bytes of each evaluator.
MESSAGES = MessageGraph([Exchange(0, 0, Cost(0, 1_000_000, 1_000_000, 1, 1))])


def test_a_local_run_foretells_lan_and_wan_a_shaped_one_is_compared() -> None:
    workers = [_make_timing(0.5), _make_timing(0.9), _make_timing(0.6)]
    local = prediction.predict_run_times(workers, "local", 1.0, MESSAGES)
    assert set(local["seconds"]) == {"lan", "wan"} and local["ratio"] is None
    assert local["rounds"] == 2 and local["bytes"] == 1000
    assert local["compute_seconds"] == pytest.approx(0.5)
    shaped = prediction.predict_run_times(workers, "net2", 1.04, MESSAGES)
    # Party 2 computes 0.4 s; the wire carried 3000 bytes where 250,000 were counted.
    expected = 0.4 + 0.01 + 1500 * 8 / 100e6
    assert shaped["seconds"]["net2"] == pytest.approx(expected)
    assert shaped["ratio"] == pytest.approx(1.04 / expected)
    assert shaped["line_seconds"]["net2"] == pytest.approx([0.0, 0.00012, 0.00012])
    assert shaped["path"]["net2"] == pytest.approx(
        {"line": 0.00012, "delay": 0.01, "computing": 0.4}
    )
    assert max(shaped["party_seconds"]["net2"]) == shaped["seconds"]["net2"]


def test_a_run_whose_messages_are_unknown_has_no_predicted_seconds() -> None:
    for messages in (None, MessageGraph(), MessageGraph(MESSAGES.exchanges, is_complete=False)):
        made = prediction.predict_run_times([_make_timing(0.5)] * 3, "wan", 1.0, messages)
        assert made["seconds"] == {} and made["ratio"] is None and made["rounds"] == 2

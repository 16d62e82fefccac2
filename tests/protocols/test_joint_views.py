"""All messages that each party receives, together, disclose nothing: see joint_views.py.

A walk over the catalogue. On the same traced run of each entry, the log of masks and the cost on
the wire are read.
"""

from __future__ import annotations

import functools

import pytest

from tests.protocols.catalogue import JOINT
from tests.protocols.deviations import (
    count_elements,
    list_deviations,
    list_single_deviations,
    sample_deviations,
)
from tests.protocols.joint_views import Outcome, check_entry
from tests.protocols.pads import assert_counters, words_under_one_pad
from tfe_bench.cluster.simulate import assert_costs
from tfe_bench.protocols.session.counting import Private, cost_of

EDGES = (0, 1, 63, 64, 65)
OPENINGS = {"reveal", "reveal_bits"}
SCALABLE = [name for name, entry in JOINT.items() if entry.scalable]
every_entry = pytest.mark.parametrize(
    ("name", "dealt_by"),  # (conftest keeps only one value of parameters called `dealer`)
    [
        pytest.param(name, d, marks=[pytest.mark.slow] * (entry.slow or d != i % 3))
        for i, (name, entry) in enumerate(JOINT.items())
        for d in range(3)
    ],
)


@functools.cache
def examine_entry(name: str, dealer: int, seed: int) -> Outcome:
    """Examine an entry, also with a sample of deviations."""
    return check_entry(JOINT[name], dealer, deviations=sample_deviations(seed, name))


@every_entry
def test_all_that_a_party_receives_is_simulatable_together(
    name: str, dealt_by: int, process_seed: int
) -> None:
    outcome = examine_entry(name, dealt_by, process_seed)
    assert set(JOINT[name].sites) <= set(outcome.names.values())
    assert sum(outcome.regions) > 0
    assert outcome.unexplained == ([], [], [])


@every_entry
def test_each_counter_carries_one_word_and_none_overlap(
    name: str, dealt_by: int, process_seed: int
) -> None:
    """Read the log of two runs; test_pad_log.py checks that words of many elements differ."""
    pads = examine_entry(name, dealt_by, process_seed).pads
    assert words_under_one_pad(pads) == 0
    assert_counters(pads, *range(3))


@every_entry
def test_the_wire_carries_the_declared_cost(name: str, dealt_by: int, process_seed: int) -> None:
    entry = JOINT[name]
    if entry.counted and entry.run:
        shape = (entry.n,)
        operand = Private(shape, entry.fractional_bits, limbs=entry.limbs)
        cost = cost_of(entry.run, operand, operand, graphs=entry.whole)
        assert_costs(examine_entry(name, dealt_by, process_seed).calls, cost, dealt_by)


@every_entry
def test_the_wire_carries_the_declared_slots(name: str, dealt_by: int, process_seed: int) -> None:
    """Compare the slots with all received messages; the declared cost equals their sum, see above.

    Each declared slot is on the wire: a slot without an entry of the catalogue fails.
    """
    outcome = examine_entry(name, dealt_by, process_seed)
    declared = outcome.declared[0]
    assert outcome.declared == [declared] * 3
    sent, received = [0] * 3, set()
    for party, sizes in enumerate(outcome.sizes):
        for message, size in sizes.items():
            dealer, slots = declared[message.site]
            slot, route = (
                slots[message.slot],
                tuple((p - dealer) % 3 for p in (message.source, party)),
            )
            assert count_elements(slot, 8 * size) is not None, outcome.names[message.site]
            sent[message.source] += 8 * size
            received.add((message.site, message.slot, route))
    # (the channel keeps the last message of a material, which no receive waits for)
    kept = {site for site, at in outcome.names.items() if at == "material"}
    assert kept or sent == [bits for bits, _ in outcome.calls]
    assert received == {
        (site, number, route)
        for site, (_, slots) in declared.items()
        for number, slot in slots.items()
        for route in slot.routes
        if site not in kept
    }


# ---- a party that alters the messages that it sends


def assert_nothing_is_learned(outcome: Outcome) -> None:
    """Check what a deviating party receives; if something is opened, that the check finds it."""
    opens = not OPENINGS.isdisjoint(outcome.names.values())
    for done in outcome.deviating:
        assert opens or done.keeps_sizes, done.deviation
        assert opens or not done.unexplained, (done.deviation, done.unexplained)


@every_entry
def test_a_party_that_alters_its_messages_learns_nothing(
    name: str, dealt_by: int, process_seed: int
) -> None:
    """Sample the alterations. Each party alters all of its messages, hence each slot."""
    assert_nothing_is_learned(examine_entry(name, dealt_by, process_seed))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "dealt_by"),
    [(name, i % 3) for i, (name, entry) in enumerate(JOINT.items()) if not entry.slow],
)
def test_no_alteration_teaches_a_party_anything(
    name: str, dealt_by: int, process_seed: int
) -> None:
    """Alter all messages of each party in each way, and each slot by itself in one way.

    Where a protocol opens what depends on altered values, the check must find it.
    """
    sampled = examine_entry(name, dealt_by, process_seed)
    sent = {
        (message.source, sampled.names[message.site], message.slot)
        for sizes in sampled.sizes
        for message in sizes
    }
    deviations = list_deviations() + list_single_deviations(sent)
    outcome = check_entry(JOINT[name], dealt_by, deviations=deviations)
    assert_nothing_is_learned(outcome)
    opens = not OPENINGS.isdisjoint(outcome.names.values())
    assert opens == any(done.unexplained for done in outcome.deviating)


@pytest.mark.parametrize(
    ("name", "n"),
    [
        pytest.param(name, n, marks=[] if name == "inject_small" else [pytest.mark.slow])
        for name in SCALABLE
        for n in EDGES
    ],
)
def test_no_size_makes_it_otherwise(name: str, n: int) -> None:
    outcome = check_entry(JOINT[name], n % 3, n)
    assert n == 0 or sum(outcome.regions) > 0
    assert outcome.unexplained == ([], [], [])

"""The check of joint_views.py catches faults, and its limits are known.

A new protocol needs a fault in its entry: an error that does not change its result.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.protocols.catalogue import ENTRIES, FAULTS
from tests.protocols.deviations import list_deviations
from tests.protocols.entry import Entry
from tests.protocols.joint_views import check_entry, explain_regions
from tests.protocols.seeded import Patch
from tfe_bench.cluster import seeds
from tfe_bench.protocols.ring import arithmetic, truncation
from tfe_bench.protocols.session import io, ops, slots
from tfe_bench.protocols.session.party import K1, K2, K3, Party
from tfe_bench.protocols.session.sharing import Shared


@pytest.mark.parametrize("name", FAULTS)
def test_a_seeded_fault_is_caught(name: str, monkeypatch: Patch) -> None:
    entry, seed = FAULTS[name]
    seed(monkeypatch)
    assert any(check_entry(ENTRIES[entry]).unexplained)


# ---- the check itself


def test_an_order_is_found_if_there_is_one() -> None:
    assert explain_regions({"a": {1}, "b": {1, 2}, "c": {1, 2, 3}}) == {1: "a", 2: "b", 3: "c"}
    assert explain_regions({"a": {1, 2}, "b": {1, 2}}) == {}  # their difference is in the clear
    assert explain_regions({"a": {1}, "b": {2, 3}}) == {1: "a"}
    assert explain_regions({"a": {1}}, {"a": set()}) == {}


def toy_entry(kind: str) -> Entry:
    """Send E2 two messages of three words from E1, with the masks of the named kind."""

    def protocol(party: Party, x: Shared, y: Shared) -> Any:
        import tensorflow as tf

        to_e2 = slots.declare_sent((slots.E1, slots.E2))
        s = party.site("toy", dealer=x.dealer, slots={0: to_e2, 1: to_e2})
        six = tf.constant([6], tf.int64)
        if s.is_e2:
            if kind == "a key that its receiver holds":
                s.mask(K3, 0, six)
            return [s.recv(tf.constant([3], tf.int64), s.e1, slot) for slot in (0, 1)]
        pad = None if kind == "a key that its receiver holds" else s.mask(K1, 0, six)
        if s.is_dealer:
            return pad
        if pad is None:
            pad = s.mask(K3, 0, six)
        first, second = pad[:3], pad[3:]
        up = tf.constant(32, tf.int64)
        a, b = {
            "a pad for each word": (first, second),
            "one pad after the other": (first * x.m + second, first),
            "one pad for two messages": (first, first),
            "no pad": (first, 0 * first),
            "one word for all": (first[:1], second),
            "a half of a pad": (first, tf.bitwise.bitwise_and(second, 2**32 - 1)),
            "the other half of a pad": (first, tf.bitwise.left_shift(second, up)),
            "a pad and then itself": (first, first - x.l1 - x.m),
            "a key that its receiver holds": (first, second),
        }[kind]
        s.send(x.l1 + a, s.e2, 0)
        s.send(x.l1 * x.m + b, s.e2, 1)
        return None

    return Entry(protocol, ("toy",))


@pytest.mark.parametrize(
    ("kind", "bare"),
    [
        ("a pad for each word", 0),
        ("one pad after the other", 0),
        ("one pad for two messages", 6),
        ("no pad", 3),
        ("one word for all", 3),
        ("a half of a pad", 3),
        ("the other half of a pad", 3),
        ("a pad and then itself", 6),
        ("a key that its receiver holds", 6),
    ],
)
def test_the_check_knows_what_hides(kind: str, bare: int) -> None:
    outcome = check_entry(toy_entry(kind))
    assert outcome.regions == (0, 0, 6)
    assert [len(u) for u in outcome.unexplained] == [0, 0, bare]


def test_a_result_whose_mask_moves_it_is_not_hidden_by_that_mask() -> None:
    """Find a truncation's carry: rounding depends on the masks that hide earlier messages."""
    carry = Entry(
        lambda p, x, y: io.reveal(p, truncation.truncate(p, arithmetic.mul(p, x, y), 16)),
        ("reveal",),
        n=8,
        publishes=True,
    )
    assert any(check_entry(carry).unexplained)


def answer_by_fill(party: Party, x: Shared, y: Shared) -> Any:
    """Answer E2 without a mask if bits that its message leaves open are not 0."""
    import tensorflow as tf

    s = party.site(
        "toy",
        dealer=x.dealer,
        slots={
            0: slots.declare_sent((slots.E2, slots.E1), width=7),
            1: slots.declare_sent((slots.E1, slots.E2)),
        },
    )
    three = tf.constant([3], tf.int64)
    if s.is_dealer:
        return s.mask(K2, 0, three)
    if s.is_e2:
        s.send(s.pack_masked(x.m, K2, 0, "add", 7), s.e1, 0)
        return s.recv(three, s.e1, 1)
    fill = s.recv(tf.constant([3], tf.int64), s.e2, 0, tf.uint8)[2] // 32
    pad = s.mask(K1, 1, three)
    s.send(tf.where(tf.equal(fill, 0), x.l1 + pad, x.l1), s.e2, 1)
    return None


def test_a_leak_that_a_party_has_to_provoke_is_caught() -> None:
    """Seed a fault that shows only where a party departs from the protocol."""
    entry = Entry(answer_by_fill, ("toy",))
    outcome = check_entry(entry, deviations=list_deviations())
    assert outcome.unexplained == ([], [], [])
    assert {done.deviation.party for done in outcome.deviating if done.unexplained} == {2}


@pytest.mark.parametrize("call", ["session_replay", "session_alter"])
def test_masks_are_replayed_and_altered_in_simulations_only(call: str) -> None:
    native = ops.native()
    handle = native.session_new(0, bytes(48), 0)
    try:
        arguments = (1,) if call == "session_replay" else (0, 0, None, 0)
        assert "in simulated sessions only" in native.call_for_error(call, handle, *arguments)
    finally:
        native.session_drop(handle)


# ---- a client's sharing: seeds to their holders, m to both evaluators


def hidden_from_an_evaluator(holds: int, limbs: int) -> bool:
    """Return whether a separate word of the seeds that E1 or E2 lacks hides each word of m.

    The words are those of m for two inputs.

    Args:
        holds: 0 for E1, which receives the first seed of each input, 1 for E2.
    """
    stream = seeds._stream
    values = np.random.default_rng(11).integers(-(2**63), 2**63, (2, 2 * limbs))

    def shared(seed: bytes = b"", word: int = 0) -> list[tuple[bytes, bytes, Any]]:
        def alter_stream(of: bytes, count: int) -> Any:
            ((begin, words),) = stream(of, count)
            words = words.copy()
            words[word] ^= -(of == seed)
            yield begin, words

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("os.urandom", np.random.default_rng(12).bytes)
            patch.setattr(seeds, "_stream", alter_stream)
            return [seeds.share_values_by_seeds(value, limbs) for value in values]

    base = shared()
    unknown = {s[1 - holds] for s in base} - {s[holds] for s in base}
    before = np.array([m for *_, m in base])
    changed = {
        (seed, word): {
            tuple(at) for at in np.argwhere(before != [m for *_, m in shared(seed, word)])
        }
        for seed in unknown
        for word in range(2 * limbs)
    }
    return len(explain_regions(changed)) == before.size


@pytest.mark.parametrize("limbs", [1, 2])
@pytest.mark.parametrize("holds", [0, 1])
def test_a_client_s_inputs_are_hidden_from_each_evaluator(holds: int, limbs: int) -> None:
    assert hidden_from_an_evaluator(holds, limbs)


@pytest.mark.parametrize(
    "fresh",
    [
        lambda: (b"one for all the ", b"inputs, the same"),
        lambda: (np.random.default_rng(0).bytes(16),) * 2,
    ],
    ids=["two inputs, the same seeds", "one seed for both holders"],
)
def test_a_seeded_fault_of_a_client_s_sharing_is_caught(fresh: Any, monkeypatch: Patch) -> None:
    monkeypatch.setattr(seeds, "fresh", fresh)
    assert not hidden_from_an_evaluator(0, 1)

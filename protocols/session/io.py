"""Input of private values, and their opening.

`reveal` is the only way in which a private value becomes public: search for it to find every
opening of a program.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tfe_bench.errors import UsageError
from tfe_bench.lazy_tensorflow import tf
from tfe_bench.protocols.session import openings, sizes
from tfe_bench.protocols.session.cost import Cost, packed_bits, words_for_bits
from tfe_bench.protocols.session.counting import CostParty
from tfe_bench.protocols.session.packing import pack_ring_words, receive_packed_ring_words
from tfe_bench.protocols.session.party import K1, K2, K3, Party
from tfe_bench.protocols.session.sharing import EvaluatorBits, Shared
from tfe_bench.protocols.session.slots import E1, E2, WORD, D, declare_exchanged, declare_sent

ROLES = ("dealer", "e1", "e2")


def share_input(
    party: Party,
    owner: int,
    value: tf.Tensor | None,
    shape: Any,
    fractional_bits: int = 0,
    dealer: int | None = None,
) -> Shared:
    """Share a value that one worker knows.

    The share that the owner cannot know is 0: for owner D m = 0, for E1 l2 = 0, for E2 l1 = 0.

    Args:
        value: int64 ring elements at the owner, None elsewhere.
        shape: public shape.

    Rounds: 1. Bits sent: the owner, 64 per element.
    """
    dealer = party.dealer if dealer is None else dealer
    if isinstance(party, CostParty):
        role = ROLES[(owner - dealer) % 3]
        bits = {"dealer": 0, "e1": 0, "e2": 0, role: 64 * math.prod(shape)}
        cost = Cost(**bits, rounds=0 if role == "dealer" else 1, with_dealing=1)
        return Shared(
            party.count_messages(cost, shape, dealer=dealer), None, None, dealer, fractional_bits
        )
    sender = (owner - dealer) % 3
    route = (sender, E1 if sender == E2 else E2)
    s = party.site(
        "input", owner, tuple(shape), fractional_bits, dealer=dealer, slots={0: declare_sent(route)}
    )
    zero = tf.zeros(shape, tf.int64)
    m = l1 = l2 = None
    if owner == s.d:
        if s.is_dealer:
            assert value is not None
            l1 = s.mask(K1, 0, shape)
            # under K1, l2 = -x - l1 is uniform to E2
            l2 = s.apply_mask(-value, K1, 0, "sub")
            s.send(l2, s.e2, run_ahead=True)
        elif s.is_e1:
            m, l1 = zero, s.mask(K1, 0, shape)
        else:
            m, l2 = zero, s.recv(shape, s.d)
    else:
        key = K1 if owner == s.e1 else K2
        drawn_mask = None if (s.is_e2 if key == K1 else s.is_e1) else s.mask(key, 0, shape)
        zero_mask = None if (s.is_e1 if key == K1 else s.is_e2) else zero
        l1, l2 = (drawn_mask, zero_mask) if key == K1 else (zero_mask, drawn_mask)
        if party.index == owner:
            assert value is not None
            m = s.apply_mask(value, key, 0, "add")
            s.send(m, s.other_evaluator)
        elif not s.is_dealer:
            m = s.recv(shape, owner)
    return Shared(m, l1, l2, s.dealer, fractional_bits)


def reveal(
    party: Party, x: Shared, to: int | None = None, what: str = openings.VALUES
) -> tf.Tensor | None:
    """Open a private tensor to all workers, or to one.

    Args:
        to: a party index; None opens it to all three parties.
        what: kind of the values, a plural noun: a job declares and lists what it opens.

    Returns:
        Ring elements, int64, signed (with an axis of 2 words if x is wide), at the parties that
        learn them; None elsewhere.

    Rounds: 1. Bits sent: 64 per word and learning party. From a ring of fewer bits only these bits
    are sent, packed, because the others may hold more information than the value. A truncated value
    discloses one comparison of its dropped bits as well (docs/threat_model.md, the carry bit),
    unless it comes from truncate(.., "exact").

    Raises:
        UsageError: `to` is no party.
        PolicyError: the job may not open values of this kind.
    """
    if to is not None and to not in (0, 1, 2):
        raise UsageError(
            f"reveal expects party 0, 1 or 2, or None for all. Received: to={to!r}.",
            code="unknown-party",
            operation="reveal",
            received=to,
        )
    if isinstance(party, CostParty):
        learners = ROLES if to is None else (ROLES[(to - x.dealer) % 3],)
        n = x.any.shape.num_elements()
        message_bits = packed_bits(n, 64 if x.limbs == 2 else x.ring_bits)
        senders = {"e1": "dealer", "e2": "e1", "dealer": "e2"}
        bits = {sender: message_bits * (learner in learners) for learner, sender in senders.items()}
        count = n // x.limbs
        party.openings.record_opening(what, count, count * x.ring_bits, to)
        return party.count_messages(
            Cost(**bits, rounds=1, with_dealing=1),
            x.any.shape,
            x,
            dealer_learns="dealer" in learners,
        )
    words = x.any.shape.num_elements()
    words = tf.size(x.any, tf.int64) if words is None else words
    party.declare_opening(what, words // x.limbs, x.ring_bits, to)
    shape = tf.shape(x.any, out_type=tf.int64)
    width = 64 if x.limbs == 2 else x.ring_bits
    learning_parties = (0, 1, 2) if to is None else (to,)
    # Each role lacks one part: D lacks m, E1 lacks l2, E2 lacks l1. A fixed sender provides it.
    s = party.site(
        "reveal",
        what,
        to,
        x.fractional_bits,
        dealer=x.dealer,
        slots={
            sender: declare_sent((sender, (sender + 1) % 3), width=width)
            for sender in (D, E1, E2)
            if (x.dealer + sender + 1) % 3 in learning_parties
        },
    )
    result = None
    if s.e1 in learning_parties:
        if s.is_dealer:
            s.send(_reduce_share_to_ring(x.l2, x), s.e1, slot=0)
        elif s.is_e1:
            result = _open_value(x.m, x.l1, receive_packed_ring_words(s, shape, s.d, 0, width), x)
    if s.e2 in learning_parties:
        if s.is_e1:
            s.send(_reduce_share_to_ring(x.l1, x), s.e2, slot=1)
        elif s.is_e2:
            result = _open_value(x.m, receive_packed_ring_words(s, shape, s.e1, 1, width), x.l2, x)
    if s.d in learning_parties:
        if s.is_e2:
            s.send(_reduce_share_to_ring(x.m, x), s.d, slot=2)
        elif s.is_dealer:
            result = _open_value(receive_packed_ring_words(s, shape, s.e2, 2, width), x.l1, x.l2, x)
    return result


def _reduce_share_to_ring(part: tf.Tensor | None, x: Shared) -> tf.Tensor:
    """Return a part of x that is held here modulo x's ring, as it is sent."""
    assert part is not None
    if x.limbs == 1:
        return pack_ring_words(part, x.ring_bits)
    bits_per_word = [min(64, max(0, x.ring_bits - 64 * word)) for word in range(2)]
    ring = [(1 << bits) - 1 if bits < 64 else -1 for bits in bits_per_word]
    return tf.bitwise.bitwise_and(part, tf.constant(ring, tf.int64))


def _open_value(m: Any, l1: Any, l2: Any, x: Shared) -> Any:
    """Return m - l1 - l2, read as a signed value of x's ring."""
    from tfe_bench.protocols.session import tensor_ops, wide

    unused = 64 * x.limbs - x.ring_bits

    def extend_ring_sign(a: Any) -> Any:
        return (
            tensor_ops.arithmetic_shift(tensor_ops.left_shift(a, unused), unused) if unused else a
        )

    if x.limbs == 1:
        return extend_ring_sign(tensor_ops.sub(tensor_ops.sub(m, l1), l2))
    value = wide.sub(wide.sub(m, l1), l2)
    low, high = (tensor_ops.strided_slice(value, np.s_[..., i]) for i in range(2))
    return tensor_ops.stack([low, extend_ring_sign(high)], axis=-1)


def reveal_bits(party: Party, bits: EvaluatorBits, what: str = "bits") -> tf.Tensor:
    """Open XOR-shared bits to all three workers, packed.

    Args:
        what: as in `reveal`.

    The evaluators exchange their shares. The dealer knows the PRF streams behind each share, so
    it receives s1 ^ r and s2 ^ r, where (r, r) is a sharing of zero from the evaluators' own key:
    it learns the sum, which is the opened bit, and nothing else. This takes one round less than
    forwarding the result.

    Rounds: 1. Bits sent: E1, E2 2 per bit each.
    """
    if isinstance(party, CostParty):
        party.openings.record_opening(what, int(bits.n), int(bits.n), None)
        evaluator_bits = 128 * words_for_bits(bits.n)
        return party.count_bit_messages(
            Cost(0, evaluator_bits, evaluator_bits, rounds=1, with_dealing=1),
            bits.n,
            bits,
            dealer_learns=True,
        )
    party.declare_opening(what, sizes.static_value(bits.n), 1)
    s = party.site(
        "reveal_bits",
        what,
        dealer=bits.dealer,
        slots={
            0: declare_exchanged(1, unit=WORD),
            1: declare_sent((E1, D), (E2, D), width=1, unit=WORD),
        },
    )
    n_words = sizes.vector_shape((sizes.static_value(bits.n) + 63) // 64)
    if s.is_dealer:
        padded = [s.recv(n_words, e, slot=1) for e in (s.e1, s.e2)]
        result = tf.bitwise.bitwise_xor(*padded)
        if bits.top is not None:
            raise UsageError(
                "Expected bits that the evaluators hold completely. Received: bits with a part "
                "at the dealer.",
                code="incomplete-bits",
                operation="reveal_bits",
            )
    else:
        assert bits.share is not None
        share = _keep_first_bits(bits.share, bits.n)
        zero = s.mask(K3, 0, n_words)
        s.send(tf.bitwise.bitwise_xor(share, zero), s.d, slot=1)
        result = tf.bitwise.bitwise_xor(share, s.swap(share, slot=0))
    return result


def _keep_first_bits(bits: tf.Tensor, n: tf.Tensor) -> tf.Tensor:
    """Return the first n bits; the padding bits of the last word are cleared."""
    remaining = n - 64 * tf.range(tf.size(bits, out_type=tf.int64), dtype=tf.int64)
    partial_mask = (
        tf.bitwise.left_shift(tf.ones_like(remaining), tf.clip_by_value(remaining, 0, 63)) - 1
    )
    return tf.bitwise.bitwise_and(
        bits, tf.where(remaining < 64, partial_mask, tf.constant(-1, tf.int64))
    )

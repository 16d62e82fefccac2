"""The exponential by exponent sharing modulo a Mersenne prime p = 2^q - 1.

The method of Kelkar et al. (USENIX Security 2022, section 4) in SPU's form for two parties
(semi2k exp_prime), adapted to the masked view: x log2 e = -lam log2 e + m log2 e, one part known to
D and the other to both evaluators, so that the product of the two powers needs no protocol. The
conversion from Z_p to the ring remains, which depends on whether the two shares wrap.
"""

from __future__ import annotations

from dataclasses import dataclass

from tfe_bench.lazy_tensorflow import tf
from tfe_bench.protocols.functions import exp_one_round
from tfe_bench.protocols.functions.exp_one_round import LN2, ExponentForm
from tfe_bench.protocols.ring import masked
from tfe_bench.protocols.ring import wide_arithmetic as ring
from tfe_bench.protocols.session import ops, sizes, slots
from tfe_bench.protocols.session.cost import Cost, packed_bits
from tfe_bench.protocols.session.counting import CostParty
from tfe_bench.protocols.session.party import K1, K2, Party
from tfe_bench.protocols.session.sharing import Shared


@dataclass(frozen=True)
class Prime(ExponentForm):
    """Parameters of the prime form.

    Attributes:
        q: p = 2^q - 1.
        extra: fractional bits of log2(e).
    """

    q: int
    extra: int

    @property
    def factor(self) -> int:
        """log2(e) as an integer."""
        return exp_one_round.encode_log2e(self.extra)

    @property
    def point(self) -> int:
        """Fractional bits of x log2(e)."""
        return self.fractional_bits + self.extra

    @property
    def highest_input(self) -> float:
        """Greatest x: the product stays below p / 4, although p / 2 suffices for exact factors."""
        return (self.q - 2 - self.offset - 2 * self.mantissa) * LN2

    @property
    def failure_probability(self) -> float:
        """Probability of a wrap of signed words: |x log2(e) + offset| 2^point / 2^ring_bits."""
        greatest = max(abs(self.lowest_input), abs(self.highest_input)) / LN2 + self.offset
        return float(greatest * 2.0 ** (self.point - self.ring_bits))

    def evaluate_exp(self, party: Party, x: Shared) -> Shared:
        """Compute e^x; see the module, and `tfe_bench.protocols.functions.exponential.exp`.

        D:  A = 2^(offset - lam log2 e) 2^mantissa mod p, A = u1 + u2; u1 = PRF(K1) mod p, u2 to E2
        E*: B = 2^(m log2 e) 2^mantissa mod p;  w_i = u_i B mod p;  c_i = [w_i < p/2]
        E1, E2 exchange c1 ^ a and c2 ^ b, a = PRF(K1), b = PRF(K2); D deals a b in the ring, and
        y = floor(w1 / 2^t) + ceil(w2 / 2^t) - (1 - c1 c2) 2^(q - t) is exchanged as ring shares.

        The words are read as signed; their sum wraps with probability |x log2 e + offset| 2^T/2^l.
        u1 is q bits of the PRF, and 2^q - 1 counts as 0: a bias of 2^-q.
        Error: 1 ulp and a relative 2^-mantissa + |x| 2^-(extra + 1).
        Rounds: 2 online (3 total). Bits sent: D 128, E1, E2 65 per element each (256 and 129 over
        Z_2^128), the single bits in whole bytes.
        """
        limbs = x.limbs
        if isinstance(party, CostParty):
            w = self.ring_bits * x.shape.num_elements()
            sent = w + packed_bits(x.shape.num_elements(), 1)
            m = party.count_messages(
                Cost(2 * w, sent, sent, rounds=2, with_dealing=3), x.any.shape, x
            )
            return Shared(m, None, None, x.dealer, self.fractional_bits, limbs)
        s = party.site(
            "exp_prime",
            self,
            dealer=x.dealer,
            slots={
                0: slots.declare_dealt(self.ring_bits, unit=slots.WORD),
                1: slots.declare_exchanged(1),
                2: slots.declare_dealt(self.ring_bits),
                3: slots.declare_exchanged(self.ring_bits),
            },
        )
        shape = tf.shape(x.any, out_type=tf.int64)
        n = sizes.tensor_size(x.any) // limbs
        y = below = product = None

        def to_elements(bit: tf.Tensor) -> tf.Tensor:
            """Return 0 and 1 per element as ring elements in x's shape."""
            if limbs == 2:
                bit = tf.stack([bit, tf.zeros_like(bit)], axis=-1)
            return tf.reshape(bit, shape)

        def low_bit(words: tf.Tensor) -> tf.Tensor:
            return tf.bitwise.bitwise_and(words, tf.constant(1, tf.int64))

        if s.is_dealer:
            exp_one_round.deal_factor(s, self, x, "prime", self.point)
            a, b = (low_bit(s.mask(key, 1, sizes.vector_shape(n))) for key in (K1, K2))
            product = to_elements(a * b)
        else:
            y, below = exp_one_round.share_exp_product(s, self, x, "prime", self.point)
        ab = masked.deal(s, product, shape, 2, 2)
        if not s.is_dealer:
            own_message = s.apply_mask(below, s.own_key, 1, "xor")
            received = s.swap(ops.module().tfe_bench_pack_words(x=own_message, width=1), slot=1)
            other_message = ops.module().tfe_bench_unpack_words(packed=received, n=n, width=1)
            own_message = low_bit(own_message)
            # c = o + (1 - 2 o) a at its owner; c1 c2 = o1 o2 + o2 s1 a + o1 s2 b + s1 s2 a b,
            # and o2 s1 a = o2 (c1 - o1).
            linear = other_message * (below - own_message) + (
                own_message * other_message if s.is_e2 else 0
            )
            sign = (
                own_message + other_message - 2 * own_message * other_message
            )  # s1 s2 = 1 - 2 (o1 ^ o2)
            both_below = ring.add_ring_elements(
                _small_numbers_to_ring_elements(linear, shape, limbs),
                ring.apply_sign_to_share(to_elements(sign), ab, limbs),
                limbs,
            )
            top = 1 << (self.q - self.drop)  # p / 2^t, rounded up
            y = ring.add_ring_elements(
                y,
                ring.multiply_ring_elements(
                    both_below, ring.encode_ring_constant(top, limbs), limbs
                ),
                limbs,
            )
            if s.is_e2:
                y = ring.subtract_ring_elements(y, ring.encode_ring_constant(top, limbs), limbs)
        return masked.exchange_masked(s, y, shape, 3, 3, scale=self.fractional_bits)


def _small_numbers_to_ring_elements(small: object, shape: object, limbs: int) -> object:
    """Return small signed numbers as ring elements in a shape."""
    if limbs == 2:
        sign = tf.bitwise.right_shift(small, tf.constant(63, tf.int64))
        small = tf.stack([small, sign], axis=-1)
    return tf.reshape(small, shape)


def plan_prime_exp(ring_bits: int, fractional_bits: int, softmax: bool = False) -> Prime:
    """Return the parameters for a ring and a scale.

    Over Z_2^128 those of SPU: p = 2^127 - 1, 23-bit mantissas, x from -31.8 to 22.1; for softmax
    from -54.0 to 0. Over Z_2^64, p = 2^61 - 1 and 12-bit mantissas: x from -13.1 to 10.3, at
    f = 16 with a wrap probability of 2^-30; for softmax 16 bits, from -18.0 to 0.

    Raises:
        UsageError: too many fractional bits.
    """
    highest = 20 if ring_bits == 64 else 61
    exp_one_round.check_exp_scale("prime", ring_bits, fractional_bits, 1, highest)
    if ring_bits == 128:
        return Prime(128, fractional_bits, 23, 79 if softmax else 47, 127, 24)
    extra = min(13, 29 - fractional_bits)
    mantissa, offset = (16, 27) if softmax else (12, 20)
    return Prime(64, fractional_bits, mantissa, offset, 61, extra)

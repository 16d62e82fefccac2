"""The textbook symmetric multiplication, kept as the plain reference.

Araki, Furukawa, Lindell, Nof, Ohara: High-Throughput Semi-Honest Secure
Three-Party Computation with an Honest Majority, CCS 2016, section 2.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from tfe_bench.errors import UsageError
from tfe_bench.lazy_tensorflow import tf
from tfe_bench.protocols.ring.checks import check_private_pair
from tfe_bench.protocols.session import slots
from tfe_bench.protocols.session.cost import Cost
from tfe_bench.protocols.session.counting import CostParty
from tfe_bench.protocols.session.party import K1, K2, K3, Party
from tfe_bench.protocols.session.sharing import Shared


def to_replicated(
    x: Shared, party: int, negate: Callable[[Any], Any] = operator.neg
) -> tuple[Any, Any]:
    """Return (x_i, x_{i+1}) of party i, with x = x_0 + x_1 + x_2."""
    by_index = {
        (x.dealer + 2) % 3: x.m,
        (x.dealer + 1) % 3: None if x.l1 is None else negate(x.l1),
        x.dealer: None if x.l2 is None else negate(x.l2),
    }
    return by_index[party], by_index[(party + 1) % 3]


def from_replicated(
    first_share: Any,
    second_share: Any,
    party: int,
    dealer: int,
    scale: int,
    negate: Callable[[Any], Any] = operator.neg,
) -> Shared:
    """Return the masked view of RSS shares (x_i, x_{i+1})."""
    parts: list[Any] = [None, None, None]
    parts[party], parts[(party + 1) % 3] = first_share, second_share
    m, x1, x0 = parts[(dealer + 2) % 3], parts[(dealer + 1) % 3], parts[dealer]
    l1, l2 = (None if part is None else negate(part) for part in (x1, x0))
    return Shared(m, l1, l2, dealer, scale)


def mul_replicated(party: Party, x: Shared, y: Shared) -> Shared:
    """Multiply: z_i = x_i (y_i + y_{i+1}) + x_{i+1} y_i + a_i, sent to party i-1; sum a_i = 0.

    Rounds: 1. Bits sent: 64 per element by every party.
    """
    check_private_pair("rss.mul", x, y, same_scale=False)
    if x.ring_bits != 64:
        raise UsageError(
            f"rss.mul works over Z_2^64. Received: {x!r}.",
            code="unsupported-ring",
            operation="rss.mul",
            received=repr(x),
        )
    scale = x.fractional_bits + y.fractional_bits
    if isinstance(party, CostParty):
        product = x.any * y.any
        bits = 64 * product.shape.num_elements()
        m = party.count_messages(
            Cost(bits, bits, bits, rounds=1, with_dealing=1),
            product.shape,
            x,
            y,
            dealer_learns=True,
        )
        return Shared(m, None, None, x.dealer, scale)
    s = party.site(
        "rss_mul",
        x.fractional_bits,
        y.fractional_bits,
        dealer=x.dealer,
        slots={0: slots.declare_sent(*((role, (role + 2) % 3) for role in range(3)))},
    )
    i = party.index
    own_x, next_x = to_replicated(x, i)
    own_y, next_y = to_replicated(y, i)
    z = own_x * (own_y + next_y) + next_x * own_y
    # a_i = F(k_i) - F(k_{i+1}); K2 = k_d, K1 = k_{d+1}, K3 = k_{d+2}
    names = {s.d: K2, s.e1: K1, s.e2: K3}
    shape = tf.shape(z, out_type=tf.int64)
    z = z + s.mask(names[i], 0, shape) - s.mask(names[(i + 1) % 3], 0, shape)
    s.send(z, (i + 2) % 3)
    following = s.recv(shape, (i + 1) % 3)
    return from_replicated(z, following, i, x.dealer, scale)

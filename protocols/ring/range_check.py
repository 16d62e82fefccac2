"""Range checks: of single values, or of all values of a computation as one number.

`in_range` compares each value: private bits.

`RangeMonitor` checks millions of values at once, at almost no cost. Wherever a protocol narrows
a value to a small ring and continues with the narrowed value, the evaluators hold additive shares
of both. The two agree exactly where no bits were lost: the difference is 0 then, and its shares
are v1 and v2 = -v1. Each evaluator computes a digest of all its v with coefficients from the key
that only the evaluators have,

    h = s + sum_i r_i v_i mod p,   p = 2^61 - 1,   s, r_i = F_K3,

and the flag is h1 - h2, exchanged under a mask and reconstructed by the client alone: 0 if all
values were read correctly, and otherwise (except with probability 2^-61) another number, which is
random and discloses nothing more.
Source: universal hashing (Carter, Wegman, JCSS 1979); the use is
this project's.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from tfe_bench.errors import UsageError
from tfe_bench.lazy_tensorflow import tf
from tfe_bench.protocols.ring import arithmetic, compare, convert, logic, masked, shapes
from tfe_bench.protocols.ring.checks import check_private_64bit_tensor, is_integer_between
from tfe_bench.protocols.session import ops, slots, tensor_ops
from tfe_bench.protocols.session.counting import CostParty
from tfe_bench.protocols.session.party import K3, Party
from tfe_bench.protocols.session.sharing import MaskedBits, Shared

RING = 64
# Numbers of 61 bits may be equal modulo 2^61 - 1.
_MAX_COMPARED_BITS = 60


def in_range(party: Party, x: Shared, bits: int, exchanges: int | None = None) -> MaskedBits:
    """Return [-2^(bits-1) <= x < 2^(bits-1)] in ring units, exact for every x of Z_2^64.

    x' = x + 2^(bits-1), read as signed, is neither negative nor 2^bits or more.

    Args:
        bits: 2 to 63: the bits of a later comparison, or of a truncation (63).

    Rounds: exchanges + 2 online (exchanges + 3 total). Bits sent: two comparisons, an AND and
    three
        exchanges of bits.
    Raises:
        UsageError: another ring, or bits outside 2..63.
    """
    check_private_64bit_tensor("in_range", x, known=True)
    if not is_integer_between(bits, 2, RING - 1):
        raise UsageError(
            f"in_range takes 2 to 63 bits. Received: {bits!r}.",
            code="number-out-of-range",
            operation="in_range",
            received=bits,
            expected="2 to 63",
        )
    flat = x.map(lambda a: tensor_ops.tile(tensor_ops.reshape(a, [1, -1]), [2, 1]))
    n = flat.shape[1]
    half = 1 << (bits - 1)
    flat = arithmetic.add_constant(flat, np.array([[half], [-half]], np.int64))
    signs = convert.mask_bits(party, compare.msb(party, flat, compare.EXACT_BITS, exchanges))
    negative, below = (
        logic.rearrange_private_bits(
            signs,
            (2, n),
            lambda a, i=i: tensor_ops.strided_slice(a, i),  # type: ignore[misc]
            n,
        )
        for i in range(2)
    )
    inside = convert.mask_bits(party, logic.and_bits(party, [logic.invert_bits(negative), below]))
    return replace(inside, shape=tuple(x.shape.as_list()))


class RangeMonitor:
    """Collector, inside one graph, of values that are 0 if a computation is right.

    Args:
        rows: samples with flags of their own, the first axis of all recorded values.
        dealer: dealer of all of them.
    """

    def __init__(self, party: Party, rows: int, dealer: int) -> None:
        self._party, self._rows, self._dealer = party, rows, dealer
        self._digest: Any = None
        if isinstance(party, CostParty):
            self._digest = tensor_ops.SymbolicTensor(tensor_ops.Shape([rows]))
            return
        s = party.site("watch", rows, dealer=dealer)
        # s, so that a digest by itself is uniform
        self._digest = None if s.is_dealer else s.mask(K3, 0, [rows])

    @property
    def digest(self) -> Any:
        """Digest of all recorded shares, at the evaluators; loops carry it between iterations."""
        return self._digest

    @digest.setter
    def digest(self, value: Any) -> None:
        self._digest = value

    def record_zero(self, share: Any, width: int, low: int = 0) -> None:
        """Record shares that add up to 0 modulo 2^width if everything is right. Local.

        Args:
            share: int64 [rows, ...] at the evaluators, None at the dealer.
            low: number of low bits of the sum that are 0 in any case.
        """
        if low >= width:
            return  # no bits are lost
        if isinstance(self._party, CostParty):
            self._digest = tensor_ops.symbolic_result([self._rows], self._digest, share)
            return
        if width - low > _MAX_COMPARED_BITS:  # the higher bits separately
            self.record_zero(share, low + _MAX_COMPARED_BITS, low)
            low += _MAX_COMPARED_BITS
        s = self._party.site("watch_zero", width, low, dealer=self._dealer)
        if s.is_dealer:
            return
        self._digest = ops.module().tfe_bench_range_digest(
            call=s.ctx,
            share=tf.reshape(share, [self._rows, -1]),
            before=self._digest,
            site=s.number,
            dealer=s.dealer,
            width=width,
            low=low,
        )

    def record_range(self, x: Shared, low: int, high: int, exchanges: int | None = None) -> None:
        """Record whether low <= x <= high in ring units, exact for every x of Z_2^64.

        The evaluators' XOR shares of [x < low] and [x > high] are equal bits where these are 0:
        only the comparisons exchange messages.

        Args:
            x: [rows, ...], of the monitor's dealer.
            low, high: 0 <= low <= high < 2^62.

        Rounds: exchanges online (one more in total), parallel to later protocols. Bits sent: those
        of
            compare.msb of 64 bits for twice the elements.
        Raises:
            UsageError: another ring, number of rows or dealer, or invalid bounds.
        """
        check_private_64bit_tensor("within", x, known=True)
        if not (
            is_integer_between(low, 0, (1 << 62) - 1)
            and is_integer_between(high, low, (1 << 62) - 1)
        ):
            raise UsageError(
                f"within expects 0 <= low <= high < 2^62. Received: {low!r}, {high!r}.",
                code="number-out-of-range",
                operation="within",
                received=f"{low!r}, {high!r}",
            )
        if x.dealer != self._dealer or x.shape.rank < 1 or x.shape[0] != self._rows:
            raise UsageError(
                f"within expects {self._rows} rows, dealt by party {self._dealer}. Received: "
                f"{x!r}.",
                code="operand-mismatch",
                operation="within",
                received=repr(x),
            )
        flat = x.map(lambda a: tensor_ops.reshape(a, [self._rows, 1, -1]))
        # (where one difference wraps, the other one has its bit set)
        sides = [
            arithmetic.add_constant(flat, -low),
            arithmetic.add_constant(arithmetic.neg(flat), high),
        ]
        outside = compare.msb(self._party, shapes.concat(sides, 1), RING, exchanges)
        share = outside.share
        if not isinstance(self._party, CostParty) and share is not None:
            ones = ops.module().tfe_bench_unpack_bits(words=share, n=outside.n)
            share = ones if self._party.index == (self._dealer + 1) % 3 else -ones
        self.record_zero(share, 2)

    def compute_flag(self) -> Shared:
        """Return [rows]: 0 where all recorded values are right, else a random number that is not 0.

        Over the integers it is the difference of two numbers below 2^61 - 1. A violation is missed
        with probability 2^-61; a right computation never yields another number than 0.
        Rounds: 1. Bits sent: E1, E2 64 per row each.
        """
        s = self._party.site(
            "watch_flag", dealer=self._dealer, slots={0: slots.declare_exchanged()}
        )
        share = -self._digest if s.is_e2 else self._digest
        return masked.exchange_masked(s, share, [self._rows], 0)

"""Arrangements: private orders of rows that columns are moved into, and back from.

An arrangement is a secret shuffle (order/shuffle.py) and one vector that was opened after it: the
answers of a sort, or where each shuffled row belongs, which is a permutation that looks uniformly
random to every single party.  Columns move by the same shuffle under masks of their own, and then
by what is public.  Nothing else may ever be opened in a shuffled order: two vectors would tell how
they relate.  So an `Order` opens once and then refuses; what else is to be opened takes another.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tfe_bench.errors import ProtocolError, UsageError
from tfe_bench.protocols.order import select, shuffle, sort
from tfe_bench.protocols.ring import arithmetic, shapes, small_ring
from tfe_bench.protocols.ring.checks import is_from
from tfe_bench.protocols.session import local
from tfe_bench.protocols.session.counting import Counting
from tfe_bench.protocols.session.io import reveal
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared
from tfe_bench.protocols.tables import bits

# Bits of a key that one sort of words takes.
MOST_BITS = sort.MOST_KEY_BITS


def graph(party: Party, name: str, function: Callable[..., Any], *about: Any) -> Any:
    """The graph of an operator, kept for later uses.

    Args:
        about: what else the function depends on, beside the shapes and kinds of what it is given.
    """
    return party.cached_function((f"tables.{name}", *about), lambda: function)


class Order:
    """A secret permutation of n rows.

    Args:
        factors: drawn for it.
    """

    def __init__(self, party: Party, factors: shuffle.Factors, n: int) -> None:
        self._party, self._factors, self._n = party, factors, n
        self._spent = False

    def spend(self) -> None:
        """Says that something is about to be opened in this order.

        Raises:
            ProtocolError: something has been.
        """
        if self._spent:
            raise ProtocolError(
                "A second vector would be opened in the order of a shuffle, which tells how the "
                "two relate. Shuffle anew."
            )
        self._spent = True

    def open(self, column: Shared) -> Any:
        """Moves a column and makes it public: the only way to see anything in this order.

        Rounds: 3.  Bits sent: those of shuffle.move and of reveal to all.
        Raises:
            ProtocolError: something has been opened before.
        """
        self.spend()
        party = self._party

        def opened(factors: shuffle.Factors, x: Shared) -> Any:
            return reveal(party, _moved(party, factors, [x])[0])

        return graph(party, "open", opened)(self._factors, column)

    def again(self, columns: Sequence[Shared], positions: Any = None) -> list[Shared]:
        """Columns [n] in this order, or in the public rearrangement positions [m] of it.

        Rounds: 2.  Bits sent: those of shuffle.move.
        """
        party = self._party

        def moved(factors: shuffle.Factors, at: Any, *given: Shared) -> list[Shared]:
            return _moved(party, factors, given, at)

        return self._by_graph("again", moved, positions, columns)

    def undo(
        self, columns: Sequence[Shared], positions: Any = None, begin: int = 0
    ) -> list[Shared]:
        """Columns [n] in the rearrangement positions [n] of this order, moved back from it.

        Args:
            begin: as of `Arrangement.back`.

        Rounds: 2.  Bits sent: those of shuffle.undo.
        """
        party = self._party

        def moved(factors: shuffle.Factors, at: Any, *given: Shared) -> list[Shared]:
            rows = shuffle.undo(party, factors, [_row(c) for c in given], at, begin)
            return [_flat(c) for c in rows]

        return self._by_graph("undo", moved, positions, columns, begin)

    def _by_graph(
        self,
        name: str,
        function: Callable[..., Any],
        positions: Any,
        columns: Sequence[Shared],
        *about: int,
    ) -> list[Shared]:
        found: list[Shared] = []
        moving = graph(self._party, name, function, *about)
        for begin in range(0, len(columns), shuffle.MAX_COLUMNS):
            some = columns[begin : begin + shuffle.MAX_COLUMNS]
            found += moving(self._factors, positions, *some)
        return found


@dataclass(frozen=True, eq=False)
class Arrangement:
    """An order of n rows.

    Attributes:
        n: the number of rows.
        order: None where there is nothing to arrange.
        positions: int32 [n], public: row i of the arrangement is the shuffled row positions[i].
        then: another arrangement that follows.
    """

    n: int
    order: Order | None
    positions: Any
    then: Arrangement | None = None

    def forward(self, columns: Sequence[Shared]) -> list[Shared]:
        """Columns [n] in this order.  Rounds: 2.  Bits sent: those of shuffle.move.

        Raises:
            UsageError: columns of another size.
        """
        found = self._checked("forward", columns)
        if self.order is not None and found:
            found = self.order.again(found, self.positions)
        return found if self.then is None else self.then.forward(found)

    def back(self, columns: Sequence[Shared], begin: int = 0) -> list[Shared]:
        """Columns in this order where they were before.  Rounds: 2.  Bits sent: of shuffle.undo.

        Args:
            begin: the first row that is wanted, from 0 to n; those before it are not brought back.

        Raises:
            UsageError: columns of another size.
        """
        found = self._checked("back", columns)
        if self.then is not None:
            found = self.then.back(found)
        if self.order is None or not found:
            return [c.map(lambda a: local.at(a, np.s_[begin:])) for c in found]
        return self.order.undo(found, self.positions, begin)

    def followed_by(self, other: Arrangement) -> Arrangement:
        """This one and then another of as many rows."""
        then = other if self.then is None else self.then.followed_by(other)
        return Arrangement(self.n, self.order, self.positions, then)

    def _checked(self, name: str, columns: Sequence[Shared]) -> list[Shared]:
        for c in columns:
            if list(c.shape) != [self.n] or c.limbs != 1:
                raise UsageError(f"{name} moves columns of {self.n} words. Received: {c!r}.")
        return list(columns)


def nothing(n: int) -> Arrangement:
    """Rows as they are."""
    return Arrangement(n, None, None)


def by_target(party: Party, target: Shared) -> Arrangement:
    """Row i goes to target[i], a private permutation.

    Args:
        target: [n], of any ring that holds n - 1, read without a sign.

    Rounds: 3.  Bits sent: those of shuffle.move and reveal.
    Raises:
        ProtocolError: it is no permutation: a worker departs from the protocol.
    """
    n = int(target.shape[0])
    if n < 2:
        return nothing(n)
    order = _drawn(party, n, target.dealer)
    opened = order.open(target)
    if isinstance(party, Counting):
        return Arrangement(n, order, _abstract(n))
    places = opened.numpy()
    if target.bits:
        places &= (1 << target.bits) - 1
    positions = np.full(n, -1, np.int32)
    if places.min() >= 0 and places.max() < n:
        positions[places] = np.arange(n, dtype=np.int32)
    if positions.min() < 0:
        raise ProtocolError("The targets of rows are no permutation: a worker goes astray.")
    return Arrangement(n, order, positions)


def mixed(party: Party, columns: Sequence[Shared]) -> list[Shared]:
    """Columns [n], all in one order that nobody knows.

    Rounds: 2.  Bits sent: those of shuffle.move.
    """
    n = int(columns[0].shape[0])
    return list(columns) if n < 2 else _drawn(party, n, columns[0].dealer).again(columns)


def by_bit(party: Party, bit: Shared) -> Arrangement:
    """The rows whose bit is 1 first, then the others, each in their order.

    With c_i = bit_0 + .. + bit_i the targets are c_i - 1 for ones and c_n + i - c_i for zeros,
    modulo 2^p, as all of them are below n <= 2^p.

    Rounds: 5.  Bits sent: for p = log2 n those of b2a and select in Z_2^p, and of `by_target`: 14 p
    per row.
    """
    n = int(bit.shape[0])
    if n < 2:
        return nothing(n)
    p = sort.index_bits(n)

    def targets(bit: Shared) -> Shared:
        ones = bits.number(party, bit, p)
        before = ones.map(lambda a: local.cumsum(a, 0, False, False))
        count = before.map(lambda a: local.at(a, np.s_[n - 1 :]))
        index = np.arange(n, dtype=np.int64)
        others = arithmetic.moved(arithmetic.sub(count, before), index)
        firsts = arithmetic.moved(before, np.int64(-1))
        return small_ring.select(party, bits.masked_bits(bit), firsts, others)

    return by_target(party, graph(party, "targets", targets, n)(bit))


def by_keys(
    party: Party, keys: Sequence[tuple[Shared, int]], *, profile: str = "local"
) -> Arrangement:
    """Ascending by keys, the most significant first; equal ones stay in their order.

    Args:
        keys: ([n] of Z_2^64, bits): 0 <= key < 2^bits in every row, which is relied on and must be
            a fact; 64 and 63: any signed number, by itself.
        profile: network profile to plan the sort for.

    Keys of up to 62 bits together are one sort; others are sorted one after the other from the
    least significant, as these sorts are stable.

    Rounds and bits: those of `sort` without payload for each; the keys of a later one are moved.
    Raises:
        UsageError: no keys, or bits out of range.
        RangeError: keys out of their range.
    """
    if not keys:
        raise UsageError("An order wants keys. Received: none.")
    for key, k in keys:
        if not is_from(k, 1, 64) or key.ring_bits != 64:
            raise UsageError(f"A key has 1 to 64 bits of a word. Received: {k!r} of {key!r}.")
    n = int(keys[0][0].shape[0])
    if n < 2:
        return nothing(n)
    done: list[Arrangement] = []
    for group in _passes([k for _, k in keys]):
        columns = [keys[i][0] for i in group]
        for before in done:
            columns = before.forward(columns)
        widths = tuple(keys[i][1] for i in group)
        done.append(_sorted(party, columns, widths, profile))
    return functools.reduce(Arrangement.followed_by, done)


def _passes(widths: Sequence[int]) -> list[list[int]]:
    """Keys of one sort each, the sort of the least significant ones first."""
    found: list[list[int]] = []
    room = 0
    for i in reversed(range(len(widths))):
        if not found or widths[i] > room:
            found.append([])
            room = MOST_BITS
        found[-1].insert(0, i)
        room -= widths[i]
    return found


def composite(columns: Sequence[Shared], widths: Sequence[int]) -> Shared:
    """Keys as one number, the first the most significant.  Local."""
    key = columns[0]
    for column, width in zip(columns[1:], widths[1:], strict=True):
        key = arithmetic.add(arithmetic.mul_public(key, np.int64(1 << width)), column)
    return key


def at_ranks(
    party: Party, key: Shared, key_bits: int, ranks: Sequence[int], *, profile: str = "local"
) -> tuple[Order, Any]:
    """An order of n rows, and the public positions in it of those of some ranks by a key.

    Args:
        key: [n] of Z_2^64; as one of `by_keys`.
        ranks: public, each from 0 to n - 1.

    Rounds and bits: those of select.positions_of.  Errors: as `by_keys`.
    """
    order, moved, _ = _prepared(party, [key], (key_bits,), profile)
    return order, select.positions_of(party, moved, ranks, profile)


def first(
    party: Party, key: Shared, key_bits: int, count: int, *, profile: str = "local"
) -> tuple[Order, Any]:
    """An order of n rows, and the public positions in it of the first ones by a key, in order.

    Args:
        key: [n] of Z_2^64; as one of `by_keys`, with which these are the first rows.
        count: public, from 1 to n.

    Rounds and bits: those of select.first_of.  Errors: as `by_keys`.
    """
    order, moved, _ = _prepared(party, [key], (key_bits,), profile)
    return order, select.first_of(party, moved, count, profile)


def _prepared(
    party: Party, columns: Sequence[Shared], widths: tuple[int, ...], profile: str
) -> tuple[Order, Shared, str]:
    """An order that is about to be opened by comparisons, and keys in it."""
    n, dealer = int(columns[0].shape[0]), columns[0].dealer
    total = sum(widths)
    key_bits = total if total <= MOST_BITS else None

    def prepared(*given: Shared) -> Any:
        plain = [_plain(c) for c in given]
        lifted = sort.wide_keys(party, _row(composite(plain, widths)), False, True, key_bits)
        factors = shuffle.draw(party, 1, n, dealer)
        return factors, shuffle.move(party, factors, [lifted])[0]

    factors, moved = graph(party, "prepared", prepared, widths, n, dealer)(*columns)
    order = Order(party, factors, n)
    order.spend()
    return order, moved, sort.choose("auto", n, profile)


def _sorted(
    party: Party, columns: Sequence[Shared], widths: tuple[int, ...], profile: str
) -> Arrangement:
    order, moved, chosen = _prepared(party, columns, widths, profile)
    positions = sort.revealed_order(party, moved, chosen, profile)
    n = int(columns[0].shape[0])
    return Arrangement(n, order, _abstract(n) if isinstance(party, Counting) else positions[0])


def _drawn(party: Party, n: int, dealer: int) -> Order:
    factors = graph(party, "draw", lambda: shuffle.draw(party, 1, n, dealer), n, dealer)()
    return Order(party, factors, n)


def _plain(x: Shared) -> Shared:
    """Without its scale: keys are numbers of ring units."""
    return Shared(x.m, x.l1, x.l2, x.dealer)


def _row(x: Shared) -> Shared:
    """[n, ...] as [1, n, ...].  Local."""
    return shapes.expand_dims(x, 0)


def _flat(x: Shared) -> Shared:
    """[1, n, ...] as [n, ...].  Local."""
    return x.map(lambda a: local.squeeze(a, [0]))


def _moved(
    party: Party, factors: shuffle.Factors, columns: Sequence[Shared], positions: Any = None
) -> list[Shared]:
    moved = shuffle.move(party, factors, [_row(c) for c in columns], positions)
    return [_flat(c) for c in moved]


def _abstract(n: int) -> local.Abstract:
    return local.Abstract(local.Shape([n]))

"""Private permutations of rows: columns are moved into an order and back.

A private permutation is a secret shuffle (order/shuffle.py) and one vector that was opened after
it: the comparisons of a sort, or the target of each shuffled row, which is a permutation that looks
uniformly random to each single party. Columns follow the same shuffle under fresh masks, and then
the public part. Nothing else may ever be opened in a shuffled order: two opened vectors would
reveal how they relate. A `SecretShuffle` therefore opens once and then refuses; another opening
requires another shuffle.
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
from tfe_bench.protocols.ring.checks import is_integer_between
from tfe_bench.protocols.session import openings, tensor_ops
from tfe_bench.protocols.session.counting import CostParty
from tfe_bench.protocols.session.io import reveal
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared
from tfe_bench.protocols.tables import bits

# Most bits of a key in one sort of words.
MAX_KEY_BITS = sort.MAX_KEY_BITS


def cached_graph(party: Party, name: str, function: Callable[..., Any], *key_parts: Any) -> Any:
    """Return the graph of an operator, cached for later calls.

    Args:
        key_parts: all values that the function depends on, except the shapes and types of its
            arguments.
    """
    return party.cached_function((f"tables.{name}", *key_parts), lambda: function)


class SecretShuffle:
    """A secret permutation of n rows.

    Args:
        factors: drawn for this shuffle alone.
    """

    def __init__(self, party: Party, factors: shuffle.ShuffleFactors, n: int) -> None:
        self._party, self._factors, self._n = party, factors, n
        self._is_used = False

    def use_once(self) -> None:
        """Record that a vector is about to be opened in this order.

        Raises:
            ProtocolError: a vector was already opened.
        """
        if self._is_used:
            raise ProtocolError(
                "A second vector would be opened in the order of a shuffle, which reveals "
                "how the two relate. Draw another shuffle.",
                code="already-opened",
                operation="shuffle",
            )
        self._is_used = True

    def open_column(self, column: Shared) -> Any:
        """Shuffle a column and make it public: the only opening in this order.

        Rounds: 3. Bits sent: those of shuffle.apply_permutation and of reveal to all.
        Raises:
            ProtocolError: a vector was already opened.
        """
        self.use_once()
        party = self._party

        def open_shuffled(factors: shuffle.ShuffleFactors, x: Shared) -> Any:
            return reveal(
                party, _permute_columns(party, factors, [x])[0], what=openings.SHUFFLED_POSITIONS
            )

        return cached_graph(party, "open", open_shuffled)(self._factors, column)

    def apply(self, columns: Sequence[Shared], positions: Any = None) -> list[Shared]:
        """Return columns [n] in this order, or at the public positions [m] of it.

        Rounds: 2. Bits sent: those of shuffle.apply_permutation.
        """
        party = self._party

        def apply_shuffle(
            factors: shuffle.ShuffleFactors, row_positions: Any, *shuffled_columns: Shared
        ) -> list[Shared]:
            return _permute_columns(party, factors, shuffled_columns, row_positions)

        return self._run_graph("again", apply_shuffle, positions, columns)

    def apply_inverse(
        self, columns: Sequence[Shared], positions: Any = None, begin: int = 0
    ) -> list[Shared]:
        """Return columns [n], given at the positions [n] of this order, in their original order.

        Args:
            begin: as for `PrivatePermutation.apply_inverse`.

        Rounds: 2. Bits sent: those of shuffle.apply_inverse.
        """
        party = self._party

        def undo_shuffle(
            factors: shuffle.ShuffleFactors, row_positions: Any, *shuffled_columns: Shared
        ) -> list[Shared]:
            rows = shuffle.apply_inverse(
                party, factors, [_add_row_axis(c) for c in shuffled_columns], row_positions, begin
            )
            return [_drop_row_axis(c) for c in rows]

        return self._run_graph("undo", undo_shuffle, positions, columns, begin)

    def _run_graph(
        self,
        name: str,
        function: Callable[..., Any],
        positions: Any,
        columns: Sequence[Shared],
        *key_parts: int,
    ) -> list[Shared]:
        results: list[Shared] = []
        column_graph = cached_graph(self._party, name, function, *key_parts)
        for begin in range(0, len(columns), shuffle.MAX_COLUMNS):
            batch = columns[begin : begin + shuffle.MAX_COLUMNS]
            results += column_graph(self._factors, positions, *batch)
        return results


@dataclass(frozen=True, eq=False)
class PrivatePermutation:
    """A private permutation of n rows.

    Attributes:
        n: the number of rows.
        secret_shuffle: None for the identity.
        positions: int32 [n], public: row i of the result is the shuffled row positions[i].
        successor: another permutation that is applied afterwards.
    """

    n: int
    secret_shuffle: SecretShuffle | None
    positions: Any
    successor: PrivatePermutation | None = None

    def apply(self, columns: Sequence[Shared]) -> list[Shared]:
        """Return columns [n] in this order. Costs: those of shuffle.apply_permutation (2 rounds).

        Raises:
            UsageError: columns have another size.
        """
        permuted = self._check_columns("forward", columns)
        if self.secret_shuffle is not None and permuted:
            permuted = self.secret_shuffle.apply(permuted, self.positions)
        return permuted if self.successor is None else self.successor.apply(permuted)

    def apply_inverse(self, columns: Sequence[Shared], begin: int = 0) -> list[Shared]:
        """Return columns in original order. Costs: those of shuffle.apply_inverse (2 rounds).

        Args:
            begin: the first row of the result, from 0 to n; rows before it are not moved back.

        Raises:
            UsageError: columns have another size.
        """
        restored = self._check_columns("back", columns)
        if self.successor is not None:
            restored = self.successor.apply_inverse(restored)
        if self.secret_shuffle is None or not restored:
            return [c.map(lambda a: tensor_ops.strided_slice(a, np.s_[begin:])) for c in restored]
        return self.secret_shuffle.apply_inverse(restored, self.positions, begin)

    def followed_by(self, other: PrivatePermutation) -> PrivatePermutation:
        """Return the composition of this permutation and then another one of the same size."""
        successor = other if self.successor is None else self.successor.followed_by(other)
        return PrivatePermutation(self.n, self.secret_shuffle, self.positions, successor)

    def _check_columns(self, name: str, columns: Sequence[Shared]) -> list[Shared]:
        for c in columns:
            if list(c.shape) != [self.n] or c.limbs != 1:
                raise UsageError(
                    f"Expected columns of {self.n} words. Received: {c!r}.",
                    code="shape-mismatch",
                    operation=name,
                    received=repr(c),
                    expected=f"[{self.n}]",
                )
        return list(columns)


def identity_permutation(n: int) -> PrivatePermutation:
    """Return the permutation that leaves rows in their order."""
    return PrivatePermutation(n, None, None)


def permute_by_target(party: Party, target: Shared) -> PrivatePermutation:
    """Return the private permutation that moves row i to target[i].

    Args:
        target: [n], a private permutation in any ring that holds n - 1, read as unsigned.

    Rounds: 3. Bits sent: those of shuffle.apply_permutation and reveal.
    Raises:
        ProtocolError: target is not a permutation: a worker deviates from the protocol.
    """
    n = int(target.shape[0])
    if n < 2:
        return identity_permutation(n)
    secret_shuffle = _draw_shuffle(party, n, target.dealer)
    opened_target = secret_shuffle.open_column(target)
    if isinstance(party, CostParty):
        return PrivatePermutation(n, secret_shuffle, _symbolic_positions(n))
    targets = opened_target.numpy()
    if target.bits:
        targets &= (1 << target.bits) - 1
    positions = np.full(n, -1, np.int32)
    if targets.min() >= 0 and targets.max() < n:
        positions[targets] = np.arange(n, dtype=np.int32)
    if positions.min() < 0:
        raise ProtocolError(
            "Row targets are not a permutation: a worker deviated from the protocol.",
            code="invalid-row-targets",
        )
    return PrivatePermutation(n, secret_shuffle, positions)


def shuffle_columns(party: Party, columns: Sequence[Shared]) -> list[Shared]:
    """Shuffle columns [n] into one random order that no party knows.

    Rounds: 2. Bits sent: those of shuffle.apply_permutation.
    """
    n = int(columns[0].shape[0])
    return list(columns) if n < 2 else _draw_shuffle(party, n, columns[0].dealer).apply(columns)


def partition_by_bit(party: Party, bit: Shared) -> PrivatePermutation:
    """Return the permutation that moves rows with bit 1 to the front; both parts keep their order.

    With c_i = bit_0 + .. + bit_i the targets are c_i - 1 for ones and c_n + i - c_i for zeros,
    modulo 2^p, as all of them are below n <= 2^p.

    Rounds: 5. Bits sent: for p = log2 n those of b2a and select in Z_2^p, and of
    `permute_by_target`: 14 p per row.
    """
    n = int(bit.shape[0])
    if n < 2:
        return identity_permutation(n)
    p = sort.sort_index_bits(n)

    def compute_row_targets(bit: Shared) -> Shared:
        ones = bits.to_number(party, bit, p)
        running_count = ones.map(lambda a: tensor_ops.cumsum(a, 0, False, False))
        count = running_count.map(lambda a: tensor_ops.strided_slice(a, np.s_[n - 1 :]))
        index = np.arange(n, dtype=np.int64)
        zero_targets = arithmetic.add_constant(arithmetic.sub(count, running_count), index)
        one_targets = arithmetic.add_constant(running_count, np.int64(-1))
        return small_ring.select(party, bits.to_masked(bit), one_targets, zero_targets)

    return permute_by_target(party, cached_graph(party, "targets", compute_row_targets, n)(bit))


def sort_by_keys(
    party: Party, keys: Sequence[tuple[Shared, int]], *, profile: str = "local"
) -> PrivatePermutation:
    """Return the permutation that sorts ascending by keys, most significant first; stable.

    Args:
        keys: ([n] of Z_2^64, bits): 0 <= key < 2^bits in every row. The sort relies on this bound,
            so it must hold. Bits 64 and 63: any signed number, sorted separately.
        profile: network profile to plan the sort for.

    Keys of up to 62 bits together are one sort; others are sorted one after the other from the
    least significant, as these sorts are stable.

    Rounds and bits: those of `sort` without payload for each sort; the keys of later sorts are
    permuted first.
    Raises:
        UsageError: there are no keys, or bits is out of range.
        RangeError: keys are out of their range.
    """
    if not keys:
        raise UsageError(
            "Expected at least one sort key. Received: none.",
            code="empty-input",
            operation="sort_by_keys",
        )
    for key, k in keys:
        if not is_integer_between(k, 1, 64) or key.ring_bits != 64:
            raise UsageError(
                f"Expected a key of 1 to 64 bits in the ring of 64 bits. Received: {k!r} "
                f"bits of {key!r}.",
                code="number-out-of-range",
                operation="sort_by_keys",
                received=k,
                expected="1 to 64",
            )
    n = int(keys[0][0].shape[0])
    if n < 2:
        return identity_permutation(n)
    permutations: list[PrivatePermutation] = []
    for group in _plan_key_sort_passes([k for _, k in keys]):
        columns = [keys[i][0] for i in group]
        for earlier in permutations:
            columns = earlier.apply(columns)
        widths = tuple(keys[i][1] for i in group)
        permutations.append(_sort_key_columns(party, columns, widths, profile))
    return functools.reduce(PrivatePermutation.followed_by, permutations)


def _plan_key_sort_passes(widths: Sequence[int]) -> list[list[int]]:
    """Group keys into sorts, the sort of the least significant keys first."""
    passes: list[list[int]] = []
    room = 0
    for i in reversed(range(len(widths))):
        if not passes or widths[i] > room:
            passes.append([])
            room = MAX_KEY_BITS
        passes[-1].insert(0, i)
        room -= widths[i]
    return passes


def compose_sort_key(columns: Sequence[Shared], widths: Sequence[int]) -> Shared:
    """Return keys as one number, the first key most significant. Local."""
    key = columns[0]
    for column, width in zip(columns[1:], widths[1:], strict=True):
        key = arithmetic.add(arithmetic.mul_public(key, np.int64(1 << width)), column)
    return key


def shuffle_rows_and_select_ranks(
    party: Party, key: Shared, key_bits: int, ranks: Sequence[int], *, profile: str = "local"
) -> tuple[SecretShuffle, Any]:
    """Return a shuffle of n rows, and the public positions in it of some ranks by a key.

    Args:
        key: [n] of Z_2^64; as a key of `sort_by_keys`.
        ranks: public, each from 0 to n - 1.

    Rounds and bits: those of select.select_ranks. Errors: as `sort_by_keys`.
    """
    secret_shuffle, shuffled_key, _ = _prepare_shuffle(party, [key], (key_bits,), profile)
    return secret_shuffle, select.select_ranks(party, shuffled_key, ranks, profile)


def select_first(
    party: Party, key: Shared, key_bits: int, count: int, *, profile: str = "local"
) -> tuple[SecretShuffle, Any]:
    """Return a shuffle of n rows, and the public positions in it of the first rows by a key.

    Args:
        key: [n] of Z_2^64; as a key of `sort_by_keys`, which puts these rows first.
        count: public, from 1 to n.

    Rounds and bits: those of select.select_first. Errors: as `sort_by_keys`.
    """
    secret_shuffle, shuffled_key, _ = _prepare_shuffle(party, [key], (key_bits,), profile)
    return secret_shuffle, select.select_first(party, shuffled_key, count, profile)


def _prepare_shuffle(
    party: Party, columns: Sequence[Shared], widths: tuple[int, ...], profile: str
) -> tuple[SecretShuffle, Shared, str]:
    """Return a shuffle that comparisons are about to open, and the shuffled keys."""
    n, dealer = int(columns[0].shape[0]), columns[0].dealer
    total = sum(widths)
    key_bits = total if total <= MAX_KEY_BITS else None

    def shuffle_key_columns(*key_columns: Shared) -> Any:
        unscaled = [_drop_key_column_scale(c) for c in key_columns]
        wide_key = sort.make_distinct_keys(
            party, _add_row_axis(compose_sort_key(unscaled, widths)), False, True, key_bits
        )
        factors = shuffle.draw_permutation(party, 1, n, dealer)
        return factors, shuffle.apply_permutation(party, factors, [wide_key])[0]

    factors, shuffled_key = cached_graph(party, "prepared", shuffle_key_columns, widths, n, dealer)(
        *columns
    )
    secret_shuffle = SecretShuffle(party, factors, n)
    secret_shuffle.use_once()
    return secret_shuffle, shuffled_key, sort.choose_algorithm("auto", n, profile)


def _sort_key_columns(
    party: Party, columns: Sequence[Shared], widths: tuple[int, ...], profile: str
) -> PrivatePermutation:
    secret_shuffle, shuffled_key, algorithm = _prepare_shuffle(party, columns, widths, profile)
    positions = sort.reveal_order(party, shuffled_key, algorithm, profile)
    n = int(columns[0].shape[0])
    return PrivatePermutation(
        n, secret_shuffle, _symbolic_positions(n) if isinstance(party, CostParty) else positions[0]
    )


def _draw_shuffle(party: Party, n: int, dealer: int) -> SecretShuffle:
    factors = cached_graph(
        party, "draw", lambda: shuffle.draw_permutation(party, 1, n, dealer), n, dealer
    )()
    return SecretShuffle(party, factors, n)


def _drop_key_column_scale(x: Shared) -> Shared:
    """Return x without its scale: keys are ring elements."""
    return Shared(x.m, x.l1, x.l2, x.dealer)


def _add_row_axis(x: Shared) -> Shared:
    """Reshape [n, ...] to [1, n, ...]. Local."""
    return shapes.expand_dims(x, 0)


def _drop_row_axis(x: Shared) -> Shared:
    """Reshape [1, n, ...] to [n, ...]. Local."""
    return x.map(lambda a: tensor_ops.squeeze(a, [0]))


def _permute_columns(
    party: Party,
    factors: shuffle.ShuffleFactors,
    columns: Sequence[Shared],
    positions: Any = None,
) -> list[Shared]:
    permuted = shuffle.apply_permutation(
        party, factors, [_add_row_axis(c) for c in columns], positions
    )
    return [_drop_row_axis(c) for c in permuted]


def _symbolic_positions(n: int) -> tensor_ops.SymbolicTensor:
    return tensor_ops.SymbolicTensor(tensor_ops.Shape([n]))

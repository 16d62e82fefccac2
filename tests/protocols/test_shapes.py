"""Shape operations equal NumPy's, on 64-bit and wide values, and reject wrong shapes."""

from __future__ import annotations

from collections.abc import Callable
from operator import itemgetter
from typing import Any

import numpy as np
import pytest

from tests.protocols.shares import assert_refused_by_name
from tests.refusals import raises
from tfe_bench.cluster.simulate import share_for_party, simulate
from tfe_bench.errors import UsageError
from tfe_bench.protocols.ring import arithmetic, convert, shapes
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared

Array = np.ndarray[Any, Any]
INT64 = np.iinfo(np.int64)

# on x [2, 3, 4] and y [2, 1, 4] of the same kind
CASES: list[tuple[Callable[[Shared, Shared], Shared], Callable[[Array, Array], Array]]] = [
    (lambda x, y: shapes.reshape(x, [4, 6]), lambda x, y: x.reshape(4, 6)),
    (lambda x, y: shapes.reshape(x, [3, -1]), lambda x, y: x.reshape(3, -1)),
    (lambda x, y: shapes.reshape(x, -1), lambda x, y: x.reshape(-1)),
    (lambda x, y: shapes.flatten(x), lambda x, y: x.reshape(2, 12)),
    (lambda x, y: shapes.flatten(x, 0), lambda x, y: x.reshape(24)),
    (lambda x, y: shapes.flatten(x, 2), lambda x, y: x),
    (lambda x, y: shapes.flatten(x, 3), lambda x, y: x[..., None]),
    (lambda x, y: shapes.transpose(x), lambda x, y: x.T),
    (lambda x, y: shapes.transpose(x, (2, 0, 1)), lambda x, y: x.transpose(2, 0, 1)),
    (lambda x, y: shapes.expand_dims(x, 0), lambda x, y: x[None]),
    (lambda x, y: shapes.expand_dims(x, -1), lambda x, y: x[..., None]),
    (lambda x, y: shapes.expand_dims(x, -2), lambda x, y: x[:, :, None]),
    (lambda x, y: shapes.squeeze(y), lambda x, y: y[:, 0]),
    (lambda x, y: shapes.squeeze(y, -2), lambda x, y: y[:, 0]),
    (lambda x, y: shapes.squeeze(x), lambda x, y: x),
    (lambda x, y: shapes.concat([x, y, x], 1), lambda x, y: np.concatenate([x, y, x], 1)),
    (lambda x, y: shapes.concat([x, x], -1), lambda x, y: np.concatenate([x, x], -1)),
    (lambda x, y: shapes.stack([x, x]), lambda x, y: np.stack([x, x])),
    (lambda x, y: shapes.stack([x, x], -1), lambda x, y: np.stack([x, x], -1)),
    (lambda x, y: shapes.unstack(x, -1)[3], lambda x, y: x[..., 3]),
    (lambda x, y: shapes.unstack(x)[1], lambda x, y: x[1]),
    (lambda x, y: shapes.split(x, 2, -1)[1], lambda x, y: x[..., 2:]),
    (lambda x, y: shapes.split(x, [1, 0, 2], 1)[2], lambda x, y: x[:, 1:]),
    (lambda x, y: shapes.split(x, [1, -1], 2)[1], lambda x, y: x[..., 1:]),
    (lambda x, y: shapes.slice(x, [0, 1, 2], [1, -1, 2]), lambda x, y: x[:1, 1:, 2:]),
    (lambda x, y: shapes.slice(x, [2, 0, 0], [0, 3, -1]), lambda x, y: x[2:]),
    (lambda x, y: shapes.getitem(x, 1), lambda x, y: x[1]),
    (lambda x, y: shapes.getitem(x, (0, np.int64(-1), 2)), lambda x, y: x[0, -1, 2]),
    (lambda x, y: shapes.getitem(x, (..., -1)), lambda x, y: x[..., -1]),
    (lambda x, y: shapes.getitem(x, ...), lambda x, y: x),
    (lambda x, y: shapes.getitem(x, (1, ..., slice(None, None, -2))), lambda x, y: x[1, ..., ::-2]),
    (lambda x, y: shapes.getitem(x, (None, 0, ..., None)), lambda x, y: x[None, 0, ..., None]),
    (lambda x, y: shapes.getitem(x, (0, 1, 2, ...)), lambda x, y: x[0, 1, 2]),
    (lambda x, y: shapes.getitem(x, slice(-5, 9)), lambda x, y: x[-5:9]),
    (lambda x, y: shapes.getitem(x, (slice(None), slice(1, 3, 2))), lambda x, y: x[:, 1:3:2]),
    (lambda x, y: shapes.gather(x, [2, 0, 2], 1), lambda x, y: x[:, [2, 0, 2]]),
    (lambda x, y: shapes.gather(x, [[1, 3]], -1), lambda x, y: x[..., [[1, 3]]]),
    (lambda x, y: shapes.gather(x, 1), lambda x, y: x[1]),
    (lambda x, y: shapes.gather(x, []), lambda x, y: x[:0]),
    (lambda x, y: shapes.tile(x, [2, 1, 3]), lambda x, y: np.tile(x, (2, 1, 3))),
    (lambda x, y: shapes.tile(x, [1, 0, 1]), lambda x, y: x[:, :0]),
    (lambda x, y: shapes.broadcast_to(y, [2, 3, 4]), lambda x, y: np.broadcast_to(y, (2, 3, 4))),
    (lambda x, y: shapes.broadcast_to(x, [5, 2, 3, 4]), lambda x, y: np.stack([x] * 5)),
    (lambda x, y: shapes.reverse(x, -1), lambda x, y: x[..., ::-1]),
    (lambda x, y: shapes.reverse(x, [0, 1]), lambda x, y: x[::-1, ::-1]),
    (
        lambda x, y: shapes.pad(x, [(1, 0), (0, 2), (3, 1)]),
        lambda x, y: np.pad(x, [(1, 0), (0, 2), (3, 1)]),
    ),
]


@pytest.mark.parametrize("wide", [False, True], ids=["64", "wide"])
def test_shape_operations_do_what_numpy_does(wide: bool, rng: np.random.Generator) -> None:
    x = rng.integers(INT64.min, INT64.max, (2, 3, 4), np.int64, endpoint=True)
    y = rng.integers(INT64.min, INT64.max, (2, 1, 4), np.int64, endpoint=True)

    def program(p: Party, x: Shared, y: Shared) -> Any:
        def all_of(x: Shared, y: Shared) -> list[Shared]:
            if wide:
                x, y = convert.extend_to_wide(p, x, 40), convert.extend_to_wide(p, y, 40)
            return [case(x, y) for case, _ in CASES]

        return p.function(all_of)(x, y)

    sim = simulate(program, x, y, dealer=int(rng.integers(3)), fractional_bits=5)
    if wide:
        x, y = ((v.astype(np.uint64).astype(object) << 40) for v in (x, y))
    for i, (_, expected) in enumerate(CASES):
        got, want = sim.value(itemgetter(i)), expected(x, y)
        assert np.shape(got) == np.shape(want), i
        assert np.array_equal(got, want), i
        for out in sim.outputs:
            limbs, bits = (2, 105) if wide else (1, 64)
            assert (out[i].fractional_bits, out[i].limbs, out[i].ring_bits) == (5, limbs, bits)
    if not wide:
        assert sim.sent == (0, 0, 0)


def test_padding_with_a_public_constant_is_that_constant_at_its_scale() -> None:
    x = np.arange(6).reshape(2, 3)
    widths = [(1, 0), (0, 2)]
    constants = (-7, INT64.min, INT64.max, 2**64 - 1)

    def program(p: Party, x: Shared) -> Any:
        def padded(x: Shared) -> list[Shared]:
            wide = convert.extend_to_wide(p, x, 60)
            narrow = [shapes.pad(x, widths, c) for c in constants]
            return [*narrow, *(shapes.pad(wide, widths, c) for c in (-7, 2**70))]

        return p.function(padded)(x)

    sim = simulate(program, x)
    for i, c in enumerate(constants):
        signed = (c + 2**63) % 2**64 - 2**63
        assert np.array_equal(
            sim.value(itemgetter(i)), np.pad(x, widths, constant_values=signed)
        ), c
    for i, c in enumerate((-7, 2**70), len(constants)):
        want = np.full((3, 5), c, object)
        want[1:, :3] = x.astype(object) << 60
        want %= 2**125
        assert np.array_equal(sim.value(itemgetter(i)), want), c


def test_shapes_of_unknown_sizes_follow_the_tensor() -> None:
    import tensorflow as tf

    x = np.arange(24).reshape(2, 3, 4)

    def program(p: Party, x: Shared) -> Any:
        def all_of(x: Shared) -> list[Shared]:
            n = tf.shape(x.any)[0]
            return [
                shapes.flatten(x),
                shapes.flatten(x, 0),
                shapes.reshape(x, [n, 4, 3]),
                shapes.reshape(x, [-1, 4]),
                shapes.broadcast_to(x, tf.concat([[2], tf.shape(x.any)], 0)),
                shapes.getitem(x, 1),
                shapes.gather(x, tf.constant([1, 0])),
                shapes.concat([x, x], 0),
            ]

        return p.function(all_of, dynamic=True)(x)

    sim = simulate(program, x)
    want = [x.reshape(2, 12), x.reshape(24), x.reshape(2, 4, 3), x.reshape(6, 4), np.stack([x, x])]
    for i, expected in enumerate([*want, x[1], x[::-1], np.concatenate([x, x])]):
        assert np.array_equal(sim.value(itemgetter(i)), expected), i


REFUSED: dict[str, Callable[[Shared], Any]] = {
    "reshape to other counts": lambda x: shapes.reshape(x, [5]),
    "reshape with two free sizes": lambda x: shapes.reshape(x, [-1, -1]),
    "reshape with a negative size": lambda x: shapes.reshape(x, [-2, -3, 4]),
    "reshape with a free size that is not whole": lambda x: shapes.reshape(x, [5, -1]),
    "reshape by fractions": lambda x: shapes.reshape(x, [2.0, 12.0]),
    "reshape of a public tensor": lambda x: shapes.reshape(np.zeros(3), [3]),  # type: ignore[arg-type]
    "reshape to a private shape": lambda x: shapes.reshape(x, x),
    "flatten of an axis that is not there": lambda x: shapes.flatten(x, 4),
    "transpose with an axis twice": lambda x: shapes.transpose(x, [0, 0, 1]),
    "transpose of too few axes": lambda x: shapes.transpose(x, [1, 0]),
    "expand_dims beyond the rank": lambda x: shapes.expand_dims(x, 4),
    "expand_dims at True": lambda x: shapes.expand_dims(x, True),
    "squeeze of an axis that is not 1": lambda x: shapes.squeeze(x, 0),
    "squeeze of an axis twice": lambda x: shapes.squeeze(x, [0, -3]),
    "concat of nothing": lambda x: shapes.concat([], 0),
    "concat of one tensor without a list": lambda x: shapes.concat(x, 0),  # type: ignore[arg-type]
    "concat of private and public": lambda x: shapes.concat([x, np.zeros((2, 3, 4))], 0),  # type: ignore[list-item]
    "concat of other shapes": lambda x: shapes.concat([x, shapes.flatten(x)], 0),
    "concat along an axis that is not there": lambda x: shapes.concat([x, x], 3),
    "concat of two scales": lambda x: shapes.concat([x, arithmetic.mul_public(x, 1, 3)], 0),
    "stack of other shapes": lambda x: shapes.stack([x, shapes.transpose(x)]),
    "unstack along an axis that is not there": lambda x: shapes.unstack(x, 3),
    "split into parts that do not divide": lambda x: shapes.split(x, 2, 1),
    "split into other sizes": lambda x: shapes.split(x, [1, 1], 1),
    "split into negative sizes": lambda x: shapes.split(x, [4, -2], 0),
    "slice beyond the end": lambda x: shapes.slice(x, [0, 0, 1], [1, 1, 4]),
    "slice from a negative start": lambda x: shapes.slice(x, [-1, 0, 0], [1, 1, 1]),
    "slice of a negative size": lambda x: shapes.slice(x, [0, 0, 0], [1, 1, -2]),
    "slice of too few axes": lambda x: shapes.slice(x, [0], [1]),
    "getitem out of range": lambda x: shapes.getitem(x, (0, 3)),
    "getitem out of range behind ...": lambda x: shapes.getitem(x, (..., -5)),
    "getitem with too many": lambda x: shapes.getitem(x, (0, 0, 0, 0)),
    "getitem with two ...": lambda x: shapes.getitem(x, (..., 0, ...)),
    "getitem with a step of 0": lambda x: shapes.getitem(x, slice(0, 2, 0)),
    "getitem with True": lambda x: shapes.getitem(x, True),
    "getitem with a list": lambda x: shapes.getitem(x, [0, 1]),  # type: ignore[arg-type]
    "getitem with a private index": lambda x: shapes.getitem(x, x),  # type: ignore[arg-type]
    "getitem with a private bound": lambda x: shapes.getitem(x, slice(x, None)),
    "pad by negative sizes": lambda x: shapes.pad(x, [(0, 0), (0, -1), (0, 0)]),
    "pad of too few axes": lambda x: shapes.pad(x, [(0, 0)]),
    "pad with a fraction": lambda x: shapes.pad(x, [(0, 0)] * 3, 0.5),  # type: ignore[arg-type]
    "gather beyond the end": lambda x: shapes.gather(x, [0, 2]),
    "gather of a negative index": lambda x: shapes.gather(x, [-1]),
    "gather of fractions": lambda x: shapes.gather(x, [0.0]),
    "gather by private indices": lambda x: shapes.gather(x, x),
    "gather along an axis that is not there": lambda x: shapes.gather(x, [0], 3),
    "tile a negative number of times": lambda x: shapes.tile(x, [1, 1, -1]),
    "tile of too few axes": lambda x: shapes.tile(x, [2]),
    "broadcast_to another size": lambda x: shapes.broadcast_to(x, [3, 3, 4]),
    "broadcast_to fewer axes": lambda x: shapes.broadcast_to(x, [3, 4]),
    "reverse an axis twice": lambda x: shapes.reverse(x, [1, -2]),
}


def of_value(call: Callable[[Shared], Any]) -> Callable[[Party, Shared], Any]:
    return lambda party, x: call(x)


def test_what_does_not_fit_is_refused_by_name_with_what_was_received() -> None:
    refused = {what: of_value(call) for what, call in REFUSED.items()}
    assert_refused_by_name(refused, np.arange(24).reshape(2, 3, 4))


def test_what_is_joined_has_one_dealer_scale_and_ring() -> None:
    def program(p: Party, x: Shared) -> Any:
        def joined(x: Shared) -> Shared:
            other = share_for_party(np.zeros((2, 3, 4)), p.index, b"other", dealer=1)
            for join in (shapes.concat, shapes.stack):
                with raises(UsageError, "operand-mismatch"):
                    join([x, other], 0)
                with raises(UsageError, "operand-mismatch"):
                    join([x, convert.extend_to_wide(p, x, 1)], 0)
            return x

        p.function(joined)(x)

    simulate(program, np.arange(24).reshape(2, 3, 4))

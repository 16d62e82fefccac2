"""Operations that move, select and contract private tensors equal NumPy's and TensorFlow's."""

from __future__ import annotations

from collections.abc import Callable
from operator import itemgetter
from typing import Any

import numpy as np
import tensorflow as tf

import tfe_bench as tfe
from tests.protocols.test_functional import ULP, Array, Case, check_functions, draw_reals, untyped
from tests.protocols.test_functional_refusals import refuse_all
from tests.refusals import raises
from tfe_bench.cluster.simulate import simulate
from tfe_bench.errors import UsageError
from tfe_bench.protocols.order import lookup, one_hot
from tfe_bench.protocols.session.counting import Private, PrivateBits, count_cost
from tfe_bench.protocols.session.party import Party

INTEGERS = tfe.FixedPoint(0)
EQUATIONS = [
    "ij,jk->ik",
    "ij,jk",
    "ij,kj->",
    "ij,ij->ij",
    "ij,ij->j",
    "ij,kl->ljik",
    "ii,ij->ij",
    "iji,kj->ki",
    "bij,bjk->bik",
    "b i j, b k j -> i k b",
    "...ij,...jk->...ik",
    "...i,i...->...",
    "i...,i->...",
    "abc,cd->abd",
    "i,i->",
    "i,j->ij",
    ",i->i",
]
PAIRED: list[Any] = [0, [[0], [0]], [[2, 1], [2, 1]], [-1, -1], [[0, 1, 2], [0, 1, 2]]]
MODES: list[Any] = ["REFLECT", "SYMMETRIC", "symmetric"]
ALONE = ["ij->ji", "ii->i", "ii", "ijk->j", "i...->...", "ij->"]


def _draw_shapes(equation: str) -> list[list[int]]:
    """Choose a size for each letter; an ellipsis is two axes, of which one broadcasts."""
    sizes = dict(zip("abcdijkl", (2, 3, 4, 2, 3, 4, 2, 3), strict=True))
    results = []
    for i, term in enumerate(equation.replace(" ", "").partition("->")[0].split(",")):
        before, dots, after = term.partition("...")
        spread = [[2, 1], [2, 3]][i] if dots else []
        results.append([*(sizes[c] for c in before), *spread, *(sizes[c] for c in after)])
    return results


def test_einsum_is_that_of_numpy(rng: np.random.Generator) -> None:
    cases: list[Case] = []
    inputs: list[Array] = []
    for equation in EQUATIONS + ALONE:
        operands = [draw_reals(rng, *s, scale=4) for s in _draw_shapes(equation)]
        places = list(range(len(inputs), len(inputs) + len(operands)))
        inputs += operands

        def expected(*xs: Any, e: str = equation, at: list[int] = places) -> Any:
            return np.einsum(e, *(xs[i] for i in at))

        def private(*xs: Any, e: str = equation, at: list[int] = places) -> Any:
            return tfe.einsum(e, *(xs[i] for i in at))

        def mixed(*xs: Any, e: str = equation, at: list[int] = places, g: Any = operands) -> Any:
            return tfe.einsum(e, g[0], xs[at[1]])

        cases.append((private, expected, len(operands) - 1))
        if len(operands) == 2 and len(cases) % 3 == 0:
            cases.append((mixed, expected, 1 + 16 * 12 * 2.0**-24 / ULP))
    check_functions(cases, *inputs, dealer=int(rng.integers(3)))


def test_products_of_vectors_and_paired_axes(rng: np.random.Generator) -> None:
    x, v, w = (
        draw_reals(rng, 2, 3, 4, scale=4),
        draw_reals(rng, 4, scale=4),
        draw_reals(rng, 3, scale=4),
    )
    cases: list[Case] = [
        (lambda x, v, w: x @ v, lambda x, v, w: x @ v, 1),
        (lambda x, v, w: w @ x, lambda x, v, w: w @ x, 1),
        (lambda x, v, w: v @ v, lambda x, v, w: v @ v, 1),
        (lambda x, v, w: np.ones(3) @ x, lambda x, v, w: np.ones(3) @ x, 0),
        (lambda x, v, w: x @ tf.ones(4), lambda x, v, w: x @ np.ones(4), 0),
        (lambda x, v, w: tfe.matvec(x, v[None]), lambda x, v, w: x @ v, 1),
        (
            lambda x, v, w: tfe.matvec(x, w, transpose_a=True),
            lambda x, v, w: x.transpose(0, 2, 1) @ w,
            1,
        ),
        *(
            (
                lambda x, v, w, a=a: tfe.tensordot(x, x, a),
                lambda x, v, w, a=a: np.tensordot(x, x, a),
                1,
            )
            for a in PAIRED
        ),
        (lambda x, v, w: tfe.tensordot(x, v, 1), lambda x, v, w: x @ v, 1),
        (lambda x, v, w: tfe.tensordot(2.0 * np.eye(4), v, 1), lambda x, v, w: 2 * v, 0),
    ]
    check_functions(cases, x, v, w, dealer=int(rng.integers(3)))


def test_parts_at_public_places_and_mirrored_edges(rng: np.random.Generator) -> None:
    x = draw_reals(rng, 2, 3, 4)
    rows = np.array([[2, 0], [1, 1]])
    deep = rng.integers(0, 4, (2, 3, 5))
    at = np.array([[0, 2], [1, 0]])
    twice = np.array([[1], [1], [0]])
    u = np.arange(8.0).reshape(2, 4)

    def placed(x: Array) -> Array:
        result = x.copy()
        result[tuple(at.T)] = u
        return result

    def added(x: Array) -> Array:
        result = np.zeros((3, 3, 4))
        np.add.at(result, twice[:, 0], np.concatenate([x, x[:1]]))
        return result

    def gathered(axis: int | None, batch: int, indices: Array) -> Case:
        return (
            lambda x: tfe.gather(x, indices, axis, batch),
            lambda x: tf.gather(x, indices, axis=axis, batch_dims=batch).numpy(),
            0,
        )

    cases: list[Case] = [
        *(gathered(*a) for a in [(None, 1, rows), (2, 1, rows), (-1, 2, deep), (1, 0, rows)]),
        *(gathered(*a) for a in [(None, -1, deep), (0, 0, rows % 2), (None, 0, rows % 2)]),
        (lambda x: tfe.tensor_scatter_nd_update(x, at, u), placed, 0),
        (
            lambda x: tfe.tensor_scatter_nd_update(np.zeros((2, 4)), [[1]], x[0, :1]),
            lambda x: np.stack([np.zeros(4), x[0, 0]]),
            0,
        ),
        (lambda x: tfe.scatter_nd(twice, tfe.concat([x, x[:1]], 0), [3, 3, 4]), added, 0),
        (
            lambda x: tfe.scatter_nd(np.zeros((0, 1), np.int64), x[:0], [2, 3, 4]),
            lambda x: np.zeros((2, 3, 4)),
            0,
        ),
        *(
            (
                lambda x, m=m: tfe.pad(x, [[0, 1], [2, 0], [1, 3]], m),
                lambda x, m=m: np.pad(x, [(0, 1), (2, 0), (1, 3)], m.lower()),
                0,
            )
            for m in MODES
        ),
        (
            lambda x: tfe.pad(x, [[2, 2], [3, 3], [4, 0]], "SYMMETRIC"),
            lambda x: np.pad(x, [(2, 2), (3, 3), (4, 0)], "symmetric"),
            0,
        ),
        *(
            (
                lambda x, i=i: tfe.split(x, [1, -1, 1], 2)[i],
                lambda x, i=i: np.split(x, [1, 3], 2)[i],
                0,
            )
            for i in range(3)
        ),
    ]
    check_functions(cases, x, dealer=int(rng.integers(3)))


def test_private_positions(rng: np.random.Generator) -> None:
    """Use positions of every magnitude, inside and outside; tables of one row and in batches."""
    edges = [0, 4, 5, 6, -1, 2**20, -(2**20), 2**61, -(2**62) + 1, 2**62]
    i = np.array([*edges, *rng.integers(0, 5, 6)])
    few = np.array([[0, 3], [-2, 1]])
    x = rng.integers(-(2**40), 2**40, (2, 5, 3))

    def rows(i: Array, n: int) -> Array:
        return np.asarray(i[..., None] == np.arange(n), np.int64)

    cases: list[Case] = [
        *(
            (lambda i, f, x, n=n: tfe.one_hot(i, n), lambda i, f, x, n=n: rows(i, n), 0)
            for n in (1, 2, 5, 70)
        ),
        (
            lambda i, f, x: tfe.one_hot(f, 4, 7, -1, 0, bits=4),
            lambda i, f, x: np.moveaxis(8 * rows(f, 4) - 1, -1, 0),
            0,
        ),
        (
            lambda i, f, x: tfe.gather(x, i, 1),
            lambda i, f, x: np.einsum("in,bnw->biw", rows(i, 5), x),
            0,
        ),
        (
            lambda i, f, x: tfe.gather(x[0, 0], f, bits=4),
            lambda i, f, x: np.einsum("ijn,n->ij", rows(f, 3), x[0, 0]),
            0,
        ),
        (
            lambda i, f, x: tfe.gather(x, f, 1, 1),
            lambda i, f, x: np.einsum("bqn,bnw->bqw", rows(f, 5), x),
            0,
        ),
        (
            lambda i, f, x: tfe.gather(x, f, 2, 1),
            lambda i, f, x: np.einsum("bqw,bnw->bnq", rows(f, 3), x),
            0,
        ),
        (lambda i, f, x: tfe.gather(x[:1, :1], f[0, 0], 0), lambda i, f, x: x[:1, :1][0], 0),
    ]
    check_functions(cases, i, few, x, dealer=int(rng.integers(3)), fixed=INTEGERS)


def test_the_cheaper_way_is_taken() -> None:
    def price(protocol: Any, *arguments: Any) -> float:
        cost = count_cost(protocol, *arguments).cost
        return cost.total + cost.rounds * 3e6

    for n, depth in ((3, 2), (5000, 5), (10, 5000)):
        x = Private((n,), 0)
        ways = {w: price(one_hot.one_hot, x, depth, 64, w) for w in one_hot.METHODS}
        assert one_hot.choose_one_hot("auto", n, depth, 64) == min(ways, key=lambda w: ways[w])
        assert price(one_hot.one_hot, x, depth) == min(ways.values())
    for shape in ((1, 4, 1), (1, 2000, 64)):
        positions, table = 100, Private(shape)
        bits = PrivateBits((shape[1], positions))
        least = min(
            price(lookup.select_rows_by_one_hot, bits, table, positions, w) for w in lookup.PRODUCTS
        )
        whole = price(lookup.lookup_one_hot, table, Private((1, positions), 0))
        assert whole == least + price(one_hot.one_hot, Private((1, positions), 0), shape[1])


def test_large_tables_are_looked_up_by_a_shuffle(rng: np.random.Generator) -> None:
    """Look up between graphs: positions outside yield 0.

    The revealed order is independent of the data.
    """
    x = rng.integers(-(2**62), 2**62, (9, 2, 2))
    i = np.array([8, 0, 3, 3, -1, 9, *(s * 2**k for k in (4, 40, 63) for s in (-1, 1))][:-1])
    i = np.append(i, rng.integers(0, 9, 20))
    inside = (i >= 0) & (i < 9)
    want = np.where(inside[:, None, None], x[np.clip(i, 0, 8)], 0)

    def program(p: Party, x: Any, i: Any) -> Any:
        results = [tfe.gather(x, i, method=m) for m in ("shuffle", "one-hot", "auto")]
        return [*results, tfe.gather(x[:, 0, 0], i, method="shuffle")]

    dealer = int(rng.integers(3))
    sim = simulate(program, x, i, dealer=dealer)
    table, positions = Private(x.shape, 0), Private(i.shape, 0)
    cost = count_cost(program, table, positions, graphs=True).cost
    assert sim.sent == cost.by_party(dealer) and sim.rounds == cost.rounds
    for k in range(3):
        near = np.abs(i.astype(float)) < 2.0**62 if k else np.full(i.shape, True)
        got = sim.value(itemgetter(k))
        assert np.array_equal(got[near], want[near]), k
    assert np.array_equal(sim.value(lambda out: out[3]), want[:, 0, 0])
    assert lookup.choose_lookup("auto", 9, 4, len(i)) == "one-hot"
    assert lookup.choose_lookup("auto", 20000, 1, 20000) == "shuffle"
    wrong: list[tuple[str, Callable[..., Any]]] = [
        ("unknown-name", lambda p, x, i: tfe.gather(x, i, method="shufle")),
        ("rank-mismatch", lambda p, x, i: tfe.gather(x, i, 1)),
        ("rank-mismatch", lambda p, x, i: tfe.gather(x, i, 1, method="shuffle")),
    ]
    for code, call in wrong:
        with raises(UsageError, code):
            simulate(call, x, i)


def test_pooling_with_places_and_of_a_given_size(rng: np.random.Generator) -> None:
    x = np.rint(draw_reals(rng, 2, 5, 6, 2, scale=3))

    def adaptive(x: Array, sizes: tuple[int, int], function: Any) -> Array:
        pooled = np.zeros((len(x), *sizes, x.shape[3]))
        for i in range(sizes[0]):
            for j in range(sizes[1]):
                (a, b), (c, d) = (
                    (k * n // s, -(-(k + 1) * n // s))
                    for k, n, s in zip((i, j), x.shape[1:3], sizes, strict=True)
                )
                pooled[:, i, j] = function(x[:, a:b, c:d], axis=(1, 2))
        return pooled

    cases: list[Case] = [
        (
            lambda x, a=a, i=i: tfe.max_pool_with_argmax(x, *a)[i],
            lambda x, a=a, i=i: tf.nn.max_pool_with_argmax(
                x, a[0], a[1], a[2], include_batch_in_index=a[3]
            )[i].numpy(),
            0,
        )
        for a in ((2, 2, "VALID", False), ([3, 2], [2, 1], "SAME", True))
        for i in range(2)
    ]
    for sizes in ((1, 1), (2, 4), (3, 5), (5, 6)):
        cases += [
            (
                lambda x, s=sizes: tfe.adaptive_max_pool2d(x, s),
                lambda x, s=sizes: adaptive(x, s, np.max),
                0,
            ),
            (
                lambda x, s=sizes: tfe.adaptive_avg_pool2d(x, s),
                lambda x, s=sizes: adaptive(x, s, np.mean),
                1.5,
            ),
        ]
    check_functions(cases, x, dealer=int(rng.integers(3)))


BAD: list[tuple[str, Any]] = [
    ("einsum", lambda x: tfe.einsum("ij,jk,kl->il", x, x, x)),
    ("einsum", lambda x: tfe.einsum("ij,jk->il", x, x)),
    ("einsum", lambda x: tfe.einsum("ij,ij->ii", x, x)),
    ("einsum", lambda x: tfe.einsum("ij,jk->ik", x, x)),
    ("einsum", lambda x: tfe.einsum("i,ij->j", x, x)),
    ("einsum", lambda x: tfe.einsum("ij", x, x)),
    ("einsum", lambda x: tfe.einsum("i2->i", x)),
    ("einsum", lambda x: tfe.einsum("...i->i", x)),
    ("einsum", lambda x: tfe.einsum("......i->i", x)),
    ("einsum", lambda x: tfe.einsum(x, x)),
    ("matmul", lambda x: tfe.matmul(x, np.ones(3))),
    ("matmul", lambda x: tfe.matmul(x, np.ones(4), transpose_a=True)),
    ("matvec", lambda x: tfe.matvec(x, 2.0)),
    ("tensordot", lambda x: tfe.tensordot(x, x, 3)),
    ("tensordot", lambda x: tfe.tensordot(x, x, [[0], [0, 1]])),
    ("tensordot", lambda x: tfe.tensordot(x, x, [[0], [1]])),
    ("gather", lambda x: tfe.gather(x, [0], 0, 1)),
    ("gather", lambda x: tfe.gather(x, [0], 1, 2)),
    ("gather", lambda x: tfe.gather(x, [[0], [0]], 0, 1)),
    ("gather", lambda x: tfe.gather(x, [3])),
    ("gather", lambda x: tfe.gather(x, x[0])),
    ("gather", lambda x: untyped.gather(np.ones(3), tfe.cast(x < 0))),
    ("gather", lambda x: tfe.gather(x[:, :0], tfe.cast(x < 0), 1)),
    ("scatter_nd", lambda x: tfe.scatter_nd([[3]], x[:1], [3, 4])),
    ("scatter_nd", lambda x: tfe.scatter_nd([[-1]], x[:1], [3, 4])),
    ("scatter_nd", lambda x: tfe.scatter_nd([[0]], x, [3, 4])),
    ("scatter_nd", lambda x: tfe.scatter_nd([[0, 0, 0]], x, [3, 4])),
    ("scatter_nd", lambda x: tfe.scatter_nd(x, x, [3, 4])),
    ("scatter_nd", lambda x: tfe.scatter_nd([[0]], x[:1], [-3, 4])),
    ("tensor_scatter_nd_update", lambda x: tfe.tensor_scatter_nd_update(x, [[0], [0]], x[:2])),
    ("tensor_scatter_nd_update", lambda x: tfe.tensor_scatter_nd_update(x, [[0.5]], x[:1])),
    ("pad", lambda x: tfe.pad(x, [[0, 0], [4, 0]], "REFLECT")),
    ("pad", lambda x: tfe.pad(x, [[0, 0], [0, 5]], "SYMMETRIC")),
    ("pad", lambda x: tfe.pad(x, [[0, 0], [0, 1]], "EDGE")),
    ("split", lambda x: tfe.split(x, 2, 0)),
    ("one_hot", lambda x: tfe.one_hot(x, 3)),
    ("one_hot", lambda x: tfe.one_hot(tfe.cast(x < 0), 0)),
    ("one_hot", lambda x: tfe.one_hot(tfe.cast(x < 0), 2**20 + 1)),
    ("one_hot", lambda x: tfe.one_hot(tfe.cast(x < 0), 3, 0.5)),  # type: ignore[arg-type]
    ("one_hot", lambda x: tfe.one_hot(tfe.cast(x < 0), 3, axis=3)),
    ("max_pool_with_argmax", lambda x: tfe.max_pool_with_argmax(x, 2)),
    ("adaptive_avg_pool2d", lambda x: tfe.adaptive_avg_pool2d(x, 2)),
    ("adaptive_max_pool2d", lambda x: tfe.adaptive_max_pool2d(tfe.reshape(x, [1, 3, 4, 1]), 4)),
]


def test_what_does_not_fit_is_refused_by_name() -> None:
    refuse_all(BAD, np.ones((3, 4)))

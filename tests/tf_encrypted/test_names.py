"""Every name of tf-encrypted's ABY3, on values from its programs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.special
import tensorflow as tf

from tests.refusals import raises, refuses
from tests.tf_encrypted.simulated import simulated, tfe
from tfe_bench.arrays import array_jobs, building
from tfe_bench.errors import RangeError, UsageError
from tfe_bench.tf_encrypted.protocol.aby3 import ABY3, ShareType
from tfe_bench.tf_encrypted.tensor import factories

X = np.array([[1.5, -2.25, 0.5], [-0.75, 3.0, 2.0]])
Y = np.array([[0.5, 2.0, 4.0], [1.25, 0.75, 3.0]])
N = np.array([[3, -5, 6], [1 << 40, 2, -(1 << 62)]])
M = np.array([[6, 9, -1], [77, 5, 1 << 33]])
IMAGES = np.arange(32.0).reshape(1, 2, 4, 4) / 8 - 1
KERNEL = np.arange(-8.0, 8.0).reshape(2, 2, 2, 2) / 8
BITS = X > 0
ULP = 2.0**-16


def _windows(images: Any) -> Any:
    n, c, h, w = images.shape
    return (
        images.reshape(n, c, h // 2, 2, w // 2, 2)
        .transpose(0, 1, 2, 4, 3, 5)
        .reshape(n, c, h // 2, w // 2, 4)
    )


def _convolved() -> Any:
    parts = _windows(IMAGES).reshape(1, 2, 2, 2, 2, 2)
    return np.einsum("nchwij,ijco->nohw", parts, KERNEL)


def _softmax(x: Any) -> Any:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def _lines(x: Any) -> Any:
    return np.select(
        [x <= -4, x <= -1.5, x <= 1.5, x <= 4],
        [1e-4, 0.281 + 0.066 * x, 0.5 + 0.212 * x, 0.719 + 0.066 * x],
        1 - 1e-4,
    )


def _gathered(words: Any, start: int, stride: int) -> Any:
    places = range(start, 64, stride)
    return sum((words >> np.int64(p) & 1) << np.int64(k) for k, p in enumerate(places))


def _indices(words: Any) -> Any:
    indices = np.zeros_like(words)
    for d in range(64):
        indices ^= np.where(words >> np.int64(d) & 1, d, 0)
    return indices


def _carried(a: Any, b: Any, pos: int) -> Any:
    mask = (1 << (pos + 1)) - 1
    total = (a.astype(object) & mask) + (b.astype(object) & mask)
    return (total >> (pos + 1)).astype(np.int64)


def _times() -> Any:
    """Return the number of 2 x 2 windows with stride 1 over each position of a 4 x 4 image."""
    return np.outer([1, 2, 2, 2], [1, 2, 2, 2])


Case = tuple[Callable[[Any], Any], Any, float]
# Expression, plaintext value and largest error by name.
CASES: dict[str, Case] = {
    "add": (lambda v: 1 + (v.x + v.y) + v.c, 1 + X + Y + Y, 0),
    "add_n": (lambda v: tfe.add_n([v.x, v.y, v.c]), X + 2 * Y, 0),
    "and_": (lambda v: v.n & v.m, N & M, 0),
    "argmax": (lambda v: tfe.argmax(v.x, axis=1, output_style="normal"), X.argmax(1), 0),
    "argmax, one-hot": (lambda v: tfe.argmax(v.x, axis=0), X.max(0) == X, 0),
    "a2b": (lambda v: tfe.b2a(tfe.a2b(v.x) >> 1), X / 2, 0),
    "avgpool2d": (
        lambda v: tfe.avgpool2d(v.i, (2, 2), (2, 2), "VALID"),
        _windows(IMAGES).mean(4),
        2 * ULP,
    ),
    "b2a": (lambda v: tfe.b2a(tfe.a2b(v.x)) + v.y, X + Y, 0),
    "b2a_single": (lambda v: tfe.b2a_single(v.b), BITS * 1, 0),
    "b_add": (lambda v: tfe.b_add(v.n, v.m), N + M, 0),
    "b_sub": (lambda v: tfe.b_sub(v.n, v.m), N - M, 0),
    "bit_extract": (lambda v: tfe.bit_extract(v.x, 16), (X * 65536).astype(int) >> 16 & 1, 0),
    "bit_gather": (lambda v: tfe.bit_gather(v.n, 1, 2), _gathered(N, 1, 2), 0),
    "bit_reverse": (
        lambda v: tfe.bit_reverse(tfe.bit_reverse(v.n) << 3),
        (N.astype(np.uint64) >> np.uint64(3)).astype(np.int64),
        0,
    ),
    "bit_split_and_gather": (
        lambda v: tfe.bit_split_and_gather(v.n, 2),
        np.stack([_gathered(N, 0, 2), _gathered(N, 1, 2)]),
        0,
    ),
    "bits": (lambda v: tfe.bits(v.n, 5), (N[..., None] >> np.arange(5)) & 1, 0),
    "carry": (lambda v: tfe.carry(v.n, v.m), _carried(N, M, 63), 0),
    "cast": (lambda v: tfe.cast(v.n, factories[tf.int8]), N.astype(np.int8), 0),
    "cmp_swap": (lambda v: tfe.cmp_swap(v.x, v.y)[0], np.minimum(X, Y), 0),
    "concat": (lambda v: tfe.concat([v.x, v.c], axis=-1), np.concatenate([X, Y], 1), 0),
    "conv2d": (lambda v: tfe.conv2d(v.i, v.k, [2, 2], "VALID"), _convolved(), 8 * ULP),
    "div": (lambda v: v.x / v.y, X / Y, 4 * ULP),
    "equal": (lambda v: tfe.equal(v.x, v.c * 0.75), Y * 0.75 == X, 0),
    "equal_zero": (lambda v: tfe.equal_zero(v.x - 2), X == 2, 0),
    "exp": (lambda v: tfe.exp(v.x), np.exp(X), 32 * ULP),
    "exp2": (lambda v: tfe.exp2(v.x), 2**X, 16 * ULP),
    "exp2_pade": (lambda v: tfe.exp2_pade(v.x), 2**X, 16 * ULP),
    "expand": (
        lambda v: tfe.expand(v.x, 2),
        np.stack([[1.5, 0, -2.25, 0, 0.5], np.zeros(5), [-0.75, 0, 3, 0, 2]]),
        0,
    ),
    "expand_dims": (lambda v: tfe.expand_dims(v.n, -1), N[..., None], 0),
    "gather": (lambda v: tfe.gather(v.n, [2, 0], axis=-1), N[:, [2, 0]], 0),
    "gather_bit": (lambda v: tfe.gather_bit(v.n, True), _gathered(N, 0, 2), 0),
    "greater_equal": (lambda v: v.x >= 0.5, X >= 0.5, 0),
    "greater_than": (lambda v: v.x > v.y, X > Y, 0),
    "im2col": (
        lambda v: tfe.im2col(v.i[:, :1], 2, 2, [2, 2], "VALID"),
        _windows(IMAGES)[0, 0].reshape(4, 4).T,
        0,
    ),
    "im2patches": (
        lambda v: tfe.im2patches(v.i[:, 1:], (2, 2), (2, 2), "VALID"),
        _windows(IMAGES)[:, 1].transpose(0, 3, 1, 2),
        0,
    ),
    "indexer": (lambda v: v.n[..., ::-2], N[..., ::-2], 0),
    "inv_sqrt": (lambda v: tfe.inv_sqrt(v.y), 1 / np.sqrt(Y), 4 * ULP),
    "less_equal": (lambda v: v.x <= v.y, X <= Y, 0),
    "less_than": (lambda v: v.x < 0, X < 0, 0),
    "log": (lambda v: tfe.log(v.y), np.log(Y), 4 * ULP),
    "logical_rshift": (
        lambda v: v.n.logical_rshift(3),
        (N.astype(np.uint64) >> np.uint64(3)).astype(np.int64),
        0,
    ),
    "lshift": (lambda v: v.x << 2, X * 4, 0),
    "lshift of bits": (lambda v: v.n << 2, N << 2, 0),
    "matmul": (lambda v: v.x.matmul(v.y.transpose()), X @ Y.T, 2 * ULP),
    "maximum": (lambda v: tfe.maximum(v.x, v.c), np.maximum(X, Y), 0),
    "maxpool2d": (
        lambda v: tfe.maxpool2d(v.i, (2, 2), (2, 2), "VALID"),
        _windows(IMAGES).max(4),
        0,
    ),
    "maxpool2d_with_argmax": (
        lambda v: tfe.maxpool2d_with_argmax(v.i, (2, 2), (2, 2), "VALID")[1],
        np.eye(4)[_windows(IMAGES).argmax(4)],
        0,
    ),
    "msb": (lambda v: tfe.msb(v.x), X < 0, 0),
    "mul": (lambda v: 2 * (v.x * v.y) * 0.25, X * Y / 2, 2 * ULP),
    "mul_ab": (lambda v: tfe.mul_ab(v.x, v.b), X * BITS, 0),
    "mul_pow2": (lambda v: tfe.mul_pow2(v.x, -1), X / 2, 2 * ULP),
    "mul_trunc2": (lambda v: tfe.mul_trunc2(v.x, v.y), X * Y, 2 * ULP),
    "negative": (lambda v: -v.x, -X, 0),
    "not_": (lambda v: ~v.n, ~N, 0),
    "not_ of one bit": (lambda v: ~v.b, ~BITS, 0),
    "or_": (lambda v: v.n | 5, N | 5, 0),
    "pad": (lambda v: tfe.pad(v.n, [[1, 0], [0, 2]]), np.pad(N, [[1, 0], [0, 2]]), 0),
    "patches2im": (
        lambda v: tfe.patches2im(
            tfe.im2patches(v.i[:, :1], (2, 2), (1, 1), "SAME"),
            (2, 2),
            (1, 1),
            "SAME",
            img_size=(4, 4),
        ),
        IMAGES[:, :1] * _times(),
        0,
    ),
    "polynomial": (lambda v: tfe.polynomial(v.x, [1, 0.5, 0, 2]), 1 + 0.5 * X + 2 * X**3, 32 * ULP),
    "polynomial_piecewise": (
        lambda v: tfe.polynomial_piecewise(v.x, (0, 2), ((0,), (0, 1), (2,))),
        np.clip(X, 0, 2),
        4 * ULP,
    ),
    "pow": (lambda v: v.x**3, X**3, 16 * ULP),
    "pow2_from_bits": (
        lambda v: tfe.pow2_from_bits(tfe.bits(v.n[:, :1], 5)),
        2.0 ** (N[:, :1] % 32),
        0,
    ),
    "ppa": (lambda v: tfe.ppa(v.n, v.m, topology="sklansky"), N + M, 0),
    "prod": (lambda v: tfe.prod(v.y, axis=1), Y.prod(1), 8 * ULP),
    "reciprocal": (lambda v: tfe.reciprocal(v.x), 1 / X, 4 * ULP),
    "reduce_max": (
        lambda v: tfe.reduce_max(v.x, axis=1, keepdims=True),
        X.max(1, keepdims=True),
        0,
    ),
    "reduce_max_with_argmax": (lambda v: tfe.reduce_max_with_argmax(v.x, 0)[0], X.max(0), 0),
    "reduce_sum": (lambda v: v.x.reduce_sum(axis=0), X.sum(0), 0),
    "relu": (lambda v: tfe.relu(v.x), np.maximum(X, 0), 0),
    "relu_with_cmp": (lambda v: tfe.relu_with_cmp(v.x)[1], X > 0, 0),
    "reshape": (lambda v: v.n.reshape([3, -1]), N.reshape(3, 2), 0),
    "reverse": (lambda v: tfe.reverse(v.n, [0, -1]), N[::-1, ::-1], 0),
    "rshift": (lambda v: v.n >> 2, N >> 2, 0),
    "rshift of numbers": (lambda v: v.x >> 1, X / 2, 2 * ULP),
    "scatter_nd": (
        lambda v: tfe.scatter_nd([[2], [0]], v.x, [3, 3]),
        np.stack([X[1], 0 * X[0], X[0]]),
        0,
    ),
    "select": (lambda v: tfe.select(v.b, v.x, 7), np.where(BITS, 7, X), 0),
    "select of public numbers": (lambda v: tfe.select(v.b, 2.5, -1), np.where(BITS, -1, 2.5), 0),
    "select of bits": (lambda v: tfe.select(v.b, v.b, v.y > 1), np.where(BITS, Y > 1, BITS), 0),
    "sigmoid": (lambda v: tfe.sigmoid(v.x), _lines(X), 4 * ULP),
    "sigmoid, exact": (
        lambda v: tfe.sigmoid(v.x, approx_type="exact"),
        scipy.special.expit(X),
        2 * ULP,
    ),
    "softmax": (lambda v: tfe.softmax(v.x), _softmax(X), 4 * ULP),
    "sort": (lambda v: tfe.sort(v.x, axis=1, acc=False), -np.sort(-X, 1), 0),
    "split": (lambda v: tfe.split(v.n, 3, axis=-1)[1], N[:, 1:2], 0),
    "sqrt": (lambda v: tfe.sqrt(v.y), np.sqrt(Y), 4 * ULP),
    "square": (lambda v: v.x.square(), X**2, 2 * ULP),
    "squeeze": (lambda v: tfe.squeeze(v.n[:1]), N[0], 0),
    "stack": (lambda v: tfe.stack([v.n, v.m], axis=-1), np.stack([N, M], -1), 0),
    "strided_slice": (
        lambda v: tfe.strided_slice(v.x, [1, -1], [2, -3], [1, -1]),
        X[1:2, -1:-3:-1],
        0,
    ),
    "sub": (lambda v: 1 - (v.x - v.c), 1 - X + Y, 0),
    "tanh": (lambda v: tfe.tanh(v.x), np.tanh(X), 2 * ULP),
    "tile": (lambda v: tfe.tile(v.n, [1, 2]), np.tile(N, [1, 2]), 0),
    "transpose": (lambda v: v.n.transpose(), N.T, 0),
    "truncate": (lambda v: tfe.truncate(v.x << 9, amount=10), X / 2, 2 * ULP),
    "truncate_msb0": (lambda v: tfe.truncate_msb0(v.y << 16), Y, 2 * ULP),
    "while_loop": (
        lambda v: tfe.while_loop(lambda i, a: i < 3, lambda i, a: (i + 1, a + 1), [0, v.x])[1],
        X + 3,
        0,
    ),
    "xor": (lambda v: tfe.xor(v.n, v.m) ^ 1, N ^ M ^ 1, 0),
    "xor_indices": (lambda v: tfe.xor_indices(v.n), _indices(N), 0),
    "zeros": (lambda v: tfe.zeros([2, 3]) + v.x, X, 0),
    "add of public ones": (lambda v: v.c + 1, Y + 1, 0),
    "less_than of public ones": (lambda v: v.c < 1, Y < 1, 0),
    "transpose of public ones": (lambda v: tfe.transpose(v.c), Y.T, 0),
    "concat of public ones": (lambda v: tfe.concat([v.c, v.c], 0), np.concatenate([Y, Y]), 0),
    "split of public ones": (lambda v: tfe.split(v.c, 3, axis=1)[2], Y[:, 2:], 0),
    "and_ of public ones": (lambda v: tfe.define_constant(6, False) & 3, 2, 0),
    "bit_gather of public ones": (
        lambda v: tfe.bit_gather(tfe.define_constant(N, apply_scaling=False), 1, 2),
        _gathered(N, 1, 2),
        0,
    ),
}

# Names of the protocol that create, release or refuse values; they have tests below.
OTHERS = {
    *("assign", "define_constant", "define_local_computation", "define_output"),
    *("define_private_input", "define_private_placeholder", "define_private_variable"),
    *("define_public_input", "define_public_variable", "lift", "local_computation", "reveal"),
    *("iterate", "read", "write", "reset", "blinded_shuffle", "from_bone", "pairwise_keys"),
}
TOGETHER = 14


@pytest.fixture(scope="module", autouse=True)
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with simulated(tmp_path_factory.mktemp("workers")) as config:
        yield config


@pytest.fixture(scope="module")
def operands(workers: Any) -> Any:
    def words(value: Any) -> Any:
        return tfe.define_private_variable(value, apply_scaling=False, share_type=ShareType.BOOLEAN)

    return SimpleNamespace(
        x=tfe.define_private_variable(X),
        y=tfe.define_private_input("bob", lambda: tf.constant(Y)),
        c=tfe.define_constant(Y),
        i=tfe.define_private_variable(IMAGES),
        k=tfe.define_private_variable(KERNEL),
        n=words(N),
        m=words(M),
        b=tfe.define_private_variable(
            BITS, apply_scaling=False, share_type=ShareType.BOOLEAN, factory=factories[tf.bool]
        ),
    )


@pytest.fixture(scope="module")
def results(operands: Any) -> dict[str, Any]:
    """Reveal the results of all cases, many in one job."""
    expressions = {name: of(operands) for name, (of, _, _) in CASES.items()}
    names = list(expressions)
    shown: dict[str, Any] = {}
    for start in range(0, len(names), TOGETHER):
        some = names[start : start + TOGETHER]
        shown.update(zip(some, tfe.reveal([expressions[n] for n in some]), strict=True))
    return {name: value.to_native().numpy() for name, value in shown.items()}


@pytest.mark.parametrize("name", CASES)
def test_a_name_is_what_it_is_in_the_clear(name: str, results: dict[str, Any]) -> None:
    _, expected, off = CASES[name]
    assert results[name].shape == np.shape(expected)
    assert np.abs(results[name].astype(float) - np.asarray(expected, float)).max() <= off


def test_every_name_has_a_case() -> None:
    public = {n for n in dir(ABY3) if not n.startswith("_") and callable(getattr(ABY3, n))}
    tried = {name.split(",")[0].split(" ")[0] for name in CASES}
    assert public == tried | OTHERS


def test_an_expression_is_one_plan_from_its_first_run_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise its graphs would be built twice."""
    plans: list[tuple[str, int]] = []
    build = building.build

    def built(*arguments: Any) -> Any:
        expression = build(*arguments)
        plans.append((expression.plan.graph_digest, len(expression.inputs)))
        return expression

    monkeypatch.setattr(array_jobs, "build", built)
    x = tfe.define_private_variable(np.arange(4.0))
    twice = x * 2
    for _ in range(3):
        result = (twice > x + 1.5).reveal().to_native().numpy()
        assert result.tolist() == [0, 0, 1, 1]
    (inputs, sent), *others = plans
    assert sent == 1
    assert others == [(others[0][0], 0)] * 3 and others[0][0] != inputs


def test_values_come_and_go_as_in_programs(workers: Any, operands: Any) -> None:
    @tfe.local_computation("bob")  # type: ignore[untyped-decorator]
    def provide() -> Any:
        return tf.ones([2]) * 1.5

    @tfe.local_computation  # type: ignore[untyped-decorator]
    def doubled(x: Any, player_name: str = "") -> Any:
        return x * 2

    x = provide()
    y = tfe.define_local_computation("carol", lambda a: a * 2, [x])
    messages: list[Any] = []
    tfe.define_output("carol", [x, y], lambda a, b: messages.extend([a.numpy(), b.numpy()]))
    assert [v.tolist() for v in messages] == [[1.5, 1.5], [3, 3]]
    with raises(UsageError, "missing-argument", operation="player_name"):
        doubled(x)
    w = tfe.define_private_variable(np.zeros(2))
    for _ in range(3):
        tfe.assign(w, w.read_value() + x)
    placeholder = tfe.define_private_placeholder([2])
    tfe.assign(placeholder, np.array([4.0, 5.0]))
    counter = tfe.define_public_variable(np.array(1))
    tfe.assign(counter, counter.read_value() * 3)
    assert (w + placeholder * counter).reveal().to_native().numpy().tolist() == [16.5, 19.5]
    assert tfe.define_public_input("bob", lambda: tf.constant([0.25])).decode().numpy() == 0.25
    assert tfe.lift(2).to_native().numpy() == 2
    assert "1.5" not in repr(x)


def test_a_value_is_computed_and_revealed_once(workers: Any, operands: Any) -> None:
    y = operands.x + 1
    y.reveal()
    before = len(workers.workers.jobs)
    assert (y.reveal().to_native().numpy() == X + 1).all()
    assert len(workers.workers.jobs) == before
    (y + 1).reveal()
    last = workers.workers.jobs[-1]["plan"]
    assert [leaf[0] for leaf in last["leaves"]] == ["handle"]


def test_a_variable_that_grows_is_run_on_the_way(workers: Any) -> None:
    w = tfe.define_private_variable(np.zeros(2))
    for _ in range(400):
        tfe.assign(w, w + 1)
    assert w.array._node.depth <= 151
    assert w.reveal().to_native().numpy().tolist() == [400, 400]


def test_kept_shares_are_read_again_in_batches(workers: Any, tmp_path: Any) -> None:
    for part in range(2):
        rows = tfe.define_private_variable(np.arange(8.0).reshape(4, 2) + 100 * part)
        rows.write(str(tmp_path / f"rows{part}"))
    batches = tfe.read([str(tmp_path / "rows0"), str(tmp_path / "rows1")], 1, [2, 4])
    values = [next(batches).reveal().to_native().numpy() for _ in range(3)]
    assert values[0].shape == (2, 4)
    assert [v[0, 0] for v in values] == [0, 100, 0]
    both = tfe.read([str(tmp_path / "rows0"), str(tmp_path / "rows1")], 2, [8, 2])
    assert next(both).reveal().to_native().numpy()[:, 0].tolist() == [
        0,
        2,
        4,
        6,
        100,
        102,
        104,
        106,
    ]
    some = tfe.iterate(rows, 3, repeat=False, shuffle=True, seed=1)
    assert [b.shape.as_list() for b in some] == [[3, 2]]


share_variable = tfe.define_private_variable
ARGUMENT = "unsupported-argument"
REFUSED: dict[str, tuple[Callable[[Any], Any], type[Exception], str]] = {
    "128 bits": (lambda v: tfe.ABY3(fixedpoint_config="h"), UsageError, "unsupported-ring"),
    "another precision": (lambda v: tfe.ABY3(fixedpoint_config="x"), UsageError, ARGUMENT),
    "shares": (lambda v: v.x.unwrapped, UsageError, "unsupported-operation"),
    "a key": (lambda v: tfe.pairwise_keys(), UsageError, "unsupported-operation"),
    "a shuffle": (lambda v: tfe.blinded_shuffle(v.x), UsageError, "unsupported-operation"),
    "fractions without scaling": (
        lambda v: share_variable(X, apply_scaling=False),
        UsageError,
        "not-an-integer",
    ),
    "no bit": (
        lambda v: share_variable(N, False, ShareType.BOOLEAN, factory=factories[tf.bool]),
        RangeError,
        "value-out-of-range",
    ),
    "too large for its ring": (
        lambda v: share_variable(N, False, factory=factories[tf.int8]),
        RangeError,
        "value-out-of-range",
    ),
    "too large": (lambda v: share_variable(np.array([1e300])), RangeError, "value-out-of-range"),
    "not a number": (
        lambda v: share_variable(np.array([np.nan])),
        RangeError,
        "value-out-of-range",
    ),
    "a text": (lambda v: share_variable(np.array(["a"])), UsageError, "not-a-number"),
    "bits as numbers": (lambda v: v.n * 2, UsageError, "wrong-share-type"),
    "numbers as bits": (lambda v: v.x ^ v.y, UsageError, "wrong-share-type"),
    "words of two widths": (lambda v: v.n & v.b, UsageError, "width-mismatch"),
    "another shape": (lambda v: tfe.assign(v.x, v.x[:1]), UsageError, "shape-mismatch"),
    "another kind": (
        lambda v: tfe.assign(v.x, tfe.argmax(v.x, axis=None)),
        UsageError,
        "not-an-integer",
    ),
    "a constant assigned to": (lambda v: tfe.assign(v.c, X), UsageError, "wrong-type"),
    "a truth value": (lambda v: bool(v.x > 0), TypeError, "Reveal"),
    "a mean over an edge": (
        lambda v: tfe.avgpool2d(v.i, (3, 3), (2, 2), "SAME"),
        UsageError,
        ARGUMENT,
    ),
    "a window that does not fit": (
        lambda v: tfe.im2col(v.i, 5, 5, [1, 1], "VALID"),
        UsageError,
        "shape-mismatch",
    ),
    "no padding": (lambda v: tfe.im2col(v.i, 2, 2, [1, 1], "FULL"), UsageError, ARGUMENT),
    "a curve": (lambda v: tfe.sigmoid(v.x, approx_type="taylor"), UsageError, ARGUMENT),
    "a remainder": (lambda v: v.x % 2, UsageError, "unsupported-operation"),
    "appended shares": (lambda v: v.x.write("a", append=True), UsageError, ARGUMENT),
    "what is no tensor": (lambda v: tfe.reveal(3), UsageError, "wrong-type"),
    "a queue": (lambda v: tfe.queue, UsageError, "unsupported-operation"),
    "no such name": (lambda v: tfe.sigmoit, AttributeError, "sigmoid"),
    "another ring": (lambda v: factories[100], UsageError, "unsupported-ring"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_offered_is_refused_in_words(name: str, operands: Any) -> None:
    do, kind, words = REFUSED[name]
    with refuses(kind, words):
        do(operands)


def test_other_protocols_say_that_abys_runs(workers: Any) -> None:
    with pytest.warns(UserWarning, match="replicated"), tfe.Pond() as pond:
        assert tfe.get_protocol() is pond
        x = tfe.define_private_variable(np.array([2.0]))
        assert x.reveal().to_native().numpy() == 2
    assert tfe.get_protocol() is not pond

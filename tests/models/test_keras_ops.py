"""Operations on Keras' tensors compute the same as Keras, or are refused with an error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.models.test_execute import ULP, make_case, run_all
from tests.refusals import Matching, raises
from tfe_bench.cluster.simulate import assert_costs
from tfe_bench.errors import UsageError
from tfe_bench.models.convert import from_keras, optimize, plaintext
from tfe_bench.models.inference import execute
from tfe_bench.models.inference.private import convert

keras: Any = pytest.importorskip("keras")
K: Any = keras.ops
Array = np.ndarray[Any, Any]
Written = Callable[[Any, Any], Any]

PAIR = np.array([1.0, -2.0], np.float32)
WHOLE = np.linspace(-1, 2, 32, dtype=np.float32).reshape(4, 4, 2)

# Operations on x and y, both [batch, 4, 4, 2]; y > 0.
OPERATIONS: dict[str, Written] = {
    "add": lambda x, y: x + y,
    "add a number": lambda x, y: 1.5 + x,
    "add numbers": lambda x, y: x + PAIR,
    "add a broadcast": lambda x, y: x + y[:, :1, :, :1],
    "subtract": lambda x, y: x - y,
    "subtract from a number": lambda x, y: 2 - x,
    "negative": lambda x, y: -x,
    "multiply": lambda x, y: x * y,
    "multiply by a number": lambda x, y: x * -0.3,
    "multiply by numbers": lambda x, y: x * WHOLE,
    "multiply to a larger one": lambda x, y: x[:, :1] * WHOLE,
    "divide": lambda x, y: x / y,
    "divide by a number": lambda x, y: x / 3,
    "divide a number": lambda x, y: K.divide(PAIR, y),
    "square": lambda x, y: K.square(x),
    "to the 5th": lambda x, y: x**5,
    "to the first": lambda x, y: x**1 + 0,
    "to the -1/2": lambda x, y: y**-0.5,
    "maximum": K.maximum,
    "maximum of a number": lambda x, y: K.maximum(0.3, x),
    "minimum": K.minimum,
    "minimum of numbers": lambda x, y: K.minimum(x, PAIR),
    "clip": lambda x, y: K.clip(x, -0.5, 0.7),
    "where": lambda x, y: K.where(x > y, x, y),
    "where of numbers": lambda x, y: K.where(x >= 0.2, 1.0, PAIR),
    "and, not": lambda x, y: K.where(K.logical_and(x < 1, K.logical_not(y <= 1)), x, 2.0),
    "or": lambda x, y: K.cast(K.logical_or(x > 0, y > 1), "float32"),
    "equal": lambda x, y: K.cast(K.equal(K.relu(x), 0), "float32"),
    "not equal": lambda x, y: K.cast(K.not_equal(K.relu(x), 0), "float16") * y,
    "abs": lambda x, y: abs(x),
    "sqrt": lambda x, y: K.sqrt(y),
    "rsqrt": lambda x, y: K.rsqrt(y),
    "reciprocal": lambda x, y: K.reciprocal(-y),
    "log": lambda x, y: K.log(y),
    "relu": lambda x, y: K.relu6(K.relu(x) * 9),
    "sigmoid, tanh, silu": lambda x, y: K.sigmoid(x) + K.tanh(x) + K.silu(x),
    "softmax": lambda x, y: K.softmax(x, axis=1),
    "leaky relu": lambda x, y: K.leaky_relu(x, 0.3),
    "reshape": lambda x, y: K.reshape(x, (-1, 8, 4)),
    "transpose": lambda x, y: K.transpose(x, (0, 3, 1, 2)),
    "a part": lambda x, y: x[:, 1:3, ::2, 0],
    "one of each": lambda x, y: x[:, -1],
    "backward": lambda x, y: x[:, ::-1],
    "a new axis": lambda x, y: x[..., None],
    "split": lambda x, y: K.split(x, 2, axis=2),
    "split at places": lambda x, y: K.split(x, [1, 3], axis=1),
    "unstack": lambda x, y: K.unstack(x, axis=3),
    "stack": lambda x, y: K.stack([x, y], axis=2),
    "concatenate": lambda x, y: K.concatenate([x, y], axis=-1),
    "take": lambda x, y: K.take(x, [2, 0, 0], axis=1),
    "flip": lambda x, y: K.flip(x, axis=2),
    "roll": lambda x, y: K.roll(x, 1, axis=1),
    "repeat": lambda x, y: K.repeat(x, 3, axis=2),
    "tile": lambda x, y: K.tile(x, (1, 2, 1, 3)),
    "swapaxes": lambda x, y: K.swapaxes(x, 1, 3),
    "moveaxis": lambda x, y: K.moveaxis(x, -1, 1),
    "squeeze": lambda x, y: K.squeeze(x[:, :1], 1),
    "expand": lambda x, y: K.expand_dims(x, 2),
    "pad by reflection": lambda x, y: K.pad(x, [[0, 0], [1, 1], [2, 0], [0, 0]], mode="reflect"),
    "pad": lambda x, y: K.pad(x, [[0, 0], [1, 1], [2, 0], [0, 0]]),
    "pad channels": lambda x, y: K.pad(x, [[0, 0], [1, 0], [0, 0], [1, 2]]),
    "gelu, elu, threshold": lambda x, y: K.gelu(x) + K.elu(x, 0.7) + K.threshold(x, 0.1, -1),
    "exp, log softmax": lambda x, y: K.exp(x) + K.log_softmax(x),
    "matrices": lambda x, y: x @ K.transpose(y, (0, 1, 3, 2)),
    "matrices, broadcast": lambda x, y: x[:, :1, :2] @ K.transpose(y, (0, 1, 3, 2)),
    "a matrix of numbers": lambda x, y: K.matmul(x, WHOLE[0, :2]),
    "numbers before": lambda x, y: K.matmul(WHOLE[:, 0, 0][None] * PAIR[:, None], x),
    "mean": lambda x, y: K.mean(x, axis=(1, 2)),
    "mean of channels": lambda x, y: K.mean(x, axis=-1, keepdims=True),
    "sum": lambda x, y: K.sum(x, axis=1),
    "max": lambda x, y: K.max(x, axis=(-1, 1)),
    "min": lambda x, y: K.min(x, axis=2),
    "variance": lambda x, y: K.var(x, axis=(1, 2)),
    "deviation": lambda x, y: K.std(y, axis=-1),
    "a number a sample": lambda x, y: K.sum(x, axis=(1, 2, 3)),
    "one place": lambda x, y: y[:, -1, 0, 1],
    "numbers among themselves": lambda x, y: (
        2 * K.relu(K.mean(x, axis=(1, 2, 3)) - x[:, 0, 0, 0]) / y[:, 1, 1, 1] - 1
    ),
    "numbers in a row": lambda x, y: K.stack([K.max(x, axis=(1, 2, 3)), y[:, 0, 0, 0]], axis=-1),
    "a number and its axis": lambda x, y: x[:, 0, 0] * K.expand_dims(K.std(y, (1, 2, 3)), -1),
    "a number and several": lambda x, y: [K.min(x, axis=(1, 2, 3)), x[:, 0], y[:, 0, 0, 1]],
    "a column of numbers": lambda x, y: K.matmul(x, PAIR),
    "a column of rows": lambda x, y: K.matmul(x[:, 0, 0], PAIR),
    "one tensor several times": lambda x, y: (x + x) * x - x,
}


def model_of(written: Written, apart: bool = True) -> Any:
    """Build a model of two inputs, or of one input that holds both."""
    if apart:
        model_inputs = [keras.Input((4, 4, 2)), keras.Input((4, 4, 2))]
        return keras.Model(model_inputs, written(*model_inputs))
    both = keras.Input((4, 4, 4))
    output = written(both[..., :2], both[..., 2:])
    return keras.Model(both, output[-1] if isinstance(output, (list, tuple)) else output)


def draw_inputs(rng: np.random.Generator) -> list[Array]:
    x, y = rng.normal(size=(2, 3, 4, 4, 2)).clip(-2, 2).astype(np.float32)
    return [x, np.abs(y) + 0.25]


def list_outputs(outputs: Any) -> list[Array]:
    return [np.asarray(v) for v in (outputs if isinstance(outputs, (list, tuple)) else [outputs])]


@pytest.mark.parametrize("name", OPERATIONS)
def test_each_operation_is_what_keras_computes(name: str, rng: np.random.Generator) -> None:
    model, arrays = model_of(OPERATIONS[name]), draw_inputs(rng)
    graph = from_keras.from_keras(model)
    for each in (graph, optimize.optimize_graph(graph)):
        pairs = zip(
            plaintext.evaluate_graph(each, arrays), list_outputs(model(arrays)), strict=True
        )
        for got, want in pairs:
            assert got.shape == want.shape and np.allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("calibrated", [True, False])
def test_private_operations_agree_and_cost_what_is_declared(
    calibrated: bool, rng: np.random.Generator
) -> None:
    """Run alternate operations with calibration, and the others without."""
    names = [n for i, n in enumerate(OPERATIONS) if i % 2 == calibrated]
    some, expected = [], []
    both = np.concatenate(draw_inputs(rng), -1)
    for name in names:
        model = model_of(OPERATIONS[name], apart=False)
        # (an exponential without samples is refused: its assumed range 2^14 is too large)
        known = calibrated or "exp" in name
        private = convert(model, samples=both if known else None)
        some.append(make_case(private, both))
        expected.append(np.asarray(model(both)))
    results = zip(names, some, expected, run_all(some, 0), strict=True)
    for name, (s, _, _), want, (ring, calls) in results:
        (got,) = plaintext.finish_model_outputs(s.plan.graph, [ring])
        assert got.shape == want.shape, name
        assert np.abs(got - want).max() < 256 * ULP, name
        assert_costs(calls, execute.model_cost(s))


@pytest.mark.parametrize(
    ("written", "why"),
    [
        (lambda x, y: K.flip(x, axis=0), "values of one sample into another"),
        (lambda x, y: K.reshape(x, (-1,)), "batch's axis does not stay"),
        (lambda x, y: K.mean(x), "over all axes"),
        (lambda x, y: K.sum(x, axis=(0, 1)), "axis 0 is the batch"),
        (lambda x, y: K.sum(x, axis=(1, 2, 3)) + x[:, 0, 0], "ranks that differ"),
        (lambda x, y: K.sum(x, axis=(1, 2, 3)) + PAIR, "for each sample of the batch"),
        (lambda x, y: x + y[:, 0], "ranks that differ"),
        (lambda x, y: x**0.7, "power of 0.7"),
        (lambda x, y: x**y, "powers other than one number"),
        (lambda x, y: x / 0.0, "divides by 0"),
        (lambda x, y: x + np.float32(np.nan), "NaN"),
        (lambda x, y: K.where(x, x, y), "comparison"),
        (lambda x, y: K.cast(x, "int32"), "from float32 to int32"),
        (lambda x, y: K.matmul(x, WHOLE.reshape(4, 2, 4)), "a matrix is supported"),
        (lambda x, y: K.clip(x, y, 3), "between tensors"),
        (lambda x, y: K.max(x, axis=1, initial=0.5), "initial=0.5"),
        (lambda x, y: K.fft((x, y))[0], "an operation that is not supported"),
        (lambda x, y: keras.layers.Lambda(lambda t: t + 1)(x), "code"),
    ],
)
def test_what_has_no_private_counterpart_is_refused_by_name(written: Written, why: str) -> None:
    with raises(UsageError, "unsupported-layer", received=Matching(why)):
        from_keras.from_keras(model_of(written))

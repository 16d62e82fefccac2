"""+, -, *, / and powers, of tensors and of numbers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tfe_bench.models.convert.keras_ops.reductions import read_reduction_axes
from tfe_bench.models.layers import base as L
from tfe_bench.models.layers.base import Array, Shape

_MOST_POWER = 8
_LARGEST = float(np.finfo(np.float32).max)


def add_rescale_layer(
    r: L.Reader, name: str, x: L.TensorValue, factor: Array, offset: Array, shape: Shape
) -> str:
    """Add factor x + offset, of numbers that broadcast to a shape.

    One number for all elements is public, as options are; several are weights.
    """
    if shape != x.shape:
        x = broadcast_tensor(r, f"{name}/spread", x, shape)
    if factor.size == offset.size == 1:
        options = {"scale": float(factor.reshape(())), "offset": float(offset.reshape(()))}
        return r.add_layer(name, "rescale", [x.name], None, **options)
    if not r.training and factor.size == 1 and factor.item() == 1:
        bias = np.broadcast_to(_drop_constant_batch_axis(offset, shape), shape).copy()
        return r.add_layer(name, "offset", [x.name], {"bias": bias})
    flat = [
        np.broadcast_to(_drop_constant_batch_axis(v, shape), shape).reshape(-1)
        for v in (factor, offset)
    ]
    weights = {"kernel": flat[0], "bias": flat[1]}
    row = r.add_layer(
        r.make_unique(f"{name}/row"), "reshape", [x.name], None, shape=[math.prod(shape)]
    )
    scaled = r.add_layer(r.make_unique(f"{name}/scaled"), "affine", [row], weights)
    return r.add_layer(name, "reshape", [scaled], None, shape=list(shape))


def _drop_constant_batch_axis(array: Array, shape: Shape) -> Array:
    """Remove the batch axis of a constant, along which it cannot differ."""
    if array.ndim > len(shape) + 1 or (array.ndim == len(shape) + 1 and len(array) != 1):
        raise L.UnsupportedLayer(
            f"with numbers of shape {list(array.shape)} for each sample of the batch"
        )
    return array[0] if array.ndim == len(shape) + 1 else array


def broadcast_tensor(r: L.Reader, name: str, x: L.TensorValue, shape: Shape) -> L.TensorValue:
    """Broadcast a value to a shape."""
    if len(x.shape) != len(shape):
        raise L.UnsupportedLayer(
            f"broadcasts {[None, *x.shape]} to {[None, *shape]}; reshape it first"
        )
    times = [n if k == 1 else 1 for k, n in zip(x.shape, shape, strict=True)]
    if all(k == 1 for k in times):
        return x
    return L.TensorValue(
        r.add_layer(r.make_unique(name), "repeat", [x.name], None, times=times), shape, x.dtype
    )


ONE, ZERO = np.ones(()), np.zeros(())


def add_linear_sum_layer(
    r: L.Reader, op: L.KerasOperation, terms: list[tuple[float, L.Operand]], name: str | None = None
) -> str:
    """Add a sum of one or two tensors or numbers, each times 1 or -1, not both times -1."""
    name = name or op.name
    tensors = [(sign, v) for sign, v in terms if isinstance(v, L.TensorValue)]
    constant = sum(
        (sign * L.read_constant(v) for sign, v in terms if not isinstance(v, L.TensorValue)), ZERO
    )
    if len(tensors) == 1:
        ((sign, x),) = tensors
        return add_rescale_layer(
            r, name, x, np.asarray(float(sign)), np.asarray(constant), op.shape
        )
    (_, x), (second, y) = sorted(tensors, key=lambda term: -term[0])  # x - y rather than -y + x
    L.check_same_rank([x, y])
    return r.add_layer(name, "add" if second > 0 else "subtract", [x.name, y.name])


@L.register_reader("Add")
def convert_keras_add(r: L.Reader, op: L.KerasOperation, x1: L.Operand, x2: L.Operand) -> str:
    return add_linear_sum_layer(r, op, [(1, x1), (1, x2)])


@L.register_reader("Subtract")
def convert_keras_subtract(r: L.Reader, op: L.KerasOperation, x1: L.Operand, x2: L.Operand) -> str:
    return add_linear_sum_layer(r, op, [(1, x1), (-1, x2)])


@L.register_reader("Negative")
def convert_keras_negative(r: L.Reader, op: L.KerasOperation, x: L.TensorValue) -> str:
    return add_linear_sum_layer(r, op, [(-1, x)])


@L.register_reader("Multiply")
def convert_keras_multiply(r: L.Reader, op: L.KerasOperation, x1: L.Operand, x2: L.Operand) -> str:
    if isinstance(x1, L.TensorValue) and isinstance(x2, L.TensorValue):
        L.check_same_rank([x1, x2])
        return r.add_layer(op.name, "multiply", [x1.name, x2.name])
    x, c = (x1, x2) if isinstance(x1, L.TensorValue) else (x2, x1)
    assert isinstance(x, L.TensorValue)
    return add_rescale_layer(r, op.name, x, L.read_constant(c), ZERO, op.shape)


@L.register_reader("TrueDivide", "Divide")
def convert_keras_divide(r: L.Reader, op: L.KerasOperation, x1: L.Operand, x2: L.Operand) -> str:
    if not isinstance(x2, L.TensorValue):
        c = L.read_constant(x2)
        if not c.all():
            raise L.UnsupportedLayer("divides by 0")
        assert isinstance(x1, L.TensorValue)
        return add_rescale_layer(r, op.name, x1, 1 / c, ZERO, op.shape)
    if isinstance(x1, L.TensorValue):
        L.check_same_rank([x1, x2])
        x1, x2 = (broadcast_tensor(r, f"{op.name}/spread", v, op.shape) for v in (x1, x2))
        return r.add_layer(op.name, "divide", [x1.name, x2.name])
    inverse = r.add_layer(r.make_unique(f"{op.name}/inverse"), "reciprocal", [x2.name])
    return add_rescale_layer(
        r, op.name, L.TensorValue(inverse, x2.shape, x2.dtype), L.read_constant(x1), ZERO, op.shape
    )


@L.register_reader("Square")
def convert_keras_square(r: L.Reader, op: L.KerasOperation, x: L.TensorValue) -> str:
    return r.add_layer(op.name, "multiply", [x.name, x.name])


@L.register_reader("Power")
def convert_keras_power(r: L.Reader, op: L.KerasOperation, x1: L.Operand, x2: L.Operand) -> str:
    """Convert x^n for small n, and the powers that have their own protocols."""
    special_powers = {0.5: "sqrt", -0.5: "rsqrt", -1.0: "reciprocal"}
    if (
        not isinstance(x1, L.TensorValue)
        or isinstance(x2, L.TensorValue)
        or L.read_constant(x2).size != 1
    ):
        raise L.UnsupportedLayer("to powers other than one number; only x ** n is supported")
    n = float(L.read_constant(x2).reshape(()))
    if n in special_powers:
        return r.add_layer(op.name, special_powers[n], [x1.name])
    if n == 1:
        return x1.name
    if n != int(n) or not 2 <= n <= _MOST_POWER:
        raise L.UnsupportedLayer(
            f"to the power of {n:g}; -1, -0.5, 0.5 and 1 to {_MOST_POWER} are supported"
        )
    # x^n by squares, so that few products depend on each other
    names: dict[int, str] = {1: x1.name}

    def add_power_layers(k: int) -> str:
        if k not in names:
            halves = [add_power_layers(k // 2), add_power_layers(k - k // 2)]
            name = op.name if k == n else r.make_unique(f"{op.name}/{k}")
            names[k] = r.add_layer(name, "multiply", halves)
        return names[k]

    return add_power_layers(int(n))


@L.register_reader("Maximum", "Minimum")
def convert_keras_extreme(r: L.Reader, op: L.KerasOperation, x1: L.Operand, x2: L.Operand) -> str:
    """Convert a maximum or minimum.

    max(x, y) = y + relu(x - y), min(x, y) = y - relu(y - x).
    """
    sign = 1.0 if type(op.keras_operation).__name__ == "Maximum" else -1.0
    x, y = (x1, x2) if isinstance(x1, L.TensorValue) else (x2, x1)
    assert isinstance(x, L.TensorValue)
    return _add_relu_of_difference(r, op, x, y, sign, None)


def _add_relu_of_difference(
    r: L.Reader,
    op: L.KerasOperation,
    x: L.TensorValue,
    y: L.Operand,
    sign: float,
    max_value: float | None,
) -> str:
    """Add y + sign * relu(sign * (x - y)), the ReLU at most `max_value`."""
    difference = add_linear_sum_layer(
        r, op, [(sign, x), (-sign, y)], r.make_unique(f"{op.name}/apart")
    )
    rectified = r.add_layer(
        r.make_unique(f"{op.name}/relu"), "relu", [difference], None, max_value=max_value
    )
    if not isinstance(y, L.TensorValue) and not L.read_constant(y).any() and sign > 0:
        return rectified
    return add_linear_sum_layer(
        r, op, [(sign, L.TensorValue(rectified, op.shape, x.dtype)), (1, y)]
    )


@L.register_reader("Clip")
def convert_keras_clip(
    r: L.Reader, op: L.KerasOperation, x: L.TensorValue, x_min: L.Operand, x_max: L.Operand
) -> str:
    """Convert clipping to two numbers: x_min + relu(x - x_min), and at most x_max."""
    if isinstance(x_min, L.TensorValue) or isinstance(x_max, L.TensorValue):
        raise L.UnsupportedLayer("between tensors; use keras.ops.maximum and minimum")
    low, high = L.read_constant(x_min), L.read_constant(x_max)
    if low.size != 1 or high.size != 1 or not low < high:
        raise L.UnsupportedLayer("requires two numbers, the larger last")
    return _add_relu_of_difference(r, op, x, low.reshape(()), 1.0, float((high - low).reshape(())))


@L.register_reader("Where")
def convert_keras_where(
    r: L.Reader, op: L.KerasOperation, condition: L.TensorValue, x1: L.Operand, x2: L.Operand
) -> str:
    """Convert a selection: x2 + condition (x1 - x2)."""
    if not isinstance(condition, L.TensorValue) or condition.dtype != "bool":
        raise L.UnsupportedLayer("requires a comparison as its condition")
    x1, x2 = (_clip_infinite_constants(v) for v in (x1, x2))
    if not isinstance(x1, L.TensorValue) and not isinstance(x2, L.TensorValue):
        one, other = L.read_constant(x1), L.read_constant(x2)
        return add_rescale_layer(r, op.name, condition, one - other, other, op.shape)
    difference = add_linear_sum_layer(r, op, [(1, x1), (-1, x2)], r.make_unique(f"{op.name}/apart"))
    chosen = r.add_layer(
        r.make_unique(f"{op.name}/chosen"), "multiply", [condition.name, difference]
    )
    return add_linear_sum_layer(r, op, [(1, L.TensorValue(chosen, op.shape, "float32")), (1, x2)])


def _clip_infinite_constants(x: L.Operand) -> L.Operand:
    """Replace infinity by the largest float32 number, which has the same effect in a softmax."""
    if isinstance(x, L.TensorValue):
        return x
    read = getattr(x, "numpy", None)
    array = np.asarray(x if read is None else read())
    return np.clip(array, -_LARGEST, _LARGEST) if array.dtype.kind == "f" else array


# ---- comparisons: [d < 0] or [d = 0] of a difference d, 1 or 0

# The kind, the sign of x in the difference, and whether the result is inverted.
_COMPARISONS = {
    "Less": ("negative", 1, False),
    "Greater": ("negative", -1, False),
    "LessEqual": ("negative", -1, True),
    "GreaterEqual": ("negative", 1, True),
    "Equal": ("zero", 1, False),
    "NotEqual": ("zero", 1, True),
}


@L.register_reader(*_COMPARISONS)
def convert_keras_comparison(
    r: L.Reader, op: L.KerasOperation, x1: L.Operand, x2: L.Operand
) -> str:
    kind, sign, is_inverted = _COMPARISONS[type(op.keras_operation).__name__]
    if (
        kind == "zero"
        and not r.training
        and (number := _find_compared_token(r, x1, x2)) is not None
    ):
        assert isinstance(x1, L.TensorValue)
        return r.add_token_test(op.name, x1.name, x1.shape, number, is_inverted)
    difference = add_linear_sum_layer(
        r, op, [(sign, x1), (-sign, x2)], r.make_unique(f"{op.name}/apart")
    )
    return r.add_layer(op.name, kind, [difference], None, inverted=is_inverted)


def _find_compared_token(r: L.Reader, x: L.Operand, y: L.Operand) -> int | None:
    """Return the number that an input is compared with, if it may be a token's."""
    if not isinstance(x, L.TensorValue) or x.name not in r.inputs or isinstance(y, L.TensorValue):
        return None
    constant = L.read_constant(y)
    whole = constant.size == 1 and float(constant.reshape(())) in range(1 << 31)
    return int(constant.reshape(())) if whole else None


@L.register_reader("LogicalNot")
def convert_keras_logical_not(r: L.Reader, op: L.KerasOperation, x: L.TensorValue) -> str:
    return add_rescale_layer(r, op.name, _check_keras_comparison(r, x), -ONE, ONE, op.shape)


@L.register_reader("LogicalAnd", "LogicalOr")
def convert_keras_logical(
    r: L.Reader, op: L.KerasOperation, x1: L.TensorValue, x2: L.TensorValue
) -> str:
    """Convert a b, or 1 - (1 - a)(1 - b)."""
    L.check_same_rank([_check_keras_comparison(r, x1), _check_keras_comparison(r, x2)])
    join = (
        L.masks.and_sequence_masks
        if type(op.keras_operation).__name__ == "LogicalAnd"
        else L.masks.or_sequence_masks
    )
    return join(r, op.name, [x1.name, x2.name])


@L.register_reader("Any", "All")
def convert_keras_all_or_any(
    r: L.Reader, op: L.KerasOperation, x: L.TensorValue, axis: Any, keepdims: bool
) -> str:
    """Convert: the count of true values equals their number, or is not 0."""
    every = type(op.keras_operation).__name__ == "All"
    axes = read_reduction_axes(axis, len(_check_keras_comparison(r, x).shape))
    total = L.add_reduction_layer(
        r, r.make_unique(f"{op.name}/count"), "global_sum_pool2d", x, axes, op.shape
    )
    count = math.prod(x.shape[a] for a in axes)
    if every:
        options = {"scale": 1.0, "offset": -float(count)}
        total = r.add_layer(r.make_unique(f"{op.name}/less"), "rescale", [total], None, **options)
    return r.add_layer(op.name, "zero", [total], None, inverted=not every)


def _check_keras_comparison(r: L.Reader, x: L.Operand) -> L.TensorValue:
    if not isinstance(x, L.TensorValue) or x.dtype != "bool":
        raise L.UnsupportedLayer("requires comparisons")
    L.masks.check_sequence_mask(r, x.name)
    return x


# ---- functions of one value with a kind each


@L.register_reader("Absolute", "Abs", "Fabs", "Sqrt", "Rsqrt", "Reciprocal", "Log")
def convert_keras_function(r: L.Reader, op: L.KerasOperation, x: L.TensorValue) -> str:
    name = type(op.keras_operation).__name__.lower()
    return r.add_layer(op.name, {"absolute": "abs", "fabs": "abs"}.get(name, name), [x.name])


@L.register_reader("Cast")
def convert_keras_cast(r: L.Reader, op: L.KerasOperation, x: L.TensorValue, dtype: str) -> str:
    """Convert a change of width, or between truth values and numbers: nothing changes."""
    real = ("float", "bfloat")
    if dtype == "bool" or (x.dtype == "bool" and not str(dtype).startswith(real)):
        return L.masks.check_sequence_mask(r, x.name)
    if x.dtype.startswith(real) and not str(dtype).startswith(real):
        raise L.UnsupportedLayer(f"from {x.dtype} to {dtype}")
    return x.name


@L.register_reader("Copy")
def convert_keras_copy(r: L.Reader, op: L.KerasOperation, x: L.TensorValue) -> str:
    return x.name


@L.register_reader("StopGradient")
def convert_keras_stop_gradient(r: L.Reader, op: L.KerasOperation, variable: L.TensorValue) -> str:
    if r.training:
        raise L.UnsupportedLayer(
            "it stops gradients; freeze the layers before it with trainable=False"
        )
    return variable.name

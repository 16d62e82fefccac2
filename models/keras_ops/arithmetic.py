"""+, -, *, / and powers, of tensors and of numbers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tfe_bench.models.keras_ops.reductions import axes_of, reduced
from tfe_bench.models.kinds import masks
from tfe_bench.models.kinds.calls import Operand, Operation, Value, numbers, one_rank, reads
from tfe_bench.models.kinds.layer import Array, Shape
from tfe_bench.models.kinds.reading import Reader, Unfit

_MOST_POWER = 8
_LARGEST = float(np.finfo(np.float32).max)


def rescaled(r: Reader, name: str, x: Value, factor: Array, offset: Array, shape: Shape) -> str:
    """factor x + offset of numbers that broadcast to a shape, as layers.

    One number for all elements is public, as an option is; several are weights.
    """
    if shape != x.shape:
        x = spread(r, f"{name}/spread", x, shape)
    if factor.size == offset.size == 1:
        options = {"scale": float(factor.reshape(())), "offset": float(offset.reshape(()))}
        return r.emit(name, "rescale", [x.name], None, **options)
    if not r.training and factor.size == 1 and factor.item() == 1:
        bias = np.broadcast_to(_fitting(offset, shape), shape).copy()
        return r.emit(name, "offset", [x.name], {"bias": bias})
    flat = [np.broadcast_to(_fitting(v, shape), shape).reshape(-1) for v in (factor, offset)]
    weights = {"kernel": flat[0], "bias": flat[1]}
    row = r.emit(r.unique(f"{name}/row"), "reshape", [x.name], None, shape=[math.prod(shape)])
    scaled = r.emit(r.unique(f"{name}/scaled"), "affine", [row], weights)
    return r.emit(name, "reshape", [scaled], None, shape=list(shape))


def _fitting(array: Array, shape: Shape) -> Array:
    """A constant without the batch's axis, in which it cannot differ."""
    if array.ndim > len(shape) + 1 or (array.ndim == len(shape) + 1 and len(array) != 1):
        raise Unfit(f"with numbers of shape {list(array.shape)} for each sample of the batch")
    return array[0] if array.ndim == len(shape) + 1 else array


def spread(r: Reader, name: str, x: Value, shape: Shape) -> Value:
    """A value broadcast to a shape."""
    if len(x.shape) != len(shape):
        raise Unfit(f"broadcasts {[None, *x.shape]} to {[None, *shape]}; reshape it first")
    times = [n if k == 1 else 1 for k, n in zip(x.shape, shape, strict=True)]
    if all(k == 1 for k in times):
        return x
    return Value(r.emit(r.unique(name), "repeat", [x.name], None, times=times), shape, x.dtype)


ONE, ZERO = np.ones(()), np.zeros(())


def linear(
    r: Reader, op: Operation, terms: list[tuple[float, Operand]], name: str | None = None
) -> str:
    """A sum of two tensors or numbers, or one, each times 1 or -1; not both times -1."""
    name = name or op.name
    tensors = [(sign, v) for sign, v in terms if isinstance(v, Value)]
    constant = sum((sign * numbers(v) for sign, v in terms if not isinstance(v, Value)), ZERO)
    if len(tensors) == 1:
        ((sign, x),) = tensors
        return rescaled(r, name, x, np.asarray(float(sign)), np.asarray(constant), op.shape)
    (_, x), (second, y) = sorted(tensors, key=lambda term: -term[0])  # x - y, not -y + x
    one_rank([x, y])
    return r.emit(name, "add" if second > 0 else "subtract", [x.name, y.name])


@reads("Add")
def add(r: Reader, op: Operation, x1: Operand, x2: Operand) -> str:
    return linear(r, op, [(1, x1), (1, x2)])


@reads("Subtract")
def subtract(r: Reader, op: Operation, x1: Operand, x2: Operand) -> str:
    return linear(r, op, [(1, x1), (-1, x2)])


@reads("Negative")
def negative(r: Reader, op: Operation, x: Value) -> str:
    return linear(r, op, [(-1, x)])


@reads("Multiply")
def multiply(r: Reader, op: Operation, x1: Operand, x2: Operand) -> str:
    if isinstance(x1, Value) and isinstance(x2, Value):
        one_rank([x1, x2])
        return r.emit(op.name, "multiply", [x1.name, x2.name])
    x, c = (x1, x2) if isinstance(x1, Value) else (x2, x1)
    assert isinstance(x, Value)
    return rescaled(r, op.name, x, numbers(c), ZERO, op.shape)


@reads("TrueDivide", "Divide")
def divide(r: Reader, op: Operation, x1: Operand, x2: Operand) -> str:
    if not isinstance(x2, Value):
        c = numbers(x2)
        if not c.all():
            raise Unfit("divides by 0")
        assert isinstance(x1, Value)
        return rescaled(r, op.name, x1, 1 / c, ZERO, op.shape)
    if isinstance(x1, Value):
        one_rank([x1, x2])
        x1, x2 = (spread(r, f"{op.name}/spread", v, op.shape) for v in (x1, x2))
        return r.emit(op.name, "divide", [x1.name, x2.name])
    inverse = r.emit(r.unique(f"{op.name}/inverse"), "reciprocal", [x2.name])
    return rescaled(r, op.name, Value(inverse, x2.shape, x2.dtype), numbers(x1), ZERO, op.shape)


@reads("Square")
def square(r: Reader, op: Operation, x: Value) -> str:
    return r.emit(op.name, "multiply", [x.name, x.name])


@reads("Power")
def power(r: Reader, op: Operation, x1: Operand, x2: Operand) -> str:
    """x^n for small n, and the powers that have protocols of their own."""
    own = {0.5: "sqrt", -0.5: "rsqrt", -1.0: "reciprocal"}
    if not isinstance(x1, Value) or isinstance(x2, Value) or numbers(x2).size != 1:
        raise Unfit("to powers other than one number; only x ** n is supported")
    n = float(numbers(x2).reshape(()))
    if n in own:
        return r.emit(op.name, own[n], [x1.name])
    if n == 1:
        return x1.name
    if n != int(n) or not 2 <= n <= _MOST_POWER:
        raise Unfit(f"to the power of {n:g}; -1, -0.5, 0.5 and 1 to {_MOST_POWER} are supported")
    # x^n by squares, so that few products wait for each other
    names: dict[int, str] = {1: x1.name}

    def raised(k: int) -> str:
        if k not in names:
            halves = [raised(k // 2), raised(k - k // 2)]
            name = op.name if k == n else r.unique(f"{op.name}/{k}")
            names[k] = r.emit(name, "multiply", halves)
        return names[k]

    return raised(int(n))


@reads("Maximum", "Minimum")
def extreme(r: Reader, op: Operation, x1: Operand, x2: Operand) -> str:
    """max(x, y) = y + relu(x - y), min(x, y) = y - relu(y - x)."""
    sign = 1.0 if type(op.own).__name__ == "Maximum" else -1.0
    x, y = (x1, x2) if isinstance(x1, Value) else (x2, x1)
    assert isinstance(x, Value)
    return _above(r, op, x, y, sign, None)


def _above(r: Reader, op: Operation, x: Value, y: Operand, sign: float, most: float | None) -> str:
    """y + sign * relu(sign * (x - y)), the ReLU at most `most`."""
    apart = linear(r, op, [(sign, x), (-sign, y)], r.unique(f"{op.name}/apart"))
    bent = r.emit(r.unique(f"{op.name}/relu"), "relu", [apart], None, max_value=most)
    if not isinstance(y, Value) and not numbers(y).any() and sign > 0:
        return bent
    return linear(r, op, [(sign, Value(bent, op.shape, x.dtype)), (1, y)])


@reads("Clip")
def clip(r: Reader, op: Operation, x: Value, x_min: Operand, x_max: Operand) -> str:
    """The values within two numbers: x_min + relu(x - x_min), and at most x_max."""
    if isinstance(x_min, Value) or isinstance(x_max, Value):
        raise Unfit("between tensors; use keras.ops.maximum and minimum")
    low, high = numbers(x_min), numbers(x_max)
    if low.size != 1 or high.size != 1 or not low < high:
        raise Unfit("wants two numbers, the larger last")
    return _above(r, op, x, low.reshape(()), 1.0, float((high - low).reshape(())))


@reads("Where")
def where(r: Reader, op: Operation, condition: Value, x1: Operand, x2: Operand) -> str:
    """x2 + condition (x1 - x2)."""
    if not isinstance(condition, Value) or condition.dtype != "bool":
        raise Unfit("wants a comparison as its condition")
    x1, x2 = (_finite(v) for v in (x1, x2))
    if not isinstance(x1, Value) and not isinstance(x2, Value):
        one, other = numbers(x1), numbers(x2)
        return rescaled(r, op.name, condition, one - other, other, op.shape)
    apart = linear(r, op, [(1, x1), (-1, x2)], r.unique(f"{op.name}/apart"))
    chosen = r.emit(r.unique(f"{op.name}/chosen"), "multiply", [condition.name, apart])
    return linear(r, op, [(1, Value(chosen, op.shape, "float32")), (1, x2)])


def _finite(x: Operand) -> Operand:
    """Infinity as the largest number of float32: what a softmax makes of it is the same."""
    if isinstance(x, Value):
        return x
    read = getattr(x, "numpy", None)
    found = np.asarray(x if read is None else read())
    return np.clip(found, -_LARGEST, _LARGEST) if found.dtype.kind == "f" else found


# ---- comparisons: [d < 0] or [d = 0] of a difference d, 1 or 0

# The kind, whether y is subtracted from x or x from y, and whether the result is turned.
_COMPARISONS = {
    "Less": ("negative", 1, False),
    "Greater": ("negative", -1, False),
    "LessEqual": ("negative", -1, True),
    "GreaterEqual": ("negative", 1, True),
    "Equal": ("zero", 1, False),
    "NotEqual": ("zero", 1, True),
}


@reads(*_COMPARISONS)
def compare(r: Reader, op: Operation, x1: Operand, x2: Operand) -> str:
    kind, sign, turned = _COMPARISONS[type(op.own).__name__]
    if kind == "zero" and not r.training and (number := _token(r, x1, x2)) is not None:
        assert isinstance(x1, Value)
        return r.is_token(op.name, x1.name, x1.shape, number, turned)
    apart = linear(r, op, [(sign, x1), (-sign, x2)], r.unique(f"{op.name}/apart"))
    return r.emit(op.name, kind, [apart], None, inverted=turned)


def _token(r: Reader, x: Operand, y: Operand) -> int | None:
    """The number that an input is compared with, which may be one of tokens."""
    if not isinstance(x, Value) or x.name not in r.inputs or isinstance(y, Value):
        return None
    found = numbers(y)
    whole = found.size == 1 and float(found.reshape(())) in range(1 << 31)
    return int(found.reshape(())) if whole else None


@reads("LogicalNot")
def logical_not(r: Reader, op: Operation, x: Value) -> str:
    return rescaled(r, op.name, _truth(r, x), -ONE, ONE, op.shape)


@reads("LogicalAnd", "LogicalOr")
def logical(r: Reader, op: Operation, x1: Value, x2: Value) -> str:
    """a b, or 1 - (1 - a)(1 - b)."""
    one_rank([_truth(r, x1), _truth(r, x2)])
    join = masks.both if type(op.own).__name__ == "LogicalAnd" else masks.either
    return join(r, op.name, [x1.name, x2.name])


@reads("Any", "All")
def all_or_any(r: Reader, op: Operation, x: Value, axis: Any, keepdims: bool) -> str:
    """Whether so many hold as there are, or not none."""
    every = type(op.own).__name__ == "All"
    axes = axes_of(axis, len(_truth(r, x).shape))
    total = reduced(r, r.unique(f"{op.name}/count"), "global_sum_pool2d", x, axes, op.shape)
    count = math.prod(x.shape[a] for a in axes)
    if every:
        options = {"scale": 1.0, "offset": -float(count)}
        total = r.emit(r.unique(f"{op.name}/less"), "rescale", [total], None, **options)
    return r.emit(op.name, "zero", [total], None, inverted=not every)


def _truth(r: Reader, x: Operand) -> Value:
    if not isinstance(x, Value) or x.dtype != "bool":
        raise Unfit("wants comparisons")
    masks.truth(r, x.name)
    return x


# ---- functions of one value that are a kind each


@reads("Absolute", "Abs", "Fabs", "Sqrt", "Rsqrt", "Reciprocal", "Log")
def function(r: Reader, op: Operation, x: Value) -> str:
    name = type(op.own).__name__.lower()
    return r.emit(op.name, {"absolute": "abs", "fabs": "abs"}.get(name, name), [x.name])


@reads("Cast")
def cast(r: Reader, op: Operation, x: Value, dtype: str) -> str:
    """Numbers of another width, or truth values as numbers and back: nothing changes."""
    real = ("float", "bfloat")
    if dtype == "bool" or (x.dtype == "bool" and not str(dtype).startswith(real)):
        return masks.truth(r, x.name)
    if x.dtype.startswith(real) and not str(dtype).startswith(real):
        raise Unfit(f"from {x.dtype} to {dtype}")
    return x.name


@reads("Copy")
def copy(r: Reader, op: Operation, x: Value) -> str:
    return x.name


@reads("StopGradient")
def stop_gradient(r: Reader, op: Operation, variable: Value) -> str:
    if r.training:
        raise Unfit("which gradients pass; freeze the layers before it with trainable=False")
    return variable.name

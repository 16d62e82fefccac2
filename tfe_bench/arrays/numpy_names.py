"""NumPy's functions on private arrays, mapped to operations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import numpy as np

from tfe_bench.arrays import operations
from tfe_bench.arrays.array_spec import BITS
from tfe_bench.arrays.methods import NumpyArrayMethods, choose_dot_operation
from tfe_bench.arrays.operations import Apply
from tfe_bench.errors import UsageError, did_you_mean

# Operations by the name of NumPy's ufunc.
_UFUNCS: Mapping[str, str] = {
    **{
        name: name
        for name in (
            *("add", "subtract", "multiply", "divide", "matmul", "negative", "square", "sqrt"),
            *("reciprocal", "exp", "log", "sin", "cos", "tanh", "sign", "floor", "ceil"),
            *("maximum", "minimum", "less", "less_equal", "greater", "greater_equal"),
            *("logical_and", "logical_or", "logical_xor", "logical_not"),
            *("left_shift", "right_shift"),
        )
    },
    "absolute": "abs",
    "fabs": "abs",
    "power": "pow",
    "floor_divide": "floordiv",
    "remainder": "floormod",
    "rint": "round",
    "arctan2": "atan2",
}
# Operators that distinguish truth values from integers.
_OPERATORS: Mapping[str, str] = {
    "equal": "__eq__",
    "not_equal": "__ne__",
    "bitwise_and": "__and__",
    "bitwise_or": "__or__",
    "bitwise_xor": "__xor__",
    "invert": "__invert__",
}


def _refuse_numpy_name(name: str) -> NoReturn:
    short_name = name.rsplit(".", 1)[-1]
    if short_name in operations.list_operations():
        raise UsageError(
            f"numpy.{name} of private arrays is tfe_bench.{short_name}.",
            code="numpy-name",
            operation=name,
            expected=short_name,
        )
    raise UsageError(
        "Private arrays have no operation for "
        f"numpy.{name}."
        f"{did_you_mean(name, [*operations.list_operations(), *_FUNCTIONS, *_UFUNCS])} "
        "See docs/arrays.md for the supported ones; x.reveal() returns a NumPy array.",
        code="unsupported-operation",
        operation=name,
    )


def apply_ufunc(
    apply: Apply, ufunc: Any, method: str, inputs: tuple[Any, ...], named: Mapping[str, Any]
) -> Any:
    """Implement `__array_ufunc__`.

    Raises:
        UsageError: no operation corresponds.
    """
    name = str(ufunc.__name__)
    if method == "reduce" and name in ("add", "maximum", "minimum", "multiply"):
        reduced = {"add": "sum", "maximum": "max", "minimum": "min", "multiply": "prod"}[name]
        reduce_options = {k: v for k, v in named.items() if k in ("axis", "keepdims")}
        if set(named) - set(reduce_options):
            _refuse_numpy_name(
                f"{name}.reduce with {', '.join(sorted(set(named) - set(reduce_options)))}"
            )
        return getattr(inputs[0], reduced)(
            reduce_options.get("axis", 0), reduce_options.get("keepdims", False)
        )
    if method != "__call__" or named:
        _refuse_numpy_name(
            f"{name}.{method}" if method != "__call__" else f"{name} with {', '.join(named)}"
        )
    if name in _OPERATORS:
        first, *others = inputs
        if not isinstance(first, NumpyArrayMethods):
            first, others = others[0], [first]
        return getattr(first, _OPERATORS[name])(*others)
    if name not in _UFUNCS:
        _refuse_numpy_name(name)
    return apply(_UFUNCS[name], *inputs)


def _array_method_caller(name: str) -> Callable[..., Any]:
    def call_method(apply: Apply, x: Any, *args: Any, **named: Any) -> Any:
        return getattr(x, name)(*args, **named)

    return call_method


def _apply_where(apply: Apply, condition: Any, x: Any, y: Any) -> Any:
    return apply("where", condition, x, y)


def _apply_concatenate(apply: Apply, arrays: Any, axis: int | None = 0) -> Any:
    if axis is None:
        return apply("concat", [_flatten_array(a) for a in arrays], 0)
    return apply("concat", list(arrays), axis)


def _flatten_array(x: Any) -> Any:
    return x.flatten()


def _apply_stack(apply: Apply, arrays: Any, axis: int = 0) -> Any:
    return apply("stack", list(arrays), axis)


def _apply_sort(apply: Apply, x: Any, axis: int | None = -1) -> Any:
    return apply("sort", x.flatten() if axis is None else x, -1 if axis is None else axis)


def _apply_cumprod(apply: Apply, x: Any, axis: int | None = None) -> Any:
    return apply("cumprod", x.flatten() if axis is None else x, axis or 0)


def _apply_median(apply: Apply, x: Any, axis: Any = None) -> Any:
    return apply("median", x, axis)


def _apply_einsum(apply: Apply, equation: str, *operands: Any) -> Any:
    return apply("einsum", equation, *operands)


def _apply_tensordot(apply: Apply, a: Any, b: Any, axes: Any = 2) -> Any:
    return apply("tensordot", a, b, axes)


def _apply_dot(apply: Apply, a: Any, b: Any) -> Any:
    return apply(choose_dot_operation(a, b), a, b)


def _apply_expand_dims(apply: Apply, x: Any, axis: int) -> Any:
    return apply("expand_dims", x, axis)


def _apply_broadcast_to(apply: Apply, x: Any, shape: Any) -> Any:
    return apply("broadcast_to", x, [int(n) for n in np.atleast_1d(shape)])


def _apply_flip(apply: Apply, x: Any, axis: Any = None) -> Any:
    axes = range(x.ndim) if axis is None else np.atleast_1d(axis)
    return apply("reverse", x, [int(n) for n in axes])


def _apply_norm(apply: Apply, x: Any) -> Any:
    return apply("norm", x)


def _apply_reshape(apply: Apply, x: Any, shape: Any) -> Any:
    return x.reshape(shape)


def _apply_clip(apply: Apply, x: Any, a_min: Any = None, a_max: Any = None) -> Any:
    return x.clip(a_min, a_max)


def _apply_quantile(apply: Apply, x: Any, q: float, axis: Any = None) -> Any:
    return apply("quantile", x, q, axis)


def _apply_percentile(apply: Apply, x: Any, q: float, axis: Any = None) -> Any:
    return apply("quantile", x, q / 100, axis)


def _apply_tile(apply: Apply, x: Any, reps: Any) -> Any:
    times = [int(n) for n in np.atleast_1d(reps)]
    if len(times) > x.ndim:
        x = apply("reshape", x, [1] * (len(times) - x.ndim) + list(x.shape))
    return apply("tile", x, [1] * (x.ndim - len(times)) + times)


def _count_nonzero(apply: Apply, x: Any) -> Any:
    return (x if x.kind == BITS else x != 0).sum()


def _array_shape(apply: Apply, x: Any) -> tuple[int, ...]:
    sizes: tuple[int, ...] = x.shape
    return sizes


# Implementations by the name of NumPy's function and its module.
_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    **{
        name: _array_method_caller(name)
        for name in (
            *("sum", "mean", "min", "max", "std", "var", "prod", "argmax", "argmin", "cumsum"),
            *("transpose", "squeeze", "ravel"),
        )
    },
    "amin": _array_method_caller("min"),
    "amax": _array_method_caller("max"),
    "reshape": _apply_reshape,
    "clip": _apply_clip,
    "where": _apply_where,
    "concatenate": _apply_concatenate,
    "stack": _apply_stack,
    "sort": _apply_sort,
    "cumprod": _apply_cumprod,
    "median": _apply_median,
    "quantile": _apply_quantile,
    "percentile": _apply_percentile,
    "tile": _apply_tile,
    "einsum": _apply_einsum,
    "tensordot": _apply_tensordot,
    "dot": _apply_dot,
    "expand_dims": _apply_expand_dims,
    "broadcast_to": _apply_broadcast_to,
    "flip": _apply_flip,
    "linalg.norm": _apply_norm,
    "round": _array_method_caller("round"),
    "count_nonzero": _count_nonzero,
    "shape": _array_shape,
    "ndim": lambda apply, x: x.ndim,
    "size": lambda apply, x: x.size,
}


def apply_numpy_function(apply: Apply, function: Any, args: Any, named: Mapping[str, Any]) -> Any:
    """Implement `__array_function__`.

    Raises:
        UsageError: no operation corresponds, or not with these arguments.
    """
    module = str(function.__module__).removeprefix("numpy").lstrip(".")
    name = f"{module}.{function.__name__}" if module else str(function.__name__)
    implementation = _FUNCTIONS.get(name)
    if implementation is None:
        _refuse_numpy_name(name)
    try:
        return implementation(apply, *args, **named)
    except TypeError as error:
        raise UsageError(
            f"numpy.{name} takes other arguments with private arrays. Received: {error}. Use "
            "the operation of tfe_bench instead.",
            code="unsupported-argument",
            operation=name,
        ) from None

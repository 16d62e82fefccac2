"""Operations that a client's expression may name: a list of allowed names, and their functions.

Each function takes parties' private values and public parameters, validates both, declares its
cost to a cost party, and opens nothing.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tfe_bench.errors import UsageError, did_you_mean

_API = "tfe_bench.protocols.api."
_RING = "tfe_bench.protocols.ring."
_AMOUNTS, _FLOORS = "tfe_bench.arrays.wide_range", "tfe_bench.arrays.flooring"
# By module: public names of tfe_bench, and getitem, which is x[...].
_OFFERED: Mapping[str, tuple[str, ...]] = {
    _API + "bitwise": (
        *("bit_extract", "bitwise_and", "bitwise_or", "bitwise_xor", "invert", "left_shift"),
        *("pack_bits", "popcount", "right_shift", "unpack_bits"),
    ),
    _API + "contractions": ("einsum", "matvec", "tensordot"),
    _AMOUNTS: (
        *("count_outside", "count_steep", "count_zeros", "divide", "norm", "reduce_mean"),
        *("reduce_std", "reduce_variance", "square"),
    ),
    _API + "elementary": (
        *("atan2", "cos", "erf", "exp", "log", "polyval", "reciprocal", "rsqrt", "sin", "sqrt"),
    ),
    _API + "indexing": ("gather", "one_hot", "scatter_nd", "tensor_scatter_nd_update"),
    _API + "neural": (
        *("avg_pool2d", "conv2d", "depthwise_conv2d", "gelu", "leaky_relu", "max_pool2d", "relu"),
        *("relu_derivative", "scaled_dot_product_attention", "sigmoid", "silu", "softmax", "tanh"),
    ),
    _API + "operators": (*("abs", "add", "matmul", "multiply", "negative", "subtract"),),
    _API + "pooling": ("adaptive_avg_pool2d", "adaptive_max_pool2d", "max_pool_with_argmax"),
    _API + "powers": ("pow",),
    _API + "predicates": (
        *("cast", "equal", "greater", "greater_equal", "in_range", "less", "less_equal"),
        *("logical_and", "logical_not", "logical_or", "logical_xor", "not_equal", "where"),
    ),
    _API + "ranking": (
        *("argmax", "argmin", "clip_by_value", "maximum", "median", "minimum", "quantile"),
        *("reduce_max", "reduce_min", "sign", "sort", "top_k"),
    ),
    _API + "rounding": ("ceil", "floor", "round"),
    _API + "scans": ("cummax", "cumprod", "reduce_prod"),
    _API + "statistics": (*("bincount", "histogram_fixed_width"),),
    _API + "tensors": ("add_n", "bitcast", "concat", "pad", "stack", "unstack"),
    _FLOORS: ("floor_div", "floordiv", "floormod", "mod"),
    _RING + "reductions": ("cumsum", "reduce_sum"),
    _RING + "shapes": (
        *("broadcast_to", "expand_dims", "getitem", "reshape", "reverse", "slice", "split"),
        *("squeeze", "tile", "transpose"),
    ),
}
# Bilinear operations, which may take an operand in two parts.
_IN_PARTS = frozenset(
    ("conv2d", "depthwise_conv2d", "einsum", "matmul", "matvec", "multiply", "tensordot")
)
# Operations that call graphs themselves, such as sorts, and run between graphs of other steps.
_BETWEEN = frozenset(("sort", "top_k", "median", "quantile"))
# Largest product of parameters that determine the size of a result, or a number of repetitions.
MAX_ELEMENTS, MAX_REPEATS = 1 << 27, 1 << 12
_SIZES: Mapping[str, Mapping[str, int]] = {
    "broadcast_to": {"shape": MAX_ELEMENTS},
    "reshape": {"shape": MAX_ELEMENTS},
    "tile": {"multiples": MAX_ELEMENTS},
    "one_hot": {"depth": MAX_ELEMENTS},
    "scatter_nd": {"shape": MAX_ELEMENTS},
    "bincount": {"minlength": MAX_ELEMENTS, "maxlength": MAX_ELEMENTS},
    "histogram_fixed_width": {"nbins": MAX_REPEATS},
    "adaptive_avg_pool2d": {"output_size": MAX_REPEATS},
    "adaptive_max_pool2d": {"output_size": MAX_REPEATS},
    "avg_pool2d": {"ksize": MAX_REPEATS},
    "max_pool2d": {"ksize": MAX_REPEATS},
    "max_pool_with_argmax": {"ksize": MAX_REPEATS},
    "split": {"num_or_size_splits": MAX_ELEMENTS},
    "top_k": {"k": MAX_ELEMENTS},
    "pad": {"paddings": MAX_ELEMENTS},
}


# Default bits of values: the largest possible ones where functions take fewer by default, as an
# expression's author does not know the ranges.
_DEFAULT_BITS: Mapping[str, int] = {
    **dict.fromkeys(("relu", "relu_derivative"), 64),
    **dict.fromkeys(("max_pool2d", "adaptive_max_pool2d", "max_pool_with_argmax"), 64),
    **dict.fromkeys(("erf", "gelu", "sigmoid", "silu", "softmax", "tanh"), 62),
    **{"polyval": 61, "scaled_dot_product_attention": 45, "leaky_relu": 39},
}


@dataclass(frozen=True)
class Operation:
    """An operation that an expression may name.

    Attributes:
        name: name of the operation.
        function: function of private values and public parameters of the current party.
        between: whether it calls graphs itself.
        sizes: largest product of the numbers of a parameter.
        loops: whether it takes a body, which it runs in iterations.
        bits: default bits of values; None: the function's own default.
    """

    name: str
    function: Callable[..., Any]
    between: bool = False
    sizes: Mapping[str, int] = field(default_factory=dict)
    loops: bool = False
    bits: int | None = None

    @functools.cached_property
    def signature(self) -> inspect.Signature:
        """Signature of the function."""
        return inspect.signature(self.function)

    def bind_arguments(
        self, args: tuple[Any, ...], named: Mapping[str, Any]
    ) -> inspect.BoundArguments:
        """Bind arguments to the function's parameters.

        Raises:
            UsageError: the function does not take them.
        """
        try:
            return self.signature.bind(*args, **named)
        except TypeError as error:
            raise UsageError(
                f"{self.name} takes {self.name}{self._parameter_list()}. Received: {error}.",
                code="unsupported-argument",
                operation=self.name,
            ) from None

    def _parameter_list(self) -> str:
        return f"({', '.join(self.signature.parameters)})"


_added: dict[str, Operation] = {}
_loops: dict[str, Operation] = {}


def add(operation: Operation) -> None:
    """Register a further operation, at the client and at each worker that imports the module.

    Raises:
        UsageError: the name is taken.
    """
    if operation.name in list_operations():
        raise UsageError(
            f"There is already an operation {operation.name!r}. Choose another name.",
            code="duplicate-name",
            operation=operation.name,
        )
    _added[operation.name] = operation


def add_loop(name: str, function: Callable[..., Any]) -> None:
    """Register a loop, whose body has its own steps; tfe_bench/arrays/__init__.py imports it."""
    _loops[name] = Operation(name, function, between=True, loops=True)


@functools.cache
def _builtin_operations() -> dict[str, Operation]:
    amounts = importlib.import_module(_AMOUNTS)
    by_name = {}
    for module, names in _OFFERED.items():
        for name in names:
            function = getattr(importlib.import_module(module), name)
            if name in _IN_PARTS:
                function = amounts.in_parts(function)
            about = (name in _BETWEEN, _SIZES.get(name, {}), False, _DEFAULT_BITS.get(name))
            by_name[name] = Operation(name, function, *about)
    return {**by_name, **_loops}


def list_operations() -> dict[str, Operation]:
    """Return all operations, by name."""
    return {**_builtin_operations(), **_added}


def find_operation(name: object) -> Operation:
    """Return the operation of a name.

    Raises:
        UsageError: it does not exist; the error suggests the closest name.
    """
    operation = None
    if isinstance(name, str):
        operation = _builtin_operations().get(name) or _added.get(name)
    if operation is None:
        shown = str(name)[:80]
        raise UsageError(
            f"Private arrays have no operation {shown!r}.{did_you_mean(shown, list_operations())}",
            code="unsupported-operation",
            operation=shown,
        )
    return operation

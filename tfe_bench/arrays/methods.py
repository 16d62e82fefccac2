"""NumPy's methods of arrays, each of which applies an operation."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tfe_bench.arrays.array_spec import BITS, FIXED
from tfe_bench.errors import UsageError


class NumpyArrayMethods:
    """NumPy's methods, each of which applies the operation of its name."""

    kind: Any
    ndim: Any

    cluster: Any

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the elements that `reveal` returns: float64, int64 or bool."""
        return np.dtype({FIXED: "float64", BITS: "bool"}.get(self.kind, "int64"))

    def astype(self, dtype: Any) -> Any:
        """Return the elements as reals, as integers truncated toward 0, or as x != 0.

        Raises:
            UsageError: another type.
        """
        kind = np.dtype(dtype).kind
        # (integers of other types would wrap around)
        if kind not in "bif" or (kind == "i" and np.dtype(dtype) != np.int64):
            raise UsageError(
                f"astype takes float, int or bool. Received: {dtype!r}.",
                code="unsupported-type",
                operation="astype",
                received=dtype,
            )
        if kind == "b":
            return self if self.kind == BITS else self._apply("not_equal", 0)
        if kind == "f":
            return self if self.kind == FIXED else self.cast(self.cluster.config.fractional_bits)
        if self.kind != FIXED:
            return _as_number(self)
        down = self._apply("floor")
        up = self._apply("less", 0)._apply("where", self._apply("ceil"), down)
        return up.cast()

    def _apply(self, name: str, *public: Any) -> Any:
        raise NotImplementedError

    def sum(self, axis: Any = None, keepdims: bool = False) -> Any:
        """Compute the sum over one axis, several or all; of truth values the number
        of true ones.
        """
        return _as_number(self)._apply("reduce_sum", axis, keepdims)

    def mean(self, axis: Any = None, keepdims: bool = False) -> Any:
        """Compute the mean over one axis, several or all; of truth values the share
        of true ones.
        """
        return _as_number(self)._apply("reduce_mean", axis, keepdims)

    def min(self, axis: Any = None, keepdims: bool = False) -> Any:
        """Compute the minimum."""
        return self._apply("reduce_min", axis, keepdims)

    def max(self, axis: Any = None, keepdims: bool = False) -> Any:
        """Compute the maximum."""
        return self._apply("reduce_max", axis, keepdims)

    def std(self, axis: Any = None, keepdims: bool = False, ddof: int = 0) -> Any:
        """Compute the standard deviation: of the population, or with ddof=1 of a sample."""
        deviation = _as_real(self)._apply("reduce_std", axis, keepdims)
        return deviation * math.sqrt(_ddof_factor(self, deviation, ddof)) if ddof else deviation

    def var(self, axis: Any = None, keepdims: bool = False, ddof: int = 0) -> Any:
        """Compute the variance; as `std`."""
        variance = _as_real(self)._apply("reduce_variance", axis, keepdims)
        return variance * _ddof_factor(self, variance, ddof) if ddof else variance

    def prod(self, axis: Any = None, keepdims: bool = False) -> Any:
        """Compute the product."""
        return self._apply("reduce_prod", axis, keepdims)

    def argmax(self, axis: int | None = None, keepdims: bool = False) -> Any:
        """Return the index of the first maximum; without an axis, in the flattened array."""
        return _apply_arg_extreme(self, "argmax", axis, keepdims)

    def argmin(self, axis: int | None = None, keepdims: bool = False) -> Any:
        """Return the index of the first minimum; as `argmax`."""
        return _apply_arg_extreme(self, "argmin", axis, keepdims)

    def cumsum(self, axis: int | None = None) -> Any:
        """Compute cumulative sums; without an axis, of the flattened array."""
        return _flat_without_axis(self, axis)._apply("cumsum", axis or 0)

    def reshape(self, *shape: Any) -> Any:
        """Change the sizes, one of which may be -1."""
        sizes = shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape
        return self._apply("reshape", [int(n) for n in np.atleast_1d(sizes)])

    def transpose(self, *axes: Any) -> Any:
        """Permute the axes; reverse them by default."""
        if not axes or axes == (None,):
            return self._apply("transpose")
        chosen = axes[0] if len(axes) == 1 and not isinstance(axes[0], int) else axes
        return self._apply("transpose", list(chosen))

    @property
    def T(self) -> Any:
        """Array with reversed axes."""
        return self._apply("transpose")

    def squeeze(self, axis: Any = None) -> Any:
        """Remove axes of one element."""
        return self._apply("squeeze") if axis is None else self._apply("squeeze", axis)

    def flatten(self) -> Any:
        """Return all elements on one axis."""
        return self._apply("reshape", [-1])

    ravel = flatten

    def dot(self, other: Any) -> Any:
        """Compute the product with a number, a vector or a matrix, x @ y."""
        return self._apply(choose_dot_operation(self, other), other)

    def clip(self, min: Any = None, max: Any = None) -> Any:
        """Clip to two limits, one of which may be None."""
        if min is None or max is None:
            low = self if min is None else self._apply("maximum", min)
            return low if max is None else low._apply("minimum", max)
        return self._apply("clip_by_value", min, max)

    def round(self) -> Any:
        """Round to the nearest whole number."""
        return self._apply("round")

    def cast(self, fractional_bits: int = 0, method: str = "safe") -> Any:
        """Convert to another scale; truth values to 0 and 1."""
        return self._apply("cast", fractional_bits, method)


def choose_dot_operation(x: Any, y: Any) -> str:
    """Return the operation that is NumPy's dot of two arrays.

    Raises:
        UsageError: y has more axes than a matrix, for which dot is no matrix product.
    """
    axes = [v.ndim if isinstance(v, NumpyArrayMethods) else np.ndim(v) for v in (x, y)]
    if axes[1] > 2:
        raise UsageError(
            f"dot takes a number, a vector or a matrix. Received: {axes[1]} axes. Write x @ y for "
            "products of matrices, or tfe_bench.tensordot(x, y, 1).",
            code="unsupported-operation",
            operation="dot",
            received=axes[1],
        )
    return "multiply" if 0 in axes else "matmul"


def _as_number(x: Any) -> Any:
    return x._apply("cast") if x.kind == BITS else x


def _as_real(x: Any) -> Any:
    return x if x.kind == FIXED else x._apply("cast", 16)


def _ddof_factor(x: Any, result: Any, ddof: int) -> float:
    """Return the factor of a variance for `ddof` fewer degrees of freedom."""
    count = x.size // math.prod(result.shape) if result.size else 0
    if type(ddof) is not int or not 0 <= ddof < count:
        raise UsageError(
            f"ddof is an integer from 0 to {count - 1}. Received: {ddof!r}.",
            code="number-out-of-range",
            operation="ddof",
            received=ddof,
        )
    return count / (count - ddof)


def _apply_arg_extreme(x: Any, name: str, axis: int | None, keepdims: bool) -> Any:
    positions = _flat_without_axis(x, axis)._apply(name, axis or 0)
    if not keepdims:
        return positions
    return (
        positions.reshape([1] * x.ndim) if axis is None else positions._apply("expand_dims", axis)
    )


def _flat_without_axis(x: Any, axis: int | None) -> Any:
    return x.flatten() if axis is None else x

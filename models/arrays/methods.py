"""NumPy's methods of arrays, each an operation of another name."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tfe_bench.errors import UsageError
from tfe_bench.models.arrays.plan import BITS, FIXED


class Methods:
    """NumPy's methods, each an operation of its name."""

    kind: Any
    ndim: Any

    cluster: Any

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the elements that `reveal` returns: float64, int64 or bool."""
        return np.dtype({FIXED: "float64", BITS: "bool"}.get(self.kind, "int64"))

    def astype(self, dtype: Any) -> Any:
        """Its elements as reals, as integers without what is behind the point, or as x != 0.

        Raises:
            UsageError: another type.
        """
        kind = np.dtype(dtype).kind
        if kind not in "biuf":
            raise UsageError(f"astype takes float, int or bool. Received: {dtype!r}.")
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
        """The sum over one axis, several or all; of truth values how many are true."""
        return _as_number(self)._apply("reduce_sum", axis, keepdims)

    def mean(self, axis: Any = None, keepdims: bool = False) -> Any:
        """The mean over one axis, several or all; of truth values the part that is true."""
        return _as_number(self)._apply("reduce_mean", axis, keepdims)

    def min(self, axis: Any = None, keepdims: bool = False) -> Any:
        """The smallest."""
        return self._apply("reduce_min", axis, keepdims)

    def max(self, axis: Any = None, keepdims: bool = False) -> Any:
        """The largest."""
        return self._apply("reduce_max", axis, keepdims)

    def std(self, axis: Any = None, keepdims: bool = False, ddof: int = 0) -> Any:
        """The standard deviation: of the population, or with ddof=1 of a sample."""
        deviation = _as_real(self)._apply("reduce_std", axis, keepdims)
        return deviation * math.sqrt(_ddof_factor(self, deviation, ddof)) if ddof else deviation

    def var(self, axis: Any = None, keepdims: bool = False, ddof: int = 0) -> Any:
        """The variance; as `std`."""
        variance = _as_real(self)._apply("reduce_variance", axis, keepdims)
        return variance * _ddof_factor(self, variance, ddof) if ddof else variance

    def prod(self, axis: Any = None, keepdims: bool = False) -> Any:
        """The product."""
        return self._apply("reduce_prod", axis, keepdims)

    def argmax(self, axis: int | None = None, keepdims: bool = False) -> Any:
        """Where the first largest is; of all elements, one behind the other, without an axis."""
        return _arg_extreme(self, "argmax", axis, keepdims)

    def argmin(self, axis: int | None = None, keepdims: bool = False) -> Any:
        """Where the first smallest is; as `argmax`."""
        return _arg_extreme(self, "argmin", axis, keepdims)

    def cumsum(self, axis: int | None = None) -> Any:
        """Sums up to each; of all elements, one behind the other, without an axis."""
        return _flat_without_axis(self, axis)._apply("cumsum", axis or 0)

    def reshape(self, *shape: Any) -> Any:
        """Other sizes, one of which may be -1."""
        sizes = shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape
        return self._apply("reshape", [int(n) for n in np.atleast_1d(sizes)])

    def transpose(self, *axes: Any) -> Any:
        """Axes in another order; turned around unless given."""
        if not axes or axes == (None,):
            return self._apply("transpose")
        chosen = axes[0] if len(axes) == 1 and not isinstance(axes[0], int) else axes
        return self._apply("transpose", list(chosen))

    @property
    def T(self) -> Any:
        """Axes turned around."""
        return self._apply("transpose")

    def squeeze(self, axis: Any = None) -> Any:
        """Without axes of one element."""
        return self._apply("squeeze") if axis is None else self._apply("squeeze", axis)

    def flatten(self) -> Any:
        """One axis of all elements."""
        return self._apply("reshape", [-1])

    ravel = flatten

    def dot(self, other: Any) -> Any:
        """The product with a vector or a matrix, x @ y."""
        return self._apply("matmul", other)

    def clip(self, min: Any = None, max: Any = None) -> Any:
        """Between two limits, one of which may be None."""
        if min is None or max is None:
            low = self if min is None else self._apply("maximum", min)
            return low if max is None else low._apply("minimum", max)
        return self._apply("clip_by_value", min, max)

    def round(self) -> Any:
        """The nearest whole number."""
        return self._apply("round")

    def cast(self, fractional_bits: int = 0, method: str = "safe") -> Any:
        """At another scale; truth values as 0 and 1."""
        return self._apply("cast", fractional_bits, method)


def _as_number(x: Any) -> Any:
    return x._apply("cast") if x.kind == BITS else x


def _as_real(x: Any) -> Any:
    return x if x.kind == FIXED else x._apply("cast", 16)


def _ddof_factor(x: Any, result: Any, ddof: int) -> float:
    """By how much a variance with so many degrees of freedom less is larger."""
    count = x.size // math.prod(result.shape) if result.size else 0
    if type(ddof) is not int or not 0 <= ddof < count:
        raise UsageError(f"ddof is an integer from 0 to {count - 1}. Received: {ddof!r}.")
    return count / (count - ddof)


def _arg_extreme(x: Any, name: str, axis: int | None, keepdims: bool) -> Any:
    positions = _flat_without_axis(x, axis)._apply(name, axis or 0)
    if not keepdims:
        return positions
    return (
        positions.reshape([1] * x.ndim) if axis is None else positions._apply("expand_dims", axis)
    )


def _flat_without_axis(x: Any, axis: int | None) -> Any:
    return x.flatten() if axis is None else x

"""NumPy's methods of arrays, each an operation of another name."""

from __future__ import annotations

from typing import Any

import numpy as np

from tfe_bench.models.arrays.plan import BITS


class Methods:
    """NumPy's methods, each an operation of its name."""

    kind: Any
    ndim: Any

    def _apply(self, name: str, *public: Any) -> Any:
        raise NotImplementedError

    def sum(self, axis: Any = None, keepdims: bool = False) -> Any:
        """The sum over one axis, several or all; of truth values how many are true."""
        return _number(self)._apply("reduce_sum", axis, keepdims)

    def mean(self, axis: Any = None, keepdims: bool = False) -> Any:
        """The mean over one axis, several or all; of truth values the part that is true."""
        return _number(self)._apply("reduce_mean", axis, keepdims)

    def min(self, axis: Any = None, keepdims: bool = False) -> Any:
        """The smallest."""
        return self._apply("reduce_min", axis, keepdims)

    def max(self, axis: Any = None, keepdims: bool = False) -> Any:
        """The largest."""
        return self._apply("reduce_max", axis, keepdims)

    def std(self, axis: Any = None, keepdims: bool = False) -> Any:
        """The standard deviation, of the population."""
        return self._apply("reduce_std", axis, keepdims)

    def var(self, axis: Any = None, keepdims: bool = False) -> Any:
        """The variance, of the population."""
        return self._apply("reduce_variance", axis, keepdims)

    def prod(self, axis: Any = None, keepdims: bool = False) -> Any:
        """The product."""
        return self._apply("reduce_prod", axis, keepdims)

    def argmax(self, axis: int | None = None) -> Any:
        """Where the first largest is; of all elements, one behind the other, without an axis."""
        return _flat(self, axis)._apply("argmax", axis or 0)

    def argmin(self, axis: int | None = None) -> Any:
        """Where the first smallest is; as `argmax`."""
        return _flat(self, axis)._apply("argmin", axis or 0)

    def cumsum(self, axis: int | None = None) -> Any:
        """Sums up to each; of all elements, one behind the other, without an axis."""
        return _flat(self, axis)._apply("cumsum", axis or 0)

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

    def clip(self, min: Any, max: Any) -> Any:
        """Between two bounds."""
        return self._apply("clip_by_value", min, max)

    def round(self) -> Any:
        """The nearest whole number."""
        return self._apply("round")

    def cast(self, fractional_bits: int = 0, method: str = "safe") -> Any:
        """At another scale; truth values as 0 and 1."""
        return self._apply("cast", fractional_bits, method)


def _number(x: Any) -> Any:
    return x._apply("cast") if x.kind == BITS else x


def _flat(x: Any, axis: int | None) -> Any:
    return x.flatten() if axis is None else x

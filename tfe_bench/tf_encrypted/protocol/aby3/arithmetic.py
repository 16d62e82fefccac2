"""Sums, products, comparisons and functions of reals."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import numpy.typing as npt

import tfe_bench
from tfe_bench.errors import UsageError
from tfe_bench.tf_encrypted.protocol.aby3.definitions import Definitions, native
from tfe_bench.tf_encrypted.protocol.aby3.tensors import (
    ABY3PrivateTensor,
    ABY3PublicTensor,
)

# Operations on private arrays, which type checkers take to be on the values of parties.
tfb: Any = tfe_bench
# Piecewise lines of the logistic function by tf-encrypted's names: ends, and coefficients.
_SIGMOIDS: dict[str, tuple[tuple[float, ...], tuple[tuple[float, ...], ...]]] = {
    "3_piecewise_linear": ((-2.5, 2.5), ((1e-4,), (0.50, 0.17), (1 - 1e-4,))),
    "5_piecewise_linear": (
        (-4, -1.5, 1.5, 4),
        ((1e-4,), (0.281, 0.066), (0.5, 0.212), (0.719, 0.066), (1 - 1e-4,)),
    ),
}


def is_private(*values: Any) -> bool:
    """Whether one of them is."""
    return any(isinstance(v, ABY3PrivateTensor) for v in values)


def _of_two(private: str, public: Any, about: str) -> Any:
    """A method that applies an operation of tfe_bench, or NumPy's to what is public."""

    def operate(self: Arithmetic, x: Any, y: Any) -> Any:
        return self._applied(private, public, x, y)

    operate.__doc__ = about
    return operate


class Arithmetic(Definitions):
    """What computes on numbers."""

    def _applied(self, private: str, public: Any, x: Any, y: Any) -> Any:
        if not is_private(x, y):
            scaled = any(isinstance(v, ABY3PublicTensor) and v.is_scaled for v in (x, y))
            found = np.asarray(public(native(x), native(y)))
            return self._public(found, found.dtype.kind != "b" and (scaled or _real(found)))
        like = x if isinstance(x, ABY3PrivateTensor) else y
        made = getattr(tfb, private)(self._operand(x), self._operand(y))
        return self._private(made, like)

    add = _of_two("add", np.add, "x + y.")

    def add_n(self, tensors: Any) -> Any:
        """The sum of several."""
        total = tensors[0]
        for each in tensors[1:]:
            total = self.add(total, each)
        return total

    sub = _of_two("subtract", np.subtract, "x - y.")

    def negative(self, x: Any) -> Any:
        """-x."""
        return self.sub(0, x)

    mul = _of_two("multiply", np.multiply, "x y, of reals truncated.")

    def mul_trunc2(self, x: Any, y: Any) -> Any:
        """As mul."""
        return self.mul(x, y)

    def mul_pow2(self, x: Any, exponent: int) -> Any:
        """x 2^exponent."""
        return self.mul(x, 2**exponent) if exponent >= 0 else self.truncate(x, amount=-exponent)

    def square(self, x: Any) -> Any:
        """x^2."""
        return self.mul(x, x) if not is_private(x) else self._private(self._operand(x) ** 2, x)

    def div(self, x: Any, y: Any) -> Any:
        """x / y."""
        if not is_private(x, y):
            return self._public(np.true_divide(native(x), native(y)), True)
        return self._applied("divide", np.true_divide, x, y)

    def pow(self, x: Any, p: int) -> Any:
        """x^p for a whole public p."""
        if not is_private(x):
            return self._public(np.power(native(x), p))
        return self._private(self._operand(x) ** p, x)

    matmul = _of_two("matmul", np.matmul, "Products of matrices, or of batches of them.")

    def truncate(self, x: Any, method: str = "heuristic", amount: int | None = None) -> Any:
        """x / 2^amount (the fractional bits unless given), rounded; none of the methods errs."""
        n = self._fraction if amount is None else int(amount)
        if not is_private(x):
            return self._public(native(x) / 2.0**n, True)
        own = self._operand(x)
        if own.kind != "fixed":
            return self._private(tfb.right_shift(own, n), x)
        if n < 0 or own.fractional_bits + n > 61:
            raise UsageError(f"truncate drops 0 to {61 - own.fractional_bits} bits. Received: {n}.")
        lower = tfb.bitcast(own, own.fractional_bits + n)
        return self._private(tfb.cast(lower, own.fractional_bits), x)

    def truncate_msb0(self, x: Any, method: str = "secureq8", amount: int | None = None) -> Any:
        """As truncate."""
        return self.truncate(x, amount=amount)

    def reduce_sum(self, x: Any, axis: Any = None, keepdims: bool = False) -> Any:
        """The sum over axes."""
        if not is_private(x):
            scaled = isinstance(x, ABY3PublicTensor) and x.is_scaled
            found = np.sum(native(x), axis=_axes(axis), keepdims=keepdims)
            return self._public(np.asarray(found), scaled)
        return self._private(tfb.reduce_sum(self._operand(x), axis, keepdims), x)

    def prod(self, x: Any, axis: int | None = None, keepdims: bool = False) -> Any:
        """The product over an axis."""
        return self._private(tfb.reduce_prod(self._operand(x), axis, keepdims), x)

    # ---- comparisons and what is chosen by them

    greater_than = _of_two("greater", np.greater, "x > y.")
    greater_equal = _of_two("greater_equal", np.greater_equal, "x >= y.")
    less_than = _of_two("less", np.less, "x < y.")
    less_equal = _of_two("less_equal", np.less_equal, "x <= y.")
    equal = _of_two("equal", np.equal, "x == y.")

    def equal_zero(self, x: Any) -> Any:
        """x == 0."""
        return self.equal(x, 0)

    def select(self, choice_bit: Any, x: Any, y: Any) -> Any:
        """x where the bit is 0, y where it is 1."""
        if not is_private(choice_bit):
            return self._chosen(native(choice_bit) != 0, x, y)
        if choice_bit.is_word:
            raise UsageError(f"select takes one bit for each element. Received: {choice_bit!r}.")
        bits = choice_bit.array
        bits = bits if bits.kind == "bits" else bits != 0
        of_bits = [v for v in (x, y) if isinstance(v, ABY3PrivateTensor) and v.is_boolean()]
        if of_bits:
            return self.xor(self.and_(self.xor(x, y), choice_bit), x)  # type: ignore[attr-defined]
        like = next((v for v in (x, y) if isinstance(v, ABY3PrivateTensor)), None)
        given = [self._operand(v) for v in (y, x)]
        if like is None:
            given = [np.asarray(v, np.float64) for v in given]
            first, second = (v if v.ndim else float(v) for v in given)
            chosen = self._selected_public(bits, first, second)
            return self._private(chosen)
        return self._private(tfb.where(bits, *given), like)

    def _selected_public(self, bits: Any, y: Any, x: Any) -> Any:
        """One of two public numbers, by a private bit."""
        return bits.cast() * (np.asarray(y) - x) + x

    def _chosen(self, truth: Any, x: Any, y: Any) -> Any:
        number = truth.astype(np.int64)
        return self.add(self.mul(self.sub(y, x), number), x)

    maximum = _of_two("maximum", np.maximum, "The larger of each pair.")

    def cmp_swap(self, x: Any, y: Any) -> Any:
        """The smaller and the larger of each pair."""
        return self._applied("minimum", np.minimum, x, y), self.maximum(x, y)

    def reduce_max(
        self, x: Any, axis: Any = None, keepdims: bool = False, method: str = "tree"
    ) -> Any:
        """The largest over axes; `method` is chosen here."""
        if not is_private(x):
            found = np.max(native(x), axis=_axes(axis), keepdims=keepdims)
            return self._public(np.asarray(found), getattr(x, "is_scaled", None))
        return self._private(tfb.reduce_max(self._operand(x), axis, keepdims), x)

    def argmax(self, x: Any, axis: int = 0, output_style: str = "onehot") -> Any:
        """Where the first largest is: bits of the shape of x, or ("normal") its number."""
        if output_style not in ("onehot", "normal"):
            raise UsageError(f"output_style is 'onehot' or 'normal'. Received: {output_style!r}.")
        own = self._operand(x)
        found = tfb.argmax(own, axis)
        if output_style == "normal":
            return self._private(found)
        at = axis % own.ndim
        places = np.arange(own.shape[at]).reshape([-1] + [1] * (own.ndim - at - 1))
        return self._private(tfb.expand_dims(found, at) == places)

    def reduce_max_with_argmax(
        self, x: Any, axis: int = 0, keepdims: bool = False, output_style: str = "onehot"
    ) -> Any:
        """The largest over an axis and where it is, as argmax."""
        where = self.argmax(x, axis, output_style)
        if keepdims and output_style == "normal":
            where = self._private(tfb.expand_dims(where.array, axis % len(x.shape)))
        return self.reduce_max(x, axis, keepdims), where

    def sort(self, x: Any, axis: int, acc: bool = True) -> Any:
        """The elements in order along an axis, the smallest first unless acc is False."""
        direction = "ASCENDING" if acc else "DESCENDING"
        return self._private(tfb.sort(self._operand(x), axis=axis, direction=direction), x)

    # ---- functions

    def polynomial(self, x: Any, coeffs: Any) -> Any:
        """The sum of coeffs[i] x^i."""
        found: Any = None
        for i, c in enumerate(coeffs):
            if i and not c:
                continue
            term = (
                np.full(x.shape.as_list(), float(c)) if i == 0 else self.mul(self._power(x, i), c)
            )
            found = term if found is None else self.add(found, term)
        return found if is_private(found) else self.add(self.mul(x, 0), found)

    def _power(self, x: Any, i: int) -> Any:
        return x if i == 1 else self.pow(x, i)

    def polynomial_piecewise(self, x: Any, c: Any, coeffs: Any) -> Any:
        """One polynomial up to each of the ends c, and one beyond the last."""
        if len(c) + 1 != len(coeffs):
            raise UsageError(f"{len(c)} ends want {len(c) + 1} polynomials.")
        ends = np.asarray(c, np.float64)
        own = tfb.expand_dims(self._operand(x), own_axis := len(x.shape))
        beyond = (own > ends).cast()  # [.., ends]
        pieces = [self._operand(self.polynomial(x, each)) for each in coeffs]
        steps = tfb.stack([b - a for a, b in itertools.pairwise(pieces)], own_axis)
        return self._private(pieces[0] + tfb.reduce_sum(steps * beyond, own_axis), x)

    def sigmoid(self, x: Any, approx_type: str = "5_piecewise_linear") -> Any:
        """The logistic function by tf-encrypted's lines, or "exact", right to 2 ulp."""
        if approx_type == "exact":
            return self._private(tfb.sigmoid(self._operand(x)), x)
        if approx_type not in _SIGMOIDS:
            raise UsageError(
                f"sigmoid knows {', '.join([*_SIGMOIDS, 'exact'])}. Received: {approx_type!r}."
            )
        return self.polynomial_piecewise(x, *_SIGMOIDS[approx_type])

    def _function(self, name: str, x: Any, **named: Any) -> Any:
        if not is_private(x):
            raise UsageError(f"{name} takes a private tensor. Received: a public one.")
        return self._private(getattr(tfb, name)(self._operand(x), **named), x)

    def tanh(self, x: Any) -> Any:
        """The hyperbolic tangent."""
        return self._function("tanh", x)

    def relu(self, x: Any) -> Any:
        """max(x, 0)."""
        return self._function("relu", x)

    def relu_with_cmp(self, x: Any) -> Any:
        """max(x, 0), and the bit x > 0."""
        bit = self.greater_than(x, 0)
        return self.select(bit, 0, x), bit

    def softmax(self, x: Any, approx_type: str = "mp-spdz", max_method: str = "network") -> Any:
        """e^x over its sum along the last axis, right to a few units of the last place."""
        return self._function("softmax", x)

    def reciprocal(self, x: Any, nonsigned: bool = False, precision: int = 1) -> Any:
        """1 / x, of either sign unless nonsigned."""
        if not is_private(x):
            return self._public(1 / native(x), True)
        return self._function("reciprocal", x, signed=not nonsigned)

    def inv_sqrt(self, x: Any, precision: int = 1) -> Any:
        """1 / sqrt(x)."""
        return self._function("rsqrt", x)

    def sqrt(self, x: Any, approx_type: str = "", precision: int = 1) -> Any:
        """sqrt(x)."""
        if not is_private(x):
            return self._public(np.sqrt(native(x)), True)
        return self._function("sqrt", x)

    def log(self, x: Any, approx_type: str = "chebyshev") -> Any:
        """The natural logarithm, of all x > 0; approx_type is chosen here."""
        return self._function("log", x)

    def exp(self, x: Any, approx_type: str = "mp-spdz", sign: int | None = None) -> Any:
        """e^x, right to a few units of the last place; approx_type is chosen here."""
        return self._function("exp", x)

    def exp2(self, x: Any, approx_type: str = "mp-spdz", sign: int | None = None) -> Any:
        """2^x."""
        return self.exp(self.mul(x, float(np.log(2))))

    def exp2_pade(self, x: Any) -> Any:
        """2^x."""
        return self.exp2(x)


def _real(value: npt.NDArray[Any]) -> bool:
    return value.dtype.kind == "f"


def _axes(axis: Any) -> Any:
    return tuple(axis) if isinstance(axis, list) else axis

"""Sums, products, comparisons and functions of reals."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import numpy.typing as npt

import tfe_bench
from tfe_bench.errors import UsageError
from tfe_bench.tf_encrypted.protocol.aby3.definitions import Definitions, to_numpy
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


def _binary_operation(private: str, public: Any, about: str) -> Any:
    """A method that applies an operation of tfe_bench, or NumPy's to what is public."""

    def apply_operation(self: Arithmetic, x: Any, y: Any) -> Any:
        return self._apply_binary(private, public, x, y)

    apply_operation.__doc__ = about
    return apply_operation


class Arithmetic(Definitions):
    """What computes on numbers."""

    def _apply_binary(self, private: str, public: Any, x: Any, y: Any) -> Any:
        if not is_private(x, y):
            scaled = any(isinstance(v, ABY3PublicTensor) and v.is_scaled for v in (x, y))
            result = np.asarray(public(to_numpy(x), to_numpy(y)))
            return self._wrap_public(
                result, result.dtype.kind != "b" and (scaled or _is_real(result))
            )
        like = x if isinstance(x, ABY3PrivateTensor) else y
        private_result = getattr(tfb, private)(self._to_operand(x), self._to_operand(y))
        return self._wrap_private(private_result, like)

    add = _binary_operation("add", np.add, "x + y.")

    def add_n(self, tensors: Any) -> Any:
        """The sum of several."""
        total = tensors[0]
        for tensor in tensors[1:]:
            total = self.add(total, tensor)
        return total

    sub = _binary_operation("subtract", np.subtract, "x - y.")

    def negative(self, x: Any) -> Any:
        """-x."""
        return self.sub(0, x)

    mul = _binary_operation("multiply", np.multiply, "x y, of reals truncated.")

    def mul_trunc2(self, x: Any, y: Any) -> Any:
        """As mul."""
        return self.mul(x, y)

    def mul_pow2(self, x: Any, exponent: int) -> Any:
        """x 2^exponent."""
        return self.mul(x, 2**exponent) if exponent >= 0 else self.truncate(x, amount=-exponent)

    def square(self, x: Any) -> Any:
        """x^2."""
        return (
            self.mul(x, x) if not is_private(x) else self._wrap_private(self._to_operand(x) ** 2, x)
        )

    def div(self, x: Any, y: Any) -> Any:
        """x / y."""
        if not is_private(x, y):
            return self._wrap_public(np.true_divide(to_numpy(x), to_numpy(y)), True)
        return self._apply_binary("divide", np.true_divide, x, y)

    def pow(self, x: Any, p: int) -> Any:
        """x^p for a whole public p."""
        if not is_private(x):
            return self._wrap_public(np.power(to_numpy(x), p))
        return self._wrap_private(self._to_operand(x) ** p, x)

    matmul = _binary_operation("matmul", np.matmul, "Products of matrices, or of batches of them.")

    def truncate(self, x: Any, method: str = "heuristic", amount: int | None = None) -> Any:
        """x / 2^amount (the fractional bits unless given), rounded; none of the methods errs."""
        n = self._fractional_bits if amount is None else int(amount)
        if not is_private(x):
            return self._wrap_public(to_numpy(x) / 2.0**n, True)
        operand = self._to_operand(x)
        if operand.kind != "fixed":
            return self._wrap_private(tfb.right_shift(operand, n), x)
        if n < 0 or operand.fractional_bits + n > 61:
            raise UsageError(
                f"truncate drops 0 to {61 - operand.fractional_bits} bits. Received: {n}."
            )
        lower = tfb.bitcast(operand, operand.fractional_bits + n)
        return self._wrap_private(tfb.cast(lower, operand.fractional_bits), x)

    def truncate_msb0(self, x: Any, method: str = "secureq8", amount: int | None = None) -> Any:
        """As truncate."""
        return self.truncate(x, amount=amount)

    def reduce_sum(self, x: Any, axis: Any = None, keepdims: bool = False) -> Any:
        """The sum over axes."""
        if not is_private(x):
            scaled = isinstance(x, ABY3PublicTensor) and x.is_scaled
            total = np.sum(to_numpy(x), axis=_to_axes(axis), keepdims=keepdims)
            return self._wrap_public(np.asarray(total), scaled)
        return self._wrap_private(tfb.reduce_sum(self._to_operand(x), axis, keepdims), x)

    def prod(self, x: Any, axis: int | None = None, keepdims: bool = False) -> Any:
        """The product over an axis."""
        return self._wrap_private(tfb.reduce_prod(self._to_operand(x), axis, keepdims), x)

    # ---- comparisons and what is chosen by them

    greater_than = _binary_operation("greater", np.greater, "x > y.")
    greater_equal = _binary_operation("greater_equal", np.greater_equal, "x >= y.")
    less_than = _binary_operation("less", np.less, "x < y.")
    less_equal = _binary_operation("less_equal", np.less_equal, "x <= y.")
    equal = _binary_operation("equal", np.equal, "x == y.")

    def equal_zero(self, x: Any) -> Any:
        """x == 0."""
        return self.equal(x, 0)

    def select(self, choice_bit: Any, x: Any, y: Any) -> Any:
        """x where the bit is 0, y where it is 1."""
        if not is_private(choice_bit):
            return self._select_by_public(to_numpy(choice_bit) != 0, x, y)
        if choice_bit.is_word:
            raise UsageError(f"select takes one bit for each element. Received: {choice_bit!r}.")
        bits = choice_bit.array
        bits = bits if bits.kind == "bits" else bits != 0
        of_bits = [v for v in (x, y) if isinstance(v, ABY3PrivateTensor) and v.is_boolean()]
        if of_bits:
            return self.xor(self.and_(self.xor(x, y), choice_bit), x)  # type: ignore[attr-defined]
        like = next((v for v in (x, y) if isinstance(v, ABY3PrivateTensor)), None)
        operands = [self._to_operand(v) for v in (y, x)]
        if like is None:
            operands = [np.asarray(v, np.float64) for v in operands]
            first, second = (v if v.ndim else float(v) for v in operands)
            chosen = self._selected_public(bits, first, second)
            return self._wrap_private(chosen)
        return self._wrap_private(tfb.where(bits, *operands), like)

    def _selected_public(self, bits: Any, y: Any, x: Any) -> Any:
        """One of two public numbers, by a private bit."""
        return bits.cast() * (np.asarray(y) - x) + x

    def _select_by_public(self, truth: Any, x: Any, y: Any) -> Any:
        number = truth.astype(np.int64)
        return self.add(self.mul(self.sub(y, x), number), x)

    maximum = _binary_operation("maximum", np.maximum, "The larger of each pair.")

    def cmp_swap(self, x: Any, y: Any) -> Any:
        """The smaller and the larger of each pair."""
        return self._apply_binary("minimum", np.minimum, x, y), self.maximum(x, y)

    def reduce_max(
        self, x: Any, axis: Any = None, keepdims: bool = False, method: str = "tree"
    ) -> Any:
        """The largest over axes; `method` is chosen here."""
        if not is_private(x):
            largest = np.max(to_numpy(x), axis=_to_axes(axis), keepdims=keepdims)
            return self._wrap_public(np.asarray(largest), getattr(x, "is_scaled", None))
        return self._wrap_private(tfb.reduce_max(self._to_operand(x), axis, keepdims), x)

    def argmax(self, x: Any, axis: int = 0, output_style: str = "onehot") -> Any:
        """Where the first largest is: bits of the shape of x, or ("normal") its number."""
        if output_style not in ("onehot", "normal"):
            raise UsageError(f"output_style is 'onehot' or 'normal'. Received: {output_style!r}.")
        operand = self._to_operand(x)
        position = tfb.argmax(operand, axis)
        if output_style == "normal":
            return self._wrap_private(position)
        at = axis % operand.ndim
        places = np.arange(operand.shape[at]).reshape([-1] + [1] * (operand.ndim - at - 1))
        return self._wrap_private(tfb.expand_dims(position, at) == places)

    def reduce_max_with_argmax(
        self, x: Any, axis: int = 0, keepdims: bool = False, output_style: str = "onehot"
    ) -> Any:
        """The largest over an axis and where it is, as argmax."""
        position = self.argmax(x, axis, output_style)
        if keepdims and output_style == "normal":
            position = self._wrap_private(tfb.expand_dims(position.array, axis % len(x.shape)))
        return self.reduce_max(x, axis, keepdims), position

    def sort(self, x: Any, axis: int, acc: bool = True) -> Any:
        """The elements in order along an axis, the smallest first unless acc is False."""
        direction = "ASCENDING" if acc else "DESCENDING"
        return self._wrap_private(tfb.sort(self._to_operand(x), axis=axis, direction=direction), x)

    # ---- functions

    def polynomial(self, x: Any, coeffs: Any) -> Any:
        """The sum of coeffs[i] x^i."""
        total: Any = None
        for i, c in enumerate(coeffs):
            if i and not c:
                continue
            term = (
                np.full(x.shape.as_list(), float(c))
                if i == 0
                else self.mul(self._integer_power(x, i), c)
            )
            total = term if total is None else self.add(total, term)
        return total if is_private(total) else self.add(self.mul(x, 0), total)

    def _integer_power(self, x: Any, i: int) -> Any:
        return x if i == 1 else self.pow(x, i)

    def polynomial_piecewise(self, x: Any, c: Any, coeffs: Any) -> Any:
        """One polynomial up to each of the ends c, and one beyond the last."""
        if len(c) + 1 != len(coeffs):
            raise UsageError(f"{len(c)} ends want {len(c) + 1} polynomials.")
        ends = np.asarray(c, np.float64)
        operand = tfb.expand_dims(self._to_operand(x), end_axis := len(x.shape))
        beyond = (operand > ends).cast()  # [.., ends]
        pieces = [self._to_operand(self.polynomial(x, coefficients)) for coefficients in coeffs]
        steps = tfb.stack([b - a for a, b in itertools.pairwise(pieces)], end_axis)
        return self._wrap_private(pieces[0] + tfb.reduce_sum(steps * beyond, end_axis), x)

    def sigmoid(self, x: Any, approx_type: str = "5_piecewise_linear") -> Any:
        """The logistic function by tf-encrypted's lines, or "exact", right to 2 ulp."""
        if approx_type == "exact":
            return self._wrap_private(tfb.sigmoid(self._to_operand(x)), x)
        if approx_type not in _SIGMOIDS:
            raise UsageError(
                f"sigmoid knows {', '.join([*_SIGMOIDS, 'exact'])}. Received: {approx_type!r}."
            )
        return self.polynomial_piecewise(x, *_SIGMOIDS[approx_type])

    def _apply_function(self, name: str, x: Any, **named: Any) -> Any:
        if not is_private(x):
            raise UsageError(f"{name} takes a private tensor. Received: a public one.")
        return self._wrap_private(getattr(tfb, name)(self._to_operand(x), **named), x)

    def tanh(self, x: Any) -> Any:
        """The hyperbolic tangent."""
        return self._apply_function("tanh", x)

    def relu(self, x: Any) -> Any:
        """max(x, 0)."""
        return self._apply_function("relu", x)

    def relu_with_cmp(self, x: Any) -> Any:
        """max(x, 0), and the bit x > 0."""
        bit = self.greater_than(x, 0)
        return self.select(bit, 0, x), bit

    def softmax(self, x: Any, approx_type: str = "mp-spdz", max_method: str = "network") -> Any:
        """e^x over its sum along the last axis, right to a few units of the last place."""
        return self._apply_function("softmax", x)

    def reciprocal(self, x: Any, nonsigned: bool = False, precision: int = 1) -> Any:
        """1 / x, of either sign unless nonsigned."""
        if not is_private(x):
            return self._wrap_public(1 / to_numpy(x), True)
        return self._apply_function("reciprocal", x, signed=not nonsigned)

    def inv_sqrt(self, x: Any, precision: int = 1) -> Any:
        """1 / sqrt(x)."""
        return self._apply_function("rsqrt", x)

    def sqrt(self, x: Any, approx_type: str = "", precision: int = 1) -> Any:
        """sqrt(x)."""
        if not is_private(x):
            return self._wrap_public(np.sqrt(to_numpy(x)), True)
        return self._apply_function("sqrt", x)

    def log(self, x: Any, approx_type: str = "chebyshev") -> Any:
        """The natural logarithm, of all x > 0; approx_type is chosen here."""
        return self._apply_function("log", x)

    def exp(self, x: Any, approx_type: str = "mp-spdz", sign: int | None = None) -> Any:
        """e^x, right to a few units of the last place; approx_type is chosen here."""
        return self._apply_function("exp", x)

    def exp2(self, x: Any, approx_type: str = "mp-spdz", sign: int | None = None) -> Any:
        """2^x."""
        return self.exp(self.mul(x, float(np.log(2))))

    def exp2_pade(self, x: Any) -> Any:
        """2^x."""
        return self.exp2(x)


def _is_real(value: npt.NDArray[Any]) -> bool:
    return value.dtype.kind == "f"


def _to_axes(axis: Any) -> Any:
    return tuple(axis) if isinstance(axis, list) else axis

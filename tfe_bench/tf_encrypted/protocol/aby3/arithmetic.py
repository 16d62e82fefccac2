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

# Operations on private arrays; type checkers only know them for values of parties.
tfb: Any = tfe_bench
# Piecewise linear approximations of the logistic function by tf-encrypted's names: ends, and
# coefficients.
_SIGMOIDS: dict[str, tuple[tuple[float, ...], tuple[tuple[float, ...], ...]]] = {
    "3_piecewise_linear": ((-2.5, 2.5), ((1e-4,), (0.50, 0.17), (1 - 1e-4,))),
    "5_piecewise_linear": (
        (-4, -1.5, 1.5, 4),
        ((1e-4,), (0.281, 0.066), (0.5, 0.212), (0.719, 0.066), (1 - 1e-4,)),
    ),
}


def is_private(*values: Any) -> bool:
    """Return whether any of the values is private."""
    return any(isinstance(v, ABY3PrivateTensor) for v in values)


def _define_binary_operation(private: str, public: Any, about: str) -> Any:
    """Return a method that applies tfe_bench's operation, or NumPy's to public values."""

    def apply_operation(self: Arithmetic, x: Any, y: Any) -> Any:
        return self._apply_binary(private, public, x, y)

    apply_operation.__doc__ = about
    return apply_operation


class Arithmetic(Definitions):
    """Operations on numbers."""

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

    add = _define_binary_operation("add", np.add, "Return x + y.")

    def add_n(self, tensors: Any) -> Any:
        """Return the sum of several tensors."""
        total = tensors[0]
        for tensor in tensors[1:]:
            total = self.add(total, tensor)
        return total

    sub = _define_binary_operation("subtract", np.subtract, "Return x - y.")

    def negative(self, x: Any) -> Any:
        """Return -x."""
        return self.sub(0, x)

    mul = _define_binary_operation("multiply", np.multiply, "Return x y, truncated for reals.")

    mul_trunc2 = _define_binary_operation("multiply", np.multiply, "Return x y, as mul.")

    def mul_pow2(self, x: Any, exponent: int) -> Any:
        """Return x 2^exponent."""
        return self.mul(x, 2**exponent) if exponent >= 0 else self.truncate(x, amount=-exponent)

    def square(self, x: Any) -> Any:
        """Return x^2."""
        return (
            self.mul(x, x) if not is_private(x) else self._wrap_private(self._to_operand(x) ** 2, x)
        )

    def div(self, x: Any, y: Any) -> Any:
        """Return x / y."""
        if not is_private(x, y):
            return self._wrap_public(np.true_divide(to_numpy(x), to_numpy(y)), True)
        return self._apply_binary("divide", np.true_divide, x, y)

    def pow(self, x: Any, p: int) -> Any:
        """Return x^p for a public integer p."""
        if not is_private(x):
            return self._wrap_public(np.power(to_numpy(x), p))
        return self._wrap_private(self._to_operand(x) ** p, x)

    matmul = _define_binary_operation(
        "matmul", np.matmul, "Return products of matrices, or of batches of them."
    )

    def truncate(self, x: Any, method: str = "heuristic", amount: int | None = None) -> Any:
        """Return x / 2^amount (the fractional bits unless given), correctly rounded.

        `method` has no effect: none of the methods has an error.
        """
        n = self._fractional_bits if amount is None else int(amount)
        if not is_private(x):
            return self._wrap_public(to_numpy(x) / 2.0**n, True)
        operand = self._to_operand(x)
        if operand.kind != "fixed":
            return self._wrap_private(tfb.right_shift(operand, n), x)
        if n < 0 or operand.fractional_bits + n > 61:
            raise UsageError(
                f"truncate drops 0 to {61 - operand.fractional_bits} bits. Received: {n}.",
                code="number-out-of-range",
                operation="amount",
                received=n,
                expected=f"0 to {61 - operand.fractional_bits}",
            )
        lower = tfb.bitcast(operand, operand.fractional_bits + n)
        return self._wrap_private(tfb.cast(lower, operand.fractional_bits), x)

    def truncate_msb0(self, x: Any, method: str = "secureq8", amount: int | None = None) -> Any:
        """Return x / 2^amount, as truncate."""
        return self.truncate(x, amount=amount)

    def reduce_sum(self, x: Any, axis: Any = None, keepdims: bool = False) -> Any:
        """Return the sum over axes."""
        if not is_private(x):
            scaled = isinstance(x, ABY3PublicTensor) and x.is_scaled
            total = np.sum(to_numpy(x), axis=_to_reduction_axes(axis), keepdims=keepdims)
            return self._wrap_public(np.asarray(total), scaled)
        return self._wrap_private(tfb.reduce_sum(self._to_operand(x), axis, keepdims), x)

    def prod(self, x: Any, axis: int | None = None, keepdims: bool = False) -> Any:
        """Return the product over an axis."""
        return self._wrap_private(tfb.reduce_prod(self._to_operand(x), axis, keepdims), x)

    # ---- comparisons and selections

    greater_than = _define_binary_operation("greater", np.greater, "Return x > y.")
    greater_equal = _define_binary_operation("greater_equal", np.greater_equal, "Return x >= y.")
    less_than = _define_binary_operation("less", np.less, "Return x < y.")
    less_equal = _define_binary_operation("less_equal", np.less_equal, "Return x <= y.")
    equal = _define_binary_operation("equal", np.equal, "Return x == y.")

    def equal_zero(self, x: Any) -> Any:
        """Return x == 0."""
        return self.equal(x, 0)

    def select(self, choice_bit: Any, x: Any, y: Any) -> Any:
        """Return x where the bit is 0, y where it is 1."""
        if not is_private(choice_bit):
            return self._select_by_public(to_numpy(choice_bit) != 0, x, y)
        if choice_bit.is_word:
            raise UsageError(
                f"select takes one bit for each element. Received: {choice_bit!r}.",
                code="shape-mismatch",
                operation="choice_bit",
            )
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
        """Select one of two public numbers by a private bit."""
        return bits.cast() * (np.asarray(y) - x) + x

    def _select_by_public(self, truth: Any, x: Any, y: Any) -> Any:
        number = truth.astype(np.int64)
        return self.add(self.mul(self.sub(y, x), number), x)

    maximum = _define_binary_operation("maximum", np.maximum, "Return the larger of each pair.")

    def cmp_swap(self, x: Any, y: Any) -> Any:
        """Return the smaller and the larger of each pair."""
        return self._apply_binary("minimum", np.minimum, x, y), self.maximum(x, y)

    def reduce_max(
        self, x: Any, axis: Any = None, keepdims: bool = False, method: str = "tree"
    ) -> Any:
        """Return the largest over axes; `method` has no effect."""
        if not is_private(x):
            largest = np.max(to_numpy(x), axis=_to_reduction_axes(axis), keepdims=keepdims)
            return self._wrap_public(np.asarray(largest), getattr(x, "is_scaled", None))
        return self._wrap_private(tfb.reduce_max(self._to_operand(x), axis, keepdims), x)

    def argmax(self, x: Any, axis: int = 0, output_style: str = "onehot") -> Any:
        """Return the first largest element's place: bits in x's shape, or its index ("normal")."""
        if output_style not in ("onehot", "normal"):
            raise UsageError(
                f"output_style is 'onehot' or 'normal'. Received: {output_style!r}.",
                code="unsupported-argument",
                operation="output_style",
                received=output_style,
            )
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
        """Return the largest over an axis and its place, as argmax."""
        position = self.argmax(x, axis, output_style)
        if keepdims and output_style == "normal":
            position = self._wrap_private(tfb.expand_dims(position.array, axis % len(x.shape)))
        return self.reduce_max(x, axis, keepdims), position

    def sort(self, x: Any, axis: int, acc: bool = True) -> Any:
        """Sort along an axis, ascending unless acc is False."""
        direction = "ASCENDING" if acc else "DESCENDING"
        return self._wrap_private(tfb.sort(self._to_operand(x), axis=axis, direction=direction), x)

    # ---- functions

    def polynomial(self, x: Any, coeffs: Any) -> Any:
        """Return the sum of coeffs[i] x^i."""
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
        """Return one polynomial up to each of the ends c, and one beyond the last."""
        if len(c) + 1 != len(coeffs):
            raise UsageError(
                f"{len(c)} ends take {len(c) + 1} polynomials. Received: {len(coeffs)}.",
                code="shape-mismatch",
                operation="coeffs",
                received=len(coeffs),
                expected=len(c) + 1,
            )
        ends = np.asarray(c, np.float64)
        operand = tfb.expand_dims(self._to_operand(x), end_axis := len(x.shape))
        beyond = (operand > ends).cast()  # [.., ends]
        pieces = [self._to_operand(self.polynomial(x, coefficients)) for coefficients in coeffs]
        steps = tfb.stack([b - a for a, b in itertools.pairwise(pieces)], end_axis)
        return self._wrap_private(pieces[0] + tfb.reduce_sum(steps * beyond, end_axis), x)

    def sigmoid(self, x: Any, approx_type: str = "5_piecewise_linear") -> Any:
        """Return the logistic function by tf-encrypted's lines, or "exact", with 2 ulp."""
        if approx_type == "exact":
            return self._wrap_private(tfb.sigmoid(self._to_operand(x)), x)
        if approx_type not in _SIGMOIDS:
            raise UsageError(
                f"approx_type is {', '.join([*_SIGMOIDS, 'exact'])}. Received: {approx_type!r}.",
                code="unsupported-argument",
                operation="approx_type",
                received=approx_type,
            )
        return self.polynomial_piecewise(x, *_SIGMOIDS[approx_type])

    def _apply_function(self, name: str, x: Any, **named: Any) -> Any:
        if not is_private(x):
            raise UsageError(
                f"{name} takes a private tensor. Received: a public one.",
                code="wrong-type",
                operation=name,
            )
        return self._wrap_private(getattr(tfb, name)(self._to_operand(x), **named), x)

    def tanh(self, x: Any) -> Any:
        """Return the hyperbolic tangent."""
        return self._apply_function("tanh", x)

    def relu(self, x: Any) -> Any:
        """Return max(x, 0)."""
        return self._apply_function("relu", x)

    def relu_with_cmp(self, x: Any) -> Any:
        """Return max(x, 0), and the bit x > 0."""
        bit = self.greater_than(x, 0)
        return self.select(bit, 0, x), bit

    def softmax(self, x: Any, approx_type: str = "mp-spdz", max_method: str = "network") -> Any:
        """Return the softmax along the last axis, with an error of a few ulp."""
        return self._apply_function("softmax", x)

    def reciprocal(self, x: Any, nonsigned: bool = False, precision: int = 1) -> Any:
        """Return 1 / x, for either sign unless nonsigned."""
        if not is_private(x):
            return self._wrap_public(1 / to_numpy(x), True)
        return self._apply_function("reciprocal", x, signed=not nonsigned)

    def inv_sqrt(self, x: Any, precision: int = 1) -> Any:
        """Return 1 / sqrt(x)."""
        return self._apply_function("rsqrt", x)

    def sqrt(self, x: Any, approx_type: str = "", precision: int = 1) -> Any:
        """Return sqrt(x)."""
        if not is_private(x):
            return self._wrap_public(np.sqrt(to_numpy(x)), True)
        return self._apply_function("sqrt", x)

    def log(self, x: Any, approx_type: str = "chebyshev") -> Any:
        """Return the natural logarithm for all x > 0; approx_type has no effect."""
        return self._apply_function("log", x)

    def exp(self, x: Any, approx_type: str = "mp-spdz", sign: int | None = None) -> Any:
        """Return e^x with an error of a few ulp; approx_type has no effect."""
        return self._apply_function("exp", x)

    def exp2(self, x: Any, approx_type: str = "mp-spdz", sign: int | None = None) -> Any:
        """Return 2^x."""
        return self.exp(self.mul(x, float(np.log(2))))

    def exp2_pade(self, x: Any) -> Any:
        """Return 2^x."""
        return self.exp2(x)


def _is_real(value: npt.NDArray[Any]) -> bool:
    return value.dtype.kind == "f"


def _to_reduction_axes(axis: Any) -> Any:
    return tuple(axis) if isinstance(axis, list) else axis

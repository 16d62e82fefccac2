"""Private arrays of a client's own data: ring elements, kinds, scales and public bounds."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np

from tfe_bench.arrays import arguments
from tfe_bench.arrays import bounds as rules
from tfe_bench.arrays import plan as plans
from tfe_bench.arrays.array_spec import BITS, FIXED, INT, KINDS, ArraySpec
from tfe_bench.arrays.bounds import Bounds
from tfe_bench.arrays.node import ExpressionNode
from tfe_bench.arrays.plan import ExpressionLeaf
from tfe_bench.cluster.requests import PrivateInput
from tfe_bench.errors import RangeError, UsageError
from tfe_bench.protocols.session.fixedpoint import FixedPoint


def make_leaf(
    array: Any, kind: str | None, fractional_bits: int | None, bound: Any, default_bits: int
) -> ExpressionNode:
    """Make a leaf of this client's data; as array.make_private_array.

    Args:
        default_bits: default fractional bits of reals.
    """
    elements = np.asarray(array)
    if elements.dtype.kind not in "biuf":
        raise UsageError(
            f"private takes real numbers. Received: an array of {elements.dtype.name}.",
            code="unsupported-type",
            operation="private",
            received=elements.dtype.name,
        )
    default = {"b": BITS, "f": FIXED}.get(elements.dtype.kind, INT)
    chosen = default if kind is None else kind
    if chosen not in KINDS:
        raise UsageError(
            f"kind is one of {', '.join(KINDS)}. Received: {kind!r}.",
            code="unknown-name",
            operation="kind",
            received=kind,
        )
    bits = default_bits if fractional_bits is None else fractional_bits
    if type(bits) is not int or not 1 <= bits <= 61:
        raise UsageError(
            f"Reals have 1 to 61 fractional bits. Received: {fractional_bits!r}.",
            code="number-out-of-range",
            operation="fractional_bits",
            received=fractional_bits,
        )
    if chosen != FIXED and fractional_bits is not None:
        raise UsageError(
            f"Only reals have fractional bits. Received: {fractional_bits} of {chosen}.",
            code="conflicting-options",
            operation="fractional_bits",
            received=fractional_bits,
        )
    ring, scale = _encode_array_elements(elements, chosen, bits)
    leaf = ExpressionLeaf(plans.INPUT, chosen, elements.shape, scale)
    arguments.check_array_shape(list(elements.shape))
    spec = ArraySpec(chosen, elements.shape, scale)
    bounds = declared_bounds(bound, spec, ring)
    return ExpressionNode(spec, leaf=leaf, value=PrivateInput(ring, scale), bounds=bounds)


def _encode_array_elements(array: np.ndarray[Any, Any], kind: str, bits: int) -> tuple[Any, int]:
    if kind == FIXED:
        return FixedPoint(bits).encode(array), bits
    with np.errstate(invalid="ignore"):
        whole = array.dtype.kind != "f" or bool(np.all(array == np.rint(array)))
    if not whole:
        raise UsageError(
            f"{kind} takes whole numbers. Received: fractions. Use kind='fixed'.",
            code="not-whole",
            operation=kind,
        )
    if kind == BITS:
        if not np.all((array == 0) | (array == 1)):
            raise UsageError(
                "bits are 0 and 1, or truth values. Received: other numbers.", code="not-bits"
            )
        return array.astype(np.int64), 0
    if array.dtype.kind == "u" and array.size and int(array.max()) >= 1 << 63:
        raise RangeError(
            "Integers are below 2^63. Received: larger ones.", code="number-out-of-range"
        )
    return FixedPoint(0).encode(array), 0


def declared_bounds(bound: Any, spec: ArraySpec, ring: np.ndarray[Any, Any]) -> Bounds:
    """Return the public bounds of a client's own array after checking its elements.

    Args:
        bound: a magnitude, or (low, high); None: bounds.default_bounds.
        ring: its elements.

    Raises:
        UsageError: the bound is invalid.
        RangeError: an element is outside.
    """
    if spec.kind == BITS:
        if bound is not None:
            raise UsageError(
                "Truth values take no bound. Received: one.",
                code="conflicting-options",
                operation="bound",
            )
        return rules.TRUTH
    bounds = rules.default_bounds(spec) if bound is None else _parse_bound(bound, spec)
    if ring.size and not (bounds.low <= int(ring.min()) and int(ring.max()) <= bounds.high):
        low, high = (float(v) / (1 << spec.scale) for v in bounds)
        prefix = "by default, " if bound is None else ""
        raise RangeError(
            f"Values of this array must be, {prefix}from {low:.10g} to {high:.10g}: public "
            "bounds for which operations on it are planned. Received: a value outside. "
            "Declare larger bounds: cluster.private(array, bound=2**40), or bound=(low, "
            "high).",
            code="outside-bound",
        )
    return bounds


def _parse_bound(bound: Any, spec: ArraySpec) -> Bounds:
    pair = bound if isinstance(bound, (tuple, list)) else (bound,)
    ends = [_bound_as_exact_fraction(v) for v in pair]
    if len(ends) == 1 and ends[0] is not None:
        ends = [-ends[0], ends[0]]
    low, high = ends if len(ends) == 2 else (None, None)
    if low is None or high is None or low > high:
        raise UsageError(
            "bound is the largest magnitude, or a pair (low, high) of public numbers. "
            f"Received: {bound!r}.",
            code="invalid-bound",
            received=bound,
        )
    whole, unit = rules.widest_bounds(spec), 1 << spec.scale
    return Bounds(max(math.floor(low * unit), whole.low), min(math.ceil(high * unit), whole.high))


def _bound_as_exact_fraction(value: Any) -> Fraction | None:
    """Return a finite real number as an exact fraction; None: another value."""
    real = isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
    if not real or not np.isfinite(float(value)):
        return None
    return (
        Fraction(float(value)) if isinstance(value, (float, np.floating)) else Fraction(int(value))
    )

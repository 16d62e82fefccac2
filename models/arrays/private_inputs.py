"""Private arrays of a client's own data: ring elements, kinds, scales and public bounds."""

from __future__ import annotations

from typing import Any

import numpy as np

from tfe_bench.cluster.requests import PrivateInput
from tfe_bench.errors import RangeError, UsageError
from tfe_bench.models.arrays import arguments, planning
from tfe_bench.models.arrays import plan as plans
from tfe_bench.models.arrays.evaluate import ArraySpec
from tfe_bench.models.arrays.node import Node
from tfe_bench.models.arrays.plan import BITS, FIXED, INT, Leaf
from tfe_bench.protocols.session.fixedpoint import FixedPoint


def make_leaf(
    array: Any, kind: str | None, fractional_bits: int | None, bound: Any, default_bits: int
) -> Node:
    """Make a leaf of this client's data; as array.make_private.

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
    if chosen not in plans.KINDS:
        raise UsageError(
            f"kind is one of {', '.join(plans.KINDS)}. Received: {kind!r}.",
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
    ring, scale = _encode_ring(elements, chosen, bits)
    leaf = Leaf(plans.INPUT, chosen, elements.shape, scale)
    arguments.check_shape(list(elements.shape))
    spec = ArraySpec(chosen, elements.shape, scale)
    bounds = planning.declared_bounds(bound, spec, ring)
    return Node(spec, leaf=leaf, value=PrivateInput(ring, scale), bounds=bounds)


def _encode_ring(array: np.ndarray[Any, Any], kind: str, bits: int) -> tuple[Any, int]:
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

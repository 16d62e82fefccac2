"""Private arrays of a client's own: their ring elements, kinds, scales and public bounds."""

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
    """A leaf of this client's; as array.private.

    Args:
        usual: fractional bits of reals, unless given.
    """
    elements = np.asarray(array)
    if elements.dtype.kind not in "biuf":
        raise UsageError(
            f"private takes real numbers. Received: an array of {elements.dtype.name}."
        )
    default = {"b": BITS, "f": FIXED}.get(elements.dtype.kind, INT)
    chosen = default if kind is None else kind
    if chosen not in plans.KINDS:
        raise UsageError(f"kind is one of {', '.join(plans.KINDS)}. Received: {kind!r}.")
    bits = default_bits if fractional_bits is None else fractional_bits
    if type(bits) is not int or not 1 <= bits <= 61:
        raise UsageError(f"Reals have 1 to 61 fractional bits. Received: {fractional_bits!r}.")
    if chosen != FIXED and fractional_bits is not None:
        raise UsageError(
            f"Only reals have fractional bits. Received: {fractional_bits} of {chosen}."
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
        raise UsageError(f"{kind} takes whole numbers. Received: fractions. Say kind='fixed'.")
    if kind == BITS:
        if not np.all((array == 0) | (array == 1)):
            raise UsageError("bits are 0 and 1, or truth values. Received: other numbers.")
        return array.astype(np.int64), 0
    if array.dtype.kind == "u" and array.size and int(array.max()) >= 1 << 63:
        raise RangeError("Integers are below 2^63. Received: larger ones.")
    return FixedPoint(0).encode(array), 0

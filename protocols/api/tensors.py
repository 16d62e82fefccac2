"""Operations that reveal, add or rearrange whole private tensors, some with public operands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tfe_bench.errors import UsageError
from tfe_bench.lazy_tensorflow import tf
from tfe_bench.protocols.api import operands, predicates
from tfe_bench.protocols.api.predicates import cast
from tfe_bench.protocols.ring import reductions, shapes
from tfe_bench.protocols.session import fixedpoint, io, openings, tensor_ops
from tfe_bench.protocols.session.party import current_party
from tfe_bench.protocols.session.sharing import MaskedBits, Shared
from tfe_bench.protocols.session.types import Axes, Operand, Public


def reveal(
    x: Shared | MaskedBits, to: int | None = None, what: str = openings.VALUES
) -> tf.Tensor | None:
    """Publish a private tensor to the three workers, or to one: the only opening of values.

    Args:
        to: a party index; None publishes to all three.
        what: the kind of the values, a plural noun. `Size.openings` of a program declares it, and
            the result of a job lists it.

    Returns:
        A public tensor at the receiving workers, None elsewhere: int64 for a tensor without
            fractional bits, float64 for others (53 significant bits), bool for private bits.

    Results of products, means and similar operations are rounded by a coin. Each worker can
    recompute that coin from its shares, so the last bit reveals more to it than the rounded
    value (docs/threat_model.md). `reveal(cast(x, 8, method="exact"))` publishes fewer bits,
    which are a function of x.

    Rounds: 1 (bits: 2). Bits sent: those of io.reveal. See io.reveal for ring elements.
    """
    party = operands.require_party_in_graph("reveal")
    if isinstance(x, MaskedBits):
        bit_values = io.reveal(party, cast(x), to, what)
        return (
            bit_values
            if bit_values is None or not tensor_ops.is_concrete(bit_values)
            else bit_values != 0
        )
    if isinstance(x, Shared) and x.limbs == 1:
        ring = io.reveal(party, x, to, what)
        if ring is None or x.fractional_bits == 0 or not tensor_ops.is_concrete(ring):
            return ring
        return tf.cast(ring, tf.float64) * 2.0**-x.fractional_bits
    x = operands.check_private_operand("reveal", x)  # rejects it
    raise AssertionError(x)


@operands.check_arguments(in_graph=False)
def bitcast(x: Shared, fractional_bits: int) -> Shared:
    """Read the same ring elements with another number of fractional bits (0: integers). Local.

    It multiplies by a power of two without a change of ring elements: with f fractional bits x
    becomes x 2^(f - fractional_bits). `cast` keeps the value instead.
    """
    description = "0 to 61 fractional bits"
    bits = operands.check_integer_range("bitcast", fractional_bits, 0, 61, description)
    return replace(x, fractional_bits=bits)


def add_n(inputs: Sequence[Operand]) -> Shared:
    """Add tensors of one shape, some of which may be public. Local."""
    addends = operands.share_operand_list("add_n", inputs)
    for value in addends[1:]:
        operands.check_fit("add_n", addends[0], value)
        if value.shape.as_list() != addends[0].shape.as_list():
            raise UsageError(
                f"add_n expects tensors of one shape. Received: {addends[0].shape.as_list()} "
                f"and {value.shape.as_list()}.",
                code="shape-mismatch",
                operation="add_n",
                received=value.shape.as_list(),
                expected=addends[0].shape.as_list(),
            )
    return reductions.add_n(addends)


@operands.check_arguments()
def reduce_mean(x: Shared, axis: Axes = None, keepdims: bool = False) -> Shared:
    """Return the mean over one axis, several or all (None), at the scale of x.

    Integers have a mean with 16 fractional bits, as `divide` by their number yields: TensorFlow
    rounds such means down, which loses their fraction.

    Error, domain, rounds and bits: reductions.reduce_mean (1 round; 1 ulp and 2^-31 of the sum).
    """
    extra_bits = 0 if x.fractional_bits else operands.WEIGHT_BITS
    return reductions.reduce_mean(current_party(), x, axis, keepdims, extra_bits=extra_bits)


def _share_operands_alike(operation: str, values: Sequence[Operand]) -> Sequence[Shared]:
    """Return the values of a list, all numbers or all bits; public ones as shares."""
    if isinstance(values, (list, tuple)):
        private_bits = next((v for v in values if isinstance(v, MaskedBits)), None)
        if private_bits is not None:
            bit_tensors: list[Any] = [
                predicates.as_private_bits(operation, v, private_bits) for v in values
            ]
            return bit_tensors
    return operands.share_operand_list(operation, values)


def concat(values: Sequence[Operand], axis: int) -> Shared:
    """Concatenate tensors, some of which may be public, along an axis. Local."""
    return shapes.concat(_share_operands_alike("concat", values), axis)


def stack(values: Sequence[Operand], axis: int = 0) -> Shared:
    """Stack tensors of one shape, some of which may be public, along a new axis. Local."""
    return shapes.stack(_share_operands_alike("stack", values), axis)


def unstack(x: Shared, num: int | None = None, axis: int = 0) -> list[Shared]:
    """Return the parts of x along an axis, which is dropped; `num` of them. Local."""
    private_value = (
        x
        if isinstance(x, MaskedBits)
        else operands.check_private_operand("unstack", x, any_ring=True)
    )
    parts = shapes.unstack(private_value, axis)
    if num is not None and num != len(parts):
        raise UsageError(
            f"unstack expects num to be the size {len(parts)} of axis {axis}. Received: {num!r}.",
            code="shape-mismatch",
            operation="unstack",
            received=num,
            expected=len(parts),
        )
    return parts


def pad(x: Shared, paddings: Public, mode: str = "CONSTANT", constant_values: float = 0) -> Shared:
    """Pad x with `paddings[axis] = (before, after)` elements. Local.

    Args:
        mode: "CONSTANT", or "REFLECT" or "SYMMETRIC": mirrored at the edges, which are repeated by
            "SYMMETRIC" only.
        constant_values: a public number.
    """
    x = x if isinstance(x, MaskedBits) else operands.check_private_operand("pad", x, any_ring=True)
    chosen_mode = mode.upper() if isinstance(mode, str) else mode
    if chosen_mode in ("REFLECT", "SYMMETRIC"):
        return shapes.pad_mirrored(x, paddings, chosen_mode == "SYMMETRIC")
    if chosen_mode != "CONSTANT":
        raise UsageError(
            f'pad supports the modes "CONSTANT", "REFLECT" and "SYMMETRIC". Received: {mode!r}.',
            code="unknown-name",
            operation="pad",
            received=mode,
            expected="CONSTANT, REFLECT, SYMMETRIC",
        )
    number = operands.static_number("pad", constant_values, "as constant_values")
    if isinstance(x, MaskedBits):
        if number not in (0, 1):
            raise UsageError(
                f"pad expects 0 or 1 to pad bits. Received: {constant_values!r}.",
                code="not-truth-values",
                operation="pad",
                received=constant_values,
                expected="0 or 1",
            )
        return shapes.pad(x, paddings, int(number))
    operands.encode_public("pad", number, x.fractional_bits)  # rejects numbers that do not fit
    return shapes.pad(x, paddings, int(fixedpoint.FixedPoint(x.fractional_bits).encode(number)))

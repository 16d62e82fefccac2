"""Generation of an operation's inputs, and judgement of its result against the plaintext."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tfe_bench.benchmarks import error_metrics
from tfe_bench.benchmarks.operations.catalogue import Array, Operation, Options, Shape
from tfe_bench.errors import UsageError, check_range, did_you_mean
from tfe_bench.protocols.session.fixedpoint import FixedPoint

# float64 has 53 bits; sums and functions of it lose a few.
_FLOAT_ERROR = 2.0**-48


@dataclass(frozen=True)
class EncodedInputs:
    """Encoded inputs: ring elements by name, all of one scale."""

    rings: Mapping[str, Array]
    fractional_bits: int

    @property
    def bytes(self) -> int:
        """Bytes of the ring elements."""
        return sum(ring.nbytes for ring in self.rings.values())


@dataclass(frozen=True)
class Verdict:
    """Judgement of a result.

    Attributes:
        correct: every element is within its tolerance.
        max_error: largest absolute difference.
        ulps: the same in units of the last place of the result, or of 2^-f parts of results that
            are greater than 1.
        error: in the unit of the tolerance, for a record; None for exact operations.
    """

    correct: bool
    max_error: float
    ulps: float
    error: Mapping[str, Any] | None = None


def settle_options(
    operation: Operation, size: Sequence[int], overrides: Options
) -> tuple[Shape, Options]:
    """Validate a size and options; return the size and the options with their defaults.

    Raises:
        UsageError: an unknown option, or a size or option that does not fit.
    """
    for name in overrides:
        if name not in operation.options:
            raise UsageError(
                f"{operation.name} has no option {name!r}.{did_you_mean(name, operation.options)}",
                code="unknown-option",
                operation=operation.name,
                received=name,
            )
        kind = type(operation.options[name])
        if type(overrides[name]) is not kind:
            raise UsageError(
                f"{operation.name}: {name} is of type {kind.__name__}. Received: "
                f"{str(overrides[name])[:80]!r}.",
                code="wrong-type",
                operation=operation.name,
                received=overrides[name],
            )
    shape = tuple(int(n) for n in size)
    options = {**operation.options, **overrides}
    operation.check_size(shape)
    operation.check(shape, options)
    return shape, options


def generate_inputs(
    operation: Operation,
    size: Shape,
    seed: int,
    draw: Callable[[Shape, np.random.Generator], dict[str, Array]] | None = None,
) -> EncodedInputs:
    """Generate inputs of a size; the same seed gives the same.

    Args:
        draw: generates them, instead of the operation's own generator.

    Raises:
        UsageError: the memory of this machine is too small, or the seed is negative.
    """
    check_range("--seed", seed, 0)
    try:
        values = (draw or operation.inputs)(size, np.random.default_rng(seed))
        return encode_inputs(operation, values)
    except (MemoryError, OverflowError, ValueError):  # sizes that NumPy cannot count
        raise UsageError(
            "The memory of this machine does not hold arrays of this shape. Received: "
            f"{'x'.join(map(str, size))}.",
            code="out-of-memory",
            operation=operation.name,
            received="x".join(map(str, size)),
        ) from None


def encode_inputs(operation: Operation, values: Mapping[str, Array]) -> EncodedInputs:
    """Encode inputs as ring elements: exact integers if the operation takes them, else fixed point.

    Raises:
        RangeError: a value does not fit the fixed point.
    """
    integers = operation.integers and all(v.dtype.kind in "iu" for v in values.values())
    bits = 0 if integers else operation.input_bits
    encoder = FixedPoint(bits)
    return EncodedInputs({name: encoder.encode(v) for name, v in values.items()}, bits)


def judge_result(
    operation: Operation,
    inputs: EncodedInputs,
    options: Options,
    result: Array,
    fractional_bits: int,
) -> Verdict:
    """Compare a result (ring elements of a scale) with the plaintext of its encoded inputs."""
    if operation.tolerance is None:
        exact = operation.reference(inputs.rings, options)
        if np.array_equal(result, exact):
            return Verdict(True, 0.0, 0.0)
        if np.shape(result) != np.shape(exact):
            return Verdict(False, math.inf, math.inf)
        off = float(np.abs(result.astype(np.float64) - exact.astype(np.float64)).max())
        return Verdict(False, math.ldexp(off, -fractional_bits), off)
    decode = FixedPoint(inputs.fractional_bits).decode
    reals = {name: decode(ring) for name, ring in inputs.rings.items()}
    exact = operation.reference(reals, options)
    decoded: Any = np.ldexp(result.astype(np.float64), -fractional_bits)
    if np.shape(decoded) != np.shape(exact):
        return Verdict(False, math.inf, math.inf)
    error = np.abs(decoded - exact)
    allowed = operation.tolerance.allowed(reals, exact) + np.abs(exact) * _FLOAT_ERROR
    unit = operation.tolerance.unit
    parts = error_metrics.largest_result_error(
        error_metrics.RELATIVE, error, exact, fractional_bits
    )
    return Verdict(
        bool(np.all(error <= allowed)),
        float(error.max(initial=0.0)),
        math.ldexp(parts, fractional_bits),
        error_metrics.error_to_json(
            unit, error_metrics.largest_result_error(unit, error, exact, fractional_bits)
        ),
    )

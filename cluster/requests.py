"""The inputs of a job, and its result, at a client."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from tfe_bench.cluster.job_receipts import JobReceipt
from tfe_bench.cluster.jobs import InputSpec
from tfe_bench.cluster.seeds import Ring
from tfe_bench.errors import UsageError
from tfe_bench.protocols.session.openings import Opening

_MOST_BITS = 127
# Called with a fraction and a word; both are public.
Progress = Callable[[float, str], None]


@dataclass(frozen=True)
class PrivateInput:
    """A client's input: ring elements with their scale.

    Attributes:
        ring: int64 words: an array of elements of Z_2^64, or, with limbs 2, of elements of
            Z_2^128 with a last axis of 2 words, low word first (`FixedPoint(f, 128).encode`).
        fractional_bits: the scale.
        limbs: words per element, 1 or 2.

    Raises:
        UsageError: the array has no integers, or with limbs 2 no last axis of 2 words, or the
            scale is out of range.
    """

    ring: Ring
    fractional_bits: int = 0
    limbs: int = 1

    def __post_init__(self) -> None:
        if type(self.fractional_bits) is not int or not 0 <= self.fractional_bits <= _MOST_BITS:
            raise UsageError(
                f"An input has 0 to {_MOST_BITS} fractional bits. Received: "
                f"{self.fractional_bits!r}.",
                code="number-out-of-range",
                operation="fractional_bits",
                received=self.fractional_bits,
                expected=f"0 to {_MOST_BITS}",
            )
        if type(self.limbs) is not int or self.limbs not in (1, 2):
            raise UsageError(
                f"An element has 1 or 2 words (limbs). Received: {self.limbs!r}.",
                code="number-out-of-range",
                operation="limbs",
                received=self.limbs,
                expected="1 or 2",
            )
        if not isinstance(self.ring, np.ndarray) or self.ring.dtype.kind not in "iu":
            kind = getattr(self.ring, "dtype", type(self.ring).__name__)
            raise UsageError(
                f"An input is an array of integers. Received: {kind}. Encode reals first, with "
                "FixedPoint.",
                code="wrong-type",
                operation="ring",
                received=str(kind),
                expected="integers",
            )
        if self.limbs == 2 and (self.ring.ndim == 0 or self.ring.shape[-1] != 2):
            raise UsageError(
                "An input over Z_2^128 has a last axis of 2 words. Received: shape "
                f"{list(self.ring.shape)}.",
                code="shape-mismatch",
                operation="ring",
                received=list(self.ring.shape),
                expected="a last axis of 2",
            )
        if self.limbs == 2 and self.ring.dtype.itemsize != 8:
            raise UsageError(
                f"Words have 64 bits. Received: {self.ring.dtype}.",
                code="wrong-type",
                operation="ring",
                received=str(self.ring.dtype),
                expected="64 bits",
            )

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape, counted in elements of the ring."""
        words: tuple[int, ...] = self.ring.shape
        return words if self.limbs == 1 else words[:-1]


@dataclass(frozen=True)
class LazyInput:
    """An input that is created just before it is sent, so that not all of a model is in memory.

    Attributes:
        shape, fractional_bits: of the future input.
        make: returns the same input each time: it is called again if one worker's connection is
            far slower than another's.
    """

    shape: tuple[int, ...]
    fractional_bits: int
    make: Callable[[], PrivateInput]
    limbs: int = 1


@dataclass(frozen=True)
class LateInput(LazyInput):
    """An input that is shared while the job is running, after all inputs of its start.

    Attributes:
        shape, fractional_bits: of the future input.
        make: called once, just before the input is sent.
    """


# An input of a job.
AnyInput: TypeAlias = PrivateInput | LazyInput


@dataclass(frozen=True)
class SubmittedJob:
    """A job as submitted, without the values of its inputs.

    Attributes:
        program: name of the program.
        parameters: public parameters.
        inputs: public facts about its inputs, in their order.
    """

    program: str
    parameters: Mapping[str, Any]
    inputs: tuple[InputSpec, ...]


@dataclass
class JobResult:
    """The result of a job.

    Attributes:
        outputs: ring elements (int64) by name, reconstructed here and nowhere else; those over
            Z_2^128 have a last axis of 2 words, low word first.
        fractional_bits: their scales.
        limbs: their words per element, 1 or 2.
        measured: public figures of each worker.
        opened: what became public to the workers, on which all three agree.
        receipt: what the three workers have signed about the job; None for a result that no worker
            computed.
        share_seconds: seconds from submission until all inputs have left this client.
        submitted: the job; None for a result that no worker computed.
    """

    outputs: dict[str, Ring] = field(default_factory=dict)
    fractional_bits: dict[str, int] = field(default_factory=dict)
    limbs: dict[str, int] = field(default_factory=dict)
    measured: list[dict[str, Any]] = field(default_factory=lambda: [{}, {}, {}])
    opened: tuple[Opening, ...] = ()
    receipt: JobReceipt | None = None
    share_seconds: float = 0.0
    submitted: SubmittedJob | None = None


def private_input_spec(name: str, value: AnyInput) -> InputSpec:
    """Return the public facts about an input."""
    late = isinstance(value, LateInput)
    return InputSpec(name, value.shape, value.fractional_bits, value.limbs, late)

"""The entries of the catalogue, and their register."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from tfe_bench.benchmarks import error_metrics
from tfe_bench.cluster.jobs import GROWTH, Size, shape_extent
from tfe_bench.errors import UsageError, check_known
from tfe_bench.protocols.ring import truncation
from tfe_bench.protocols.session import counting, slices
from tfe_bench.protocols.session.counting import Private

if TYPE_CHECKING:
    from tfe_bench.protocols.session.party import Party
    from tfe_bench.protocols.session.sharing import Shared

Array = np.ndarray[Any, Any]
Arrays = Mapping[str, Array]
Options = Mapping[str, Any]
Shape = tuple[int, ...]
Shares = Mapping[str, "Shared"]
Inputs = Callable[[Shape, "np.random.Generator"], dict[str, Array]]
Run = Callable[["Party", Shares, Options], "Shared"]
Reference = Callable[[Arrays, Options], Array]
Shapes = Callable[[Shape], dict[str, Shape]]

FRACTIONAL_BITS = 16
ULP = 2.0**-FRACTIONAL_BITS


def same_operand_shapes(*names: str) -> Shapes:
    """Return a shape function for inputs that all have the operation's size."""
    return lambda size: {name: size for name in names}


_only_x = same_operand_shapes("x")


def _accept_all(*_: Any) -> None:
    """Accept everything: no condition."""


@dataclass(frozen=True)
class Operation:
    """One private operation: its command, its line of `ops`, its rows of suites and reports.

    Attributes:
        name: of its command and in records.
        about: one line.
        run: builds the graph: (party, shares by name, options) -> the private result.
        reference: the exact result, of ring elements where `tolerance` is None, else of reals;
            both as encoded, so that the rounding of inputs counts for nothing.
        tolerance: largest error allowed, element by element, from inputs and exact result; None
            where the result's ring elements must be those of the reference.
        size: of the table that `ops` prints; the first input's shape, unless `shapes` says else.
        inputs: from a size and a generator, the real-valued private inputs by name.
        variant: of the protocol, for the record.
        options: public parameters that `run` understands, with their defaults; they are options of
            the command too, "profile" as --plan-for.
        help: of the command, in the imperative; one without it is listed by its name alone.
        helps: of the command's options, by name.
        shapes: of the inputs by name, from a size.
        size_of: the size, from the inputs' shapes.
        check: refuses a size or options that do not fit (UsageError).
        domain: refuses ring elements that it is not right for (RangeError); asked by the client
            alone.
        input_bits: fractional bits of the inputs.
        integers: it takes integers without a scale too.
        most: an upper bound on the words of its largest array, from a size and options; None: it is
            counted.
        shrinks: the axes of the size that `ops --scale` makes smaller, alike.
        least: smallest extents of a size.
        per_input: "bytes per element" counts elements of the first input, not of the result.
        stepwise: `run` makes graph calls itself (sorting); else it is traced as one graph.
        listed: `ops` runs it.
    """

    name: str
    about: str
    run: Run
    reference: Reference
    tolerance: Tolerance | None
    size: Shape
    inputs: Inputs
    variant: str
    options: Options = field(default_factory=dict)
    help: str = ""
    helps: Mapping[str, str] = field(default_factory=dict)
    shapes: Shapes = _only_x
    size_of: Callable[[Sequence[Shape]], Shape] = lambda shapes: shapes[0]
    check: Callable[[Shape, Options], None] = _accept_all
    domain: Callable[[Arrays, Options], None] = _accept_all
    input_bits: int = FRACTIONAL_BITS
    integers: bool = False
    most: Callable[[Shape, Options], int] | None = None
    shrinks: tuple[int, ...] = (0,)
    least: Shape = (1,)
    per_input: bool = False
    stepwise: bool = False
    listed: bool = True

    @property
    def is_row_wise(self) -> bool:
        """True if the operation treats each row of its only input separately."""
        return len(self.size) == 2

    @property
    def takes_files(self) -> bool:
        """True if columns of a file can be its inputs."""
        return len(self.size) <= 2

    def estimate_size(self, size: Shape, options: Options) -> Size:
        """Estimate the largest array of a run, its memory, and its openings.

        From counting the protocol; for local work at least GROWTH per element of the largest input.
        """
        if self.most is not None and not self.stepwise:
            largest = self.most(size, options)
            return Size(largest, memory=slices.estimate_memory(largest), openings=())
        shapes = self.shapes(size)

        def run(party: Party, *shares: Shared) -> Shared:
            return self.run(party, dict(zip(shapes, shares, strict=True)), options)

        scales = {self.input_bits, 0} if self.integers else {self.input_bits}
        counted = [
            counting.count_cost(
                run,
                *(Private(s, scale) for s in shapes.values()),
                graphs=self.stepwise,
                expected=True,
            )
            for scale in scales
        ]
        if self.most is not None:
            words = largest = self.most(size, options)
        else:
            largest = max(tally.largest for tally in counted)
            words = max(largest, GROWTH * max(shape_extent(shape) for shape in shapes.values()))
        memory = slices.estimate_memory(largest)
        return Size(words, memory=memory, openings=counted[0].openings)

    def check_size(self, size: Shape) -> None:
        """Reject a size with a wrong number of axes or too small extents.

        Elementwise operations (a size of one axis) take any number of axes.

        Raises:
            UsageError: it does not fit.
        """
        size_text = "x".join(map(str, size)) or "none"
        axes = len(self.size)
        if len(size) != axes and (axes > 1 or not size):
            raise UsageError(
                f"{self.name} expects a shape of {axes} axes, such as "
                f"{self.default_size_text()}. Received: {size_text}.",
                code="rank-mismatch",
                operation=self.name,
                received=size_text,
            )
        least = [*self.least, *[1] * len(size)]
        if any(n < low for n, low in zip(size, least, strict=False)):
            smallest = "x".join(map(str, least[: len(size)]))
            raise UsageError(
                f"{self.name} expects a shape of {smallest} or more. Received: {size_text}.",
                code="shape-too-small",
                operation=self.name,
                received=size_text,
            )

    def default_size_text(self) -> str:
        """Default size in the notation of the command line."""
        return "x".join(map(str, self.size))

    def size_for_length(self, n: int) -> Shape:
        """Return the size of --n: n along the first axis, the default along the others."""
        return (n, *self.size[1:])

    def scaled_size(self, factor: float) -> Shape:
        """Return the default size with about `factor` times the elements, but not below `least`."""
        axis_factor = factor ** (1 / len(self.shrinks))
        least = [*self.least, *[1] * len(self.size)]
        return tuple(
            max(low, math.floor(n * axis_factor)) if axis in self.shrinks else n
            for axis, (n, low) in enumerate(zip(self.size, least, strict=False))
        )


OPERATIONS: dict[str, Operation] = {}


def register(name: str, about: str, *more: Any, **fields: Any) -> None:
    """Add an entry; the arguments are those of `Operation`."""
    OPERATIONS[name] = Operation(name, about, *more, **fields)


def find_operation(name: str) -> Operation:
    """Return the operation of a name.

    Raises:
        UsageError: no operation has this name.
    """
    check_known("operation", name, sorted(OPERATIONS))
    return OPERATIONS[name]


def listed_operations() -> list[Operation]:
    """Return the operations that `ops` runs, in its order."""
    return [operation for operation in OPERATIONS.values() if operation.listed]


# ---- what entries are made of


def call(
    protocol: Callable[..., Shared], *names: str, truncated: bool = False, **fixed: object
) -> Run:
    """Return a runner of a protocol on the named inputs ("x" by default), options as keywords.

    Args:
        truncated: the result, a product at twice the scale, is truncated to the inputs' scale.
        fixed: further keywords.
    """

    def run(party: Party, x: Shares, options: Options) -> Shared:
        result = protocol(party, *(x[name] for name in names or ("x",)), **fixed, **options)
        return truncation.truncate(party, result, FRACTIONAL_BITS) if truncated else result

    return run


def uniform(low: float, high: float, *names: str) -> Inputs:
    """Return a generator of uniform reals."""

    def inputs(size: Shape, rng: np.random.Generator) -> dict[str, Array]:
        return {name: rng.uniform(low, high, size) for name in names or ("x",)}

    return inputs


def draw_log_uniform(
    rng: np.random.Generator, low: float, high: float | Array, size: Shape, signed: bool = False
) -> Array:
    """Draw reals whose logarithm is uniform: every order of magnitude from low to high alike."""
    values = np.exp(rng.uniform(math.log(low), np.log(high), size))
    return values * rng.choice((-1.0, 1.0), size) if signed else values


@dataclass(frozen=True)
class Tolerance:
    """The largest error allowed.

    Attributes:
        allowed: limit per element, from inputs and exact result.
        unit: unit of the reported error, see `error_metrics`.
    """

    allowed: Callable[[Arrays, Array], Array]
    unit: str = error_metrics.ULP


def ulps(count: float) -> Tolerance:
    """Return a tolerance of `count` units in the last place."""
    return Tolerance(lambda inputs, exact: np.full(np.shape(exact), count * ULP))


def relative(bits: float, count: float) -> Tolerance:
    """Return a tolerance of 2^-bits of the result and `count` units in the last place."""
    return Tolerance(
        lambda inputs, exact: np.abs(exact) * 2.0**-bits + count * ULP, error_metrics.RELATIVE
    )

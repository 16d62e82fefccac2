"""What a loss is, and what losses are written in.

Sizes that losses rely on: predictions and labels lie within LARGEST, gradients of a loss are at the
labels' fractional bits, and what a sum of losses is made of is multiplied with FACTOR_BITS.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from fractions import Fraction
from typing import Any, ClassVar, TypeAlias

import numpy as np

from tfe_bench.errors import RangeError, UsageError, check_one_of
from tfe_bench.models.graph import Array
from tfe_bench.models.kinds.layer import Shape
from tfe_bench.models.kinds.operations import Operations
from tfe_bench.models.kinds.passes import add_aligned, convert_scale, reshape_value, sum_axes
from tfe_bench.models.training.schedules import is_real
from tfe_bench.protocols.nn import activations
from tfe_bench.protocols.ring import convert, relational, shapes
from tfe_bench.protocols.session.sharing import MaskedBits, Shared

MEAN, SUM = "sum_over_batch_size", "sum"
# Fractional bits of a sum of losses.
LOSS_BITS = activations.INNER_BITS
# Of both factors of a product that a loss sums up: 2^14 squared leaves room for 2^10 of them.
FACTOR_BITS = 12
# Predictions and labels that are numbers, in magnitude; of their differences, one bit more.
LARGEST = 2.0**13
WHOLE_BITS = 15
# What rows of several owners may be to a loss (tables.TARGETS).
NUMBERS, NATURAL = ("binary", "classes", "number"), ("binary", "classes")
# The gradient by the model's output, and the sum of all losses where it is wanted.
LossGradient: TypeAlias = "tuple[Shared, Shared | None]"


@dataclass(frozen=True)
class Loss:
    """A loss of Keras, with its options as fields.

    Attributes:
        name: of Keras' function, and in a recipe.
        keras: the name of Keras' class.
        aliases: other names that Keras has for it.
        folded: the activation that the model ends in when it is not given logits; training begins
            before it.
        categorical: whether one class of several is right.
        counted: whether answers are right or wrong; else an evaluation sums squared errors.
        by_row: whether there is one loss for each row, not one for each number.
        small: whether its gradient takes what is of a small ring.
        factor: of the gradient that `slope` leaves out: public.
        takes: what owners' labels it is for (tables.TARGETS).
        reduction: "sum_over_batch_size", the mean of all, or "sum".

    Raises:
        UsageError: options that Keras does not take, or not so.
    """

    reduction: str = MEAN

    name: ClassVar[str]
    keras_class: ClassVar[str]
    aliases: ClassVar[tuple[str, ...]] = ()
    folded_activation: ClassVar[str] = ""
    is_categorical: ClassVar[bool] = False
    counts_answers: ClassVar[bool] = False
    is_per_row: ClassVar[bool] = False
    accepts_small_ring: ClassVar[bool] = False
    gradient_factor: ClassVar[int] = 1
    label_kinds: ClassVar[tuple[str, ...]] = NUMBERS

    def __post_init__(self) -> None:
        # (Keras has "mean" for the same; a mean by samples' weights needs their private sum)
        check_one_of("Reductions of a loss are", self.reduction, (MEAN, SUM))

    # ---- what is public

    def count_answers(self, shape: Shape) -> int:
        """How many answers a sample has, of an output of a shape."""
        return math.prod(shape[:-1] if self.is_categorical else shape)

    def count_terms(self, shape: Shape) -> int:
        """How many losses a sample has: their mean is the sample's."""
        return math.prod(shape[:-1] if self.is_per_row or self.is_categorical else shape)

    def compute_share(self, shape: Shape, batch: int) -> Fraction:
        """What a gradient is of that of the sum over a batch, but for `scale`."""
        return Fraction(self.gradient_factor, self.count_terms(shape) * batch)

    def compute_scale(self, shape: Shape, batch: int) -> int:
        """What is left to the learning rate, so that gradients stay in their range."""
        # (Keras sums over rows what is a mean over the last axis)
        return math.prod(shape[:-1]) * batch if self.reduction == SUM else 1

    def to_header(self) -> dict[str, Any]:
        """As JSON holds it."""
        return {"name": self.name, **vars(self)}

    @classmethod
    def list_options(cls) -> list[str]:
        """Names of what Keras' class takes besides."""
        return [field.name for field in fields(cls)]

    def build_keras_loss(self, logits: bool) -> Any:
        """Keras' own loss, of logits or of what it takes otherwise."""
        import keras

        more = {"from_logits": logits} if self.takes_logits else {}
        return getattr(keras.losses, self.keras_class)(**vars(self), **more)

    @property
    def takes_logits(self) -> bool:
        """Whether Keras' class has the option from_logits."""
        return bool(self.folded_activation)

    # ---- labels

    def encode_labels(self, shape: Shape, labels: Any, label_name: str = "labels") -> Array:
        """Labels as the owner shares them: float64 [n, *shape], one-hot for classes.

        Args:
            shape: of the model's output, without the batch.
            labels: as Keras takes them, [n, *shape] (or [n] for one output); integers [n] or
                [n, 1] for a sparse loss.
            what: the labels are called in errors.

        Raises:
            UsageError: another shape.
            RangeError: NaN, or labels that the loss does not take; the first row is named.
        """
        array = np.asarray(labels)
        if array.dtype.kind not in "fiub":
            raise UsageError(f"The {label_name} are numbers. Received: {array.dtype}.")
        array = self.shape_labels(shape, array, label_name)
        with np.errstate(invalid="ignore"):
            bad, wanted = self.find_unfit_rows(array)
        bad = bad | ~np.isfinite(array).reshape(len(array), -1).all(1)
        check_labels(bad, label_name, wanted)
        return self.convert_labels(array)

    def shape_labels(self, shape: Shape, array: Array, label_name: str) -> Array:
        """Labels [n, *shape].

        Raises:
            UsageError: they are of another shape.
        """
        wanted = list(shape)
        if array.ndim == 1 and wanted == [1]:
            array = array[:, None]
        if array.ndim != len(shape) + 1 or list(array.shape[1:]) != wanted or not len(array):
            raise UsageError(
                f"The {label_name} are [rows, {', '.join(map(str, wanted))}]. Received: "
                f"{list(array.shape)}. Use sparse_categorical_crossentropy for classes as integers."
            )
        return array.astype(np.float64)

    def find_unfit_rows(self, array: Array) -> tuple[Any, str]:
        """Which rows do not fit, and what does, in words."""
        return flag_rows(~(np.abs(array) <= LARGEST)), f"numbers within {LARGEST:g}"

    def convert_labels(self, array: Array) -> Array:
        """Labels that fit, as they are shared."""
        return array

    # ---- in private

    def compute_gradient(
        self, ops: Operations, z: Shared, y: Shared, with_loss: bool
    ) -> LossGradient:
        """The gradient by the model's output, at y's scale and without public factors.

        Args:
            z: the output, at any scale.
            y: the targets; their fractional bits are those of gradients.
            loss: whether the sum of all losses is wanted, [], too.
        """
        raise NotImplementedError


def check_number(option_name: str, value: object, low: float, high: float) -> None:
    """Refuses an option that is no number from low to high.

    Raises:
        UsageError: saying what it is.
    """
    if not is_real(value, low, high):
        raise UsageError(
            f"{option_name} is a number from {low:g} to {high:g}. Received: {value!r}."
        )


def flag_rows(bad: Any) -> Any:
    """Which rows have a number that is bad."""
    return bad.reshape(len(bad), -1).any(1)


def check_labels(bad: Any, label_name: str, expected: str) -> None:
    """Refuses labels some rows of which are bad.

    Raises:
        RangeError: how many, and the first.
    """
    if bad.any():
        first = int(np.flatnonzero(bad)[0])
        raise RangeError(
            f"The {label_name} are {expected}. Received: {int(bad.sum())} of {len(bad)} rows that are not, "
            f"the first of them row {first} (from 0)."
        )


# ---- what losses are written in


def count_elements(ops: Operations, x: Shared) -> int:
    """The number of elements."""
    return math.prod(ops.get_shape(x))


def split_rows(ops: Operations, x: Shared) -> list[Shared]:
    """The rows of x [rows, n]."""
    rows, n = ops.get_shape(x)
    return [ops.apply_local(functools.partial(shapes.getitem, key=i), x, (n,)) for i in range(rows)]


def stack_rows(ops: Operations, xs: Sequence[Shared]) -> Shared:
    """Values of one scale as rows [values, n]."""
    return ops.concat([reshape_value(ops, x, (1, count_elements(ops, x))) for x in xs], 0)


def subtract_labels(ops: Operations, z: Shared, y: Shared, fraction: int | None = None) -> Shared:
    """z - y at y's scale, or with so many fractional bits."""
    return convert_scale(ops, add_aligned(ops, z, ops.neg(y)), fraction or y.fractional_bits)


def find_negative(ops: Operations, x: Shared) -> MaskedBits:
    """[x < 0] for |x| < 2^WHOLE_BITS, in the order of x's elements."""
    bits = x.fractional_bits + WHOLE_BITS + 1
    exchanges = ops.setting.choose_exchanges(count_elements(ops, x), bits)
    return ops.run_protocol(relational.is_negative, x, bits, exchanges)


def compute_sign(ops: Operations, x: Shared) -> Shared:
    """-1, 0 or 1, as integers."""
    shape = ops.get_shape(x)
    both = stack_rows(ops, [ops.neg(x), x])
    ones = ops.run_protocol(convert.b2a, find_negative(ops, both), list(ops.get_shape(both)))
    above, below = split_rows(ops, ones)
    return reshape_value(ops, ops.sub(above, below), shape)


def select_by_bits(ops: Operations, bits: MaskedBits, x: Shared, negated: bool = False) -> Shared:
    """x where the bit is 1 (0 with negated), else 0."""
    return ops.inject_truncated(bits, x, 0, negated)


def sum_losses(ops: Operations, x: Shared) -> Shared:
    """The sum of all, [], with LOSS_BITS."""
    flat = reshape_value(ops, x, (count_elements(ops, x),))
    return convert_scale(ops, sum_axes(ops, flat, [0]), LOSS_BITS)


def sum_products(ops: Operations, x: Shared, y: Shared) -> Shared:
    """The sum of all x y, of which each is rounded to FACTOR_BITS before."""
    x, y = (convert_scale(ops, v, FACTOR_BITS) for v in (x, y))
    return sum_losses(ops, ops.mul(x, y))

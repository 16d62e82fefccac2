"""The base class of losses, and helpers for their protocols.

Sizes that losses rely on: predictions and labels lie within LARGEST, gradients of a loss have the
labels' fractional bits, and factors of a summed loss are multiplied with FACTOR_BITS.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from fractions import Fraction
from typing import Any, ClassVar, TypeAlias

import numpy as np

from tfe_bench.cluster.schema import Header, choice_field
from tfe_bench.errors import RangeError, UsageError
from tfe_bench.models.convert.graph import Array
from tfe_bench.models.datasets.sharing import MAX_LABEL
from tfe_bench.models.layers.base import (
    Operations,
    Shape,
    add_aligned,
    convert_scale,
    renamed,
    reshape_value,
    sum_axes,
)
from tfe_bench.protocols.nn import activations
from tfe_bench.protocols.ring import convert, relational, shapes
from tfe_bench.protocols.session.sharing import MaskedBits, Shared

MEAN, SUM = "sum_over_batch_size", "sum"
# Fractional bits of a sum of losses.
LOSS_BITS = activations.INNER_BITS
# Bits of both factors of a product that a loss sums: 2^14 squared leaves room for 2^10 of them.
FACTOR_BITS = 12
# Bound on numeric predictions and labels; their differences have one bit more.
LARGEST = MAX_LABEL
WHOLE_BITS = 15
# Kinds of labels in rows of several owners (tables.TARGETS).
NUMBERS, NATURAL = ("binary", "classes", "number"), ("binary", "classes")
# The gradient by the model's output, and the sum of all losses if it is requested.
LossGradient: TypeAlias = "tuple[Shared, Shared | None]"


@dataclass(frozen=True)
class Loss(Header, subject="A loss", writes_defaults=True):
    """A loss of Keras, with its options as fields.

    Attributes:
        name: name of Keras' function, and in a recipe.
        keras_class: the name of Keras' class.
        aliases: other names in Keras.
        folded_activation: the activation at the model's end when the loss is not computed from
            logits; training starts before it.
        is_categorical: whether exactly one of several classes is right.
        counts_answers: whether answers are right or wrong; else an evaluation sums squared errors.
        is_per_row: whether there is one loss for each row, not one for each number.
        accepts_small_ring: whether its gradient accepts values over a small ring.
        gradient_factor: a public factor of the gradient that `compute_gradient` omits.
        label_kinds: the kinds of owners' labels that it supports (tables.TARGETS).
        reduction: "sum_over_batch_size", the mean of all, or "sum".

    Raises:
        UsageError: Keras does not accept an option or its value.
    """

    # ("mean" is Keras' synonym; a mean weighted by samples would need their private sum)
    reduction: str = choice_field((MEAN, SUM), default=MEAN)

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

    def __init_subclass__(cls, **arguments: Any) -> None:
        """Accept the old names of the interface, with a DeprecationWarning."""
        super().__init_subclass__(**arguments)
        renamed.accept_deprecated_names(cls, renamed.LOSS)

    def __post_init__(self) -> None:
        self.check_fields()

    # ---- public properties

    def count_answers(self, shape: Shape) -> int:
        """Count the answers of a sample, for an output of a shape."""
        return math.prod(shape[:-1] if self.is_categorical else shape)

    def count_terms(self, shape: Shape) -> int:
        """Count the losses of a sample: their mean is the sample's loss."""
        return math.prod(shape[:-1] if self.is_per_row or self.is_categorical else shape)

    def compute_share(self, shape: Shape, batch: int) -> Fraction:
        """Return the factor from a summed gradient to Keras' gradient, without `compute_scale`."""
        return Fraction(self.gradient_factor, self.count_terms(shape) * batch)

    def compute_scale(self, shape: Shape, batch: int) -> int:
        """Return the factor that the learning rate absorbs, to keep gradients in range."""
        # (Keras sums over rows the means over the last axis)
        return math.prod(shape[:-1]) * batch if self.reduction == SUM else 1

    def to_header(self) -> dict[str, Any]:
        """Return the loss as a JSON object."""
        return {"name": self.name, **super().to_header()}

    @classmethod
    def list_options(cls) -> list[str]:
        """List the names of further options of Keras' class."""
        return [field.name for field in fields(cls)]

    def build_keras_loss(self, logits: bool) -> Any:
        """Build Keras' own loss, of logits or of its other form."""
        import keras

        more = {"from_logits": logits} if self.takes_logits else {}
        return getattr(keras.losses, self.keras_class)(**vars(self), **more)

    @property
    def takes_logits(self) -> bool:
        """True if Keras' class has the option from_logits."""
        return bool(self.folded_activation)

    # ---- labels

    def encode_labels(self, shape: Shape, labels: Any, label_name: str = "labels") -> Array:
        """Encode labels as their owner shares them: float64 [n, *shape], one-hot for classes.

        Args:
            shape: shape of the model's output, without the batch.
            labels: as in Keras, [n, *shape] (or [n] for one output); integers [n] or [n, 1] for a
                sparse loss.
            label_name: name of the labels in errors.

        Raises:
            UsageError: the shape does not fit.
            RangeError: the loss does not accept some labels, or they are NaN; names the first row.
        """
        array = read_label_array(labels, label_name)
        array = self.shape_labels(shape, array, label_name)
        with np.errstate(invalid="ignore"):
            bad, expected = self.find_unfit_rows(array)
        bad = bad | ~np.isfinite(array).reshape(len(array), -1).all(1)
        check_label_rows(bad, label_name, expected)
        return self.convert_labels(array)

    def shape_labels(self, shape: Shape, array: Array, label_name: str) -> Array:
        """Return labels [n, *shape].

        Raises:
            UsageError: they have another shape.
        """
        sample_shape = list(shape)
        if array.ndim == 1 and sample_shape == [1]:
            array = array[:, None]
        if array.ndim != len(shape) + 1 or list(array.shape[1:]) != sample_shape or not len(array):
            raise UsageError(
                f"Expected {label_name} [rows, {', '.join(map(str, sample_shape))}]. Received: "
                f"{list(array.shape)}. Use sparse_categorical_crossentropy for classes as "
                "integers.",
                code="shape-mismatch",
                operation=label_name,
                received=list(array.shape),
            )
        return array.astype(np.float64)

    def find_unfit_rows(self, array: Array) -> tuple[Any, str]:
        """Flag the rows that do not fit; also returns a description of valid labels."""
        return flag_bad_label_rows(~(np.abs(array) <= LARGEST)), f"numbers within {LARGEST:g}"

    def convert_labels(self, array: Array) -> Array:
        """Convert valid labels to the form in which they are shared."""
        return array

    # ---- private computation

    def compute_gradient(
        self, ops: Operations, z: Shared, y: Shared, with_loss: bool
    ) -> LossGradient:
        """Compute the gradient by the model's output, at y's scale and without public factors.

        Args:
            z: the output, at any scale.
            y: the targets; their fractional bits are those of gradients.
            with_loss: whether to return the sum of all losses, [], too.
        """
        raise NotImplementedError


renamed.accept_deprecated_names(Loss, renamed.LOSS)


def flag_bad_label_rows(bad: Any) -> Any:
    """Flag the rows with at least one bad number."""
    return bad.reshape(len(bad), -1).any(1)


def read_label_array(labels: Any, label_name: str) -> Array:
    """Return labels as an array of numbers.

    Raises:
        UsageError: they are no numbers.
    """
    array = np.asarray(labels)
    if array.dtype.kind not in "fiub":
        raise UsageError(
            f"Expected numbers as {label_name}. Received: {array.dtype}.",
            code="not-a-number",
            operation=label_name,
            received=array.dtype,
        )
    return array


def check_label_rows(bad: Any, label_name: str, expected: str) -> None:
    """Refuse labels with bad rows.

    Raises:
        RangeError: states their number, and the first.
    """
    if bad.any():
        first = int(np.flatnonzero(bad)[0])
        raise RangeError(
            f"Expected {label_name} as {expected}. Received: {int(bad.sum())} of {len(bad)} other "
            "rows, "
            f"the first of them row {first} (from 0).",
            code="invalid-label",
            operation=label_name,
            expected=expected,
        )


# ---- helpers of losses


def count_loss_elements(ops: Operations, x: Shared) -> int:
    """Return the number of elements."""
    return math.prod(ops.get_shape(x))


def split_loss_rows(ops: Operations, x: Shared) -> list[Shared]:
    """Return the rows of x [rows, n]."""
    rows, n = ops.get_shape(x)
    return [ops.apply_local(functools.partial(shapes.getitem, key=i), x, (n,)) for i in range(rows)]


def stack_loss_rows(ops: Operations, xs: Sequence[Shared]) -> Shared:
    """Stack values of one scale as rows [values, n]."""
    return ops.concat([reshape_value(ops, x, (1, count_loss_elements(ops, x))) for x in xs], 0)


def subtract_labels_from_outputs(
    ops: Operations, z: Shared, y: Shared, fraction: int | None = None
) -> Shared:
    """Return z - y at y's scale, or with this many fractional bits."""
    return convert_scale(ops, add_aligned(ops, z, ops.neg(y)), fraction or y.fractional_bits)


def find_negative(ops: Operations, x: Shared) -> MaskedBits:
    """Return [x < 0] for |x| < 2^WHOLE_BITS, in the order of x's elements."""
    bits = x.fractional_bits + WHOLE_BITS + 1
    exchanges = ops.setting.choose_exchanges(count_loss_elements(ops, x), bits)
    return ops.run_protocol(relational.is_negative, x, bits, exchanges)


def compute_training_sign(ops: Operations, x: Shared) -> Shared:
    """Return -1, 0 or 1, as integers."""
    shape = ops.get_shape(x)
    both = stack_loss_rows(ops, [ops.neg(x), x])
    ones = ops.run_protocol(convert.b2a, find_negative(ops, both), list(ops.get_shape(both)))
    above, below = split_loss_rows(ops, ones)
    return reshape_value(ops, ops.sub(above, below), shape)


def select_loss_terms(
    ops: Operations, bits: MaskedBits, x: Shared, negated: bool = False
) -> Shared:
    """Return x where the bit is 1 (0 with negated), else 0."""
    return ops.inject_truncated(bits, x, 0, negated)


def sum_loss_terms(ops: Operations, x: Shared) -> Shared:
    """Return the sum of all elements, [], with LOSS_BITS."""
    flat = reshape_value(ops, x, (count_loss_elements(ops, x),))
    return convert_scale(ops, sum_axes(ops, flat, [0]), LOSS_BITS)


def sum_loss_products(ops: Operations, x: Shared, y: Shared) -> Shared:
    """Return the sum of all x y; each factor is rounded to FACTOR_BITS before."""
    x, y = (convert_scale(ops, v, FACTOR_BITS) for v in (x, y))
    return sum_loss_terms(ops, ops.mul(x, y))

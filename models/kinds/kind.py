"""A kind of layer: all that the project knows of it, in one class.

A kind is a module of models/layers, or of a package that names it in the entry point group
`tfe_bench.layers`.  docs/adding_a_layer.md goes through one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from tfe_bench.errors import UsageError
from tfe_bench.models.kinds.layer import (
    Array,
    FixedPointFormat,
    LayerSpec,
    Options,
    PlacedLayer,
    Shape,
    Shapes,
)
from tfe_bench.models.kinds.passes import ForwardContext, Gradients
from tfe_bench.models.kinds.planning import MOST_COMPARED, Planner
from tfe_bench.models.kinds.reading import LayerCall, Reader
from tfe_bench.protocols.session.sharing import Shared

Observer = Callable[[str, Array], None]


def check_fractional_bits(node: PlacedLayer) -> None:
    """Refuses numbers with fewer fractional bits than an input has.

    Raises:
        UsageError: they have.
    """
    if max(node.input_scales) > node.numbers.fraction:
        raise UsageError("has fewer fractional bits than an input.")


class NotPositionwise(Exception):
    """Why a value at one position is not made of that position alone."""


def get_common_axis(axes: Sequence[int]) -> int:
    """The axis along which the positions of all inputs lie.

    Raises:
        Mixes: there are several.
    """
    if len(set(axes)) != 1:
        raise NotPositionwise("takes values whose positions lie along several axes")
    return axes[0]


class Kind:
    """One kind of layer.

    A kind that predicts has `shape`, `plain` and `forward`; what else it has is said here.

    Attributes:
        op: its name in a model's header.
        keras: names of the layers of keras.layers that `read` takes, by their exact class.
        arguments: names of what `read` takes of a call; without any, a layer is called with its
            inputs alone.
        masks: whether `read` takes masks that come with its inputs (Call.masks), and says which its
            value has (Reader.mask); else models/kinds/masks.py does, by Keras' rules.
        functions: names of the activations of keras.activations that it is.
        nothing: whether it gives what it takes.
        pointwise: whether it treats all places of what it takes alike, each by itself.
        moves: whether it gives the elements that it takes, in order, in another shape.
        largest: whether it gives the largest of some values, which leaves signs as they are.
        fuses: whether a ReLU or a max pooling behind it run with it in a training step.
        heavy: whether its protocol holds many times its values, as exponentials and polynomials do.
        wide: whether most of what it is dealt is multiplied in words of up to 256 bits, as
            polynomials are, which takes longer.
        bounded: whether its values have a limit whatever comes to it.
        local: whether it sends nothing, and the low bits of its value are of those that it takes.
        placed: whether its weights have a part for each position, along the axis of its value.
    """

    op: ClassVar[str]
    keras_layers: ClassVar[tuple[str, ...]] = ()
    call_arguments: ClassVar[tuple[str, ...]] = ()
    handles_masks: ClassVar[bool] = False
    keras_functions: ClassVar[tuple[str, ...]] = ()
    is_identity: ClassVar[bool] = False
    is_pointwise: ClassVar[bool] = False
    is_reshape: ClassVar[bool] = False
    is_maximum: ClassVar[bool] = False
    can_fuse: ClassVar[bool] = False
    is_memory_heavy: ClassVar[bool] = False
    uses_wide_words: ClassVar[bool] = False
    is_bounded: ClassVar[bool] = False
    is_local: ClassVar[bool] = False
    has_positional_weights: ClassVar[bool] = False

    # ---- from Keras

    def find_keras_layers(self, keras: Any) -> list[type]:
        """The classes of Keras' layers that `read` takes; those of a newer Keras may lack."""
        return [
            c for name in self.keras_layers if (c := getattr(keras.layers, name, None)) is not None
        ]

    def find_keras_functions(self, keras: Any) -> dict[Any, str]:
        """The activation functions that it is, with the name that `activate` gets."""
        of = keras.activations
        return {
            f: name for name in self.keras_functions if (f := getattr(of, name, None)) is not None
        }

    def convert_layer(self, r: Reader, call: LayerCall) -> str:
        """Writes a layer of Keras to the reader; returns the name of its value.

        Raises:
            Unfit: why this one cannot be converted.
        """
        return r.add_layer(call.name, self.op, call.inputs)

    def convert_activation(
        self, r: Reader, value: str, name: str, function: str, arguments: Options
    ) -> str:
        """Writes an activation of Keras behind a value; returns the name of what it gives.

        Args:
            function: its name in keras.activations.
            given: what it is called with besides the value, as Keras names it.

        Raises:
            Unfit: why it cannot be converted.
        """
        return r.add_layer(
            name, self.op, [value], None, **self.map_activation_options(function, r.rank, arguments)
        )

    def map_activation_options(self, name: str, rank: int, arguments: Options) -> Options:
        """The options that an activation of Keras means, for a value of a rank with the batch.

        Raises:
            Unfit: why there are none.
        """
        return arguments

    # ---- as data

    def infer_shape(self, input_shapes: list[Shape], options: Options, weights: Shapes) -> Shape:
        """The shape of a layer's value, without the batch.

        Raises:
            Bad: options, weights or inputs that do not fit; what comes from a stranger is checked
                here alone.
        """
        raise NotImplementedError

    def find_position_axis(
        self, x: LayerSpec, input_shapes: Sequence[Shape], axes: Sequence[int]
    ) -> int:
        """The axis of its value along which the positions of a text lie.

        Args:
            given: shapes of its inputs, without the batch.
            axes: of these, along which positions lie; the batch is axis 0.

        Raises:
            Mixes: a position's value is made of other positions, in another way than by causal
                attention.
        """
        if not self.is_pointwise:
            raise NotPositionwise("may make a value of several positions")
        if len({len(shape) for shape in input_shapes}) > 1:
            raise NotPositionwise("takes values of several ranks")
        return get_common_axis(axes)

    def resize_positions(self, x: LayerSpec, axis: int, count: int) -> LayerSpec:
        """The layer for another number of positions, which lie along an axis of its value."""
        return x

    def prepare_inference(self, x: LayerSpec) -> LayerSpec:
        """The layer as it is in a prediction, when the model is done with training."""
        return x

    def use_series(self, x: LayerSpec) -> LayerSpec:
        """The layer with short series for its activations, if it has any inside."""
        return x

    def describe_conversion_risk(self, x: LayerSpec, input_shapes: list[Shape]) -> str:
        """What who converts a model is warned of; "" for nothing."""
        return ""

    def describe_layer(self, x: LayerSpec) -> str:
        """What a summary calls the layer's kind."""
        return self.op

    # ---- in the clear

    def compute_plaintext(self, x: LayerSpec, values: list[Array], observe: Observer) -> Array:
        """The layer's value in float64, with a batch.

        Args:
            seen: hears of values that a range is planned for besides the layer's own.
        """
        raise NotImplementedError

    # ---- in fixed point

    def compute_approximation(self, x: LayerSpec, values: list[Array], observe: Observer) -> Array:
        """As `plain`, with the approximations that the private layer makes, but for roundings."""
        return self.compute_plaintext(x, values, observe)

    def plan_format(self, planner: Planner, x: LayerSpec) -> FixedPointFormat:
        """The fixed point of a layer whose inputs are planned."""
        return FixedPointFormat(planner.get_input_format(x)[0])

    def check_format(self, node: PlacedLayer) -> None:
        """Refuses numbers, which may come from a stranger, that the layer does not run with.

        Raises:
            UsageError: why.
        """
        if node.numbers.fraction != node.input_scales[0]:
            raise UsageError("has other fractional bits than its input.")

    def weight_bits(self, node: PlacedLayer, name: str) -> int:
        """Fractional bits of weights: a sum's bias, or kernels of its terms."""
        scale = node.numbers.scale
        return (
            scale if name == "bias" else scale - node.input_scales[int(name.removeprefix("kernel"))]
        )

    def bound_output(self, node: PlacedLayer, input_limits: list[int]) -> int | None:
        """The largest |v| in ring units for inputs within limits; None if there is none."""
        return node.align_limits(input_limits)[0]

    def bound_sum_bits(self, node: PlacedLayer, input_limits: list[int]) -> int:
        """Bits that no sum of inputs within limits leaves, before it is truncated; 0 for no sum.

        Args:
            node: with the weights' values.
        """
        return 0

    def bound_comparison_bits(self, node: PlacedLayer, input_limits: list[int]) -> int:
        """Bits of comparisons that no value within its limits can leave, as of differences."""
        return node.align_limits(input_limits)[0].bit_length() + 2

    def can_check_range(self, node: PlacedLayer, input_limits: list[int] | None) -> bool:
        """Whether no value within its limits is too large for the layer.

        Args:
            given: limits of the inputs, None where one has none.
        """
        return (
            not node.numbers.bits
            or input_limits is None
            or self.bound_comparison_bits(node, input_limits) <= MOST_COMPARED
        )

    # ---- in private

    def count_input_bits(self, node: PlacedLayer, input_index: int) -> int:
        """How many low bits of an input `forward` reads: it may be of a ring of no more.

        Args:
            given: the input's number.
        """
        return node.used_bits if self.is_local else 64

    def count_stages(self, node: PlacedLayer) -> int:
        """Of how many parts, of which the next begins when one is over, a prediction of it is."""
        return 1

    def forward(self, p: ForwardContext, node: PlacedLayer, *values: Shared) -> Shared:
        """The layer's value in a prediction, over Z_2^64 or of a ring of node.wide bits or more.

        Args:
            values: over Z_2^64, or of rings of as many bits as `reads` says.
        """
        raise NotImplementedError

    @property
    def can_predict(self) -> bool:
        """Whether predictions run layers of the kind as they are."""
        return type(self).forward is not Kind.forward

    # ---- in training

    def forward_training(self, p: ForwardContext, node: PlacedLayer, *values: Shared) -> Shared:
        """The layer's value in a step or an evaluation, with what `backward` wants in p.kept."""
        return self.forward(p, node, *values)

    def backward(
        self, p: ForwardContext, node: PlacedLayer, g: Shared, needs_input_gradient: bool
    ) -> Gradients:
        """Gradients of the inputs, from that of the value; those of weights go to p.found.

        Args:
            wanted: whether any input's gradient is.
        """
        raise NotImplementedError

    @property
    def can_train(self) -> bool:
        """Whether layers of the kind can be trained."""
        return type(self).backward is not Kind.backward

    def explain_untrainable(self, x: LayerSpec, input_shapes: list[Shape]) -> str:
        """Why a layer cannot be trained; "" if it can."""
        return "" if self.can_train else x.op

    def public_values(
        self, x: LayerSpec, shape: Shape, seed: int, step: int
    ) -> Mapping[str, Array]:
        """What is public about the layer and drawn anew in every step, int64 by name.

        Args:
            shape: of its value, with the batch.
        """
        return {}

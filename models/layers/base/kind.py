"""The interface of a layer kind: one class holds all properties of one type of layer.

A kind is a module of models/layers, or of a package that names it in the entry point group
`tfe_bench.layers`. docs/adding_a_layer.md explains an example.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from tfe_bench.errors import UsageError
from tfe_bench.models.layers.base import renamed
from tfe_bench.models.layers.base.layer import (
    Array,
    FixedPointFormat,
    LayerSpec,
    Options,
    PlacedLayer,
    Shape,
    Shapes,
)
from tfe_bench.models.layers.base.passes import ForwardContext, Gradients
from tfe_bench.models.layers.base.planning import MOST_COMPARED, LayerFormatPlanner
from tfe_bench.models.layers.base.reading import LayerCall, Reader
from tfe_bench.protocols.session.sharing import Shared

Observer = Callable[[str, Array], None]


def check_fractional_bits(node: PlacedLayer) -> None:
    """Refuse a format with fewer fractional bits than an input.

    Raises:
        UsageError: an input has more fractional bits.
    """
    if max(node.input_scales) > node.numbers.fraction:
        raise UsageError(
            "has fewer fractional bits than an input.", code="invalid-fixed-point-format"
        )


class NotPositionwise(Exception):
    """A layer that is not positionwise: an output position depends on other input positions."""


def get_common_axis(axes: Sequence[int]) -> int:
    """Return the axis along which the positions of all inputs lie.

    Raises:
        NotPositionwise: the inputs have their positions along different axes.
    """
    if len(set(axes)) != 1:
        raise NotPositionwise("has inputs with positions along different axes")
    return axes[0]


class Kind:
    """The interface of one kind of layer.

    A kind for inference implements `infer_shape`, `compute_plaintext` and `forward`. The other
    methods and attributes have defaults.

    Attributes:
        op: its name in a model's header.
        keras_layers: names of the layers of keras.layers that `convert_layer` accepts, matched by
            their exact class.
        call_arguments: names of the call arguments that `convert_layer` handles. Without any, a
            layer is called with its inputs alone.
        handles_masks: whether `convert_layer` handles the masks of its inputs (LayerCall.masks) and
            sets the mask of its output (Reader.mask). Otherwise models/layers/base/masks.py applies
            Keras' rules.
        keras_functions: names of the activations of keras.activations that it implements.
        is_identity: whether the output equals the input.
        is_pointwise: whether it applies one function to each element.
        is_reshape: whether its output has the elements of the input, in order, in another shape.
        is_maximum: whether it outputs the maximum of some values, which leaves signs as they are.
        can_fuse: whether a training step fuses a following ReLU or max pooling with it.
        is_memory_heavy: whether its protocol holds many times its values, as exponentials and
            polynomials do.
        uses_wide_words: whether most of its correlated randomness is multiplied in words of up to
            256 bits, as for polynomials, which takes longer.
        is_bounded: whether its output has a bound for any input.
        is_local: whether it sends nothing and the low bits of its output depend on the low bits of
            its inputs alone.
        has_positional_weights: whether its weights have a part for each position, along the axis of
            its output.
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

    def __init_subclass__(cls, **arguments: Any) -> None:
        """Accept the old names of the interface, with a DeprecationWarning."""
        super().__init_subclass__(**arguments)
        renamed.accept_deprecated_names(cls, renamed.KIND)

    # ---- conversion from Keras

    def find_keras_layers(self, keras: Any) -> list[type]:
        """Return the Keras classes that `convert_layer` accepts; an older Keras may lack some."""
        return [
            c for name in self.keras_layers if (c := getattr(keras.layers, name, None)) is not None
        ]

    def find_keras_functions(self, keras: Any) -> dict[Any, str]:
        """Return the Keras activations that it implements, with names for `convert_activation`."""
        of = keras.activations
        return {
            f: name for name in self.keras_functions if (f := getattr(of, name, None)) is not None
        }

    def convert_layer(self, r: Reader, call: LayerCall) -> str:
        """Add the layers for a Keras layer to the reader; returns the name of the output value.

        Raises:
            UnsupportedLayer: this layer cannot be converted; the text states the reason.
        """
        return r.add_layer(call.name, self.op, call.inputs)

    def convert_activation(
        self, r: Reader, value: str, name: str, function: str, arguments: Options
    ) -> str:
        """Add a Keras activation after a value; returns the name of the output value.

        Args:
            function: its name in keras.activations.
            arguments: its further arguments, by their Keras names.

        Raises:
            UnsupportedLayer: it cannot be converted; the text states the reason.
        """
        return r.add_layer(
            name, self.op, [value], None, **self.map_activation_options(function, r.rank, arguments)
        )

    def map_activation_options(self, name: str, rank: int, arguments: Options) -> Options:
        """Map the arguments of a Keras activation to options, for a value of a rank with the batch.

        Raises:
            UnsupportedLayer: no options correspond to the arguments; the text states the reason.
        """
        return arguments

    # ---- model description

    def infer_shape(self, input_shapes: list[Shape], options: Options, weights: Shapes) -> Shape:
        """Infer the shape of a layer's output, without the batch.

        Raises:
            InvalidOption: options, weights or inputs do not fit. Values from untrusted model files
                are checked here alone.
        """
        raise NotImplementedError

    def find_position_axis(
        self, x: LayerSpec, input_shapes: Sequence[Shape], axes: Sequence[int]
    ) -> int:
        """Return the axis of the output along which the positions of a text lie.

        Args:
            input_shapes: shapes of the inputs, without the batch.
            axes: the axis of each input along which positions lie; the batch is axis 0.

        Raises:
            NotPositionwise: the value at one position depends on other positions, in another way
                than by causal attention.
        """
        if not self.is_pointwise:
            raise NotPositionwise("may combine several positions")
        if len({len(shape) for shape in input_shapes}) > 1:
            raise NotPositionwise("has inputs of different ranks")
        return get_common_axis(axes)

    def resize_positions(self, x: LayerSpec, axis: int, count: int) -> LayerSpec:
        """Return the layer for another number of positions, along an axis of its output."""
        return x

    def prepare_inference(self, x: LayerSpec) -> LayerSpec:
        """Return the layer in its inference form, for a model that is fully trained."""
        return x

    def use_series(self, x: LayerSpec) -> LayerSpec:
        """Return the layer with short series for its inner activations, if it has any."""
        return x

    def describe_conversion_risk(self, x: LayerSpec, input_shapes: list[Shape]) -> str:
        """Describe the loss of accuracy that conversion warns about; "" for no warning."""
        return ""

    def describe_layer(self, x: LayerSpec) -> str:
        """Return the name of the layer's kind in a summary."""
        return self.op

    # ---- plaintext

    def compute_plaintext(self, x: LayerSpec, values: list[Array], observe: Observer) -> Array:
        """Compute the layer's output in float64, with a batch.

        Args:
            observe: callback for further values used in calibration, besides the layer's own
                output.
        """
        raise NotImplementedError

    # ---- fixed point

    def compute_approximation(self, x: LayerSpec, values: list[Array], observe: Observer) -> Array:
        """Compute the output with the approximations of the private layer, without its rounding."""
        return self.compute_plaintext(x, values, observe)

    def plan_format(self, planner: LayerFormatPlanner, x: LayerSpec) -> FixedPointFormat:
        """Choose the fixed-point format of a layer whose inputs have one."""
        return FixedPointFormat(planner.get_input_format(x)[0])

    def check_format(self, node: PlacedLayer) -> None:
        """Refuse a format that the layer cannot run with; it may come from an untrusted plan.

        Raises:
            UsageError: the format does not fit; the text states the reason.
        """
        if node.numbers.fraction != node.input_scales[0]:
            raise UsageError(
                "has other fractional bits than its input.", code="invalid-fixed-point-format"
            )

    def weight_bits(self, node: PlacedLayer, name: str) -> int:
        """Return the fractional bits of weights: a sum's bias, or the kernels of its terms."""
        scale = node.numbers.scale
        return (
            scale if name == "bias" else scale - node.input_scales[int(name.removeprefix("kernel"))]
        )

    def bound_output(self, node: PlacedLayer, input_limits: list[int]) -> int | None:
        """Bound |v| of the output in ring units for inputs within limits; None: no bound."""
        return node.align_limits(input_limits)[0]

    def bound_sum_bits(self, node: PlacedLayer, input_limits: list[int]) -> int:
        """Bound the bits of a sum of inputs within limits, before truncation; 0 for no sum.

        Args:
            node: the layer with the values of its weights.
        """
        return 0

    def bound_comparison_bits(self, node: PlacedLayer, input_limits: list[int]) -> int:
        """Bound the bits of the compared values, such as differences, for inputs within limits."""
        return node.align_limits(input_limits)[0].bit_length() + 2

    def can_check_range(self, node: PlacedLayer, input_limits: list[int] | None) -> bool:
        """Return whether no input within its limits is too large for the layer.

        Args:
            input_limits: limits of the inputs, None if one has no limit.
        """
        return (
            not node.numbers.bits
            or input_limits is None
            or self.bound_comparison_bits(node, input_limits) <= MOST_COMPARED
        )

    # ---- private inference

    def count_input_bits(self, node: PlacedLayer, input_index: int) -> int:
        """Return the number of low bits of an input that `forward` uses; its ring may have no more.

        Args:
            input_index: the number of the input.
        """
        return node.used_bits if self.is_local else 64

    def count_stages(self, node: PlacedLayer) -> int:
        """Count the sequential stages of a prediction; each starts when the previous ends."""
        return 1

    def forward(self, p: ForwardContext, node: PlacedLayer, *values: Shared) -> Shared:
        """Compute the output in a prediction, over Z_2^64 or a ring of node.used_bits or more.

        Args:
            values: the inputs, over Z_2^64 or rings of as many bits as `count_input_bits` returns.
        """
        raise NotImplementedError

    @property
    def can_predict(self) -> bool:
        """True if predictions run layers of this kind in this form."""
        return type(self).forward is not Kind.forward

    # ---- training

    def forward_training(self, p: ForwardContext, node: PlacedLayer, *values: Shared) -> Shared:
        """Compute the output in a training or evaluation step; saves values for `backward`."""
        return self.forward(p, node, *values)

    def backward(
        self, p: ForwardContext, node: PlacedLayer, g: Shared, needs_input_gradient: bool
    ) -> Gradients:
        """Compute the gradients of the inputs; those of weights go to p.weight_gradients.

        Args:
            g: the gradient of the output.
            needs_input_gradient: whether the gradient of any input is needed.
        """
        raise NotImplementedError

    @property
    def can_train(self) -> bool:
        """True if layers of this kind can be trained."""
        return type(self).backward is not Kind.backward

    def explain_untrainable(self, x: LayerSpec, input_shapes: list[Shape]) -> str:
        """Return the reason why a layer cannot be trained; "" if it can."""
        return "" if self.can_train else x.op

    def public_values(
        self, x: LayerSpec, shape: Shape, seed: int, step: int
    ) -> Mapping[str, Array]:
        """Return the public values of the layer that each step draws afresh, int64 by name.

        Args:
            shape: shape of its output, with the batch.
        """
        return {}


renamed.accept_deprecated_names(Kind, renamed.KIND)
if not TYPE_CHECKING:  # (type checkers accept the new names alone)
    __getattr__ = renamed.find_deprecated_names(
        __name__,
        globals(),
        check_room="check_fractional_bits",
        Mixes="NotPositionwise",
        one_axis="get_common_axis",
        Watch="Observer",
    )

"""A kind of layer: all that the project knows of it, in one class.

A kind is a module of models/layers, or of a package that names it in the entry point group
`tfe_bench.layers`.  docs/adding_a_layer.md goes through one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from tfe_bench.errors import UsageError
from tfe_bench.models.kinds.layer import Array, Layer, Node, Numbers, Options, Shape, Shapes
from tfe_bench.models.kinds.passes import Gradients, Pass
from tfe_bench.models.kinds.planning import MOST_COMPARED, Planner
from tfe_bench.models.kinds.reading import Call, Reader
from tfe_bench.protocols.session.sharing import Shared

Watch = Callable[[str, Array], None]


def check_room(node: Node) -> None:
    """Refuses numbers with fewer fractional bits than an input has.

    Raises:
        UsageError: they have.
    """
    if max(node.scales) > node.numbers.fraction:
        raise UsageError("has fewer fractional bits than an input.")


class Mixes(Exception):
    """Why a value at one position is not made of that position alone."""


def one_axis(axes: Sequence[int]) -> int:
    """The axis along which the positions of all inputs lie.

    Raises:
        Mixes: there are several.
    """
    if len(set(axes)) != 1:
        raise Mixes("takes values whose positions lie along several axes")
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
    keras: ClassVar[tuple[str, ...]] = ()
    arguments: ClassVar[tuple[str, ...]] = ()
    masks: ClassVar[bool] = False
    functions: ClassVar[tuple[str, ...]] = ()
    nothing: ClassVar[bool] = False
    pointwise: ClassVar[bool] = False
    moves: ClassVar[bool] = False
    largest: ClassVar[bool] = False
    fuses: ClassVar[bool] = False
    heavy: ClassVar[bool] = False
    wide: ClassVar[bool] = False
    bounded: ClassVar[bool] = False
    local: ClassVar[bool] = False
    placed: ClassVar[bool] = False

    # ---- from Keras

    def classes(self, keras: Any) -> list[type]:
        """The classes of Keras' layers that `read` takes; those of a newer Keras may lack."""
        return [c for name in self.keras if (c := getattr(keras.layers, name, None)) is not None]

    def callables(self, keras: Any) -> dict[Any, str]:
        """The activation functions that it is, with the name that `activate` gets."""
        of = keras.activations
        return {f: name for name in self.functions if (f := getattr(of, name, None)) is not None}

    def read(self, r: Reader, call: Call) -> str:
        """Writes a layer of Keras to the reader; returns the name of its value.

        Raises:
            Unfit: why this one cannot be converted.
        """
        return r.emit(call.name, self.op, call.inputs)

    def activate(self, r: Reader, value: str, name: str, function: str, given: Options) -> str:
        """Writes an activation of Keras behind a value; returns the name of what it gives.

        Args:
            function: its name in keras.activations.
            given: what it is called with besides the value, as Keras names it.

        Raises:
            Unfit: why it cannot be converted.
        """
        return r.emit(name, self.op, [value], None, **self.function(function, r.rank, given))

    def function(self, name: str, rank: int, given: Options) -> Options:
        """The options that an activation of Keras means, for a value of a rank with the batch.

        Raises:
            Unfit: why there are none.
        """
        return given

    # ---- as data

    def shape(self, given: list[Shape], options: Options, weights: Shapes) -> Shape:
        """The shape of a layer's value, without the batch.

        Raises:
            Bad: options, weights or inputs that do not fit; what comes from a stranger is checked
                here alone.
        """
        raise NotImplementedError

    def positions(self, x: Layer, given: Sequence[Shape], axes: Sequence[int]) -> int:
        """The axis of its value along which the positions of a text lie.

        Args:
            given: shapes of its inputs, without the batch.
            axes: of these, along which positions lie; the batch is axis 0.

        Raises:
            Mixes: a position's value is made of other positions, in another way than by causal
                attention.
        """
        if not self.pointwise:
            raise Mixes("may make a value of several positions")
        if len({len(shape) for shape in given}) > 1:
            raise Mixes("takes values of several ranks")
        return one_axis(axes)

    def resized(self, x: Layer, axis: int, count: int) -> Layer:
        """The layer for another number of positions, which lie along an axis of its value."""
        return x

    def predicted(self, x: Layer) -> Layer:
        """The layer as it is in a prediction, when the model is done with training."""
        return x

    def in_series(self, x: Layer) -> Layer:
        """The layer with short series for its activations, if it has any inside."""
        return x

    def doubt(self, x: Layer, given: list[Shape]) -> str:
        """What who converts a model is warned of; "" for nothing."""
        return ""

    def label(self, x: Layer) -> str:
        """What a summary calls the layer's kind."""
        return self.op

    # ---- in the clear

    def plain(self, x: Layer, values: list[Array], seen: Watch) -> Array:
        """The layer's value in float64, with a batch.

        Args:
            seen: hears of values that a range is planned for besides the layer's own.
        """
        raise NotImplementedError

    # ---- in fixed point

    def approximated(self, x: Layer, values: list[Array], seen: Watch) -> Array:
        """As `plain`, with the approximations that the private layer makes, but for roundings."""
        return self.plain(x, values, seen)

    def numbers(self, planner: Planner, x: Layer) -> Numbers:
        """The fixed point of a layer whose inputs are planned."""
        return Numbers(planner.most(x)[0])

    def check(self, node: Node) -> None:
        """Refuses numbers, which may come from a stranger, that the layer does not run with.

        Raises:
            UsageError: why.
        """
        if node.numbers.fraction != node.scales[0]:
            raise UsageError("has other fractional bits than its input.")

    def weight_bits(self, node: Node, name: str) -> int:
        """Fractional bits of weights: a sum's bias, or kernels of its terms."""
        scale = node.numbers.scale
        return scale if name == "bias" else scale - node.scales[int(name.removeprefix("kernel"))]

    def limit(self, node: Node, given: list[int]) -> int | None:
        """The largest |v| in ring units for inputs within limits; None if there is none."""
        return node.moved(given)[0]

    def reach(self, node: Node, given: list[int]) -> int:
        """Bits that no sum of inputs within limits leaves, before it is truncated; 0 for no sum.

        Args:
            node: with the weights' values.
        """
        return 0

    def compared(self, node: Node, given: list[int]) -> int:
        """Bits of comparisons that no value within its limits can leave, as of differences."""
        return node.moved(given)[0].bit_length() + 2

    def watchable(self, node: Node, given: list[int] | None) -> bool:
        """Whether no value within its limits is too large for the layer.

        Args:
            given: limits of the inputs, None where one has none.
        """
        return not node.numbers.bits or given is None or self.compared(node, given) <= MOST_COMPARED

    # ---- in private

    def reads(self, node: Node, given: int) -> int:
        """How many low bits of an input `forward` reads: it may be of a ring of no more.

        Args:
            given: the input's number.
        """
        return node.wide if self.local else 64

    def turns(self, node: Node) -> int:
        """Of how many parts, of which the next begins when one is over, a prediction of it is."""
        return 1

    def forward(self, p: Pass, node: Node, *values: Shared) -> Shared:
        """The layer's value in a prediction, over Z_2^64 or of a ring of node.wide bits or more.

        Args:
            values: over Z_2^64, or of rings of as many bits as `reads` says.
        """
        raise NotImplementedError

    @property
    def predicts(self) -> bool:
        """Whether predictions run layers of the kind as they are."""
        return type(self).forward is not Kind.forward

    # ---- in training

    def train(self, p: Pass, node: Node, *values: Shared) -> Shared:
        """The layer's value in a step or an evaluation, with what `backward` wants in p.kept."""
        return self.forward(p, node, *values)

    def backward(self, p: Pass, node: Node, g: Shared, wanted: bool) -> Gradients:
        """Gradients of the inputs, from that of the value; those of weights go to p.found.

        Args:
            wanted: whether any input's gradient is.
        """
        raise NotImplementedError

    @property
    def trains(self) -> bool:
        """Whether layers of the kind can be trained."""
        return type(self).backward is not Kind.backward

    def untrained(self, x: Layer, given: list[Shape]) -> str:
        """Why a layer cannot be trained; "" if it can."""
        return "" if self.trains else x.op

    def public_values(self, x: Layer, shape: Shape, seed: int, step: int) -> Mapping[str, Array]:
        """What is public about the layer and drawn anew in every step, int64 by name.

        Args:
            shape: of its value, with the batch.
        """
        return {}

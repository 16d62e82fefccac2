"""The identity, which is what activations by name are read as where they do nothing."""

from __future__ import annotations

from typing import ClassVar

from tfe_bench.models.kinds.checks import alone, only
from tfe_bench.models.kinds.kind import Kind, Watch
from tfe_bench.models.kinds.layer import Array, Layer, Node, Options, Shape, Shapes
from tfe_bench.models.kinds.passes import Gradients, Pass
from tfe_bench.models.kinds.reading import Call, Reader, Unfit
from tfe_bench.protocols.session.sharing import Shared


class Composed(Kind):
    """A kind that is read as other layers; by itself it gives what it takes."""

    def shape(self, given: list[Shape], options: Options, weights: Shapes) -> Shape:
        only(options)
        return alone(given, weights)

    def plain(self, x: Layer, values: list[Array], seen: Watch) -> Array:
        return values[0]

    def forward(self, p: Pass, node: Node, *values: Shared) -> Shared:
        return values[0]

    def backward(self, p: Pass, node: Node, g: Shared, wanted: bool) -> Gradients:
        return [g]


class Untrained(Composed):
    """A kind that is read as other layers, for predictions alone."""

    @property
    def trains(self) -> bool:
        return False

    def read(self, r: Reader, call: Call) -> str:
        if r.training:
            raise Unfit("which is not trained; train what stands behind it")
        return self.composed(r, call)

    def composed(self, r: Reader, call: Call) -> str:
        """`read`, for a prediction.

        Raises:
            Unfit: why it cannot be converted.
        """
        raise NotImplementedError


class Identity(Composed):
    """x."""

    op = "identity"
    keras: ClassVar[tuple[str, ...]] = ("Activation",)
    functions = ("linear",)
    nothing = True

    def read(self, r: Reader, call: Call) -> str:
        return r.activate(call.layer.activation, call.inputs[0], call.name)

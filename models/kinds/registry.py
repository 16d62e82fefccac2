"""Which kinds of layers there are: a module of models/layers each, and those of other packages.

Another package's kind is a class that its metadata names in the entry point group
`tfe_bench.layers`; all that it computes with is what tfe_bench's own kinds have.
"""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Any

from tfe_bench.errors import UsageError, unknown_name
from tfe_bench.models import layers
from tfe_bench.models.kinds import discovery
from tfe_bench.models.kinds.checks import InvalidOption
from tfe_bench.models.kinds.kind import Kind
from tfe_bench.models.kinds.layer import LayerSpec, Shape, Shapes

GROUP = "tfe_bench.layers"


def discover_kinds() -> dict[str, Kind]:
    """All kinds by op.

    Raises:
        UsageError: two of one op, or an entry point that is no kind.
    """
    own_classes = discovery.find_classes(layers.__name__, layers.__path__, Kind, "op")
    kinds = {op: cls() for op, cls in own_classes.items()}
    for point in entry_points(group=GROUP):
        cls = point.load()
        if not (isinstance(cls, type) and issubclass(cls, Kind) and hasattr(cls, "op")):
            raise UsageError(
                f"The entry point {point.name!r} of {GROUP} is a class of kinds.kind.Kind with an "
                f"op. Received: {cls!r}."
            )
        if cls.op in kinds:
            raise UsageError(
                f"There is a kind of layer {cls.op!r} already. Received: {point.value}."
            )
        kinds[cls.op] = cls()
    return kinds


KINDS: dict[str, Kind] = discover_kinds()


def get_kind(op: str) -> Kind:
    """The kind of a layer that has been checked."""
    return KINDS[op]


def infer_shape(x: LayerSpec, input_shapes: list[Shape], weights: Shapes) -> Shape:
    """The shape of a layer's value.

    Raises:
        UsageError: an unknown kind, or options, weights or inputs that do not fit it.
    """
    kind = KINDS.get(x.op) if isinstance(x.op, str) else None
    if kind is None:
        raise unknown_name(
            f"Layer {x.name!r} is of an unknown kind. Received: {x.op!r}.", x.op, KINDS
        )
    try:
        return kind.infer_shape(input_shapes, x.options, weights)
    except (InvalidOption, UsageError) as error:
        raise UsageError(f"Layer {x.name!r} ({x.op}) {error}") from None


# ---- what of Keras there is a kind for


def map_keras_layers(keras: Any) -> dict[type, Kind]:
    """The kind that reads each class of Keras' layers."""
    return {cls: kind for kind in KINDS.values() for cls in kind.find_keras_layers(keras)}


def map_keras_functions(keras: Any) -> dict[Any, tuple[str, Kind]]:
    """The kind that each of Keras' activation functions is, with the function's name."""
    return {
        function: (name, kind)
        for kind in KINDS.values()
        for function, name in kind.find_keras_functions(keras).items()
    }


def list_supported_layers(keras: Any) -> list[str]:
    """The names of Keras' layers that are converted, without those that do nothing."""
    readers_by_class = map_keras_layers(keras).items()
    return sorted(
        {cls.__name__ for cls, kind in readers_by_class if not kind.is_identity} | {"InputLayer"}
    )

"""The registry of layer kinds: one module of models/layers each, and kinds of other packages.

A kind of another package is a class that the package's metadata names in the entry point group
`tfe_bench.layers`. It uses the same interface as the kinds of tfe_bench.
"""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Any

from tfe_bench import discovery
from tfe_bench.errors import UsageError, unknown_name_error
from tfe_bench.models import layers
from tfe_bench.models.layers.base.checks import InvalidOption
from tfe_bench.models.layers.base.kind import Kind
from tfe_bench.models.layers.base.layer import LayerSpec, Shape, Shapes

GROUP = "tfe_bench.layers"


def discover_layer_kinds() -> dict[str, Kind]:
    """Find all kinds, by op.

    Raises:
        UsageError: two kinds have the same op, or an entry point is not a kind.
    """
    own_classes = discovery.find_package_classes(layers.__name__, layers.__path__, Kind, "op")
    kinds = {op: cls() for op, cls in own_classes.items()}
    for point in entry_points(group=GROUP):
        cls = point.load()
        if not (isinstance(cls, type) and issubclass(cls, Kind) and hasattr(cls, "op")):
            raise UsageError(
                f"Expected a subclass of models.layers.base.Kind with an op as entry point "
                f"{point.name!r} of {GROUP}. Received: {cls!r}.",
                code="invalid-entry-point",
                operation=point.name,
            )
        if cls.op in kinds:
            raise UsageError(
                f"A layer kind {cls.op!r} already exists. Received: {point.value}.",
                code="duplicate-name",
                operation=cls.op,
            )
        kinds[cls.op] = cls()
    return kinds


KINDS: dict[str, Kind] = discover_layer_kinds()


def get_layer_kind(op: str) -> Kind:
    """Return the kind of a layer that has been checked."""
    return KINDS[op]


def infer_shape(x: LayerSpec, input_shapes: list[Shape], weights: Shapes) -> Shape:
    """Infer the shape of a layer's output.

    Raises:
        UsageError: the kind is unknown, or options, weights or inputs do not fit it.
    """
    kind = KINDS.get(x.op) if isinstance(x.op, str) else None
    if kind is None:
        raise unknown_name_error(
            f"Layer {x.name!r} has an unknown kind. Received: {x.op!r}.",
            x.op,
            KINDS,
            operation=x.name,
        )
    try:
        return kind.infer_shape(input_shapes, x.options, weights)
    except (InvalidOption, UsageError) as error:
        raise UsageError(
            f"Layer {x.name!r} ({x.op}) {error}", code="invalid-layer-option", operation=x.name
        ) from None


# ---- supported Keras classes


def map_keras_layers(keras: Any) -> dict[type, Kind]:
    """Map each supported Keras layer class to its kind."""
    return {cls: kind for kind in KINDS.values() for cls in kind.find_keras_layers(keras)}


def map_keras_functions(keras: Any) -> dict[Any, tuple[str, Kind]]:
    """Map each supported Keras activation function to its name and kind."""
    return {
        function: (name, kind)
        for kind in KINDS.values()
        for function, name in kind.find_keras_functions(keras).items()
    }


def list_supported_layers(keras: Any) -> list[str]:
    """List the names of the Keras layers that are converted, without those that do nothing."""
    readers_by_class = map_keras_layers(keras).items()
    return sorted(
        {cls.__name__ for cls, kind in readers_by_class if not kind.is_identity} | {"InputLayer"}
    )

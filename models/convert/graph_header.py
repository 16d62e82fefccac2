"""The header of a model's graph: its JSON form, with bounded counts and typed values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tfe_bench.cluster.schema import (
    Header,
    Mismatch,
    Rule,
    checked_field,
    declare_field,
    flag_field,
    header_rule,
    integer_rule,
    label_rule,
    list_field,
    list_rule,
    mapping_rule,
)
from tfe_bench.errors import DataError
from tfe_bench.models.layers.base.layer import Array, LayerSpec, Shape

FORMAT = 2
# More layers than any network of keras.applications has; limits what an untrusted header may
# request.
MAX_LAYERS = 4096
# Inputs of a layer, weights of a layer, sizes of a shape, and characters of a name.
_MAX_PARTS, _MAX_NAME = 1 << 16, 1 << 12
_NAME = label_rule(_MAX_NAME)


def is_layer_size(n: Any) -> bool:
    """Return whether a number is the size of an axis of a layer: an integer from 1."""
    return isinstance(n, (int, np.integer)) and not isinstance(n, bool) and int(n) > 0


def _pair_rule(first: Rule, second: Rule) -> Rule:
    def read_value(value: object) -> tuple[Any, Any]:
        if not isinstance(value, list) or len(value) != 2:
            raise Mismatch("a list of pairs")
        return first.read(value[0]), second.read(value[1])

    return Rule(read_value, least=2, most=2)


_ANY = Rule(lambda value: value)
_SCALE = _pair_rule(_ANY, _ANY)


@dataclass(frozen=True)
class LayerHeader(
    Header, subject="A layer of a model", error=DataError, code="invalid-graph", is_only_code=True
):
    """A layer without its weights' values.

    Attributes:
        name, op, inputs, options: as in LayerSpec.
        weights: by name, the type, the shape, and the key of an earlier layer's array if shared.
    """

    name: str = declare_field(_NAME)
    op: str = declare_field(_NAME)
    inputs: tuple[str, ...] = list_field(_NAME, 0, _MAX_PARTS)
    options: Mapping[str, Any] = declare_field(mapping_rule(_ANY, _MAX_PARTS))
    weights: Mapping[str, tuple[Any, ...]] = declare_field(
        mapping_rule(list_rule(_ANY, 2, 3), _MAX_PARTS)
    )

    def read_layer(
        self, arrays: Mapping[str, Array] | None, earlier: dict[str, Array]
    ) -> LayerSpec:
        """Build the layer; without arrays, its weights are zeros that take no memory.

        Args:
            earlier: weights of earlier layers by "layer/weight"; gets those of this layer.

        Raises:
            DataError: a weight has another type, or the arrays do not match it.
        """
        weights: dict[str, Array] = {}
        for name, (dtype, shape, *shared_key) in sorted(self.weights.items()):
            key = f"{self.name}/{name}"
            is_shape = isinstance(shape, list) and all(map(is_layer_size, shape))
            if dtype not in ("float32", "float64") or not is_shape:
                raise DataError(
                    "Expected weights of type float32 or float64 and known sizes. Received: "
                    f"{str(dtype)[:40]!r}, {str(shape)[:80]}.",
                    code="wrong-type",
                    operation=self.name,
                    received=dtype,
                )
            if arrays is None and not shared_key:
                weights[name] = earlier[key] = np.broadcast_to(np.zeros((), dtype), tuple(shape))
                continue
            array = earlier.get(str(shared_key[0])) if shared_key else (arrays or {}).get(key)
            if array is None or str(array.dtype) != dtype or list(array.shape) != shape:
                raise DataError(
                    f"The weights {name!r} of layer {self.name!r} do not match the header.",
                    code="weights-mismatch",
                    operation=self.name,
                    received=name,
                )
            weights[name] = earlier[key] = array
        return LayerSpec(self.name, self.op, self.inputs, dict(self.options), weights)


@dataclass(frozen=True)
class GraphHeader(
    Header, subject="A model's header", error=DataError, code="invalid-graph", is_only_code=True
):
    """A graph without its weights' values; its fields are those of Graph, which checks them."""

    format: int = checked_field()
    name: str = declare_field(_NAME)
    inputs: tuple[tuple[str, Shape], ...] = list_field(
        _pair_rule(_NAME, list_rule(_ANY, 0, _MAX_PARTS)), 0, _MAX_PARTS
    )
    layers: tuple[LayerHeader, ...] = list_field(header_rule(LayerHeader), 0, MAX_LAYERS)
    outputs: tuple[str, ...] = list_field(_NAME, 0, _MAX_PARTS)
    scaling: Mapping[str, tuple[Any, Any]] = declare_field(
        mapping_rule(_SCALE, _MAX_PARTS), factory=dict
    )
    results: tuple[tuple[Any, Any], ...] = list_field(_SCALE, 0, _MAX_PARTS, default=())
    labels: tuple[str, ...] = list_field(_NAME, 0, _MAX_PARTS, default=())
    tokens: Mapping[str, int] = declare_field(mapping_rule(_ANY, _MAX_PARTS), factory=dict)
    masks: tuple[str, ...] = list_field(_NAME, 0, _MAX_PARTS, default=())
    keyed: bool = flag_field(default=False)
    flat: tuple[int, ...] = list_field(integer_rule(0, _MAX_PARTS), 0, _MAX_PARTS, default=())

    @classmethod
    def from_header(cls, header: object) -> GraphHeader:
        """Read the header of a model from an untrusted source.

        Raises:
            DataError: the header is invalid, or of another version.
        """
        version = header.get("format", FORMAT) if isinstance(header, Mapping) else FORMAT
        if version != FORMAT:
            raise DataError(
                f"This model has format {str(version)[:40]!r}; this version reads {FORMAT}. "
                "Convert it again, and deploy it again (--replace) if it was deployed.",
                code="format-mismatch",
                operation="format",
                received=version,
                expected=FORMAT,
            )
        return super().from_header(header)

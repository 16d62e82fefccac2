"""Conversion of Keras 3 models (Sequential, functional, nested, or a .keras file) to a Graph.

The converter reads Keras' own layer graph layer by layer; it traces and exports nothing.  It
recognizes a layer by its exact class: a subclass of Dense may compute something else.
"""

from __future__ import annotations

import importlib
import inspect
import os
import zipfile
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tfe_bench.errors import (
    DataError,
    OpsMissing,
    UsageError,
    did_you_mean,
    import_optional_library,
)
from tfe_bench.models.convert import keras_ops, keras_signature
from tfe_bench.models.convert.graph import Graph, LayerSpec
from tfe_bench.models.layers.base import calls, masks, reading, registry

PAGE = "docs/keras_layers.md"
# Number of bytes of a model's description in which the names of packages are searched.
_MAX_CONFIG_BYTES = 1 << 22


def _import_keras() -> Any:
    try:
        return importlib.import_module("keras")
    except ImportError as error:
        backend = os.environ.get("KERAS_BACKEND", "tensorflow")
        if backend != "tensorflow":
            raise OpsMissing(
                "The backend of Keras that the environment variable KERAS_BACKEND names cannot "
                f"be imported. Received: {backend[:80]!r} ({error}). Unset it, or set "
                "KERAS_BACKEND=tensorflow.",
                code="unsupported-backend",
                operation="KERAS_BACKEND",
                received=backend[:80],
            ) from None
        raise OpsMissing(
            f"Conversion of models requires Keras 3. Received: {error}.",
            code="library-not-installed",
            operation="keras",
        ) from None


def load_model(path: str | Path) -> Any:
    """Load the Keras model of a .keras file; reject code in it (Lambda layers, custom classes).

    Raises:
        DataError: the file does not exist, is damaged, or contains code.
    """
    keras = _import_keras()
    path = Path(path)
    if path.suffix != ".keras":
        raise DataError(
            f"Expected a file that ends in .keras. Received: {str(path)!r}. Save the model with "
            'model.save("model.keras").',
            code="unsupported-file-type",
            operation=str(path),
        )
    if not path.is_file():
        raise DataError(
            f"The file does not exist. Received: {str(path)!r}.",
            code="file-not-found",
            operation=str(path),
        )
    if _needs_keras_hub(path):
        import_optional_library(
            "keras_hub", f"{path.name!r} holds a model of keras-hub", 'Install "tfe-bench[hub]"'
        )
    try:
        return keras.models.load_model(path, compile=False, safe_mode=True)
    except Exception as error:  # Keras raises many types for a damaged or hostile file
        raise DataError(
            f"The model in {str(path)!r} cannot be loaded. Received: {type(error).__name__}: "
            f"{str(error).strip().splitlines()[0] if str(error).strip() else ''}",
            code="invalid-model-file",
            operation=str(path),
            received=type(error).__name__,
        ) from None


def _needs_keras_hub(path: Path) -> bool:
    """Return whether a .keras file uses layers of keras-hub, which registers them when imported."""
    try:
        with zipfile.ZipFile(path) as file, file.open("config.json") as config:
            return b'"keras_hub' in config.read(_MAX_CONFIG_BYTES)
    except (OSError, KeyError, zipfile.BadZipFile):
        return False


@dataclass(frozen=True, eq=False)
class ConvertedModel:
    """A Keras model and its converted graph.

    Attributes:
        model, function: the Keras model, and its functional graph.
        tensors: tensors of the functional graph, in order, with the names of their values.
        keras: the module keras.
    """

    model: Any
    function: Any
    graph: Graph
    tensors: tuple[tuple[Any, str], ...]
    keras: Any


def from_keras(model: Any, make: Callable[[Any], KerasReader] | None = None) -> Graph:
    """Convert a Keras model or a .keras file to a graph, and verify that both compute the same.

    Args, raises: as `read_keras_model`; also UsageError if the outputs differ, with the layer's
    name.
    """
    from tfe_bench.models.convert import optimize, verify

    reading = read_keras_model(model, make)
    verify.compare_with_keras(reading, optimize.convert_to_inference(reading.graph))
    return reading.graph


def read_keras_model(
    model: Any,
    make: Callable[[Any], KerasReader] | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    length: int | None = None,
) -> ConvertedModel:
    """Convert a Keras model or a .keras file to a graph without comparing their outputs.

    Args:
        make: builds the reader from the module keras.
        shapes: shapes of inputs of unknown size, by name, without the batch.
        length: the value of every unknown size.

    Raises:
        UsageError: this is not a Keras model, or layers are not supported; the text lists all of
            them.
        DataError: the file cannot be read.
        RangeError: weights are NaN or infinite; the text names the layer.
    """
    keras = _import_keras()
    if isinstance(model, (str, Path)):
        model = load_model(model)
    if not isinstance(model, keras.Model):
        raise UsageError(
            "Expected a Keras 3 model or a .keras file in convert. Received: "
            f"{type(model).__name__}.",
            code="wrong-type",
            operation="convert",
            received=type(model).__name__,
        )
    reader = (make or KerasReader)(keras)
    function = reader.functional_graph_of(model)
    is_keyed = keras_signature.takes_inputs_by_name(function)
    if shapes or length is not None:
        function = keras_signature.resize_inputs(
            keras,
            function,
            keras_signature.resolve_model_input_shapes(function, shapes or {}, length),
        )
    inputs: dict[str, tuple[int, ...]] = {}
    values: list[str] = []
    for tensor, input_name in zip(
        function.inputs, keras_signature.keras_input_names(function), strict=True
    ):
        shape = tuple(tensor.shape[1:])
        if None in shape or not shape:
            raise UsageError(
                f"Expected known sizes of the model's input {input_name!r}. Received: "
                f"{list(tensor.shape)}. Build the model with keras.Input(shape), or state them: "
                f"convert(model, shapes={{{input_name!r}: (128,)}}), or length=128.",
                code="unknown-input-size",
                operation=input_name,
                received=list(tensor.shape),
            )
        name = reader.make_unique(input_name)
        inputs[name] = tuple(int(n) for n in shape)
        values.append(name)
    reader.inputs = frozenset(inputs)
    outputs = reader.read_functional_graph(function, values, "")
    reader.check_tokens()
    if reader.unfit:
        raise UsageError(
            f"Unsupported layers in {model.name!r}: {'; '.join(reader.unfit)}. "
            f"{len(registry.list_supported_layers(keras))} layers of Keras are supported: {PAGE} "
            "lists them.",
            code="unsupported-layer",
            operation=model.name,
            received="; ".join(reader.unfit),
        )
    layers = reader.layers
    if not layers:  # every layer was dropped
        layers = [LayerSpec("identity", "identity", (outputs[0],))]
        outputs = ["identity"]
    tokens = reader.tokens
    inputs = {
        k: (*input_shape, tokens[k]) if k in tokens else input_shape
        for k, input_shape in inputs.items()
    }
    graph = Graph(
        model.name,
        inputs,
        tuple(layers),
        tuple(outputs),
        labels=keras_signature.model_output_labels(function),
        tokens=tokens,
        masks=tuple(reader.masks),
        keyed=is_keyed,
        flat=tuple(i for i, tensor in enumerate(function.outputs) if len(tensor.shape) == 1),
    )
    if not reader.training:
        from tfe_bench.models.convert import optimize

        graph = replace(graph, masks=optimize.mask_inputs(graph))
    return ConvertedModel(model, function, graph, tuple(reader.tensors), keras)


def _name_layer_arguments(
    node: Any, values: Mapping[int, str], hidden: Mapping[int, str]
) -> dict[str, Any]:
    """Return the arguments of a layer's call by name, with values of the model as `CallValue`."""

    def wrap_value(value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return [wrap_value(v) for v in value]
        value_name = values.get(id(value))
        if value_name is None:
            return value
        return reading.CallValue(value_name, tuple(value.shape[1:]), hidden.get(id(value), ""))

    return {name: wrap_value(value) for name, value in _bind_layer_arguments(node).items()}


def _bind_layer_arguments(node: Any) -> dict[str, Any]:
    """Bind the arguments of a layer's call to their names."""
    signature = inspect.signature(node.operation.call)
    return dict(signature.bind(*node.arguments.args, **node.arguments.kwargs).arguments)


class KerasReader(reading.Reader):
    """Reader of a model and of its nested models."""

    def __init__(self, keras: Any) -> None:
        super().__init__(
            keras, registry.map_keras_layers(keras), registry.map_keras_functions(keras)
        )
        self.tensors: list[tuple[Any, str]] = []

    def functional_graph_of(self, model: Any) -> Any:
        """Return the functional graph of a model.

        Raises:
            UsageError: the model has none (a subclass with its own `call`), or was not built.
        """
        models = self.keras.models
        if type(model) is models.Sequential:
            if getattr(model, "_functional", None) is None:
                raise UsageError(
                    f"The model {model.name!r} is not built. Start it with keras.Input(shape).",
                    code="model-not-built",
                    operation=model.name,
                )
            return model._functional
        kind: Any = type(model)
        functional = next((c for c in kind.__mro__ if c.__name__ == "Functional"), None)
        if functional is not None and kind.call is functional.call:
            return model
        raise UsageError(
            "Expected a Sequential or functional model; a model with its own call() contains "
            f"code. Received: {type(model).__name__} {model.name!r}.",
            code="unsupported-model",
            operation=model.name,
            received=type(model).__name__,
        )

    def read_functional_graph(self, function: Any, inputs: list[str], prefix: str) -> list[str]:
        """Read a functional graph; return the names of its outputs."""
        return self._walk_function(function, inputs, [""] * len(inputs), prefix)[0]

    def _walk_function(
        self, function: Any, inputs: list[str], input_masks: list[str], prefix: str
    ) -> tuple[list[str], list[str]]:
        """Read a functional graph; return the names of its outputs, and of the outputs' masks.

        Args:
            input_masks: names of the masks of the inputs, "" for none.
        """
        values = {id(t): name for t, name in zip(function.inputs, inputs, strict=True)}
        mask_by_tensor = {id(t): mask for t, mask in zip(function.inputs, input_masks, strict=True)}
        outermost = not prefix and not self.tensors
        for depth in sorted(function._nodes_by_depth, reverse=True):
            for node in function._nodes_by_depth[depth]:
                if node.is_input or any(id(t) not in values for t in node.input_tensors):
                    continue
                node_outputs = self._read_call(node, values, mask_by_tensor, prefix)
                for tensor, name in zip(node.outputs, node_outputs, strict=False):
                    values[id(tensor)] = name
                    if outermost:
                        self.tensors.append((tensor, name))
        output_masks = [mask_by_tensor.get(id(t), "") for t in function.outputs]
        return [values[id(t)] for t in function.outputs], output_masks

    def _read_call(
        self, node: Any, values: Mapping[int, str], mask_by_tensor: dict[int, str], prefix: str
    ) -> list[str]:
        layer, input_names = node.operation, [values[id(t)] for t in node.input_tensors]
        if not isinstance(layer, self.keras.layers.Layer):
            return self._read_operation(node, values, prefix) or input_names[:1] * len(node.outputs)
        kind = self.kinds.get(type(layer))
        accepted = kind.call_arguments if kind is not None else ()
        nested = isinstance(layer, self.keras.Model)
        idle = nested or (masks.ignores_keras_mask(layer) and not self.training)
        if extra := self._unsupported_arguments(node, accepted, idle):
            self._reject_layer(layer, prefix, f"called with {extra}; call it with its inputs alone")
            return [input_names[0]] * len(node.outputs)
        try:
            tensors, first_masks = self._split_masks(node, values, mask_by_tensor, idle)
        except reading.UnsupportedLayer as error:
            self._reject_layer(layer, prefix, str(error))
            return [input_names[0]] * len(node.outputs)
        input_names = [values[id(t)] for t in tensors]
        if nested:
            try:
                inner = self.functional_graph_of(layer)
                if any(None in t.shape[1:] for t in inner.inputs):
                    inner = keras_signature.resize_inputs(
                        self.keras, inner, [t.shape[1:] for t in tensors]
                    )
                names, output_masks = self._walk_function(
                    inner, input_names, first_masks, f"{prefix}{layer.name}/"
                )
            except UsageError as error:
                self._reject_layer(layer, prefix, str(error))
                return [input_names[0]] * len(node.outputs)
            mask_by_tensor.update(zip(map(id, node.outputs), output_masks, strict=True))
            return names
        name = self.make_unique(prefix + layer.name)
        if kind is None:
            self._reject_layer(layer, prefix)
            return [input_names[0]] * len(node.outputs)
        try:
            shapes = [tuple(t.shape[1:]) for t in tensors]
            shape = tuple(node.outputs[0].shape[1:])
            self.rank = len(shape) + 1
            self.check_layer(layer)
            tensor_masks = tuple(mask_by_tensor.get(id(t), "") for t in tensors)
            call = reading.LayerCall(layer, name, input_names, shapes, shape, masks=tensor_masks)
            if accepted:
                call = replace(call, arguments=_name_layer_arguments(node, values, mask_by_tensor))
            self.mask, self.unmasked = "", set()
            output_name = kind.convert_layer(self, call)
            mask = (
                self.mask
                if kind.handles_masks
                else masks.infer_layer_output_mask(self, call, first_masks)
            )
            for t in tensors:
                if values[id(t)] in self.unmasked:
                    mask_by_tensor.pop(id(t), None)
            mask_by_tensor[id(node.outputs[0])] = mask
            return [output_name, *call.other_outputs]
        except reading.UnsupportedLayer as error:
            self._reject_layer(layer, prefix, str(error))
            return [input_names[0]] * len(node.outputs)

    def _split_masks(
        self, node: Any, values: Mapping[int, str], mask_by_tensor: Mapping[int, str], idle: bool
    ) -> tuple[list[Any], list[str]]:
        """Return a call's tensors, and its first argument's masks, which `mask` may override.

        Args:
            idle: whether the argument `mask` is excluded from the tensors.
        """
        flatten, bound = self.keras.tree.flatten, _bind_layer_arguments(node)
        explicit_masks = flatten(bound["mask"]) if idle and bound.get("mask") is not None else []
        if any(m is not None and id(m) not in values for m in explicit_masks):
            raise reading.UnsupportedLayer("called with a mask that is not a value of the model")
        ids = {id(m) for m in explicit_masks}
        tensors = [t for t in node.input_tensors if id(t) not in ids]
        if explicit_masks:
            return tensors, ["" if m is None else values[id(m)] for m in explicit_masks]
        return tensors, [
            mask_by_tensor.get(id(t), "") for t in flatten(next(iter(bound.values()), ()))
        ]

    def convert_inner_layer(self, layer: Any, call: reading.LayerCall) -> str:
        if isinstance(layer, self.keras.Model):
            (output_name,) = self.read_functional_graph(
                self.functional_graph_of(layer), call.inputs, f"{call.name}/"
            )
            return output_name
        kind = self.kinds.get(type(layer))
        if kind is None:
            raise reading.UnsupportedLayer(
                f"wraps a {type(layer).__name__}, which is not supported"
            )
        self.check_layer(layer)
        self.rank = len(call.shape) + 1
        value: str = kind.convert_layer(self, replace(call, layer=layer))
        return value

    def _read_operation(self, node: Any, values: Mapping[int, str], prefix: str) -> list[str]:
        """Read x + y, keras.ops.relu(x), ...; return no names if the operation is rejected."""
        keras_operation = node.operation
        if not keras_ops.is_supported_keras_op(keras_operation):
            self._reject_layer(keras_operation, prefix, "an operation that is not supported")
            return []
        name = self.make_unique(prefix + keras_operation.name)
        self.rank = len(node.outputs[0].shape)
        operation = calls.KerasOperation(
            keras_operation, name, [tuple(t.shape[1:]) for t in node.outputs]
        )

        def wrap_tensor(t: Any) -> calls.TensorValue:
            return calls.TensorValue(values[id(t)], tuple(t.shape[1:]), str(t.dtype))

        try:
            return keras_ops.convert_keras_operation(self, operation, node, wrap_tensor)
        except reading.UnsupportedLayer as error:
            self._reject_layer(keras_operation, prefix, str(error))
            return []

    def _unsupported_arguments(
        self, node: Any, accepted: Collection[str], idle: bool = False
    ) -> str:
        """Describe arguments of a layer's call that may change its value, besides its inputs.

        `predict` and `fit` set the training mode themselves, whatever the layer was called with.
        The argument training=True matters only if the model is called without that argument.
        """
        positional, named = node.arguments.args, dict(node.arguments.kwargs)
        if idle:
            named.pop("mask", None)
        if accepted:
            positional = ()
            named = {
                k: v
                for k, v in _bind_layer_arguments(node).items()
                if k not in accepted and v is not False
            }
        training = named.pop("training", None)
        if not positional and named and not accepted:  # the inputs, passed by name
            named.pop(next(iter(named)))
        descriptions = [f"{name}=" for name, value in named.items() if value is not None]
        if training and not self.training:
            usual = inspect.signature(node.operation.call).parameters.get("training")
            descriptions += ["training=True"] if usual is None or usual.default is not True else []
        has_more = any(value is not None for value in positional[1:])
        return ", ".join([*descriptions, "more than one argument"] if has_more else descriptions)

    def check_layer(self, layer: Any) -> None:
        """Raise UnsupportedLayer for a layer that other readers convert, but not this one."""

    def _reject_layer(self, layer: Any, prefix: str, reason: str = "") -> None:
        if isinstance(layer, self.keras.layers.Lambda):
            reason = "code; write it as layers or keras.ops"
        kind = type(layer).__name__
        if not reason and type(layer).__module__.startswith("keras."):
            reason = did_you_mean(kind, registry.list_supported_layers(self.keras)).strip()
        description = f"{kind} {prefix + layer.name!r}{f' ({reason})' if reason else ''}"
        if description not in self.unfit:
            self.unfit.append(description)

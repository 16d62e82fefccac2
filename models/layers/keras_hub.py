"""Layers of keras-hub that consist of others, converted part by part as their `call` runs them.

The package is never imported: its classes exist if the model uses them. If a newer version computes
something else, the comparison of the model with Keras detects it.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from tfe_bench.models.layers import base as L
from tfe_bench.models.layers import embedding
from tfe_bench.models.layers.base import Options, Shape
from tfe_bench.models.layers.identity import ComposedLayer, InferenceOnlyLayer
from tfe_bench.models.layers.multi_head_attention import (
    convert_attention_key_mask,
    convert_multi_head_attention,
)


def _find_keras_hub_object(path: str) -> Any:
    """Return a class or function of keras-hub, None if its module is not imported."""
    module, _, name = path.rpartition(".")
    return getattr(sys.modules.get(module), name, None)


class HubLayer(InferenceOnlyLayer):
    """A layer of keras-hub.

    Attributes:
        path: dotted path of its class.
    """

    path: ClassVar[str]

    def find_keras_layers(self, keras: Any) -> list[type]:
        hub_class = _find_keras_hub_object(self.path)
        return [hub_class] if isinstance(hub_class, type) else []

    def convert_inference(self, r: L.Reader, call: L.LayerCall) -> str:
        try:
            return self.convert_parts(r, call)
        except AttributeError as error:
            raise L.UnsupportedLayer(f"of an unsupported keras-hub version: {error}") from None

    def convert_parts(self, r: L.Reader, call: L.LayerCall) -> str:
        """Add the layers that it consists of."""
        raise NotImplementedError


def convert_keras_hub_sublayer(
    r: L.Reader,
    call: L.LayerCall,
    layer: Any,
    value: L.CallValue,
    name: str = "",
    same: bool = False,
) -> L.CallValue:
    """Convert an inner layer of another layer, of one value.

    Args:
        same: whether the shape stays, which not every layer can compute.
    """
    inferred_shape = value.shape if same else layer.compute_output_shape((None, *value.shape))[1:]
    shape = tuple(int(n) for n in inferred_shape)
    name = name or r.make_unique(f"{call.name}/{layer.name}")
    inner = L.LayerCall(layer, name, [value.name], [value.shape], shape, {"inputs": value})
    return L.CallValue(r.convert_inner_layer(layer, inner), shape)


def add_sum_layer(r: L.Reader, name: str, x: L.CallValue, y: L.CallValue) -> L.CallValue:
    """Add x + y."""
    return L.CallValue(r.add_layer(name, "add", [x.name, y.name]), x.shape)


# ---- embeddings


class ReversibleEmbedding(embedding.ReversibleEmbedding):
    """The Keras layer under its keras-hub name."""

    op = "hub_reversible_embedding"
    keras_layers: ClassVar[tuple[str, ...]] = ()

    def find_keras_layers(self, keras: Any) -> list[type]:
        hub_class = _find_keras_hub_object("keras_hub.layers.ReversibleEmbedding")
        return [hub_class] if isinstance(hub_class, type) else []


class PositionEmbedding(HubLayer):
    """Table rows for the positions of a sequence: weights, independent of its values."""

    op = "position_embedding"
    path = "keras_hub.layers.PositionEmbedding"
    call_arguments: ClassVar[tuple[str, ...]] = ("inputs", "start_index", "positions")
    handles_masks = True

    def convert_parts(self, r: L.Reader, call: L.LayerCall) -> str:
        tokens = call.arguments["inputs"]
        more = {k: v for k, v in call.arguments.items() if k not in ("inputs", "training")}
        if any(isinstance(v, L.CallValue) for v in more.values()):
            raise L.UnsupportedLayer(f"called with private {', '.join(more)}")
        try:
            rows = call.layer(np.zeros((1, *tokens.shape), np.float32), **more)
        except Exception as error:  # Keras raises various errors for too few positions
            raise L.UnsupportedLayer(
                f"of {tokens.shape[0]} places: {type(error).__name__}"
            ) from None
        return r.add_layer(
            call.name, "constant", [tokens.name], {"bias": _keras_hub_array(r, rows)[0]}
        )


class SinePositionEncoding(PositionEmbedding):
    """Sines and cosines of the positions."""

    op = "sine_position_encoding"
    path = "keras_hub.layers.SinePositionEncoding"


def _keras_hub_array(r: L.Reader, value: Any) -> Any:
    return np.asarray(r.keras.ops.convert_to_numpy(r.keras.ops.cast(value, "float32")))


class TokenAndPositionEmbedding(HubLayer):
    """Table rows for private token numbers and for their positions."""

    op = "token_and_position_embedding"
    path = "keras_hub.layers.TokenAndPositionEmbedding"
    call_arguments: ClassVar[tuple[str, ...]] = ("inputs", "start_index", "positions")
    handles_masks = True

    def convert_parts(self, r: L.Reader, call: L.LayerCall) -> str:
        tokens = convert_keras_hub_sublayer(
            r, call, call.layer.token_embedding, call.arguments["inputs"]
        )
        token_mask, layer = r.mask, call.layer.position_embedding
        more = {**call.arguments, "inputs": tokens}
        position_name = r.make_unique(f"{call.name}/{layer.name}")
        shape = tokens.shape
        inner = L.LayerCall(layer, position_name, [tokens.name], [shape], shape, more)
        places = L.CallValue(r.convert_inner_layer(layer, inner), shape)
        r.mask = token_mask
        return add_sum_layer(r, call.name, tokens, places).name


# ---- transformers


class CachedMultiHeadAttention(HubLayer):
    """MultiHeadAttention without a cache; it ignores masks attached to tensors."""

    op = "cached_multi_head_attention"
    path = "keras_hub.layers.CachedMultiHeadAttention"
    call_arguments: ClassVar[tuple[str, ...]] = ("query", "value", "key", "attention_mask")
    handles_masks = True

    def convert_parts(self, r: L.Reader, call: L.LayerCall) -> str:
        query, value = call.arguments["query"], call.arguments["value"]
        key = call.arguments.get("key") or value
        r.mask = query.mask
        return convert_multi_head_attention(
            r, call, query, key, value, [call.arguments.get("attention_mask")], False
        )


def _convert_keras_hub_attention(
    r: L.Reader,
    call: L.LayerCall,
    layer: Any,
    query: L.CallValue,
    value: L.CallValue,
    masks: Sequence[Any],
    causal: bool = False,
    rows: str = "",
) -> L.CallValue:
    """Convert an inner attention layer."""
    inner_call = replace(
        call, layer=layer, name=r.make_unique(f"{call.name}/{layer.name}"), shape=query.shape
    )
    return L.CallValue(
        convert_multi_head_attention(r, inner_call, query, value, value, [*masks], causal, rows),
        query.shape,
    )


def _merge_keras_hub_masks(r: L.Reader, value: L.CallValue, padding: Any, mask: Any) -> list[Any]:
    """Merge masks as keras-hub does: a mask argument replaces the tensor's mask."""
    return [
        convert_attention_key_mask(r, value.mask if padding is None else padding, value.shape[0]),
        mask,
    ]


class TransformerEncoder(HubLayer):
    """Self-attention of a sequence and two dense layers, each with a norm and a residual."""

    op = "transformer_encoder"
    path = "keras_hub.layers.TransformerEncoder"
    call_arguments: ClassVar[tuple[str, ...]] = ("inputs", "padding_mask", "attention_mask")
    handles_masks = True

    def convert_parts(self, r: L.Reader, call: L.LayerCall) -> str:
        layer, x, arguments = call.layer, call.arguments["inputs"], call.arguments
        masks = _merge_keras_hub_masks(
            r, x, arguments.get("padding_mask"), arguments.get("attention_mask")
        )
        # (its MultiHeadAttention also applies the tensor's own mask)
        masks.append(convert_attention_key_mask(r, x.mask, x.shape[0]))
        y, attention, norm = x, layer._self_attention_layer, layer._self_attention_layer_norm
        if layer.normalize_first:
            y = convert_keras_hub_sublayer(r, call, norm, x)
        elif x.mask:
            r.unmasked.add(x.name)
        y = _convert_keras_hub_attention(r, call, attention, y, y, masks, rows=x.mask)
        y = add_sum_layer(r, r.make_unique(f"{call.name}/self_attention_add"), y, x)
        y = y if layer.normalize_first else convert_keras_hub_sublayer(r, call, norm, y)
        r.mask = x.mask
        return _convert_transformer_feedforward(r, call, y)


def _convert_transformer_feedforward(r: L.Reader, call: L.LayerCall, x: L.CallValue) -> str:
    """Convert the dense layers at the end of an encoder or a decoder."""
    layer, first = call.layer, call.layer.normalize_first
    y = convert_keras_hub_sublayer(r, call, layer._feedforward_layer_norm, x) if first else x
    y = convert_keras_hub_sublayer(r, call, layer._feedforward_intermediate_dense, y)
    y = convert_keras_hub_sublayer(r, call, layer._feedforward_output_dense, y)
    if first:
        return add_sum_layer(r, call.name, y, x).name
    y = add_sum_layer(r, r.make_unique(f"{call.name}/feedforward_add"), y, x)
    return convert_keras_hub_sublayer(r, call, layer._feedforward_layer_norm, y, call.name).name


class TransformerDecoder(HubLayer):
    """Causal self-attention, and attention to another sequence; without a cache."""

    op = "transformer_decoder"
    path = "keras_hub.layers.TransformerDecoder"
    call_arguments: ClassVar[tuple[str, ...]] = (
        *("decoder_sequence", "encoder_sequence", "use_causal_mask"),
        *("decoder_padding_mask", "decoder_attention_mask"),
        *("encoder_padding_mask", "encoder_attention_mask"),
    )
    handles_masks = True

    def convert_parts(self, r: L.Reader, call: L.LayerCall) -> str:
        layer, arguments = call.layer, call.arguments
        x, other = arguments["decoder_sequence"], arguments.get("encoder_sequence")
        masks = (arguments.get(f"decoder_{kind}_mask") for kind in ("padding", "attention"))
        causal = bool(arguments.get("use_causal_mask", True))
        first, norm = layer.normalize_first, layer._self_attention_layer_norm
        y = convert_keras_hub_sublayer(r, call, norm, x) if first else x
        over = _merge_keras_hub_masks(r, x, *masks)
        y = _convert_keras_hub_attention(r, call, layer._self_attention_layer, y, y, over, causal)
        y = add_sum_layer(r, r.make_unique(f"{call.name}/self_attention_add"), y, x)
        y = y if first else convert_keras_hub_sublayer(r, call, norm, y)
        if other is not None:
            masks = (arguments.get(f"encoder_{kind}_mask") for kind in ("padding", "attention"))
            over, before = _merge_keras_hub_masks(r, other, *masks), y
            norm = layer._cross_attention_layer_norm
            y = convert_keras_hub_sublayer(r, call, norm, y) if first else y
            y = _convert_keras_hub_attention(r, call, layer._cross_attention_layer, y, other, over)
            y = add_sum_layer(r, r.make_unique(f"{call.name}/cross_attention_add"), y, before)
            y = y if first else convert_keras_hub_sublayer(r, call, norm, y)
        r.mask = x.mask
        return _convert_transformer_feedforward(r, call, y)


# ---- vision models


class Mlp(HubLayer):
    """Two dense layers."""

    op = "vit_mlp"
    path = "keras_hub.src.models.vit.vit_layers.MLP"
    call_arguments: ClassVar[tuple[str, ...]] = ("inputs",)

    def convert_parts(self, r: L.Reader, call: L.LayerCall) -> str:
        y = convert_keras_hub_sublayer(r, call, call.layer.dense_1, call.arguments["inputs"])
        return convert_keras_hub_sublayer(r, call, call.layer.dense_2, y, call.name).name


class PatchingAndEmbedding(HubLayer):
    """Patches of an image as rows, after a class token, plus position embeddings."""

    op = "vit_patching_and_embedding"
    path = "keras_hub.src.models.vit.vit_layers.ViTPatchingAndEmbedding"
    call_arguments: ClassVar[tuple[str, ...]] = ("inputs",)

    def convert_parts(self, r: L.Reader, call: L.LayerCall) -> str:
        layer, name, wide = call.layer, call.name, call.layer.hidden_dim
        image = convert_keras_hub_sublayer(r, call, layer.patch_embedding, call.arguments["inputs"])
        value = image.name
        if layer.data_format == "channels_first":
            value = L.add_transpose_layer(r, value, f"{name}/channels_last", [2, 3, 1])
        rows = L.add_reshape_layer(r, value, f"{name}/rows", (layer.num_patches, wide))
        if layer.use_class_token:
            token = {"bias": _keras_hub_array(r, layer.class_token)[0]}
            class_token = r.add_layer(
                r.make_unique(f"{name}/class_token"), "constant", [rows], token
            )
            rows = r.add_layer(
                r.make_unique(f"{name}/tokens"), "concat", [class_token, rows], None, axis=1
            )
        shape: Shape = (layer.num_positions, wide)
        ids = _keras_hub_array(r, layer.position_ids).astype(np.int64)[0]
        table = {"bias": _keras_hub_array(r, layer.position_embedding.embeddings)[ids]}
        places = r.add_layer(r.make_unique(f"{name}/position_embedding"), "constant", [rows], table)
        return add_sum_layer(r, name, L.CallValue(rows, shape), L.CallValue(places, shape)).name


class EncoderBlock(HubLayer):
    """Attention and dense layers, each after a norm and with a residual."""

    op = "vit_encoder_block"
    path = "keras_hub.src.models.vit.vit_layers.ViTEncoderBlock"
    call_arguments: ClassVar[tuple[str, ...]] = ("inputs",)

    def convert_parts(self, r: L.Reader, call: L.LayerCall) -> str:
        layer, x = call.layer, call.arguments["inputs"]
        y = convert_keras_hub_sublayer(r, call, layer.layer_norm_1, x)
        y = _convert_keras_hub_attention(r, call, layer.mha, y, y, ())
        x = add_sum_layer(r, r.make_unique(f"{call.name}/attention_add"), y, x)
        y = convert_keras_hub_sublayer(
            r,
            call,
            layer.mlp,
            convert_keras_hub_sublayer(r, call, layer.layer_norm_2, x),
            same=True,
        )
        return add_sum_layer(r, call.name, x, y).name


class Encoder(HubLayer):
    """Encoder blocks, and a norm."""

    op = "vit_encoder"
    path = "keras_hub.src.models.vit.vit_layers.ViTEncoder"
    call_arguments: ClassVar[tuple[str, ...]] = ("inputs",)

    def convert_parts(self, r: L.Reader, call: L.LayerCall) -> str:
        x = call.arguments["inputs"]
        for block in call.layer.encoder_layers:
            x = convert_keras_hub_sublayer(r, call, block, x, same=True)
        return convert_keras_hub_sublayer(r, call, call.layer.layer_norm, x, call.name).name


class GeluApproximate(ComposedLayer):
    """Keras' gelu with approximate=True, as a function of keras-hub."""

    op = "gelu_approximate"

    def find_keras_functions(self, keras: Any) -> dict[Any, str]:
        gelu_approximate = _find_keras_hub_object(
            "keras_hub.src.utils.keras_utils.gelu_approximate"
        )
        return {gelu_approximate: self.op} if gelu_approximate is not None else {}

    def convert_activation(
        self, r: L.Reader, value: str, name: str, function: str, arguments: Options
    ) -> str:
        keras_gelu = functools.partial(r.keras.activations.gelu, approximate=True)
        return r.add_activation(keras_gelu, value, name)

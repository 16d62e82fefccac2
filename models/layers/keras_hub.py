"""Layers of keras-hub that are made of others: read from these, as their `call` puts them together.

The package is never imported: its classes are there if the model is of it.  What a newer version
computes otherwise is found out where a model is compared with Keras.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from tfe_bench.models.kinds.layer import Options, Shape
from tfe_bench.models.kinds.reading import Call, Given, Reader, Unfit
from tfe_bench.models.kinds.turning import reshaped, turned
from tfe_bench.models.layers import embedding
from tfe_bench.models.layers.identity import Composed, Untrained
from tfe_bench.models.layers.multi_head_attention import attended, of_keys


def _found(path: str) -> Any:
    """A class or function of keras-hub, None where its module is not imported."""
    module, _, name = path.rpartition(".")
    return getattr(sys.modules.get(module), name, None)


class Hub(Untrained):
    """A layer of keras-hub.

    Attributes:
        path: of its class.
    """

    path: ClassVar[str]

    def classes(self, keras: Any) -> list[type]:
        found = _found(self.path)
        return [found] if isinstance(found, type) else []

    def composed(self, r: Reader, call: Call) -> str:
        try:
            return self.parts(r, call)
        except AttributeError as error:
            raise Unfit(f"of a keras-hub that is not known here: {error}") from None

    def parts(self, r: Reader, call: Call) -> str:
        """Writes the layers that it is made of."""
        raise NotImplementedError


def part(
    r: Reader, call: Call, layer: Any, given: Given, name: str = "", same: bool = False
) -> Given:
    """Writes a layer of another one, of one value.

    Args:
        same: whether the shape stays, which not every layer tells.
    """
    own = given.shape if same else layer.compute_output_shape((None, *given.shape))[1:]
    shape = tuple(int(n) for n in own)
    name = name or r.unique(f"{call.name}/{layer.name}")
    inner = Call(layer, name, [given.name], [given.shape], shape, {"inputs": given})
    return Given(r.within(layer, inner), shape)


def added(r: Reader, name: str, x: Given, y: Given) -> Given:
    """x + y."""
    return Given(r.emit(name, "add", [x.name, y.name]), x.shape)


# ---- embeddings


class ReversibleEmbedding(embedding.ReversibleEmbedding):
    """Keras' own, under another name."""

    op = "hub_reversible_embedding"
    keras: ClassVar[tuple[str, ...]] = ()

    def classes(self, keras: Any) -> list[type]:
        found = _found("keras_hub.layers.ReversibleEmbedding")
        return [found] if isinstance(found, type) else []


class PositionEmbedding(Hub):
    """Rows of a table for the places of a sequence: weights, whatever stands there."""

    op = "position_embedding"
    path = "keras_hub.layers.PositionEmbedding"
    arguments: ClassVar[tuple[str, ...]] = ("inputs", "start_index", "positions")
    masks = True

    def parts(self, r: Reader, call: Call) -> str:
        given = call.arguments["inputs"]
        more = {k: v for k, v in call.arguments.items() if k not in ("inputs", "training")}
        if any(isinstance(v, Given) for v in more.values()):
            raise Unfit(f"called with private {', '.join(more)}")
        try:
            rows = call.layer(np.zeros((1, *given.shape), np.float32), **more)
        except Exception as error:  # whatever Keras raises where there are fewer places
            raise Unfit(f"of {given.shape[0]} places: {type(error).__name__}") from None
        return r.emit(call.name, "constant", [given.name], {"bias": _numbers(r, rows)[0]})


class SinePositionEncoding(PositionEmbedding):
    """Sines and cosines of the places."""

    op = "sine_position_encoding"
    path = "keras_hub.layers.SinePositionEncoding"


def _numbers(r: Reader, value: Any) -> Any:
    return np.asarray(r.keras.ops.convert_to_numpy(r.keras.ops.cast(value, "float32")))


class TokenAndPositionEmbedding(Hub):
    """Rows of a table for private numbers, and for their places."""

    op = "token_and_position_embedding"
    path = "keras_hub.layers.TokenAndPositionEmbedding"
    arguments: ClassVar[tuple[str, ...]] = ("inputs", "start_index", "positions")
    masks = True

    def parts(self, r: Reader, call: Call) -> str:
        tokens = part(r, call, call.layer.token_embedding, call.arguments["inputs"])
        of, layer = r.mask, call.layer.position_embedding
        more = {**call.arguments, "inputs": tokens}
        own = r.unique(f"{call.name}/{layer.name}")
        shape = tokens.shape
        inner = Call(layer, own, [tokens.name], [shape], shape, more)
        places = Given(r.within(layer, inner), shape)
        r.mask = of
        return added(r, call.name, tokens, places).name


# ---- transformers


class CachedMultiHeadAttention(Hub):
    """MultiHeadAttention without a cache; it takes no notice of masks that come with tensors."""

    op = "cached_multi_head_attention"
    path = "keras_hub.layers.CachedMultiHeadAttention"
    arguments: ClassVar[tuple[str, ...]] = ("query", "value", "key", "attention_mask")
    masks = True

    def parts(self, r: Reader, call: Call) -> str:
        query, value = call.arguments["query"], call.arguments["value"]
        key = call.arguments.get("key") or value
        r.mask = query.mask
        return attended(r, call, query, key, value, [call.arguments.get("attention_mask")], False)


def _attends(
    r: Reader,
    call: Call,
    layer: Any,
    query: Given,
    value: Given,
    over: Sequence[Any],
    causal: bool = False,
    rows: str = "",
) -> Given:
    """Writes an attention that a layer has."""
    own = replace(call, layer=layer, name=r.unique(f"{call.name}/{layer.name}"), shape=query.shape)
    return Given(attended(r, own, query, value, value, [*over], causal, rows), query.shape)


def _merged(r: Reader, given: Given, padding: Any, mask: Any) -> list[Any]:
    """merge_padding_and_attention_mask: a mask of keys as an argument counts for the tensor's."""
    return [of_keys(r, given.mask if padding is None else padding, given.shape[0]), mask]


class TransformerEncoder(Hub):
    """Attention of a sequence to itself and two dense layers, each with a norm and a residual."""

    op = "transformer_encoder"
    path = "keras_hub.layers.TransformerEncoder"
    arguments: ClassVar[tuple[str, ...]] = ("inputs", "padding_mask", "attention_mask")
    masks = True

    def parts(self, r: Reader, call: Call) -> str:
        layer, x, given = call.layer, call.arguments["inputs"], call.arguments
        over = _merged(r, x, given.get("padding_mask"), given.get("attention_mask"))
        # (its MultiHeadAttention takes notice of the tensor's own mask too)
        over.append(of_keys(r, x.mask, x.shape[0]))
        y, attention, norm = x, layer._self_attention_layer, layer._self_attention_layer_norm
        if layer.normalize_first:
            y = part(r, call, norm, x)
        elif x.mask:
            r.unmasked.add(x.name)
        y = _attends(r, call, attention, y, y, over, rows=x.mask)
        y = added(r, r.unique(f"{call.name}/self_attention_add"), y, x)
        y = y if layer.normalize_first else part(r, call, norm, y)
        r.mask = x.mask
        return _feedforward(r, call, y)


def _feedforward(r: Reader, call: Call, x: Given) -> str:
    """The dense layers that end an encoder or a decoder."""
    layer, first = call.layer, call.layer.normalize_first
    y = part(r, call, layer._feedforward_layer_norm, x) if first else x
    y = part(r, call, layer._feedforward_intermediate_dense, y)
    y = part(r, call, layer._feedforward_output_dense, y)
    if first:
        return added(r, call.name, y, x).name
    y = added(r, r.unique(f"{call.name}/feedforward_add"), y, x)
    return part(r, call, layer._feedforward_layer_norm, y, call.name).name


class TransformerDecoder(Hub):
    """The same after those before, and attention to another sequence; without a cache."""

    op = "transformer_decoder"
    path = "keras_hub.layers.TransformerDecoder"
    arguments: ClassVar[tuple[str, ...]] = (
        *("decoder_sequence", "encoder_sequence", "use_causal_mask"),
        *("decoder_padding_mask", "decoder_attention_mask"),
        *("encoder_padding_mask", "encoder_attention_mask"),
    )
    masks = True

    def parts(self, r: Reader, call: Call) -> str:
        layer, given = call.layer, call.arguments
        x, other = given["decoder_sequence"], given.get("encoder_sequence")
        masks = (given.get(f"decoder_{kind}_mask") for kind in ("padding", "attention"))
        causal = bool(given.get("use_causal_mask", True))
        first, norm = layer.normalize_first, layer._self_attention_layer_norm
        y = part(r, call, norm, x) if first else x
        over = _merged(r, x, *masks)
        y = _attends(r, call, layer._self_attention_layer, y, y, over, causal)
        y = added(r, r.unique(f"{call.name}/self_attention_add"), y, x)
        y = y if first else part(r, call, norm, y)
        if other is not None:
            masks = (given.get(f"encoder_{kind}_mask") for kind in ("padding", "attention"))
            over, before = _merged(r, other, *masks), y
            norm = layer._cross_attention_layer_norm
            y = part(r, call, norm, y) if first else y
            y = _attends(r, call, layer._cross_attention_layer, y, other, over)
            y = added(r, r.unique(f"{call.name}/cross_attention_add"), y, before)
            y = y if first else part(r, call, norm, y)
        r.mask = x.mask
        return _feedforward(r, call, y)


# ---- of images


class Mlp(Hub):
    """Two dense layers."""

    op = "vit_mlp"
    path = "keras_hub.src.models.vit.vit_layers.MLP"
    arguments: ClassVar[tuple[str, ...]] = ("inputs",)

    def parts(self, r: Reader, call: Call) -> str:
        y = part(r, call, call.layer.dense_1, call.arguments["inputs"])
        return part(r, call, call.layer.dense_2, y, call.name).name


class PatchingAndEmbedding(Hub):
    """Patches of an image as rows, a class token before them, and their places' rows."""

    op = "vit_patching_and_embedding"
    path = "keras_hub.src.models.vit.vit_layers.ViTPatchingAndEmbedding"
    arguments: ClassVar[tuple[str, ...]] = ("inputs",)

    def parts(self, r: Reader, call: Call) -> str:
        layer, name, wide = call.layer, call.name, call.layer.hidden_dim
        image = part(r, call, layer.patch_embedding, call.arguments["inputs"])
        value = image.name
        if layer.data_format == "channels_first":
            value = turned(r, value, f"{name}/channels_last", [2, 3, 1])
        rows = reshaped(r, value, f"{name}/rows", (layer.num_patches, wide))
        if layer.use_class_token:
            token = {"bias": _numbers(r, layer.class_token)[0]}
            own = r.emit(r.unique(f"{name}/class_token"), "constant", [rows], token)
            rows = r.emit(r.unique(f"{name}/tokens"), "concat", [own, rows], None, axis=1)
        shape: Shape = (layer.num_positions, wide)
        ids = _numbers(r, layer.position_ids).astype(np.int64)[0]
        table = {"bias": _numbers(r, layer.position_embedding.embeddings)[ids]}
        places = r.emit(r.unique(f"{name}/position_embedding"), "constant", [rows], table)
        return added(r, name, Given(rows, shape), Given(places, shape)).name


class EncoderBlock(Hub):
    """Attention and dense layers, each behind a norm and with a residual."""

    op = "vit_encoder_block"
    path = "keras_hub.src.models.vit.vit_layers.ViTEncoderBlock"
    arguments: ClassVar[tuple[str, ...]] = ("inputs",)

    def parts(self, r: Reader, call: Call) -> str:
        layer, x = call.layer, call.arguments["inputs"]
        y = part(r, call, layer.layer_norm_1, x)
        y = _attends(r, call, layer.mha, y, y, ())
        x = added(r, r.unique(f"{call.name}/attention_add"), y, x)
        y = part(r, call, layer.mlp, part(r, call, layer.layer_norm_2, x), same=True)
        return added(r, call.name, x, y).name


class Encoder(Hub):
    """Such blocks, and a norm."""

    op = "vit_encoder"
    path = "keras_hub.src.models.vit.vit_layers.ViTEncoder"
    arguments: ClassVar[tuple[str, ...]] = ("inputs",)

    def parts(self, r: Reader, call: Call) -> str:
        x = call.arguments["inputs"]
        for block in call.layer.encoder_layers:
            x = part(r, call, block, x, same=True)
        return part(r, call, call.layer.layer_norm, x, call.name).name


class GeluApproximate(Composed):
    """Keras' gelu with approximate=True, as a function of keras-hub."""

    op = "gelu_approximate"

    def callables(self, keras: Any) -> dict[Any, str]:
        found = _found("keras_hub.src.utils.keras_utils.gelu_approximate")
        return {found: self.op} if found is not None else {}

    def activate(self, r: Reader, value: str, name: str, function: str, given: Options) -> str:
        own = functools.partial(r.keras.activations.gelu, approximate=True)
        return r.activate(own, value, name)

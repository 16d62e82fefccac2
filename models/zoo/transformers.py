"""BERT and ViT in their published sizes, from `keras.layers`, with seeded weights.

BERT: Devlin et al., NAACL 2019; bert-tiny: Turc et al., 2019.  ViT-B/16: Dosovitskiy et al., ICLR
2021.  Rows of positions and a class token are constants in the model's graph: they convert to
weights like others.  The weights are random, with a property of trained ones: the norms' gammas are
eight times as large in a few channels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

# BERT's uncased English vocabulary: its size, and the tokens that begin and end a sentence.
VOCABULARY, BEGIN, END = 30_522, 101, 102
_WORDS = 1_000  # numbers below are not words
MAX_TOKENS = 512
CLASSES = 1000
_SIDE, _PATCH = 224, 16
_OUTLIER = 8.0
# Gains of queries and keys, and of attention outputs, so that a text's tokens affect its logits.
_QUERY_GAIN, _VALUE_GAIN = 1.4, 2.0


@dataclass(frozen=True)
class TransformerSize:
    """Sizes of a transformer.

    Attributes:
        parameters: number of parameters with all positions and a head of CLASSES.
        is_text: whether it takes tokens instead of pictures.
    """

    title: str
    parameters: int
    layers: int
    width: int
    heads: int
    is_text: bool


SIZES = {
    "bert-tiny": TransformerSize("BERT-tiny", 4_514_920, 2, 128, 2, True),
    "bert-base": TransformerSize("BERT-base", 110_251_240, 12, 768, 12, True),
    "vit-b16": TransformerSize("ViT-B/16", 86_567_656, 12, 768, 12, False),
}


def build_transformer(name: str, tokens: int, seed: int = 1) -> Any:
    """Build the Keras model of a name, with the same weights for the same seed.

    Args:
        tokens: length of its texts.
    """
    size = SIZES[name]
    return _build_bert(name, size, tokens, seed) if size.is_text else _build_vit(name, size, seed)


def generate_token_sentences(tokens: int, seed: int = 1, count: int = 4) -> dict[str, Any]:
    """Generate public texts: pairs of sentences of common and rare words, the last one padded."""
    rng = np.random.default_rng([seed, 24])
    arrays = np.zeros((3, count, tokens), np.int32)
    for ids, segments, mask in zip(*arrays, strict=True):
        length = int(rng.integers(max(1, tokens // 2), tokens + 1))
        words = _WORDS + rng.zipf(1.2, length) % (VOCABULARY - _WORDS)
        words[[length // 2, -1]], words[0] = END, BEGIN
        ids[:length], mask[:length], segments[length // 2 + 1 : length] = words, 1, 1
    return dict(zip(("token_ids", "segment_ids", "padding_mask"), arrays, strict=True))


def _build_bert(name: str, size: TransformerSize, tokens: int, seed: int) -> Any:
    import keras

    kinds = keras.layers
    ids, segments, mask = (
        keras.Input((tokens,), dtype="int32", name=input_name)
        for input_name in ("token_ids", "segment_ids", "padding_mask")
    )
    words = kinds.Embedding(VOCABULARY, size.width, name="token_embedding")(ids)
    kind = kinds.Embedding(2, size.width, name="segment_embedding")(segments)
    x = (
        kinds.Add(name="embeddings")([words, kind])
        + _position_embedding_table(MAX_TOKENS, size.width, seed)[:tokens]
    )
    x = kinds.LayerNormalization(epsilon=1e-12, name="embeddings_norm")(x)
    for i in range(size.layers):
        attention = kinds.MultiHeadAttention(
            size.heads, size.width // size.heads, name=f"attend{i}"
        )
        y = attention(x, x, attention_mask=mask[:, None, :])
        x = kinds.LayerNormalization(epsilon=1e-12, name=f"attend{i}_norm")(kinds.Add()([x, y]))
        y = kinds.Dense(4 * size.width, "gelu", name=f"wide{i}")(x)
        y = kinds.Dense(size.width, name=f"narrow{i}")(y)
        x = kinds.LayerNormalization(epsilon=1e-12, name=f"narrow{i}_norm")(kinds.Add()([x, y]))
    pooled = kinds.Dense(size.width, "tanh", name="pooled")(x[:, 0])
    inputs = {"token_ids": ids, "segment_ids": segments, "padding_mask": mask}
    model = keras.Model(
        inputs, kinds.Dense(CLASSES, name="logits")(pooled), name=_keras_layer_name(name)
    )
    _fill_transformer_weights(model, size, seed)
    return model


def _build_vit(name: str, size: TransformerSize, seed: int) -> Any:
    import keras

    kinds, places = keras.layers, (_SIDE // _PATCH) ** 2
    images = keras.Input((_SIDE, _SIDE, 3), name="images")
    x = kinds.Conv2D(size.width, _PATCH, _PATCH, name="patches")(images)
    x = kinds.ZeroPadding1D((1, 0))(kinds.Reshape((places, size.width))(x))
    x = x + _position_embedding_table(places + 1, size.width, seed)  # the first is the class token
    for i in range(size.layers):
        y = kinds.LayerNormalization(epsilon=1e-6, name=f"attend{i}_norm")(x)
        attention = kinds.MultiHeadAttention(
            size.heads, size.width // size.heads, name=f"attend{i}"
        )
        x = kinds.Add()([x, attention(y, y)])
        y = kinds.LayerNormalization(epsilon=1e-6, name=f"wide{i}_norm")(x)
        y = kinds.Dense(4 * size.width, "gelu", name=f"wide{i}")(y)
        x = kinds.Add()([x, kinds.Dense(size.width, name=f"narrow{i}")(y)])
    x = kinds.LayerNormalization(epsilon=1e-6, name="norm")(x)[:, 0]
    model = keras.Model(
        images, kinds.Dense(CLASSES, name="logits")(x), name=_keras_layer_name(name)
    )
    _fill_transformer_weights(model, size, seed)
    return model


def _keras_layer_name(name: str) -> str:
    return name.replace("-", "_")


def _position_embedding_table(count: int, width: int, seed: int) -> Any:
    return np.random.default_rng([seed, 25]).normal(0, 0.5, (count, width)).astype(np.float32)


def _fill_transformer_weights(model: Any, size: TransformerSize, seed: int) -> None:
    """Set random weights: kernels preserve the magnitude of their inputs.

    Each norm has outliers in its own channels, 1 in 128; queries and keys weight those less, as
    trained ones do.
    """
    rng = np.random.default_rng([seed, 23])
    outliers = np.zeros(0, int)
    for layer in model.layers:
        for variable in layer.weights:
            shape = tuple(variable.shape)
            drawn = rng.standard_normal(shape, np.float32)
            if variable.name == "kernel":
                # a head's query, key and value sum over the first axis alone
                apart = len(shape) == 3 and "attention_output" not in variable.path
                drawn /= np.sqrt(shape[0] if apart else np.prod(shape[:-1]))
                if apart and "/value/" not in variable.path:
                    drawn *= _QUERY_GAIN
                    drawn[outliers] /= _OUTLIER
                elif "attention_output" in variable.path:
                    drawn *= _VALUE_GAIN
            elif variable.name in ("gamma", "beta", "bias"):
                drawn *= 0.1
            if variable.name == "gamma":
                drawn += 1
                outliers = rng.choice(size.width, max(1, size.width // 128), replace=False)
                drawn[outliers] *= _OUTLIER
            variable.assign(drawn)

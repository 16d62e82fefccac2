"""Language models of keras.layers: GPT-2's architecture with seeded weights, and a tiny one.

Blocks are those of GPT-2 (Radford et al., 2019): a norm before each of attention and two dense
layers with GELU, whose sums are added to what came, and one table for tokens and logits.  Weights
are scaled so that logits have the spread of a trained model's, and the two best are apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tfe_bench.errors import UsageError, unknown_name

_LOGIT_SPREAD = 3.0
_TABLE, _POSITIONS = 0.1, 0.2


@dataclass(frozen=True)
class LanguageModelEntry:
    """One language model.

    Attributes:
        name: on the command line.
        title: in tables.
        blocks, width, heads: of its layers.
        vocabulary: how many tokens there are.
        context: the most positions.
    """

    name: str
    title: str
    blocks: int
    width: int
    heads: int
    vocabulary: int
    context: int


_TEXTS = {
    x.name: x
    for x in (
        LanguageModelEntry("gpt2", "GPT-2", 12, 768, 12, 50257, 1024),
        LanguageModelEntry("gpt2-tiny", "tiny GPT", 2, 32, 2, 97, 128),
    )
}


def list_language_models() -> tuple[str, ...]:
    """All language models."""
    return tuple(_TEXTS)


def find_language_model(name: str) -> LanguageModelEntry:
    """The language model of a name.

    Raises:
        UsageError: there is none.
    """
    if name not in _TEXTS:
        raise unknown_name(f"The zoo has no language model {name!r}.", name, _TEXTS)
    return _TEXTS[name]


def build_language_model(name: str, length: int, seed: int = 1) -> Any:
    """The Keras model of a language model for texts of a length, [length] -> [length, vocabulary].

    Raises:
        UsageError: there is none, or it has fewer positions.
    """
    import keras

    entry, layers = find_language_model(name), keras.layers
    if type(length) is not int or not 2 <= length <= entry.context:
        raise UsageError(f"{name} takes texts of 2 to {entry.context} tokens. Received: {length}.")
    rng, width = np.random.default_rng([seed, 22]), entry.width
    tokens = keras.Input((length,), dtype="int32", name="tokens")
    table = layers.ReversibleEmbedding(entry.vocabulary, width)
    x = table(tokens)
    places = rng.normal(0, _POSITIONS, (entry.context, width))[:length].astype(np.float32)
    x = keras.ops.add(x, places[None])
    for _ in range(entry.blocks):
        y = layers.LayerNormalization(epsilon=1e-5)(x)
        y = layers.MultiHeadAttention(entry.heads, width // entry.heads)(y, y, use_causal_mask=True)
        x = layers.Add()([x, y])
        y = layers.LayerNormalization(epsilon=1e-5)(x)
        y = keras.ops.gelu(layers.Dense(4 * width)(y), approximate=True)
        y = layers.Dense(width)(y)
        x = layers.Add()([x, y])
    norm = layers.LayerNormalization(epsilon=1e-5)
    logits = table(norm(x), reverse=True)
    model = keras.Model(tokens, logits, name=name.replace("-", "_"))
    for variable in model.weights:
        if len(variable.shape) > 1:
            variable.assign(
                rng.standard_normal(variable.shape, np.float32) * _kernel_deviation(variable)
            )
    # (logits are sums over the width of what the norm gives times rows of the table)
    norm.gamma.assign(np.full(width, _LOGIT_SPREAD / (_TABLE * width**0.5), np.float32))
    return model


def _kernel_deviation(variable: Any) -> np.float32:
    """Of a kernel's weights: its sums are as large as what it takes."""
    if variable.name == "embeddings":
        return np.float32(_TABLE)
    shape = variable.shape
    heads = len(shape) == 3 and "attention_output" in variable.path
    return np.float32(float(np.prod(shape[: 2 if heads else 1])) ** -0.5)


def generate_texts(name: str, length: int, seed: int = 1, count: int = 2) -> Any:
    """Made-up public texts, int64 [count, length], from which ranges are taken."""
    rng = np.random.default_rng([seed, 23])
    return rng.integers(0, find_language_model(name).vocabulary, (count, length))

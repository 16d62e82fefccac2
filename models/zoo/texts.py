"""Language models of keras.layers: GPT-2's architecture with seeded weights, and a tiny one.

Blocks are those of GPT-2 (Radford et al., 2019).  A norm precedes attention and the two dense
layers with GELU; residual connections add their inputs.  One table serves tokens and logits.
Weights are scaled so that logits have the spread of a trained model's, and the two largest are
apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tfe_bench.errors import UsageError, unknown_name_error

_LOGIT_SPREAD = 3.0
_TABLE, _POSITIONS = 0.1, 0.2


@dataclass(frozen=True)
class LanguageModelEntry:
    """One language model.

    Attributes:
        name: name on the command line.
        title: name in tables.
        blocks, width, heads: sizes of its layers.
        vocabulary: number of tokens.
        context: largest number of positions.
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
    """Return the names of all language models."""
    return tuple(_TEXTS)


def find_language_model(name: str) -> LanguageModelEntry:
    """Return the language model of a name.

    Raises:
        UsageError: there is no such model.
    """
    if name not in _TEXTS:
        raise unknown_name_error(
            f"The zoo has no language model {name!r}.", name, _TEXTS, operation="zoo"
        )
    return _TEXTS[name]


def build_language_model(name: str, length: int, seed: int = 1) -> Any:
    """Build the Keras model of a language model, [length] -> [length, vocabulary].

    Raises:
        UsageError: there is no such model, or it has fewer positions.
    """
    import keras

    entry, layers = find_language_model(name), keras.layers
    if type(length) is not int or not 2 <= length <= entry.context:
        raise UsageError(
            f"Expected texts of 2 to {entry.context} tokens for {name}. Received: {length}.",
            code="number-out-of-range",
            operation="length",
            received=length,
            expected=entry.context,
        )
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
                rng.standard_normal(variable.shape, np.float32) * _kernel_weight_deviation(variable)
            )
    # logits are sums over the width of the norm's outputs times rows of the table
    norm.gamma.assign(np.full(width, _LOGIT_SPREAD / (_TABLE * width**0.5), np.float32))
    return model


def _kernel_weight_deviation(variable: Any) -> np.float32:
    """Return the deviation of a kernel's weights that keeps sums as large as the inputs."""
    if variable.name == "embeddings":
        return np.float32(_TABLE)
    shape = variable.shape
    heads = len(shape) == 3 and "attention_output" in variable.path
    return np.float32(float(np.prod(shape[: 2 if heads else 1])) ** -0.5)


def generate_texts(name: str, length: int, seed: int = 1, count: int = 2) -> Any:
    """Generate public texts, int64 [count, length], from which ranges are derived."""
    rng = np.random.default_rng([seed, 23])
    return rng.integers(0, find_language_model(name).vocabulary, (count, length))

"""Models of keras-hub convert unchanged, and its layers by themselves."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.models.test_norm_ranges import run_plan
from tests.refusals import Matching, raises
from tfe_bench.__main__ import main
from tfe_bench.errors import UsageError
from tfe_bench.models.inference import weights
from tfe_bench.models.inference.private import convert

keras: Any = pytest.importorskip("keras")
hub: Any = pytest.importorskip("keras_hub")
L: Any = keras.layers
H: Any = hub.layers
M: Any = hub.models
WORDS, STEPS, WIDTH = 50, 6, 8


def text_model(kind: Any, layers: int = 2, wide: int = 32) -> Any:
    sizes = {"num_layers": layers, "hidden_dim": wide, "intermediate_dim": 2 * wide}
    return kind(vocabulary_size=WORDS, num_heads=4, max_sequence_length=16, **sizes)


def picture_model(**named: Any) -> Any:
    sizes = {"num_layers": 2, "hidden_dim": 32, "mlp_dim": 64, "num_heads": 4}
    return M.ViTBackbone(image_shape=(32, 32, 3), patch_size=16, **sizes, **named)


MODELS: dict[str, Callable[[], Any]] = {
    "BERT": lambda: text_model(M.BertBackbone),
    "BERT's classifier": lambda: M.BertTextClassifier(text_model(M.BertBackbone), num_classes=3),
    "DistilBERT": lambda: text_model(M.DistilBertBackbone),
    "DistilBERT's": lambda: M.DistilBertTextClassifier(
        text_model(M.DistilBertBackbone), num_classes=3
    ),
    "RoBERTa": lambda: text_model(M.RobertaBackbone),
    "RoBERTa's": lambda: M.RobertaTextClassifier(text_model(M.RobertaBackbone), num_classes=3),
    "GPT-2": lambda: text_model(M.GPT2Backbone),
    "GPT-2's logits": lambda: M.GPT2CausalLM(text_model(M.GPT2Backbone)),
    "ALBERT, of one block": lambda: M.AlbertBackbone(
        vocabulary_size=WORDS,
        num_layers=2,
        num_heads=4,
        embedding_dim=8,
        hidden_dim=32,
        intermediate_dim=64,
        max_sequence_length=16,
    ),
    "BART": lambda: text_model(M.BartBackbone, 1),
    "ViT": picture_model,
    "ViT without": lambda: picture_model(use_class_token=False, use_patch_bias=False),
    "ViT's": lambda: M.ViTImageClassifier(picture_model(), num_classes=3, pooling="token"),
    "ViT's mean": lambda: M.ViTImageClassifier(picture_model(), num_classes=3, pooling="gap"),
}


def given_to(model: Any, rng: np.random.Generator, steps: int = 12) -> dict[str, Any]:
    lengths = np.array([[steps], [2], [steps - 3]])
    known = {
        "token_ids": rng.integers(0, WORDS, (3, steps)),
        "segment_ids": rng.integers(0, 2, (3, steps)),
        "padding_mask": (np.arange(steps) < lengths).astype(int),
        "images": rng.uniform(0, 1, (3, 32, 32, 3)),
    }
    return {
        tensor.name: known[tensor.name.removeprefix("encoder_").removeprefix("decoder_")]
        for tensor in model.inputs
    }


def shake_weights(model: Any, rng: np.random.Generator) -> Any:
    """Change the weights so that a wrong position shows."""
    for w in model.weights:
        if "kernel" not in w.path:
            w.assign(w + rng.normal(0, 0.2, w.shape))
    return model


def keras_gives(model: Any, arrays: dict[str, Any]) -> list[Any]:
    one = next(iter(arrays.values())) if len(arrays) == 1 else arrays
    return [np.asarray(y) for y in keras.tree.flatten(model(one, training=False))]


@pytest.mark.parametrize("name", MODELS)
def test_models_convert_unchanged(name: str, rng: np.random.Generator) -> None:
    model = shake_weights(MODELS[name](), rng)
    arrays = given_to(model, rng)
    private = convert(model, samples=arrays, length=None if "images" in arrays else 12)
    plain = keras.tree.flatten(private.plain(arrays))
    for got, want in zip(plain, keras_gives(model, arrays), strict=True):
        assert got.shape == want.shape
        assert np.abs(got - want).max() < 1e-4 * max(1, np.abs(want).max())
    assert set(private.graph.masks) == {k for k in arrays if k.endswith("padding_mask")}
    sent = sum(int(np.prod(part.shape)) for part in weights.weight_parts(private.plan))
    # (a bias of two layers is part of two sums)
    assert sent == private.graph.weight_count <= 1.02 * model.count_params()


def test_more_tokens_than_places_are_refused() -> None:
    for make in (M.BertBackbone, M.DistilBertBackbone):
        with raises(UsageError, "unsupported-layer", received=Matching("of 17 places")):
            convert(text_model(make), length=17)
    x = keras.Input((None, 3), name="x")
    model = keras.Model(x, x + L.Cropping1D(2)(L.ZeroPadding1D(2)(x)) * np.ones((1, 5, 1)))
    with raises(UsageError, "shape-mismatch", received=[[4, 3]]):
        convert(model, length=4)


def check_private(model: Any, steps: int, rng: np.random.Generator) -> None:
    """Check an error below 1 % of the logits' deviation."""
    arrays = given_to(shake_weights(model, rng), rng, steps)
    private = convert(model, samples=arrays, length=None if "images" in arrays else steps)
    (want,) = keras_gives(model, arrays)
    value, flags, _ = run_plan(private.plan, arrays)
    assert not flags.any()
    assert np.abs(value - want).max() < max(0.01 * want.std(), 2.0**-9)


def test_logits_of_a_decoder_are_private(rng: np.random.Generator) -> None:
    check_private(M.GPT2CausalLM(text_model(M.GPT2Backbone, 1, 8)), 4, rng)


def written_by(cluster: Any, private: Any, model: Any, prompt: list[int], count: int) -> list[int]:
    """Return a text's tokens, each as likely for Keras as its best, within 0.05 deviations."""
    tokens = cluster.generate(private, prompt, count).tolist()
    text = prompt + tokens
    rows = np.asarray([text + [0] * (STEPS + 4 - len(text))])
    ids = {"token_ids": rows, "padding_mask": np.arange(rows.shape[1])[None] < len(text)}
    logits = np.asarray(model(ids, training=False))[0, len(prompt) - 1 : len(text) - 1]
    chosen = np.take_along_axis(logits, np.array(tokens)[:, None], 1)
    assert (logits.max(1, keepdims=True) - chosen <= 0.05 * logits.std(1, keepdims=True)).all()
    return list(tokens)


def test_a_causal_model_writes_text(cluster: Any, rng: np.random.Generator) -> None:
    """Set the padding mask to 1 at every position; the steps have no such input."""
    model = shake_weights(M.GPT2CausalLM(text_model(M.GPT2Backbone, 1, 8)), rng)
    samples = {
        "token_ids": rng.integers(0, WORDS, (16, STEPS + 4)),
        "padding_mask": np.ones((16, STEPS + 4), bool),
    }
    private = convert(model, samples, length=STEPS + 4)
    assert private.graph.masks == ("padding_mask",)
    prompt = [int(n) for n in rng.integers(0, WORDS, 4)]
    tokens = written_by(cluster, private, model, prompt, 4)
    cluster.deploy(private, "gpt")
    again = written_by(cluster, "gpt", model, prompt, 4)
    assert len(tokens) == len(again) == 4


@pytest.mark.slow
def test_a_saved_model_writes_text_by_command(
    tmp_path: Path, rng: np.random.Generator, capsys: pytest.CaptureFixture[str]
) -> None:
    """Use numbers and texts, with the file and the deployed model, by its own tokenizer."""
    words = {word: i for i, word in enumerate(["<|endoftext|>", "a", "b", "ab", "Ġ", "Ġa", "ba"])}
    tokenizer = hub.tokenizers.GPT2Tokenizer(vocabulary=words, merges=["a b", "Ġ a", "b a"])
    backbone = M.GPT2Backbone(len(words), 1, 2, 8, 16, max_sequence_length=16)
    preprocessor = M.GPT2CausalLMPreprocessor(tokenizer, sequence_length=12)
    model, file = (
        shake_weights(M.GPT2CausalLM(backbone, preprocessor), rng),
        str(tmp_path / "gpt.keras"),
    )
    model.save(file)

    def run_predict(*words: str, code: int = 0) -> Any:
        assert main([*words, "--models", str(tmp_path / "kept"), "--json"]) == code
        out, err = capsys.readouterr()
        return err if code else json.loads(out)

    numbers = [int(n) for n in np.asarray(tokenizer("ab a"))]
    options = ("--new", "3", "--prompt")
    by_text = run_predict("generate", file, *options, "ab a")
    by_numbers = run_predict("generate", file, *options, ",".join(map(str, numbers)))
    assert by_text["tokens"] == by_numbers["tokens"]
    assert by_text["texts"] == [str(tokenizer.detokenize(by_text["tokens"][0]))]
    run_predict("deploy", file, "--name", "gpt", "--tokens", "8")
    again = run_predict("generate", "gpt", *options, "ab a", "--tokenizer", file)
    assert again["tokens"] == by_text["tokens"] and again["texts"] == by_text["texts"]
    assert "Add --tokenizer FILE" in run_predict("generate", "gpt", *options, "ab a", code=2)
    assert "takes --prompt" in run_predict("generate", "gpt", code=2)
    assert "gpt2 and gpt2-tiny" in run_predict(
        "generate", "gpt", *options, "1", "--tokens", "3", code=2
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["BERT's classifier", "GPT-2's logits", "ViT's"])
def test_models_predict_privately(name: str, rng: np.random.Generator) -> None:
    check_private(MODELS[name](), 12, rng)


# ---- its layers


def word_input(name: str = "words") -> Any:
    return keras.Input((STEPS,), dtype="int32", name=name)


def row_input(name: str = "x", steps: int = STEPS) -> Any:
    return keras.Input((steps, WIDTH), name=name)


def mask_input(*shape: int, name: str = "mask") -> Any:
    return keras.Input(shape, dtype="bool", name=name)


def embed_words(**named: Any) -> tuple[Any, Any]:
    token_ids = word_input()
    return token_ids, H.TokenAndPositionEmbedding(11, 9, WIDTH, mask_zero=True, **named)(token_ids)


def encoder_model(first: bool) -> Any:
    """Build masks of three forms: attached to a tensor, as an argument, and one for each query."""
    token_ids, x = embed_words()
    own, each = mask_input(STEPS), mask_input(STEPS, STEPS, name="each")
    x = H.TransformerEncoder(16, 2, activation="relu", normalize_first=first)(x)
    y = H.TransformerEncoder(16, 2, normalize_first=first)(x, own, attention_mask=each)
    return keras.Model([token_ids, own, each], L.GlobalAveragePooling1D()(y))


def decoder_model(first: bool) -> Any:
    x, other = row_input(), row_input("other", 4)
    own, before = mask_input(STEPS), mask_input(4, name="before")
    y = H.TransformerDecoder(16, 2, normalize_first=first)(
        x, other, decoder_padding_mask=own, encoder_padding_mask=before
    )
    y = H.TransformerDecoder(16, 2, normalize_first=first)(y, use_causal_mask=False)
    return keras.Model([x, other, own, before], y)


def position_model() -> Any:
    x = row_input()
    y = H.PositionEmbedding(9)(x, start_index=2) + H.SinePositionEncoding()(x)
    y = x + y + H.PositionEmbedding(9)(x, positions=np.array([3, 1, 4, 1, 5, 8]))
    return keras.Model(x, y)


def cached_attention() -> Any:
    x, each = row_input(), mask_input(1, STEPS, name="each")
    return keras.Model([x, each], H.CachedMultiHeadAttention(2, 4)(x, x, attention_mask=each))


def reversed_words(tied: bool) -> Any:
    token_ids, table = word_input(), H.ReversibleEmbedding(11, WIDTH, tie_weights=tied)
    return keras.Model(token_ids, table(L.LayerNormalization()(table(token_ids)), reverse=True))


LAYERS: dict[str, Callable[[], Any]] = {
    "encoder": lambda: encoder_model(False),
    "encoder, norms first": lambda: encoder_model(True),
    "decoder": lambda: decoder_model(False),
    "decoder, norms first": lambda: decoder_model(True),
    "places": position_model,
    "cached": cached_attention,
    "reversed": lambda: reversed_words(True),
    "reversed, untied": lambda: reversed_words(False),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layers_compute_what_they_do_in_keras(name: str, rng: np.random.Generator) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = shake_weights(LAYERS[name](), rng)
    arrays: dict[str, Any] = {}
    for tensor in model.inputs:
        shape = (3, *tensor.shape[1:])
        x: Any = rng.normal(0, 1, shape)
        if str(tensor.dtype) != "float32":
            x = rng.integers(0, 11 if tensor.name == "words" else 2, shape)
            x[..., 0] = 1
        arrays[tensor.name] = x
    private = convert(model)
    outputs = model([arrays[t.name] for t in model.inputs], training=False)
    assert np.abs(private.plain(arrays) - np.asarray(outputs)).max() < 1e-5


def with_cache(x: Any) -> Any:
    cache = keras.ops.zeros((1, 2, STEPS, 2, 4))
    return H.TransformerDecoder(16, 2)(x, self_attention_cache=cache)[0]


@pytest.mark.parametrize(
    ("said", "make"),
    [
        ("self_attention_cache", with_cache),
        ("return_attention_scores", lambda x: H.TransformerEncoder(16, 2)(
            x, return_attention_scores=True)[0]),
        ("FNetEncoder", lambda x: H.FNetEncoder(16)(x)),
        ("start_index", lambda x: H.PositionEmbedding(9)(x, start_index=x[0, 0, 0])),
    ],
)  # fmt: skip
def test_what_is_not_offered_is_refused(said: str, make: Callable[[Any], Any]) -> None:
    x = row_input()
    with raises(UsageError, "unsupported-layer", received=Matching(said)):
        convert(keras.Model(x, make(x)))

"""The zoo: shapes, seeded weights, and files with other contents."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.refusals import raises
from tfe_bench.errors import DataError, UsageError
from tfe_bench.models import zoo
from tfe_bench.models.inference import images
from tfe_bench.models.inference.private import convert
from tfe_bench.models.inference.weights import weight_parts
from tfe_bench.models.zoo import networks, seeded, texts

# PROTOCOLS.md 5.2: products per image
_PRODUCTS = {
    "network-a": 118_016,
    "network-b": 666_600,
    "network-c": 2_293_000,
    "network-d": 123_500,
}


@pytest.mark.parametrize("name", sorted(networks.PARAMETERS))
def test_networks_have_the_published_parameters_and_products(name: str) -> None:
    import keras

    model = zoo.build(name).keras
    assert model.count_params() == networks.PARAMETERS[name]
    products = 0
    for layer in model.layers:
        if isinstance(layer, keras.layers.Dense):
            products += int(np.prod(layer.kernel.shape))
        elif isinstance(layer, keras.layers.Conv2D):
            products += int(np.prod(layer.kernel.shape) * np.prod(layer.output.shape[1:3]))
    assert products == _PRODUCTS[name]
    assert model.output_shape == (None, 10) and model.input_shape == (None, 28, 28, 1)


def test_vgg16_for_cifar_is_the_published_network() -> None:
    import keras

    model = zoo.build(networks.VGG16_CIFAR).keras
    convolutions = [x for x in model.layers if isinstance(x, keras.layers.Conv2D)]
    dense = [x for x in model.layers if isinstance(x, keras.layers.Dense)]
    products = sum(
        int(np.prod(x.kernel.shape) * np.prod(x.output.shape[1:3])) for x in convolutions
    )
    assert (len(convolutions), products) == (13, 313_196_544)
    assert [tuple(x.kernel.shape) for x in dense] == [(512, 256), (256, 256), (256, 10)]
    assert model.input_shape == (None, 32, 32, 3)
    _check_seeded(networks.VGG16_CIFAR)
    with raises(UsageError, "unsupported-argument", operation="weights"):
        zoo.build(networks.VGG16_CIFAR, "imagenet")


def test_networks_start_from_their_seed() -> None:
    first, again, other = (zoo.build("network-a", seed=s).keras for s in (3, 3, 4))
    for a, b in zip(first.get_weights(), again.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
    assert not np.array_equal(first.get_weights()[0], other.get_weights()[0])


def _check_seeded(name: str) -> None:
    import keras

    model = zoo.build(name, "seeded")
    entry, network = model.entry, model.keras
    assert network.count_params() == entry.parameters and "seeded" in model.weights
    shown = images.prepare_pixels(
        seeded.generate_synthetic_images(entry.input_shape, 7, 3), entry.preprocessing
    )
    inner = [layer.output for layer in network.layers[1:]]
    *activations, logits = keras.Model(network.inputs[0], inner)(shown, training=False)
    logits = np.asarray(logits)
    assert logits.shape == (3, entry.classes) and len(set(logits.argmax(1).tolist())) > 1
    assert logits.std(0).mean() > 0.1
    for layer, values in zip(network.layers[1:], activations, strict=False):
        largest = float(np.abs(values).max())
        assert 1e-3 < largest < 2**11, (layer.name, largest)


def test_seeded_batch_normalization_keeps_ranges_and_tells_images_apart() -> None:
    _check_seeded("mobilenetv2")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet50", "resnet50v2", "vgg19", "densenet121"])
def test_seeded_weights_of_the_larger_models(name: str) -> None:
    _check_seeded(name)


# The smallest member of each family, pixels, and whether its own layers scale 0 to 255.
FAMILIES = [
    ("ConvNeXtTiny", 64, True),
    ("DenseNet121", 64, False),
    ("EfficientNetB0", 64, True),
    ("EfficientNetV2B0", 64, True),
    ("InceptionResNetV2", 75, False),
    ("InceptionV3", 75, False),
    ("MobileNet", 64, False),
    ("MobileNetV2", 64, False),
    ("MobileNetV3Small", 64, True),
    ("NASNetMobile", 64, False),
    ("ResNet50", 64, False),
    ("ResNet50V2", 64, False),
    ("VGG16", 64, False),
    ("Xception", 71, False),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "size", "scales"), FAMILIES)
def test_every_family_predicts_as_in_the_clear(
    name: str, size: int, scales: bool, rng: np.random.Generator
) -> None:
    """Compare within 4 ulp or 2^-10 of the range, and the class."""
    import keras

    from tests.models.test_execute import ULP, make_case, run_all
    from tests.models.test_from_keras import shake_weights

    keras.utils.set_random_seed(int(rng.integers(1 << 31)))
    make = getattr(keras.applications, name)
    model = shake_weights(make(weights=None, input_shape=(size, size, 3), classes=10), rng)
    shown = seeded.generate_synthetic_images((size, size, 3), 1, 4)
    shown = shown if scales else shown / 127.5 - 1
    expected = np.asarray(model(shown[:1]))
    ((got, _),) = run_all([make_case(convert(model, samples=shown), shown[:1])], 0, again=False)
    assert np.abs(got - expected).max() <= max(4 * ULP, np.abs(expected).max() / 1024)
    assert got.argmax() == expected.argmax()


def test_a_network_without_normalization_is_scaled() -> None:
    import keras

    layers = [keras.Input((16, 16, 3))]
    for _ in range(6):
        layers += [keras.layers.Conv2D(8, 3, padding="same", activation="relu")]
    network = keras.Sequential([*layers, keras.layers.Flatten(), keras.layers.Dense(10)])
    shown = seeded.generate_synthetic_images((16, 16, 3)) - 128
    seeded.fill_seeded_weights(network, shown)
    probe = keras.Model(network.inputs[0], network.layers[5].output)
    assert np.mean(np.square(probe(shown))) == pytest.approx(1, rel=1e-3)
    assert np.std(network(shown)) == pytest.approx(3, rel=0.2)


def test_weights_come_from_files_and_damaged_ones_are_named(tmp_path: Path) -> None:
    model = zoo.build("network-a", seed=5).keras
    path = tmp_path / "a.weights.h5"
    model.save_weights(path)
    loaded = zoo.build("network-a", path)
    assert loaded.weights == "a.weights.h5"
    np.testing.assert_array_equal(loaded.keras.get_weights()[2], model.get_weights()[2])

    with raises(DataError, "invalid-model-file"):
        zoo.build("network-d", path)
    (tmp_path / "cut.h5").write_bytes(path.read_bytes()[:3000])
    with raises(DataError, "invalid-model-file"):
        zoo.build("network-a", tmp_path / "cut.h5")
    with raises(DataError, "file-not-found"):
        zoo.build("network-a", tmp_path / "none.h5")
    (tmp_path / "x.keras").write_bytes(b"")
    with raises(DataError, "unsupported-file-type"):
        zoo.build("network-a", tmp_path / "x.keras")
    weights = model.get_weights()
    weights[0][3, 3] = np.nan
    model.set_weights(weights)
    model.save_weights(path)
    with raises(DataError, "not-finite"):
        zoo.build("network-a", path)


def test_unknown_models_and_missing_downloads_say_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with raises(UsageError, "unknown-name", received="resnet5O"):
        zoo.build("resnet5O")
    with raises(UsageError, "unsupported-argument"):
        zoo.build("network-a", "imagenet")
    import keras

    def refuse(**_: object) -> None:
        raise OSError("no network")

    monkeypatch.setattr(keras.applications, "ResNet50", refuse)
    with raises(DataError, "download-failed"):
        zoo.build("resnet50", "imagenet")


# ---- transformers


def test_a_transformer_starts_from_its_seed_and_has_the_published_size() -> None:
    from tfe_bench.models.zoo import transformers

    model = zoo.build("bert-tiny", tokens=8)
    # positions are constants in its graph
    places = transformers.MAX_TOKENS * 128
    assert model.keras.count_params() + places == model.entry.parameters
    head = 128 * transformers.CLASSES + transformers.CLASSES
    assert model.entry.parameters - head == 4_385_920
    again, other = (zoo.build("bert-tiny", seed=s, tokens=8).keras for s in (1, 2))
    arrays = zoo.samples(model.entry, 5, 6, tokens=8)
    logits, same, others = (np.asarray(m(arrays)) for m in (model.keras, again, other))
    np.testing.assert_array_equal(logits, same)
    assert not np.allclose(logits, others)
    assert len(set(logits.argmax(1).tolist())) > 1
    for name in ("segment_ids", "padding_mask"):
        assert set(np.unique(arrays[name])) <= {0, 1}
    assert (arrays["token_ids"][:, 0] == transformers.BEGIN).all()
    assert (arrays["token_ids"] < transformers.VOCABULARY).all()


def test_a_transformer_converts_with_private_masks() -> None:
    model = zoo.build("bert-tiny", tokens=8)
    samples, arrays = (zoo.samples(model.entry, s, tokens=8) for s in (1, 2))
    private = convert(model.keras, samples, activations="series")
    assert private.graph.tokens == {"token_ids": 30_522, "segment_ids": 2}
    assert private.graph.masks == ("padding_mask",)
    want = np.asarray(model.keras(arrays, training=False))
    assert np.abs(private.plain(arrays) - want).max() < 1e-4
    assert not private.summary().imprecise


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bert-base", "vit-b16"])
def test_large_transformers_convert(name: str) -> None:
    model = zoo.build(name, tokens=16)
    # constants in its graph: positions, and a class token
    numbers, size = 197 + 1 if name == "vit-b16" else 512, 768
    assert model.keras.count_params() + numbers * size == model.entry.parameters
    samples, arrays = (zoo.samples(model.entry, s, 2, tokens=16) for s in (1, 2))
    private = convert(model.keras, samples, activations="series")
    want = np.asarray(model.keras(arrays, training=False))
    assert np.abs(private.plain(arrays) - want).max() < 1e-4


def test_a_transformer_refuses_other_weights_and_lengths(tmp_path: Path) -> None:
    for weights in ("imagenet", tmp_path / "x.h5"):
        with raises(UsageError, "unsupported-argument"):
            zoo.build("bert-tiny", weights)
    for tokens in (1, 0, 513, 8.0, True):
        with raises(UsageError, "number-out-of-range", operation="tokens", received=tokens):
            zoo.build("bert-tiny", tokens=tokens)  # type: ignore[arg-type]


def test_language_models_have_their_architecture_and_spread_of_logits() -> None:
    model, again = (texts.build_language_model("gpt2-tiny", 9, seed=2) for _ in range(2))
    assert model.output_shape == (None, 9, texts.find_language_model("gpt2-tiny").vocabulary)
    for a, b in zip(model.get_weights(), again.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
    logits = np.asarray(model(texts.generate_texts("gpt2-tiny", 9, seed=2)))
    assert 1 < logits.std() < 6
    # 12 blocks of 7,087,872, the last norm and the table, without positions
    blocks, width, words = 12, 768, 50257
    block = 4 * width + 4 * (width * width + width) + 2 * 4 * width * width + 5 * width
    assert blocks * block + 2 * width + width * words == 124_439_808 - 1024 * width
    tiny = texts.find_language_model("gpt2-tiny")
    d = tiny.width
    own = 4 * d + 4 * (d * d + d) + 2 * 4 * d * d + 5 * d
    assert model.count_params() == tiny.blocks * own + 2 * d + d * tiny.vocabulary


def test_a_language_models_logits_read_the_table_of_its_tokens() -> None:
    """Check that the weights are shared once, for the prompt and for each step."""
    private = convert(
        texts.build_language_model("gpt2-tiny", 9),
        samples=texts.generate_texts("gpt2-tiny", 9),
        activations="series",
    )
    tiny = texts.find_language_model("gpt2-tiny")
    tables = [p for p in weight_parts(private.plan) if tiny.vocabulary in p.shape]
    assert [len(part.keys) for part in tables] == [2]
    assert tables[0].shape == (tiny.vocabulary, tiny.width)


def test_language_models_of_other_names_and_lengths_are_refused() -> None:
    with raises(UsageError, "unknown-name", received="gpt3"):
        texts.build_language_model("gpt3", 9)
    for length in (1, 129, 2.0):
        with raises(UsageError, "number-out-of-range", operation="length", received=length):
            texts.build_language_model("gpt2-tiny", length)  # type: ignore[arg-type]

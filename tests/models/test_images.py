"""Pictures: prepared as by keras.applications, and refused if they do not fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.refusals import raises
from tfe_bench.errors import DataError, UsageError
from tfe_bench.models.inference import images


def _write_png(path: Path, pixels: Any) -> Path:
    import tensorflow as tf

    path.write_bytes(tf.io.encode_png(np.asarray(pixels, np.uint8)).numpy())
    return path


@pytest.mark.parametrize(
    "family, way",
    [
        ("resnet", "caffe"),
        ("vgg19", "caffe"),
        ("resnet_v2", "tf"),
        ("mobilenet_v2", "tf"),
        ("densenet", "torch"),
    ],
)
def test_prepares_as_keras_does(family: str, way: str, rng: np.random.Generator) -> None:
    import keras

    x = rng.integers(0, 256, (2, 9, 8, 3)).astype(np.float32)
    expected = getattr(keras.applications, family).preprocess_input(x.copy())
    np.testing.assert_allclose(images.prepare_pixels(x, way), expected, rtol=0, atol=2e-5)


def test_a_picture_of_the_right_size_keeps_its_pixels(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    pixels = rng.integers(0, 256, (12, 10, 3))
    got = images.load_picture(_write_png(tmp_path / "x.png", pixels), (12, 10, 3), "none")
    assert got.dtype == np.float32
    np.testing.assert_array_equal(got, pixels[None])


def test_sizes_and_channels_are_made_to_fit(tmp_path: Path) -> None:
    red = np.zeros((40, 20, 4))
    red[..., 0], red[..., 3] = 200, 9
    path = _write_png(tmp_path / "x.png", red)
    got = images.load_picture(path, (8, 6, 3), "caffe")
    assert got.shape == (1, 8, 6, 3)
    # blue, green, red
    np.testing.assert_allclose(got[0, 3, 3], [-103.939, -116.779, 200 - 123.68], atol=1e-3)
    grey = images.load_picture(path, (8, 6, 1), "unit")
    np.testing.assert_allclose(grey, 200 * 0.299 / 255, atol=1e-4)
    assert images.load_picture(path, (8, 6), "unit").shape == (1, 8, 6)
    assert images.load_picture(path, (49,), "unit").shape == (1, 49)
    single = _write_png(tmp_path / "y.png", np.full((5, 5, 1), 51))
    np.testing.assert_allclose(images.load_picture(single, (5, 5, 3), "unit"), 0.2, atol=1e-6)


def test_damaged_missing_and_other_files_are_named(tmp_path: Path) -> None:
    good = _write_png(tmp_path / "x.png", np.random.default_rng(1).integers(0, 256, (30, 30, 3)))
    blob = good.read_bytes()
    for name, content in (
        ("empty.jpg", b""),
        ("text.jpg", b"no picture at all"),
        ("cut.png", blob[: len(blob) // 2]),
        ("bits.png", blob[:60] + bytes(40) + blob[100:]),
    ):
        (tmp_path / name).write_bytes(content)
        with raises(DataError, "invalid-picture", names=(name,)):
            images.load_picture(tmp_path / name, (8, 8, 3), "tf")
    with raises(DataError, "file-not-readable"):
        images.load_picture(tmp_path / "none.jpg", (8, 8, 3), "tf")
    with raises(DataError, "file-not-readable"):
        images.load_picture(tmp_path, (8, 8, 3), "tf")


@pytest.mark.parametrize(
    "shape, way, code",
    [
        ((3, 224, 224), "tf", "channels-first"),
        ((8, 8, 2), "tf", "shape-mismatch"),
        ((10,), "unit", "shape-mismatch"),
        ((8, 8, 1), "caffe", "channel-mismatch"),
        ((8, 8, 3), "cafe", "unknown-name"),
    ],
)
def test_unfit_shapes_and_ways_are_refused(shape: Any, way: str, code: str, tmp_path: Path) -> None:
    path = _write_png(tmp_path / "x.png", np.zeros((4, 4, 3)))
    with raises(UsageError, code):
        images.load_picture(path, shape, way)

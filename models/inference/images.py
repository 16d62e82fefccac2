"""Pictures from files, prepared for a family of models."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tfe_bench.errors import DataError, UsageError, unknown_name_error
from tfe_bench.lazy_tensorflow import tf

# caffe: BGR, centered (ResNet50, VGG19). tf: -1 to 1 (ResNet50V2, MobileNetV2). torch: 0 to 1, then
# standardized (DenseNet121). unit: 0 to 1 (MNIST). none: 0 to 255, for a model that rescales.
PREPROCESSINGS = ("caffe", "tf", "torch", "unit", "none")
_BGR_MEANS = (103.939, 116.779, 123.68)
_RGB_MEANS, _RGB_DEVIATIONS = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_MAX_FILE_BYTES = 64 << 20
_MAX_PIXELS = 100_000_000
_FORMATS = "JPEG, PNG, GIF or BMP"


def load_picture(path: str | os.PathLike[str], shape: Sequence[int], preprocessing: str) -> Any:
    """Load a picture as a batch of one, float32 [1, height, width, channels].

    The whole picture is resized to the required size (bilinear, with antialiasing when it shrinks).
    A grayscale picture becomes RGB if the shape has three channels, and a color picture becomes
    grayscale if it has one.  An alpha channel is dropped.  Of an animation, the first picture
    counts.

    Args:
        shape: (height, width, channels) or, for one channel, (height, width) or (pixels,) of a
            square; the result has this shape after the batch.
        preprocessing: one of `PREPROCESSINGS`.

    Raises:
        DataError: the file is missing, damaged, too large, or not a picture.
        UsageError: the shape is not that of a picture, or the preprocessing is unknown.
    """
    height, width, channels = picture_shape(shape)
    check_preprocessing(preprocessing, channels)
    pixels = _decode_picture(Path(path), channels)
    return prepare_pixels(_resize_picture(pixels, height, width), preprocessing).reshape(
        (1, *shape)
    )


def picture_shape(shape: Sequence[int]) -> tuple[int, int, int]:
    """Return (height, width, channels) of a model's input.

    Raises:
        UsageError: the shape is not that of a picture; a shape with channels first is reported as
            such.
    """
    sizes = tuple(int(n) for n in shape)
    if len(sizes) == 1 and (side := round(sizes[0] ** 0.5)) ** 2 == sizes[0] and side > 1:
        return side, side, 1
    if len(sizes) == 2:
        return sizes[0], sizes[1], 1
    if len(sizes) == 3 and sizes[2] in (1, 3):
        return sizes[0], sizes[1], sizes[2]
    if len(sizes) == 3 and sizes[0] in (1, 3):
        raise UsageError(
            f"Expected pictures [height, width, channels]. Received: {list(sizes)}, channels "
            "first. Build the model with data_format='channels_last'.",
            code="channels-first",
            received=list(sizes),
        )
    raise UsageError(
        f"Expected pictures [height, width, 1 or 3]. Received: {list(sizes)}. Pass the model's "
        "input as a .npy file instead (--input).",
        code="shape-mismatch",
        received=list(sizes),
    )


def check_preprocessing(preprocessing: str, channels: int) -> None:
    """Reject an unknown preprocessing, or one for another number of channels.

    Raises:
        UsageError: the preprocessing is invalid.
    """
    if preprocessing not in PREPROCESSINGS:
        raise unknown_name_error(
            f"Unknown preprocessing {preprocessing!r}.",
            preprocessing,
            PREPROCESSINGS,
            operation="preprocessing",
        )
    if preprocessing in ("caffe", "torch") and channels != 3:
        raise UsageError(
            f"The preprocessing {preprocessing!r} requires three channels: red, green, blue. "
            f"Received: {channels}.",
            code="channel-mismatch",
            operation=preprocessing,
            received=channels,
            expected=3,
        )


def prepare_pixels(pixels: Any, preprocessing: str) -> Any:
    """Preprocess RGB values of 0 to 255 as `keras.applications` does, as float32."""
    x = np.asarray(pixels, np.float32)
    check_preprocessing(preprocessing, x.shape[-1])
    if preprocessing == "caffe":
        return x[..., ::-1] - np.array(_BGR_MEANS, np.float32)
    if preprocessing == "tf":
        return x / np.float32(127.5) - np.float32(1)
    if preprocessing == "torch":
        return (x / np.float32(255) - np.array(_RGB_MEANS, np.float32)) / np.array(
            _RGB_DEVIATIONS, np.float32
        )
    return x / np.float32(255) if preprocessing == "unit" else x


def _decode_picture(path: Path, channels: int) -> Any:
    try:
        if path.stat().st_size > _MAX_FILE_BYTES:
            raise DataError(
                f"Expected at most {_MAX_FILE_BYTES >> 20} MiB in {str(path)!r}. Received: more.",
                code="too-large",
                operation=str(path),
            )
        blob = path.read_bytes()
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise DataError(
            f"Cannot read the picture {str(path)!r}: {reason}.",
            code="file-not-readable",
            operation=str(path),
            received=reason,
        ) from error
    try:
        pixels = tf.io.decode_image(blob, channels=3, expand_animations=False).numpy()
    except tf.errors.OpError as error:
        raise DataError(
            f"Expected a picture in {str(path)!r}. Received: {len(blob)} bytes that do not "
            f"decode. Pass a {_FORMATS} file.",
            code="invalid-picture",
            operation=str(path),
        ) from error
    if pixels.ndim != 3 or not 0 < pixels.size <= 3 * _MAX_PIXELS:
        raise DataError(
            f"Expected a picture in {str(path)!r}. Received: pixels {list(pixels.shape)}.",
            code="invalid-picture",
            operation=str(path),
            received=list(pixels.shape),
        )
    # Converted to grayscale here: TensorFlow's decoders do so for some formats only.
    return pixels if channels == 3 else pixels @ np.array([[0.299], [0.587], [0.114]], np.float32)


def _resize_picture(pixels: Any, height: int, width: int) -> Any:
    if pixels.shape[:2] == (height, width):
        return pixels.astype(np.float32)
    return tf.image.resize(pixels, (height, width), "bilinear", antialias=True).numpy()

"""MNIST from IDX files (plain or .gz) in a given folder, or from Keras' cache.

This module downloads nothing: users run a download command themselves.
"""

from __future__ import annotations

import gzip
import math
import os
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
import numpy.typing as npt

from tfe_bench.errors import DataError

Bytes = npt.NDArray[np.uint8]

PIXELS, CLASSES = 28, 10
_FILES = {
    "train_images": "train-images-idx3-ubyte",
    "train_labels": "train-labels-idx1-ubyte",
    "test_images": "t10k-images-idx3-ubyte",
    "test_labels": "t10k-labels-idx1-ubyte",
}
_UNSIGNED_BYTE = 0x08  # the IDX type code: http://yann.lecun.com/exdb/mnist
# Largest content of a file: a hundred times MNIST. A larger file is another file or a gzip bomb.
_MAX_BYTES = 1 << 32


@dataclass(frozen=True, eq=False, repr=False)
class Mnist:
    """Digits and their labels.

    Attributes:
        train_images, test_images: uint8 [n, 28, 28], 0 is the background.
        train_labels, test_labels: uint8 [n], 0 to 9.
        source: origin of the data.
    """

    train_images: Bytes
    train_labels: Bytes
    test_images: Bytes
    test_labels: Bytes
    source: str

    def __repr__(self) -> str:
        train, test = len(self.train_labels), len(self.test_labels)
        return f"Mnist({train} training and {test} test images, {self.source})"


def load(folder: str | os.PathLike[str] | None = None) -> Mnist:
    """Load MNIST from a folder of the four IDX files, or from the file of keras.datasets.

    Args:
        folder: the folder of `train-images-idx3-ubyte`, `train-labels-idx1-ubyte` and the two files
            `t10k-...`, each with or without `.gz`; None: Keras' own file.

    Raises:
        DataError: a file is missing, damaged or of another kind.
    """
    if folder is None:
        return _load_from_keras()
    where = Path(folder)
    if not where.is_dir():
        raise DataError(
            f"The folder of MNIST does not exist. Received: {str(where)!r}. It must contain "
            f"{', '.join(_FILES.values())}, each with or without .gz.",
            code="file-not-found",
            operation=str(where),
        )
    paths = {name: _find_mnist_file(where, stem) for name, stem in _FILES.items()}
    return _check_arrays({name: read_idx_array(path) for name, path in paths.items()}, str(where))


def read_idx_array(path: str | os.PathLike[str]) -> Bytes:
    """Read the array of an IDX file of unsigned bytes, decompressed if its name ends in .gz.

    Raises:
        DataError: the file cannot be read, its magic number differs, or its size does not match its
            header.
    """
    file = Path(path)
    try:
        with cast("IO[bytes]", gzip.open(file) if file.suffix == ".gz" else file.open("rb")) as f:
            return _parse_idx(file, f)
    except (OSError, EOFError, zlib.error) as error:  # gzip's own errors are OSErrors
        reason = getattr(error, "strerror", None) or "damaged or cut short"
        raise DataError(
            f"Cannot read {str(file)!r}: {reason}. Download it again.",
            code="file-not-readable",
            operation=str(file),
            received=reason,
        ) from error


def _parse_idx(file: Path, stream: IO[bytes]) -> Bytes:
    magic = stream.read(4)
    if len(magic) < 4 or magic[:2] != b"\0\0" or magic[2] != _UNSIGNED_BYTE or not magic[3]:
        raise DataError(
            f"Expected an IDX file of bytes in {str(file)!r}, which begins with 00000803 "
            f"(images) or 00000801 (labels). Received: {magic.hex() or 'nothing'}.",
            code="invalid-idx-file",
            operation=str(file),
        )
    header = stream.read(4 * magic[3])
    shape = tuple(int(n) for n in np.frombuffer(header[: len(header) // 4 * 4], ">u4"))
    size = math.prod(shape)
    if len(shape) != magic[3] or size > _MAX_BYTES:
        raise DataError(
            f"{str(file)!r} is damaged: its header is truncated or states the shape {shape}.",
            code="invalid-idx-file",
            operation=str(file),
            received=shape,
        )
    # One more byte shows whether the file is longer than its header states.
    data = stream.read(size + 1)
    if len(data) != size:
        available = "more" if len(data) > size else str(len(data))
        raise DataError(
            f"{str(file)!r} is damaged: its header states {size} bytes of data ({list(shape)}), "
            f"but it contains {available}. Download it again.",
            code="invalid-idx-file",
            operation=str(file),
            received=available,
            expected=size,
        )
    return np.frombuffer(data, np.uint8).reshape(shape)


def _find_mnist_file(folder: Path, stem: str) -> Path:
    for name in (stem, f"{stem}.gz"):
        if (folder / name).is_file():
            return folder / name
    raise DataError(
        f"{str(folder)!r} contains neither {stem} nor {stem}.gz. Add the missing file.",
        code="file-not-found",
        operation=str(folder),
        expected=stem,
    )


def check_there(folder: str | os.PathLike[str] | None = None) -> None:
    """Check before a long computation that MNIST exists; as `load`, without reading it.

    Raises:
        DataError: a file is missing.
    """
    if folder is None:
        if not keras_cache_file().is_file():
            raise _missing_mnist_error()
        return
    for stem in _FILES.values():
        _find_mnist_file(Path(folder), stem)


def keras_cache_file() -> Path:
    """Return the path at which keras.datasets stores MNIST."""
    home = os.environ.get("KERAS_HOME") or Path.home() / ".keras"
    return Path(home) / "datasets" / "mnist.npz"


def _missing_mnist_error() -> DataError:
    return DataError(
        "MNIST is not on this machine; it is not downloaded automatically. Received: no file "
        f"{str(keras_cache_file())!r}. Download it once: python -c 'import keras; "
        "keras.datasets.mnist.load_data()', or pass a folder with its four IDX files "
        "(--data-dir FOLDER).",
        code="file-not-found",
        operation="mnist",
    )


def _load_from_keras() -> Mnist:
    file = keras_cache_file()
    if not file.is_file():
        raise _missing_mnist_error()
    try:
        with np.load(file, allow_pickle=False) as arrays:
            train, test = ((arrays[f"x_{part}"], arrays[f"y_{part}"]) for part in ("train", "test"))
    except (OSError, EOFError, KeyError, ValueError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(
            f"{str(file)!r} is damaged or another file. Remove it and download it again.",
            code="invalid-data",
            operation=str(file),
        ) from error
    return _check_arrays(dict(zip(_FILES, (*train, *test), strict=True)), "keras.datasets")


def _check_arrays(arrays: dict[str, Any], source: str) -> Mnist:
    for part in ("train", "test"):
        images, labels = arrays[f"{part}_images"], arrays[f"{part}_labels"]
        if images.ndim != 3 or images.shape[1:] != (PIXELS, PIXELS) or not len(images):
            raise DataError(
                f"Expected images [n, 28, 28] of MNIST. Received: {list(images.shape)} in the "
                f"{part} images of {source}.",
                code="shape-mismatch",
                operation=source,
                received=list(images.shape),
            )
        if labels.shape != images.shape[:1]:
            raise DataError(
                f"Expected a label for every image. Received: {len(images)} {part} images and "
                f"labels of shape {list(labels.shape)} in {source}.",
                code="row-count-mismatch",
                operation=source,
                received=list(labels.shape),
            )
        if labels.max() >= CLASSES:
            raise DataError(
                f"Expected labels 0 to 9 of MNIST. Received: {labels.max()} among the {part} "
                f"labels of {source}.",
                code="unknown-class",
                operation=source,
                received=labels.max(),
            )
    return Mnist(**arrays, source=source)

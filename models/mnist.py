"""MNIST from IDX files (plain or .gz) in a folder of one's own, or from where Keras keeps it.

Nothing is downloaded: what fetches data for a user is a command of theirs.
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
# Of a file's contents: a hundred MNISTs.  What is larger is another file, or a trap for gzip.
_MAX_BYTES = 1 << 32


@dataclass(frozen=True, eq=False, repr=False)
class Mnist:
    """Digits and their labels.

    Attributes:
        train_images, test_images: uint8 [n, 28, 28], 0 is the background.
        train_labels, test_labels: uint8 [n], 0 to 9.
        source: where they come from.
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
    """MNIST from a folder of the four IDX files, or what keras.datasets has downloaded before.

    Args:
        folder: with `train-images-idx3-ubyte`, `train-labels-idx1-ubyte` and the two of `t10k-`,
            each as it is or with `.gz`; None: Keras' own file.

    Raises:
        DataError: a file is missing, damaged or holds something else.
    """
    if folder is None:
        return _load_from_keras()
    where = Path(folder)
    if not where.is_dir():
        raise DataError(
            f"The folder of MNIST does not exist. Received: {str(where)!r}. It holds "
            f"{', '.join(_FILES.values())}, each with or without .gz."
        )
    paths = {name: _find_file(where, stem) for name, stem in _FILES.items()}
    return _check_arrays({name: read_idx(path) for name, path in paths.items()}, str(where))


def read_idx(path: str | os.PathLike[str]) -> Bytes:
    """The array of an IDX file of unsigned bytes, unpacked if its name ends in .gz.

    Raises:
        DataError: it cannot be read, its magic number is another, or its size does not fit its
            header.
    """
    file = Path(path)
    try:
        with cast("IO[bytes]", gzip.open(file) if file.suffix == ".gz" else file.open("rb")) as f:
            return _parse_idx(file, f)
    except (OSError, EOFError, zlib.error) as error:  # gzip's own errors are OSErrors
        reason = getattr(error, "strerror", None) or "damaged or cut short"
        raise DataError(f"Cannot read {str(file)!r}: {reason}. Download it again.") from error


def _parse_idx(file: Path, stream: IO[bytes]) -> Bytes:
    magic = stream.read(4)
    if len(magic) < 4 or magic[:2] != b"\0\0" or magic[2] != _UNSIGNED_BYTE or not magic[3]:
        raise DataError(
            f"{str(file)!r} is no IDX file of bytes. Received: it begins with "
            f"{magic.hex() or 'nothing'}; 00000803 (images) or 00000801 (labels) is due."
        )
    header = stream.read(4 * magic[3])
    shape = tuple(int(n) for n in np.frombuffer(header[: len(header) // 4 * 4], ">u4"))
    size = math.prod(shape)
    if len(shape) != magic[3] or size > _MAX_BYTES:
        raise DataError(f"{str(file)!r} is damaged: its header is cut short or says {shape}.")
    # One byte more tells whether there is more than the header says.
    data = stream.read(size + 1)
    if len(data) != size:
        available = "more" if len(data) > size else str(len(data))
        raise DataError(
            f"{str(file)!r} is damaged: its header says {size} bytes of data ({list(shape)}) and "
            f"it holds {available}. Download it again."
        )
    return np.frombuffer(data, np.uint8).reshape(shape)


def _find_file(folder: Path, stem: str) -> Path:
    for name in (stem, f"{stem}.gz"):
        if (folder / name).is_file():
            return folder / name
    raise DataError(f"{str(folder)!r} has neither {stem} nor {stem}.gz. Add the missing file.")


def check_there(folder: str | os.PathLike[str] | None = None) -> None:
    """Refuses before a long computation that there is no MNIST; as `load`, without reading it.

    Raises:
        DataError: a file is missing.
    """
    if folder is None:
        if not keras_cache_file().is_file():
            raise _missing_error()
        return
    for stem in _FILES.values():
        _find_file(Path(folder), stem)


def keras_cache_file() -> Path:
    """Where keras.datasets puts MNIST."""
    home = os.environ.get("KERAS_HOME") or Path.home() / ".keras"
    return Path(home) / "datasets" / "mnist.npz"


def _missing_error() -> DataError:
    return DataError(
        f"MNIST is not on this machine, and nothing downloads it unasked. Received: no file "
        f"{str(keras_cache_file())!r}. Download it once: python -c 'import keras; "
        "keras.datasets.mnist.load_data()', or give a folder that holds its four IDX files "
        "(--data-dir FOLDER)."
    )


def _load_from_keras() -> Mnist:
    file = keras_cache_file()
    if not file.is_file():
        raise _missing_error()
    try:
        with np.load(file, allow_pickle=False) as arrays:
            train, test = ((arrays[f"x_{part}"], arrays[f"y_{part}"]) for part in ("train", "test"))
    except (OSError, EOFError, KeyError, ValueError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(
            f"Cannot read {str(file)!r}: damaged or another file. Remove it and download it again."
        ) from error
    return _check_arrays(dict(zip(_FILES, (*train, *test), strict=True)), "keras.datasets")


def _check_arrays(arrays: dict[str, Any], source: str) -> Mnist:
    for part in ("train", "test"):
        images, labels = arrays[f"{part}_images"], arrays[f"{part}_labels"]
        if images.ndim != 3 or images.shape[1:] != (PIXELS, PIXELS) or not len(images):
            raise DataError(
                f"Images of MNIST are [n, 28, 28]. Received: {list(images.shape)} in the {part} "
                f"images of {source}."
            )
        if labels.shape != images.shape[:1]:
            raise DataError(
                f"Every image has a label. Received: {len(images)} {part} images and labels of "
                f"shape {list(labels.shape)} in {source}."
            )
        if labels.max() >= CLASSES:
            raise DataError(
                f"Labels of MNIST are 0 to 9. Received: {labels.max()} among the {part} labels "
                f"of {source}."
            )
    return Mnist(**arrays, source=source)

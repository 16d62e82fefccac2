"""Files of MNIST: reading and refusals."""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from tests.refusals import raises
from tfe_bench.errors import DataError
from tfe_bench.models.datasets import mnist

_REAL = Path(os.environ.get("TFE_BENCH_MNIST", "../shared/data/mnist"))


def _idx_bytes(values: npt.NDArray[np.uint8]) -> bytes:
    sizes = np.array(values.shape, ">u4").tobytes()
    return bytes([0, 0, 8, values.ndim]) + sizes + values.tobytes()


def _write_file(folder: Path, name: str, blob: bytes, packed: bool) -> None:
    if packed:
        (folder / f"{name}.gz").write_bytes(gzip.compress(blob))
    else:
        (folder / name).write_bytes(blob)


def _write_tiny(folder: Path, rng: np.random.Generator, packed: bool = True) -> dict[str, Path]:
    for part, n in (("train", 7), ("t10k", 3)):
        images = rng.integers(0, 256, (n, 28, 28), np.uint8)
        labels = rng.integers(0, 10, n, np.uint8)
        _write_file(folder, f"{part}-images-idx3-ubyte", _idx_bytes(images), packed)
        _write_file(folder, f"{part}-labels-idx1-ubyte", _idx_bytes(labels), not packed)
    return {path.name: path for path in folder.iterdir()}


@pytest.mark.parametrize("packed", [True, False])
def test_reads_its_four_files_packed_or_not(
    tmp_path: Path, rng: np.random.Generator, packed: bool
) -> None:
    _write_tiny(tmp_path, rng, packed)
    dataset = mnist.load(tmp_path)
    assert dataset.train_images.shape == (7, 28, 28) and dataset.test_images.shape == (3, 28, 28)
    assert dataset.train_labels.shape == (7,) and dataset.test_labels.max() < 10
    assert dataset.source == str(tmp_path) and "7 training and 3 test" in repr(dataset)


def test_reads_arrays_of_any_axes(tmp_path: Path, rng: np.random.Generator) -> None:
    for shape in ((5,), (2, 3), (1, 2, 3, 4), (0, 28, 28)):
        values = rng.integers(0, 256, shape, np.uint8)
        (tmp_path / "x").write_bytes(_idx_bytes(values))
        np.testing.assert_array_equal(mnist.read_idx_array(tmp_path / "x"), values)


_IMAGES = "train-images-idx3-ubyte.gz"
_LABELS = "train-labels-idx1-ubyte"


@pytest.mark.parametrize(
    "file, spoil, code",
    [
        (_IMAGES, lambda b: b[:-20], "file-not-readable"),
        (_IMAGES, lambda b: b"no gzip", "file-not-readable"),
        (_IMAGES, lambda b: b[:40] + b"\xff" * 40 + b[80:], "file-not-readable"),
        (_IMAGES, lambda b: gzip.compress(gzip.decompress(b)[:-1]), "invalid-idx-file"),
        (_IMAGES, lambda b: gzip.compress(gzip.decompress(b) + b"x"), "invalid-idx-file"),
        (_IMAGES, lambda b: gzip.compress(b""), "invalid-idx-file"),
        (_IMAGES, lambda b: gzip.compress(b"\0\0\x0d\x03" + bytes(12)), "invalid-idx-file"),
        (_IMAGES, lambda b: gzip.compress(b"\0\0\x08\x03" + bytes(3)), "invalid-idx-file"),
        (_IMAGES, lambda b: gzip.compress(b"\0\0\x08\x03" + b"\xff" * 12), "invalid-idx-file"),
        (_IMAGES, lambda b: gzip.compress(b"\0\0\x08\x01\0\0\0\x02ab"), "shape-mismatch"),
        (_IMAGES, lambda b: gzip.compress(b"\0\0\x08\x03" + bytes(12)), "shape-mismatch"),
        (_LABELS, lambda b: b"\0\0\x08\x01\0\0\0\x02ab", "row-count-mismatch"),
        (
            _LABELS,
            lambda b: b"\0\0\x08\x01\0\0\0\x07" + bytes([0, 1, 2, 3, 4, 5, 10]),
            "unknown-class",
        ),
        (_LABELS, None, "file-not-found"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_names_the_file_that_is_missing_or_damaged(
    tmp_path: Path,
    rng: np.random.Generator,
    file: str,
    spoil: Callable[[bytes], bytes] | None,
    code: str,
) -> None:
    path = _write_tiny(tmp_path, rng)[file]
    if spoil is None:
        path.unlink()
    else:
        path.write_bytes(spoil(path.read_bytes()))
    with raises(DataError, code) as raised:
        mnist.load(tmp_path)
    assert str(tmp_path) in str(raised.value)


def test_a_missing_folder_or_network_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with raises(DataError, "file-not-found"):
        mnist.load(tmp_path / "none")
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    for function in (mnist.load, mnist.check_there):
        with raises(DataError, "file-not-found", operation="mnist"):
            function()


def test_what_keras_has_downloaded_is_read_and_nothing_is_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("no network is used")

    monkeypatch.setattr("urllib.request.urlopen", refuse)
    monkeypatch.setattr("socket.socket.connect", refuse)
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    (tmp_path / "datasets").mkdir()
    images, labels = np.zeros((3, 28, 28), np.uint8), np.arange(3, dtype=np.uint8)
    file = tmp_path / "datasets" / "mnist.npz"
    np.savez(file, x_train=images, y_train=labels, x_test=images[:2], y_test=labels[:2])
    mnist.check_there()
    dataset = mnist.load()
    assert dataset.test_labels.tolist() == [0, 1] and dataset.source == "keras.datasets"
    file.write_bytes(b"PK\x03\x04 another file")
    with raises(DataError, "invalid-data"):
        mnist.load()


@pytest.mark.skipif(not _REAL.is_dir(), reason="set TFE_BENCH_MNIST to a folder of MNIST")
def test_reads_the_real_one() -> None:
    dataset = mnist.load(_REAL)
    assert len(dataset.train_images) == 60_000 and len(dataset.test_images) == 10_000
    assert np.bincount(dataset.test_labels).tolist()[:3] == [980, 1135, 1032]

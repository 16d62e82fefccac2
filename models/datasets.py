"""Rows to train on: MNIST, Fashion-MNIST, and tables of numbers in CSV files."""

from __future__ import annotations

import csv
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tfe_bench.errors import DataError, UsageError, did_you_mean
from tfe_bench.models import mnist

Array = npt.NDArray[Any]

FASHION = Path("/usr/share/datasets/fashion-mnist")
TARGETS = ("binary", "classes", "number")
# The published logistic regression tells the digits 0 to 4 from 5 to 9.
_HALF = 5
_TEST_PART = 5
MOST_ROWS = 10**8
_MOST_COLUMNS = 100_000


@dataclass(frozen=True, eq=False, repr=False)
class Rows:
    """Samples and what is to be learnt of them; their owner alone sees them.

    Attributes:
        x: float32 [n, ...], prepared: pictures from 0 to 1, columns of a table standardised.
        y: [n]: 0 or 1 ("binary"), a class (integer, "classes"), or a real, standardised
            ("number"); None where somebody else has the labels.
        target: which of the three.
        classes: how many there are, 1 for a number.
        columns: names of a table's features, empty for pictures.
        source: for the record: no values.
    """

    x: Array | None
    y: Array | None
    target: str
    classes: int
    columns: tuple[str, ...]
    source: str

    def __len__(self) -> int:
        held = self.x if self.x is not None else self.y
        assert held is not None
        return len(held)

    def take(self, rows: Any) -> Rows:
        """Some of them: a slice or an array of indices."""
        return replace(
            self,
            x=None if self.x is None else self.x[rows],
            y=None if self.y is None else self.y[rows],
        )

    def __repr__(self) -> str:
        shape = None if self.x is None else list(self.x.shape)
        return f"Rows({len(self)} rows, x={shape}, target={self.target!r}, {self.source})"


def digits(
    name: str, folder: str | os.PathLike[str] | None = None, target: str = "classes"
) -> tuple[Rows, Rows]:
    """Training and test rows of MNIST or Fashion-MNIST.

    Args:
        name: "mnist" or "fashion-mnist".
        folder: of the four IDX files; None: keras.datasets, or the Debian package's folder.
        target: "classes", or "binary" for classes 0 to 4 against 5 to 9.

    Raises:
        UsageError: another name or target.
        DataError: the files are missing or damaged.
    """
    if name not in ("mnist", "fashion-mnist") or target not in ("classes", "binary"):
        raise UsageError(
            f"Pictures are those of mnist or fashion-mnist, with 10 classes or 2. Received: "
            f"{name!r}.{did_you_mean(name, ('mnist', 'fashion-mnist'))} A table is a file (.csv)."
        )
    if name == "fashion-mnist" and folder is None:
        folder = FASHION
        if not FASHION.is_dir():
            raise DataError(
                f"Fashion-MNIST is not there. Received: no folder {str(FASHION)!r}. Install the "
                "Debian package dataset-fashion-mnist, or give a folder of its four IDX files "
                "(--data-dir FOLDER)."
            )
    read = mnist.load(folder)

    def rows(pictures: Array, labels: Array) -> Rows:
        x = pictures[..., None].astype(np.float32) / np.float32(255)
        y = (labels >= _HALF).astype(np.int64) if target == "binary" else labels.astype(np.int64)
        return Rows(x, y, target, 2 if target == "binary" else mnist.CLASSES, (), name)

    return (
        rows(read.train_images, read.train_labels),
        rows(read.test_images, read.test_labels),
    )


def table(
    path: str | os.PathLike[str],
    label: str | None,
    target: str = "binary",
    classes: int | None = None,
    features: bool = True,
    standardise: bool = True,
) -> Rows:
    """The rows of a CSV file with a line of names: every column a feature, but for the label.

    Args:
        label: the label's column; None where somebody else has the labels.
        target: what the label is: "binary" (two values), "classes" (integers from 0) or "number".
        classes: how many, for "classes".
        features: False for the labels alone.
        standardise: scales every feature, and a number to be learnt, to mean 0 and deviation 1,
            by the rows of this file.

    Raises:
        UsageError: no such column or target.
        DataError: the file is missing, or not a table of numbers; rows and columns are named, the
            values are not.
    """
    if target not in TARGETS:
        raise UsageError(f"A target is {', '.join(TARGETS)}. Received: {target!r}.")
    file = Path(path)
    names, lines = _read(file)
    if label is not None and label not in names:
        raise UsageError(
            f"{file.name!r} has no column {label!r}.{did_you_mean(label, names)} Columns: "
            f"{', '.join(names[:20])}."
        )
    own = [i for i, name in enumerate(names) if name != label]
    if features and not own:
        raise DataError(f"{file.name!r} has no columns besides the label.")
    x = y = None
    if features:
        x = np.array(
            [[_number(file, i, names[c], line[c]) for c in own] for i, line in enumerate(lines)],
            np.float64,
        )
        if standardise:
            x = standard(x)
        x = x.astype(np.float32)
    count = 1
    if label is not None:
        y, count = _label(file, lines, names.index(label), label, target, classes)
        if target == "number" and standardise:
            y = standard(y[:, None])[:, 0]
    kept = tuple(names[i] for i in own) if features else ()
    return Rows(x, y, target, count, kept, file.name)


def standard(x: Array) -> Array:
    """Columns with mean 0 and deviation 1; constant ones become 0."""
    spread = x.std(0)
    return np.asarray((x - x.mean(0)) / np.where(spread > 0, spread, 1.0))


def parted(rows: Rows, seed: int) -> tuple[Rows, Rows]:
    """(four fifths to train on, one fifth to test), drawn by a seed.

    Raises:
        DataError: too few rows.
    """
    count = len(rows) // _TEST_PART
    if not count:
        raise DataError(f"{rows.source!r} has {len(rows)} rows; 5 or more are due.")
    order = np.random.default_rng([seed, 31]).permutation(len(rows))
    return rows.take(order[count:]), rows.take(order[:count])


def _read(file: Path) -> tuple[list[str], list[list[str]]]:
    try:
        with file.open(newline="", encoding="utf-8-sig") as stream:
            reader = csv.reader(stream, strict=True)
            names = [name.strip() for name in next(reader, [])]
            lines: list[list[str]] = []
            for line in reader:
                if not line:
                    continue
                if len(line) != len(names):
                    raise DataError(
                        f"{file.name!r}, row {len(lines) + 1}: {len(line)} values for "
                        f"{len(names)} columns."
                    )
                lines.append(line)
                if len(lines) > MOST_ROWS:
                    raise DataError(f"{file.name!r} has more than {MOST_ROWS} rows.")
    except OSError as error:
        raise DataError(f"Cannot read {str(file)!r}: {error.strerror}.") from error
    except (csv.Error, UnicodeDecodeError) as error:
        raise DataError(
            f"{str(file)!r} is no CSV file in UTF-8. Received: {type(error).__name__}."
        ) from None
    if len(set(names)) != len(names) or not all(names) or len(names) > _MOST_COLUMNS:
        raise DataError(f"The first line of {file.name!r} names its columns, each by another name.")
    if not lines:
        raise DataError(f"{file.name!r} has no rows below its names.")
    return names, lines


def _number(file: Path, row: int, column: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
        what = "no number" if text.strip() else "nothing"
    else:
        what = "NaN or infinity"
    if not math.isfinite(value):
        raise DataError(
            f"{file.name!r}, row {row + 1}, column {column!r}: a number is due. Received: {what}. "
            "Fill in what is missing, write classes as numbers, or leave the column out."
        )
    return value


def _label(
    file: Path,
    lines: Sequence[Sequence[str]],
    place: int,
    name: str,
    target: str,
    classes: int | None,
) -> tuple[Array, int]:
    """The label's column, and how many classes it has."""
    if target == "binary":
        texts = [line[place].strip() for line in lines]
        for i, text in enumerate(texts):
            if not text or text.lower() in ("nan", "na", "null"):
                raise DataError(
                    f"{file.name!r}, row {i + 1}, column {name!r}: a label is due. Received: "
                    "nothing. Leave the row out."
                )
        values = sorted(set(texts))
        if set(values) <= {"0", "1"}:  # an owner may have rows of one class only
            values = ["0", "1"]
        if len(values) != 2:
            raise DataError(
                f"{file.name!r}: the label {name!r} has two values, best 0 and 1. Received: "
                f"{len(values)}. More classes are for --target classes, others for --target number."
            )
        return np.array([values.index(t) for t in texts], np.int64), 2
    numbers = np.array([_number(file, i, name, line[place]) for i, line in enumerate(lines)])
    if target == "number":
        return numbers, 1
    top = int(numbers.max()) + 1 if classes is None else classes
    bad = (numbers != np.floor(numbers)) | (numbers < 0) | (numbers >= top)
    if bad.any():
        raise DataError(
            f"{file.name!r}, row {int(np.flatnonzero(bad)[0]) + 1}, column {name!r}: a class from "
            f"0 to {top - 1} is due. Received: another number."
        )
    return numbers.astype(np.int64), max(top, 2)

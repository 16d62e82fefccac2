"""Rows to train on: MNIST, Fashion-MNIST, and tables of numbers in CSV files."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tfe_bench.errors import DataError, UsageError, check_one_of, did_you_mean
from tfe_bench.models import mnist, scales
from tfe_bench.models.csv_file import (
    MAX_TEXT,
    check_column_names,
    parse_columns,
    parse_label,
    read_csv,
)
from tfe_bench.models.tables import MAX_CLASSES, TARGETS, Table

Array = npt.NDArray[Any]

FASHION = Path("/usr/share/datasets/fashion-mnist")
# The published logistic regression tells the digits 0 to 4 from 5 to 9.
_FIRST_UPPER_DIGIT = 5
_TEST_PART = 5


@dataclass(frozen=True, eq=False, repr=False)
class Rows:
    """Samples and what is to be learned of them; their owner alone sees them.

    Attributes:
        x: float32 [n, ...], prepared: pictures from 0 to 1, columns of a table scaled.
        y: [n]: 0 or 1 ("binary"), a class (integer, "classes"), or a real, scaled ("number");
            None where somebody else has the labels.
        target: which of the three.
        classes: how many there are, 1 for a number.
        columns: names of a table's features, empty for pictures.
        source: for the record: no values.
        table: what these rows are to a model; None for pictures.
    """

    x: Array | None
    y: Array | None
    target: str
    classes: int
    columns: tuple[str, ...]
    source: str
    table: Table | None = None

    def __len__(self) -> int:
        array = self.x if self.x is not None else self.y
        assert array is not None
        return len(array)

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


def load_digits(
    name: str, folder: str | os.PathLike[str] | None = None, target: str = "classes"
) -> tuple[Rows, Rows]:
    """Training and test rows of MNIST or Fashion-MNIST.

    Args:
        name: "mnist" or "fashion-mnist".
        folder: of the four IDX files; None: what keras.datasets has downloaded before, or the
            Debian package's folder.
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
    dataset = mnist.load(folder)

    def make_rows(pictures: Array, labels: Array) -> Rows:
        x = pictures[..., None].astype(np.float32) / np.float32(255)
        y = (
            (labels >= _FIRST_UPPER_DIGIT).astype(np.int64)
            if target == "binary"
            else labels.astype(np.int64)
        )
        return Rows(x, y, target, 2 if target == "binary" else mnist.CLASSES, (), name)

    return (
        make_rows(dataset.train_images, dataset.train_labels),
        make_rows(dataset.test_images, dataset.test_labels),
    )


def table(
    path: str | os.PathLike[str],
    label: str | None,
    target: str = "binary",
    classes: int | None = None,
    features: bool = True,
    standardize: bool = True,
    columns: Sequence[str] | None = None,
    drop: Sequence[str] = (),
    like: Table | None = None,
) -> Rows:
    """The rows of a CSV file with a line of names: every column a feature, but for the label.

    Args:
        label: the label's column; None where somebody else has the labels.
        target: what the label is: "binary" (two values), "classes" (integers from 0, or names) or
            "number".
        classes: how many, for "classes".
        features: False for the labels alone.
        standardize: brings every feature, and a number to be learned, near mean 0 and deviation 1,
            by the rows of this file and a scale that tells little about them (`scales`).
        columns: the features, in their order; None: every column but the label.
        drop: columns that are no features.
        like: columns, classes and scales of a model, in place of this file's own.

    Raises:
        UsageError: no such column or target.
        DataError: the file is missing, or not a table of numbers; rows and columns are named, the
            values are not.
        RangeError: columns that no scale makes usable.
    """
    check_one_of("A target is", target, TARGETS)
    file = Path(path)
    names, lines = read_csv(file)
    if like is not None:
        columns = like.columns
    if label is None and columns is None:
        check_column_names(file.name, names)
    for name in [*([label] if label is not None else []), *(columns or ()), *drop]:
        if name not in names:
            raise UsageError(
                f"{file.name!r} has no column {name!r}.{did_you_mean(name, names)} Columns: "
                f"{', '.join(names[:20])}."
            )
    if columns is not None and (label in columns or len(set(columns)) != len(columns)):
        raise UsageError("Features are named once each, and the label is none of them.")
    feature_names = [n for n in names if n != label] if columns is None else list(columns)
    feature_names = [n for n in feature_names if n not in drop] if features else []
    if features and not feature_names:
        raise DataError(f"{file.name!r} has no columns besides the label.")
    x = y = None
    scale = unit = None
    if features:
        x = parse_columns(file.name, names, lines, [names.index(n) for n in feature_names])
        if like is not None:
            scale = like.scale
        elif standardize:
            scale = scales.fit_scale(x, tuple(feature_names))
        with np.errstate(over="ignore"):  # (beyond float32 is beyond what is shared, too)
            x = (x if scale is None else scale.apply(x)).astype(np.float32)
    class_names: tuple[str, ...] = ()
    if label is not None:
        fixed_classes = like.classes if like is not None else ()
        y, class_names = _read_label(
            file, lines, names.index(label), label, target, classes, fixed_classes
        )
        if target == "number":
            if like is not None:
                unit = like.unit
            elif standardize:
                unit = scales.fit_scale(y[:, None], (label,))
            y = y if unit is None else unit.apply(y[:, None])[:, 0]
    table_facts = Table(tuple(feature_names), target, label, class_names, scale, unit)
    return Rows(
        x, y, target, max(1, len(class_names)), tuple(feature_names), file.name, table_facts
    )


def split_rows(rows: Rows, seed: int) -> tuple[Rows, Rows]:
    """(four fifths to train on, one fifth to test), drawn by a seed.

    Raises:
        DataError: too few rows.
    """
    count = len(rows) // _TEST_PART
    if not count:
        raise DataError(f"{rows.source!r} has {len(rows)} rows; 5 or more are due.")
    order = np.random.default_rng([seed, 31]).permutation(len(rows))
    return rows.take(order[count:]), rows.take(order[:count])


def _read_label(
    file: Path,
    lines: Sequence[Sequence[str]],
    position: int,
    name: str,
    target: str,
    classes: int | None,
    fixed_classes: tuple[str, ...],
) -> tuple[Array, tuple[str, ...]]:
    """The label's column, and the names of its classes; `given` ones, or those of the file."""
    if target == "number":
        return np.array(
            [parse_label(file.name, i, name, ln[position]) for i, ln in enumerate(lines)]
        ), ()
    texts = [line[position].strip() for line in lines]
    for i, text in enumerate(texts):
        if not text or text.lower() in ("nan", "na", "null"):
            raise DataError(
                f"{file.name!r}, row {i + 1}, column {name!r}: a label is due. Received: "
                "nothing. Leave the row out."
            )
        if len(text) > MAX_TEXT:
            raise DataError(
                f"{file.name!r}, row {i + 1}, column {name!r}: a class has at most {MAX_TEXT} "
                "characters."
            )
    values = fixed_classes or tuple(sorted(set(texts)))
    if not fixed_classes and target == "binary":
        if set(values) <= {"0", "1"}:  # an owner may have rows of one class only
            values = ("0", "1")
        if len(values) != 2:
            raise DataError(
                f"{file.name!r}: the label {name!r} has two values, best 0 and 1. Received: "
                f"{len(values)}. More classes are for --target classes, others for --target number."
            )
    elif not fixed_classes:
        values = _class_names(file, name, texts, classes)
    if values == tuple(map(str, range(len(values)))):
        texts = [_integer_text(text) for text in texts]
    class_numbers = {text: i for i, text in enumerate(values)}
    bad = next((i for i, text in enumerate(texts) if text not in class_numbers), None)
    if bad is not None:
        raise DataError(
            f"{file.name!r}, row {bad + 1}, column {name!r}: the label is none of the "
            f"{len(values)} classes that the model knows."
        )
    return np.array([class_numbers[t] for t in texts], np.int64), values


def _integer_text(text: str) -> str:
    """A class as a number, written as such: "1.0" is "1"."""
    try:
        number = float(text)
    except ValueError:
        return text
    return str(int(number)) if number.is_integer() else text


def _class_names(
    file: Path, name: str, texts: Sequence[str], classes: int | None
) -> tuple[str, ...]:
    """Integers from 0, or the texts themselves in their order."""
    try:
        labels = np.array([float(text) for text in texts])
    except ValueError:
        values = tuple(sorted(set(texts)))
        if len(values) > (classes or MAX_CLASSES) or len(values) < 2:
            raise DataError(
                f"{file.name!r}: the label {name!r} has {len(values)} values. A label has 2 to "
                f"{classes or MAX_CLASSES} classes; numbers to be learned are for --target number."
            ) from None
        return values
    top = int(min(labels.max(), 1e9)) + 1 if classes is None else classes
    bad = (labels != np.floor(labels)) | (labels < 0) | (labels >= top)
    if bad.any() or top > MAX_CLASSES:
        row = int(np.flatnonzero(bad)[0]) + 1 if bad.any() else int(labels.argmax()) + 1
        raise DataError(
            f"{file.name!r}, row {row}, column {name!r}: a class from 0 to "
            f"{min(top, MAX_CLASSES) - 1} is due. Received: another number."
        )
    return tuple(map(str, range(max(top, 2))))

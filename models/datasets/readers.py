"""Training rows: MNIST, Fashion-MNIST, and numeric tables in CSV files."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tfe_bench.csv_file import (
    MAX_TEXT,
    check_csv_column_names,
    parse_columns,
    parse_csv_label,
    read_csv,
)
from tfe_bench.errors import DataError, UsageError, check_one_of, did_you_mean
from tfe_bench.models.convert.tables import MAX_CLASSES, TARGETS, Table
from tfe_bench.models.datasets import mnist
from tfe_bench.models.layers.base import scales

Array = npt.NDArray[Any]

FASHION = Path("/usr/share/datasets/fashion-mnist")
# The published logistic regression separates the digits 0 to 4 from 5 to 9.
_FIRST_UPPER_DIGIT = 5
_TEST_PART = 5


@dataclass(frozen=True, eq=False, repr=False)
class Rows:
    """Samples and their labels, in plaintext at their owner.

    Attributes:
        x: float32 [n, ...], prepared: pictures from 0 to 1, columns of a table scaled; None for
            labels alone.
        y: [n]: 0 or 1 ("binary"), a class (integer, "classes"), or a scaled real ("number"); None
            if another owner has the labels.
        target: "binary", "classes" or "number".
        classes: number of classes, 1 for a number.
        columns: names of a table's features, empty for pictures.
        source: origin of the rows, for records; it contains no values.
        table: column names and scales for a model; None for pictures.
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
        """Select rows by a slice or an array of indices."""
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
    """Load the training and test rows of MNIST or Fashion-MNIST.

    Args:
        name: "mnist" or "fashion-mnist".
        folder: the folder of the four IDX files; None: the file that keras.datasets has downloaded,
            or the folder of the Debian package.
        target: "classes", or "binary" for classes 0 to 4 against 5 to 9.

    Raises:
        UsageError: the name or the target is unknown.
        DataError: the files are missing or damaged.
    """
    if name not in ("mnist", "fashion-mnist") or target not in ("classes", "binary"):
        raise UsageError(
            "Expected mnist or fashion-mnist, with 10 classes or 2. Received: "
            f"{name!r}.{did_you_mean(name, ('mnist', 'fashion-mnist'))} A table is a file (.csv).",
            code="unknown-name",
            operation="dataset",
            received=name,
            expected="mnist, fashion-mnist",
        )
    if name == "fashion-mnist" and folder is None:
        folder = FASHION
        if not FASHION.is_dir():
            raise DataError(
                f"Fashion-MNIST is not installed. Received: no folder {str(FASHION)!r}. Install "
                "the Debian package dataset-fashion-mnist, or pass a folder of its four IDX "
                "files (--data-dir FOLDER).",
                code="file-not-found",
                operation=str(FASHION),
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
    """Load the rows of a CSV file with a header: every column is a feature, except the label.

    Args:
        label: the column of the label; None if another owner has the labels.
        target: the type of the label: "binary" (two values), "classes" (integers from 0, or names)
            or "number".
        classes: the number of classes, for "classes".
        features: False to load the labels alone.
        standardize: scale each feature, and a number to be learned, to a mean near 0 and a
            deviation near 1. The scale follows from the rows of this file and discloses little
            about them (`scales`).
        columns: the features in their order; None: every column except the label.
        drop: columns that are not features.
        like: a model's table, whose columns, classes and scales replace those of this file.

    Raises:
        UsageError: there is no such column or target.
        DataError: the file is missing or not a numeric table; the text names rows and columns,
            never values.
        RangeError: no scale makes a column usable.
    """
    check_one_of("Expected one of these targets:", target, TARGETS, operation="target")
    file = Path(path)
    names, lines = read_csv(file)
    if like is not None:
        columns = like.columns
    if label is None and columns is None:
        check_csv_column_names(file.name, names)
    for name in [*([label] if label is not None else []), *(columns or ()), *drop]:
        if name not in names:
            raise UsageError(
                f"{file.name!r} has no column {name!r}.{did_you_mean(name, names)} Columns: "
                f"{', '.join(names[:20])}.",
                code="column-not-found",
                operation=file.name,
                received=name,
            )
    if columns is not None and (label in columns or len(set(columns)) != len(columns)):
        raise UsageError(
            "Expected each feature once, and no label among the features.",
            code="duplicate-name",
            operation="columns",
        )
    feature_names = [n for n in names if n != label] if columns is None else list(columns)
    feature_names = [n for n in feature_names if n not in drop] if features else []
    if features and not feature_names:
        raise DataError(
            f"Expected columns besides the label in {file.name!r}. Received: none.",
            code="missing-features",
            operation=file.name,
        )
    x = y = None
    scale = unit = None
    if features:
        x = parse_columns(file.name, names, lines, [names.index(n) for n in feature_names])
        if like is not None:
            scale = like.scale
        elif standardize:
            scale = scales.fit_column_scale(x, tuple(feature_names))
        # a value beyond float32 also exceeds the range of shared values
        with np.errstate(over="ignore"):
            x = (x if scale is None else scale.apply(x)).astype(np.float32)
    class_names: tuple[str, ...] = ()
    if label is not None:
        fixed_classes = like.classes if like is not None else ()
        y, class_names = _read_label_column(
            file, lines, names.index(label), label, target, classes, fixed_classes
        )
        if target == "number":
            if like is not None:
                unit = like.unit
            elif standardize:
                unit = scales.fit_column_scale(y[:, None], (label,))
            y = y if unit is None else unit.apply(y[:, None])[:, 0]
    table_facts = Table(tuple(feature_names), target, label, class_names, scale, unit)
    return Rows(
        x, y, target, max(1, len(class_names)), tuple(feature_names), file.name, table_facts
    )


def split_training_rows(rows: Rows, seed: int) -> tuple[Rows, Rows]:
    """Split rows by a seed into four fifths for training and one fifth for tests.

    Raises:
        DataError: there are too few rows.
    """
    count = len(rows) // _TEST_PART
    if not count:
        raise DataError(
            f"Expected 5 rows or more in {rows.source!r}. Received: {len(rows)}.",
            code="too-few-rows",
            operation=rows.source,
            received=len(rows),
            expected=_TEST_PART,
        )
    order = np.random.default_rng([seed, 31]).permutation(len(rows))
    return rows.take(order[count:]), rows.take(order[:count])


def _read_label_column(
    file: Path,
    lines: Sequence[Sequence[str]],
    position: int,
    name: str,
    target: str,
    classes: int | None,
    fixed_classes: tuple[str, ...],
) -> tuple[Array, tuple[str, ...]]:
    """Read the label's column; return class numbers or reals, and the names of the classes."""
    if target == "number":
        return np.array(
            [parse_csv_label(file.name, i, name, ln[position]) for i, ln in enumerate(lines)]
        ), ()
    texts = [line[position].strip() for line in lines]
    for i, text in enumerate(texts):
        if not text or text.lower() in ("nan", "na", "null"):
            raise DataError(
                f"{file.name!r}, row {i + 1}, column {name!r}: expected a label. Received: "
                "nothing. Remove the row.",
                code="missing-label",
                operation=name,
                received=i + 1,
            )
        if len(text) > MAX_TEXT:
            raise DataError(
                f"{file.name!r}, row {i + 1}, column {name!r}: expected a class of at most "
                f"{MAX_TEXT} characters.",
                code="too-large",
                operation=name,
                received=i + 1,
                expected=MAX_TEXT,
            )
    values = fixed_classes or tuple(sorted(set(texts)))
    if not fixed_classes and target == "binary":
        if set(values) <= {"0", "1"}:  # an owner may hold rows of one class only
            values = ("0", "1")
        if len(values) != 2:
            raise DataError(
                f"{file.name!r}: expected two values of the label {name!r}, preferably 0 and 1. "
                f"Received: {len(values)}. Use --target classes for more classes, or --target "
                "number for numbers.",
                code="class-count-mismatch",
                operation=name,
                received=len(values),
                expected=2,
            )
    elif not fixed_classes:
        values = _class_names(file, name, texts, classes)
    if values == tuple(map(str, range(len(values)))):
        texts = [_normalize_class_text(text) for text in texts]
    class_numbers = {text: i for i, text in enumerate(values)}
    bad = next((i for i, text in enumerate(texts) if text not in class_numbers), None)
    if bad is not None:
        raise DataError(
            f"{file.name!r}, row {bad + 1}, column {name!r}: expected one of the {len(values)} "
            "classes of the model as label.",
            code="unknown-class",
            operation=name,
            received=bad + 1,
        )
    return np.array([class_numbers[t] for t in texts], np.int64), values


def _normalize_class_text(text: str) -> str:
    """Normalize the text of an integer class: "1.0" becomes "1"."""
    try:
        number = float(text)
    except ValueError:
        return text
    return str(int(number)) if number.is_integer() else text


def _class_names(
    file: Path, name: str, texts: Sequence[str], classes: int | None
) -> tuple[str, ...]:
    """Return the class names: integers from 0 as texts, or the sorted texts themselves."""
    try:
        labels = np.array([float(text) for text in texts])
    except ValueError:
        values = tuple(sorted(set(texts)))
        if len(values) > (classes or MAX_CLASSES) or len(values) < 2:
            raise DataError(
                f"{file.name!r}: expected 2 to {classes or MAX_CLASSES} classes of the label "
                f"{name!r}. Received: {len(values)} values. Use --target number for numbers to "
                "be learned.",
                code="class-count-mismatch",
                operation=name,
                received=len(values),
            ) from None
        return values
    top = int(min(labels.max(), 1e9)) + 1 if classes is None else classes
    bad = (labels != np.floor(labels)) | (labels < 0) | (labels >= top)
    if bad.any() or top > MAX_CLASSES:
        row = int(np.flatnonzero(bad)[0]) + 1 if bad.any() else int(labels.argmax()) + 1
        raise DataError(
            f"{file.name!r}, row {row}, column {name!r}: expected a class from 0 to "
            f"{min(top, MAX_CLASSES) - 1}. Received: another number.",
            code="unknown-class",
            operation=name,
            received=row,
        )
    return tuple(map(str, range(max(top, 2))))

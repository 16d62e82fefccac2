"""Table facts of a model: names and scales of its columns, and names of its classes.

They are stored with the model: in its .keras file, and in the public facts of a deployed model.
"""

from __future__ import annotations

import json
import math
import os
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tfe_bench.cluster.schema import (
    Header,
    Mismatch,
    Rule,
    choice_field,
    declare_field,
    flag_field,
    label_rule,
    list_field,
    list_rule,
    optional_rule,
)
from tfe_bench.csv_file import MAX_COLUMNS, MAX_TEXT, parse_columns
from tfe_bench.errors import DataError, UsageError, did_you_mean
from tfe_bench.models.convert.graph import Array
from tfe_bench.models.layers.base.scales import ColumnScale

TARGETS = ("binary", "classes", "number")
MAX_CLASSES = 10_000
# Name of the member next to Keras' own parts of a .keras file; Keras ignores it.
_MEMBER_NAME = "tfe_bench.json"
_MAX_MEMBER_BYTES = 1 << 25


def _read_scale(value: object) -> ColumnScale:
    pair = list_rule(list_rule(Rule(_read_scale_number), 0, MAX_COLUMNS), 2, 2).read(value)
    if 0.0 in pair[0]:
        raise Mismatch("a list of nonzero factors and a list of offsets")
    return ColumnScale(*pair)


def _read_scale_number(value: object) -> float:
    if type(value) is not float or not math.isfinite(value):
        raise Mismatch("a list of factors and a list of offsets, all finite")
    return value


_NAME = label_rule(MAX_TEXT)
_SCALE = optional_rule(Rule(_read_scale, ColumnScale.to_header))


@dataclass(frozen=True)
class Table(
    Header,
    subject="The facts of a table",
    error=DataError,
    code="invalid-parameters",
    is_complete=True,
):
    """The columns and the label of a table.

    Attributes:
        columns: names of the features, in the model's order.
        target: "binary", "classes" or "number".
        label: name of the label, None if unknown.
        classes: names of the classes, empty for a number.
        scale: scale of the model's input columns; None for unscaled columns.
        unit: scale of the number to be learned; None for an unscaled number.
        logits: whether the model outputs logits instead of probabilities.
    """

    columns: tuple[str, ...] = list_field(_NAME, 0, MAX_COLUMNS, "invalid-name")
    target: str = choice_field(TARGETS)
    label: str | None = declare_field(optional_rule(_NAME), None)
    classes: tuple[str, ...] = list_field(_NAME, 0, MAX_CLASSES, "invalid-name", default=())
    scale: ColumnScale | None = declare_field(_SCALE, None)
    unit: ColumnScale | None = declare_field(_SCALE, None)
    logits: bool = flag_field(default=True)

    # ---- serialization

    @classmethod
    def from_header(cls, header: object) -> Table:
        """Read the table of a header from an untrusted source.

        Raises:
            DataError: the header is invalid.
        """
        table = super().from_header(header)
        if len(set(table.columns)) != len(table.columns):
            raise DataError(
                "Expected each column of a table once.", code="duplicate-name", operation="columns"
            )
        for scale, count in ((table.scale, len(table.columns)), (table.unit, 1)):
            if scale is not None and not len(scale.factor) == len(scale.offset) == count:
                raise DataError(
                    f"Expected {count} nonzero factors and {count} offsets as scale.",
                    code="invalid-parameters",
                    operation="scale",
                    expected=count,
                )
        return table

    # ---- rows

    def rows(self, names: Sequence[str], lines: Sequence[Sequence[str]], source: str) -> Array:
        """Return the features of a file's lines by column name, as unscaled float64.

        Raises:
            DataError: columns are missing (the text names all of them), or not numeric.
        """
        missing = [c for c in self.columns if c not in names]
        if missing:
            hint = did_you_mean(missing[0], names)
            raise DataError(
                f"{source!r} lacks columns that the model requires: "
                f"{', '.join(map(repr, missing[:20]))}"
                f"{f' and {len(missing) - 20} more' if len(missing) > 20 else ''}.{hint}",
                code="column-not-found",
                operation=source,
                received=missing[0],
            )
        return parse_columns(source, names, lines, [list(names).index(c) for c in self.columns])

    # ---- models

    def in_units(self, model: Any) -> Any:
        """Return the Keras model with its scales as layers, for unscaled inputs and outputs.

        Args:
            model: a Keras model of scaled columns; it becomes one layer of the new model.
        """
        if self.scale is None and self.unit is None:
            return model
        import keras

        model_input = value = keras.Input(model.input_shape[1:])
        if self.scale is not None:
            value = keras.layers.Rescaling(*self.scale.to_header(), name="columns")(value)
        value = model(value)
        if self.unit is not None:
            value = keras.layers.Rescaling(*self.unit.inverse().to_header(), name="unit")(value)
        return keras.Model(model_input, value, name=model.name)

    def probabilities(self, outputs: Any) -> Array:
        """Return class probabilities from outputs, [n, classes]; a number stays itself, [n, 1]."""
        values = np.asarray(outputs, np.float64).reshape(len(outputs), -1)
        if self.target == "number":
            return values
        if values.shape[1] == 1:
            yes = np.exp(-np.logaddexp(0, -values)) if self.logits else values
            return np.concatenate([1 - yes, yes], 1)
        if self.logits:
            values = np.exp(values - values.max(1, keepdims=True))
            values = values / values.sum(1, keepdims=True)
        return values


# ---- files


def save_with_table(model: Any, table: Table | None, path: str | Path) -> None:
    """Write a Keras model with mode 0600, and its table next to Keras' own parts."""
    before = os.umask(0o077)  # the training data is private
    try:
        model.save(path)
        if table is not None:
            with zipfile.ZipFile(path, "a") as file:
                file.writestr(_MEMBER_NAME, json.dumps(table.to_header()))
    finally:
        os.umask(before)


def load_table(path: str | Path) -> Table | None:
    """Load the table of a .keras file; return None if it has none.

    Raises:
        DataError: the file is damaged.
    """
    try:
        with zipfile.ZipFile(path) as file:
            if _MEMBER_NAME not in file.namelist():
                return None
            if file.getinfo(_MEMBER_NAME).file_size > _MAX_MEMBER_BYTES:
                raise DataError(
                    f"The names of columns in {str(path)!r} are too large.",
                    code="too-large",
                    operation=str(path),
                )
            return Table.from_header(json.loads(file.read(_MEMBER_NAME)))
    except (OSError, zipfile.BadZipFile, ValueError, RecursionError) as error:
        raise DataError(
            f"The model in {str(path)!r} cannot be read. Received: {type(error).__name__}.",
            code="invalid-model-file",
            operation=str(path),
            received=type(error).__name__,
        ) from None


def find_scaled_model(model: Any) -> Any:
    """Return the inner model of a model from `Table.in_units`, to train it again on scaled columns.

    Raises:
        UsageError: the model has no such part.
    """
    import keras

    inner = [layer for layer in model.layers if isinstance(layer, keras.Model)]
    if len(inner) != 1:
        raise UsageError(
            f"The model {model.name!r} has names and scales of columns but not the structure "
            "that `train` writes. Save it again with model.save(...), which removes them.",
            code="unsupported-model",
            operation=model.name,
        )
    return inner[0]

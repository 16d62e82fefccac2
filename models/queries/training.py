"""Tables for trainings, from their owners' and their users' side: scales, and what is aligned."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tfe_bench.cluster.client import Client
from tfe_bench.cluster.requests import Progress
from tfe_bench.cluster.stored import DATA
from tfe_bench.errors import UsageError, did_you_mean
from tfe_bench.models.programs import align as program
from tfe_bench.models.queries import explain, record_linkage
from tfe_bench.models.queries.io import EncodedColumn
from tfe_bench.models.queries.price import Price
from tfe_bench.models.queries.record_linkage import LinkageRequest, LinkedTable, check_table_names
from tfe_bench.models.queries.rights import Table, Use
from tfe_bench.models.queries.schema import ALL, LARGEST
from tfe_bench.models.queries.types import MAX_WIDTH, NUMBER
from tfe_bench.models.stored_shares import StoredEntry


class Alignment:
    """Several tables' common rows, which this client may have kept for trainings.

    Attributes:
        order: as JSON: what the workers get.

    Raises:
        UsageError, PolicyError: as aligned.derive.
    """

    def __init__(
        self,
        cluster: Client,
        order: LinkageRequest,
        tables: Sequence[Table],
        keeping: Mapping[str, Any],
    ) -> None:
        self._cluster, self._order, self._tables = cluster, order, tables
        self.order = order.header()
        self._keeping = {**keeping, "about": self.order}
        program.check_alignment(self._keeping, [])
        self._schema = record_linkage.derive_linkage(order, tables)

    def price(self, profile: str = "local") -> Price:
        """What it costs under a network profile, if all rows of the smallest table are common.

        Raises:
            UsageError: there is no such profile.
        """
        return program.price_alignment(self._order, self._schema, self._tables, profile)

    def explain(self, profiles: Sequence[str] = ("local", "wan")) -> str:
        """Bytes, rounds and seconds under profiles; what is kept, and what who learns."""
        about = self._schema.about
        table_texts = [
            f"{table.name!r} of {table.owner!r} ({table.schema.rows:,} rows) by "
            f"{', '.join(part.on)}"
            for part, table in zip(self._order.parts, self._tables, strict=True)
        ]
        lines = explain.price_table(
            [f"align {' with '.join(table_texts)}"], [self.price(each) for each in profiles]
        )
        return "\n".join(
            [
                *lines,
                f"Kept are features {', '.join(about['columns'])}, and the label "
                f"{self._order.label[1]} ({about['target']}).",
                "The workers learn this order and how many rows are common, or that these are "
                f"fewer than {self._schema.min_rows}; and whoever may train on them learns the same. "
                "Which rows these are nobody learns.",
                "A model that is trained on them tells about them whatever it tells.",
            ]
        )

    def run(self, progress: Progress | None = None) -> StoredEntry:
        """Has the workers keep the rows; they are `about["rows"]`.

        Raises:
            PolicyError: a worker does not permit it, or fewer rows are common than owners want.
            TfeBenchError: whatever else went wrong first.
        """
        profile = getattr(getattr(self._cluster, "profile", None), "name", "local")
        self._cluster.run("align", {**self._keeping, "profile": profile}, {}, progress)
        listed = self._cluster.stored(DATA.infix)
        return next(
            StoredEntry.from_row(row) for row in listed if row["name"] == self._keeping["name"]
        )


def training_scale(
    name: str, encoded: EncodedColumn, names: Sequence[str]
) -> tuple[int, int] | None:
    """(shift, center) of a column as its owner tells: near deviation and mean of its elements.

    Args:
        wanted: names of columns; "*": all that are numbers.

    Raises:
        UsageError: the column is named, and has no numbers.
    """
    kind = encoded.type
    numbers = kind.kind == NUMBER and kind.bits <= MAX_WIDTH
    if name not in names and not (ALL in names and numbers):
        return None
    if not numbers:
        raise UsageError(
            f"A scale is told of columns of numbers between bounds. Received: {name!r}, a {kind}."
        )
    present = encoded.distances if encoded.null is None else encoded.distances[encoded.null == 0]
    distances = present.astype(np.float64)
    spread = float(distances.std()) if len(distances) else 0.0
    mean = float(distances.mean()) if len(distances) else 0.0
    min_shift = max(0, math.ceil(math.log2(max(1, kind.high - kind.low) / LARGEST)))
    shift = max(min_shift, round(math.log2(spread)) if spread >= 1 else 0)
    half = max(1, (1 << shift) // 2)
    center = kind.low + half * round(mean / half)
    return shift, min(max(center, kind.low), kind.high)


def build_request(
    tables: Sequence[Table], on: Sequence[str], label: str, columns: Sequence[str] | None
) -> LinkageRequest:
    """What is aligned, as people write it.

    Args:
        on: "phone", or "phone=number" with a name for each table.
        label: "defaulted", or "accounts.defaulted".
        columns: features, likewise; None: all with the right `train`, but keys and label.

    Raises:
        UsageError: naming what does not fit.
    """
    check_table_names([table.name for table in tables])
    keys: list[list[str]] = []
    for written in on:
        names = written.split("=")
        if len(names) not in (1, len(tables)):
            raise UsageError(
                f"A key is one name, or one for each of {len(tables)} tables, KEY=KEY. "
                f"Received: {written[:80]!r}."
            )
        keys.append(names * len(tables) if len(names) == 1 else names)
    keys_by_table = [[key[i] for key in keys] for i in range(len(tables))]
    at, label_column = _find_column(tables, label)
    features: list[list[str]] = [[] for _ in tables]
    if columns is None:
        for i, table in enumerate(tables):
            features[i] = [
                name
                for name in table.schema.columns
                if table.permits(Use.TRAIN, name)
                and name not in keys_by_table[i]
                and (i, name) != (at, label_column)
            ]
    for written in columns or ():
        i, name = _find_column(tables, written)
        features[i].append(name)
    parts = [
        LinkedTable(table.name, table.deployment, tuple(k), tuple(f))
        for table, k, f in zip(tables, keys_by_table, features, strict=True)
    ]
    return LinkageRequest(tuple(parts), (tables[at].name, label_column))


def _find_column(tables: Sequence[Table], written: str) -> tuple[int, str]:
    """The table and the column that are meant.

    Raises:
        UsageError: none, or more than one.
    """
    name, point, column = written.rpartition(".")
    matching = [
        i
        for i, table in enumerate(tables)
        if column in table.schema.columns and (not point or table.name == name)
    ]
    if len(matching) == 1:
        return matching[0], column
    if matching:
        raise UsageError(
            f"Several tables have a column {column[:80]!r}. Write it as "
            f"{tables[matching[0]].name}.{column[:80]}."
        )
    all_columns = [c for t in tables for c in t.schema.columns]
    raise UsageError(
        f"None of these tables has a column {written[:80]!r}.{did_you_mean(column[:80], all_columns)} "
        f"Tables: {', '.join(t.name for t in tables)}."
    )

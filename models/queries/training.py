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
from tfe_bench.models.kept import Kept
from tfe_bench.models.programs import align as program
from tfe_bench.models.queries import aligned, explain
from tfe_bench.models.queries.aligned import Order, Part, check_names
from tfe_bench.models.queries.io import Elements
from tfe_bench.models.queries.price import Price
from tfe_bench.models.queries.rights import Table, Use
from tfe_bench.models.queries.schema import ALL, LARGEST
from tfe_bench.models.queries.types import MOST_WIDTH, NUMBER


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
        order: Order,
        tables: Sequence[Table],
        keeping: Mapping[str, Any],
    ) -> None:
        self._cluster, self._order, self._tables = cluster, order, tables
        self.order = order.header()
        self._keeping = {**keeping, "about": self.order}
        program.check(self._keeping, [])
        self._made = aligned.derive(order, tables)

    def price(self, profile: str = "local") -> Price:
        """What it costs under a network profile, if all rows of the smallest table are common.

        Raises:
            UsageError: there is no such profile.
        """
        return program.price(self._order, self._made, self._tables, profile)

    def explain(self, profiles: Sequence[str] = ("local", "wan")) -> str:
        """Bytes, rounds and seconds under profiles; what is kept, and what who learns."""
        about = self._made.about
        told = [
            f"{table.name!r} of {table.owner!r} ({table.schema.rows:,} rows) by "
            f"{', '.join(part.on)}"
            for part, table in zip(self._order.parts, self._tables, strict=True)
        ]
        lines = explain.priced(
            [f"align {' with '.join(told)}"], [self.price(each) for each in profiles]
        )
        return "\n".join(
            [
                *lines,
                f"Kept are features {', '.join(about['columns'])}, and the label "
                f"{self._order.label[1]} ({about['target']}).",
                "The workers learn this order and how many rows are common, or that these are "
                f"fewer than {self._made.least}; and whoever may train on them learns the same. "
                "Which rows these are nobody learns.",
                "A model that is trained on them tells about them whatever it tells.",
            ]
        )

    def run(self, progress: Progress | None = None) -> Kept:
        """Has the workers keep the rows; they are `about["rows"]`.

        Raises:
            PolicyError: a worker does not permit it, or fewer rows are common than owners want.
            TfeBenchError: whatever else went wrong first.
        """
        profile = getattr(getattr(self._cluster, "profile", None), "name", "local")
        self._cluster.run("align", {**self._keeping, "profile": profile}, {}, progress)
        listed = self._cluster.stored(DATA.infix)
        return next(Kept.of(row) for row in listed if row["name"] == self._keeping["name"])


def scale_of(name: str, held: Elements, wanted: Sequence[str]) -> tuple[int, int] | None:
    """(shift, center) of a column as its owner tells: near deviation and mean of its elements.

    Args:
        wanted: names of columns; "*": all that are numbers.

    Raises:
        UsageError: the column is named, and has no numbers.
    """
    kind = held.type
    numbers = kind.kind == NUMBER and kind.bits <= MOST_WIDTH
    if name not in wanted and not (ALL in wanted and numbers):
        return None
    if not numbers:
        raise UsageError(
            f"A scale is told of columns of numbers between bounds. Received: {name!r}, a {kind}."
        )
    given = held.distances if held.null is None else held.distances[held.null == 0]
    distances = given.astype(np.float64)
    spread = float(distances.std()) if len(distances) else 0.0
    mean = float(distances.mean()) if len(distances) else 0.0
    least = max(0, math.ceil(math.log2(max(1, kind.high - kind.low) / LARGEST)))
    shift = max(least, round(math.log2(spread)) if spread >= 1 else 0)
    half = max(1, (1 << shift) // 2)
    center = kind.low + half * round(mean / half)
    return shift, min(max(center, kind.low), kind.high)


def ordered(
    tables: Sequence[Table], on: Sequence[str], label: str, columns: Sequence[str] | None
) -> Order:
    """What is aligned, as people write it.

    Args:
        on: "phone", or "phone=number" with a name for each table.
        label: "defaulted", or "accounts.defaulted".
        columns: features, likewise; None: all with the right `train`, but keys and label.

    Raises:
        UsageError: naming what does not fit.
    """
    check_names([table.name for table in tables])
    keys: list[list[str]] = []
    for each in on:
        names = each.split("=")
        if len(names) not in (1, len(tables)):
            raise UsageError(
                f"A key is one name, or one for each of {len(tables)} tables, KEY=KEY. "
                f"Received: {each[:80]!r}."
            )
        keys.append(names * len(tables) if len(names) == 1 else names)
    own = [[several[i] for several in keys] for i in range(len(tables))]
    at, learned = _place(tables, label)
    features: list[list[str]] = [[] for _ in tables]
    if columns is None:
        for i, table in enumerate(tables):
            features[i] = [
                name
                for name in table.schema.columns
                if table.permits(Use.TRAIN, name)
                and name not in own[i]
                and (i, name) != (at, learned)
            ]
    for each in columns or ():
        i, name = _place(tables, each)
        features[i].append(name)
    parts = [
        Part(table.name, table.deployment, tuple(k), tuple(f))
        for table, k, f in zip(tables, own, features, strict=True)
    ]
    return Order(tuple(parts), (tables[at].name, learned))


def _place(tables: Sequence[Table], written: str) -> tuple[int, str]:
    """The table and the column that are meant.

    Raises:
        UsageError: none, or more than one.
    """
    name, point, column = written.rpartition(".")
    found = [
        i
        for i, table in enumerate(tables)
        if column in table.schema.columns and (not point or table.name == name)
    ]
    if len(found) == 1:
        return found[0], column
    if found:
        raise UsageError(
            f"Several tables have a column {column[:80]!r}. Write it as "
            f"{tables[found[0]].name}.{column[:80]}."
        )
    every = [c for t in tables for c in t.schema.columns]
    raise UsageError(
        f"None of these tables has a column {written[:80]!r}.{did_you_mean(column[:80], every)} "
        f"Tables: {', '.join(t.name for t in tables)}."
    )

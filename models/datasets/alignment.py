"""Tables for training, at owners and users: scales of columns, and record linkage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tfe_bench.cluster.client import Client
from tfe_bench.cluster.requests import Progress
from tfe_bench.cluster.stored import DATA
from tfe_bench.cluster.stored_shares import StoredEntry
from tfe_bench.errors import UsageError, did_you_mean
from tfe_bench.models.datasets import record_linkage
from tfe_bench.models.datasets.record_linkage import LinkageRequest, LinkedTable, check_table_names
from tfe_bench.models.datasets.request import parse_alignment
from tfe_bench.models.datasets.row_alignment import price_alignment
from tfe_bench.protocols.session.openings import Opening
from tfe_bench.queries import explain
from tfe_bench.queries.price import Price
from tfe_bench.queries.rights import ColumnUse, TableAccess


class Alignment:
    """A request to store the rows that several tables have in common, for training.

    Attributes:
        order: the request as JSON, as sent to the workers.
        opened: what the last run made public to the workers.

    Raises:
        UsageError, PolicyError: as record_linkage.derive_linkage.
    """

    def __init__(
        self,
        cluster: Client,
        order: LinkageRequest,
        tables: Sequence[TableAccess],
        keeping: Mapping[str, Any],
    ) -> None:
        self._cluster, self._order, self._tables = cluster, order, tables
        self.order = order.to_header()
        self._keeping = {**keeping, "about": self.order}
        parse_alignment(self._keeping, [])
        self._schema = record_linkage.derive_linkage(order, tables)
        self.opened: tuple[Opening, ...] = ()

    def price(self, profile: str = "local") -> Price:
        """Estimate the cost under a network profile, if all rows of the smallest table match.

        Raises:
            UsageError: the profile does not exist.
        """
        return price_alignment(self._order, self._schema, self._tables, profile)

    def explain(self, profiles: Sequence[str] = ("local", "wan")) -> str:
        """Describe bytes, rounds and seconds under profiles, the stored data, and
        the disclosures.
        """
        about = self._schema.about
        table_texts = [
            f"{table.name!r} of {table.owner!r} ({table.schema.rows:,} rows) by "
            f"{', '.join(part.on)}"
            for part, table in zip(self._order.tables, self._tables, strict=True)
        ]
        prices = [self.price(each) for each in profiles]
        lines = explain.format_query_price_table([f"align {' with '.join(table_texts)}"], prices)
        return "\n".join(
            [
                *lines,
                f"Stored are features {', '.join(about['columns'])}, and the label "
                f"{self._order.label[1]} ({about['target']}).",
                "The workers learn this request and the number of matched rows, or that it is "
                f"below {self._schema.min_rows}; clients that may train on the rows learn the "
                "same. No party learns which rows match.",
                *explain.describe_plan_openings(prices),
                "A model that is trained on the rows may leak information about them.",
            ]
        )

    def run(self, progress: Progress | None = None) -> StoredEntry:
        """Let the workers store the rows; `about["rows"]` of the result is their number.

        Raises:
            PolicyError: a worker does not permit it, or fewer rows match than owners require.
            TfeBenchError: the first other failure.
        """
        profile = getattr(getattr(self._cluster, "profile", None), "name", "local")
        result = self._cluster.run("align", {**self._keeping, "profile": profile}, {}, progress)
        self.opened = result.opened
        listed = self._cluster.stored(DATA.infix)
        return next(
            StoredEntry.from_row(row) for row in listed if row["name"] == self._keeping["name"]
        )


def parse_linkage_request(
    tables: Sequence[TableAccess], on: Sequence[str], label: str, columns: Sequence[str] | None
) -> LinkageRequest:
    """Parse a linkage request.

    Args:
        on: "phone", or "phone=number" with a name for each table.
        label: "defaulted", or "accounts.defaulted".
        columns: features, written the same way; None: all with the right `train`, except keys and
            label.

    Raises:
        UsageError: naming the unsuitable part.
    """
    check_table_names([table.name for table in tables])
    keys: list[list[str]] = []
    for written in on:
        names = written.split("=")
        if len(names) not in (1, len(tables)):
            raise UsageError(
                f"Expected one name as key, or one for each of {len(tables)} tables, KEY=KEY. "
                f"Received: {written[:80]!r}.",
                code="invalid-key",
                received=written[:80],
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
                if table.permits(ColumnUse.TRAIN, name)
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


def _find_column(tables: Sequence[TableAccess], written: str) -> tuple[int, str]:
    """Return the table and the column that a name means.

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
            f"Several tables have a column {column[:80]!r}. Write "
            f"{tables[matching[0]].name}.{column[:80]}.",
            code="ambiguous-column",
            received=column[:80],
        )
    all_columns = [c for t in tables for c in t.schema.columns]
    raise UsageError(
        "None of these tables has a column "
        f"{written[:80]!r}.{did_you_mean(column[:80], all_columns)} Tables: "
        f"{', '.join(t.name for t in tables)}.",
        code="column-not-found",
        received=written[:80],
    )

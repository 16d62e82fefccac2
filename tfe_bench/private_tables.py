"""Private tables as users see them: queries, and alignment of rows for training."""

from __future__ import annotations

from collections.abc import Sequence

from tfe_bench.cluster.client import Client
from tfe_bench.cluster.stored_shares import StorageRequest
from tfe_bench.models.datasets.alignment import Alignment, parse_linkage_request
from tfe_bench.queries import relations
from tfe_bench.queries.client import StoredTables


def tables(cluster: Client) -> Tables:
    """Return the private tables that a cluster's workers store and this client may use."""
    return Tables(cluster)


class Tables(StoredTables):
    __doc__ = StoredTables.__doc__

    def align(
        self,
        names: Sequence[str],
        on: Sequence[str],
        name: str,
        label: str,
        *,
        columns: Sequence[str] | None = None,
        clients: Sequence[str] = (),
        replace: bool = False,
    ) -> Alignment:
        """Prepare private record linkage: the workers store the rows that tables have in common,
        for training.

        The rows become a data set for `fit(cluster, rows_of=[name])` and `train --rows name`, in
        an order that no party knows. Their number is disclosed to the workers and to clients that
        may train on them.

        Args:
            names: 2 to 8 tables.
            on: columns of the key, "phone", or "phone=number" if the tables name it differently.
            name: name of the data set.
            label: label column, "defaulted" or "accounts.defaulted".
            columns: features, written the same way; None: all columns that this client may train
                on, except keys and label.
            clients: further clients that may train on the rows; owners must permit each.
            replace: whether to replace the data set that this client stored under the name.

        Raises:
            UsageError: a column does not exist or is unsuitable for training.
            PolicyError: an owner does not permit it.
        """
        self._cluster.check_members(clients)
        available = self.seen()
        for each in names:
            if each not in available:
                raise relations.missing_table_error(each, list(available))
        tables = [available[each] for each in names]
        order = parse_linkage_request(tables, on, label, columns)
        return Alignment(
            self._cluster, order, tables, StorageRequest(name, clients, replace, {}).to_parameters()
        )

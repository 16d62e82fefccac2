"""The privacy loss that queries have spent of a worker's tables; it survives restarts.

Each table has one file (mode 0600), written atomically before the result of a query is sent: a
worker that stops in between has spent.  The loss is that of zero-concentrated differential
privacy (Bun, Steinke 2016), which adds up over queries.  It is counted in whole billionths of
rho, so that the last query of a budget fits exactly.
"""

from __future__ import annotations

import contextlib
import json
import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

from tfe_bench import atomic
from tfe_bench.cluster.stored import check_name
from tfe_bench.errors import DataError, PolicyError, SecurityError, UsageError

UNIT = 10**9  # parts of rho
MOST = 10**6 * UNIT
SUFFIX = ".ledger.json"
_FORMAT = 1
_MOST_BYTES = 4096
# One lock for all folders: a process has one worker, and a charge takes little time.
_LOCK = threading.Lock()
_RHO = re.compile(r"[0-9]{1,7}(\.[0-9]{1,9})?", re.ASCII)


def parse_privacy_loss(text: str) -> int:
    """Parse a privacy loss from decimal digits; return billionths.

    Raises:
        UsageError: the value is not from 0.000000001 to 1000000.
    """
    loss = int(Decimal(text) * UNIT) if _RHO.fullmatch(text) else 0
    if not 1 <= loss <= MOST:
        raise UsageError(
            "A privacy loss rho is a number of 0.000000001 to 1000000 with at most 9 decimals. "
            f"Received: {text[:40]!r}.",
            code="number-out-of-range",
            operation="rho",
            received=text[:40],
            expected="0.000000001 to 1000000",
        )
    return loss


def format_privacy_loss(loss: int) -> str:
    """Format billionths as a decimal number."""
    digits = f"{loss // UNIT}.{loss % UNIT:09d}".rstrip("0")
    return digits.removesuffix(".")


@dataclass(frozen=True)
class PrivacyLossCharge:
    """The privacy loss of a query on one table.

    Attributes:
        owner: for texts.
        budget: the budget in the table's header.
        loss: the loss of the query.
    """

    owner: str
    budget: int
    loss: int


class PrivacyLedger:
    """A worker's record of spent privacy loss, in the folder of its tables.

    A table that replaces another one inherits its spent loss: the same people are in it.
    Queries are charged one at a time. If two queries reach the workers in different orders, their
    losses may be counted twice, and never less than once.
    """

    def __init__(self, folder: Path, party: int) -> None:
        self._folder, self._party = folder, party

    def get_spent(self, name: str) -> int:
        """Return the loss that all queries have spent of a table.

        Raises:
            SecurityError: the record cannot be read, or belongs to another table or worker.
        """
        path = self._record_path(name)
        try:
            with path.open("rb") as stream:
                record = json.loads(stream.read(_MOST_BYTES + 1))
        except FileNotFoundError:
            return 0
        except (OSError, ValueError, RecursionError):
            raise self._unusable_error(path) from None
        keys = {"format", "name", "party", "spent"}
        if not isinstance(record, dict) or set(record) != keys:
            raise self._unusable_error(path)
        loss = record.pop("spent")
        if record != {"format": _FORMAT, "name": name, "party": self._party}:
            raise self._unusable_error(path)
        if type(loss) is not int or not 0 <= loss <= MOST:
            raise self._unusable_error(path)
        return loss

    def charge_tables(
        self, charges: Mapping[str, PrivacyLossCharge], reported: Sequence[Mapping[str, int]] = ()
    ) -> None:
        """Charge all tables of a query, or none; the records are on disk when the method returns.

        If a record cannot be written, the records written before it remain charged.

        Args:
            reported: the losses that the other workers report for each table. The largest
                counts: a worker may have recorded a query before another one that stopped could.

        Raises:
            PolicyError: a table has too little left; nothing is spent.
            SecurityError: a record cannot be read, or another worker's is malformed.
            UsageError: a loss or a budget is out of range.
            DataError: a record cannot be written; the result must not be sent.
        """
        with _LOCK:
            for name, loss in self.check_budgets(charges, reported).items():
                self._write(name, loss)

    def check_budgets(
        self, charges: Mapping[str, PrivacyLossCharge], reported: Sequence[Mapping[str, int]] = ()
    ) -> dict[str, int]:
        """Return the spent loss of each table after a query; write nothing.

        Raises:
            PolicyError, SecurityError, UsageError: as `charge_tables`.
        """
        new_totals: dict[str, int] = {}
        for name, charge in charges.items():
            for loss in (charge.loss, charge.budget):
                if type(loss) is not int or not 1 <= loss <= MOST:
                    raise UsageError(
                        "A privacy loss is 1 to 10^15 billionths of rho.",
                        code="number-out-of-range",
                        operation="loss",
                        expected="1 to 10^15",
                    )
            spent_losses = [
                self.get_spent(name),
                *(worker_report.get(name) for worker_report in reported),
            ]
            valid_losses = [b for b in spent_losses if type(b) is int and 0 <= b <= MOST]
            if len(valid_losses) != len(spent_losses):
                raise SecurityError(
                    f"A worker does not report the spent privacy loss of table {name!r}.",
                    code="ledger-not-reported",
                    operation=name,
                )
            remaining = charge.budget - max(valid_losses)
            if charge.loss > remaining:
                raise PolicyError(
                    f"The privacy budget of table {name!r} does not allow this query. Received: "
                    f"rho {format_privacy_loss(charge.loss)}, left: "
                    f"{format_privacy_loss(max(remaining, 0))} of "
                    f"{format_privacy_loss(charge.budget)}. Spend less, or ask its owner, "
                    f"{charge.owner!r}.",
                    code="budget-exhausted",
                    operation=name,
                    received=format_privacy_loss(charge.loss),
                    expected=format_privacy_loss(max(remaining, 0)),
                )
            new_totals[name] = max(valid_losses) + charge.loss
        return new_totals

    def delete_record(self, name: str) -> None:
        """Delete the record of a table that is removed."""
        with contextlib.suppress(FileNotFoundError):
            self._record_path(name).unlink()

    def _write(self, name: str, loss: int) -> None:
        record = {"format": _FORMAT, "name": name, "party": self._party, "spent": loss}
        path = self._record_path(name)
        try:
            atomic.place_complete_file(
                path, lambda stream: stream.write(json.dumps(record).encode())
            )
            atomic.sync_folder_to_disk(self._folder)
        except OSError as error:
            # (the client reads this text, so it does not contain the file's path)
            raise DataError(
                f"Party {self._party} cannot write the spent privacy loss of table {name!r}. "
                "Received: "
                f"{error.strerror or type(error).__name__}. Its operator frees space on the disk.",
                code="ledger-not-writable",
                operation=name,
                received=error.strerror or type(error).__name__,
                party=self._party,
            ) from None

    def _record_path(self, name: str) -> Path:
        check_name(name)
        return self._folder / f"{name}{SUFFIX}"

    def _unusable_error(self, path: Path) -> SecurityError:
        return SecurityError(
            f"Party {self._party} cannot read the spent privacy loss of a table: {path.name}. No "
            "result of the table is released. Its operator restores the file, or its owner "
            "removes the table and puts it again.",
            code="ledger-not-readable",
            party=self._party,
        )

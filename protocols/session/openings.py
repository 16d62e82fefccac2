"""Openings: the values of a session that become public to workers, by kind and size."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import astuple, dataclass, replace

from tfe_bench.errors import PolicyError, ProtocolError

# Kinds of values; the first is that of programs that name none.
VALUES = "values"
SHUFFLED_COMPARISONS = "comparisons of shuffled keys"
SHUFFLED_POSITIONS = "positions of shuffled rows"
# Rows of a list.
MAX_OPENINGS = 10_000


@dataclass(frozen=True)
class Opening:
    """Values of one kind that become public to workers.

    Attributes:
        what: their kind: a plural noun such as "comparisons of shuffled keys".
        count: the number of values.
        bits: bits of all of them together.
        to: the party that learns them; None: all three.
    """

    what: str
    count: int
    bits: int
    to: int | None = None

    def __str__(self) -> str:
        """Describe the opening in one line."""
        to = "" if self.to is None else f", to party {self.to}"
        return f"{self.what} ({self.count:,} of them, {self.bits:,} bits{to})"


def describe_openings(openings: Iterable[Opening] | None) -> str:
    """Return the predicate of a sentence about a job: what it opens to workers; None: unknown."""
    if openings is None:
        return "does not state what it opens to the workers"
    listed = "; ".join(map(str, openings))
    return f"opens to the workers: {listed}" if listed else "opens nothing to the workers"


def repeat_openings(openings: Iterable[Opening], times: int) -> tuple[Opening, ...]:
    """Return what a number of equal runs opens."""
    return tuple(replace(o, count=times * o.count, bits=times * o.bits) for o in openings)


def encode_openings(openings: Iterable[Opening] | None) -> list[tuple[object, ...]] | None:
    """Return openings as rows for JSON."""
    return None if openings is None else [astuple(opening) for opening in openings]


def decode_openings(rows: object) -> tuple[Opening, ...] | None:
    """Return the openings of rows; None for None.

    Raises:
        ProtocolError: the rows are malformed.
    """
    if rows is None:
        return None
    if isinstance(rows, list) and len(rows) <= MAX_OPENINGS and all(map(_is_opening_row, rows)):
        return tuple(Opening(*row) for row in rows)
    raise ProtocolError("A worker's list of openings is malformed.", code="malformed-message")


def _is_opening_row(row: object) -> bool:
    kinds = ((str,), (int,), (int,), (int, type(None)))
    return (
        isinstance(row, list)
        and len(row) == len(kinds)
        and all(type(value) in kind for value, kind in zip(row, kinds, strict=True))
    )


class OpeningLog:
    """The openings of one session at one party, and those that its job may make.

    Args:
        permitted: kinds that the job may open; None: all.  A job that may open none is *sealed*.
    """

    def __init__(self, permitted: Iterable[str] | None = None) -> None:
        self._permitted = None if permitted is None else frozenset(permitted)
        self._entries: dict[tuple[str, int | None], tuple[int, int]] = {}

    @property
    def is_sealed(self) -> bool:
        """True if the job may open nothing."""
        return self._permitted is not None and not self._permitted

    def check_permitted(self, what: str) -> None:
        """Refuse the opening of a kind of values that the job may not open.

        Raises:
            PolicyError: naming the kind.
        """
        if self._permitted is None or what in self._permitted:
            return
        allowed = ", ".join(sorted(self._permitted)) or "nothing (it is sealed)"
        raise PolicyError(
            f"This job opens {allowed} to the workers. Received: a program that opens {what}. "
            "Declare it in the openings of the program's size, or submit the job unsealed.",
            code="opening-not-permitted",
            operation=what,
            expected=allowed,
        )

    def record_opening(self, what: str, count: int, bits: int, to: int | None) -> None:
        """Add values that have become public; `bits` are those of all of them."""
        if count:
            totals = self._entries.get((what, to), (0, 0))
            self._entries[what, to] = totals[0] + count, totals[1] + bits

    def repeat_since(self, before: Iterable[Opening], times: int) -> None:
        """Add all openings since an earlier list again, `times` times."""
        counted = {(opening.what, opening.to): opening for opening in before}
        for opening in self.list_openings():
            then = counted.get((opening.what, opening.to), Opening(opening.what, 0, 0))
            count, bits = opening.count - then.count, opening.bits - then.bits
            self.record_opening(opening.what, times * count, times * bits, opening.to)

    def list_openings(self) -> tuple[Opening, ...]:
        """Return the openings so far, one for each kind and receiver."""
        return tuple(
            Opening(what, count, bits, to) for (what, to), (count, bits) in self._entries.items()
        )

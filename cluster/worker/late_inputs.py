"""Inputs that arrive while their job is running, a few at a time: memory stays bounded."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, MutableMapping
from typing import TYPE_CHECKING

from tfe_bench.cluster.seeds import Ring
from tfe_bench.errors import JobCancelled, TfeBenchError
from tfe_bench.protocols.session import seeded

if TYPE_CHECKING:
    from tfe_bench.protocols.session.seeded import Seeded
    from tfe_bench.protocols.session.sharing import Shared

# Inputs that have arrived and are not used yet.  With this number, the client's stream pauses.
MAX_AHEAD = 4


class LateInputBuffer:
    """Late inputs of a job that have arrived, until the program reads them."""

    def __init__(self) -> None:
        self._held: dict[str, Ring] = {}
        self._changed = threading.Condition()
        self._ended: TfeBenchError | None = None

    def put_input(self, name: str, blob: Ring) -> None:
        """Keep an input that has arrived, after a wait for room.

        Raises:
            TfeBenchError: the job has ended.
        """
        with self._changed:
            self._changed.wait_for(lambda: len(self._held) < MAX_AHEAD or self._ended is not None)
            if self._ended is not None:
                raise self._ended
            self._held[name] = blob
            self._changed.notify_all()

    def take_input(self, name: str) -> Ring:
        """Return an input, after a wait for its arrival.

        Raises:
            TfeBenchError: the job has ended.
        """
        with self._changed:
            self._changed.wait_for(lambda: name in self._held or self._ended is not None)
            if name not in self._held:
                assert self._ended is not None
                raise self._ended
            blob = self._held.pop(name)
            self._changed.notify_all()
            return blob

    def end_waits(self, error: TfeBenchError | None = None) -> None:
        """Wake all waiting threads; they raise the error."""
        with self._changed:
            self._ended = (
                self._ended or error or JobCancelled("The job has ended.", code="job-cancelled")
            )
            self._held.clear()
            self._changed.notify_all()


class JobInputs(MutableMapping[str, "Shared"]):
    """A job's inputs by name; access to a late one waits for its arrival.

    All three workers access late inputs in the same order, as they compare them on access.
    """

    def __init__(self) -> None:
        self._values: dict[str, Shared | Seeded] = {}
        self._late: dict[str, Callable[[], Shared | Seeded]] = {}

    def add_late(self, name: str, make: Callable[[], Shared | Seeded]) -> None:
        """Add a late input."""
        self._late[name] = make

    def add_input(self, name: str, value: Shared | Seeded) -> None:
        """Add an input that has arrived."""
        self._late.pop(name, None)
        self._values[name] = value

    def get_held(self, name: str) -> Shared | Seeded:
        """Return an input in its stored form, a large one without its expanded masks."""
        if name in self._late:
            self._values[name] = self._late.pop(name)()
        return self._values[name]

    def __getitem__(self, name: str) -> Shared:
        self._values[name] = value = seeded.expand_masks(self.get_held(name))
        return value

    def __setitem__(self, name: str, value: Shared) -> None:
        self.add_input(name, value)

    def __delitem__(self, name: str) -> None:
        if name in self._late:
            del self._late[name]
        else:
            del self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter([*self._values, *self._late])

    def __len__(self) -> int:
        return len(self._values) + len(self._late)

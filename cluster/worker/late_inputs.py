"""Inputs that arrive while their job runs already, a few at a time: memory stays bounded."""

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

# That lie here and are not used yet.  The client's stream stands still meanwhile.
MAX_AHEAD = 4


class LateInputBuffer:
    """What has arrived of a job's late inputs, until the program asks for it."""

    def __init__(self) -> None:
        self._held: dict[str, Ring] = {}
        self._changed = threading.Condition()
        self._ended: TfeBenchError | None = None

    def put_input(self, name: str, blob: Ring) -> None:
        """Keeps what has arrived, once there is room.

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
        """Hands over an input, once it has arrived.

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
        """Has everybody who waits give up."""
        with self._changed:
            self._ended = self._ended or error or JobCancelled("The job has ended.")
            self._held.clear()
            self._changed.notify_all()


class JobInputs(MutableMapping[str, "Shared"]):
    """A job's inputs by name; a late one is waited for when it is asked for.

    All three workers ask for late inputs in the same order: they compare them then.
    """

    def __init__(self) -> None:
        self._values: dict[str, Shared | Seeded] = {}
        self._late: dict[str, Callable[[], Shared | Seeded]] = {}

    def add_late(self, name: str, make: Callable[[], Shared | Seeded]) -> None:
        """Adds a late input."""
        self._late[name] = make

    def add_input(self, name: str, value: Shared | Seeded) -> None:
        """Adds an input that is there."""
        self._late.pop(name, None)
        self._values[name] = value

    def get_held(self, name: str) -> Shared | Seeded:
        """An input as it is held here, a large one without its masks' words."""
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

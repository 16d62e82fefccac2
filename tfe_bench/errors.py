"""The one tree of errors, and the exit code of each branch.

An error's text says what was wrong, what was received and what to do, and never
carries a share, a key or any other secret.  docs/exit_codes.md lists the codes.
"""

from __future__ import annotations

import difflib
import importlib
import math
from collections.abc import Collection, Iterable
from typing import Any


class TfeBenchError(Exception):
    """Base of every error that a user, an operator or a peer can cause."""

    exit_code = 1


class UsageError(TfeBenchError):
    """The command line or a function's arguments do not fit."""

    exit_code = 2


class ConfigError(TfeBenchError):
    """A file (cluster.toml, worker.toml, a certificate, a data file) is unusable."""

    exit_code = 10


class DataError(ConfigError):
    """A data file is missing, malformed or not numeric."""


class ClusterError(TfeBenchError):
    """Workers cannot be reached, started, or agree with each other."""

    exit_code = 20


class PeerLost(ClusterError):
    """A worker died, hung or became unreachable while a job was running.

    Args:
        party: the index (0, 1 or 2) of the worker that was lost, None when it was a client.
        reason: what was observed.
    """

    exit_code = 20

    def __init__(self, party: int | None, reason: str) -> None:
        self.party = party
        self.reason = reason
        who = "client" if party is None else f"party {party}"
        super().__init__(
            f"Lost {who}: {reason}. The job ended on the other workers; "
            "start it again once the worker answers (a retry is a new session with new keys)."
        )


class JobCancelled(ClusterError):
    """The client cancelled the job, or its connection to a worker ended."""


class QueueFull(ClusterError):
    """As many jobs run and wait already as a worker's operator allows; try again later."""


class SecurityError(TfeBenchError):
    """Something was refused because it would weaken the security promise."""

    exit_code = 30


class ProtocolError(SecurityError):
    """The workers' graphs or messages disagree, or a mask would be used twice."""


class VersionMismatch(SecurityError):
    """Two sides run other versions, rings, programs or cluster files."""


class PolicyError(SecurityError):
    """A worker's operator does not allow this program, client or reveal."""


class RangeError(TfeBenchError):
    """A value cannot be represented (NaN, Inf, outside the fixed-point range).

    Args:
        position: of the value in its array, where the text names one by `place`.

    Attributes:
        outputs: of a prediction that is withheld for some samples, those of the others.
    """

    outputs: Any = None

    exit_code = 40

    def __init__(self, text: str, position: tuple[int, ...] | None = None) -> None:
        self.position = position
        super().__init__(text)

    def moved(self, where: str) -> RangeError:
        """The same error with other words for the place, such as a line of a file."""
        assert self.position is not None
        return RangeError(str(self).replace(place(self.position), where))


def place(position: tuple[int, ...]) -> str:
    """A position in an array, in words."""
    match position:
        case ():
            return "the only value"
        case (index,):
            return f"at index {index} (counted from 0)"
        case (row, column):
            return f"at row {row}, column {column} (counted from 0)"
        case _:
            return f"at index {position} (counted from 0)"


class OpsMissing(TfeBenchError):
    """The compiled ops are missing, were built for another TensorFlow, or cannot run here."""

    exit_code = 50


class ProfileError(TfeBenchError):
    """The links do not hold the figures of the network profile that was asked for."""

    exit_code = 60


def of_name(name: object) -> type[TfeBenchError] | None:
    """The error of a name that a stranger sent; None if there is none."""
    kind = globals().get(str(name))
    return kind if isinstance(kind, type) and issubclass(kind, TfeBenchError) else None


def check_known(what: str, name: str, known: Collection[str]) -> None:
    """Refuses a name that is none of the known ones, with the nearest of them.

    Raises:
        UsageError: naming what it is a name of.
    """
    if name not in known:
        raise UsageError(
            f"Unknown {what} {name!r}.{did_you_mean(name, known)} Known: {', '.join(known)}."
        )


def check_one_of(said: str, name: object, known: Collection[str]) -> None:
    """Refuses a name that is none of the known ones, with all of them and the nearest.

    Raises:
        UsageError: saying what they are.
    """
    if name not in known:
        raise UsageError(
            f"{said} {', '.join(known)}. Received: {name!r}.{did_you_mean(str(name), known)}"
        )


def unknown(said: str, name: object, known: Iterable[str]) -> UsageError:
    """What was said of a name that is none of the known ones, with the nearest and all of them."""
    return UsageError(f"{said}{did_you_mean(str(name), known)} Known: {', '.join(known)}.")


def imported(module: str, needed: str, instead: str) -> Any:
    """A library that need not be there.

    Args:
        needed: what takes it.
        instead: how to get it, or to do without.

    Raises:
        UsageError: it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError:
        raise UsageError(f"{needed}. Received: it is not installed. {instead}.") from None


def check_range(what: str, value: float, low: float, high: float | None = None) -> None:
    """Refuses a number that is not from low to high.

    Raises:
        UsageError: naming what it is.
    """
    if not low <= value <= (math.inf if high is None else high):
        limits = f"{low} or more" if high is None else f"{low} to {high}"
        shown = f"{value:g}" if isinstance(value, float) else value
        raise UsageError(f"{what} is {limits}. Received: {shown}.")


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Returns ' Did you mean "x"?' for the nearest known word, or ''."""
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f' Did you mean "{near[0]}"?' if near else ""

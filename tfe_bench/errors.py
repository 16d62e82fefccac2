"""The error classes: one tree, an exit code for each branch, a code for each condition.

An error's text states what was expected, what was received and what to do.  It never
contains a share, a key or any other secret.  docs/exit_codes.md lists exit codes and codes.
"""

from __future__ import annotations

import difflib
import importlib
import math
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Self

_CODE = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_MAX_CODE = 60
_MAX_FIELD = 300


class TfeBenchError(Exception):
    """Base class of all errors that a user, an operator or a peer can cause.

    Args:
        text: what was expected, what was received and what to do.
        code: a stable kebab-case name of the condition (tfe_bench.error_codes lists them).
        operation: the name of the operation, layer, option or column concerned.
        received: the public value that was refused; never a secret.
        expected: the values that are accepted.
        party: the index (0, 1 or 2) of the worker concerned.

    Attributes:
        reporter: the worker that reported the error to the one that raises it; None: the latter
            observed it.
    """

    exit_code = 1
    code = "error"
    reporter: int | None = None

    def __init__(
        self,
        text: str = "",
        *,
        code: str | None = None,
        operation: str | None = None,
        received: Any = None,
        expected: Any = None,
        party: int | None = None,
    ) -> None:
        super().__init__(text)
        if code is not None:
            self.code = code
        self.operation = operation
        self.received = received
        self.expected = expected
        self.party = party

    def to_fields(self) -> dict[str, Any]:
        """Return code and fields as JSON values, each text cut to 300 characters."""
        texts = {
            "code": self.code,
            "operation": self.operation,
            "received": self.received,
            "expected": self.expected,
        }
        fields = {k: str(v)[:_MAX_FIELD] for k, v in texts.items() if v is not None}
        reported = {} if self.reporter is None else {"reporter": self.reporter}
        return {**fields, "party": self.party, **reported}

    def with_text(self, text: str, operation: str | None = None) -> Self:
        """Return the same error, with its code and fields, with another text.

        Args:
            text: the new text.
            operation: the new `operation`; None keeps it.
        """
        error = type(self).__new__(type(self))
        error.__dict__.update(self.__dict__)
        error.args = (text,)
        if operation is not None:
            error.operation = operation
        return error

    def read_fields(self, fields: Mapping[str, Any]) -> None:
        """Set code and fields from untrusted JSON values; malformed ones are ignored."""
        code = fields.get("code")
        if isinstance(code, str) and len(code) <= _MAX_CODE and _CODE.fullmatch(code):
            self.code = code
        for name in ("operation", "received", "expected"):
            value = fields.get(name)
            if isinstance(value, str):
                setattr(self, name, value[:_MAX_FIELD])
        for name in ("party", "reporter"):
            if type(fields.get(name)) is int and fields[name] in (0, 1, 2):
                setattr(self, name, fields[name])


class UsageError(TfeBenchError):
    """The command line or a function's arguments do not fit."""

    exit_code = 2
    code = "invalid-usage"


class ConfigError(TfeBenchError):
    """A file (cluster.toml, worker.toml, a certificate, a data file) is unusable."""

    exit_code = 10
    code = "invalid-file"


class DataError(ConfigError):
    """A data file is missing, malformed or not numeric."""

    code = "invalid-data"


class ClusterError(TfeBenchError):
    """Workers cannot be reached, cannot be started, or disagree."""

    exit_code = 20
    code = "cluster-failed"


class PeerLost(ClusterError):
    """A worker died, hung or became unreachable while a job was running.

    Args:
        party: the index (0, 1 or 2) of the worker that was lost, None when it was a client.
        reason: what was observed.
    """

    code = "peer-lost"

    def __init__(self, party: int | None, reason: str) -> None:
        self.reason = reason
        peer = "client" if party is None else f"party {party}"
        super().__init__(
            f"Lost {peer}: {reason}. The job ended on the other workers; "
            "start it again once the worker answers (a retry is a new session with new keys).",
            party=party,
        )


class JobCancelled(ClusterError):
    """The client cancelled the job, or its connection to a worker ended."""

    code = "job-cancelled"


class QueueFull(ClusterError):
    """A worker runs and queues as many jobs as its operator allows; try again later."""

    code = "queue-full"


class SecurityError(TfeBenchError):
    """A request was refused because it would weaken the security promise."""

    exit_code = 30
    code = "insecure-request"


class ProtocolError(SecurityError):
    """The workers' graphs or messages disagree, or a mask would be used twice."""

    code = "protocol-violation"


class VersionMismatch(SecurityError):
    """Two sides run different versions, rings, programs or cluster files."""

    code = "version-mismatch"


class PolicyError(SecurityError):
    """A worker's operator does not allow this program, client or reveal."""

    code = "not-permitted"


class RangeError(TfeBenchError):
    """A value cannot be represented (NaN, Inf, outside the fixed-point range).

    Args:
        text: what was expected, what was received and what to do.
        position: index of the value in its array, if the text names it by `place`.
        fields: code and fields of `TfeBenchError`.

    Attributes:
        outputs: the outputs of the other samples, of a prediction that withholds some.
    """

    exit_code = 40
    code = "value-out-of-range"
    outputs: Any = None

    def __init__(
        self, text: str = "", position: tuple[int, ...] | None = None, **fields: Any
    ) -> None:
        self.position = position
        super().__init__(text, **fields)

    def with_place(self, words: str) -> Self:
        """Return the error with other words for the position, such as a line of a file."""
        assert self.position is not None
        error = self.with_text(str(self).replace(describe_array_position(self.position), words))
        error.position = None
        return error


def describe_array_position(position: tuple[int, ...]) -> str:
    """Describe a position in an array in words."""
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
    code = "ops-missing"


class ProfileError(TfeBenchError):
    """The measured links do not meet the figures of the requested network profile."""

    exit_code = 60
    code = "profile-not-met"


def get_error_class(name: object) -> type[TfeBenchError] | None:
    """Return the error class of a name from an untrusted message, or None."""
    kind = globals().get(str(name))
    return kind if isinstance(kind, type) and issubclass(kind, TfeBenchError) else None


def check_known(
    what: str, name: str, known: Collection[str], *, code: str = "unknown-name"
) -> None:
    """Reject an unknown name and suggest the closest match.

    Raises:
        UsageError: with `what` as its operation.
    """
    if name not in known:
        raise UsageError(
            f"Unknown {what} {name!r}.{did_you_mean(name, known)} Known: {', '.join(known)}.",
            code=code,
            operation=what,
            received=name,
            expected=", ".join(known),
        )


def check_one_of(
    text: str,
    name: object,
    known: Collection[str],
    *,
    code: str = "unknown-name",
    operation: str | None = None,
) -> None:
    """Reject a name that is not in a list of names.

    Args:
        text: the beginning of the error text; the known names follow.

    Raises:
        UsageError: with all known names and the closest match.
    """
    if name not in known:
        raise UsageError(
            f"{text} {', '.join(known)}. Received: {name!r}.{did_you_mean(str(name), known)}",
            code=code,
            operation=operation,
            received=name,
            expected=", ".join(known),
        )


def unknown_name_error(
    text: str,
    name: object,
    known: Iterable[str],
    *,
    code: str = "unknown-name",
    operation: str | None = None,
) -> UsageError:
    """Return an error for an unknown name, with all known names and the closest match.

    Args:
        text: the beginning of the error text, which contains the name.
    """
    known = list(known)
    return UsageError(
        f"{text}{did_you_mean(str(name), known)} Known: {', '.join(known)}.",
        code=code,
        operation=operation,
        received=name,
        expected=", ".join(known),
    )


def import_optional_library(module: str, needed: str, instead: str) -> Any:
    """Import an optional library.

    Args:
        needed: the beginning of the error text: what requires the library.
        instead: how to install it, or to do without.

    Raises:
        UsageError: it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError:
        raise UsageError(
            f"{needed}. Received: it is not installed. {instead}.",
            code="library-not-installed",
            operation=module,
        ) from None


def check_range(
    what: str,
    value: float,
    low: float,
    high: float | None = None,
    *,
    code: str = "number-out-of-range",
) -> None:
    """Reject a number outside of [low, high].

    Raises:
        UsageError: with `what` as its operation.
    """
    if not low <= value <= (math.inf if high is None else high):
        limits = f"{low} or more" if high is None else f"{low} to {high}"
        shown = f"{value:g}" if isinstance(value, float) else value
        raise UsageError(
            f"{what} is {limits}. Received: {shown}.",
            code=code,
            operation=what,
            received=shown,
            expected=limits,
        )


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return ' Did you mean "x"?' for the nearest known word, or ''."""
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f' Did you mean "{near[0]}"?' if near else ""

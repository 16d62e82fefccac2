"""Faults of a running job: what one worker states about them to the others and to the client.

A job that opens nothing to workers reports the code of a fault and nothing else once it computes on
private values, so that no text of a worker can carry a value that it holds.  What a peer reports is
that peer's statement: it is quoted as such, with a bounded length and without control characters.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from typing import Any

from tfe_bench import errors
from tfe_bench.cluster import json_limits
from tfe_bench.error_codes import CODES, DEFAULT_CODES
from tfe_bench.errors import (
    ClusterError,
    ConfigError,
    JobCancelled,
    PeerLost,
    PolicyError,
    ProtocolError,
    QueueFull,
    SecurityError,
    TfeBenchError,
    UsageError,
)

# The codes of faults that a sealed job reports, with their classes; others are "job-failed".
FAULT_KINDS: Mapping[str, type[TfeBenchError]] = {
    "budget-exhausted": PolicyError,
    "client-changed": SecurityError,
    "client-stalled": PolicyError,
    "deployment-changed": UsageError,
    "disk-full": ConfigError,
    "duplicate-handle": UsageError,
    "file-damaged": ConfigError,
    "file-not-readable": ConfigError,
    "file-not-writable": ConfigError,
    "graph-failed": ProtocolError,
    "held-limit-exceeded": PolicyError,
    "inconsistent-shares": ProtocolError,
    "job-cancelled": JobCancelled,
    "job-failed": ClusterError,
    "job-timeout": PolicyError,
    "material-damaged": SecurityError,
    "material-mismatch": ProtocolError,
    "opening-not-permitted": PolicyError,
    "parties-disagree": ProtocolError,
    "peer-lost": PeerLost,
    "session-aborted": ProtocolError,
    "session-ended": ProtocolError,
    "shares-mismatch": ProtocolError,
    "statements-differ": ProtocolError,
    "too-many-bytes": QueueFull,
    "too-many-names": PolicyError,
    "worker-failed": ClusterError,
}
_MEANINGS = {**CODES, **DEFAULT_CODES}
# Classes of errors that a peer may report.
_REPORTED_KINDS = (
    "ClusterError",
    "ConfigError",
    "DataError",
    "JobCancelled",
    "PeerLost",
    "PolicyError",
    "ProtocolError",
    "QueueFull",
    "RangeError",
    "SecurityError",
    "UsageError",
)
_MOST_NOTICE = 1 << 16
_MOST_TEXT, _MOST_FIELD = 1000, 300


def reduce_to_code(error: BaseException) -> TfeBenchError:
    """Return the error of a sealed job's fault: a code of FAULT_KINDS with its meaning."""
    if not isinstance(error, TfeBenchError):
        error = ClusterError(code="worker-failed")
    party, reporter = error.party if error.party in (0, 1, 2) else None, error.reporter
    if error.code not in FAULT_KINDS:
        error = ClusterError(code="job-failed")
    code, kind = error.code, FAULT_KINDS[error.code]
    source = "" if reporter is None else f"Party {reporter} reported: "
    reduced: TfeBenchError
    if kind is PeerLost:
        reduced = PeerLost(party, source.rstrip(": ") or "it died, hung or became unreachable")
    else:
        reduced = kind(
            f"{source}{_MEANINGS[code]} The job opens nothing to workers, so that they "
            "report a code alone while it runs. The log of the worker states more.",
            code=code,
            party=party,
        )
    reduced.reporter = reporter
    return reduced


def encode_notice(error: TfeBenchError) -> bytes:
    """Encode an error for the other workers."""
    fields = {"error": type(error).__name__, "message": str(error)[:_MOST_TEXT]}
    return json.dumps({**fields, **error.to_fields()}).encode()


def decode_notice(notice: bytes | memoryview, peer: int) -> TfeBenchError:
    """Return the error that a peer reports, quoted as its statement; a malformed one is an error.

    Args:
        notice: as `encode_notice` returns it; untrusted.
        peer: the party that reports it.
    """
    fields: dict[str, Any] = {}
    with contextlib.suppress(ProtocolError):
        fields = json_limits.parse_untrusted_json_object(notice, "A notice", _MOST_NOTICE)
    name, message = fields.get("error"), fields.get("message")
    kind = errors.get_error_class(name) if name in _REPORTED_KINDS else None
    if kind is None or not isinstance(message, str):
        return ProtocolError(
            f"Party {peer} ended the session without a reason.", code="session-ended", party=peer
        )
    error: TfeBenchError
    if kind is PeerLost:
        lost = fields.get("party")
        is_worker = type(lost) is int and lost in (0, 1, 2)
        error = PeerLost(lost if is_worker else None, f"reported by party {peer}")
        lost_name = "a client" if error.party is None else f"party {error.party}"
        message = f"Lost {lost_name}. The job ended: start it again once the worker answers."
    else:
        error = kind()
        error.read_fields(_quote_fields(fields))
        if error.code not in _MEANINGS:
            error.code = kind.code
    error = error.with_text(f"Party {peer} reported: {_quote_text(message, _MOST_TEXT)}")
    error.reporter = peer
    return error


def _quote_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: _quote_text(value, _MOST_FIELD) if isinstance(value, str) else value
        for name, value in fields.items()
    }


def _quote_text(text: str, max_chars: int) -> str:
    """Return a peer's text on one line of printable characters."""
    shown = (
        c if c.isprintable() else c.encode("unicode_escape").decode() for c in text[:max_chars]
    )
    return "".join(shown)[:max_chars]

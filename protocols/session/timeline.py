"""Time use of a session: totals, or every message, wait and step (core/timeline.h).

Numbers, sizes and times only: no computed values.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from tfe_bench.protocols.session import ops

if TYPE_CHECKING:
    from tfe_bench.protocols.session.party import Party

OFF, TOTALS, EVENTS = 0, 1, 2
SENT, RECEIVED, WAITED, STEP = 0, 1, 2, 3
_EVENT = np.dtype(
    [
        *((name, "<i8") for name in ("begin", "end", "about")),
        *((name, "<u8") for name in ("step", "bytes")),
        *((name, "<u4") for name in ("site", "iteration", "slot")),
        *((name, "<i4") for name in ("kind", "peer", "run_ahead")),
    ]
)


@dataclass(frozen=True)
class SessionTimeTotals:
    """Totals since recording began, in seconds.

    Attributes:
        waited: by peer: idle time (no processor in use) until one of its messages arrived.
        packed: time to copy messages into the transport's blobs.
        unpacked: time to copy them out of blobs.
        left_out: number of events that exceeded the buffer.
    """

    waited: tuple[float, float, float]
    packed: float
    unpacked: float
    left_out: int


def set_session_recording(party: Party, level: int) -> None:
    """Start recording (TOTALS, or EVENTS to keep each) or stop it (OFF); drop earlier records."""
    ops.native().observe(party.handle, level)


def read_session_time_totals(party: Party) -> SessionTimeTotals:
    """Return the totals since `set_session_recording`."""
    raw = (ctypes.c_uint64 * 6)()
    ops.native().observed(party.handle, raw)
    a, b, c, packed, unpacked = (n / 1e9 for n in raw[:5])
    return SessionTimeTotals((a, b, c), packed, unpacked, int(raw[5]))


def read_session_events(party: Party) -> npt.NDArray[np.void]:
    """Return the events since `set_session_recording`, one row each, times in ns of the host's
    clock.
    """
    native = ops.native()
    out = np.zeros(native.events(party.handle, None, 0), _EVENT)
    native.events(party.handle, out.ctypes.data_as(ctypes.c_void_p), len(out))
    return out


def read_session_clock() -> int:
    """Return the time of the events' steady clock, in ns."""
    return int(ops.native().now())


def measure_party_clock_gaps(party: Party, repetitions: int = 8) -> dict[int, int]:
    """Return by peer the least difference of receive and send time of its messages, in ns.

    The two times are those of two clocks. Parties 0 and 1, then 0 and 2 exchange the time; half of
    the difference of a pair's two gaps is the offset between their clocks.
    """
    least: dict[int, int] = {}
    for pair in ((0, 1), (0, 2)):
        for _ in range(repetitions):
            if party.index not in pair:
                party.exchange_each({})
                continue
            other = pair[0] + pair[1] - party.index
            received = party.exchange_each({other: read_session_clock().to_bytes(8, "little")})
            gap = read_session_clock() - int.from_bytes(received[other], "little")
            least[other] = min(gap, least.get(other, gap))
    return least

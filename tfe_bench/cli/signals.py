"""Signals for a main thread that waits: its handlers take no lock.

A handler runs within any step of the main thread. `threading.Event.set` in one would wait for ever
for the lock of an interrupted `Event.wait`; `SimpleQueue.put` may interrupt `get`.
"""

from __future__ import annotations

import queue
import signal

Signals = queue.SimpleQueue[int]


def catch_signals(signals: Signals, *numbers: int) -> None:
    """Put signals of these numbers into a queue from now on."""
    for number in numbers:
        signal.signal(number, lambda caught, _: signals.put(caught))


def wait_signal(signals: Signals) -> int | None:
    """Return the next signal; None after a second without one.

    A signal that arrives just before the wait does not end it, hence the second.
    """
    try:
        return signals.get(timeout=1)
    except queue.Empty:
        return None

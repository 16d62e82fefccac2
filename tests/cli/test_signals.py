"""A main thread that waits for signals."""

from __future__ import annotations

import subprocess
import sys

from tests.paths import ROOT

_WAITING = """
import queue, signal, sys
from tfe_bench.cli.signals import catch_signals, wait_signal
caught = queue.SimpleQueue()
catch_signals(caught, signal.SIGUSR1, signal.SIGTERM)
def interrupt(frame, event, argument):
    signal.raise_signal(signal.SIGUSR1)  # its handler runs here
    return interrupt
sys.settrace(interrupt)
waited = [wait_signal(caught) for _ in range(20)]
sys.settrace(None)
assert set(waited) == {signal.SIGUSR1} and caught.qsize() > 0
while not caught.empty():
    wait_signal(caught)
signal.raise_signal(signal.SIGTERM)
assert wait_signal(caught) == signal.SIGTERM and wait_signal(caught) is None
"""


def test_a_signal_at_any_step_of_a_wait_does_not_block_it() -> None:
    """Interrupt each line, also of the standard library: a handler may not wait for a lock."""
    command = [sys.executable, "-c", _WAITING]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr

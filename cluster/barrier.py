"""A barrier of all three workers."""

from __future__ import annotations

from tfe_bench.protocols.session.party import Party


def wait_at_worker_barrier(party: Party) -> None:
    """Return at the same time at all three workers, whatever the delay between them.

    After the first exchange, the last worker to arrive continues at once, one delay before the
    others receive its message.  In the second exchange the other two arrive last and together, so
    all three return at once.
    """
    for _ in range(2):
        party.exchange(b"begin")

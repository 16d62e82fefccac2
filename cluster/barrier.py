"""All three workers at one place of a program."""

from __future__ import annotations

from tfe_bench.protocols.session.party import Party


def wait_at_barrier(party: Party) -> None:
    """Returns at the same time at all three, whatever the delay between them.

    One exchange lets whoever comes last go on at once, a delay before the others hear of it.  Then
    the other two are the last, and together: from a second one all return at once.
    """
    for _ in range(2):
        party.exchange(b"begin")

"""Who deals: by each dealer are tested shares, masks and messages themselves, the rest by one.

Roles are counted from the dealer in one place (Site); the slow tests turn them for all protocols.
"""

from __future__ import annotations

from tests.edges import daily

# (not 0, by whom all is dealt where a test says nothing)
by_a_dealer = daily("dealer", range(3), [1])

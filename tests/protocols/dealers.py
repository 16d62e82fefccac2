"""Dealers of tests: tests of shares, masks and messages run with each dealer, the rest with one.

Roles are counted from the dealer in one place (Site); the slow tests rotate them for all protocols.
"""

from __future__ import annotations

from tests.edges import parametrize_daily

# (not 0, the default dealer of tests)
by_a_dealer = parametrize_daily("dealer", range(3), [1])

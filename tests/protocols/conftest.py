"""What parties receive while a test runs."""

from __future__ import annotations

from typing import Any

import pytest

from tests.protocols.views import Tap
from tfe_bench.protocols.session.party import Party, Site


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> list[list[Any]]:
    """What is received in the graphs that a test traces, by party."""
    found: list[list[Any]] = [[], [], []]
    recv = Site.recv

    def listening(site: Site, *arguments: Any, **options: Any) -> Any:
        data = recv(site, *arguments, **options)
        found[site.party.index].append(data)
        return data

    monkeypatch.setattr(Site, "recv", listening)
    return found


@pytest.fixture
def tap(monkeypatch: pytest.MonkeyPatch) -> Tap:
    """What all parties receive while the test runs."""
    tap = Tap()
    site, recv = Party.site, Site.recv

    def named(self: Party, name: str, *about: Any, dealer: int | None = None) -> Site:
        made = site(self, name, *about, dealer=dealer)
        tap.names[made.number] = name
        return made

    def tapped(self: Site, shape: Any, source: int, slot: int = 0, dtype: Any = None) -> Any:
        data = recv(self, shape, source, slot, dtype)
        tap.heard[self.party.index].append(data)
        tap.labels[self.party.index].append((self.number, slot, source))
        return data

    monkeypatch.setattr(Party, "site", named)
    monkeypatch.setattr(Site, "recv", tapped)
    return tap

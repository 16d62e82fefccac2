"""Messages that parties receive during a test, execution of graphs, and the dealer of a test."""

from __future__ import annotations

import zlib
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from tests.protocols.views import Tap
from tfe_bench.protocols.session.party import Party, Site

HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark two of the three dealers of a test as slow; tests alternate the dealer that remains.

    It depends on the test's name alone, because all processes must collect the same tests.
    """
    of_dealer: dict[tuple[str, str], dict[Any, list[pytest.Function]]] = defaultdict(dict)
    for item in items:
        if isinstance(item, pytest.Function) and HERE in item.path.parents:
            dealer = item.callspec.params.get("dealer") if hasattr(item, "callspec") else None
            place = (item.path.name, item.originalname)
            of_dealer[place].setdefault(dealer, []).append(item)
    for place, by_dealer in of_dealer.items():
        if by_dealer.keys() == {0, 1, 2}:
            kept = zlib.crc32("::".join(place).encode()) % 3
            for dealer in {0, 1, 2} - {kept}:
                for item in by_dealer[dealer]:
                    item.add_marker(pytest.mark.slow)


@pytest.fixture(autouse=True)
def unchanged_graphs(as_in_a_worker: None) -> None:
    """Keep TensorFlow from rewriting graphs; test_graph.py and other modules allow it."""


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> list[list[Any]]:
    """Record the messages received in the graphs that a test traces, by party."""
    received: list[list[Any]] = [[], [], []]
    recv = Site.recv

    def listening(site: Site, *arguments: Any, **options: Any) -> Any:
        data = recv(site, *arguments, **options)
        received[site.party.index].append(data)
        return data

    monkeypatch.setattr(Site, "recv", listening)
    return received


@pytest.fixture
def tap(monkeypatch: pytest.MonkeyPatch) -> Tap:
    """Record the messages that all parties receive while the test runs."""
    tap = Tap()
    site, recv = Party.site, Site.recv

    def named(self: Party, name: str, *about: Any, dealer: int | None = None) -> Site:
        created = site(self, name, *about, dealer=dealer)
        tap.names[created.number] = name
        return created

    def tapped(self: Site, shape: Any, source: int, slot: int = 0, dtype: Any = None) -> Any:
        data = recv(self, shape, source, slot, dtype)
        tap.heard[self.party.index].append(data)
        tap.labels[self.party.index].append((self.number, slot, source))
        return data

    monkeypatch.setattr(Party, "site", named)
    monkeypatch.setattr(Site, "recv", tapped)
    return tap

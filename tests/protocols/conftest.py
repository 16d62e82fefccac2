"""Messages that parties receive during a test, execution of graphs, and the dealer of a test."""

from __future__ import annotations

import functools
import os
import zlib
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from tfe_bench.protocols.session.party import Site

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
            if item.get_closest_marker("slow"):
                continue  # (tests that select their dealer themselves)
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


@functools.cache
def _draw_process_seed() -> int:
    setting = os.environ.get("TFE_BENCH_TEST_SEED")
    return int(setting) if setting else int.from_bytes(os.urandom(4), "little")


@pytest.fixture
def process_seed() -> int:
    """Return a seed that is the same in all tests of this process, for runs that they share."""
    value = _draw_process_seed()
    print(f"seed={value}")
    return value

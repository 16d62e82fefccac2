"""Removal at three workers, each of which may know something else of the name."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from tfe_bench.cluster.store import ANOTHERS, NONE, OWN, SUFFIX, UNREADABLE, Store
from tfe_bench.cluster.stored import DATA, Facts, Tensor
from tfe_bench.errors import ConfigError, TfeBenchError, UsageError
from tfe_bench.models import kept


class _Told:
    """A party that hears what the other two say."""

    def __init__(self, told: list[bytes]) -> None:
        self._told = told

    def exchange(self, mine: bytes) -> list[bytes]:
        assert mine in self._told
        return self._told


_STATES = list(product((NONE, OWN, ANOTHERS, UNREADABLE), repeat=3))


@pytest.mark.parametrize("states", _STATES, ids=str)
def test_a_name_goes_at_all_three_or_at_none(states: tuple[int, ...], tmp_path: Path) -> None:
    stores = [Store(tmp_path / str(p), p, 64, 16, 3).of(DATA) for p in range(3)]
    words = Tensor({"m": np.zeros(3, np.int64)}, 0, 16)
    for store, state in zip(stores, states, strict=True):
        if state != NONE:
            owner = "bob" if state == ANOTHERS else "alice"
            store.prepare(Facts("rows", owner, ("*",), "d1", {}), {"x": words}).commit()
        if state == UNREADABLE:
            (store.folder / f"rows.data{SUFFIX}").write_bytes(b"x")
    told = [bytes([store.whose("rows", "alice")]) for store in stores]
    assert [each[0] for each in told] == list(states)
    ends: list[type[TfeBenchError] | None] = []
    for store in stores:
        try:
            kept.remove(cast(Any, _Told(told)), store, "rows", "alice")
            ends.append(None)
        except TfeBenchError as error:
            ends.append(type(error))
            if isinstance(error, UsageError):
                # The same words for a name that is somebody else's and for none.
                assert str(error).startswith("This client keeps no data set 'rows'.")
    removed = OWN in states and ANOTHERS not in states
    lost = not removed and UNREADABLE in states and ANOTHERS not in states
    assert ends == [None if removed else ConfigError if lost else UsageError] * 3
    left = [store.names() == ["rows"] for store in stores]
    assert left == [state != NONE and not removed for state in states]

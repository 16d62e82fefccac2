"""Sweeps of which some cases run daily and all with `pytest -m slow`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def daily(cases: Iterable[Any], chosen: Iterable[Any]) -> list[Any]:
    """The cases as parameters, those that are not chosen among the slow tests.

    Raises:
        ValueError: one that is chosen is no case.
    """
    cases, chosen = list(cases), list(chosen)
    for case in chosen:
        cases.index(case)
    return [
        case if case in chosen else pytest.param(case, marks=pytest.mark.slow) for case in cases
    ]

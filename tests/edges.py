"""Sweeps of which some cases run daily and all with `pytest -m slow`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest


def daily(
    names: str | tuple[str, ...],
    cases: Iterable[Any],
    chosen: Iterable[Any],
    ids: Callable[[Any], str] | list[str] | None = None,
) -> pytest.MarkDecorator:
    """Parametrizes a test, with the cases that are not chosen among the slow tests.

    Args:
        names, cases, ids: as of pytest.mark.parametrize.

    Raises:
        ValueError: one that is chosen is no case.
    """
    cases, chosen = list(cases), list(chosen)
    for case in chosen:
        cases.index(case)

    def parameter(case: Any) -> Any:
        marks = () if case in chosen else (pytest.mark.slow,)
        return pytest.param(*([case] if isinstance(names, str) else case), marks=marks)

    return pytest.mark.parametrize(names, [parameter(case) for case in cases], ids=ids)

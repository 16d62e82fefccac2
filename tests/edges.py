"""Sweeps with a few daily cases; `pytest -m slow` runs all cases."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest


def parametrize_daily(
    names: str | tuple[str, ...],
    cases: Iterable[Any],
    chosen: Iterable[Any],
    ids: Callable[[Any], str] | list[str] | None = None,
) -> pytest.MarkDecorator:
    """Parametrize a test; the cases that are not chosen are slow tests.

    Args:
        names, cases, ids: as for pytest.mark.parametrize.

    Raises:
        ValueError: `cases` lacks a chosen case.
    """
    cases, chosen = list(cases), list(chosen)
    for case in chosen:
        cases.index(case)

    def mark_slow(case: Any) -> Any:
        marks = () if case in chosen else (pytest.mark.slow,)
        return pytest.param(*([case] if isinstance(names, str) else case), marks=marks)

    return pytest.mark.parametrize(names, [mark_slow(case) for case in cases], ids=ids)

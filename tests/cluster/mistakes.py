"""A settings file with one mistake."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tfe_bench.errors import ConfigError


def check_mistake_named(
    load: Callable[[Path, str], Any], file: Path, good: str, mistake: tuple[str, str, Sequence[str]]
) -> None:
    """Check that an error names the file and contains all expected parts.

    Args:
        load: reads a text as the file in its folder.
        mistake: the correct text, its replacement, and the expected parts of the error.
    """
    old, new, expected = mistake
    assert old in good
    with pytest.raises(ConfigError) as caught:
        load(file.parent, good.replace(old, new, 1))
    text = str(caught.value)
    assert str(file) in text
    for part in expected:
        assert part in text, text

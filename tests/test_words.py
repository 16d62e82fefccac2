"""Bounds on non-standard prose: the counts may only decrease.

python -m tests.test_words --write      # update tests/words.toml after a decrease
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

import pytest

from tests.prose import MEASURES, common_names

TABLE = Path(__file__).with_name("words.toml")
_HEADER = """\
# Bounds of tests/test_words.py by measure and folder: they may only fall.
# python -m tests.test_words --write renews them.  After a merge conflict, run it too.
"""


def _measure() -> dict[str, dict[str, int]]:
    """Return the counts above 0 by measure and folder, as in the table."""
    table = {
        name: {folder: n for folder, n in sorted(count().items()) if n}
        for name, count in MEASURES.items()
    }
    return {**table, "common_names": dict(sorted(common_names().items()))}


def _read_table() -> dict[str, dict[str, int]]:
    return tomllib.loads(TABLE.read_text(encoding="utf-8"))


def _format_table(table: dict[str, dict[str, int]]) -> str:
    lines = [_HEADER]
    for measure, rows in table.items():
        lines += [f"[{measure}]", *(f'"{name}" = {n}' for name, n in rows.items()), ""]
    return "\n".join(lines)


@pytest.fixture(scope="module", name="counts")
def _counts() -> dict[str, dict[str, int]]:
    return _measure()


@pytest.mark.parametrize("measure", [*MEASURES, "common_names"])
def test_counts_only_fall(measure: str, counts: dict[str, dict[str, int]]) -> None:
    bounds, now = _read_table()[measure], counts[measure]
    above = {k: (n, bounds.get(k, 0)) for k, n in now.items() if n > bounds.get(k, 0)}
    assert not above, f"{measure} rose (now, bound): {above}. tests/prose.py lists them."
    below = {k: (now.get(k, 0), n) for k, n in bounds.items() if now.get(k, 0) < n}
    assert not below, (
        f"{measure} fell (now, bound): {below}. Run python -m tests.test_words --write"
    )


def main() -> int:
    """Write the table; with --check print it only."""
    text = _format_table(_measure())
    if "--write" in sys.argv[1:]:
        TABLE.write_text(text, encoding="utf-8")
    else:
        print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())

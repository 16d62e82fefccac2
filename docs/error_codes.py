"""The list of error codes of docs/exit_codes.md: python -m docs.error_codes [--write].

Without --write it fails if the page differs from tfe_bench/error_codes.py.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tfe_bench.error_codes import CODES, DEFAULT_CODES

PAGE = Path(__file__).with_name("exit_codes.md")
START, END = "<!-- error codes -->\n", "<!-- end of error codes -->\n"


def list_codes() -> str:
    """Return the table of all codes."""
    rows = sorted({**CODES, **DEFAULT_CODES}.items())
    head = "| code | meaning |\n|---|---|\n"
    return head + "".join(f"| `{code}` | {meaning} |\n" for code, meaning in rows)


def renew(text: str) -> str:
    """Return the page with its list renewed."""
    before, _, rest = text.partition(START)
    _, _, after = rest.partition(END)
    return f"{before}{START}{list_codes()}{END}{after}"


def main() -> int:
    """Compare the page with the codes, or write it; return the exit code."""
    text = PAGE.read_text(encoding="utf-8")
    renewed = renew(text)
    if "--write" in sys.argv[1:]:
        PAGE.write_text(renewed, encoding="utf-8")
        return 0
    if renewed != text:
        print(f"{PAGE.name} differs: run python -m docs.error_codes --write", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

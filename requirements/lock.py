"""Writes the lock files: every package that an installation gets, by version and hashes.

    python requirements/lock.py

It takes uv on the path. base.txt is what `pip install .` gets and test.txt what
`pip install '.[test]'` gets; .ci/run installs from them. Run it again after a change of a range in
pyproject.toml.
"""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
HEADER = "# Written by requirements/lock.py: versions and hashes for .ci/run.\n"


def wanted(extra: str | None) -> list[str]:
    """The ranges of an installation: of the package, or also of an extra and those within it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found = list(project["dependencies"])
    pending = [] if extra is None else [extra]
    while pending:
        for each in project["optional-dependencies"][pending.pop()]:
            within = re.fullmatch(r"tfe-bench\[([\w,-]+)\]", each)
            if within:
                pending += within[1].split(",")
            else:
                found.append(each)
    return found


def main() -> None:
    """Writes both files; the larger one has the smaller one's versions."""
    constraints: list[str] = []
    for name, extra in (("base", None), ("test", "test")):
        file = ROOT / "requirements" / f"{name}.txt"
        # versions for every Python that is supported, by one resolution
        command = ["uv", "pip", "compile", "--universal", "--python-version", "3.11", "--quiet"]
        command += ["--generate-hashes", "--no-annotate", "--no-header", "--no-emit-index-url"]
        command += [*constraints, "-"]
        given = "\n".join(wanted(extra)) + "\n"
        done = subprocess.run(command, input=given, stdout=subprocess.PIPE, text=True, check=True)
        file.write_text(HEADER + done.stdout, encoding="utf-8")
        constraints = ["--constraints", str(file)]


if __name__ == "__main__":
    main()

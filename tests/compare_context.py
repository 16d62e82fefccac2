"""Options and differences of a comparison of two versions."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from tests.error_texts import ErrorFacts
from tests.rename_map import RenameMap


@dataclass(frozen=True)
class Difference:
    """One place where two versions differ beyond what is allowed."""

    line: int
    what: str
    old: str
    new: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.what}\n    - {self.old}\n    + {self.new}"


class CompareContext:
    """State that all files of a comparison share: renames, error facts and options."""

    def __init__(self, renames: RenameMap, facts: ErrorFacts, is_tests: bool = False) -> None:
        self.renames, self.facts, self.is_tests = renames, facts, is_tests
        self._texts: dict[ast.AST, set[str]] = {}

    def text_names(self, facts: ErrorFacts, node: ast.AST) -> set[str]:
        """Return the variables of a function that only error texts use."""
        if node not in self._texts:
            self._texts[node] = facts.text_names(node)
        return self._texts[node]

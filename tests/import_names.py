"""Names that import statements bind, in any order."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Any

from tests.rename_map import RenameMap
from tests.scopes import bound_name


@dataclass(frozen=True)
class ImportedName:
    """One name of an import statement."""

    is_from: bool
    level: int
    module: str
    name: str
    bound: str

    def __str__(self) -> str:
        return f"{self.module}: {self.name} as {self.bound}" if self.is_from else self.name


def binds_same_name(old: ImportedName, new: ImportedName, renames: RenameMap) -> bool:
    """Return whether two imports bind the same name, or an allowed rename of it."""
    if old.bound == new.bound:
        return True
    if (old.bound == old.name) == (new.bound == new.name):
        return renames.is_reference(old.bound, new.bound)
    return renames.is_reference(old.bound, new.bound) or new.bound == old.bound


def leading_imports(body: list[ast.stmt]) -> list[Any]:
    """Return the imports at the start of a body."""
    count = 0
    while count < len(body) and isinstance(body[count], (ast.Import, ast.ImportFrom)):
        count += 1
    return body[:count]


def flatten_imports(nodes: list[Any]) -> list[ImportedName]:
    """Return the names of consecutive import statements."""
    flat = []
    for node in nodes:
        is_from = isinstance(node, ast.ImportFrom)
        for alias in node.names:
            module, level = (node.module or "", node.level) if is_from else ("", 0)
            flat.append(
                ImportedName(is_from, level, module, alias.name, bound_name(alias, is_from))
            )
    return flat

"""Maps of renames: the allowed new name of an old name, and its scope.

One rename per line; `#` begins a comment::

    protocols.ring.arithmetic.moved -> add_constant        # function, class, module-level name
    protocols.ring.products.Made.two -> bilinear           # method, property or field
    protocols.ring.arithmetic.moved(ring) -> constant      # parameter or local variable
    models.layers.*.*.read -> parse_config                 # * stands for one dotted part
    module protocols.session.local -> protocols.session.tensor_ops
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

_LINE = re.compile(r"(?P<path>[\w.*<>]+?)(\((?P<local>\w+)\))? *-> *(?P<new>\w+)")
_MODULE_LINE = re.compile(r"module +(?P<old>[\w.]+) *-> *(?P<new>[\w.]+)")


def strip_package(name: str) -> str:
    """Return a dotted name as maps write it: `tfe_bench.cli.sort` is `cli.sort`."""
    return name.removeprefix("tfe_bench.") if name.count(".") > 1 else name


def module_of_path(path: str) -> str:
    """Return the name of a file's module as maps write it."""
    name = path.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
    return name.removeprefix("tfe_bench.")


def _is_match(pattern: tuple[str, ...], parts: tuple[str, ...]) -> bool:
    return len(pattern) == len(parts) and all(map(fnmatchcase, parts, pattern))


@dataclass
class RenameMap:
    """Allowed pairs of an old and a new name."""

    definitions: dict[tuple[str, str], list[tuple[str, ...]]] = field(default_factory=dict)
    locals: dict[tuple[str, str], list[tuple[str, ...]]] = field(default_factory=dict)
    modules: dict[str, str] = field(default_factory=dict)
    module_words: set[tuple[str, str]] = field(default_factory=set)

    @classmethod
    def read(cls, paths: Iterable[Path]) -> RenameMap:
        """Read all maps of some files.

        Raises:
            ValueError: a line is not a rename.
        """
        renames = cls()
        for path in paths:
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
                text = line.partition("#")[0].strip()
                if text and not renames._add(text):
                    raise ValueError(f"{path}:{number} is not a rename: {line!r}")
        return renames

    def _add(self, text: str) -> bool:
        if entry := _MODULE_LINE.fullmatch(text):
            old, new = (entry[x].removeprefix("tfe_bench.") for x in ("old", "new"))
            self.modules[old] = new
            words = (old.rpartition(".")[2], new.rpartition(".")[2])
            if words[0] != words[1]:
                self.module_words.add(words)
            return True
        entry = _LINE.fullmatch(text)
        if entry is None:
            return False
        parts = tuple(strip_package(re.sub(r"<(\w+|\*)>", r"\1", entry["path"])).split("."))
        if entry["local"]:
            self.locals.setdefault((entry["local"], entry["new"]), []).append(parts)
        else:
            self.definitions.setdefault((parts[-1], entry["new"]), []).append(parts)
        return True

    def map_module(self, module: str) -> str:
        """Return the new name of a module, with or without `tfe_bench.`; its packages may be
        renamed.
        """
        package = "tfe_bench." if module.startswith("tfe_bench.") else ""
        name = module.removeprefix(package)
        start = name
        while start:
            if start in self.modules:
                return package + self.modules[start] + name[len(start) :]
            start = start.rpartition(".")[0]
        return module

    def is_definition(self, path: tuple[str, ...], new: str) -> bool:
        """Return whether the map renames exactly this definition."""
        entries = self.definitions.get((path[-1], new), ())
        return any(_is_match(pattern, path) for pattern in entries)

    def is_reference(self, old: str, new: str) -> bool:
        """Return whether any function, class, method, field or module is renamed in this way."""
        return (old, new) in self.definitions or (old, new) in self.module_words

    def is_local(self, function: tuple[str, ...], old: str, new: str) -> bool:
        """Return whether the map renames a local variable of this function or of an
        enclosing one.
        """
        entries = self.locals.get((old, new), ())
        return any(
            _is_match(pattern, function[:end])
            for pattern in entries
            for end in range(1, len(function) + 1)
        )

    def is_keyword(self, old: str, new: str) -> bool:
        """Return whether a keyword argument may be renamed: it is a parameter or a field."""
        return (old, new) in self.locals or self.is_reference(old, new)

    def is_dotted(self, old: str, new: str) -> bool:
        """Return whether a text that names a module, or `module:name`, is the new name of
        another.
        """
        return self._is_dotted(*old.partition(":")[::2], *new.partition(":")[::2])

    def _is_dotted(self, old: str, old_name: str, new: str, new_name: str) -> bool:
        if old_name != new_name and not self.is_reference(old_name, new_name):
            return False
        before, after = self.map_module(old).split("."), new.split(".")
        return len(before) == len(after) and all(
            a == b or self.is_reference(a, b) for a, b in zip(before, after, strict=True)
        )

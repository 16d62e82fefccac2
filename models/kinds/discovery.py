"""What is found by being there: the classes of a package's modules."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable, Iterator
from types import ModuleType
from typing import TypeVar

T = TypeVar("T")


def import_modules(package: str, path: Iterable[str]) -> Iterator[ModuleType]:
    """The modules of a package, imported."""
    for module_info in pkgutil.iter_modules(path, package + "."):
        yield importlib.import_module(module_info.name)


def find_classes(package: str, path: Iterable[str], base: type[T], key: str) -> dict[str, type[T]]:
    """The classes that modules of a package define of a base, by what each says it is.

    Args:
        key: the class attribute that says so; a class without one is there for others to inherit.
    """
    classes_by_key: dict[str, type[T]] = {}
    for module in import_modules(package, path):
        for cls in vars(module).values():
            is_own = isinstance(cls, type) and cls.__module__ == module.__name__
            if is_own and issubclass(cls, base) and hasattr(cls, key):
                classes_by_key[getattr(cls, key)] = cls
    return classes_by_key

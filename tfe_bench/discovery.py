"""Discovery of classes: each module of a package is imported and searched for subclasses."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable, Iterator
from types import ModuleType
from typing import TypeVar

T = TypeVar("T")


def import_package_modules(package: str, path: Iterable[str]) -> Iterator[ModuleType]:
    """Import and yield the modules of a package."""
    for module_info in pkgutil.iter_modules(path, package + "."):
        yield importlib.import_module(module_info.name)


def find_package_classes(
    package: str, path: Iterable[str], base: type[T], key: str
) -> dict[str, type[T]]:
    """Collect the subclasses of a base that the modules of a package define.

    Args:
        key: the class attribute that holds the key of a class. A class without it is abstract.
    """
    classes_by_key: dict[str, type[T]] = {}
    for module in import_package_modules(package, path):
        for cls in vars(module).values():
            is_own = isinstance(cls, type) and cls.__module__ == module.__name__
            if is_own and issubclass(cls, base) and hasattr(cls, key):
                classes_by_key[getattr(cls, key)] = cls
    return classes_by_key

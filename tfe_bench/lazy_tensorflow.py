"""TensorFlow as a module that loads when one of its names is first read.

A client, a count of costs and a page of help import modules that use TensorFlow without its
seconds of loading. A name is looked up once: later reads cost less than an import statement.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import TYPE_CHECKING, Any

__all__ = ["tf"]


class _LazyModule(ModuleType):
    """A module that imports the one of its name for the first attribute that is read."""

    def __getattr__(self, name: str) -> Any:
        value = getattr(importlib.import_module(self.__name__), name)
        setattr(self, name, value)
        return value


if TYPE_CHECKING:
    import tensorflow as tf
else:
    tf = _LazyModule("tensorflow")

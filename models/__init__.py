"""Keras models as data, their private execution and training, and the data sets for them."""

from __future__ import annotations

import sys
import warnings
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

# Modules that other packages import under the name of the previous release: accepted until the
# next one.
_MOVED = {
    f"{__name__}.kinds": f"{__name__}.layers.base",
    f"{__name__}.owners": f"{__name__}.datasets.owners",
}


def _find_present_name(name: str) -> str | None:
    """Return the present name of a moved module, or of a module of a moved package."""
    if not name.startswith(f"{__name__}."):  # (asked for every module of the process)
        return None
    old = next((old for old in _MOVED if name == old or name.startswith(f"{old}.")), None)
    return None if old is None else _MOVED[old] + name.removeprefix(old)


class _MovedModules(MetaPathFinder, Loader):
    """Import of a module under its previous name, with a warning."""

    def __init__(self) -> None:
        self._specs: dict[str, ModuleSpec | None] = {}

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Find a moved module, or one in a moved package."""
        return ModuleSpec(name, self) if _find_present_name(name) else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Import the module under its present name."""
        name = _find_present_name(spec.name)
        assert name is not None
        warnings.warn(f"{spec.name} is {name} now.", DeprecationWarning, stacklevel=2)
        module = import_module(name)
        self._specs[name] = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Restore the module's own spec, which the import replaced; it was executed before."""
        module.__spec__ = self._specs.pop(module.__name__)


# First: a moved package has a path, on which its modules would be found and executed again.
sys.meta_path.insert(0, _MovedModules())

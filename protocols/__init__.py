"""Three-party replicated secret sharing as TensorFlow graphs, in families: see their READMEs."""

import importlib
import importlib.util
import warnings
from types import ModuleType

from tfe_bench.protocols import api as api  # so that private values know Python's operators

FAMILIES = ("session", "ring", "functions", "order", "nn", "api")


def __getattr__(name: str) -> ModuleType:
    """Return the module of a protocol by its name from before the families, with a warning."""
    for family in FAMILIES if not name.startswith("_") else ():
        path = f"{__name__}.{family}.{name}"
        if importlib.util.find_spec(path):
            warnings.warn(f"{__name__}.{name} is {path} now.", DeprecationWarning, stacklevel=2)
            return importlib.import_module(path)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

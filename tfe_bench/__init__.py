"""Secure three-party computation as TensorFlow graphs, and a benchmark of its costs."""

import functools as _functools
import os as _os
from collections.abc import Callable as _Callable
from importlib import import_module as _import_module
from pathlib import Path as _Path

# Logs of TensorFlow and gRPC are off: tfe_bench's errors state each problem in words.  To see
# these logs, set the variables before, or import tensorflow first.
_os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
_os.environ.setdefault("GRPC_VERBOSITY", "NONE")

_HERE = _Path(__file__).resolve().parent
if not (_HERE / "protocols").is_dir():  # a checkout without symbolic links
    __path__.append(str(_HERE.parent))

__version__ = "0.1.0"


@_functools.cache
def _public_modules() -> dict[str, str]:
    """Return the module of each public name, as __init__.pyi in this folder lists them."""
    import ast

    stub = ast.parse((_HERE / "__init__.pyi").read_text())
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    return {alias.name: str(node.module) for node in imports for alias in node.names}


# Loaded at first use: a client needs no TensorFlow, whose import takes seconds.  (Some names are
# those of Python's built-in functions; here they are attributes only.)
def __getattr__(name: str) -> object:
    if name == "__all__":
        return [*_public_modules(), "__version__"]
    if name not in _public_modules():
        from tfe_bench.errors import did_you_mean

        known = "" if name.startswith("_") else did_you_mean(name, [*_public_modules()])
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}.{known}")
    value = getattr(_import_module(_public_modules()[name]), name)
    return _dispatch_private_arrays(name, value) if _is_public_operation(name) else value


def _is_public_operation(name: str) -> bool:
    """Return whether a public name is an operation on private values."""
    module = _public_modules()[name]
    return module.startswith(("tfe_bench.protocols.api.", "tfe_bench.protocols.ring."))


@_functools.cache
def _dispatch_private_arrays(name: str, function: _Callable[..., object]) -> _Callable[..., object]:
    """Wrap an operation: values with an `__tfe_operation__` (lazy private arrays) run their own."""

    @_functools.wraps(function)
    def operation(*args: object, **named: object) -> object:
        for value in (*args, *named.values()):
            parts = value if isinstance(value, (list, tuple)) else (value,)
            for part in parts:
                override = getattr(type(part), "__tfe_operation__", None)
                if override is not None:
                    return override(part, name, args, named)
        return function(*args, **named)

    return operation


def __dir__() -> list[str]:
    return sorted({*globals(), *_public_modules()})

"""The compiled library of the curve: signatures of its functions, and checks of their arrays."""

from __future__ import annotations

import ctypes
import functools
import os
from pathlib import Path
from typing import Any, Final

import numpy as np

from tfe_bench.benchmarks.technologies.functional.curve_build import find_curve_library
from tfe_bench.errors import OpsMissing, UsageError

_VERSION: Final = b"tfe_bench curve 1"
_POINTER: Final = ctypes.c_void_p
_LONG: Final = ctypes.c_int64
_INT: Final = ctypes.c_int32
# Return type and arguments of each function: p is an array, l an int64_t, i an int32_t.
_SIGNATURES: Final = {
    "comb_bytes": (_LONG, ""),
    "affine_bytes": (_LONG, ""),
    "point_bytes": (_LONG, ""),
    "reduce": (None, "plp"),
    "muladd": (None, "ppplp"),
    "reduced": (_INT, "pl"),
    "inner_products": (None, "pppplp"),
    "combs": (_LONG, "plp"),
    "multiply_base": (None, "plp"),
    "encrypt": (None, "plllppilp"),
    "decode": (_LONG, "plp"),
    "evaluate": (None, "pllpppplllp"),
    "encode": (None, "plp"),
    "edwards": (None, "pp"),
    "places": (_LONG, "i"),
    "fill_table": (None, "pi"),
    "find": (None, "pipllpp"),
    "walk": (_INT, "plp"),
}


def open_curve_library(path: Path) -> Any:
    """Load a library and declare the signatures of its functions.

    Raises:
        OpsMissing: the library is missing, damaged or of another version.
    """
    again = f"Remove {str(path)!r}: the next use compiles it."
    try:
        library = ctypes.CDLL(os.fspath(path))
        library.tfe_curve_version.restype = ctypes.c_char_p
        version = library.tfe_curve_version()
    except (OSError, AttributeError) as error:
        raise OpsMissing(
            f"The compiled curve cannot be loaded ({error}). {again}",
            code="curve-not-loadable",
        ) from error
    if version != _VERSION:
        raise OpsMissing(
            f"The compiled curve is of another version: {version!r}. {again}",
            code="curve-version-mismatch",
            received=version,
            expected=_VERSION,
        )
    kinds = {"p": _POINTER, "l": _LONG, "i": _INT}
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(library, f"tfe_curve_{name}")
        function.restype, function.argtypes = result, [kinds[a] for a in arguments]
    return library


@functools.cache
def load_curve_library() -> Any:
    """Return the library of this package, compiled at its first use and loaded once.

    Raises:
        OpsMissing: it cannot be compiled, or not be loaded.
    """
    return open_curve_library(find_curve_library())


@functools.cache
def count_point_words(kind: str) -> int:
    """Count the 64-bit words of a "comb", "affine" or "point"."""
    return int(getattr(load_curve_library(), f"tfe_curve_{kind}_bytes")()) // 8


def curve_array_address(subject: str, array: Any, kind: type, *shape: int | None) -> Any:
    """Return an array's address after a check of type and shape (None: any extent).

    Raises:
        UsageError: the value is not such an array.
    """
    fits = (
        isinstance(array, np.ndarray)
        and array.dtype == kind
        and array.ndim == len(shape)
        and all(due in (None, n) for due, n in zip(shape, array.shape, strict=True))
        and array.flags.c_contiguous
        and array.flags.aligned
    )
    if not fits:
        due = ["any" if n is None else n for n in shape]
        shown = f"{array.dtype} {list(array.shape)}" if isinstance(array, np.ndarray) else "none"
        raise UsageError(
            f"{subject} is a contiguous {kind.__name__} array {due}. Received: {shown}.",
            code="invalid-array",
            operation=subject,
            received=shown,
        )
    return array.ctypes.data

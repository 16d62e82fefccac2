"""Libraries of the extra `technologies`, imported when something needs them."""

from __future__ import annotations

import importlib
from typing import Any

from tfe_bench.errors import ConfigError


def import_library(module: str, what: str) -> Any:
    """Imports a library of the extra `technologies`.

    Raises:
        ConfigError: it is not installed; says how to get it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(
            f"{what} needs the library {module}, which cannot be imported ({error}). Install it: "
            "pip install '.[technologies]' in the checkout."
        ) from error

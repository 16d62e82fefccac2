"""Libraries of the extra `technologies`, imported on first use."""

from __future__ import annotations

import importlib
from typing import Any

from tfe_bench.errors import ConfigError


def import_library(module: str, subject: str) -> Any:
    """Import a library of the extra `technologies`.

    Args:
        module: the name of the library's module.
        subject: the feature that requires the library, as the error text names it.

    Raises:
        ConfigError: the library cannot be imported; the text has the command that installs it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(
            f"{subject} requires the library {module}. Received: it cannot be imported ({error}). "
            "Install it: pip install '.[technologies]' in the checkout.",
            code="library-not-installed",
            operation=module,
        ) from error

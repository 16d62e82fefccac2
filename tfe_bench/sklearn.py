"""Estimators of scikit-learn on private rows: pip install '.[sklearn]'."""

from __future__ import annotations

from tfe_bench.errors import ConfigError


class LibraryMissing(ConfigError, ImportError):
    """scikit-learn is not installed."""


try:
    from tfe_bench.models.estimators.layered import PrivateMLPClassifier, PrivateMLPRegressor
    from tfe_bench.models.estimators.linear import (
        PrivateLinearRegression,
        PrivateLogisticRegression,
    )
except ImportError as error:
    raise LibraryMissing(
        f"tfe_bench.sklearn needs scikit-learn, which cannot be imported ({error}). Install it: "
        "pip install '.[sklearn]' in the checkout.",
        code="library-not-installed",
        operation="scikit-learn",
    ) from error

__all__ = [
    "PrivateLinearRegression",
    "PrivateLogisticRegression",
    "PrivateMLPClassifier",
    "PrivateMLPRegressor",
]

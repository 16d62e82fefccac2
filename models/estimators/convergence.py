"""Distance of a linear model from its optimum: one step of Newton's method, in plaintext.

The client has the rows and the trained weights, so nothing is sent.
"""

from __future__ import annotations

import warnings

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from tfe_bench.models.convert.graph import Array

# Predictions of training rows that would still change by more are not those of the optimum. The
# threshold exceeds the rounding of fixed point; the unit is a probability or the target's
# deviation.
MAX_CHANGE = 0.02
# Largest number of columns for second derivatives, and number of rows for their estimate.
_MAX_COLUMNS, _MAX_ROWS = 1000, 20_000
# Fraction of the largest second derivative that is added to all.
_RIDGE = 1e-9


def class_probabilities(outputs: Array) -> Array:
    """Return class probabilities, [rows, classes]; a single logit is that of the second class."""
    if outputs.shape[1] == 1:
        outputs = np.concatenate([np.zeros_like(outputs), outputs], 1)
    exponentials = np.exp(outputs - outputs.max(1, keepdims=True))
    return np.asarray(exponentials / exponentials.sum(1, keepdims=True))


def estimate_prediction_change(
    x: Array, y: Array, weights: Array | None, kernel: Array, bias: Array, penalty: float
) -> float:
    """Estimate by how much a prediction of a training row would still change.

    Args:
        x: scaled columns, [n, columns].
        y: classes by number (integers), or numbers of deviation 1 (floats), [n].
        weights: weights of samples, [n], at any scale; None: 1 each.
        kernel, bias: trained, [columns, outputs] and [outputs].
        penalty: factor of the kernel's squares in the loss.

    Returns 0 if there are too many columns for an estimate.
    """
    if x.shape[1] > _MAX_COLUMNS:
        return 0.0
    x = np.concatenate([x, np.ones((len(x), 1))], 1)
    w = np.concatenate([kernel, bias[None]], 0).astype(np.float64)
    weight_shares = np.ones(len(x)) if weights is None else weights
    weight_shares = weight_shares / weight_shares.sum()
    z = x @ w
    if np.issubdtype(y.dtype, np.integer):
        p = class_probabilities(z)
        one_hot_labels = np.eye(p.shape[1])[y]
        error, curvature = (p - one_hot_labels)[:, -z.shape[1] :], (p * (1 - p))[:, -z.shape[1] :]
    else:
        error, curvature = 2 * (z - y[:, None]), np.full_like(z, 2.0)
    squares = np.full(len(w), 2 * penalty)
    squares[-1] = 0.0  # the bias has no penalty
    gradient = x.T @ (error * weight_shares[:, None]) + squares[:, None] * w
    sampled_rows = slice(None, None, -(-len(x) // _MAX_ROWS))
    newton_changes = np.zeros_like(z)
    for k in range(z.shape[1]):
        row_curvature = (
            curvature[sampled_rows, k]
            * weight_shares[sampled_rows]
            / weight_shares[sampled_rows].sum()
        )
        hessian = x[sampled_rows].T @ (x[sampled_rows] * row_curvature[:, None]) + np.diag(squares)
        hessian += _RIDGE * max(1e-12, np.abs(hessian).max()) * np.eye(len(w))
        newton_changes[:, k] = x @ np.linalg.solve(hessian, gradient[:, k])
    if np.issubdtype(y.dtype, np.integer):
        return float(np.abs(class_probabilities(z - newton_changes) - class_probabilities(z)).max())
    return float(np.abs(newton_changes).max())


def warn_unconverged_estimator(change: float, quantity: str, epochs: int) -> None:
    """Warn as scikit-learn does if a training stopped before its optimum.

    Args:
        quantity: name of the predictions.
    """
    if change > MAX_CHANGE:
        warnings.warn(
            f"The training stopped before it converged: {quantity} would still change by up to "
            f"about {change:.2g}. Use a larger max_iter (now {epochs}).",
            ConvergenceWarning,
            stacklevel=5,
        )

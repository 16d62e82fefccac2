"""Early stopping: Keras' EarlyStopping on the revealed loss, decided by each worker.

The loss is public and the same at all three workers, and so is the decision.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from tfe_bench.cluster.schema import (
    Header,
    Mismatch,
    Rule,
    declare_field,
    flag_field,
    integer_field,
    optional_rule,
)

_MOST_EPOCHS = 100_000


def _read_finite(value: object) -> float:
    if type(value) is not float or not math.isfinite(value):
        raise Mismatch("a finite number", "not-finite")
    return value


_FINITE = Rule(_read_finite)


@dataclass(frozen=True)
class EarlyStoppingRule(
    Header, subject="A stopping rule", code="invalid-stopping-rule", is_complete=True
):
    """The rule, and its progress.

    Attributes:
        patience: epochs without a better loss after which training ends.
        min_delta: the smallest improvement that counts.
        baseline: a loss to fall below as well; None for none.
        start_from_epoch: the first epoch that counts.
        higher: whether a higher loss is better (Keras' mode="max").

    Raises:
        UsageError: numbers do not fit.
    """

    patience: int = integer_field(0, _MOST_EPOCHS, default=0)
    min_delta: float = declare_field(_FINITE, 0.0)
    baseline: float | None = declare_field(optional_rule(_FINITE), None)
    start_from_epoch: int = integer_field(0, _MOST_EPOCHS, default=0)
    higher: bool = flag_field(default=False)
    _losses: dict[str, float] = field(default_factory=dict, init=False, repr=False, compare=False)
    _waits: list[int] = field(default_factory=list, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self.check_fields()

    def should_stop(self, epoch: int, loss: float) -> bool:
        """Return whether training ends after an epoch, counted from 0, with this loss."""
        if epoch < self.start_from_epoch:
            return False
        self._waits.append(epoch)
        if self._is_better(loss, self._losses.get("best")):
            self._losses["best"] = loss
            if self.baseline is None or self._is_better(loss, self.baseline):
                self._waits.clear()
            return False
        return len(self._waits) >= self.patience and epoch > 0

    def _is_better(self, loss: float, reference: float | None) -> bool:
        if reference is None:
            return True
        delta = abs(self.min_delta)
        # in float32, as in Keras
        new_loss, before = (
            np.float32(loss - delta if self.higher else loss + delta),
            np.float32(reference),
        )
        return bool(new_loss > before if self.higher else new_loss < before)

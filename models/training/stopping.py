"""Early stopping: Keras' EarlyStopping on the revealed loss, decided by each worker.

The loss is public and the same at all three workers, and so is the decision.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tfe_bench.errors import UsageError

_MOST_EPOCHS = 100_000


@dataclass
class EarlyStoppingRule:
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

    patience: int = 0
    min_delta: float = 0.0
    baseline: float | None = None
    start_from_epoch: int = 0
    higher: bool = False
    _best: float | None = field(default=None, init=False, repr=False)
    _wait: int = field(default=0, init=False, repr=False)

    def __post_init__(self) -> None:
        for name in ("patience", "start_from_epoch"):
            value = getattr(self, name)
            if type(value) is not int or not 0 <= value <= _MOST_EPOCHS:
                raise UsageError(
                    f"Expected {name} of 0 to {_MOST_EPOCHS} epochs. Received: {value!r}.",
                    code="number-out-of-range",
                    operation=name,
                    received=value,
                )
        for name, value in (("min_delta", self.min_delta), ("baseline", self.baseline)):
            if name == "baseline" and value is None:
                continue
            if type(value) is not float or not math.isfinite(value):
                raise UsageError(
                    f"Expected {name} as a finite number. Received: {value!r}.",
                    code="not-finite",
                    operation=name,
                    received=value,
                )
        if type(self.higher) is not bool:
            raise UsageError(
                f"Expected higher as true or false. Received: {self.higher!r}.",
                code="wrong-type",
                operation="higher",
                received=self.higher,
            )

    def should_stop(self, epoch: int, loss: float) -> bool:
        """Return whether training ends after an epoch, counted from 0, with this loss."""
        if epoch < self.start_from_epoch:
            return False
        self._wait += 1
        if self._is_better(loss, self._best):
            self._best = loss
            if self.baseline is None or self._is_better(loss, self.baseline):
                self._wait = 0
            return False
        return self._wait >= self.patience and epoch > 0

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

    def to_header(self) -> dict[str, Any]:
        """Return the rule as a JSON object."""
        return {name: getattr(self, name) for name in _NAMES}

    @classmethod
    def from_header(cls, header: object) -> EarlyStoppingRule:
        """Read the rule of a header, which may come from an untrusted client.

        Raises:
            UsageError: the header is invalid.
        """
        if not isinstance(header, Mapping) or set(header) != set(_NAMES):
            raise UsageError(
                f"Expected {', '.join(_NAMES)} in a stopping rule.",
                code="invalid-stopping-rule",
            )
        return cls(**header)


_NAMES = ("patience", "min_delta", "baseline", "start_from_epoch", "higher")

"""Keras' callbacks in a private training.

Between epochs the training runs at the workers, and no party sees its values. So a callback that
depends on the epoch's number is evaluated before; EarlyStopping on the revealed loss is a rule that
the workers apply; all others are called after the training, epoch by epoch, with the revealed
values of each epoch and, if they use a model, with its weights at that time.
"""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tfe_bench.errors import UsageError
from tfe_bench.models.training.plaintext import build_keras_optimizer
from tfe_bench.models.training.recipe import Recipe
from tfe_bench.models.training.schedules import LearningRateSchedule, is_real_schedule_option
from tfe_bench.models.training.stopping import EarlyStoppingRule

_REFUSED = {
    "BackupAndRestore": "checkpoint=NAME has the workers keep their shares, and goes on from them",
    "ProgbarLogger": "verbose=1 shows progress",
    "ReduceLROnPlateau": "it acts on a loss in the middle of a training: use "
    "LearningRateScheduler, which acts by the epoch's number",
    "SwapEMAWeights": "averages of weights stay private",
    "TerminateOnNaN": "guard_every=N looks whether weights leave their range",
}
_BATCHES = ("on_batch_begin", "on_batch_end", "on_train_batch_begin", "on_train_batch_end")
_TESTS = tuple(
    f"on_{what}_{when}"
    for what in ("test", "predict", "test_batch", "predict_batch")
    for when in ("begin", "end")
)


@dataclass(frozen=True, eq=False)
class TrainingCallbacks:
    """The requirements of a training's callbacks.

    Attributes:
        deferred: callbacks that are called after the training.
        scheduler: LearningRateScheduler, None for none.
        stopping: the rule of an EarlyStopping, None for none.
        snapshots: whether some need the weights after each epoch.
    """

    deferred: tuple[Any, ...] = ()
    scheduler: Any = None
    stopping: EarlyStoppingRule | None = None
    snapshots: bool = False

    @classmethod
    def from_keras(cls, callbacks: Any, known: Sequence[str]) -> TrainingCallbacks:
        """Check the callbacks of a `fit`.

        Args:
            known: names of the values that are revealed of each epoch.

        Raises:
            UsageError: private training cannot support a callback; the text suggests a replacement.
        """
        if callbacks is None:
            return cls()
        import keras

        callback_list = list(callbacks) if isinstance(callbacks, (list, tuple)) else [callbacks]
        for callback in callback_list:
            if not isinstance(callback, keras.callbacks.Callback) or isinstance(
                callback, keras.callbacks.CallbackList
            ):
                raise UsageError(
                    "Expected keras.callbacks.Callback objects as callbacks, one or a list. "
                    "Received: "
                    f"{type(callback).__name__}.",
                    code="wrong-type",
                    operation="callbacks",
                    received=type(callback).__name__,
                )
            _check_keras_callback(callback, known)
        rates = [c for c in callback_list if type(c) is keras.callbacks.LearningRateScheduler]
        stops = [c for c in callback_list if type(c) is keras.callbacks.EarlyStopping]
        for same_kind in (rates, stops):
            if len(same_kind) > 1:
                raise UsageError(
                    f"Expected at most one {type(same_kind[0]).__name__}. Received: "
                    f"{len(same_kind)}.",
                    code="duplicate-name",
                    operation=type(same_kind[0]).__name__,
                )
        deferred = tuple(c for c in callback_list if c not in rates)
        return cls(
            deferred,
            rates[0] if rates else None,
            _build_early_stopping_rule(stops[0]) if stops else None,
            any(_callback_takes_weights(c) for c in deferred),
        )

    def apply_schedule(
        self, recipe: Recipe, first: int, epochs: int, steps_per_epoch: int
    ) -> Recipe:
        """Return the recipe with the rates of a LearningRateScheduler for all epochs.

        Args:
            first, epochs: the first epoch, and the end of the epochs.
            steps_per_epoch: steps of an epoch.

        Raises:
            UsageError: a rate is invalid, or the optimizer already has a schedule.
        """
        if self.scheduler is None or not steps_per_epoch:
            return recipe
        schedule = recipe.optimizer.schedule
        if schedule.kind != "constant":
            raise UsageError(
                "LearningRateScheduler requires an optimizer with a constant rate. Received: a "
                f"schedule ({schedule.kind}).",
                code="conflicting-options",
                operation="LearningRateScheduler",
                received=schedule.kind,
            )
        rate, rates = schedule.options["rate"], []
        for epoch in range(first, epochs):
            rate = _compute_epoch_learning_rate(
                self.scheduler.schedule, epoch, float(np.float32(rate))
            )
            if not is_real_schedule_option(rate):
                raise UsageError(
                    "Expected a learning rate from 0 to 10^6. Received: "
                    f"{str(rate)[:40]!r} for epoch {epoch}.",
                    code="number-out-of-range",
                    operation="learning_rate",
                    received=rate,
                )
            rates.append(float(rate))
        changes = [i for i in range(1, len(rates)) if rates[i] != rates[i - 1]]
        piecewise = LearningRateSchedule(
            "piecewise",
            {
                "boundaries": [i * steps_per_epoch - 1 for i in changes],
                "values": [rates[0], *(rates[i] for i in changes)],
            },
        )
        return replace(recipe, optimizer=replace(recipe.optimizer, schedule=piecewise))

    def replay_callbacks(
        self,
        model: Any,
        recipe: Recipe,
        epochs: Sequence[int],
        logs: Sequence[Mapping[str, float]],
        set_weights: Callable[[int], None],
        params: Mapping[str, Any],
    ) -> int:
        """Call the deferred callbacks; returns the number of epochs that they accept.

        Args:
            model: the model for the callbacks; it has the initial weights of the training.
            epochs, logs: numbers of the epochs, and the revealed values of each.
            set_weights: sets the model's weights to those after an epoch, by its index.
            params: parameters of the training, as Keras passes them.
        """
        for callback in self.deferred:
            # ("auto" needs metrics that exist only in Keras' own training)
            if getattr(callback, "mode", None) == "auto" and hasattr(callback, "monitor"):
                callback.mode = "max" if callback.monitor.endswith("accuracy") else "min"
            callback.set_params(dict(params))
        own_optimizer = vars(model).get("optimizer")
        optimizer = build_keras_optimizer(
            replace(recipe.optimizer, schedule=LearningRateSchedule("constant", {"rate": 0.0}))
        )
        object.__setattr__(model, "optimizer", optimizer)  # (TensorBoard shows its rate)
        passed = 0
        try:
            model.stop_training = False
            for callback in self.deferred:
                callback.set_model(model)
                callback.on_train_begin()
            for place, (epoch, known) in enumerate(zip(epochs, logs, strict=True)):
                optimizer.learning_rate = known["learning_rate"]
                for callback in self.deferred:
                    callback.on_epoch_begin(epoch)
                set_weights(place)
                epoch_logs = dict(known)
                for callback in self.deferred:
                    callback.on_epoch_end(epoch, epoch_logs)
                passed += 1
                if model.stop_training:
                    break
            for callback in self.deferred:
                callback.on_train_end(dict(logs[passed - 1]) if passed else {})
        finally:
            if own_optimizer is None:
                object.__delattr__(model, "optimizer")
            else:
                object.__setattr__(model, "optimizer", own_optimizer)
        return passed


def _check_keras_callback(callback: Any, known: Sequence[str]) -> None:
    """Refuse a callback that needs private values, or hooks that are never called."""
    import keras

    kinds = keras.callbacks
    name = type(callback).__name__
    if type(callback) is getattr(kinds, name, None) and name in _REFUSED:
        raise UsageError(
            f"fit does not support {name}: {_REFUSED[name]}.",
            code="unsupported-callback",
            operation=name,
        )
    if type(callback) is kinds.EarlyStopping:
        if callback.monitor != "loss" or "loss" not in known:
            raise UsageError(
                "EarlyStopping requires a value that the workers reveal: monitor='loss' with "
                "reveal_loss=True, which publishes the mean loss of each epoch. Received: "
                f"monitor={callback.monitor!r}{'' if 'loss' in known else ', no reveal_loss'}.",
                code="value-not-revealed",
                operation="EarlyStopping",
                received=callback.monitor,
            )
        return
    if type(callback) is kinds.ModelCheckpoint:
        if callback.save_freq != "epoch":
            raise UsageError(
                "ModelCheckpoint requires save_freq='epoch'.",
                code="unsupported-argument",
                operation="ModelCheckpoint",
                received=callback.save_freq,
            )
        if callback.save_best_only and callback.monitor not in known:
            raise UsageError(
                f"ModelCheckpoint requires a revealed value of an epoch: {', '.join(known)}. "
                "Received: "
                f"monitor={callback.monitor!r}. reveal_loss=True adds loss, validation_data adds "
                "val_accuracy or val_mse.",
                code="value-not-revealed",
                operation="ModelCheckpoint",
                received=callback.monitor,
            )
        return
    if type(callback) is kinds.TensorBoard:
        if callback.update_freq != "epoch":
            raise UsageError(
                "TensorBoard requires update_freq='epoch'.",
                code="unsupported-argument",
                operation="TensorBoard",
                received=callback.update_freq,
            )
        if importlib.util.find_spec("tensorboard") is None:
            raise UsageError(
                "TensorBoard requires the package tensorboard, which is not installed.",
                code="library-not-installed",
                operation="TensorBoard",
            )
        return
    hooks = [
        h for h in (*_BATCHES, *_TESTS) if _overrides_callback_hook(callback, h, kinds.Callback)
    ]
    if hooks:
        raise UsageError(
            "Callbacks support on_epoch_begin, on_epoch_end, on_train_begin and on_train_end. "
            f"Received: {name} with {', '.join(hooks)}. Values of single batches stay private.",
            code="unsupported-callback",
            operation=name,
            received=", ".join(hooks),
        )


def _overrides_callback_hook(callback: Any, hook: str, base: Any) -> bool:
    if hook in vars(callback):
        return True
    return getattr(type(callback), hook, None) is not getattr(base, hook)


def _callback_takes_weights(callback: Any) -> bool:
    import keras

    kinds = keras.callbacks
    if type(callback) in (kinds.CSVLogger, kinds.History):
        return False
    if type(callback) is kinds.EarlyStopping:
        return bool(callback.restore_best_weights)
    if type(callback) is kinds.TensorBoard:
        return bool(callback.histogram_freq or callback.embeddings_freq)
    return True


def _build_early_stopping_rule(callback: Any) -> EarlyStoppingRule:
    return EarlyStoppingRule(
        int(callback.patience),
        float(abs(callback.min_delta)),
        None if callback.baseline is None else float(callback.baseline),
        int(callback.start_from_epoch),
        callback.mode == "max",
    )


def _compute_epoch_learning_rate(schedule: Callable[..., Any], epoch: int, rate: float) -> Any:
    """Compute the rate of an epoch; Keras also accepts schedules of the epoch alone."""
    try:
        inspect.signature(schedule).bind(epoch, rate)
    except TypeError:
        return schedule(epoch)
    except ValueError:  # (a C function without a signature)
        pass
    return schedule(epoch, rate)

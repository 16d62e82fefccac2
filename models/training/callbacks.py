"""Keras' callbacks of a private training.

Between epochs a training is at the workers and nobody sees its values.  So a callback that acts by
the epoch's number is asked before; EarlyStopping on the revealed loss is a rule that the workers
follow; and all others are called when the training is over, epoch by epoch, with what is known of
each and, where they take a model, with its weights of then.
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
from tfe_bench.models.training.schedules import Schedule, is_real
from tfe_bench.models.training.stopping import Stopping

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
class Callbacks:
    """What a training's callbacks ask of it.

    Attributes:
        later: those that are called when it is over.
        scheduler: LearningRateScheduler, None for none.
        stopping: the rule of an EarlyStopping, None for none.
        snapshots: whether some take the weights after each epoch.
    """

    deferred: tuple[Any, ...] = ()
    scheduler: Any = None
    stopping: Stopping | None = None
    snapshots: bool = False

    @classmethod
    def from_keras(cls, callbacks: Any, known: Sequence[str]) -> Callbacks:
        """The callbacks of a `fit`.

        Args:
            known: names of what is known of each epoch.

        Raises:
            UsageError: a callback that private training cannot serve, with what to use.
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
                    "callbacks are keras.callbacks.Callback objects, one or a list. Received: "
                    f"{type(callback).__name__}."
                )
            _check_callback(callback, known)
        rates = [c for c in callback_list if type(c) is keras.callbacks.LearningRateScheduler]
        stops = [c for c in callback_list if type(c) is keras.callbacks.EarlyStopping]
        for same_kind in (rates, stops):
            if len(same_kind) > 1:
                raise UsageError(
                    f"One {type(same_kind[0]).__name__} is taken. Received: {len(same_kind)}."
                )
        deferred = tuple(c for c in callback_list if c not in rates)
        return cls(
            deferred,
            rates[0] if rates else None,
            _build_stopping_rule(stops[0]) if stops else None,
            any(_takes_weights(c) for c in deferred),
        )

    def apply_schedule(
        self, recipe: Recipe, first: int, epochs: int, steps_per_epoch: int
    ) -> Recipe:
        """The recipe with the rates that a LearningRateScheduler says, for all epochs.

        Args:
            first, epochs: the epochs from one to the other.
            per: steps of an epoch.

        Raises:
            UsageError: the rates are none, or the optimizer has a schedule already.
        """
        if self.scheduler is None or not steps_per_epoch:
            return recipe
        schedule = recipe.optimizer.schedule
        if schedule.kind != "constant":
            raise UsageError(
                "LearningRateScheduler goes with an optimizer of a constant rate. Received: a "
                f"schedule ({schedule.kind})."
            )
        rate, rates = schedule.options["rate"], []
        for epoch in range(first, epochs):
            rate = _compute_rate(self.scheduler.schedule, epoch, float(np.float32(rate)))
            if not is_real(rate):
                raise UsageError(
                    "A learning rate is a number from 0 to 10^6. Received: "
                    f"{str(rate)[:40]!r} for epoch {epoch}."
                )
            rates.append(float(rate))
        changes = [i for i in range(1, len(rates)) if rates[i] != rates[i - 1]]
        piecewise = Schedule(
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
        """Calls those that are called later; returns how many epochs they let pass.

        Args:
            model: that they are given; it has the weights that training began with.
            epochs, logs: numbers of the epochs, and what is known of each.
            put: gives the model the weights after an epoch, by its place.
            params: of the training, as Keras tells them.
        """
        for callback in self.deferred:
            # ("auto" asks metrics that only Keras' own training has)
            if getattr(callback, "mode", None) == "auto" and hasattr(callback, "monitor"):
                callback.mode = "max" if callback.monitor.endswith("accuracy") else "min"
            callback.set_params(dict(params))
        own_optimizer = vars(model).get("optimizer")
        optimizer = build_keras_optimizer(
            replace(recipe.optimizer, schedule=Schedule("constant", {"rate": 0.0}))
        )
        object.__setattr__(model, "optimizer", optimizer)  # (whose rate TensorBoard shows)
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
                seen = dict(known)
                for callback in self.deferred:
                    callback.on_epoch_end(epoch, seen)
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


def _check_callback(callback: Any, known: Sequence[str]) -> None:
    """Refuses a callback that asks for what is private, or is called when nobody can call it."""
    import keras

    kinds = keras.callbacks
    name = type(callback).__name__
    if type(callback) is getattr(kinds, name, None) and name in _REFUSED:
        raise UsageError(f"fit takes no {name}: {_REFUSED[name]}.")
    if type(callback) is kinds.EarlyStopping:
        if callback.monitor != "loss" or "loss" not in known:
            raise UsageError(
                "EarlyStopping watches what the workers know: monitor='loss' with "
                "reveal_loss=True, which publishes the mean loss of each epoch. Received: "
                f"monitor={callback.monitor!r}{'' if 'loss' in known else ', no reveal_loss'}."
            )
        return
    if type(callback) is kinds.ModelCheckpoint:
        if callback.save_freq != "epoch":
            raise UsageError("ModelCheckpoint saves after epochs: save_freq='epoch'.")
        if callback.save_best_only and callback.monitor not in known:
            raise UsageError(
                f"ModelCheckpoint watches what is known of an epoch: {', '.join(known)}. Received: "
                f"monitor={callback.monitor!r}. The loss is with reveal_loss=True, val_accuracy or "
                "val_mse with validation_data."
            )
        return
    if type(callback) is kinds.TensorBoard:
        if callback.update_freq != "epoch":
            raise UsageError("TensorBoard shows epochs: update_freq='epoch'.")
        if importlib.util.find_spec("tensorboard") is None:
            raise UsageError("TensorBoard wants the package tensorboard, which is not installed.")
        return
    hooks = [h for h in (*_BATCHES, *_TESTS) if _overrides_hook(callback, h, kinds.Callback)]
    if hooks:
        raise UsageError(
            f"Callbacks hear of epochs: on_epoch_begin, on_epoch_end, on_train_begin and "
            f"on_train_end. Received: {name} with {', '.join(hooks)}. What single batches give "
            "stays private."
        )


def _overrides_hook(callback: Any, hook: str, base: Any) -> bool:
    if hook in vars(callback):
        return True
    return getattr(type(callback), hook, None) is not getattr(base, hook)


def _takes_weights(callback: Any) -> bool:
    import keras

    kinds = keras.callbacks
    if type(callback) in (kinds.CSVLogger, kinds.History):
        return False
    if type(callback) is kinds.EarlyStopping:
        return bool(callback.restore_best_weights)
    if type(callback) is kinds.TensorBoard:
        return bool(callback.histogram_freq or callback.embeddings_freq)
    return True


def _build_stopping_rule(callback: Any) -> Stopping:
    return Stopping(
        int(callback.patience),
        float(abs(callback.min_delta)),
        None if callback.baseline is None else float(callback.baseline),
        int(callback.start_from_epoch),
        callback.mode == "max",
    )


def _compute_rate(schedule: Callable[..., Any], epoch: int, rate: float) -> Any:
    """The rate of an epoch; Keras also takes schedules of the epoch alone."""
    try:
        inspect.signature(schedule).bind(epoch, rate)
    except TypeError:
        return schedule(epoch)
    except ValueError:  # (a function of C, which does not say)
        pass
    return schedule(epoch, rate)

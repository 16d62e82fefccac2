"""Training, prediction and evaluation of models."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np

import tfe_bench.tf_encrypted as tfe
from tfe_bench.errors import UsageError
from tfe_bench.tf_encrypted.keras import optimizers
from tfe_bench.tf_encrypted.keras.engine.base_layer import Layer
from tfe_bench.tf_encrypted.protocol.protocol import TFEPrivateTensor


def _binary_accuracy(y_true: Any, y_pred: Any) -> float:
    # (as in tf-encrypted, which interprets predictions as probabilities)
    return float(np.mean((y_pred > 0.5) == (y_true > 0.5)))


def _categorical_accuracy(y_true: Any, y_pred: Any) -> float:
    return float(np.mean(y_true.argmax(-1) == y_pred.argmax(-1)))


_METRICS = {
    "binary_accuracy": _binary_accuracy,
    "categorical_accuracy": _categorical_accuracy,
}


def iterate_batches(x: Any, y: Any = None, batch_size: int | None = 32) -> Any:
    """Split private tensors, or lists of them, into batches; return an iterator unchanged.

    Raises:
        UsageError: another argument.
    """
    if isinstance(x, Iterator):
        return x
    several = x if isinstance(x, list) else [x]
    if not several or not all(isinstance(tensor, TFEPrivateTensor) for tensor in several):
        raise UsageError(
            "Models take private tensors, lists of them, or an iterator of batches. Received: "
            f"{type(x).__name__}.",
            code="wrong-type",
            operation="x",
            received=type(x).__name__,
        )
    size = batch_size or 32

    def cut_batches() -> Iterator[Any]:
        for start in range(0, int(several[0].shape[0]), size):
            cut = [tensor[start : start + size] for tensor in several]
            batch = cut if isinstance(x, list) else cut[0]
            yield batch if y is None else (batch, y[start : start + size])

    return cut_batches()


class BaseModel(Layer):
    """A layer that can be trained."""

    _optimizer: Any = None
    _loss: Any = None

    def __init__(self, name: str | None = None) -> None:
        super().__init__(name=name)
        self.built = True

    def compile(self, optimizer: Any, loss: Any) -> None:
        """Set optimizer and loss."""
        if optimizer is None or loss is None:
            raise UsageError(
                "compile takes an optimizer and a loss. Received: None.",
                code="missing-argument",
                operation="compile",
            )
        self._optimizer, self._loss = optimizers.get(optimizer), loss
        self._optimizer.compile(self.weights)

    def fit_batch(self, x: Any, y: Any) -> Any:
        """Run one step; return the loss, revealed to this process.

        Raises:
            UsageError: the model is not compiled.
        """
        if self._optimizer is None:
            raise UsageError(
                "Compile the model first: model.compile(optimizer, loss).",
                code="model-not-compiled",
            )
        predicted = self.call(x)
        self.backward(self._loss.grad(y, predicted))
        return self._loss(y, predicted).reveal().to_native()

    def fit(
        self,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = 32,
        epochs: int = 1,
        verbose: Any = 1,
        steps_per_epoch: int | None = None,
    ) -> None:
        """Run steps over the batches of several epochs."""
        is_iterator = isinstance(x, Iterator)
        data = iterate_batches(x, y, batch_size)
        for epoch in range(epochs):
            losses, began = [], time.perf_counter()
            for step, (input_x, input_y) in enumerate(data):
                losses.append(float(np.mean(self.fit_batch(input_x, input_y))))
                if verbose:
                    self._print_progress(epoch, epochs, step, steps_per_epoch, losses, began)
                if steps_per_epoch is not None and step + 1 >= steps_per_epoch:
                    break
            if verbose:
                print()
            if not is_iterator:
                data = iterate_batches(x, y, batch_size)

    @staticmethod
    def _print_progress(
        epoch: int, epochs: int, step: int, steps: int | None, losses: list[float], began: float
    ) -> None:
        step_seconds = (time.perf_counter() - began) / (step + 1)
        of = f"/{steps}" if steps else ""
        text = f"Epoch {epoch + 1}/{epochs}, step {step + 1}{of}: loss {np.mean(losses):.4f}"
        print(f"\r{text}, {step_seconds:.3f} s a step", end="", flush=True)

    def predict(self, x: Any, batch_size: int | None = 32, reveal: bool = True) -> Any:
        """Return the outputs, revealed to this process unless `reveal` is False."""
        outputs = [self.call(batch) for batch in iterate_batches(x, None, batch_size)]
        if not isinstance(outputs[0], list):
            return self._join_outputs(outputs, reveal)
        return [self._join_outputs([f[i] for f in outputs], reveal) for i in range(len(outputs[0]))]

    @staticmethod
    def _join_outputs(parts: list[Any], reveal: bool) -> Any:
        if not reveal:
            return parts[0] if len(parts) == 1 else tfe.concat(parts, axis=0)
        return np.concatenate([p.reveal().to_native().numpy() for p in parts])

    def evaluate(
        self,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        steps: int | None = None,
        metrics: Any = None,
    ) -> dict[str, float]:
        """Return metrics of outputs and labels by name; both are revealed to this process.

        Raises:
            UsageError: an unknown metric.
        """
        for name in metrics or ():
            if name not in _METRICS:
                raise UsageError(
                    f"Metrics are {', '.join(_METRICS)}. Received: {name!r}.",
                    code="unknown-name",
                    operation="metrics",
                    received=name,
                    expected=", ".join(_METRICS),
                )
        if not metrics:
            return {}
        true, predicted = [], []
        for step, (input_x, input_y) in enumerate(iterate_batches(x, y, batch_size)):
            predicted.append(self.call(input_x).reveal().to_native().numpy())
            true.append(input_y.reveal().to_native().numpy())
            if steps is not None and step + 1 >= steps:
                break
        both = np.concatenate(true), np.concatenate(predicted)
        return {name: _METRICS[name](*both) for name in metrics}

"""Run one workload with TF Encrypted's ABY3; the package's docstring defines the JSON."""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import sys
import time
from collections.abc import Callable
from typing import Any


def make_operation(tfe: Any, workload: str, inputs: list[Any]) -> Callable[[], list[Any]]:
    """Return a function that runs an operation and returns its revealed results."""
    numpy: Any = importlib.import_module("numpy")
    scaled = workload != "sort"
    private = [tfe.define_private_variable(x.astype(float), apply_scaling=scaled) for x in inputs]
    functions = {
        "sort": lambda x: tfe.sort(x, axis=0),
        "max": lambda x: tfe.reduce_max(x, axis=1),
        "relu": tfe.relu,
        "matmul": tfe.matmul,
        "softmax": tfe.softmax,
    }

    @tfe.function  # type: ignore[untyped-decorator]
    def work(*values: Any) -> Any:
        return functions[workload](*values).reveal().to_native()

    return lambda: [numpy.asarray(work(*private))]


def make_training_step(tfe: Any, inputs: list[Any]) -> tuple[Callable[[], None], Any]:
    """Return a function that takes a step, and one that reveals the weights."""
    workloads: Any = importlib.import_module("workloads")
    numpy: Any = importlib.import_module("numpy")
    images, labels, *weights = inputs
    layers = tfe.keras.layers
    model = tfe.keras.Sequential()
    model.add(layers.Flatten(batch_input_shape=images.shape))
    for units in workloads.SIZES[1:]:
        model.add(layers.Dense(units, activation=None, lazy_normalization=True))
        if units != workloads.CLASSES:
            model.add(layers.ReLU())
    model.set_weights(weights)
    loss = tfe.keras.losses.CategoricalCrossentropy(from_logits=True, lazy_normalization=True)
    optimizer = tfe.keras.optimizers.SGD(learning_rate=workloads.RATE, momentum=workloads.MOMENTUM)
    model.compile(optimizer, loss)
    private = [tfe.define_private_variable(x) for x in (images, labels)]
    step = model.make_train_function()

    def take_step() -> None:
        numpy.asarray(step(*private))  # the loss is revealed

    def reveal_weights() -> list[Any]:
        return [
            numpy.asarray(w.read_value().reveal().to_native())
            for layer in model.weights
            for w in layer
        ]

    return take_step, reveal_weights


def main() -> None:
    """Read the request, run it, print the answer."""
    workloads: Any = importlib.import_module("workloads")
    request = json.load(sys.stdin)
    tfe: Any = importlib.import_module("tf_encrypted")
    protocol: Any = importlib.import_module("tf_encrypted.protocol")
    tfe.set_protocol(protocol.ABY3())
    n, workload, repeat = request["n"], request["workload"], request["repeat"]
    inputs = workloads.make_inputs(workload, n, 30)
    run: Callable[[], Any]
    reveal_weights: Callable[[], list[Any]] = list
    if workload == "train":
        run, reveal_weights = make_training_step(tfe, inputs)
    else:
        run = make_operation(tfe, workload, inputs)
    results = run()  # builds the graph
    seconds = []
    for _ in range(repeat):
        started = time.perf_counter()
        results = run()
        seconds.append(time.perf_counter() - started)
    if workload == "train":
        weights: list[Any] = inputs[2:]
        velocities: list[Any] = [0.0] * len(weights)
        numpy: Any = importlib.import_module("numpy")
        for _ in range(repeat + 1):
            weights, velocities = workloads.step_weights(numpy, *inputs[:2], weights, velocities)
        results, expected = reveal_weights(), weights
    else:
        expected = workloads.compute_results(workload, inputs)
    answer = {
        "seconds": seconds,
        "bytes_sent": None,
        "correct": workloads.results_agree(workload, results, expected, 1e-2),
        "version": importlib.metadata.version("tf-encrypted"),
        "setting": "ABY3, one process, no network; revealing counted",
    }
    print(json.dumps(answer))


if __name__ == "__main__":
    main()

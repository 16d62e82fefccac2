"""Workers that share few cores do not slow each other down."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys
from tfe_bench.cli import worker
worker.start_tensorflow(2)
print(any(name.startswith("keras") for name in sys.modules))
from tensorflow.python.eager import context
found = context.context().config
print(found.experimental.disable_thread_spinning, found.intra_op_parallelism_threads)
import tensorflow as tf
print(tf.executing_eagerly(), int(tf.constant(1) + 1))
from tensorflow.keras import layers
import keras
print(layers.Dense is keras.layers.Dense, tf.keras.layers.Dense is keras.layers.Dense)
"""


def test_idle_threads_do_not_spin_and_keras_is_loaded_by_who_asks_for_it() -> None:
    """TensorFlow silently ignores such options if they come too late."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.split() == ["False", "True", "2", "True", "2", "True", "True"]

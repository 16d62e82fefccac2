"""Workers that share few cores leave them to each other."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
from tfe_bench.cli import worker
worker._start_tensorflow(2)
from tensorflow.python.eager import context
found = context.context().config
print(found.experimental.disable_thread_spinning, found.intra_op_parallelism_threads)
import tensorflow as tf
print(tf.executing_eagerly(), int(tf.constant(1) + 1))
"""


def test_idle_threads_do_not_spin() -> None:
    """TensorFlow ignores such options without a word if they come too late."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.split() == ["True", "2", "True", "2"]

"""Numbers of elements and words, as Python integers wherever a graph's shapes are known.

Workers disable TensorFlow's optimizer: arithmetic on shapes would run as ops in every call.
"""

from __future__ import annotations

import math
from typing import Any

from tfe_bench.lazy_tensorflow import tf
from tfe_bench.protocols.session import tensor_ops


def static_value(value: Any) -> Any:
    """Return a scalar tensor's value if it is constant, else the tensor; integers pass through."""
    if isinstance(value, int):
        return value
    constant = tf.get_static_value(value)
    return value if constant is None else int(constant)


def count_elements(shape: Any) -> Any:
    """Return the product of a shape."""
    static_sizes = tf.get_static_value(tf.convert_to_tensor(shape))
    if static_sizes is not None:
        return math.prod(int(n) for n in static_sizes)
    return tf.reduce_prod(tf.cast(shape, tf.int64))


def tensor_size(x: Any) -> Any:
    """Return the number of elements of a tensor."""
    n = tensor_ops.static_shape(x).num_elements()
    if n is not None:
        return int(n)
    return tf.size(x, out_type=tf.int64)


def vector_shape(n: Any) -> Any:
    """Return the shape [n] as an int64 tensor."""
    if isinstance(n, int):
        return tensor_ops.constant([n])
    return tf.reshape(tf.cast(n, tf.int64), [1])


def matrix_shape(rows: Any, columns: int) -> Any:
    """Return the shape [rows, columns] as an int64 tensor."""
    if isinstance(rows, int):
        return tensor_ops.constant([rows, columns])
    return tf.stack([rows, columns])


def shape_constant(shape: Any) -> Any:
    """Return a shape as an int64 tensor, constant if known; a tensor of the graph is returned as it
    is.
    """
    if isinstance(shape, tf.TensorShape):
        shape = shape.as_list()
    if isinstance(shape, (list, tuple)) and not any(tf.is_tensor(n) for n in shape):
        return tensor_ops.constant(shape)
    shape = tf.convert_to_tensor(shape)
    is_in_graph = getattr(shape, "graph", None) is tf.compat.v1.get_default_graph()
    if is_in_graph and shape.dtype == tf.int64:
        return shape
    static_sizes = tf.get_static_value(shape)
    if static_sizes is None:
        return tf.cast(shape, tf.int64)
    return tensor_ops.constant(static_sizes)

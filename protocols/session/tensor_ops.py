"""Local maps of tensors or symbolic tensors, with TensorFlow's names.

Protocols that consist of other protocols move elements with these functions. On tensors they are
TensorFlow's. On a `SymbolicTensor` (symbolic.py), which has a shape and no elements, they derive
the shape alone, so that a protocol can be counted (counting.py) without TensorFlow.
"""

from __future__ import annotations

import builtins
import functools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import numpy as np

from tfe_bench.lazy_tensorflow import tf
from tfe_bench.protocols.session import graph_ops, ops
from tfe_bench.protocols.session.graph_ops import get_raw_op
from tfe_bench.protocols.session.symbolic import Shape as Shape
from tfe_bench.protocols.session.symbolic import SymbolicTensor as SymbolicTensor
from tfe_bench.protocols.session.symbolic import make_symbolic_placeholder, record_moved_words
from tfe_bench.protocols.session.symbolic import symbolic_result as symbolic_result

# A TensorFlow tensor (TensorFlow publishes no types), or a SymbolicTensor.
Tensor = Any
_Map = TypeVar("_Map", bound=Callable[..., Any])


def is_concrete(value: Any) -> bool:
    """Return whether a value has elements: False for a SymbolicTensor."""
    return not isinstance(value, SymbolicTensor)


def static_shape(value: Any) -> Any:
    """Return the shape of a tensor or an array, as far as it is known."""
    return value.shape if hasattr(value.shape, "as_list") else Shape(value.shape)


def broadcast_shape(a: Any, b: Any) -> Any:
    """Return the static shape to which two shapes broadcast.

    Raises:
        ValueError: they do not broadcast.
    """
    if isinstance(a, Shape) and isinstance(b, Shape):
        return Shape(np.broadcast_shapes(a, b))
    return tf.broadcast_static_shape(tf.TensorShape(a), tf.TensorShape(b))


def dynamic_shape(a: Tensor) -> Any:
    """Return the shape when the graph runs, an int64 tensor."""
    if isinstance(a, SymbolicTensor):
        return a.shape
    if is_tensor(a) and a.shape.is_fully_defined():
        return constant(a.shape.as_list())
    return get_raw_op("Shape")(input=a, out_type=tf.int64)


def is_tensor(value: Any) -> bool:
    """Return whether a value is a TensorFlow tensor."""
    if isinstance(value, (bool, int, float, np.ndarray, np.generic, list, tuple, SymbolicTensor)):
        return False
    return bool(tf.is_tensor(value))


def constant(value: Any, dtype: Any = np.int64) -> Tensor:
    """Return a constant; equal constants of a graph share one node, because making ops is slow.

    Args:
        value: integers, or lists or an array of them.
        dtype: NumPy type.
    """
    return graph_ops.graph_constant(np.asarray(value, dtype))


def arange(n: int) -> Tensor:
    """Return the words 0, 1, ..., n - 1, made when the graph runs: a graph holds no such array."""
    return get_raw_op("Range")(start=constant(0), limit=constant(n), delta=constant(1))


def _static_sizes(shape: Any) -> list[int] | None:
    """Return the sizes of a shape, if all are integers."""
    if isinstance(shape, (list, tuple)) and all(isinstance(n, (int, np.integer)) for n in shape):
        return [int(n) for n in shape]
    return None


def _has_shape(a: Tensor, sizes: list[int] | None) -> bool:
    """Return whether a tensor is known to have a shape."""
    tensor_shape = a.shape if is_tensor(a) else None
    return (
        sizes is not None
        and tensor_shape is not None
        and tensor_shape.is_fully_defined()
        and sizes == list(tensor_shape)
    )


def _integer_constant(value: Any) -> Any:
    """Return public integers as a `constant`; return a value that holds a tensor unchanged."""
    if is_tensor(value) or (isinstance(value, (list, tuple)) and any(map(is_tensor, value))):
        return value
    return constant(getattr(value, "as_list", lambda: value)())


def _make_elementwise_word_op(word_function: _Map) -> _Map:
    """Wrap a function that keeps the shape."""

    @functools.wraps(word_function)
    def function(a: Tensor, *arguments: Any, **options: Any) -> Tensor:
        return (
            record_moved_words(a)
            if isinstance(a, SymbolicTensor)
            else word_function(a, *arguments, **options)
        )

    return cast(_Map, function)


# ---- shapes


def reshape(a: Tensor, shape: Any) -> Tensor:
    """Apply tf.reshape."""
    if isinstance(a, SymbolicTensor):
        return a.like(make_symbolic_placeholder(a).reshape([int(n) for n in shape]).shape)
    sizes = _static_sizes(shape)
    if _has_shape(a, sizes):
        return a
    return get_raw_op("Reshape")(tensor=a, shape=shape if sizes is None else constant(sizes))


def ensure_shape(a: Tensor, shape: Sequence[int]) -> Tensor:
    """Apply tf.ensure_shape.

    Raises:
        ValueError: the tensor has another shape.
    """
    if isinstance(a, SymbolicTensor):
        if a.shape != tuple(shape):
            raise ValueError(f"A tensor has the shape {a.shape}, not {tuple(shape)}.")
        return a
    return a if _has_shape(a, _static_sizes(shape)) else tf.ensure_shape(a, shape)


def transpose(a: Tensor, perm: Sequence[int] | None = None) -> Tensor:
    """Apply tf.transpose."""
    if isinstance(a, SymbolicTensor):
        return record_moved_words(a.like(make_symbolic_placeholder(a).transpose(perm).shape), a)
    order = range(len(a.shape))[::-1] if perm is None else perm
    return get_raw_op("Transpose")(x=a, perm=_integer_constant(order))


def expand_dims(a: Tensor, axis: int) -> Tensor:
    """Apply tf.expand_dims."""
    if isinstance(a, SymbolicTensor):
        return a.like(np.expand_dims(make_symbolic_placeholder(a), axis).shape)
    return get_raw_op("ExpandDims")(input=a, dim=constant(axis))


def squeeze(a: Tensor, axis: Sequence[int]) -> Tensor:
    """Apply tf.squeeze."""
    if isinstance(a, SymbolicTensor):
        return a.like(np.squeeze(make_symbolic_placeholder(a), tuple(axis)).shape)
    sizes = static_shape(a)
    if sizes.is_fully_defined():
        gone = {i % len(sizes) for i in axis}
        if all(sizes[i] == 1 for i in gone):
            return reshape(a, [n for i, n in enumerate(sizes.as_list()) if i not in gone])
    return tf.squeeze(a, axis)


def broadcast_to(a: Tensor, shape: Any) -> Tensor:
    """Apply tf.broadcast_to."""
    if isinstance(a, SymbolicTensor):
        return record_moved_words(
            a.like(np.broadcast_to(make_symbolic_placeholder(a), [int(n) for n in shape]).shape), a
        )
    return get_raw_op("BroadcastTo")(input=a, shape=_integer_constant(shape))


def tile(a: Tensor, multiples: Sequence[int]) -> Tensor:
    """Apply tf.tile."""
    if isinstance(a, SymbolicTensor):
        return record_moved_words(
            a.like([n * m for n, m in zip(a.shape, multiples, strict=True)]), a
        )
    return get_raw_op("Tile")(input=a, multiples=_integer_constant(multiples))


def pad(a: Tensor, paddings: Sequence[Sequence[int]]) -> Tensor:
    """Apply tf.pad with zeros."""
    if isinstance(a, SymbolicTensor):
        return record_moved_words(
            a.like([b + n + e for n, (b, e) in zip(a.shape, paddings, strict=True)]), a
        )
    return get_raw_op("Pad")(input=a, paddings=constant(np.reshape(paddings, [-1, 2])))


def slice(a: Tensor, begin: Sequence[int], size: Sequence[int]) -> Tensor:
    """Apply tf.slice."""
    if isinstance(a, SymbolicTensor):
        extents = zip(a.shape, begin, size, strict=True)
        return record_moved_words(
            a.like([whole - b if n == -1 else n for whole, b, n in extents]), a
        )
    return get_raw_op("Slice")(
        input=a, begin=_integer_constant(begin), size=_integer_constant(size)
    )


def gather(a: Tensor, indices: Any, axis: int = 0, batch_dims: int = 0) -> Tensor:
    """Apply tf.gather."""
    if isinstance(a, SymbolicTensor):
        sizes = [*a.shape[:axis], *np.shape(indices)[batch_dims:], *a.shape[axis + 1 :]]
        return record_moved_words(a.like(sizes))
    indices = indices if is_tensor(indices) else constant(indices)
    return get_raw_op("GatherV2")(
        params=a, indices=indices, axis=constant(axis), batch_dims=batch_dims
    )


def strided_slice(a: Tensor, key: Any) -> Tensor:
    """Return a[key]; integers, slices, None and ... (np.s_[..., :3]) make one op."""
    if not is_tensor(a):
        return a[key]
    corners: list[tuple[int, int, int]] = []
    masks = dict.fromkeys(("begin", "end", "ellipsis", "new_axis", "shrink_axis"), 0)
    for i, part in enumerate(key if isinstance(key, tuple) else (key,)):
        start, stop, step = 0, 0, 1
        if part is None or part is Ellipsis:
            masks["new_axis" if part is None else "ellipsis"] |= 1 << i
        elif isinstance(part, int):
            start, stop = part, part + 1
            masks["shrink_axis"] |= 1 << i
        elif isinstance(part, builtins.slice) and all(
            corner is None or isinstance(corner, int)
            for corner in (part.start, part.stop, part.step)
        ):
            start, stop, step = part.start or 0, part.stop or 0, part.step or 1
            masks["begin"] |= (part.start is None) << i
            masks["end"] |= (part.stop is None) << i
        else:
            return a[key]
        corners.append((start, stop, step))
    if not corners:
        return a
    begin, end, strides = (constant(corner) for corner in zip(*corners, strict=True))
    named = {f"{name}_mask": mask for name, mask in masks.items()}
    return get_raw_op("StridedSlice")(input=a, begin=begin, end=end, strides=strides, **named)


def scatter_nd(a: Tensor, indices: Any, shape: Sequence[int]) -> Tensor:
    """Apply tf.scatter_nd to updates."""
    if isinstance(a, SymbolicTensor):
        return record_moved_words(a.like(shape), a)
    return tf.scatter_nd(tf.constant(indices, tf.int64), a, tf.constant(list(shape), tf.int64))


def reverse(a: Tensor, axes: Sequence[int]) -> Tensor:
    """Apply tf.reverse."""
    if isinstance(a, SymbolicTensor):
        return record_moved_words(a, a)
    return get_raw_op("ReverseV2")(tensor=a, axis=constant(axes))


def concat(parts: Sequence[Tensor], axis: int) -> Tensor:
    """Apply tf.concat."""
    if any(isinstance(part, SymbolicTensor) for part in parts):
        first = list(parts[0].shape)
        first[axis] = sum(a.shape[axis] for a in parts)
        return _record_moved_parts(symbolic_result(first, *parts), parts)
    if len(parts) == 1:
        return parts[0]
    return get_raw_op("ConcatV2")(values=parts, axis=constant(axis))


def stack(parts: Sequence[Tensor], axis: int = 0) -> Tensor:
    """Apply tf.stack."""
    if any(isinstance(part, SymbolicTensor) for part in parts):
        first = list(parts[0].shape)
        first.insert(axis % (len(first) + 1), len(parts))
        return _record_moved_parts(symbolic_result(first, *parts), parts)
    return get_raw_op("Pack")(values=parts, axis=axis)


def _record_moved_parts(result: SymbolicTensor, parts: Sequence[Tensor]) -> SymbolicTensor:
    return record_moved_words(result, *(part for part in parts if not is_concrete(part)))


# ---- sums


def reduce_sum(
    a: Tensor, axis: int | Sequence[int] | None = None, keepdims: bool = False
) -> Tensor:
    """Apply tf.reduce_sum."""
    axes = range(len(a.shape)) if axis is None else (axis,) if isinstance(axis, int) else axis
    if not isinstance(a, SymbolicTensor):
        return get_raw_op("Sum")(input=a, axis=constant([*axes]), keep_dims=keepdims)
    over = {i % len(a.shape) for i in axes} if a.shape else set()
    axis_sizes = [(1 if i in over else n, i in over) for i, n in enumerate(a.shape)]
    return record_moved_words(a.like([n for n, summed in axis_sizes if keepdims or not summed]), a)


def cumsum(a: Tensor, axis: int, exclusive: bool, reverse: bool) -> Tensor:
    """Apply tf.cumsum to words, for axis >= 0; TensorFlow's own takes 30 times as long."""
    if isinstance(a, SymbolicTensor):
        return record_moved_words(a)
    sizes: Any = static_shape(a)
    if sizes.is_fully_defined():
        sizes = sizes.as_list()
        shape: Any = [math.prod(sizes[:axis]), sizes[axis], math.prod(sizes[axis + 1 :])]
    else:
        sizes = tf.shape(a, out_type=tf.int64)
        outer, inner = tf.reduce_prod(sizes[:axis]), tf.reduce_prod(sizes[axis + 1 :])
        shape = tf.stack([outer, sizes[axis], inner])
    rows = reshape(a, shape)
    sums = ops.module().tfe_bench_running_sum(x=rows, exclusive=exclusive, reverse=reverse)
    return reshape(sums, sizes)


# ---- words


def add(a: Tensor, b: Any) -> Tensor:
    """Add with broadcasting."""
    return _binary_node("AddV2", operator.add, a, b)


def sub(a: Tensor, b: Any) -> Tensor:
    """Subtract with broadcasting."""
    return _binary_node("Sub", operator.sub, a, b)


def mul(a: Tensor, b: Any) -> Tensor:
    """Multiply with broadcasting."""
    return _binary_node("Mul", operator.mul, a, b)


def neg(a: Tensor) -> Tensor:
    """Negate."""
    return get_raw_op("Neg")(x=a) if is_tensor(a) else -a


def combine_terms(*terms: tuple[int, Tensor]) -> Tensor:
    """Return the sum of tensors of one shape, each times a small integer.

    The words of an expanded seed are not stored: the sum's kernel generates them.
    """
    words: list[tuple[int, Any]] = []
    seeds: list[tuple[int, Any]] = []
    for factor, tensor in terms:
        source = tensor.op if hasattr(tensor, "op") else None
        if source is not None and source.type == "EnsureShape":
            source = source.inputs[0].op
        is_expanded = source is not None and source.type == "TfeBench>ExpandSeed"
        (seeds if is_expanded else words).append((factor, source if is_expanded else tensor))
    waited = [op for _, source in seeds for op in source.control_inputs]
    with tf.control_dependencies(waited):
        result = ops.module().tfe_bench_combine(
            words=[tensor for _, tensor in words],
            seeds=[source.inputs[0] for _, source in seeds],
            shape=dynamic_shape(terms[0][1]),
            factors=[factor for factor, _ in words + seeds],
        )
    result.set_shape(terms[0][1].shape)
    return result


def get_combined_terms(tensor: Tensor) -> dict[str, Any] | None:
    """Return the arguments of the op that made a tensor by `combine_terms`, or None."""
    source = tensor.op if hasattr(tensor, "op") else None
    if source is None or source.type != "TfeBench>Combine":
        return None
    inputs, count = list(source.inputs), source.get_attr("N")
    return {
        "words": inputs[:count],
        "seeds": inputs[count:-1],
        "shape": inputs[-1],
        "factors": source.get_attr("factors"),
    }


def _binary_node(name: str, python_operator: Callable[[Any, Any], Any], a: Any, b: Any) -> Any:
    """Apply a TensorFlow op to two tensors, or Python's operator to anything else."""
    if is_tensor(a) and is_tensor(b):
        return get_raw_op(name)(x=a, y=b)
    return python_operator(a, b)


def zeros_like(a: Tensor) -> Tensor:
    """Apply tf.zeros_like; the result is known from the beginning."""
    if isinstance(a, SymbolicTensor):
        return record_moved_words(SymbolicTensor(a.shape), a)
    return tf.zeros_like(a)


@_make_elementwise_word_op
def left_shift(a: Tensor, by: int) -> Tensor:
    """Multiply words by 2^by."""
    return get_raw_op("LeftShift")(x=a, y=constant(by)) if by else a


@_make_elementwise_word_op
def logical_shift(a: Tensor, bits: int) -> Tensor:
    """Divide words, read without a sign, by 2^bits."""
    if bits == 0:
        return a
    return low_bits(arithmetic_shift(a, bits), 64 - bits)


@_make_elementwise_word_op
def arithmetic_shift(a: Tensor, bits: int) -> Tensor:
    """Divide signed words by 2^bits, rounded down."""
    return get_raw_op("RightShift")(x=a, y=constant(bits))


@_make_elementwise_word_op
def low_bits(a: Tensor, width: int) -> Tensor:
    """Reduce words mod 2^width."""
    if width == 64:
        return a
    return get_raw_op("BitwiseAnd")(x=a, y=constant((1 << width) - 1))


@_make_elementwise_word_op
def invert(a: Tensor) -> Tensor:
    """Apply tf.bitwise.invert."""
    return get_raw_op("Invert")(x=a)


def bit_signs(bits: Tensor) -> Tensor:
    """Return 1 where a word is 0, and -1 where it is 1."""
    if isinstance(bits, SymbolicTensor):
        return bits
    return sub(constant(1), mul(constant(2), bits))


def minimum(a: Any, b: Any) -> Any:
    """Apply tf.minimum to sizes; the result of two integers is an integer."""
    if isinstance(a, int) and isinstance(b, int):
        return min(a, b)
    return tf.minimum(a, b)


def xor(a: Tensor, b: Any) -> Tensor:
    """Apply tf.bitwise.bitwise_xor with broadcasting."""
    if isinstance(a, SymbolicTensor):
        return a + b
    return _binary_node("BitwiseXor", _bitwise_xor, a, b)


def _bitwise_xor(a: Any, b: Any) -> Any:
    return tf.bitwise.bitwise_xor(a, b)

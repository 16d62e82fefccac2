"""Nodes built without TensorFlow's own functions equal the nodes that those functions build."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tfe_bench.protocols.session import graph_ops, ops, tensor_ops
from tfe_bench.protocols.session.graph_ops import get_raw_op

A = np.array([[5, -3, 1 << 62]], np.int64)
B = np.array([[2], [-(1 << 63)]], np.int64)


def list_nodes(function: Callable[..., Any], *arrays: np.ndarray) -> tuple[list[Any], Any]:
    """Return the nodes that a function builds, without their names, and their results."""
    import tensorflow as tf

    of = [tf.TensorSpec(a.shape, a.dtype) for a in arrays]
    graph = tf.function(function, autograph=False).get_concrete_function(*of)
    described = []
    for op in graph.graph.get_operations():
        shapes = [t.shape for t in op.outputs]
        attributes = {k: v for k, v in op.node_def.attr.items() if not k.startswith("_")}
        described.append((op.type, attributes, [t.op.type for t in op.inputs], shapes))
    described.sort(key=lambda node: node[0])  # constants have another position
    return described, graph(*map(tf.constant, arrays)).numpy()


def _raw_op(name: str) -> Any:
    import tensorflow as tf

    return getattr(tf.raw_ops, name)


TWO = {
    "AddV2": tensor_ops.add,
    "Sub": tensor_ops.sub,
    "Mul": tensor_ops.mul,
    "BitwiseXor": tensor_ops.xor,
}


@pytest.mark.parametrize("name", TWO)
def test_a_node_of_two_words_is_tensorflows(name: str) -> None:
    """Compare type, attributes, shapes and results, wrapped modulo 2^64 and broadcast."""
    expected = list_nodes(lambda a, b: _raw_op(name)(x=a, y=b), A, B)
    for function in (TWO[name], lambda a, b: get_raw_op(name)(x=a, y=b)):
        result = list_nodes(function, A, B)
        assert result[0] == expected[0]
        np.testing.assert_array_equal(result[1], expected[1])


ONE = {
    "Neg": (tensor_ops.neg, lambda a: _raw_op("Neg")(x=a)),
    "LeftShift": (
        lambda a: tensor_ops.left_shift(a, 63),
        lambda a: _raw_op("LeftShift")(x=a, y=np.int64(63)),
    ),
    "RightShift": (
        lambda a: tensor_ops.arithmetic_shift(a, 63),
        lambda a: _raw_op("RightShift")(x=a, y=np.int64(63)),
    ),
    "BitwiseAnd": (
        lambda a: tensor_ops.low_bits(a, 3),
        lambda a: _raw_op("BitwiseAnd")(x=a, y=np.int64(7)),
    ),
    "Reshape": (
        lambda a: tensor_ops.reshape(a, [3, -1]),
        lambda a: _raw_op("Reshape")(tensor=a, shape=np.array([3, -1])),
    ),
    "Transpose": (
        lambda a: tensor_ops.transpose(a),
        lambda a: _raw_op("Transpose")(x=a, perm=np.array([1, 0])),
    ),
    "BroadcastTo": (
        lambda a: tensor_ops.broadcast_to(a, a.shape),
        lambda a: _raw_op("BroadcastTo")(input=a, shape=np.array([1, 3])),
    ),
    "Tile": (
        lambda a: tensor_ops.tile(a, (2, 3)),
        lambda a: _raw_op("Tile")(input=a, multiples=np.array([2, 3])),
    ),
    "Pad": (
        lambda a: tensor_ops.pad(a, [(1, 0), (0, 2)]),
        lambda a: _raw_op("Pad")(input=a, paddings=np.array([[1, 0], [0, 2]])),
    ),
    "Slice": (
        lambda a: tensor_ops.slice(a, [0, 1], [-1, 2]),
        lambda a: _raw_op("Slice")(input=a, begin=np.array([0, 1]), size=np.array([-1, 2])),
    ),
    "ReverseV2": (
        lambda a: tensor_ops.reverse(a, [1]),
        lambda a: _raw_op("ReverseV2")(tensor=a, axis=np.array([1])),
    ),
    "Sum": (
        lambda a: tensor_ops.reduce_sum(a, -1, True),
        lambda a: _raw_op("Sum")(input=a, axis=np.array([-1]), keep_dims=True),
    ),
    "GatherV2": (
        lambda a: tensor_ops.gather(a, [2, 0], 1),
        lambda a: _raw_op("GatherV2")(params=a, indices=np.array([2, 0]), axis=np.int64(1)),
    ),
    "ConcatV2": (
        lambda a: tensor_ops.concat((a, a), 1),
        lambda a: _raw_op("ConcatV2")(values=[a, a], axis=np.int64(1)),
    ),
    "Pack": (
        lambda a: tensor_ops.stack([a, a], -1),
        lambda a: _raw_op("Pack")(values=[a, a], axis=-1),
    ),
    "AddN": (lambda a: get_raw_op("AddN")(inputs=[a]), lambda a: _raw_op("AddN")(inputs=[a])),
}
KEYS: list[Any] = [
    *(0, -1, None, ..., np.s_[:], np.s_[1:], np.s_[:-1], np.s_[::-1], np.s_[3::-2], np.s_[5:9]),
    *(np.s_[None, 1:, 0], np.s_[..., 2], np.s_[-1, ..., None], np.s_[1, 2, 3], np.s_[:0]),
    *((), np.s_[:, None, -3:-1:1, ::2], np.s_[0, 1:1], np.s_[..., -4::3]),
]


@pytest.mark.parametrize("eager", [True, False])
def test_places_are_numpys(eager: bool) -> None:
    import tensorflow as tf

    x = np.arange(24).reshape(2, 3, 4)

    def function(x: Any) -> list[Any]:
        return [tensor_ops.strided_slice(x, key) for key in KEYS] + [
            tensor_ops.strided_slice(x, tf.constant(1))
        ]

    result = (function if eager else tf.function(function))(tf.constant(x))
    for key, each in zip([*KEYS, 1], result, strict=True):
        np.testing.assert_array_equal(each, x[key], str(key))
        assert tensor_ops.strided_slice(x, key).shape == each.shape  # as for arrays


@pytest.mark.parametrize("eager", [True, False])
def test_a_scalar_has_no_axes_to_move(eager: bool) -> None:
    import tensorflow as tf

    def function(x: Any) -> list[Any]:
        outputs = [
            tensor_ops.pad(x, []),
            tensor_ops.tile(x, []),
            tensor_ops.transpose(x),
            tensor_ops.reverse(x, []),
        ]
        outputs += [
            tensor_ops.slice(x, [], []),
            tensor_ops.broadcast_to(x, []),
            tensor_ops.reduce_sum(x),
        ]
        return [
            *outputs,
            tensor_ops.strided_slice(x, ()),
            tensor_ops.strided_slice(x, ...),
            tensor_ops.strided_slice(x, None)[0],
            tensor_ops.stack([x])[0],
        ]

    result = (function if eager else tf.function(function))(tf.constant(7))
    assert [int(each) for each in result] == [7] * 11


def test_no_two_attributes_are_written_as_one() -> None:
    """Encode values of a wrong kind as nothing, so that TensorFlow's own function runs."""
    import tensorflow as tf

    values: dict[str, list[Any]] = {
        "int": [0, 1, -1],
        "bool": [True, False],
        "string": ["", "1", b"\x00"],
        "list(int)": [(), (0,), (0, 1)],
        "type": [tf.int64, tf.bool],
        "tensor": [("1",), 1.0, None],
    }
    for kind in values:
        for other, each in values.items():
            written = [graph_ops._encode_tensorflow_attribute(kind, value) for value in each]
            if kind == other != "tensor":
                assert all(written) and len(set(written)) == len(each)
            else:
                assert not any(written), (kind, other)


def test_what_a_scope_says_of_nodes_is_said_of_these_too() -> None:
    """Apply devices and control dependencies of scopes; a used name gets a number."""
    import tensorflow as tf

    tensors: list[Any] = []

    def function(x: Any) -> Any:
        first = tensor_ops.neg(x)
        with tf.device("/cpu:0"):
            tensors.append(tensor_ops.neg(x).op)
        with tf.name_scope("within"), tf.control_dependencies([first]):
            tensors.append(tensor_ops.add(x, x).op)
            tensors.append(tensor_ops.neg(first).op)
        return tensors[-1].outputs[0]

    tf.function(function)(tf.constant(A))
    on, waiting, after = tensors
    assert "CPU:0" in on.device and [each.name for each in waiting.control_inputs] == ["Neg"]
    assert not after.control_inputs  # it inherits the dependencies
    assert [each.name for each in tensors] == ["Neg_1", "within/AddV2", "within/Neg"]


def test_what_does_not_go_together_is_a_value_error() -> None:
    """Raise as TensorFlow's functions do in a graph."""
    for function in (tensor_ops.add, lambda a, b: get_raw_op("Mul")(x=a, y=b)):
        with pytest.raises(ValueError, match="must be equal"):
            list_nodes(function, A, np.zeros(2, np.int64))


@pytest.mark.parametrize("name", ONE)
def test_a_node_of_one_tensor_is_tensorflows(name: str) -> None:
    """Compare type, attributes, shapes and results."""
    own, raw = (list_nodes(function, A) for function in ONE[name])
    assert own[0] == raw[0]
    np.testing.assert_array_equal(own[1], raw[1])


@pytest.mark.parametrize("eager", [True, False])
def test_what_is_no_tensor_is_converted(eager: bool) -> None:
    """Pass numbers, arrays and lists to TensorFlow's own functions."""
    import tensorflow as tf

    def function(a: Any) -> Any:
        return tensor_ops.sub(tensor_ops.mul(tensor_ops.add(a, 3), A), np.int64(1))

    result = function(tf.constant(A)).numpy() if eager else list_nodes(function, A)[1]
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(result, (A + 3) * A - 1)


def test_two_types_are_refused() -> None:
    """Refuse two types as TensorFlow does, passed by name or by position."""
    import tensorflow as tf

    def mixed(a: Any, b: Any) -> Any:
        return tensor_ops.add(a, b)

    with pytest.raises(TypeError):
        list_nodes(mixed, A, A.astype(np.int32))
    with pytest.raises(tf.errors.InvalidArgumentError):
        mixed(tf.constant(A), tf.constant(A.astype(np.int32)))


def test_tensors_from_outside_a_loop_and_of_the_caller_are_captured() -> None:
    """Capture tensors of the surrounding graph in a loop's body, and eager ones in a graph."""
    import tensorflow as tf

    outside = tf.constant(A)

    def function(a: Any) -> Any:
        twice = tensor_ops.add(a, outside)
        turns = tf.while_loop(
            lambda i, _: i < 3, lambda i, v: (i + 1, tensor_ops.add(v, twice)), (0, twice)
        )
        return turns[1]

    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(tf.function(function)(outside).numpy(), 4 * 2 * A)


@pytest.mark.parametrize("width", [1, 7, 8, 63])
@pytest.mark.parametrize("n", [0, 1, 8, 9])
def test_a_packed_message_has_a_known_size(width: int, n: int) -> None:
    """Check that no node computes the size while a graph runs."""
    import tensorflow as tf

    pack = ops.module().tfe_bench_pack_words
    words = np.arange(n, dtype=np.int64)
    shapes = []

    def function(x: Any) -> Any:
        result = pack(x=x, width=width)
        shapes.append(result.shape.as_list())
        return result

    result = tf.function(function)(tf.constant(words))
    assert shapes == [[(n * width + 7) // 8]] == [result.shape.as_list()]

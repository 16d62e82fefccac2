"""Functions that add ops to a graph at a fraction of the cost of TensorFlow's own.

TensorFlow's generated function for an op looks up, converts and checks everything in each call,
and copies a description of the node back and forth. Here the op's definition is looked up once,
attributes are encoded once, and the node is made from these. In any unexpected case the library's
own function is called (it converts, or reports the error).
"""

from __future__ import annotations

import functools
from collections import namedtuple
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import numpy as np

from tfe_bench.lazy_tensorflow import tf

_PREFIX = "tfe_bench_"
# Attribute of a graph that holds its constants.
_CONSTANTS = "_tfe_bench_constants"


class GraphOps:
    """Functions of a loaded library, by name."""

    def __init__(self, library: ModuleType) -> None:
        self._library = library

    def __getattr__(self, name: str) -> Any:
        function = getattr(self._library, name)
        if name.startswith(_PREFIX):
            function = _get_tensorflow_node_maker(function, name)
        setattr(self, name, function)
        return function

    def __dir__(self) -> list[str]:
        return dir(self._library)


@functools.cache
def get_raw_op(name: str) -> Callable[..., Any]:
    """Return the function of one of TensorFlow's ops, named as in tf.raw_ops."""
    from tensorflow.python.framework import op_def_registry

    return _TensorflowNodeMaker(getattr(tf.raw_ops, name), op_def_registry.get(name))


def graph_constant(array: np.ndarray[Any, Any]) -> tf.Tensor:
    """Return a constant; equal constants of a graph share one node."""
    if tf.executing_eagerly():
        return tf.constant(array)
    graph = tf.compat.v1.get_default_graph()
    if not hasattr(graph, _CONSTANTS):
        setattr(graph, _CONSTANTS, {})
    constants, key = getattr(graph, _CONSTANTS), (array.dtype.char, array.shape, array.tobytes())
    if key not in constants:
        with tf.control_dependencies(None):  # its next user may run at another place of the graph
            constants[key] = (
                _constant_node(graph, array)
                if _is_plain_tensorflow_graph(graph)
                else tf.constant(array)
            )
    return constants[key]


def _constant_node(graph: Any, array: np.ndarray[Any, Any]) -> Any:
    attrs = [
        ("value", _encode_constant(array)),
        ("dtype", _encode_tensorflow_attribute("type", tf.as_dtype(array.dtype))),
    ]
    return _make_tensorflow_graph_node(graph, "Const", [], attrs).outputs[0]


def _encode_constant(array: np.ndarray[Any, Any]) -> bytes:
    """Return an array as an attribute, as tf.make_tensor_proto writes it."""
    from tensorflow.core.framework import tensor_pb2

    if array.size == 1 and array.dtype == np.int64:
        tensor = tensor_pb2.TensorProto(int64_val=[int(array.reshape(()))])
    elif array.size > 1 and array.dtype.kind in "iu":
        tensor = tensor_pb2.TensorProto(tensor_content=array.tobytes())
    else:
        tensor = tf.make_tensor_proto(array)
    tensor.dtype = tf.as_dtype(array.dtype).as_datatype_enum
    tensor.tensor_shape.CopyFrom(tf.TensorShape(array.shape).as_proto())
    encoded: bytes = tf.compat.v1.AttrValue(tensor=tensor).SerializeToString()
    return encoded


def _get_tensorflow_node_maker(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    from tensorflow.python.framework import op_def_registry

    words = name.removeprefix(_PREFIX).split("_")
    definition = op_def_registry.get("TfeBench>" + "".join(word.capitalize() for word in words))
    return function if definition is None else _TensorflowNodeMaker(function, definition)


class _TensorflowNodeMaker:
    """Maker of one kind of node.

    Args:
        library_function: the library's function.
        definition: definition of the op.
    """

    def __init__(self, library_function: Callable[..., Any], definition: Any) -> None:
        self._library_function, self._name = library_function, definition.name
        self._inputs = [
            (arg.name, arg.type_attr, arg.number_attr, _fixed_op_input_dtype(arg))
            for arg in definition.input_arg
        ]
        lists = [arg.type_list_attr for arg in (*definition.input_arg, *definition.output_arg)]
        self._is_supported = not any(lists + [arg.number_attr for arg in definition.output_arg])
        of_inputs = {attr for _, kind, number, _ in self._inputs for attr in (kind, number)}
        self._attrs = [(a.name, a.type) for a in definition.attr if a.name not in of_inputs]
        names = [arg.name for arg in definition.output_arg]
        self._result_type = namedtuple(definition.name.split(">")[-1], names) if names[1:] else None
        self._argument_count = len(self._inputs) + len(self._attrs)

    def __call__(self, *args: Any, **named: Any) -> Any:
        graph = tf.compat.v1.get_default_graph()
        if (
            args
            or len(named) != self._argument_count
            or not (self._is_supported and _is_plain_tensorflow_graph(graph))
        ):
            return self._library_function(*args, **named)
        kinds: dict[str, tf.DType] = {}
        inputs: list[Any] = []
        attrs: list[tuple[str, bytes]] = []
        for name, kind, number, dtype in self._inputs:
            argument: Any = named.get(name)
            if dtype is not None and type(argument) is int:
                argument = graph_constant(np.asarray(argument, dtype.as_numpy_dtype))
            tensors = argument if number and isinstance(argument, (list, tuple)) else [argument]
            for tensor in tensors:
                if not isinstance(tensor, tf.Tensor):
                    return self._library_function(**named)
                expected_dtype = kinds.setdefault(kind, tensor.dtype) if kind else dtype
                if tensor.dtype is not expected_dtype:
                    return self._library_function(**named)
            if number:
                attrs.append((number, _encode_tensorflow_attribute("int", len(tensors))))
            inputs.append(tensors if number else argument)
        attrs += [
            (name, _encode_tensorflow_attribute("type", kind)) for name, kind in kinds.items()
        ]
        for name, kind in self._attrs:
            attribute: Any = named.get(name)
            value: Any = (
                tuple(attribute) if kind == "list(int)" and type(attribute) is list else attribute
            )
            hashable = isinstance(value, (int, str, bytes, tuple, tf.DType))
            encoded = _encode_tensorflow_attribute(kind, value) if hashable else b""
            if not encoded:
                return self._library_function(**named)
            attrs.append((name, encoded))
        node = _make_tensorflow_graph_node(graph, self._name, inputs, attrs)
        if self._result_type is not None:
            return self._result_type(*node.outputs)
        return node.outputs[0] if node.outputs else node


def _fixed_op_input_dtype(arg: Any) -> tf.DType | None:
    """Return the type of an input, if it has only one."""
    return None if arg.type_attr or arg.type_list_attr else tf.as_dtype(arg.type)


def _is_plain_tensorflow_graph(graph: Any) -> bool:
    """Return whether nodes of a graph have only inputs, attributes and control dependencies."""
    return bool(
        graph.building_function
        and graph._control_flow_context is None
        and not graph._device_function_stack
        and not graph._colocation_stack
        and not graph._attr_scope_map
    )


@functools.cache
def _import_node_functions() -> tuple[Any, Any]:
    """Return TensorFlow's functions that make a node, and the type of nodes."""
    from tensorflow.python.client import pywrap_tf_session
    from tensorflow.python.framework.ops import Operation

    return pywrap_tf_session, Operation


def _make_tensorflow_graph_node(
    graph: Any, kind: str, inputs: Sequence[Any], attrs: Sequence[tuple[str, bytes]]
) -> Any:
    """Make a node of a plain graph, as the graph's own method does.

    Raises:
        ValueError: its inputs do not fit each other.
    """
    session, operation_type = _import_node_functions()
    with graph._c_graph.get() as c_graph:
        description = session.TF_NewOperation(c_graph, kind, graph.unique_name(kind))
    tensors: list[tf.Tensor] = []
    for operand in inputs:
        if isinstance(operand, (list, tuple)):
            captured = [graph.capture(tensor) for tensor in operand]
            session.TF_AddInputList(description, [tensor._as_tf_output() for tensor in captured])
            tensors += captured
        else:
            tensors.append(graph.capture(operand))
            session.TF_AddInput(description, tensors[-1]._as_tf_output())
    for control_input in graph._control_dependencies_for_inputs({t.op for t in tensors}):
        session.TF_AddControlInput(description, control_input._c_op)
    for name, value in attrs:
        session.TF_SetAttrValueProto(description, name, value)
    try:
        finished = session.TF_FinishOperation(description)
    except tf.errors.InvalidArgumentError as error:
        raise ValueError(error.message) from None
    node = operation_type._from_c_op(finished, graph)
    node._inputs_val = tuple(tensors)  # (TensorFlow would look each of them up again)
    graph._record_op_seen_by_control_dependencies(node)
    return node


@functools.lru_cache(maxsize=1 << 12, typed=True)
def _encode_tensorflow_attribute(kind: str, value: Any) -> bytes:
    """Return an attribute in TensorFlow's encoding; b"" if the value is not of this kind."""
    make, value_type = tf.compat.v1.AttrValue, type(value)
    match kind:
        case "int" if value_type is int:
            message = make(i=value)
        case "bool" if value_type is bool:
            message = make(b=value)
        case "string" if value_type is str:
            message = make(s=value.encode())
        case "string" if value_type is bytes:
            message = make(s=value)
        case "list(int)" if value_type is tuple and all(type(each) is int for each in value):
            message = make(list=make.ListValue(i=value))
        case "type" if value_type is tf.DType:
            message = make(type=value.as_datatype_enum)
        case _:
            return b""
    encoded: bytes = message.SerializeToString()
    return encoded

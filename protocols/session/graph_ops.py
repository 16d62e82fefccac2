"""Ops as functions that make nodes of a graph, without what TensorFlow's own cost.

TensorFlow's generated function for an op looks up, converts and checks everything by itself each
time, and copies a description of the node back and forth; here what an op's definition says is
looked up once, attributes are written down once, and the node is made from these.  The library's
own function is called for whatever is not as expected (it converts, or says what is wrong).
"""

from __future__ import annotations

import functools
from collections import namedtuple
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import tensorflow as tf

_PREFIX = "tfe_bench_"
# The attribute of a graph that holds its constants.
_CONSTANTS = "_tfe_bench_constants"


class GraphOps:
    """The functions of a loaded library, by their names."""

    def __init__(self, library: ModuleType) -> None:
        self._library = library

    def __getattr__(self, name: str) -> Any:
        own = getattr(self._library, name)
        if name.startswith(_PREFIX):
            own = _fast(own, name)
        setattr(self, name, own)
        return own

    def __dir__(self) -> list[str]:
        return dir(self._library)


@functools.cache
def tensorflow(name: str) -> Callable[..., Any]:
    """The function of an op of TensorFlow's, as tf.raw_ops has it."""
    import tensorflow as tf
    from tensorflow.python.framework import op_def_registry

    return _Maker(getattr(tf.raw_ops, name), op_def_registry.get(name))


def constant(array: np.ndarray[Any, Any]) -> tf.Tensor:
    """A constant, one for all that want the same in a graph."""
    import tensorflow as tf

    if tf.executing_eagerly():
        return tf.constant(array)
    graph = tf.compat.v1.get_default_graph()
    if not hasattr(graph, _CONSTANTS):
        setattr(graph, _CONSTANTS, {})
    found, key = getattr(graph, _CONSTANTS), (array.dtype.char, array.shape, array.tobytes())
    if key not in found:
        with tf.control_dependencies(None):  # whoever wants it next waits for something else
            found[key] = _constant(graph, array) if _plain(graph) else tf.constant(array)
    return found[key]


def _constant(graph: Any, array: np.ndarray[Any, Any]) -> Any:
    import tensorflow as tf

    value = tf.compat.v1.AttrValue(tensor=tf.make_tensor_proto(array)).SerializeToString()
    attrs = [("value", value), ("dtype", _attribute("type", tf.as_dtype(array.dtype)))]
    return _node(graph, "Const", [], attrs).outputs[0]


def _fast(own: Callable[..., Any], name: str) -> Callable[..., Any]:
    from tensorflow.python.framework import op_def_registry

    words = name.removeprefix(_PREFIX).split("_")
    definition = op_def_registry.get("TfeBench>" + "".join(word.capitalize() for word in words))
    return own if definition is None else _Maker(own, definition)


class _Maker:
    """Makes one kind of node.

    Args:
        own: the library's function.
        definition: the op's.
    """

    def __init__(self, own: Callable[..., Any], definition: Any) -> None:
        self._own, self._name = own, definition.name
        self._inputs = [
            (arg.name, arg.type_attr, arg.number_attr, _fixed(arg)) for arg in definition.input_arg
        ]
        lists = [arg.type_list_attr for arg in (*definition.input_arg, *definition.output_arg)]
        self._known = not any(lists + [arg.number_attr for arg in definition.output_arg])
        of_inputs = {attr for _, kind, number, _ in self._inputs for attr in (kind, number)}
        self._attrs = [(a.name, a.type) for a in definition.attr if a.name not in of_inputs]
        names = [arg.name for arg in definition.output_arg]
        self._several = namedtuple(definition.name.split(">")[-1], names) if names[1:] else None
        self._given = len(self._inputs) + len(self._attrs)

    def __call__(self, *args: Any, **named: Any) -> Any:
        import tensorflow as tf

        graph = tf.compat.v1.get_default_graph()
        if args or len(named) != self._given or not (self._known and _plain(graph)):
            return self._own(*args, **named)
        kinds: dict[str, tf.DType] = {}
        inputs: list[Any] = []
        attrs: list[tuple[str, bytes]] = []
        for name, kind, number, dtype in self._inputs:
            given: Any = named.get(name)
            if dtype is not None and type(given) is int:
                given = constant(np.asarray(given, dtype.as_numpy_dtype))
            several = given if number and isinstance(given, (list, tuple)) else [given]
            for each in several:
                if not isinstance(each, tf.Tensor):
                    return self._own(**named)
                wanted = kinds.setdefault(kind, each.dtype) if kind else dtype
                if each.dtype != wanted:
                    return self._own(**named)
            if number:
                attrs.append((number, _attribute("int", len(several))))
            inputs.append(several if number else given)
        attrs += [(name, _attribute("type", kind)) for name, kind in kinds.items()]
        for name, kind in self._attrs:
            own: Any = named.get(name)
            value: Any = tuple(own) if kind == "list(int)" and type(own) is list else own
            hashable = isinstance(value, (int, str, bytes, tuple, tf.DType))
            found = _attribute(kind, value) if hashable else b""
            if not found:
                return self._own(**named)
            attrs.append((name, found))
        made = _node(graph, self._name, inputs, attrs)
        if self._several is not None:
            return self._several(*made.outputs)
        return made.outputs[0] if made.outputs else made


def _fixed(arg: Any) -> tf.DType | None:
    """The type of an input, if it has but one."""
    import tensorflow as tf

    return None if arg.type_attr or arg.type_list_attr else tf.as_dtype(arg.type)


def _plain(graph: Any) -> bool:
    """Whether nodes of a graph have nothing but inputs, attributes and what they wait for."""
    return bool(
        graph.building_function
        and graph._control_flow_context is None
        and not graph._device_function_stack
        and not graph._colocation_stack
        and not graph._attr_scope_map
    )


def _node(graph: Any, kind: str, inputs: Sequence[Any], attrs: Sequence[tuple[str, bytes]]) -> Any:
    """A node of a plain graph, as its method for that makes one.

    Raises:
        ValueError: its inputs do not go together.
    """
    import tensorflow as tf
    from tensorflow.python.client import pywrap_tf_session as session
    from tensorflow.python.framework.ops import Operation

    with graph._c_graph.get() as c_graph:
        made = session.TF_NewOperation(c_graph, kind, graph.unique_name(kind))
    operations: set[tf.Operation] = set()
    for each in inputs:
        if isinstance(each, (list, tuple)):
            several = [graph.capture(one) for one in each]
            session.TF_AddInputList(made, [one._as_tf_output() for one in several])
            operations.update(one.op for one in several)
        else:
            one = graph.capture(each)
            session.TF_AddInput(made, one._as_tf_output())
            operations.add(one.op)
    for waits in graph._control_dependencies_for_inputs(operations):
        session.TF_AddControlInput(made, waits._c_op)
    for name, value in attrs:
        session.TF_SetAttrValueProto(made, name, value)
    try:
        finished = session.TF_FinishOperation(made)
    except tf.errors.InvalidArgumentError as error:
        raise ValueError(error.message) from None
    node = Operation._from_c_op(finished, graph)
    graph._record_op_seen_by_control_dependencies(node)
    return node


@functools.lru_cache(maxsize=1 << 12, typed=True)
def _attribute(kind: str, value: Any) -> bytes:
    """An attribute as TensorFlow writes it down; nothing where it is not of the kind."""
    import tensorflow as tf

    make, given = tf.compat.v1.AttrValue, type(value)
    match kind:
        case "int" if given is int:
            made = make(i=value)
        case "bool" if given is bool:
            made = make(b=value)
        case "string" if given is str:
            made = make(s=value.encode())
        case "string" if given is bytes:
            made = make(s=value)
        case "list(int)" if given is tuple and all(type(each) is int for each in value):
            made = make(list=make.ListValue(i=value))
        case "type" if given is tf.DType:
            made = make(type=value.as_datatype_enum)
        case _:
            return b""
    written: bytes = made.SerializeToString()
    return written

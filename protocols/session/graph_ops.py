"""Ops as functions that make nodes of a graph, without what TensorFlow's own cost.

TensorFlow's generated function for an op looks up, converts and checks everything by itself each
time, two thirds of what a node of a graph takes; here what an op's definition says is looked up
once, and the library's own function is called for whatever is not as expected (it converts, or says
what is wrong).
"""

from __future__ import annotations

import functools
from collections import namedtuple
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import tensorflow as tf

_PREFIX = "tfe_bench_"


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
    """The function of an op of TensorFlow's that has one result, as tf.raw_ops has it."""
    import tensorflow as tf
    from tensorflow.python.framework import op_def_registry

    return _Maker(getattr(tf.raw_ops, name), op_def_registry.get(name))


def _fast(own: Callable[..., Any], name: str) -> Callable[..., Any]:
    from tensorflow.python.framework import op_def_registry

    words = name.removeprefix(_PREFIX).split("_")
    definition = op_def_registry.get("TfeBench>" + "".join(word.capitalize() for word in words))
    if definition is None or any(a.number_attr or a.type_list_attr for a in definition.input_arg):
        return own
    return _Maker(own, definition)


class _Maker:
    """Makes one kind of node.

    Args:
        own: the library's function.
        definition: the op's.
    """

    def __init__(self, own: Callable[..., Any], definition: Any) -> None:
        import tensorflow as tf

        self._own, self._definition = own, definition
        self._inputs = [
            (arg.name, arg.type_attr, None if arg.type_attr else tf.as_dtype(arg.type))
            for arg in definition.input_arg
        ]
        of_inputs = {kind for _, kind, _ in self._inputs if kind}
        self._attrs = [(a.name, a.type) for a in definition.attr if a.name not in of_inputs]
        self._outputs = [
            (arg.type_attr, None if arg.type_attr else tf.as_dtype(arg.type))
            for arg in definition.output_arg
        ]
        names = [arg.name for arg in definition.output_arg]
        self._several = namedtuple(definition.name.split(">")[-1], names) if names[1:] else None
        self._given = len(self._inputs) + len(self._attrs)

    def __call__(self, *args: Any, **named: Any) -> Any:
        import tensorflow as tf

        graph = tf.compat.v1.get_default_graph()
        if args or len(named) != self._given or not graph.building_function:
            return self._own(*args, **named)
        kinds: dict[str, tf.DType] = {}
        inputs = []
        for name, kind, dtype in self._inputs:
            given: Any = named.get(name)
            if not isinstance(given, tf.Tensor):
                return self._own(**named)
            wanted = kinds.setdefault(kind, given.dtype) if kind else dtype
            if given.dtype != wanted:
                return self._own(**named)
            inputs.append(given)
        attrs = {name: _of_type(kind) for name, kind in kinds.items()}
        for name, kind in self._attrs:
            own: Any = named.get(name)
            value: Any = tuple(own) if kind == "list(int)" and type(own) is list else own
            hashable = isinstance(value, (int, str, tuple, tf.DType))
            found = _attribute(kind, value) if hashable else None
            if found is None:
                return self._own(**named)
            attrs[name] = found
            if kind == "type":
                kinds[name] = tf.as_dtype(value)
        made = graph._create_op_internal(
            self._definition.name,
            inputs,
            [kinds[kind] if kind else dtype for kind, dtype in self._outputs],
            attrs=attrs,
            op_def=self._definition,
        )
        if self._several is not None:
            return self._several(*made.outputs)
        return made.outputs[0] if made.outputs else made


@functools.lru_cache(maxsize=1 << 14, typed=True)
def _attribute(kind: str, value: Any) -> Any:
    """An attribute as TensorFlow keeps it; None where it is not of the kind."""
    import tensorflow as tf

    make, given = tf.compat.v1.AttrValue, type(value)
    match kind:
        case "int" if given is int:
            return make(i=value)
        case "bool" if given is bool:
            return make(b=value)
        case "string" if given is str:
            return make(s=value.encode())
        case "list(int)" if given is tuple and all(type(each) is int for each in value):
            return make(list=make.ListValue(i=value))
        case "type" if given is tf.DType:
            return _of_type(value)
    return None


def _of_type(dtype: tf.DType) -> Any:
    import tensorflow as tf

    return tf.compat.v1.AttrValue(type=dtype.as_datatype_enum)

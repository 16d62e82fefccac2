"""Call every op of the library with hostile shapes and numbers; test_shape_fuzz.py runs this.

It is a separate process because the expected defect crashes it. Each case is printed on stdout
before it starts; the last printed case is the one that crashed the process.
"""

from __future__ import annotations

import functools
import os
import re
import resource
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import numpy as np

HUGE = 1 << 40
MOST = 1 << 33  # maximum that kernels accept
ADDRESS_SPACE = 12 << 30

_SITE = {"site": 5, "dealer": 0}
_MASK = {**_SITE, "tensor": 0, "key": 1}
_FIELDS = {**_SITE, "tensor": 0}
_WINDOWS = {"strides": [1, 1], "dilations": [1, 1], "padding": "VALID", "pads": [0, 0, 0, 0]}
_LUT = {
    **_SITE,
    "bits": 3,
    "widths": [1, 1],
    "groups": [2],
    "group_counts": [1],
    "absorb": True,
}
_EXP = {
    **_MASK,
    "form": "one-round",
    "limbs": 1,
    "factor": [1, 0],
    "offset": 10,
    "mantissa": 30,
    "drop": 10,
    "point": 16,
}
_POLYNOMIAL = {
    **_MASK,
    "factors": 1,
    "bits": [31],
    "degrees": [2],
    "widths": [0, 40, 40],
    "modulus_bits": 40,
}
_CELLS = {
    "image": [1, 2, 2, 1],
    "rows": [0, 1],
    "columns": [0, 1],
    "windows": [1, 1],
    "cells": [0, 1, 2, 3],
    "width": 64,
}
_SELECT = {
    **_FIELDS,
    "ring": 40,
    "shifts": [0, 3],
    "factors": [1, 2],
    "width": 40,
    "factor_width": 20,
    "multiply": False,
}
_HARMONICS = {
    **_FIELDS,
    "count": 1,
    "odd": 3,
    "phase_bits": 20,
    "scale": 16,
    "modulus_bits": 42,
}
_SEND = {"site": 5, "slot": 0, "peer": 1, "T": "int64"}
_LIFT = {**_FIELDS, "k": 20, "ring": 30}
_ROUTE = {**_SITE, "drop": 10, "cells": 2, "width": 64}
_CONV = {"N": 1, "depthwise": False, **_WINDOWS}
_GRADIENT = {**_CONV, "size": [1, 1]}

# Valid attributes of each op; the test fails if an op is missing here.
ATTRIBUTES: dict[str, dict[str, Any]] = {
    "AddPacked": {"width": 5},
    "AndDeal": _FIELDS,
    "AndShare": _FIELDS,
    "ApplyMask": {**_MASK, "op": "add128", "sent": True},
    "Combine": {"N": 1, "S": 1, "factors": [2, -1]},
    "Compose": {},
    "ConvCombined": {"N": 1, "S": 1, "factors": [2, -1], "bits": 48, **_WINDOWS},
    "DecodeFixed": {"fractional_bits": 16},
    "DifferencePlanes": {"bits": 20},
    "EncodeFixed": {"fractional_bits": 16},
    "ExpDeal": _EXP,
    "ExpSelectDeal": _EXP,
    "ExpSelectShare": _EXP,
    "ExpShare": _EXP,
    "ExpandSeed": {},
    "Gate": {"site": 5},
    "HarmonicsDeal": _HARMONICS,
    "HarmonicsShare": {**_HARMONICS, "weights": [1, 2, 3], "drop": 10},
    "HeardInLoop": {"T": "int64"},
    "InjectDeal": {**_FIELDS, "bits": 31, "drop": 0},
    "InjectShare": {**_FIELDS, "bits": 31, "drop": 0, "mask": -1, "negate": False},
    "Invert": {},
    "LiftDeal": _LIFT,
    "LiftExchange": {"k": 20, "sent": 30, "offset": 5},
    "LiftMask": {**_MASK, "k": 20},
    "LiftShare": {**_LIFT, "sent": 30, "offset": 5, "keep": True, "output_mask": 2},
    "LiftedProductDeal": {**_FIELDS, "ring": 20},
    "LiftedProductShare": {**_FIELDS, "ring": 20, "mask": 9},
    "LutDeal": _LUT,
    "LutNode": {**_LUT, "level": 0},
    "LutExchange": _LUT,
    "MatMulCombined": {"N": 1, "S": 1, "factors": [2, -1], "bits": 48},
    "Mask": _MASK,
    "PackBits": {},
    "PackMasked": {**_MASK, "width": 5, "subtract": True},
    "PackWords": {"width": 5},
    "Permutation": _MASK,
    "Permute": {},
    "PlaceCells": _CELLS,
    "Planes": {"bits": 20},
    "PolynomialDeal": _POLYNOMIAL,
    "PolynomialShare": {**_POLYNOMIAL, "coefficients": [1, 2, 3], "drop": 10},
    "RangeDigest": {**_SITE, "width": 40, "low": 4},
    "Recv": {**_SEND, "index": 0},
    "RingConv2D": {**_CONV, "bits": 48},
    "RingConv2DInputGradient": _GRADIENT,
    "RingConv2DKernelGradient": _GRADIENT,
    "RingMatMul": {"N": 1, "bits": 48},
    "RunningSum": {"exclusive": False, "reverse": True},
    "UnpoolDeal": _ROUTE,
    "UnpoolShare": _ROUTE,
    "SelectDeal": _SELECT,
    "SelectShare": {**_SELECT, "drop": 3},
    "Send": {**_SEND, "run_ahead": False, "deps": ""},
    "SendInLoop": {**_SEND, "site": 6, "run_ahead": False, "deps": ""},
    "SmallPickDeal": {**_FIELDS, "bits": 20, "rows": 1},
    "SmallPickShare": {**_FIELDS, "bits": 20, "rows": 1, "output_mask": 2},
    "SmallSelectDeal": {**_FIELDS, "bits": 20},
    "SmallSelectShare": {**_FIELDS, "bits": 20},
    "SumShare": {**_MASK, "width": 40, "drop": 10, "bits": 30, "shift": 1, "keep": True},
    "TakeCells": _CELLS,
    "TruncateDeal": {**_SITE, "drop": 16},
    "TruncateExchange": {"drop": 16},
    "TruncateShare": {**_SITE, "drop": 16},
    "UnpackBits": {},
    "UnpackWords": {"width": 5},
    "WideMul": {},
}
# Two shapes for ops with two operands: each fits an op, and their product is too large.
PRODUCTS: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    ((HUGE, 0), (0, HUGE)),
    ((1 << 20, 0), (0, 1 << 20)),
    ((1 << 20, 1), (1, 1 << 20)),
    ((1 << 31, 0), (0, 1 << 31)),
    ((1 << 16, 1, 0, 1), (1 << 16, 0, 1 << 16)),
    ((1 << 20, 1, 1, 1), (1 << 20, 1, 1)),
    ((0, HUGE, HUGE, 0), (1, 1, 0, HUGE)),
    ((1, 1 << 31, 1 << 31, 0), (1, 1, 0, 1 << 31)),
    ((1, 1, 1 << 12, 1), (1, 1, 1, 1 << 12)),
    ((0, 1, 1, 1), (1, 1 << 20, 1, 1)),
]
# Valid shapes of ops that none of the other shapes fit.
FITTING: dict[str, list[tuple[int, ...]]] = {
    "Combine": [(3, 5), (16,), (3, 5)],
    "ConvCombined": [(1, 4, 4, 2), (3, 3, 2, 5), (16,), (3, 3, 2, 5)],
    "ExpandSeed": [(16,), (3, 5)],
    "MatMulCombined": [(2, 3), (3, 5), (16,), (3, 5)],
    "Permute": [(1, 1, 1), (1, 1)],
    "PlaceCells": [(4, 64)],
    "SelectDeal": [(1,), (1,), (1,), (0,), (0,)],
    "SelectShare": [(1,), (1,), (1,), (0,), (0,), (0,)],
}
SHAPES: list[tuple[int, ...]] = [
    (),
    (0,),
    (1,),
    (2,),
    (3,),
    (63,),
    (64,),
    (1, 1),
    (2, 2),
    (0, 1),
    (1, 0),
    (1, 2),
    (1, 1, 1),
    (1, 1, 2),
    (2, 0, 3),
    (1, 1, 1, 1),
    (0, 1, 1, 1),
    (1, 1, 1, 0),
    (1, 2, 2, 1),
    (1,) * 9,
    (HUGE, 0),
    (0, HUGE),
    (0, 1 << 31),
    (1 << 31, 0),
    (1 << 31, 0, 1 << 31),
    (HUGE, 0, HUGE),
    (0, HUGE, HUGE),
    (1, HUGE, HUGE, 0),
    (0, (1 << 62) - 1),
    ((1 << 63) - 1, 0),
]
# Values of inputs that hold a shape or a size.
NUMBERS: list[list[int]] = [
    [],
    [0],
    [1],
    [-1],
    [64],
    [MOST],
    [MOST + 1],
    [HUGE],
    [1 << 62],
    [(1 << 63) - 1],
    [-(1 << 63)],
    [0, HUGE],
    [HUGE, 0],
    [HUGE, HUGE],
    [1 << 32, 1 << 32],
    [-1, -1],
    [1, 1 << 32],
    [3, 4],
    [1] * 300,
]
INTEGERS = [-(1 << 63), -(1 << 31), -64, -1, 0, 1, 3, 62, 64, 65, 128, 1 << 31, HUGE, 1 << 62]
_SIZES = ("shape", "n")


@dataclass(frozen=True)
class Case:
    """One call of an op: shapes of its inputs (values of inputs that hold sizes), and
    attributes.
    """

    op: str
    inputs: tuple[tuple[int, ...], ...]
    attributes: dict[str, Any]

    def __str__(self) -> str:
        own = {k: v for k, v in self.attributes.items() if v != ATTRIBUTES[self.op].get(k)}
        return f"{self.op} {list(self.inputs)} {own}"


def list_operations() -> dict[str, Any]:
    """Return the definitions of all ops that the library registers, by name."""
    from tensorflow.python.framework import op_def_registry

    from tfe_bench.protocols.session import ops

    ops.module()
    named = re.findall(rb"TfeBench>(\w+)", ops.compiled_ops_library_path().read_bytes())
    definitions = {
        name: op_def_registry.get(f"TfeBench>{name}") for name in {n.decode() for n in named}
    }
    return {name: definition for name, definition in definitions.items() if definition is not None}


def list_tensors(definition: Any, attributes: dict[str, Any]) -> list[tuple[str, str]]:
    """Return (name, type) of each tensor except the call; a list counts once for each element."""
    tensors = []
    for argument in definition.input_arg:
        if argument.name in ("call",):
            continue
        kind = {9: "int64", 3: "int32", 4: "uint8", 2: "float64"}.get(argument.type, "int64")
        count = attributes[argument.number_attr] if argument.number_attr else 1
        tensors += [(argument.name, kind)] * count
    return tensors


def generate_cases(
    name: str, definition: Any, rng: np.random.Generator, each: int
) -> Iterator[Case]:
    """Yield the cases of an op: the planned ones, then `each` random ones."""
    attributes = ATTRIBUTES[name]
    names = [n for n, _ in list_tensors(definition, attributes)]
    ordinary: tuple[tuple[int, ...], ...] = tuple((1,) for _ in names)

    def numbers(n: str) -> list[tuple[int, ...]]:
        return [tuple(v) for v in NUMBERS] if n in _SIZES else SHAPES

    if name in FITTING:
        yield Case(name, tuple(FITTING[name]), attributes)
    # all inputs alike, then one of them different
    for shape in SHAPES:
        alike = tuple(
            (int(np.prod(shape, dtype=object)),) if n == "n" else tuple(shape) for n in names
        )
        yield Case(name, alike, attributes)
    for i, n in enumerate(names):
        for other in numbers(n):
            yield Case(name, (*ordinary[:i], other, *ordinary[i + 1 :]), attributes)
    if len(names) >= 2:
        for a, b in PRODUCTS:
            yield Case(name, (a, b, *ordinary[2:]), attributes)
            yield Case(name, (b, a, *ordinary[2:]), attributes)
    counts = {a.number_attr for a in definition.input_arg}
    # attributes out of their range, with small shapes
    for attribute in definition.attr:
        if attribute.name in counts or attribute.type not in ("int", "list(int)"):
            continue
        usual = attributes[attribute.name]
        hostile: list[Any] = [v for v in INTEGERS if attribute.type == "int"]
        if attribute.type != "int":
            count = len(usual)
            hostile = [[v] * n for v in INTEGERS for n in {0, 1, count, count + 1}]
        for value in hostile:
            for shape in ((1,), (1, 1, 1, 1), (0,)):
                alike = tuple((1,) if n == "n" else shape for n in names)
                yield Case(name, alike, {**attributes, attribute.name: value})
    for count in (1, 4):
        for attribute in definition.attr:
            if attribute.name in counts:
                more = {**attributes, attribute.name: count}
                several = [n for n, _ in list_tensors(definition, more)]
                for shape in SHAPES:
                    yield Case(name, tuple(tuple(shape) for _ in several), more)
    for _ in range(each):
        chosen = [options[rng.integers(len(options))] for options in map(numbers, names)]
        yield Case(name, tuple(chosen), attributes)


def _make_value(kind: str, name: str, numbers: tuple[int, ...]) -> Any:
    import tensorflow as tf

    if name in _SIZES:
        if name == "n" and len(numbers) == 1:
            return tf.constant(numbers[0], tf.int64)
        return tf.constant(list(numbers), tf.int64)
    return tf.zeros(numbers, kind)


class Sessions:
    """Sessions of three parties with an open step, and an ended session, in which a receive
    fails.
    """

    def __init__(self) -> None:
        from tfe_bench.protocols.session import ops

        native = ops.native()
        self.calls = []
        for party in range(3):
            handle = native.session_new(party, bytes(48), 1)
            native.record(handle, 1)
            assert native.call_for_error("step_begin", handle, 1, 0, 4) == ""
            self.calls.append((handle, 1, 0))
        over = native.session_new(0, bytes(48), 1)
        assert native.call_for_error("step_begin", over, 1, 0, 4) == ""
        native.abort(over, b"over")
        self.over = (over, 1, 0)

    def calls_of(self, op: str) -> list[tuple[int, int, int]]:
        """Return the calls of all sessions that run an op."""
        return [self.over] if op == "Recv" else self.calls


@functools.cache
def function_of(op: str) -> Any:
    """Return the Python function of an op."""
    from tfe_bench.protocols.session import ops

    snake = "".join(f"_{c.lower()}" if c.isupper() else c for c in op).lstrip("_")
    module = ops.module()
    target_name = f"tfe_bench_{snake}".replace("_", "")
    return next(getattr(module, n) for n in dir(module) if n.replace("_", "") == target_name)


def run_case(case: Case, definition: Any, sessions: Sessions) -> bool:
    """Run one case as three parties, eagerly and as a graph of these static shapes.

    Return whether it succeeded for some party.
    """
    import tensorflow as tf

    function = function_of(case.op)
    own = list_tensors(definition, case.attributes)
    counts = {a.number_attr for a in definition.input_arg}
    attributes = {k: v for k, v in case.attributes.items() if k != "T" and k not in counts}
    expected = (tf.errors.OpError, ValueError, TypeError, OverflowError)

    def call(values: list[Any], context: Any) -> None:
        keyed: dict[str, Any] = {}
        parted = {a.name for a in definition.input_arg if a.number_attr}
        for (n, _), value in zip(own, values, strict=True):
            if n in parted:
                keyed.setdefault(n, []).append(value)
            else:
                keyed[n] = value
        if any(a.name == "call" for a in definition.input_arg):
            keyed["call"] = context
        extra = {"T": tf.int64} if case.op == "Recv" else {}
        function(**keyed, **attributes, **extra)

    worked = False
    try:
        values = [
            _make_value(kind, n, numbers)
            for (n, kind), numbers in zip(own, case.inputs, strict=True)
        ]
        contexts = sessions.calls_of(case.op)
    except expected:
        contexts = []
    for context in contexts:
        try:
            call(values, tf.constant(context, tf.int64))
            worked = True
        except expected:
            pass
    with tf.Graph().as_default():
        try:
            values = [
                _make_value(kind, n, numbers)
                if n in _SIZES
                else tf.compat.v1.placeholder(kind, numbers)
                for (n, kind), numbers in zip(own, case.inputs, strict=True)
            ]
            call(values, tf.compat.v1.placeholder(tf.int64, [3]))
        except expected:
            pass
    return worked


def _start_tensorflow() -> None:
    """Import TensorFlow without Keras; its errors and its graphs' ops store no Python stacks."""
    from tfe_bench.cli import worker

    worker._import_tensorflow()
    worker._drop_graph_op_stacks()
    import tensorflow as tf

    tf.debugging.disable_traceback_filtering()


def main(seed: int, percent: int, each: int, begin: int) -> None:
    """Run a part of the planned cases and `each` random ones of every op, from `begin` on."""
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _start_tensorflow()
    definitions = list_operations()
    unknown = sorted(set(definitions) ^ set(ATTRIBUTES))
    if unknown:
        print(f"MISSING {' '.join(unknown)}", flush=True)
        return
    sessions = Sessions()
    rng = np.random.default_rng(seed)
    worked = set()
    number = 0
    for name in sorted(definitions):
        for case in generate_cases(name, definitions[name], rng, each):
            is_selected = rng.integers(100) < percent or case.attributes is ATTRIBUTES[name]
            if not is_selected:
                continue
            number += 1
            if number > begin:
                print(f"CASE {number} {case}", flush=True)
                if run_case(case, definitions[name], sessions):
                    worked.add(name)
    # An op that refuses all calls would test nothing.
    print(f"END {' '.join(sorted(set(definitions) - worked))}", flush=True)


if __name__ == "__main__":
    main(*(int(word) for word in sys.argv[1:]))

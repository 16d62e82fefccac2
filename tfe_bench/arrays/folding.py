"""Loops on private arrays: a function of one iteration, run for all iterations in one job."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tfe_bench.arrays import array, building
from tfe_bench.arrays.arguments import ValueReference, encode_operation_argument
from tfe_bench.arrays.array import PrivateArray
from tfe_bench.arrays.array_spec import FIXED, ArraySpec
from tfe_bench.arrays.bounds import (
    Bounds,
    OperandGuard,
    default_bounds,
    union_bounds,
    widest_bounds,
)
from tfe_bench.arrays.node import ExpressionNode
from tfe_bench.arrays.plan import (
    LOOP_VARIABLE,
    MAX_ITERATIONS,
    ExpressionLeaf,
    LoopBody,
    parse_body,
)
from tfe_bench.errors import UsageError

if TYPE_CHECKING:
    from tfe_bench.cluster.client import Client

_WANTS = "foldl takes private arrays, one or a list of them,"


def foldl(fn: Callable[..., Any], elems: Any, initializer: Any) -> Any:
    """Compute fn(fn(fn(initializer, elems[0]), elems[1]), ...), as tf.foldl: a loop in one job.

    `fn` is called once, with arrays that stand for those of any iteration. Values that it
    captures, and values that are equal in all iterations, are computed once. All iterations share
    one graph.

        def step(w, batch):
            x, y = batch
            return w - x.T @ (tfb.sigmoid(x @ w) - y) * (rate / 128)

        w = tfb.foldl(step, (xs, ys), w)  # xs: [steps, 128, features], ys: [steps, 128, 1]

    Args:
        fn: function of the loop variables and the next element of elems (each a list if several
            were given); returns the next loop variables, of the same kind, shape and scale.
        elems: private arrays of one length, of which each iteration takes the next element; or a
            number of iterations, 1 to 65536: fn then takes one argument.
        initializer: loop variables before the first iteration; public arrays become private.

    Returns:
        the loop variables after the last iteration, in initializer's structure.

    Raises:
        UsageError: fn returns something else, or sorts (an iteration is one graph), or no array is
            private.
    """
    initial, loop_elements, outer = _as_list(initializer), *_loop_elements(elems)
    times = loop_elements[0].shape[0] if loop_elements else int(elems)
    cluster = next(
        (x.cluster for x in [*initial, *loop_elements] if isinstance(x, PrivateArray)), None
    )
    if cluster is None and elems:
        # (fn may capture private arrays)
        first_results = _as_list(fn(initializer))
        cluster = next((x.cluster for x in first_results if isinstance(x, PrivateArray)), None)
    if cluster is None:
        raise UsageError(
            f"{_WANTS} as initializer. Received: public values only.",
            code="no-private-operand",
            operation="foldl",
        )
    carried_in = [
        x if isinstance(x, PrivateArray) else array.make_private_array(cluster, x) for x in initial
    ]
    variables = [_loop_variable(x, x._node.spec, _carried_bounds(x._node)) for x in carried_in]
    element_variables = [
        _loop_variable(x, _element_spec(x._node.spec), x._node.range, x._node)
        for x in loop_elements
    ]
    fn_state = _restore_structure(initializer, variables)
    carried_out = _as_list(
        fn(fn_state)
        if not loop_elements
        else fn(fn_state, _restore_structure(outer, element_variables))
    )
    if len(carried_out) != len(carried_in) or not all(
        isinstance(x, PrivateArray) for x in carried_out
    ):
        raise UsageError(
            f"fn returns the next loop variables: {len(carried_in)} private arrays. Received: "
            f"{[type(x).__name__ for x in carried_out]}.",
            code="loop-mismatch",
            operation="foldl",
        )
    for result, x in zip(carried_out, carried_in, strict=True):
        if result._node.spec != x._node.spec:
            raise UsageError(
                f"fn returns the next loop variables: {x!r}. Received: {result!r}.",
                code="loop-mismatch",
                operation="foldl",
            )
    texts, iteration_counts = _count_iteration_violations(cluster, carried_out, variables)
    if texts:
        zero_counts = array.make_private_array(cluster, np.zeros(len(texts), np.int64))
        count = _loop_variable(zero_counts, zero_counts._node.spec, zero_counts._node.range)
        carried_in, carried_out, variables = (
            [*carried_in, zero_counts],
            [*carried_out, count + iteration_counts],
            [*variables, count],
        )
    body, captured = _split_loop_body(
        [x._node for x in [*variables, *element_variables]], [x._node for x in carried_out]
    )
    captured_arrays = [PrivateArray(cluster, node) for node in captured]
    last_values = array.apply_loop(carried_in, loop_elements, captured_arrays, times, body)
    nodes = [
        replace(x._node, bounds=before._node.range)
        for x, before in zip(last_values, variables, strict=True)
    ]
    if texts:
        counts = PrivateArray(cluster, nodes.pop())
        guards = tuple((text, counts[i]._node) for i, text in enumerate(texts))
        nodes = [replace(node, guards=guards) for node in nodes]
    return _restore_structure(initializer, [PrivateArray(cluster, node) for node in nodes])


def _carried_bounds(node: ExpressionNode) -> Bounds:
    """Return the bounds of a value before each iteration; reals are checked against them."""
    if node.spec.kind != FIXED:
        return widest_bounds(node.spec)
    return union_bounds([node.range, default_bounds(node.spec)])


def _count_iteration_violations(
    cluster: Client, results: Sequence[PrivateArray], before: Sequence[PrivateArray]
) -> tuple[list[str], Any]:
    """Return texts of the violations that an iteration counts, and their numbers as one vector."""
    nodes = []
    for x, carried in zip(results, before, strict=True):
        node, required = x._node, carried._node.range
        if node.spec.kind == FIXED and not node.range.within(*required):
            limit = f"{required.most / (1 << node.spec.scale):.6g}"
            guard = OperandGuard(
                (node,), f"foldl: a value leaves {limit} between iterations", *required
            )
            node = replace(
                node, guards=(*node.guards, array.count_guard_violations(cluster, guard))
            )
        nodes.append(node)
    texts, vector = array.count_range_violations(cluster, nodes, {})
    return texts, PrivateArray(cluster, vector[0]) if vector else None


def _as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _restore_structure(template: Any, arrays: Sequence[PrivateArray]) -> Any:
    """Return arrays in the structure of a template."""
    return type(template)(arrays) if isinstance(template, (list, tuple)) else arrays[0]


def _loop_elements(elems: Any) -> tuple[list[PrivateArray], Any]:
    if type(elems) is int:
        if not 1 <= elems <= MAX_ITERATIONS:
            raise UsageError(
                f"A loop takes 1 to {MAX_ITERATIONS} iterations. Received: {elems}.",
                code="number-out-of-range",
                operation="foldl",
                received=elems,
            )
        return [], None
    arrays = _as_list(elems)
    if not arrays or not all(isinstance(x, PrivateArray) for x in arrays):
        raise UsageError(
            f"{_WANTS} or a number of iterations, as elems. Received: "
            f"{[type(x).__name__ for x in arrays]}.",
            code="wrong-type",
            operation="foldl",
        )
    sizes = {x.shape[:1] for x in arrays}
    if len(sizes) != 1 or not arrays[0].ndim or not 1 <= len(arrays[0]) <= MAX_ITERATIONS:
        raise UsageError(
            f"All elems have one length, the number of iterations, 1 to {MAX_ITERATIONS}. "
            f"Received: shapes {[list(x.shape) for x in arrays]}.",
            code="shape-mismatch",
            operation="foldl",
        )
    return arrays, elems


def _element_spec(spec: ArraySpec) -> ArraySpec:
    return ArraySpec(spec.kind, spec.shape[1:], spec.scale)


def _loop_variable(
    x: PrivateArray, spec: ArraySpec, bounds: Bounds, part_of: ExpressionNode | None = None
) -> PrivateArray:
    """Return the loop variable that stands for an array of any iteration."""
    leaf = ExpressionLeaf(LOOP_VARIABLE, spec.kind, spec.shape, spec.scale)
    return PrivateArray(x.cluster, ExpressionNode(spec, leaf=leaf, bounds=bounds, part_of=part_of))


def _split_loop_body(
    variables: Sequence[ExpressionNode], outputs: Sequence[ExpressionNode]
) -> tuple[LoopBody, list[ExpressionNode]]:
    """Split the nodes of an iteration into a loop body and captured values."""
    order = building.topological_node_order(outputs)
    changing = {id(node) for node in variables}
    for node in order:
        if any(id(child) in changing for child in building.node_operands(node)):
            changing.add(id(node))
    inner = [node for node in order if id(node) in changing]
    used = [*outputs, *(child for node in inner for child in building.node_operands(node))]
    captured = list({id(node): node for node in used if id(node) not in changing}.values())
    leaves = [*variables, *captured]
    numbers = {id(node): ValueReference(number) for number, node in enumerate(leaves)}
    steps = building.build_steps(inner, numbers, len(leaves))
    rows = [encode_operation_argument(numbers[id(node)]) for node in outputs]
    return parse_body([len(leaves), steps, rows]), captured

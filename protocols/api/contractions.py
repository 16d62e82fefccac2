"""Sums of products of two tensors over named axes: einsum, tensordot, matvec.

Each is one matrix product (operators.matmul) between transposes and reshapes, which are local.
"""

from __future__ import annotations

import collections
import string
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from tfe_bench.errors import UsageError
from tfe_bench.protocols.api import operands
from tfe_bench.protocols.api.operators import matmul
from tfe_bench.protocols.ring import checks, reductions, shapes
from tfe_bench.protocols.session import tensor_ops
from tfe_bench.protocols.session.sharing import Shared
from tfe_bench.protocols.session.types import Operand

# The name of an axis: a letter, or "-k" for the k-th axis of an ellipsis, from the right.
Axes: TypeAlias = "list[str]"


def matvec(a: Operand, b: Operand, transpose_a: bool = False) -> Shared:
    """Multiply matrices [..., m, n] and vectors [..., n], as tf.linalg.matvec.

    Scale, error and rounds: as `matmul`.
    """
    shape = _known_einsum_operand_shape("matvec", b)
    if not shape:
        raise UsageError(
            "matvec expects vectors [..., n]. Received: a single number.",
            code="rank-mismatch",
            operation="matvec",
            expected="[..., n]",
        )
    column = _reshape_einsum_operand(b, [*shape, 1])
    product = matmul(a, column, transpose_a=transpose_a)
    return shapes.squeeze(product, -1)


def tensordot(
    a: Operand, b: Operand, axes: int | Sequence[int] | Sequence[Sequence[int]]
) -> Shared:
    """Sum products over paired axes, as tf.tensordot.

    Args:
        axes: k for the last k axes of a with the first k of b (0: the outer product), or a pair of
            axes or of lists of axes.

    Scale, error and rounds: as `matmul`.
    """
    ranks = [len(_known_einsum_operand_shape("tensordot", v)) for v in (a, b)]
    if checks.is_integer(axes):
        description = f"0 to {min(ranks)} axes to sum over"
        operands.check_integer_range("tensordot", int(axes), 0, min(ranks), description)
        summed_axes = [list(range(ranks[0] - axes, ranks[0])), list(range(axes))]
    elif not isinstance(axes, (list, tuple, np.ndarray)) or len(axes) != 2:
        raise UsageError(
            f"tensordot expects a number of axes or a pair of lists. Received: {axes!r}.",
            code="wrong-type",
            operation="tensordot",
            received=axes,
            expected="a number or a pair of lists",
        )
    else:
        listed: list[Any] = [v if isinstance(v, (list, tuple, np.ndarray)) else [v] for v in axes]
        summed_axes = [
            [checks.normalize_axis("tensordot", i, r) for i in part]
            for part, r in zip(listed, ranks, strict=True)
        ]
    if len(summed_axes[0]) != len(summed_axes[1]) or any(
        len(set(part)) < len(part) for part in summed_axes
    ):
        raise UsageError(
            f"tensordot expects the same number of axes of both, each once. Received: {axes!r}.",
            code="duplicate-axis"
            if len(summed_axes[0]) == len(summed_axes[1])
            else "shape-mismatch",
            operation="tensordot",
            received=axes,
        )
    names = [[f"a{i}" for i in range(ranks[0])], [f"b{i}" for i in range(ranks[1])]]
    for i, j in zip(*summed_axes, strict=True):
        names[1][j] = names[0][i]
    result_names = [
        n
        for side, part in zip(names, summed_axes, strict=True)
        for n in _remove_einsum_axes(side, part)
    ]
    return _contract_einsum_operands("tensordot", [a, b], names, result_names)


def _remove_einsum_axes(names: Axes, places: list[int]) -> Axes:
    return [n for i, n in enumerate(names) if i not in places]


def einsum(equation: str, *inputs: Operand) -> Shared:
    """Sum products of one or two tensors, as tf.einsum: "bij,bjk->bik".

    Args:
        equation: letters for axes, "..." for any number of leading ones, which broadcast; a letter
            twice in one term is its diagonal; without "->" the result has the letters that occur
            once, in alphabetic order.
        inputs: one or two; one of two may be public and known while tracing.

    Scale, error and rounds: as `matmul`, in one product; for one tensor nothing is sent.
    Raises:
        UsageError: there are three tensors or more, or the equation does not fit them.
    """
    if not isinstance(equation, str) or len(inputs) not in (1, 2):
        raise UsageError(
            f"einsum expects an equation and one or two tensors. Received: {equation!r} "
            f"and {len(inputs)} tensors. Contract them two at a time.",
            code="unsupported-argument",
            operation="einsum",
            received=f"{equation!r} and {len(inputs)} tensors",
            expected="an equation and one or two tensors",
        )
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    for term in (*terms, right):
        letters = term.replace("...", "", 1)
        if not set(letters) <= set(string.ascii_letters):
            raise UsageError(
                'einsum expects letters, one "..." per term, "," and "->". Received: '
                f"{equation!r}.",
                code="invalid-equation",
                operation="einsum",
                received=equation,
            )
    if len(terms) != len(inputs):
        raise UsageError(
            f"einsum expects a term for each tensor. Received: {len(terms)} terms in "
            f"{equation!r} for {len(inputs)} tensors.",
            code="shape-mismatch",
            operation="einsum",
            received=f"{len(terms)} terms in {equation!r}",
            expected=len(inputs),
        )
    ranks = [len(_known_einsum_operand_shape("einsum", v)) for v in inputs]
    names = [_name_einsum_axes(equation, t, r) for t, r in zip(terms, ranks, strict=True)]
    ellipsis_names = [f"-{k}" for k in range(_ellipsis_rank(names), 0, -1)]
    if arrow:
        result = [
            n
            for part in _split_einsum_term(right)
            for n in (ellipsis_names if part == "..." else [part])
        ]
    else:
        count = collections.Counter(n for part in names for n in part)
        result = ellipsis_names + sorted(n for n, c in count.items() if c == 1 and n[0] != "-")
    unknown = set(result) - {n for part in names for n in part}
    if unknown or len(set(result)) < len(result) or not set(ellipsis_names) <= set(result):
        raise UsageError(
            "einsum expects a result with axes of its terms, each once, and with the "
            f"ellipsis if a term has one. Received: {equation!r}.",
            code="invalid-equation-result",
            operation="einsum",
            received=equation,
        )
    return _contract_einsum_operands("einsum", list(inputs), names, result)


def _split_einsum_term(term: str) -> list[str]:
    """Split a term into letters and the ellipsis."""
    before, dots, after = term.partition("...")
    return [*before, *([dots] if dots else []), *after]


def _name_einsum_axes(equation: str, term: str, rank: int) -> Axes:
    parts = _split_einsum_term(term)
    ellipsis_count = rank - (len(parts) - parts.count("..."))
    if ellipsis_count < 0 or (ellipsis_count and "..." not in parts):
        raise UsageError(
            f"einsum expects a letter for each axis. Received: {term!r} of {equation!r} "
            f"for a tensor with {rank} axes.",
            code="rank-mismatch",
            operation="einsum",
            received=term,
            expected=rank,
        )
    ellipsis_names = [f"-{k}" for k in range(ellipsis_count, 0, -1)]
    return [n for part in parts for n in (ellipsis_names if part == "..." else [part])]


def _ellipsis_rank(names: list[Axes]) -> int:
    return max(sum(n[0] == "-" for n in part) for part in names)


# ---- one product


def _known_einsum_operand_shape(operation: str, value: Operand) -> list[int]:
    if isinstance(value, Shared):
        return operands.sizes(operation, operands.check_private_operand(operation, value))
    shape = operands.public_shape(operation, value)
    if not shape.is_fully_defined():
        raise UsageError(
            f"{operation} expects a known shape. Received: {shape}.",
            code="unknown-shape",
            operation=operation,
            received=shape,
        )
    return [int(n) for n in shape.as_list()]


def _reshape_einsum_operand(value: Operand, shape: list[int]) -> Operand:
    if isinstance(value, Shared):
        return shapes.reshape(value, shape)
    return (
        tensor_ops.reshape(value, shape)
        if tensor_ops.is_tensor(value)
        else np.reshape(value, shape)
    )


def _contract_einsum_operands(
    operation: str, inputs: list[Operand], names: list[Axes], result: Axes
) -> Shared:
    """Sum over all axes that are not in the result."""
    sizes: dict[str, int] = {}
    for value, part in zip(inputs, names, strict=True):
        for name, size in zip(part, _known_einsum_operand_shape(operation, value), strict=True):
            first_size = sizes.setdefault(name, size)
            if name[0] == "-" and 1 in (first_size, size):
                sizes[name] = max(first_size, size) if 0 not in (first_size, size) else 0
            elif first_size != size:
                raise UsageError(
                    f"{operation} expects axes of one name to have one size. Received: "
                    f"{first_size} and {size} for {name!r}.",
                    code="shape-mismatch",
                    operation=operation,
                    received=f"{first_size} and {size}",
                )
    reduced = []
    for i, (value, part) in enumerate(zip(inputs, names, strict=True)):
        others = {n for j, other in enumerate(names) if j != i for n in other}
        kept_names = [n for n in dict.fromkeys(part) if n in others or n in result]
        reduced.append((_reduce_einsum_operand(operation, value, part, kept_names), kept_names))
    if len(reduced) == 1:
        value, kept_names = reduced[0]
        return shapes.transpose(
            operands.check_private_operand(operation, value), [kept_names.index(n) for n in result]
        )
    (x, of_x), (y, of_y) = reduced
    batch_names = [n for n in result if n in of_x and n in of_y]
    summed_names = [n for n in of_x if n in of_y and n not in result]
    first = [n for n in result if n in of_x and n not in batch_names]
    last = [n for n in result if n in of_y and n not in batch_names]
    left = _group_einsum_axes(operation, x, of_x, batch_names, first, summed_names)
    right = _group_einsum_axes(operation, y, of_y, batch_names, summed_names, last)
    product = shapes.reshape(matmul(left, right), [sizes[n] for n in (*batch_names, *first, *last)])
    product_names = [*batch_names, *first, *last]
    return shapes.transpose(product, [product_names.index(n) for n in result])


def _reduce_einsum_operand(operation: str, value: Operand, part: Axes, kept_names: Axes) -> Operand:
    """Take diagonals of repeated axes, and sum over axes that are not kept."""
    if part == kept_names:
        return value
    if not isinstance(value, Shared):
        static_value = operands.static_public_operand(operation, value)
        if static_value is None:
            raise UsageError(
                f"{operation} expects public values known while tracing if an axis of them "
                "is repeated or summed separately. Received: "
                f"{operands.describe_type(value)}.",
                code="not-static",
                operation=operation,
                received=operands.describe_type(value),
            )
        number = {name: i for i, name in enumerate(dict.fromkeys(part))}
        return np.asarray(
            np.einsum(static_value, [number[n] for n in part], [number[n] for n in kept_names])
        )
    part = list(part)
    for name in [n for n in kept_names if part.count(n) > 1] + [
        n for n in dict.fromkeys(part) if n not in kept_names and part.count(n) > 1
    ]:
        while part.count(name) > 1:
            first_place = part.index(name)
            second_place = part.index(name, first_place + 1)
            rest = [i for i in range(len(part)) if i not in (first_place, second_place)]
            shape = _known_einsum_operand_shape(operation, value)
            size = shape[first_place]
            transposed = shapes.transpose(value, [first_place, second_place, *rest])
            flat = shapes.reshape(transposed, [size * size, *(shape[i] for i in rest)])
            value = shapes.gather(flat, np.arange(size) * (size + 1), 0)
            part = [name, *(part[i] for i in rest)]
    summed_axes = [i for i, n in enumerate(part) if n not in kept_names]
    value = reductions.reduce_sum(value, summed_axes) if summed_axes else value
    remaining_names = [n for n in part if n in kept_names]
    assert isinstance(value, Shared)
    return shapes.transpose(value, [remaining_names.index(n) for n in kept_names])


def _group_einsum_axes(
    operation: str, value: Operand, names: Axes, batch_names: Axes, rows: Axes, columns: Axes
) -> Operand:
    """Reshape to [batch axes ..., product of rows, product of columns]."""
    sizes = dict(zip(names, _known_einsum_operand_shape(operation, value), strict=True))
    order = [names.index(n) for n in (*batch_names, *rows, *columns)]
    groups = [operands.count_elements([sizes[n] for n in part]) for part in (rows, columns)]
    shape = [*(sizes[n] for n in batch_names), *groups]
    if isinstance(value, Shared):
        return shapes.reshape(shapes.transpose(value, order), shape)
    if not tensor_ops.is_tensor(value):
        return np.reshape(np.transpose(value, order), shape)
    return tensor_ops.reshape(tensor_ops.transpose(value, order), shape)

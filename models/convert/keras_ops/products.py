"""Products of matrices: of two tensors, or of a tensor and weights."""

from __future__ import annotations

from tfe_bench.models.convert.keras_ops.arithmetic import broadcast_tensor
from tfe_bench.models.layers import base as L
from tfe_bench.models.layers.base import Array


@L.register_reader("Matmul", "Dot")
def convert_keras_matmul(r: L.Reader, op: L.KerasOperation, x1: L.Operand, x2: L.Operand) -> str:
    if isinstance(x1, L.TensorValue) and isinstance(x2, L.TensorValue):
        if type(op.keras_operation).__name__ == "Dot" or len(x1.shape) < 2:
            raise L.UnsupportedLayer("of two tensors; use x @ y of matrices for each sample")
        L.check_same_rank([x1, x2])
        lead = op.shape[:-2]
        x1, x2 = (
            broadcast_tensor(r, f"{op.name}/spread", v, (*lead, *v.shape[-2:])) for v in (x1, x2)
        )
        return r.add_layer(op.name, "matmul", [x1.name, x2.name])
    if isinstance(x1, L.TensorValue):
        return _multiply_constant_matrix(r, op, x1, L.read_constant(x2))
    assert isinstance(x2, L.TensorValue)
    if len(x2.shape) < 2 or type(op.keras_operation).__name__ == "Dot":
        raise L.UnsupportedLayer("of numbers and a tensor; put the tensor first")
    # (A x)' = x' A'
    axes = [*range(1, len(x2.shape) + 1)]
    order = [*axes[:-2], axes[-1], axes[-2]]
    turned = r.add_layer(
        r.make_unique(f"{op.name}/turned"), "permute", [x2.name], None, order=order
    )
    shape = (*x2.shape[:-2], x2.shape[-1], x2.shape[-2])
    product = _add_dense_layer(
        r,
        r.make_unique(f"{op.name}/product"),
        L.TensorValue(turned, shape, x2.dtype),
        L.read_constant(x1).T,
    )
    return r.add_layer(op.name, "permute", [product], None, order=order)


def _multiply_constant_matrix(
    r: L.Reader, op: L.KerasOperation, x: L.TensorValue, kernel: Array
) -> str:
    """Multiply by a constant matrix, or by one column, whose axis is removed."""
    if kernel.ndim != 1 or r.training:
        return _add_dense_layer(r, op.name, x, kernel)
    if not op.shape:  # (a number for each sample has an axis of 1 here)
        return _add_dense_layer(r, op.name, x, kernel[:, None])
    column = _add_dense_layer(r, r.make_unique(f"{op.name}/column"), x, kernel[:, None])
    return r.add_layer(op.name, "reshape", [column], None, shape=list(op.shape))


def _add_dense_layer(r: L.Reader, name: str, x: L.TensorValue, kernel: Array) -> str:
    if kernel.ndim != 2:
        raise L.UnsupportedLayer(
            f"with numbers of shape {list(kernel.shape)}; a matrix is supported"
        )
    return r.add_layer(name, "dense", [x.name], {"kernel": kernel})

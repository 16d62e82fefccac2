"""Products of matrices: of two tensors, or of a tensor and weights."""

from __future__ import annotations

from tfe_bench.models.keras_ops.arithmetic import spread
from tfe_bench.models.kinds.calls import Operand, Operation, Value, numbers, one_rank, reads
from tfe_bench.models.kinds.layer import Array
from tfe_bench.models.kinds.reading import Reader, Unfit


@reads("Matmul", "Dot")
def matmul(r: Reader, op: Operation, x1: Operand, x2: Operand) -> str:
    if isinstance(x1, Value) and isinstance(x2, Value):
        if type(op.own).__name__ == "Dot" or len(x1.shape) < 2:
            raise Unfit("of two tensors; use x @ y of matrices for each sample")
        one_rank([x1, x2])
        lead = op.shape[:-2]
        x1, x2 = (spread(r, f"{op.name}/spread", v, (*lead, *v.shape[-2:])) for v in (x1, x2))
        return r.emit(op.name, "matmul", [x1.name, x2.name])
    if isinstance(x1, Value):
        return _of_numbers(r, op, x1, numbers(x2))
    assert isinstance(x2, Value)
    if len(x2.shape) < 2 or type(op.own).__name__ == "Dot":
        raise Unfit("of numbers and a tensor; put the tensor first")
    # (A x)' = x' A'
    axes = [*range(1, len(x2.shape) + 1)]
    order = [*axes[:-2], axes[-1], axes[-2]]
    turned = r.emit(r.unique(f"{op.name}/turned"), "permute", [x2.name], None, order=order)
    shape = (*x2.shape[:-2], x2.shape[-1], x2.shape[-2])
    product = _dense(
        r, r.unique(f"{op.name}/product"), Value(turned, shape, x2.dtype), numbers(x1).T
    )
    return r.emit(op.name, "permute", [product], None, order=order)


def _of_numbers(r: Reader, op: Operation, x: Value, kernel: Array) -> str:
    """A matrix of numbers, or one column of them, whose axis goes."""
    if kernel.ndim != 1 or r.training:
        return _dense(r, op.name, x, kernel)
    if not op.shape:  # (a number for each sample has an axis of 1 here)
        return _dense(r, op.name, x, kernel[:, None])
    column = _dense(r, r.unique(f"{op.name}/column"), x, kernel[:, None])
    return r.emit(op.name, "reshape", [column], None, shape=list(op.shape))


def _dense(r: Reader, name: str, x: Value, kernel: Array) -> str:
    if kernel.ndim != 2:
        raise Unfit(f"with numbers of shape {list(kernel.shape)}; a matrix is supported")
    return r.emit(name, "dense", [x.name], {"kernel": kernel})

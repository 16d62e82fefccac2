"""x @ y, of tensors and of numbers."""

from __future__ import annotations

from tfe_bench.models.kinds.calls import Operand, Operation, Value, numbers, one_rank, reads
from tfe_bench.models.kinds.reading import Reader, Unfit


@reads("Matmul")
def matmul(r: Reader, op: Operation, x1: Operand, x2: Operand) -> str:
    """A dense layer where the second is a matrix of numbers."""
    if isinstance(x1, Value) and isinstance(x2, Value):
        one_rank([x1, x2])
        if len(x1.shape) < 2:
            raise Unfit("of rows that are a batch of vectors; use the layer Dot")
        if x1.shape[:-2] != x2.shape[:-2]:
            raise Unfit(f"broadcasts {list(x1.shape)} and {list(x2.shape)}; repeat one first")
        return r.emit(op.name, "matmul", [x1.name, x2.name])
    if not isinstance(x1, Value) or numbers(x2).ndim != 2:
        raise Unfit("with numbers that are not a matrix on the right side")
    if r.training:
        raise Unfit("with numbers in training; use Dense")
    return r.emit(op.name, "dense", [x1.name], {"kernel": numbers(x2)})

"""Masking: which steps of a sequence are not all one number."""

from __future__ import annotations

from tfe_bench.models.keras_ops.reductions import reduced
from tfe_bench.models.kinds.calls import Value
from tfe_bench.models.kinds.reading import Call, Reader, Unfit
from tfe_bench.models.kinds.turning import reshaped
from tfe_bench.models.layers.identity import Untrained


class Masking(Untrained):
    """Steps with an element that is not the mask's number; the others are 0, and are masked.

    A number is equal to another if it is in fixed point: within half an ulp.
    """

    op = "masking"
    keras = ("Masking",)
    masks = True

    def composed(self, r: Reader, call: Call) -> str:
        (x,), (shape,), name = call.inputs, call.shapes, call.name
        number = call.layer.mask_value
        if not isinstance(number, (int, float)) or len(shape) < 2:
            raise Unfit(f"mask_value={number!r} of values {[None, *shape]}")
        options = {"scale": 1.0, "offset": -float(number)}
        apart = r.emit(r.unique(f"{name}/apart"), "rescale", [x], None, **options)
        other = r.emit(r.unique(f"{name}/other"), "zero", [apart], None, inverted=True)
        several = Value(other, shape, "float32")
        own, sums = r.unique(f"{name}/count"), "global_sum_pool2d"
        count = reduced(r, own, sums, several, [len(shape) - 1], shape[:-1])
        r.mask = r.emit(r.unique(f"{name}/mask"), "zero", [count], None, inverted=True)
        steps = reshaped(r, r.mask, f"{name}/steps", (*shape[:-1], 1))
        return r.emit(name, "multiply", [x, steps])

"""Masking: the steps of a sequence that are not entirely one number."""

from __future__ import annotations

from tfe_bench.models.layers import base as L
from tfe_bench.models.layers.identity import InferenceOnlyLayer


class Masking(InferenceOnlyLayer):
    """Steps with an element that differs from the mask's number; other steps become 0 and masked.

    Numbers are equal if they are in fixed point: within half an ulp.
    """

    op = "masking"
    keras_layers = ("Masking",)
    handles_masks = True

    def convert_inference(self, r: L.Reader, call: L.LayerCall) -> str:
        (x,), (shape,), name = call.inputs, call.shapes, call.name
        number = call.layer.mask_value
        if not isinstance(number, (int, float)) or len(shape) < 2:
            raise L.UnsupportedLayer(f"mask_value={number!r} of values {[None, *shape]}")
        options = {"scale": 1.0, "offset": -float(number)}
        difference = r.add_layer(r.make_unique(f"{name}/apart"), "rescale", [x], None, **options)
        is_other = r.add_layer(
            r.make_unique(f"{name}/other"), "zero", [difference], None, inverted=True
        )
        is_other_value = L.TensorValue(is_other, shape, "float32")
        count_name, sums = r.make_unique(f"{name}/count"), "global_sum_pool2d"
        count = L.add_reduction_layer(
            r, count_name, sums, is_other_value, [len(shape) - 1], shape[:-1]
        )
        r.mask = r.add_layer(r.make_unique(f"{name}/mask"), "zero", [count], None, inverted=True)
        steps = L.add_reshape_layer(r, r.mask, f"{name}/steps", (*shape[:-1], 1))
        return r.add_layer(name, "multiply", [x, steps])

"""TimeDistributed and SpectralNormalization: Keras layers that wrap another one."""

from __future__ import annotations

from dataclasses import replace

from tfe_bench.models.layers import base as L
from tfe_bench.models.layers.identity import ComposedLayer

# Bound on the steps of a layer that is converted once for each step.
_MOST_STEPS = 64
# Layers that apply to each step of a longer value as to a shorter one.
_ALONG_THE_LAST = ("Dense", "Activation", "ReLU", "LeakyReLU", "ELU", "Dropout", "Identity")


class LayerWrapper(ComposedLayer):
    """The output of another layer."""

    op = "wrapped"
    keras_layers = ("SpectralNormalization",)

    def convert_layer(self, r: L.Reader, call: L.LayerCall) -> str:
        if r.training:
            raise L.UnsupportedLayer("training divides its kernel by a norm; train the inner layer")
        return r.convert_inner_layer(call.layer.layer, call)


class TimeDistributed(LayerWrapper):
    """The output of another layer for each step."""

    op = "distributed"
    keras_layers = ("TimeDistributed",)

    def convert_layer(self, r: L.Reader, call: L.LayerCall) -> str:
        inner, name, (steps, *step_shape) = call.layer.layer, call.name, call.shapes[0]
        kind = type(inner).__name__
        if kind in _ALONG_THE_LAST and len(step_shape) > 0:
            return r.convert_inner_layer(inner, call)
        if kind in ("Flatten", "Reshape") and getattr(inner, "data_format", "") != "channels_first":
            return r.add_layer(name, "reshape", call.inputs, None, shape=list(call.shape))
        if steps > _MOST_STEPS:
            raise L.UnsupportedLayer(
                f"of {steps} steps; {_MOST_STEPS} are supported around a {kind}"
            )
        outputs = []
        for step in range(steps):
            sides = [[step, steps - step - 1], *([0, 0] for _ in step_shape)]
            step_name = r.make_unique(f"{name}/step{step}")
            cut = r.add_layer(
                r.make_unique(f"{step_name}/cut"), "crop", call.inputs, None, sides=sides
            )
            step_input = L.add_reshape_layer(r, cut, f"{step_name}/given", tuple(step_shape))
            step_call = replace(
                call,
                name=step_name,
                inputs=[step_input],
                shapes=[tuple(step_shape)],
                shape=call.shape[1:],
            )
            value = r.convert_inner_layer(inner, step_call)
            outputs.append(L.add_reshape_layer(r, value, f"{step_name}/row", (1, *call.shape[1:])))
        return r.add_layer(name, "concat", outputs, None, axis=1) if steps > 1 else outputs[0]

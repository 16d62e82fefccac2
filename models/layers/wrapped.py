"""TimeDistributed and SpectralNormalization: layers of Keras around another one."""

from __future__ import annotations

from dataclasses import replace

from tfe_bench.models.kinds.reading import Call, Reader, Unfit
from tfe_bench.models.kinds.turning import reshaped
from tfe_bench.models.layers.identity import Composed

# Steps of a layer that is written once for each.
_MOST_STEPS = 64
# What treats every step of a longer value as it treats a shorter one.
_ALONG_THE_LAST = ("Dense", "Activation", "ReLU", "LeakyReLU", "ELU", "Dropout", "Identity")


class Wrapped(Composed):
    """What another layer gives."""

    op = "wrapped"
    keras = ("SpectralNormalization",)

    def read(self, r: Reader, call: Call) -> str:
        if r.training:
            raise Unfit("whose kernel training divides by its norm; train the layer in it")
        return r.within(call.layer.layer, call)


class Distributed(Wrapped):
    """What another layer gives for each step."""

    op = "distributed"
    keras = ("TimeDistributed",)

    def read(self, r: Reader, call: Call) -> str:
        inner, name, (steps, *rest) = call.layer.layer, call.name, call.shapes[0]
        kind = type(inner).__name__
        if kind in _ALONG_THE_LAST and len(rest) > 0:
            return r.within(inner, call)
        if kind in ("Flatten", "Reshape") and getattr(inner, "data_format", "") != "channels_first":
            return r.emit(name, "reshape", call.inputs, None, shape=list(call.shape))
        if steps > _MOST_STEPS:
            raise Unfit(f"of {steps} steps; {_MOST_STEPS} are supported around a {kind}")
        found = []
        for step in range(steps):
            sides = [[step, steps - step - 1], *([0, 0] for _ in rest)]
            own = r.unique(f"{name}/step{step}")
            cut = r.emit(r.unique(f"{own}/cut"), "crop", call.inputs, None, sides=sides)
            given = reshaped(r, cut, f"{own}/given", tuple(rest))
            of_one = replace(
                call, name=own, inputs=[given], shapes=[tuple(rest)], shape=call.shape[1:]
            )
            value = r.within(inner, of_one)
            found.append(reshaped(r, value, f"{own}/row", (1, *call.shape[1:])))
        return r.emit(name, "concat", found, None, axis=1) if steps > 1 else found[0]
